//! `warpsmith init`: a directory becomes a workspace.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::device::{self, Device};
use super::options::{DeviceArgs, PythonArgs};
use super::problem;
use super::starter::Starter;
use crate::workspace::{DeviceSettings, Workspace};

/// Prepare a workspace: settings to edit, the instructions for an agent, a git repository if there is none.
///
/// `warpsmith run` does without: it makes what it needs. Nothing that is there already is changed. What a run writes
/// below `.warpsmith/` ignores itself, so that no `.gitignore` is needed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith init                      here\n  warpsmith init ~/llama --copy       with the kernels and operations to look at and to change\n  warpsmith init --problem 23_Softmax.py    a kernel file to write in, for what PyTorch computes there"
)]
pub(super) struct Args {
    /// The directory, made where it is not
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Copy the kernels that runs start from, and the operations, into the workspace
    #[arg(long)]
    copy: bool,
    /// Make an operation of a problem file (PyTorch with `Model` and `get_inputs`), and a kernel file to write in: it has the right
    /// front matter and signature, and an empty body
    #[arg(long, value_name = "FILE")]
    problem: Option<PathBuf>,
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
    let device = match &args.problem {
        Some(_) => device::choose(args.device, DeviceSettings::default(), &Starter::own())?.device,
        None => Device::Cpu,
    };
    let read = |path: &PathBuf| problem::read(path, &args.python, problem::gpu_of(device));
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
        let kernel = problem::skeleton_file(&problem.source, &workspace, device)?;
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
