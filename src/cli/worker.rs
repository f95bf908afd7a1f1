//! `warpsmith worker`: the evaluation process, for other processes to talk to.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::ExitCode;

use super::device::{self, Device};
use super::diary;
use super::options::{DeviceArgs, PythonArgs};
use super::starter::Starter;
use crate::backend::cuda::{self, Cuda};
use crate::backend::{Backend, cpu};
use crate::device::{Opening, cached_card, detect_cpu};
use crate::harness::Judge;
use crate::sandbox;
use crate::torch::Python;
use crate::worker::{Judging, Workers, judge_hash, server};
use crate::workspace::{BackendName, DeviceLock, DeviceSettings, cache_dir};

/// Evaluates candidates for another process, in JSON lines over standard input and output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    python: PythonArgs,
    /// Measure the device's ceilings anew instead of taking them from the cache
    #[arg(long)]
    recalibrate: bool,
    /// Whoever starts it holds the device already: leave its lock alone
    #[arg(long, hide = true)]
    within: bool,
    /// Whoever starts it wants one verdict at once: the device is opened while the kernel is being compiled
    #[arg(long, hide = true)]
    at_once: bool,
    /// Where whoever starts it lets it ask the PyTorch that it has already
    #[arg(long, hide = true)]
    torch_at: Option<String>,
}

impl Args {
    const fn opening(&self) -> Opening {
        match (self.recalibrate, self.at_once) {
            (true, _) => Opening::Recalibrating,
            (false, true) => Opening::Meanwhile,
            (false, false) => Opening::Now,
        }
    }
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    server::serve(judge_hash()?, args.within, || {
        let starting = || cuda::Starting::begin(&cache_dir(), !args.within, args.python.python.clone());
        let compiler = (args.device.backend == Some(BackendName::Cuda)).then(starting);
        let device = match args.device.backend {
            Some(backend) => device::named(backend, args.device, DeviceSettings::default(), &Starter::own())?,
            None => device::choose(args.device, DeviceSettings::default(), &Starter::own())?.device,
        };
        // Processes started hours later run this very program, whatever is built meanwhile.
        let own = cpu::remember_executable()?;
        let mut arguments = vec!["worker".to_owned(), "--within".to_owned()];
        arguments.extend(device.arguments());
        arguments.extend(diary::passed_on());
        if let Some(python) = &args.python.python {
            arguments.extend(["--python".to_owned(), python.display().to_string()]);
        }
        Ok(match device {
            Device::Cpu | Device::Theirs => judge(processor(&args)?, own, arguments, &args),
            Device::Cuda(number) => {
                let compiler = compiler.unwrap_or_else(starting);
                judge(gpu(number, compiler, &args)?, own, arguments, &args)
            }
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

fn processor(args: &Args) -> anyhow::Result<cpu::Cpu> {
    // Where it may not have more, it does with what it has, on all but the largest machines.
    let _ = sandbox::more_files();
    let compiler = cpu::Compiler::new(&cache_dir())?;
    let lock = calibrating(&detect_cpu().key, args)?;
    let limits = cpu::Limits::default();
    let card = cpu::device_card(&cache_dir(), &compiler, &limits, args.recalibrate)?;
    drop(lock);
    Ok(cpu::Cpu::new(compiler, card, limits))
}

fn gpu(number: u32, compiler: cuda::Starting, args: &Args) -> anyhow::Result<Cuda> {
    let lock = calibrating(&cuda::key_of(number).map_err(anyhow::Error::msg)?, args)?;
    let gpu = Cuda::open(number, compiler, args.opening()).map_err(anyhow::Error::msg)?;
    drop(lock);
    Ok(gpu)
}

/// The device's lock where its ceilings are still to be measured: doing so while another run is timing would spoil both.
fn calibrating(key: &str, args: &Args) -> anyhow::Result<Option<DeviceLock>> {
    let known = cached_card(&cache_dir(), key).is_some() && !args.recalibrate;
    match known || args.within {
        true => Ok(None),
        false => Ok(DeviceLock::take(&cache_dir(), key, "calibration", |_| true)?),
    }
}

/// A judge on `backend`, whose sessions are this program's `own` file with `arguments` where they need a process.
fn judge<B: Backend + 'static>(backend: B, own: &File, arguments: Vec<String>, args: &Args) -> Box<dyn Judging> {
    let program = PathBuf::from(format!("/proc/self/fd/{}", own.as_raw_fd()));
    let python = Python::chosen(args.python.python.as_deref());
    Box::new(
        Judge::new(backend)
            .with_python(python, args.torch_at.clone())
            .with_elsewhere(Box::new(Workers::new(program, arguments))),
    )
}
