//! `warpsmith doctor`: what works here, and what is missing.

use std::path::Path;
use std::process::ExitCode;

use super::device::{self, Device};
use super::options::{DeviceArgs, WorkerArgs};
use super::session;
use crate::backend::cpu::Compiler;
use crate::backend::cuda::{self, Search, Toolkit, driver_version};
use crate::device::{DeviceCard, Nameplate, Opening, nameplate};
use crate::torch::Python;
use crate::workspace::{Settings, Workspace, cache_dir};

/// Check this machine: device and ceilings, compiler, protections, git; each with what to do where it is missing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith doctor\n  warpsmith doctor --recalibrate    measure the device's ceilings anew (a few seconds)"
)]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    worker: WorkerArgs,
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
        Ok(compiler) => {
            super::say(&format!("compiler     {}", compiler.version()));
            for (name, found) in compiler.sanitizers() {
                super::say(&examined(name, found.err()));
            }
        }
        Err(error) => {
            fine = false;
            super::say(&format!("compiler     {error}"));
        }
    }
    if cuda::installed().is_ok() {
        super::say(&examined("compute-sanitizer", cuda::sanitizer().err()));
    }
    super::say(&match Python::chosen(args.worker.python.python.as_deref()).versions() {
        Ok(versions) => format!("pytorch      {versions}"),
        Err(why) => format!(
            "pytorch      MISSING ({why}); operations written in PyTorch need one: --python, or $WARPSMITH_PYTHON"
        ),
    });
    let python = crate::workspace::python(args.worker.python.python.as_deref());
    super::say(&match cuda::TritonFound::of(&python) {
        Ok(found) => format!("triton       {} in Python {} ({})", found.version, found.python, python.display()),
        Err(why) => format!("triton       MISSING ({why}); kernels in Triton need one: --python, or $WARPSMITH_PYTHON"),
    });
    let (major, minor, patch) = git2::Version::get().libgit2_version();
    super::say(&format!("git          libgit2 {major}.{minor}.{patch}, built in"));
    for protection in crate::sandbox::protections() {
        let state = if protection.available { "here" } else { "MISSING" };
        super::say(&format!("protection   {:<14} {state}: {}", protection.name, protection.why));
    }
    let mut settings = Settings::default();
    match Workspace::find(&std::env::current_dir()?) {
        Ok(Some(workspace)) => {
            settings = workspace.settings().clone();
            super::say(&format!("workspace    {}", workspace.root().display()));
        }
        Ok(None) => super::say("workspace    none here; `warpsmith run MODEL_DIR` makes one"),
        Err(error) => {
            fine = false;
            super::say(&format!("workspace    {error}"));
        }
    }
    super::say(&format!("cache        {}", cache_dir().display()));
    if let Err(error) = on_device(&args, &settings).await {
        fine = false;
        super::say(&format!("device       cannot be used: {error:#}"));
    }
    Ok(ExitCode::from(u8::from(!fine) * 2))
}

/// What the worker says of the device.
async fn on_device(args: &Args, settings: &Settings) -> anyhow::Result<()> {
    let starter = args.worker.starter(&settings.run)?;
    let choice = device::choose(args.device, settings.device, &starter)?;
    let opening = if args.recalibrate { Opening::Recalibrating } else { Opening::Now };
    let worker = starter.start(choice.device, opening).await?;
    super::say(&device_lines(worker.device()));
    if let Some(plate) = nameplate(&worker.device().name) {
        super::say(&nameplate_line(plate));
    }
    match choice.device {
        Device::Cpu => super::say(&format!("gpu          {}", choice.note.as_deref().unwrap_or("not asked for"))),
        // What else is installed there is that machine's own to say.
        _ if !starter.is_own() => {}
        Device::Theirs => {}
        Device::Cuda(_) => {
            let driver = driver_version()?;
            let toolkit = Search::of_this_machine().find(Some(driver / 1000)).map_err(anyhow::Error::msg)?;
            super::say(&nvrtc_line(&toolkit, driver));
        }
    }
    Ok(())
}

/// The compiler of CUDA kernels, and the newest CUDA that the driver can load the code of (`driver`: 13000 for 13.0).
fn nvrtc_line(toolkit: &Toolkit, driver: u32) -> String {
    // The library's own name may have the major version only.
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let version = |path: &Path| name(path).split_once(".so.").map(|(_, version)| version.to_owned());
    let known = toolkit.builtins.as_deref().and_then(version).or_else(|| version(&toolkit.library));
    format!(
        "nvrtc        {} ({}); the driver takes CUDA {}.{}",
        known.unwrap_or_else(|| "of unknown version".to_owned()),
        toolkit.library.display(),
        driver / 1000,
        driver % 1000 / 10
    )
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
    // A GPU has no vector registers and no third cache.
    let (core, each) = if card.backend == "cuda" { ("multiprocessors", "multiprocessor") } else { ("cores", "core") };
    let vectors = if card.vector_bits > 0 { format!(", {} bit vectors", card.vector_bits) } else { String::new() };
    let l3 = if card.l3_bytes > 0 { format!(", L3 {:.1} MiB", mib(card.l3_bytes)) } else { String::new() };
    format!(
        "device       {} ({}): {} {core}{vectors}\n\
         caches       L1 {:.0} KiB a {each}, L2 {:.1} MiB{l3}\n\
         ceilings     read {:.1} GB/s, write {:.1} GB/s (measured over {:.0} MiB), launch {:.1} µs\n\
         arithmetic   {} GFLOP/s (measured)",
        card.name,
        card.backend,
        card.cores,
        card.l1_bytes as f64 / 1024.0,
        mib(card.l2_bytes),
        ceilings.read_gb_s,
        ceilings.write_gb_s,
        mib(card.cold_bytes),
        ceilings.launch_us,
        rates.join(", ")
    )
}

/// A line for something that looks at what would be kept; what is missing there is no reason not to go on.
fn examined(name: &str, missing: Option<String>) -> String {
    match missing {
        None => format!("examination  {name}: here"),
        Some(why) => format!("examination  {name}: MISSING ({why}); what would be kept is examined without it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvrtc_is_named_with_the_version_that_is_known() {
        let toolkit = |library: &str, builtins: Option<&str>| Toolkit {
            library: library.into(),
            builtins: builtins.map(Into::into),
            includes: Vec::new(),
        };
        let wheel = toolkit("/n/libnvrtc.so.13", Some("/n/libnvrtc-builtins.so.13.0"));
        assert_eq!(nvrtc_line(&wheel, 13_000), "nvrtc        13.0 (/n/libnvrtc.so.13); the driver takes CUDA 13.0");
        let bare = toolkit("/n/libnvrtc.so.12.4.127", None);
        assert_eq!(
            nvrtc_line(&bare, 12_080),
            "nvrtc        12.4.127 (/n/libnvrtc.so.12.4.127); the driver takes CUDA 12.8"
        );
    }
}
