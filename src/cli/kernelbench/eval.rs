//! `warpsmith kernelbench eval`: samples that somebody else made, judged in two columns.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::options::{DeviceArgs, PythonArgs};
use super::super::problem::told;
use super::super::{say, warn};
use super::{number, problems};
use crate::op::Dtype;
use crate::torch::kernelbench::{
    Baselines, Evaluator, Mode, ProtocolResult, Results, SampleName, Settings, StrictResult, TimeStats, Timed,
};
use crate::torch::{Python, TorchError};
use crate::workspace::BackendName;

/// What the benchmark's scripts call their results, and where these and the strict ones lie below a run's folder.
pub(super) const PROTOCOL: &str = "eval_results.json";
pub(super) const STRICT: &str = "strict_results.json";
pub(super) const BASELINES: &str = "baselines";
/// Times by the strict clock, in the folder of times.
pub(super) const STRICT_CLOCK: &str = "strict";

/// Judge the samples of a run: level_{L}_problem_{P}_sample_{S}_kernel.py, each with a class ModelNew
///
/// Each sample runs behind walls in processes of its own and is judged twice: by the benchmark's own protocol (eval_results.json, as its
/// scripts write it), which a sample can fool, and by a strict judge (strict_results.json). Where the two differ the reason is said.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith kernelbench --root KernelBench eval runs/mine\n  warpsmith kernelbench --root KernelBench eval runs/mine --problems 1-20 --modes eager\n  warpsmith kernelbench --root KernelBench score runs/mine"
)]
pub(super) struct Args {
    /// The folder with the samples; results are written into it
    #[arg(value_name = "RUN_DIR")]
    run: PathBuf,
    /// Only these problems: 1-20, or 3,7,19
    #[arg(long, value_name = "NUMBERS")]
    problems: Option<Numbers>,
    /// Only this level
    #[arg(long, value_name = "N")]
    level: Option<u32>,
    #[command(flatten)]
    timing: Timing,
    /// Seconds for building a sample and for the protocol
    #[arg(long, value_name = "S", default_value_t = 180)]
    seconds: u64,
}

/// How problems are timed as they are.
#[derive(Debug, clap::Args)]
pub(super) struct Timing {
    /// What the problems themselves are timed as
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Mode::ALL)]
    modes: Vec<Mode>,
    /// The type of floating inputs and parameters
    #[arg(long, value_enum, default_value = "f32")]
    precision: Dtype,
    /// Ordinary calls that the strict judge times, of each sample and mode
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..))]
    calls: u32,
    /// Calls that the benchmark's protocol times
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    perf_trials: u32,
}

impl Timing {
    /// The same on a command line.
    pub(super) fn words(&self) -> Vec<String> {
        let modes = self.modes.iter().filter_map(|mode| Some(mode.to_possible_value()?.get_name().to_owned()));
        [
            ("--modes", modes.collect::<Vec<_>>().join(",")),
            ("--precision", self.precision.to_string()),
            ("--calls", self.calls.to_string()),
            ("--perf-trials", self.perf_trials.to_string()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
    }
}

/// Numbers of problems: `1-20`, or `3,7,19`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers(Vec<(u32, u32)>);

impl std::str::FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let whole = |text: &str| text.trim().parse::<u32>().map_err(|_| format!("`{text}` is no number of a problem"));
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Ok((whole(first)?, whole(last)?)),
            None => whole(part).map(|one| (one, one)),
        };
        let ranges = text.split(',').map(range).collect::<Result<Vec<_>, String>>()?;
        match ranges.iter().find(|(first, last)| first > last) {
            Some((first, last)) => Err(format!("{first}-{last} has no number in it")),
            None => Ok(Self(ranges)),
        }
    }
}

impl Numbers {
    pub(super) fn has(&self, number: u32) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&number))
    }
}

/// The judge's process has no answer; another one may have, about another problem.
#[derive(Debug, thiserror::Error)]
#[error("{judge}; {hint}", judge = .0, hint = .0.hint())]
struct Judge(TorchError);

/// Samples by level and problem, each with its number.
type Samples = BTreeMap<(u32, u32), Vec<(u32, PathBuf)>>;

pub(super) fn main(root: &Path, device: DeviceArgs, python: &PythonArgs, args: &Args) -> anyhow::Result<ExitCode> {
    let samples = samples(args)?;
    let files = problems(root, args.level)?.into_iter().map(|(level, path)| ((level, number(&path)), path));
    let files: BTreeMap<(u32, u32), PathBuf> = files.collect();
    let missing = crate::sandbox::protections().into_iter().take(2).filter_map(|protection| protection.missing());
    missing.for_each(|missing| warn(&format!("this machine lacks {missing}")));
    let limit = Duration::from_secs(args.seconds.max(1));
    let mut evaluator = start(device, python, &args.timing, limit)?;
    say(&format!(
        "{} samples of {} problems, PyTorch {} on {}",
        samples.values().map(Vec::len).sum::<usize>(),
        samples.len(),
        evaluator.torch(),
        evaluator.hardware()
    ));
    let mut left = 0;
    for ((level, problem), samples) in samples {
        let Some(path) = files.get(&(level, problem)) else {
            warn(&format!("level {level} has no problem {problem}; its samples are left out"));
            continue;
        };
        match one_problem(&mut evaluator, &args.run, (level, problem, path), &samples) {
            Ok(()) => {}
            // What one problem did to PyTorch says nothing of the others.
            Err(error) if error.is::<Judge>() => {
                left += 1;
                warn(&format!("level {level} problem {problem} is not judged to its end: {error}"));
                evaluator = start(device, python, &args.timing, limit)?;
            }
            Err(error) => return Err(error),
        }
    }
    say(&format!("\nresults in {}: {PROTOCOL}, {STRICT}, {BASELINES}/", args.run.display()));
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn samples(args: &Args) -> anyhow::Result<Samples> {
    let mut found = Samples::new();
    let entries = std::fs::read_dir(&args.run).with_context(|| format!("{} cannot be read", args.run.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(SampleName { level, problem, sample }) = SampleName::parse(&name) else { continue };
        let wanted = args.level.is_none_or(|only| only == level);
        if wanted && args.problems.as_ref().is_none_or(|numbers| numbers.has(problem)) {
            found.entry((level, problem)).or_default().push((sample, path));
        }
    }
    found.values_mut().for_each(|samples| samples.sort());
    let levels: BTreeSet<u32> = found.keys().map(|(level, _)| *level).collect();
    match levels.len() {
        0 => bail!("{} has no level_L_problem_P_sample_S_kernel.py that is wanted", args.run.display()),
        1 => Ok(found),
        // The benchmark's results name no level.
        _ => bail!("{} has samples of several levels; choose one with --level", args.run.display()),
    }
}

/// The judge's process. `limit` is what a sample may take.
pub(super) fn start(
    device: DeviceArgs,
    python: &PythonArgs,
    timing: &Timing,
    limit: Duration,
) -> anyhow::Result<Evaluator> {
    let there = || std::fs::exists("/dev/nvidiactl").unwrap_or(false);
    let settings = Settings {
        python: Python::chosen(python.python.as_deref()).program().to_owned(),
        gpu: device.backend.map_or_else(there, |it| it == BackendName::Cuda).then_some(device.device.unwrap_or(0)),
        precision: timing.precision.to_string(),
        modes: timing.modes.clone(),
        calls: timing.calls as usize,
        timed: timing.perf_trials,
        limit,
    };
    Evaluator::start(settings).map_err(told)
}

/// Says what a problem takes as it is, and writes it in the benchmark's form.
pub(super) fn write_times(
    folder: &Path,
    (level, file): (u32, &str),
    times: &BTreeMap<Mode, Timed>,
) -> anyhow::Result<()> {
    for (mode, times) in times {
        let shown = |times: &Result<TimeStats, String>| match times {
            Ok(times) => format!("{:.4} ms", times.typical()),
            Err(why) => format!("not timed ({why})"),
        };
        say(&format!(
            "  {:<13} {}; by the benchmark's clock {}",
            mode.name(),
            shown(&times.strict),
            shown(&times.clocked)
        ));
        let (strict, clocked) = (times.strict.clone().ok(), times.clocked.clone().ok());
        for (folder, times) in [(folder.to_owned(), clocked), (folder.join(STRICT_CLOCK), strict)] {
            std::fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
            update(&folder.join(mode.file()), |all: &mut Baselines| {
                all.entry(format!("level{level}")).or_default().insert(file.to_owned(), times);
            })?;
        }
    }
    Ok(())
}

/// Judges the samples of a problem, and writes what came of them.
fn one_problem(
    evaluator: &mut Evaluator,
    run: &Path,
    (level, problem, path): (u32, u32, &Path),
    samples: &[(u32, PathBuf)],
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    say(&format!("\nlevel {level} {file}"));
    let mut session = evaluator.problem(&file, &text).map_err(Judge)?;
    write_times(&run.join(BASELINES), (level, &file), &session.times)?;
    for (number, path) in samples {
        let text = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let (protocol, strict) = session.sample(*number, &String::from_utf8_lossy(&text)).map_err(Judge)?;
        say(&line(&protocol, &strict));
        update(&run.join(PROTOCOL), |all: &mut Results<ProtocolResult>| {
            let all = all.entry(problem).or_default();
            all.retain(|it| it.sample_id != *number);
            all.push(protocol);
        })?;
        update(&run.join(STRICT), |all: &mut Results<StrictResult>| {
            let all = all.entry(problem).or_default();
            all.retain(|it| it.sample_id != *number);
            all.push(strict);
        })?;
    }
    Ok(())
}

/// Both columns of a sample.
fn line(protocol: &ProtocolResult, strict: &StrictResult) -> String {
    let time = |right: bool, ms: f64| if right && ms > 0.0 { format!("{ms:.4} ms") } else { "-".to_owned() };
    let word = |right: bool| if right { "right" } else { "wrong" };
    let ours = if protocol.compiled { word(protocol.correctness) } else { "fails" };
    let said = strict.differs.as_ref().or(strict.reason.as_ref()).map_or(String::new(), |why| format!("\n      {why}"));
    format!(
        "  sample {:<4} protocol: {ours} {:<12} strict: {} {}{}{said}",
        strict.sample_id,
        time(protocol.correctness, protocol.runtime),
        word(strict.correctness),
        time(strict.correctness, strict.runtime),
        if strict.unresolved { " or less" } else { "" },
    )
}

/// Reads a file of JSON; what is not there is empty.
pub(super) fn read<T: DeserializeOwned + Default>(path: &Path) -> anyhow::Result<T> {
    let wrong = || format!("{} is not of the benchmark's form", path.display());
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).with_context(wrong),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// Changes a file of JSON, so that what was judged before stays, and what another process writes there too.
fn update<T: DeserializeOwned + Serialize + Default>(path: &Path, change: impl FnOnce(&mut T)) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // The folder's lock, since the file is another one after each change.
    let locked = File::open(folder).and_then(|folder| folder.lock().map(|()| folder));
    let _locked = locked.with_context(|| format!("{} cannot be locked", folder.display()))?;
    let mut all = read(path)?;
    change(&mut all);
    // Written beside it first: a run that is interrupted loses nothing.
    let beside = path.with_extension("json.new");
    let text = serde_json::to_string_pretty(&all)?;
    std::fs::write(&beside, text)
        .and_then(|()| std::fs::rename(&beside, path))
        .with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn problems_are_chosen_by_ranges_and_by_numbers() {
        let numbers: Numbers = "1-3,7, 19-19".parse().unwrap();
        let chosen: Vec<u32> = (0..=20).filter(|number| numbers.has(*number)).collect();
        assert_eq!(chosen, [1, 2, 3, 7, 19]);
        for wrong in ["", "a", "3-1", "1-", "-2"] {
            assert!(wrong.parse::<Numbers>().is_err(), "{wrong}");
        }
    }
}
