//! `warpsmith init`: a directory becomes a workspace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::device::{self, Device};
use super::inductor;
use super::options::{DeviceArgs, PythonArgs};
use super::problem::{self, WorkloadArgs};
use super::starter::Starter;
use crate::kernel::{Language, kernel_file};
use crate::op::Dtype;
use crate::torch::Problem;
use crate::torch::inductor::Gpu;
use crate::workspace::{DeviceSettings, Workspace};

/// Prepare a workspace: settings to edit, the instructions for an agent, a git repository if there is none.
///
/// `warpsmith run` does without: it makes what it needs. Nothing that is there already is changed. What a run writes
/// below `.warpsmith/` ignores itself, so that no `.gitignore` is needed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith init                      here\n  warpsmith init ~/llama --copy       with the kernels and operations to look at and to change\n  warpsmith init --problem 23_Softmax.py    a kernel file to write in, for what PyTorch computes there\n  warpsmith init --problem 23_Softmax.py --from-inductor    ... or the kernels that torch.compile would run, to go on from"
)]
pub(super) struct Args {
    /// The directory, made where it is not
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Copy the kernels that runs start from, and the operations, into the workspace
    #[arg(long)]
    copy: bool,
    /// Make an operation of a problem file (PyTorch with `Model` and `get_inputs`, or a definition in FlashInfer-Bench's JSON), and a kernel file to write in: it has the right
    /// front matter and signature, and an empty body
    #[arg(long, value_name = "FILE")]
    problem: Option<PathBuf>,
    #[command(flatten)]
    workloads: WorkloadArgs,
    /// Have Inductor, which writes torch.compile's kernels, write the kernel file of the problem: Triton that is correct and tunable, for this
    /// machine's GPU, or for one that is named and need not be here (`--from-inductor=sm_90`)
    #[arg(
        long, value_name = "SM", num_args = 0..=1, require_equals = true, default_missing_value = "", requires = "problem"
    )]
    from_inductor: Option<String>,
    /// The type of the kernels that Inductor writes [default: f32]
    #[arg(long, value_enum, requires = "from_inductor")]
    dtype: Option<Dtype>,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    python: PythonArgs,
}

pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let there = args.dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    if let Some(outer) = Workspace::find(there)?
        && args.dir.canonicalize().ok().as_deref() != Some(outer.root())
    {
        bail!(
            "{} is in the workspace {} already, which serves every model below it; an empty warpsmith.toml in it makes it one of its own",
            args.dir.display(),
            outer.root().display()
        );
    }
    let elsewhere = args.from_inductor.as_ref().is_some_and(|gpu| !gpu.is_empty());
    let device = match &args.problem {
        Some(_) if !elsewhere => device::choose(args.device, DeviceSettings::default(), &Starter::own())?.device,
        _ => Device::Cpu,
    };
    let gpu = args.from_inductor.as_deref().map(|gpu| inductor::gpu_named(gpu, device)).transpose()?;
    let read = |path: &PathBuf| problem::read(path, &args.workloads, &args.python, problem::gpu_of(device));
    let problem = args.problem.as_ref().map(read).transpose()?;
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{} cannot be made", args.dir.display()))?;
    let (workspace, made) = Workspace::init(&args.dir, args.copy)?;
    for line in made.sentences() {
        super::say(&line);
    }
    if made.is_nothing() {
        super::say(&format!("{} is a workspace already, and nothing is missing", workspace.root().display()));
    }
    if let Some(problem) = problem {
        let mut said = problem::install(&problem.source, &workspace)?;
        if let Some(gpu) = gpu {
            said.iter().for_each(|line| super::say(line));
            return from_inductor(args, &problem, &workspace, gpu);
        }
        let kernel = problem::skeleton_file(&problem, &workspace, device)?;
        said.extend(kernel.said);
        said.iter().for_each(|line| super::say(line));
        super::say(&format!("next         fill in {0}, then warpsmith bench {0}", kernel.path.display()));
        return Ok(ExitCode::SUCCESS);
    }
    let next = if args.dir.join("config.json").is_file() {
        format!("next         warpsmith run {}", args.dir.display())
    } else {
        "next         warpsmith run MODEL_DIR, for a directory in it with a model's config.json".to_owned()
    };
    super::say(&next);
    Ok(ExitCode::SUCCESS)
}

/// Writes what Inductor has for the problem; what it does not have it for is an answer, too.
fn from_inductor(args: &Args, problem: &Problem, workspace: &Workspace, gpu: Gpu) -> anyhow::Result<ExitCode> {
    let (source, dtype) = (&problem.source, args.dtype.unwrap_or(problem.dtype));
    let there = workspace.root().join(kernel_file(&source.name, Language::Triton.folder())).exists();
    let written = inductor::write(&[(source, dtype)], workspace, &args.python, gpu, &super::say)?;
    match written.into_iter().next().context("Inductor was not asked")? {
        Ok(path) if there => super::say(&format!("{} is there already, and is left as it is", path.display())),
        Ok(path) => {
            super::say(&format!("wrote        {} (what torch.compile would run, in {dtype})", path.display()));
            super::say(&format!("next         warpsmith bench {0}, then warpsmith run {0}", path.display()));
        }
        Err(why) => {
            super::say(&format!("Inductor has no kernel file for {}: {why}", source.name));
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
