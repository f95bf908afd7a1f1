//! `kernelbench run`: one run with a target for each problem that has a kernel to start from.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use super::eval::Numbers;
use super::{chosen, number};
use crate::cli::begin::Posed;
use crate::cli::options::{DeviceArgs, PythonArgs};
use crate::cli::problem::WorkloadArgs;
use crate::cli::{alone, problem, pytorch, run};
use crate::torch::name_of;

/// Improve kernels for many problems in one run, one target after another.
///
/// MODEL_DIR is a folder of a workspace with a kernel file for each problem to work on, which says in its front matter for which (`op =
/// "p23_softmax"`; `warpsmith init --problem FILE` writes a file to begin with). What follows is as in `warpsmith run`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith kernelbench --root KernelBench run kernels/cpu --level 1\n  warpsmith kernelbench --root KernelBench run kernels/cpu --level 1 --problems 1-20 --budget 8h --agent openai --model gpt-5.1\n  warpsmith run kernels/cpu --resume                                       go on with it"
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
    let Args { level, problems: numbers, run: mut args } = args;
    let wanted = &mut args.run;
    wanted.device = DeviceArgs {
        backend: wanted.device.backend.or(device.backend),
        device: wanted.device.device.or(device.device),
    };
    let python = PythonArgs { python: wanted.crew.python.python.take().or_else(|| python.python.clone()) };
    wanted.crew.python = python.clone();
    let files = chosen(root, level, numbers.as_ref())?;
    let kernels = pytorch::kernel_files(&wanted.model, &["c", "cu", "py"])?;
    let mut missing = Vec::new();
    for file in &files {
        let base = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A problem without a kernel could only begin from nothing: this is where such a start would go.
        let Some((kernel, _)) = kernels.get(&name_of(&base)) else {
            missing.push(number(file).to_string());
            continue;
        };
        let gpu = problem::gpu_for(kernel, wanted.device);
        match problem::read(file, &WorkloadArgs::default(), &python, gpu) {
            Ok(found) => {
                let (workspace, _) = alone::workspace_of(kernel)?;
                problem::install(&found.source, &workspace)?.iter().for_each(|line| crate::cli::say(line));
                wanted.posed.push(Posed { kernel: kernel.clone(), source: found.source });
            }
            Err(why) => crate::cli::say(&format!("left out: {why}")),
        }
    }
    if !missing.is_empty() {
        let all = missing.join(", ");
        crate::cli::say(&format!(
            "left out, having no kernel in {} to start from: problems {all}",
            wanted.model.display()
        ));
    }
    if wanted.posed.is_empty() {
        bail!(
            "no problem has a kernel in {}; `warpsmith init --problem FILE` writes a file to begin with",
            wanted.model.display()
        );
    }
    run::main(*args)
}
