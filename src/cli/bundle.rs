//! `warpsmith bundle`: a run in a file, for another machine.

use std::path::PathBuf;
use std::process::ExitCode;

use super::status::open;

/// Write a run to a file, to go on with it on another machine with the same kind of device.
///
/// The file has the run's journal and branch with everything they reach; `git fetch FILE` reads it too. There,
/// in a workspace with the same model, `warpsmith run MODEL_DIR --resume FILE` goes on. What was being judged when the run was
/// interrupted is proposed anew.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith bundle 261120a night.bundle\n  warpsmith run models/llama-7b --resume night.bundle     there"
)]
pub(super) struct Args {
    /// Which run
    #[arg(value_name = "RUN")]
    run: String,
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let (archive, run) = open(&args.dir, Some(args.run))?;
    archive.bundle(&run, &args.file)?;
    let bytes = std::fs::metadata(&args.file)?.len();
    super::say(&format!("run {run} is in {} ({:.1} MB)", args.file.display(), bytes as f64 / 1e6));
    Ok(ExitCode::SUCCESS)
}
