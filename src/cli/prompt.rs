//! `warpsmith prompt`: what an agent is asked.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;

use super::device::{self, backend_of};
use super::options::{DeviceArgs, WorkerArgs};
use super::session;
use crate::agent::prompt::{PARTS, PartText, Place, Prompt, Role, tokens};
use crate::device::{DeviceCard, Opening, cached_card};
use crate::engine::files;
use crate::engine::{Phase, RunState, TargetState, brief};
use crate::history::Archive;
use crate::rng::Stream;
use crate::workspace::{Workspace, cache_dir, write_synced};

/// A context that today's hosted models have at least.
const CONTEXT: usize = 128_000;

/// Print what a language model would be asked next: for a run, from its state and its branch.
///
/// The prompt is built of parts. A file `prompts/<part>.md` in the workspace wins over the one inside the program, and an
/// empty one leaves its part out; `--export` writes them there for editing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith prompt                         what the latest run's agent would be asked next\n  warpsmith prompt models/tiny-llama --op matmul\n  warpsmith prompt 261120a --context 8192  what is left of it for a small model\n  warpsmith prompt --part evaluation       one part alone\n  warpsmith prompt --export                the templates into prompts/, for editing"
)]
pub(super) struct Args {
    /// A run, or a model directory with runs (the latest run of this workspace where not given)
    #[arg(value_name = "MODEL_DIR|RUN")]
    what: Option<String>,
    /// Which of the run's operations [default: the one it works on, or was going to]
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Print one part only
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(PARTS.map(|part| part.name)))]
    part: Option<String>,
    /// Tokens that the model's context has, the answer included
    #[arg(long, value_name = "N", default_value_t = CONTEXT)]
    context: usize,
    /// A sentence on what to try, as several proposals at a time are given
    #[arg(long, value_name = "TEXT")]
    direction: Option<String>,
    /// As a coding agent with a shell is asked, which edits the file itself
    #[arg(long, conflicts_with = "part")]
    shell: bool,
    /// Write the templates into prompts/ of the workspace; those that are there stay as they are
    #[arg(long, conflicts_with_all = ["op", "part", "context", "direction", "shell"])]
    export: bool,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    worker: WorkerArgs,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    if args.export {
        return export(&args);
    }
    let (workspace, archive, run) = find(&args)?;
    let prompt = Prompt::new(&files::reader(Some(&workspace)))?;
    let state: RunState = serde_json::from_value(archive.state(&run)?).with_context(|| format!("run {run}"))?;
    let target = target(&state, args.op.as_deref())?;
    let read = |path: &str| {
        let begun = archive.tip_text(&run, path).ok().flatten();
        begun.or_else(|| workspace.file(path).ok().map(|file| file.text))
    };
    let source = target.operation(&read)?;
    let incumbent = archive.tip_text(&run, &target.file)?.unwrap_or_else(|| target.start_text.clone());
    let seed = Stream::new(state.seed, &target.op).bits(0);
    let brief = brief(&state, target, source, incumbent, card(&args, &workspace, &state)?, seed, state.next_experiment);
    let direction = args.direction.as_deref();
    if args.shell {
        // As it is named in the run's folder, where such an agent is started.
        super::say(&prompt.briefing(&brief, &target.file, direction, args.context)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.part {
        super::say(&one_part(&prompt, name, &prompt.parts_for(&brief, direction, args.context)?)?);
        return Ok(ExitCode::SUCCESS);
    }
    for message in prompt.messages(&brief, direction, args.context)? {
        let who = match message.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        super::say(&format!("=== {who}, about {} tokens ===\n\n{}\n", tokens(&message.text), message.text));
    }
    Ok(ExitCode::SUCCESS)
}

/// A part of the question; where it belongs elsewhere, as in a follow-up, which needs a failure, the template.
fn one_part(prompt: &Prompt, name: &str, parts: &[PartText]) -> anyhow::Result<String> {
    if let Some(part) = parts.iter().find(|part| part.name == name) {
        return Ok(part.text.clone());
    }
    let elsewhere = [Place::FollowUp, Place::Shell];
    let elsewhere = PARTS.iter().any(|part| part.name == name && elsewhere.contains(&part.place));
    let template = prompt.template(name).filter(|_| elsewhere);
    let text = template.with_context(|| format!("the part `{name}` has nothing to say here, and is left out"))?;
    Ok(text.trim_end().to_owned())
}

/// The workspace and the run that the command line names.
fn find(args: &Args) -> anyhow::Result<(Workspace, Archive, String)> {
    let named = args.what.as_deref();
    let Some(model) = named.map(Path::new).filter(|path| path.is_dir()) else {
        let (workspace, archive) = super::status::workspace(&args.dir)?;
        let run = match named {
            Some(run) if !crate::history::is_run_id(run) => bail!("{run} is neither a directory nor a run"),
            Some(run) => run.to_owned(),
            None => archive.latest_run()?.context("there is no run here yet; `warpsmith run MODEL_DIR` starts one")?,
        };
        return Ok((workspace, archive, run));
    };
    let (workspace, archive) = super::status::workspace(model)?;
    let wanted = model.canonicalize()?;
    for run in archive.runs()?.into_iter().rev() {
        if !archive.is_here(&run)? {
            continue;
        }
        let state: RunState = serde_json::from_value(archive.state(&run)?).with_context(|| format!("run {run}"))?;
        if workspace.root().join(&state.model).canonicalize().is_ok_and(|path| path == wanted) {
            return Ok((workspace, archive, run));
        }
    }
    bail!("there is no run on {0} yet; `warpsmith run {0}` starts one", model.display())
}

/// The target that is asked for; else the active one, the next one, or the first that was worked on.
fn target<'s>(state: &'s RunState, op: Option<&str>) -> anyhow::Result<&'s TargetState> {
    let targets = &state.targets;
    if let Some(op) = op {
        let known: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
        let found = targets.iter().find(|target| target.op == op);
        return found.with_context(|| format!("run {} has no {op}; it has {}", state.run, known.join(", ")));
    }
    let waiting = || targets.iter().find(|target| target.phase == Phase::Waiting);
    let done = || targets.iter().find(|target| matches!(target.phase, Phase::Done(_)));
    let target = state.active().or_else(waiting).or_else(done).or(targets.first());
    target.with_context(|| format!("run {} has no targets", state.run))
}

/// The run's device: as it was calibrated on this machine, with the ceilings that the run used.
fn card(args: &Args, workspace: &Workspace, state: &RunState) -> anyhow::Result<DeviceCard> {
    let mut card = match cached_card(&cache_dir(), &state.device_key) {
        Some(card) => card,
        None => session::block_on(calibrated(args, workspace, state))?,
    };
    if let Some(ceilings) = &state.ceilings {
        card.ceilings.clone_from(ceilings);
    }
    Ok(card)
}

async fn calibrated(args: &Args, workspace: &Workspace, state: &RunState) -> anyhow::Result<DeviceCard> {
    let starter = args.worker.starter(&workspace.settings().run)?;
    let wanted = DeviceArgs::default().or(backend_of(&state.backend)?);
    let choice = device::choose(wanted, Default::default(), &starter)?;
    let worker = starter.start(choice.device, Opening::Now).await?;
    let card = worker.device().clone();
    if card.key != state.device_key {
        super::warn(&format!("note: run {} was on {}; this is said of {}", state.run, state.device, card.name));
    }
    Ok(card)
}

fn export(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = args.what.as_deref().map(Path::new).filter(|path| path.is_dir()).unwrap_or(&args.dir);
    let (workspace, _) = super::status::workspace(dir)?;
    for part in &PARTS {
        let name = format!("prompts/{}.md", part.name);
        let path = workspace.root().join(&name);
        if path.exists() {
            super::say(&format!("{name}   stays as it is"));
        } else {
            write_synced(&path, part.text.as_bytes())
                .with_context(|| format!("{} cannot be written", path.display()))?;
            super::say(&format!("{name}   written"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
