//! `warpsmith status`: where the latest run is.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use crate::engine::stop::TargetProgress;
use crate::engine::{Doing, RunState, WorkerStatus};
use crate::history::Archive;
use crate::workspace::{PRIVATE_FOLDER, WORKERS_FILE, Workspace};

/// Say where a run is: its targets, what was kept, what is predicted for the model.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith status               the latest run of this workspace\n  warpsmith status --run 261120a\n  warpsmith status --json"
)]
pub(super) struct Args {
    /// Which run (the latest where not given)
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Print the run's whole state as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let dir = args.dir;
    let (archive, run) = open(&dir, args.run)?;
    let state = archive.state(&run)?;
    if args.json {
        super::say(&serde_json::to_string_pretty(&with_scores(state))?);
        return Ok(ExitCode::SUCCESS);
    }
    let state: RunState = serde_json::from_value(state).with_context(|| format!("run {run}"))?;
    super::say(&state.summary().to_string());
    if state.ended.is_none() {
        super::say(&match archive.writer()? {
            Some(holder) => {
                workers(&dir, &run)?.iter().for_each(|line| super::say(line));
                format!("{holder} is at work here")
            }
            None => format!("go on with   {}", super::resume::resume_command(&state)),
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// The state, each target with its SOL score where it has been timed.
fn with_scores(mut state: serde_json::Value) -> serde_json::Value {
    for target in state["targets"].as_array_mut().into_iter().flatten() {
        let progress = serde_json::from_value::<TargetProgress>(target["progress"].clone());
        target["sol_score"] = progress.ok().and_then(|progress| progress.sol_score()).into();
    }
    state
}

/// A line for each worker, where a run has several: what it does, and how busy it is.
fn workers(dir: &std::path::Path, run: &str) -> anyhow::Result<Vec<String>> {
    let (workspace, _) = workspace(dir)?;
    let file = workspace.root().join(PRIVATE_FOLDER).join(run).join(WORKERS_FILE);
    // It is written anew all the time: what cannot be read now is there the next time.
    let known = std::fs::read(file).ok().and_then(|text| serde_json::from_slice::<Vec<WorkerStatus>>(&text).ok());
    let line = |worker: WorkerStatus| {
        let doing = match worker.doing {
            Doing::Waiting => "waits".to_owned(),
            Doing::Asked(what) => what,
            Doing::Starting(why) => format!("is started again: {why}"),
            Doing::Gone(why) => format!("has gone: {why}"),
        };
        let WorkerStatus { name, device, busy, .. } = worker;
        format!("worker       {name} ({device}): {doing}, {:.0} % busy", 100.0 * busy)
    };
    Ok(known.into_iter().flatten().map(line).collect())
}

/// The workspace around `dir`, and its runs.
pub(super) fn workspace(dir: &std::path::Path) -> anyhow::Result<(Workspace, Archive)> {
    let workspace = Workspace::find(dir)?.with_context(|| {
        format!(
            "{} belongs to no workspace (no warpsmith.toml here or above); `warpsmith run MODEL_DIR` makes one",
            dir.display()
        )
    })?;
    let archive = Archive::open(&workspace)?;
    Ok((workspace, archive))
}

/// A run of the workspace around `dir`, for reading.
pub(super) fn open(dir: &std::path::Path, run: Option<String>) -> anyhow::Result<(Archive, String)> {
    let (_, archive) = workspace(dir)?;
    let run = match run {
        Some(run) => run,
        None => archive.latest_run()?.context("there is no run here yet; `warpsmith run MODEL_DIR` starts one")?,
    };
    Ok((archive, run))
}
