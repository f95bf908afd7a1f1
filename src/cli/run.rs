//! `warpsmith run`: the main job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::device::{self, Device};
use super::notify::{self, Ending, Notify};
use super::options::{DeviceArgs, PassArgs};
use super::progress::{Progress, Voice};
use super::session;
use crate::agent::Choice;
use crate::agent::tuner::Tuner;
use crate::history::{self, Archive, History, Pending};
use crate::model::{Graph, ModelConfig};
use crate::ratchet::Ratchet;
use crate::report::spell;
use crate::run::stop::{Rules, StopReason, next_time_of_day};
use crate::run::{MakeAgent, Options, Run, RunError, RunState, VERSION, check_names, plan};
use crate::worker::Client;
use crate::workspace::{RunSettings, Workspace, duration};

/// Improve a model's kernels one by one, keeping only what is measured to be correct and faster.
///
/// Works on a branch of its own (`warpsmith/<run>`), never on your files: of those it writes only `results.tsv` and
/// `.warpsmith/`. Stop it with Ctrl-C at any time, or kill it: `--resume` goes on where it was.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith run models/tiny-llama                      until nothing is left to do\n  warpsmith run models/llama-7b --until 07:00          all night\n  warpsmith run models/tiny-llama --only matmul --budget 2m\n  warpsmith run models/tiny-llama --resume             go on with the latest run\n\nWhile it runs:\n  tail -f results.tsv\n  warpsmith status"
)]
pub(super) struct Args {
    /// Directory with a Hugging Face `config.json` (Llama, Mistral, Qwen2, GPT-2 and BERT kinds), and its weights where it has any
    #[arg(value_name = "MODEL_DIR")]
    model: PathBuf,
    #[command(flatten)]
    pass: PassArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Go on with a run (the latest where none is named)
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    /// Leave a target after N experiments in a row that were not kept [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_reverts: Option<u32>,
    /// Leave a target at this percentage of its roofline [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = above_zero, allow_negative_numbers = true)]
    roofline: Option<f64>,
    /// Leave a target at this speedup against what you have today [default: 2]
    #[arg(long, value_name = "X", value_parser = above_zero, allow_negative_numbers = true)]
    speedup: Option<f64>,
    /// Leave a target after this time [default: 2h]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    per_kernel: Option<Duration>,
    /// End the run after this time, such as 8h or 90m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    budget: Option<Duration>,
    /// End the run at this time of day, such as 07:00
    #[arg(long, value_name = "HH:MM")]
    until: Option<String>,
    /// Work on these operations only, however little the model can gain (may be repeated, or separated by commas)
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these operations alone
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    skip: Vec<String>,
    /// Seed of everything that is drawn (secret where not given)
    #[arg(long)]
    seed: Option<u64>,
    /// Run a command (by `sh -c`) when the run ends or is interrupted; the summary is on its standard input and in
    /// WARPSMITH_SUMMARY, WARPSMITH_SPEEDUP, WARPSMITH_REASON, WARPSMITH_STATUS, WARPSMITH_RUN, ...
    #[arg(long, value_name = "CMD")]
    notify: Option<String>,
    /// Say only what was kept, and the summary
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let cancel = session::interruptible();
    let voice = Voice::choose(args.quiet);
    let (workspace, made) = workspace_for(&args.model)?;
    let workspace = Arc::new(workspace);
    made.iter().for_each(|line| super::say(line));
    let ready = match &args.resume {
        Some(named) => resume(&args, &workspace, named)?,
        None => begin(&args, &workspace, &cancel).await?,
    };
    let Ready { history, pending, state, worker } = ready;
    let worker = match worker {
        Some(worker) => worker,
        None => session::worker(device_of(&args, &workspace, &state)?, false).await?,
    };
    check_same_judge(&state, &worker)?;
    let notify = Notify::choose(args.notify.as_deref(), &workspace);
    if !args.quiet {
        super::say(&opening(&workspace, &state, notify.as_ref()));
    }
    let model_dir = workspace.root().join(&state.model);
    let make_agent: MakeAgent = Box::new(|_| Ok(Box::new(Tuner::default())));
    let watcher = Box::new(Progress::new(voice));
    let ratchet = Ratchet::new(worker, history, pending);
    let begun = state.clone();
    let result = Run::new(workspace.clone(), model_dir, ratchet, state, make_agent, watcher, cancel).go().await;
    if let Ok(ended) = &result {
        super::say(&closing(ended));
    }
    if let Some(notify) = &notify {
        tell(notify, &workspace, begun, &result).await;
    }
    let ended = result?;
    Ok(if ended.ended.is_some() { ExitCode::SUCCESS } else { ExitCode::from(130) })
}

/// Tells the user's command how the run ended. That this fails is said, and changes nothing.
async fn tell(notify: &Notify, workspace: &Workspace, begun: RunState, result: &Result<RunState, RunError>) {
    let words = result.as_ref().err().map(ToString::to_string);
    let ending = match (&words, result) {
        (Some(_), _) if session::interrupted() => Ending::Interrupted,
        (Some(why), _) => Ending::Failed(why),
        (None, Ok(state)) if state.ended.is_none() => Ending::Interrupted,
        (None, _) => Ending::Ended,
    };
    // A run that failed has its last state in the journal.
    let recorded = || Archive::open(workspace).and_then(|archive| archive.state(&begun.run)).ok();
    let state = match result {
        Ok(state) => state.clone(),
        Err(_) => recorded().and_then(|state| serde_json::from_value(state).ok()).unwrap_or(begun),
    };
    let news = notify::news(&state, workspace, ending);
    let text = format!("{}\n", state.summary());
    if let Err(why) = notify.send(&news, &text, notify::LIMIT).await {
        super::warn(&format!("note: {why}"));
    }
}

/// A run that can start.
struct Ready {
    history: History,
    pending: Option<Pending>,
    state: RunState,
    worker: Option<Client>,
}

/// The workspace of a model directory, made where there is none; and what to say about that.
fn workspace_for(model: &Path) -> anyhow::Result<(Workspace, Vec<String>)> {
    if let Some(workspace) = Workspace::find(model)? {
        let created = workspace.ensure_repository()?;
        let said = created.map(|path| format!("made a git repository in {}", path.display()));
        return Ok((workspace, said.into_iter().collect()));
    }
    // Looked at first, so that nothing is written beside a directory that is no model.
    ModelConfig::load(model)?;
    let (workspace, made) = Workspace::make(model)?;
    Ok((workspace, made.sentences()))
}

/// The device of a resumed run: its kernels are written for its backend.
fn device_of(args: &Args, workspace: &Workspace, state: &RunState) -> anyhow::Result<Device> {
    let wanted = args.device.or(device::backend_of(&state.backend)?);
    Ok(device::choose(wanted, workspace.settings().device)?.device)
}

/// A resumed run goes on where its figures mean the same.
fn check_same_judge(state: &RunState, worker: &Client) -> anyhow::Result<()> {
    if state.device_key != worker.device().key {
        bail!(
            "run {} was begun on another device ({}; this is {}): its times mean nothing here; start a new run",
            state.run,
            state.device,
            worker.device().name
        );
    }
    if state.judge != worker.judge() {
        super::warn("note: this is another build of Warpsmith than the one the run was begun with");
    }
    Ok(())
}

async fn begin(args: &Args, workspace: &Workspace, cancel: &CancellationToken) -> anyhow::Result<Ready> {
    let settings = &workspace.settings().run;
    let rules = rules(args, settings)?;
    let config = ModelConfig::load(&args.model)?;
    let choice = device::choose(args.device, workspace.settings().device)?;
    let pass = args.pass.resolve(settings, choice.device, config.dtype);
    let run = history::next_run_id(jiff::Zoned::now().date(), &Archive::open(workspace)?.used_run_ids()?);
    // Everything that can be refused is refused before minutes are spent on a profile.
    let targets = Graph::build(&config, pass)?.targets();
    let ops: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
    check_names(args.only.iter().chain(&args.skip), &ops)?;
    History::could_begin(workspace, &run)?;
    let mut worker = session::worker(choice.device, false).await?;
    let read = session::reader(Some(workspace));
    let seed = args.seed.unwrap_or_else(crate::rng::secret_seed);
    let tell = |text: &str| {
        if !args.quiet {
            super::say(text);
        }
    };
    choice.notes().iter().for_each(|note| tell(note));
    tell(&format!("profiling {} on {}", args.model.display(), worker.device().name));
    let kernels = session::kernels(Some(workspace), worker.device())?;
    let profile = crate::profile::measure(&mut worker, &config, pass, &kernels, &read, seed, cancel).await?;
    tell(&profile.table());
    let options = Options {
        run,
        model: model_path(workspace, &args.model)?,
        pass,
        agent: Choice::Tuner,
        rules,
        only: args.only.clone(),
        skip: args.skip.clone(),
        seed,
    };
    let kernel = |op: &str| session::kernel(Some(workspace), worker.device(), op);
    let state = plan(options, profile, worker.device(), worker.judge(), &kernel)?;
    let history = History::begin(workspace, &state.run, serde_json::to_value(&state)?)?;
    for file in history.left_out() {
        super::warn(&format!("note: {} is large and untracked; the run's branch does not have it", file.display()));
    }
    Ok(Ready { history, pending: None, state, worker: Some(worker) })
}

fn resume(args: &Args, workspace: &Workspace, named: &str) -> anyhow::Result<Ready> {
    let run = if named.is_empty() {
        Archive::open(workspace)?
            .latest_run()?
            .context("there is no run to resume here; leave --resume out to start one")?
    } else {
        named.to_owned()
    };
    let (history, pending) = History::open(workspace, &run)?;
    let mut state: RunState = serde_json::from_value(history.state().clone())
        .map_err(|error| RunError::State(error.to_string()))
        .with_context(|| format!("run {run}"))?;
    if state.ended == Some(StopReason::Watch) {
        bail!("run {run} is a watch's, and `warpsmith watch --keep` always begins anew; `--resume RUN` names another");
    }
    if state.version != VERSION {
        bail!("run {run} was written by another version of Warpsmith (format {}, this one {VERSION})", state.version);
    }
    let fixed = args.pass.is_given() || args.seed.is_some() || !args.only.is_empty() || !args.skip.is_empty();
    if fixed {
        bail!("a resumed run keeps its pass, seed and targets; only its stop rules can be given anew");
    }
    args.override_rules(&mut state.rules)?;
    if let Some(reason) = &state.ended {
        bail!("run {run} has ended: {reason}; leave --resume out to start a new one");
    }
    state.resume();
    Ok(Ready { history, pending, state, worker: None })
}

fn above_zero(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && *value > 0.0);
    value.ok_or("it must be a number above zero".to_owned())
}

/// The rules: the command line first, then the settings.
fn rules(args: &Args, settings: &RunSettings) -> anyhow::Result<Rules> {
    let mut rules = Rules {
        max_reverts: Some(settings.max_reverts),
        roofline_pct: Some(settings.roofline * 100.0),
        speedup: Some(settings.speedup),
        per_kernel: Some(settings.per_kernel),
        budget: settings.budget,
        until: None,
        max_tokens: None,
        max_cost: None,
    };
    args.override_rules(&mut rules)?;
    Ok(rules)
}

impl Args {
    /// Puts the rules that were given on the command line over those there are.
    fn override_rules(&self, rules: &mut Rules) -> anyhow::Result<()> {
        let until = self.until.as_deref().map(|text| next_time_of_day(text, &jiff::Zoned::now())).transpose()?;
        rules.max_reverts = self.max_reverts.or(rules.max_reverts);
        rules.roofline_pct = self.roofline.or(rules.roofline_pct);
        rules.speedup = self.speedup.or(rules.speedup);
        rules.per_kernel = self.per_kernel.or(rules.per_kernel);
        rules.budget = self.budget.or(rules.budget);
        rules.until = until.or(rules.until);
        Ok(())
    }
}

/// The model directory below the workspace, or its full path where it is elsewhere.
fn model_path(workspace: &Workspace, model: &Path) -> anyhow::Result<String> {
    let full = model.canonicalize().with_context(|| model.display().to_string())?;
    let path = full.strip_prefix(workspace.root()).unwrap_or(&full);
    Ok(path.to_string_lossy().into_owned())
}

/// The first lines of a run.
fn opening(workspace: &Workspace, state: &RunState, notify: Option<&Notify>) -> String {
    let mut lines = vec![
        format!("workspace   {}", workspace.root().display()),
        format!("branch      warpsmith/{}{}", state.run, if state.resumed > 0 { " (resumed)" } else { "" }),
        format!("device      {} ({})", state.device, state.backend),
        format!("agent       {}", state.agent.name()),
        format!("budget      {}", budget_words(&state.rules)),
    ];
    let missing: Vec<String> =
        crate::sandbox::protections().into_iter().filter_map(|protection| protection.missing()).collect();
    lines.push(match missing.is_empty() {
        true => "protection  complete".to_owned(),
        false => format!("protection  MISSING: {}", missing.join("; ")),
    });
    lines.extend(notify.map(|notify| format!("notify      {}", notify.command)));
    lines.push(format!("follow      tail -f {}", workspace.root().join("results.tsv").display()));
    lines.join("\n")
}

fn budget_words(rules: &Rules) -> String {
    let budget = rules.budget.map_or_else(|| "until the targets end".to_owned(), spell);
    let until = rules.until.map_or(String::new(), |until| {
        format!(", at the latest until {}", until.0.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M"))
    });
    let each = rules.per_kernel.map_or(String::new(), |time| format!("; {} a target", spell(time)));
    format!("{budget}{until}{each}")
}

/// The last lines of a run: the summary and the commands to look closer.
fn closing(state: &RunState) -> String {
    let mut text = format!("\n{}\n", state.summary());
    if state.ended.is_none() {
        text.push_str(&format!("go on with   warpsmith run {} --resume {}\n", state.model, state.run));
    }
    if state.targets.iter().any(|target| target.kept > 0) {
        text.push_str(&format!(
            "history      git log --stat warpsmith/{0}\ntake it      warpsmith apply {0}    (or every step: git merge warpsmith/{0})\n",
            state.run
        ));
    }
    text.push_str(&format!("every try    warpsmith log\nas a page    warpsmith report {}\n", state.run));
    text
}
