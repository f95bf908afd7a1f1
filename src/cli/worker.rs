//! `warpsmith worker`: the evaluation process, for other processes to talk to.

use std::process::ExitCode;

use crate::backend::cpu;
use crate::device::{cached_card, detect_cpu};
use crate::harness::Judge;
use crate::worker::server;
use crate::workspace::{DeviceLock, cache_dir};

/// Evaluates candidates for another process, in JSON lines over standard input and output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Measure the device's ceilings anew instead of taking them from the cache
    #[arg(long)]
    recalibrate: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    server::serve(|| {
        // Hosts started hours later run this very program, whatever is built meanwhile.
        cpu::remember_executable()?;
        let compiler = cpu::Compiler::new(&cache_dir())?;
        // Measuring ceilings while another run is timing would spoil both.
        let known = cached_card(&cache_dir(), &detect_cpu().key).is_some() && !args.recalibrate;
        let lock = match known {
            true => None,
            false => DeviceLock::take(&cache_dir(), &detect_cpu().key, "calibration", |_| true)?,
        };
        let card = cpu::device_card(&cache_dir(), &compiler, &cpu::Limits::default(), args.recalibrate)?;
        drop(lock);
        Ok(Judge::new(compiler, card))
    })?;
    Ok(ExitCode::SUCCESS)
}
