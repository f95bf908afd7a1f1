//! Who proposes in a run: the flags, the first look at what was chosen, and the agent for each target.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::agent::command::{Command, Desk};
use crate::agent::language::{self, Language, Price, PriceTable, Settings};
use crate::agent::prompt::Prompt;
use crate::agent::replay::Replay;
use crate::agent::tuner::Tuner;
use crate::agent::{Agent, AgentError, Choice, transcript};
use crate::engine::stop::Rules;
use crate::engine::{MakeAgent, Seat};
use crate::workspace::{PriceSettings, duration};

/// How long a command may take for one proposal, where nothing is said.
const COMMAND_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Who proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// The built-in search over tunables: no key, no network
    Tuner,
    /// Language models behind an OpenAI-compatible endpoint (OPENAI_API_KEY, OPENAI_BASE_URL)
    Openai,
    /// A program that edits the kernel file; it stands behind `--`
    Command,
    /// The proposals of an earlier run, from its transcript
    Replay,
}

/// Who proposes, and what it may cost.
#[derive(Debug, clap::Args)]
pub(super) struct AgentArgs {
    /// Who proposes [default: tuner]
    #[arg(long, value_name = "AGENT")]
    agent: Option<Kind>,
    /// The transcript to play again, with `--agent replay`
    #[arg(value_name = "TRANSCRIPT")]
    transcript: Option<PathBuf>,
    /// Language models, with weights where there are several: `a:2,b:1`
    #[arg(long = "model", value_name = "NAME")]
    models: Option<String>,
    /// Proposals that are asked for at once while the device works [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    proposals: Option<u8>,
    /// Tokens that fit into the model's context, where that is not known
    #[arg(long, value_name = "TOKENS")]
    context: Option<usize>,
    /// End the run when its agent has used so many tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// End the run when its agent has cost so many US dollars
    #[arg(long, value_name = "USD")]
    max_cost: Option<f64>,
    /// How long a command may take for one proposal [default: 20m]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    agent_limit: Option<Duration>,
    /// The program to run for each proposal, with `--agent command`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl AgentArgs {
    /// The agent that was asked for; `None` where nobody said anything of one.
    pub(super) fn choice(&self) -> anyhow::Result<Option<Choice>> {
        let only = |given: bool, flag: &str, kind: &str| match given {
            true => bail!("{flag} is for --agent {kind}; give both or neither"),
            false => Ok(()),
        };
        if self.agent != Some(Kind::Command) {
            only(!self.command.is_empty(), "a command behind `--`", "command")?;
            only(self.agent_limit.is_some(), "--agent-limit", "command")?;
        }
        if self.agent != Some(Kind::Openai) {
            only(self.models.is_some(), "--model", "openai")?;
            only(self.proposals.is_some(), "--proposals", "openai")?;
            only(self.context.is_some(), "--context", "openai")?;
        }
        if self.agent != Some(Kind::Replay) {
            only(self.transcript.is_some(), "a transcript", "replay")?;
        }
        let Some(kind) = self.agent else { return Ok(None) };
        Ok(Some(match kind {
            Kind::Tuner => Choice::Tuner,
            Kind::Openai => {
                let settings = Settings::from_environment(self.models.as_deref(), &variable)?;
                Choice::Openai {
                    base_url: settings.base_url,
                    models: settings.models,
                    proposals: usize::from(self.proposals.unwrap_or(1)),
                    context: self.context,
                }
            }
            Kind::Command if self.command.is_empty() => {
                bail!("there is no command; write it behind `--`, as in `--agent command -- claude -p`")
            }
            Kind::Command => {
                Choice::Command { argv: found(&self.command)?, limit: self.agent_limit.unwrap_or(COMMAND_LIMIT) }
            }
            Kind::Replay => {
                let file = self.transcript.as_ref().context(
                    "there is no transcript to play; name it behind the model: `--agent replay .warpsmith/RUN/transcript.jsonl`",
                )?;
                let file = file.canonicalize().with_context(|| file.display().to_string())?;
                Choice::Replay { file: file.to_string_lossy().into_owned() }
            }
        }))
    }

    /// Tells model (or kernel) and transcript apart in whichever order they came.
    pub(super) fn find_transcript(&mut self, model: &mut PathBuf) {
        let is_kernel =
            |path: &Path| path.extension().is_some_and(|name| ["c", "cu", "py"].iter().any(|known| name == *known));
        if let Some(second) = &mut self.transcript
            && model.is_file()
            && (second.is_dir() || is_kernel(second) && !is_kernel(model))
        {
            std::mem::swap(model, second);
        }
    }

    /// Puts the limits that were given over those there are.
    pub(super) fn override_rules(&self, rules: &mut Rules) -> anyhow::Result<()> {
        if self.max_cost.is_some_and(|cost| !cost.is_finite() || cost < 0.0) {
            bail!("--max-cost must be a number of US dollars");
        }
        rules.max_tokens = self.max_tokens.or(rules.max_tokens);
        rules.max_cost = self.max_cost.or(rules.max_cost);
        Ok(())
    }
}

/// The command, its program by its full path where it was named by a path: it is started in another folder.
fn found(command: &[String]) -> anyhow::Result<Vec<String>> {
    let mut argv = command.to_vec();
    let Some(program) = argv.first_mut() else { return Ok(argv) };
    let runs = |path: &Path| path.is_file() && path.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    if !program.contains('/') {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&folders).any(|folder| runs(&folder.join(&program))) {
            bail!("there is no program `{program}` in PATH, and --agent command needs it");
        }
        return Ok(argv);
    }
    let path = std::path::absolute(&program).with_context(|| program.clone())?;
    if !path.exists() {
        bail!("{program} is not there, and --agent command needs it");
    }
    if !runs(&path) {
        bail!("{program} is no program that can be run; `chmod +x` makes a script one");
    }
    *program = path.to_string_lossy().into_owned();
    Ok(argv)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What to say to someone who has a key in the environment and did not ask for it to be used.
pub(super) fn hint(choice: &Choice) -> Option<String> {
    let has_key = variable("OPENAI_API_KEY").is_some_and(|key| !key.trim().is_empty());
    (has_key && *choice == Choice::Tuner).then(|| {
        "note: OPENAI_API_KEY is set and not used; `--agent openai --model NAME` lets a language model propose"
            .to_owned()
    })
}

/// The makers of agents, after a look at whether the chosen one can work: nothing is wasted on one that cannot.
pub(super) async fn ready(
    choice: &Choice,
    prices: &[PriceSettings],
    read: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<MakeAgent> {
    Ok(match choice {
        Choice::Tuner | Choice::Outside { .. } => Box::new(|_| Ok(Box::new(Tuner::default()))),
        Choice::Openai { .. } => {
            let settings = settings(choice, price_table(prices))?;
            language::check(&settings).await?;
            openai(settings, Prompt::new(read)?)
        }
        Choice::Command { argv, limit } => {
            let (argv, limit, prompt) = (argv.clone(), *limit, Prompt::new(read)?);
            Box::new(move |seat| Ok(Box::new(Command::new(desk(seat, &argv, limit), prompt.clone()))))
        }
        Choice::Replay { file } => {
            let lines = transcript::read(file.as_ref()).with_context(|| format!("the transcript {file}"))?;
            let replay = Replay::new(lines);
            Box::new(move |_| Ok(Box::new(replay.clone())))
        }
    })
}

/// The workspace's prices before the program's own.
fn price_table(rows: &[PriceSettings]) -> PriceTable {
    let row = |row: &PriceSettings| Price {
        name: row.name.clone(),
        input: row.input,
        output: row.output,
        context: row.context,
        source: "warpsmith.toml".to_owned(),
    };
    PriceTable::builtin().with(rows.iter().map(row).collect())
}

/// The endpoint of a choice, with the key of the environment.
fn settings(choice: &Choice, prices: PriceTable) -> anyhow::Result<Settings> {
    let Choice::Openai { base_url, models, proposals, context } = choice else {
        bail!("agent {} asks no language model", choice.name());
    };
    let names: Vec<String> = models.iter().map(|(name, weight)| format!("{name}:{weight}")).collect();
    let there = |name: &str| if name == "OPENAI_BASE_URL" { Some(base_url.clone()) } else { variable(name) };
    let mut settings = Settings::from_environment(Some(&names.join(",")), &there)?;
    hurry(&mut settings);
    settings.models.clone_from(models);
    settings.proposals = *proposals;
    settings.prices = prices;
    for (name, _) in models {
        settings.context_tokens.extend(context.map(|tokens| (name.clone(), tokens)));
    }
    Ok(settings)
}

/// A build for tests with `WARPSMITH_TIME_SCALE=0.01` in its environment waits a hundredth as long between requests and for a
/// silent server, so that a test sees an outage through in seconds; no other build does.
fn hurry(settings: &mut Settings) {
    let scale = variable("WARPSMITH_TIME_SCALE").filter(|_| cfg!(feature = "test-support"));
    if let Some(scale) = scale.and_then(|scale| scale.parse().ok()).filter(|scale| *scale > 0.0 && *scale <= 1.0) {
        settings.time_scale = scale;
        settings.timeout = settings.timeout.mul_f64(scale);
    }
}

/// One connection for the whole run; each target has an agent of its own on it.
fn openai(settings: Settings, prompt: Prompt) -> MakeAgent {
    let first: Mutex<Option<Language>> = Mutex::new(None);
    Box::new(move |seat: &Seat| {
        let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match first.take() {
            Some(known) => known,
            None => Language::new(settings.clone(), seat.transcript.clone(), Box::new(prompt.clone()))
                .map_err(|error| AgentError::Unavailable { agent: "openai".to_owned(), why: error.to_string() })?,
        };
        let agent = known.fresh();
        *first = Some(known);
        Ok(Box::new(agent) as Box<dyn Agent>)
    })
}

fn desk(seat: &Seat, argv: &[String], limit: Duration) -> Desk {
    Desk {
        argv: argv.to_vec(),
        limit,
        folder: seat.folder.clone(),
        candidate: seat.candidate.clone(),
        transcript: seat.transcript.clone(),
    }
}

/// The agent's line among a run's first ones.
pub(super) fn words(choice: &Choice) -> String {
    match choice {
        Choice::Openai { base_url, models, proposals, .. } => {
            let names: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
            format!("openai: {} at {base_url}, {proposals} at once", names.join(", "))
        }
        Choice::Command { argv, limit } => {
            format!("command: {} (at most {} each time)", argv.join(" "), crate::report::spell(*limit))
        }
        Choice::Replay { file } => format!("replay of {file}"),
        Choice::Tuner | Choice::Outside { .. } => choice.name().to_owned(),
    }
}
