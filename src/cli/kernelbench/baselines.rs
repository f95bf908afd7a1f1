//! `warpsmith kernelbench baselines`: what the problems take as they are.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::super::options::{DeviceArgs, PythonArgs};
use super::super::{say, warn};
use super::eval::{Numbers, Timing, start, write_times};
use super::{chosen, number};
use crate::sandbox::end_with_us;
use crate::workspace::BackendName;

/// What a sample may take: there is none.
const SAMPLE: Duration = Duration::ZERO;

/// Time the problems as they are: eager, torch.compile, max-autotune, by a strict clock and by the benchmark's
///
/// Written in the benchmark's form (baseline_time_torch.json and the others; the strict clock's below strict/), a problem at a time, so
/// that a run that is interrupted loses one. `kernelbench score --baselines DIR` reads them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith kernelbench --root KernelBench baselines mine --level 1\n  warpsmith kernelbench --root KernelBench baselines mine --problems 1-20 --modes eager,compile\n  warpsmith kernelbench --root KernelBench baselines mine --devices 0,1,2,3"
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
    /// Share the problems out among these GPUs, such as 0,1,2,3; they should be of one kind
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    devices: Vec<u32>,
    #[command(flatten)]
    timing: Timing,
}

pub(super) fn main(root: &Path, device: DeviceArgs, python: &PythonArgs, args: &Args) -> anyhow::Result<ExitCode> {
    let files = chosen(root, args.level, args.problems.as_ref())?;
    if !args.devices.is_empty() {
        return on_each(root, device, python, args, &files);
    }
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

/// Times the problems on several GPUs at once. Each has a process of its own: an evaluation ends whatever its process has started, so
/// that two of them do not fit into one.
fn on_each(
    root: &Path,
    device: DeviceArgs,
    python: &PythonArgs,
    args: &Args,
    files: &[PathBuf],
) -> anyhow::Result<ExitCode> {
    if device.device.is_some() || device.backend == Some(BackendName::Cpu) {
        bail!("--devices names GPUs; leave out --device and --backend cpu");
    }
    if (1..args.devices.len()).any(|at| args.devices[..at].contains(&args.devices[at])) {
        bail!("--devices names a GPU twice: what is timed there beside other work says nothing");
    }
    let numbers: Vec<u32> = files.iter().map(|path| number(path)).collect();
    let ended = std::thread::scope(|scope| {
        let shares = shares(&numbers, args.devices.len());
        let running = args.devices.iter().zip(shares).map(|(device, share)| {
            let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
            command.args(["kernelbench", "--backend", "cuda", "--device", &device.to_string(), "--root"]).arg(root);
            if let Some(python) = &python.python {
                command.arg("--python").arg(python);
            }
            command.arg("baselines").arg(&args.folder);
            command.args(["--level", &args.level.to_string(), "--problems", &share]).args(args.timing.words());
            scope.spawn(move || relayed(command, &format!("GPU {device}: ")))
        });
        // All are started before any is waited for.
        let running: Vec<_> = running.collect();
        running
            .into_iter()
            .map(|it| it.join().unwrap_or_else(|_| bail!("a thread ended by itself")))
            .collect::<Vec<_>>()
    });
    let ended = ended.into_iter().collect::<anyhow::Result<Vec<bool>>>()?;
    Ok(if ended.contains(&true) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The problems of each GPU, in turns, so that neighbours, which take about as long as each other, are shared evenly; as many shares as have
/// a problem in them.
fn shares(numbers: &[u32], devices: usize) -> Vec<String> {
    let of = |device: usize| numbers.iter().skip(device).step_by(devices).map(u32::to_string).collect::<Vec<_>>();
    (0..devices.min(numbers.len())).map(|device| of(device).join(",")).collect()
}

/// Runs a command and says what it says, line by line behind `name`; whether it ended well.
fn relayed(mut command: Command, name: &str) -> anyhow::Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_us(&mut command);
    let mut child = command.spawn().context("this program cannot be started again")?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| lines(err, |line| warn(&format!("{name}{line}"))));
        lines(out, |line| say(&format!("{name}{line}")));
    });
    Ok(child.wait()?.success())
}

/// Calls `each` with every line that is not empty, until there are no more.
fn lines(from: Option<impl Read>, each: impl Fn(&str)) {
    let Some(from) = from else { return };
    // Whatever bytes they are: who is not listened to any more waits for ever.
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if !line.trim().is_empty() {
            each(line.trim_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_shared_out_in_turns_and_no_gpu_starts_for_nothing() {
        assert_eq!(shares(&[1, 2, 3, 7, 9], 2), ["1,3,9", "2,7"]);
        assert_eq!(shares(&[4, 5], 4), ["4", "5"]);
        assert_eq!(shares(&[4], 1), ["4"]);
    }
}
