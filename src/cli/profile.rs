//! `warpsmith profile`: where a model spends its time.

use std::process::ExitCode;

use super::options::{DeviceArgs, ModelArgs, WorkerArgs};
use super::{device, session};
use crate::device::Opening;
use crate::engine::files;
use crate::model::ModelConfig;
use crate::workspace::{Settings, Workspace};

/// Show where a model spends its time, and what improving each kernel could do for the whole.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith profile models/tiny-llama\n  warpsmith profile models/llama-160m --batch 2 --seq 512 --dtype bf16\n  warpsmith profile models/llama-7b --layers 2 --json\n  warpsmith profile models/gpt2 --phase decode --batch 8 --seq 512\n\nReading the table: `share` is of one pass; the last three columns say how much faster the whole pass gets when\nthat row alone becomes 1.5 times as fast, twice as fast, or as fast as its roofline allows."
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Print the profile as JSON
    #[arg(long)]
    json: bool,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(profile(args))
}

async fn profile(args: Args) -> anyhow::Result<ExitCode> {
    let config = ModelConfig::load(&args.model.model)?;
    let workspace = Workspace::find(&args.model.model)?;
    let settings = workspace.as_ref().map_or_else(Settings::default, |workspace| workspace.settings().clone());
    let starter = args.worker.starter(&settings.run)?;
    let choice = device::choose(args.device, settings.device, &starter)?;
    choice.notes().iter().for_each(|note| super::warn(&format!("note: {note}")));
    let read = files::reader(workspace.as_ref());
    let cancel = session::interruptible();
    let mut worker = starter.start(choice.device, Opening::Now).await?;
    let pass = args.model.pass.resolve(&settings.run, device::of(&worker)?, config.dtype);
    let kernels = files::kernels(workspace.as_ref(), worker.device(), pass.dtype)?;
    let profile = crate::profile::measure(&mut worker, &config, pass, &kernels, &read, args.seed, &cancel).await?;
    super::say(&if args.json { serde_json::to_string_pretty(&profile)? } else { profile.table() });
    Ok(ExitCode::SUCCESS)
}
