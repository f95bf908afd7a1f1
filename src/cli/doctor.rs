//! `warpsmith doctor`: what works here, and what is missing.

use std::process::ExitCode;

use super::session;
use crate::backend::cpu::Compiler;
use crate::device::DeviceCard;
use crate::workspace::{Workspace, cache_dir};

/// Check this machine: device and ceilings, compiler, protections, git; each with what to do where it is missing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith doctor\n  warpsmith doctor --recalibrate    measure the device's ceilings anew (a few seconds)"
)]
pub(super) struct Args {
    /// Measure the device's ceilings anew
    #[arg(long)]
    recalibrate: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(doctor(args))
}

async fn doctor(args: Args) -> anyhow::Result<ExitCode> {
    let mut fine = true;
    super::say(&format!("warpsmith    {} ({})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH));
    match Compiler::new(&cache_dir()) {
        Ok(compiler) => super::say(&format!("compiler     {}", compiler.version())),
        Err(error) => {
            fine = false;
            super::say(&format!("compiler     {error}"));
        }
    }
    for protection in crate::sandbox::protections() {
        let state = if protection.available { "here" } else { "MISSING" };
        super::say(&format!("protection   {:<14} {state}: {}", protection.name, protection.why));
    }
    match Workspace::find(&std::env::current_dir()?) {
        Ok(Some(workspace)) => super::say(&format!("workspace    {}", workspace.root().display())),
        Ok(None) => super::say("workspace    none here; `warpsmith run MODEL_DIR` makes one"),
        Err(error) => {
            fine = false;
            super::say(&format!("workspace    {error}"));
        }
    }
    super::say(&format!("cache        {}", cache_dir().display()));
    match session::worker(args.recalibrate).await {
        Ok(worker) => super::say(&device_lines(worker.device())),
        Err(error) => {
            fine = false;
            super::say(&format!("device       cannot be used: {error:#}"));
        }
    }
    super::say("gpu          not used by this version; everything runs on the CPU");
    Ok(ExitCode::from(u8::from(!fine) * 2))
}

/// A device with its measured ceilings.
fn device_lines(card: &DeviceCard) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let ceilings = &card.ceilings;
    let rates: Vec<String> = ceilings.gflops.iter().map(|(dtype, rate)| format!("{dtype} {rate:.0}")).collect();
    format!(
        "device       {} ({}): {} cores, {} bit vectors\n\
         caches       L1 {:.0} KiB a core, L2 {:.1} MiB, L3 {:.1} MiB\n\
         ceilings     read {:.1} GB/s, write {:.1} GB/s (measured over {:.0} MiB), launch {:.1} µs\n\
         arithmetic   {} GFLOP/s (measured)",
        card.name,
        card.backend,
        card.cores,
        card.vector_bits,
        card.l1_bytes as f64 / 1024.0,
        mib(card.l2_bytes),
        mib(card.l3_bytes),
        ceilings.read_gb_s,
        ceilings.write_gb_s,
        mib(card.cold_bytes),
        ceilings.launch_us,
        rates.join(", ")
    )
}
