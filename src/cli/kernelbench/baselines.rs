//! `warpsmith kernelbench baselines`: what the problems take as they are.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use super::super::options::{DeviceArgs, PythonArgs};
use super::super::{say, warn};
use super::chosen;
use super::eval::{Numbers, Timing, start, write_times};

/// What a sample may take: there is none.
const SAMPLE: Duration = Duration::ZERO;

/// Time the problems as they are: eager, torch.compile, max-autotune, by a strict clock and by the benchmark's
///
/// Written in the benchmark's form (baseline_time_torch.json and the others; the strict clock's below strict/), a problem at a time, so
/// that a run that is interrupted loses one. `kernelbench score --baselines DIR` reads them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith kernelbench --root KernelBench baselines mine --level 1\n  warpsmith kernelbench --root KernelBench baselines mine --problems 1-20 --modes eager,compile"
)]
pub(super) struct Args {
    /// The folder that times are written into; what is there of other problems stays
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Problems of this level
    #[arg(long, value_name = "N", default_value_t = 1)]
    level: u32,
    /// Only these problems: 1-20, or 3,7,19
    #[arg(long, value_name = "NUMBERS")]
    problems: Option<Numbers>,
    #[command(flatten)]
    timing: Timing,
}

pub(super) fn main(root: &Path, device: DeviceArgs, python: &PythonArgs, args: &Args) -> anyhow::Result<ExitCode> {
    let files = chosen(root, args.level, args.problems.as_ref())?;
    let mut evaluator = start(device, python, &args.timing, SAMPLE)?;
    say(&format!("{} problems, PyTorch {} on {}", files.len(), evaluator.torch(), evaluator.hardware()));
    let mut left = 0;
    for path in &files {
        let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        say(&format!("\n{file}"));
        match evaluator.time(&file, &text) {
            Ok(Ok(times)) => write_times(&args.folder, (args.level, &file), &times)?,
            Ok(Err(why)) => {
                left += 1;
                warn(&format!("not timed: {why}"));
            }
            // What one problem did to PyTorch says nothing of the others.
            Err(error) => {
                left += 1;
                warn(&format!("not timed: {error}"));
                evaluator = start(device, python, &args.timing, SAMPLE)?;
            }
        }
    }
    say(&format!("\n{} of {} problems timed; times in {}", files.len() - left, files.len(), args.folder.display()));
    Ok(if left == files.len() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
