//! `kernelbench run`: one run with a target for each problem.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::eval::Numbers;
use super::{chosen, free_memory, number, refused};
use crate::cli::begin::Posed;
use crate::cli::options::{DeviceArgs, PythonArgs};
use crate::cli::{device, problem, pytorch, run};
use crate::kernel::Language;
use crate::torch::{Fault, Problem, Python, Service, TorchError, name_of};
use crate::workspace::{BackendName, Settings, Workspace};

/// Improve kernels for many problems in one run, one target after another.
///
/// MODEL_DIR is a workspace, or a folder of one, and becomes one where it is none. A problem begins with its kernel file in MODEL_DIR
/// (which says in its front matter for which it is: `op = "p23_softmax"`), else with that of the workspace, else, on a GPU, with what
/// torch.compile would run; where there is nothing, an agent that writes begins with an empty body. What follows is as in `warpsmith run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith kernelbench --root KernelBench run night --level 1                                  what torch.compile runs there, tuned\n  warpsmith kernelbench --root KernelBench run night --level 1 --problems 1-20 --budget 8h --agent openai --model gpt-5.1\n  warpsmith kernelbench --root KernelBench run kernels/cpu --level 1                            kernels that are there\n  warpsmith run night --resume                                                                  go on with it"
)]
#[group(id = "kernelbench_run")]
pub(super) struct Args {
    /// Problems of this level
    #[arg(long, value_name = "N", default_value_t = 1)]
    level: u32,
    /// Only these problems: 1-20, or 3,7,19
    #[arg(long, value_name = "NUMBERS")]
    problems: Option<Numbers>,
    #[command(flatten)]
    run: Box<run::Args>,
}

pub(super) fn main(root: &Path, device: DeviceArgs, python: &PythonArgs, args: Args) -> anyhow::Result<ExitCode> {
    let writes = args.run.agent_writes()?;
    let Args { level, problems: numbers, run: mut args } = args;
    let wanted = &mut args.run;
    let python = PythonArgs { python: wanted.crew.python.python.take().or_else(|| python.python.clone()) };
    wanted.crew.python = python.clone();
    let files = chosen(root, level, numbers.as_ref())?;
    if !wanted.model.is_dir() {
        bail!("{} is no folder; name one that is there, in which kernels and results are kept", wanted.model.display());
    }
    let kernels = pytorch::kernel_files(&wanted.model, &["c", "cu", "py"])?;
    let (workspace, made) = match Workspace::find(&wanted.model)? {
        Some(workspace) => (workspace, Vec::new()),
        None => Workspace::make(&wanted.model).map(|(workspace, made)| (workspace, made.sentences()))?,
    };
    made.iter().for_each(|line| crate::cli::say(line));
    // Kernels that are there say what they are for.
    let of_kernels = kernels.values().next().and_then(|(path, _)| path.to_str().and_then(Language::of_file));
    wanted.device = DeviceArgs {
        backend: wanted.device.backend.or(device.backend).or(of_kernels.map(backend_of)),
        device: wanted.device.device.or(device.device),
    };
    let settings: &Settings = workspace.settings();
    let starter = wanted.crew.lead().starter(&settings.run)?;
    let device = device::choose(wanted.crew.device_of_lead(wanted.device), settings.device, &starter)?.device;
    let service = Service::new(Python::chosen(python.python.as_deref())).on(problem::gpu_of(device));
    let free = free_memory(device);
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for file in &files {
        let name = name_of(&base(file));
        let named = kernels.get(&name).map(|(path, _)| path.clone());
        // Drawing the values of what nothing comes of may take minutes.
        if named.is_none() && !writes && !problem::may_have_a_kernel(wanted, &name, &workspace, device)? {
            left_out.push(number(file).to_string());
            continue;
        }
        match read(&service, file, free)? {
            Ok(problem) => found.push((number(file), problem, named)),
            Err(why) => crate::cli::say(&format!("left out: {}: {why}", file.display())),
        }
    }
    // It holds gigabytes of a GPU's memory from values that it drew.
    drop(service);
    let lacking: Vec<&Problem> =
        found.iter().filter(|(.., named)| named.is_none()).map(|(_, problem, _)| problem).collect();
    let mut first = problem::first_kernels(wanted, &lacking, &workspace, device, &crate::cli::say)?.into_iter();
    for (number, problem, named) in found {
        let kernel = match named.or_else(|| first.next().flatten()) {
            None if writes => problem::empty_file(&problem, &workspace, device, &crate::cli::say)?,
            None => {
                left_out.push(number.to_string());
                continue;
            }
            Some(kernel) => kernel,
        };
        let said = problem::install(&problem.source, &workspace)?;
        said.iter().for_each(|line| crate::cli::say(line));
        wanted.posed.push(Posed { kernel, source: problem.source });
    }
    if !left_out.is_empty() {
        crate::cli::say(&format!(
            "left out, with no kernel to begin with, which the tuner cannot write (an --agent can): problems {}",
            left_out.join(", ")
        ));
    }
    if wanted.posed.is_empty() {
        bail!(
            "no problem has a kernel in {}; `warpsmith init --problem FILE` writes a file to begin with, and an --agent that writes begins \
             without",
            wanted.model.display()
        );
    }
    run::main(*args)
}

/// A file's own name.
fn base(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What kernels in a language run on.
const fn backend_of(language: Language) -> BackendName {
    match language {
        Language::C => BackendName::Cpu,
        Language::Cuda | Language::Triton => BackendName::Cuda,
    }
}

/// The problem in a file; why it is none here, in a sentence, which says nothing of the others.
fn read(service: &Service, path: &Path, free: Option<u64>) -> anyhow::Result<Result<Problem, String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let file = base(path);
    let looked = || -> Result<Result<Problem, String>, TorchError> {
        // By its form first: values of what is too large are not drawn.
        if let Some(why) = refused(&service.describe(&file, &text, false)?, free) {
            return Ok(Err(why));
        }
        problem::by(service, &file, &text).map(Ok)
    };
    match looked() {
        Err(error) if error.fault() == Fault::File => Ok(Err(error.to_string())),
        looked => looked.map_err(problem::told),
    }
}
