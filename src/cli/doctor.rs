//! `warpsmith doctor`: what works here, and what is missing.

use std::process::ExitCode;

use super::device::{self, Device};
use super::options::DeviceArgs;
use super::session;
use crate::backend::cpu::Compiler;
use crate::device::{DeviceCard, Nameplate, nameplate};
use crate::workspace::{DeviceSettings, Workspace, cache_dir};

/// Check this machine: device and ceilings, compiler, protections, git; each with what to do where it is missing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith doctor\n  warpsmith doctor --recalibrate    measure the device's ceilings anew (a few seconds)"
)]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceArgs,
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
    let mut settings = DeviceSettings::default();
    match Workspace::find(&std::env::current_dir()?) {
        Ok(Some(workspace)) => {
            settings = workspace.settings().device;
            super::say(&format!("workspace    {}", workspace.root().display()));
        }
        Ok(None) => super::say("workspace    none here; `warpsmith run MODEL_DIR` makes one"),
        Err(error) => {
            fine = false;
            super::say(&format!("workspace    {error}"));
        }
    }
    super::say(&format!("cache        {}", cache_dir().display()));
    if let Err(error) = on_device(&args, settings).await {
        fine = false;
        super::say(&format!("device       cannot be used: {error:#}"));
    }
    Ok(ExitCode::from(u8::from(!fine) * 2))
}

/// What the worker says of the device.
async fn on_device(args: &Args, settings: DeviceSettings) -> anyhow::Result<()> {
    let choice = device::choose(args.device, settings)?;
    let worker = session::worker(choice.device, args.recalibrate).await?;
    super::say(&device_lines(worker.device()));
    if let Some(plate) = nameplate(&worker.device().name) {
        super::say(&nameplate_line(plate));
    }
    if choice.device == Device::Cpu {
        super::say(&format!("gpu          {}", choice.note.as_deref().unwrap_or("not asked for")));
    }
    Ok(())
}

/// The vendor's figures, to be held against those measured.
fn nameplate_line(plate: &Nameplate) -> String {
    let tf32 = plate.tf32.map_or(String::new(), |rate| format!(", tf32 {rate:.0}"));
    format!(
        "nameplate    {}: {:.0} GB at {:.0} GB/s; fp16 {:.0}{tf32}, fp32 {:.1}, fp64 {:.1} TFLOP/s\n             ({})",
        plate.name, plate.memory_gb, plate.memory_gb_s, plate.fp16, plate.fp32, plate.fp64, plate.source
    )
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
