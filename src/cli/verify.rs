//! `warpsmith verify`: the whole model before and after.

use std::process::ExitCode;

use anyhow::Context;

use super::options::{DeviceArgs, ModelArgs};
use super::{device, session};
use crate::history::Archive;
use crate::model::ModelConfig;
use crate::run::RunState;
use crate::workspace::Workspace;

/// Run the whole model with the kernels from before a run and with those it kept: same outputs? how much faster?
///
/// The exit code is 1 where the outputs differ by more than the model's arithmetic explains.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith verify models/tiny-llama                 the latest run of this workspace\n  warpsmith verify models/tiny-llama --run 261120a\n  warpsmith verify models/tiny-llama --seq 256 --json"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Which run's kernels (the latest where not given)
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(verify(args))
}

async fn verify(args: Args) -> anyhow::Result<ExitCode> {
    let config = ModelConfig::load(&args.model.model)?;
    let workspace = Workspace::find(&args.model.model)?.with_context(|| {
        format!("{} belongs to no workspace; `warpsmith run` makes one", args.model.model.display())
    })?;
    let archive = Archive::open(&workspace)?;
    let run = match args.run {
        Some(run) => run,
        None => archive.latest_run()?.context(
            "there is no run here yet whose kernels could be compared; `warpsmith run MODEL_DIR` starts one",
        )?,
    };
    let state: RunState = serde_json::from_value(archive.state(&run)?).with_context(|| format!("run {run}"))?;
    let mut before = std::collections::BTreeMap::new();
    let mut after = std::collections::BTreeMap::new();
    for target in state.targets.iter().filter(|target| !target.start_text.is_empty()) {
        before.insert(target.op.clone(), target.start_text.clone());
        let kept = if target.vs_user() > 1.0 { archive.tip_text(&run, &target.file)? } else { None };
        after.insert(target.op.clone(), kept.unwrap_or_else(|| target.start_text.clone()));
    }
    // The run's kernels are written for its backend.
    let wanted = args.device.or(device::backend_of(&state.backend)?);
    let device = device::choose(wanted, workspace.settings().device)?.device;
    let pass = args.model.pass.in_phase(state.pass.phase).resolve(&workspace.settings().run, device, config.dtype);
    let read = session::reader(Some(&workspace));
    let cancel = session::interruptible();
    let mut worker = session::worker(device, false).await?;
    let speedups = state.speedups();
    let question = crate::verify::Question {
        config: &config,
        pass,
        before: &before,
        after: &after,
        speedups: &speedups,
        // Another pass has other shares, and was never predicted.
        predicted: state.predicted().filter(|_| state.pass == pass).map(|(_, ratio)| ratio),
        seed: crate::rng::secret_seed(),
    };
    let report = crate::verify::verify(&mut worker, &question, &read, &cancel).await?;
    super::say(&if args.json { serde_json::to_string_pretty(&report)? } else { report.text() });
    Ok(ExitCode::from(u8::from(report.output.wrong.is_some())))
}
