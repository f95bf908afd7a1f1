//! `warpsmith profile`: where a model spends its time.

use std::path::PathBuf;
use std::process::ExitCode;

use super::options::{DeviceArgs, ModelArgs, WorkerArgs};
use super::{device, pytorch, session};
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
    /// Of a PyTorch model: write every region into a folder of its own below this one, with its text in PyTorch and a kernel to be written
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
    /// Of a PyTorch model: time torch.compile in max-autotune too, which may take minutes
    #[arg(long)]
    max_autotune: bool,
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

/// Seconds that a PyTorch model is timed each way.
const PASS_SECONDS: f64 = 2.0;

/// A PyTorch model's parts, as torch.compile runs them.
fn taken_apart(args: &Args) -> anyhow::Result<ExitCode> {
    let model = &args.model.model;
    pytorch::check_pass(args.model.pass.of_a_model(), model)?;
    let workspace = Workspace::find(model)?;
    let settings = workspace.as_ref().map_or_else(Settings::default, |workspace| workspace.settings().clone());
    let starter = args.worker.starter(&settings.run)?;
    let choice = device::choose(args.device, settings.device, &starter)?;
    choice.notes().iter().for_each(|note| super::warn(&format!("note: {note}")));
    let look = pytorch::Look {
        folder: model,
        load: &args.model.load,
        name: model.display().to_string(),
        python: &args.worker.python,
        device: choice.device,
        dtype: args.model.pass.dtype(),
        seed: args.seed,
        max_autotune: args.max_autotune,
        seconds: PASS_SECONDS,
    };
    let compiled = pytorch::look(&look, &mut |doing| {
        if !args.json {
            super::warn(doing);
        }
    })?;
    super::say(&if args.json { serde_json::to_string_pretty(&compiled)? } else { compiled.table() });
    if let Some(folder) = &args.write {
        let written = pytorch::write_regions(folder, &compiled)?;
        super::warn(&format!("wrote {written} regions below {}", folder.display()));
    }
    Ok(ExitCode::SUCCESS)
}

async fn profile(args: Args) -> anyhow::Result<ExitCode> {
    if pytorch::is_model(&args.model.model, &args.model.load) {
        return taken_apart(&args);
    }
    if args.write.is_some() || args.max_autotune {
        anyhow::bail!("--write and --max-autotune are for a PyTorch model, a directory with a model.py");
    }
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
