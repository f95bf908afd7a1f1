//! `warpsmith kernelbench`: the problems of the public benchmark, and what others have made of them.

mod baselines;
mod eval;
mod run;
mod score;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Serialize;

use self::eval::Numbers;
use super::device::{self, Device};
use super::options::{DeviceArgs, PythonArgs};
use super::problem::told;
use super::prune::size;
use super::starter::Starter;
use crate::backend::cpu::available_memory;
use crate::backend::cuda;
use crate::torch::{self, Argument, Described, Fault, Python, Service};
use crate::workspace::DeviceSettings;

/// Bytes that judging takes for each byte of tensors: three sets of them, and everything once more in double precision.
const BYTES_EACH: u64 = 8;

/// Work with a checkout of KernelBench.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith kernelbench --root KernelBench list              every problem: its size, and whether it is a target\n  warpsmith kernelbench --root KernelBench list --level 1\n  warpsmith kernelbench --root KernelBench baselines mine         what PyTorch takes for each, in three ways\n  warpsmith kernelbench --root KernelBench eval runs/mine         judge every sample of a run, in both columns\n  warpsmith kernelbench --root KernelBench run kernels/cpu        improve kernels for its problems, all in one run\n  warpsmith kernelbench --root KernelBench score runs/mine        fast_p of both columns, and a page"
)]
pub(super) struct Args {
    /// The checkout, or the folder in it that has level1, level2, ...
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    python: PythonArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List problems with their inputs, their bytes, and whether they can be targets here; nothing of theirs is allocated
    List(ListArgs),
    Baselines(baselines::Args),
    Eval(eval::Args),
    Run(run::Args),
    Score(score::Args),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only this level
    #[arg(long, value_name = "N")]
    level: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A problem of the benchmark.
#[derive(Debug, Serialize)]
struct Row {
    level: u32,
    /// Its file's name without `.py`.
    problem: String,
    /// Its tensors, in and out.
    tensors: String,
    /// Bytes of them.
    bytes: u64,
    /// As PyTorch counts them; zero where it counts none.
    flops: u64,
    /// Why it is no target; `None` where it is one.
    refused: Option<String>,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let Args { root, device, python, command } = args;
    match command {
        Command::List(list) => listed(&root, device, &python, &list),
        Command::Baselines(baselines) => baselines::main(&root, device, &python, &baselines),
        Command::Eval(eval) => eval::main(&root, device, &python, &eval),
        Command::Run(run) => run::main(&root, device, &python, run),
        Command::Score(score) => score::main(&root, &score),
    }
}

fn listed(root: &Path, device: DeviceArgs, python: &PythonArgs, list: &ListArgs) -> anyhow::Result<ExitCode> {
    let files = problems(root, list.level)?;
    let service = Service::new(Python::chosen(python.python.as_deref()));
    let device = device::choose(device, DeviceSettings::default(), &Starter::own())?.device;
    let free = free_memory(device);
    let mut rows = Vec::new();
    for (level, path) in files {
        let row = row(&service, level, &path, free)?;
        if !list.json {
            super::say(&line(&row));
        }
        rows.push(row);
    }
    if list.json {
        super::say(&serde_json::to_string_pretty(&rows)?);
    } else {
        let targets = rows.iter().filter(|row| row.refused.is_none()).count();
        super::say(&format!("{} problems, {targets} of them targets here", rows.len()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The problem files below a folder, by level and number.
fn problems(root: &Path, only: Option<u32>) -> anyhow::Result<Vec<(u32, PathBuf)>> {
    let root = if root.join("KernelBench").is_dir() { root.join("KernelBench") } else { root.to_owned() };
    let mut all = Vec::new();
    for level in (1..=9).filter(|level| only.is_none_or(|only| only == *level)) {
        let Ok(folder) = std::fs::read_dir(root.join(format!("level{level}"))) else { continue };
        for entry in folder {
            let path = entry?.path();
            let number = number(&path);
            if path.extension().is_some_and(|extension| extension == "py") && number < u32::MAX {
                all.push((level, number, path));
            }
        }
    }
    if all.is_empty() {
        let level = only.map_or_else(|| "level1".to_owned(), |level| format!("level{level}"));
        bail!("{} has no {level} with problems in it; name a checkout of the benchmark", root.display());
    }
    all.sort();
    Ok(all.into_iter().map(|(level, _, path)| (level, path)).collect())
}

/// Those of a level that are asked for.
fn chosen(root: &Path, level: u32, wanted: Option<&Numbers>) -> anyhow::Result<Vec<PathBuf>> {
    let files = problems(root, Some(level))?.into_iter().map(|(_, path)| path);
    let files: Vec<PathBuf> = files.filter(|path| wanted.is_none_or(|numbers| numbers.has(number(path)))).collect();
    if files.is_empty() {
        bail!("level {level} has no such problem");
    }
    Ok(files)
}

/// The number that a problem's file begins with; files without one come last and are none.
fn number(path: &Path) -> u32 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('_').next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

fn row(service: &Service, level: u32, path: &Path, free: Option<u64>) -> anyhow::Result<Row> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let problem = file.trim_end_matches(".py").to_owned();
    match service.describe(&file, &text, false) {
        Ok(described) => {
            let (bytes, refused) = (torch::bytes(&described), refused(&described, free));
            Ok(Row { level, problem, tensors: tensors(&described), bytes, flops: described.flops, refused })
        }
        // What is wrong with one file says nothing of the others.
        Err(error) if error.fault() == Fault::File => {
            Ok(Row { level, problem, tensors: String::new(), bytes: 0, flops: 0, refused: Some(error.to_string()) })
        }
        Err(error) => Err(told(error)),
    }
}

/// Bytes that problems are judged in, where the device tells.
fn free_memory(device: Device) -> Option<u64> {
    match device {
        Device::Cuda(number) => cuda::memory_of(number).ok(),
        Device::Cpu | Device::Theirs => available_memory(),
    }
}

/// Why a problem is no target here.
fn refused(described: &Described, free: Option<u64>) -> Option<String> {
    let wanted = torch::bytes(described).saturating_mul(BYTES_EACH);
    let too_large = free
        .filter(|free| wanted > *free)
        .map(|free| format!("judging it takes about {}, and this device has {}", size(wanted), size(free)));
    torch::refusal(described).or(too_large)
}

/// `x[16, 64] s -> [16, 64]`.
fn tensors(described: &Described) -> String {
    let inputs = described.inputs.iter().filter_map(|input| match input {
        Argument::Input(form) | Argument::State(form) => Some(format!("{}{:?}", form.name, form.shape)),
        Argument::Scalar { name, .. } => Some(name.clone()),
        Argument::Constant { .. } => None,
    });
    let outputs: Vec<String> = described.outputs.iter().map(|it| format!("{:?}", it.shape)).collect();
    format!("{} -> {}", inputs.collect::<Vec<_>>().join(" "), outputs.join(" "))
}

fn line(row: &Row) -> String {
    let Row { level, problem, tensors, bytes, refused, .. } = row;
    let verdict = refused.as_ref().map_or_else(|| "a target".to_owned(), |why| format!("no target: {why}"));
    format!("{level} {problem:<52} {:>9}  {tensors}\n    {verdict}", size(*bytes))
}
