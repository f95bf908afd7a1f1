//! `warpsmith worker`: the evaluation process, for other processes to talk to.

use std::process::ExitCode;

use crate::backend::cpu;
use crate::harness::Judge;
use crate::worker::server;
use crate::workspace::cache_dir;

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
        let card = cpu::device_card(&cache_dir(), &compiler, &cpu::Limits::default(), args.recalibrate)?;
        Ok(Judge::new(compiler, card))
    })?;
    Ok(ExitCode::SUCCESS)
}
