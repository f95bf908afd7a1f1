//! The processor's ceilings, measured by the very compiler and host that candidates run under.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use super::arena::{Arena, ArenaError};
use super::compile::{CompileError, Compiler, Image};
use super::host::{Host, HostError, Limits};
use crate::backend::{Call, Fault, Region, Span};
use crate::device::{Ceilings, DeviceCard, detect_cpu};
use crate::op::Dtype;

const SOURCE: &str = include_str!("calibrate.c");
/// A launch that takes this long hangs.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Trials of each ceiling in a row, and rounds over all ceilings. A ceiling is the best of them all: noise only ever slows
/// down, and what else the machine does lasts longer than a few trials.
const TRIALS: u32 = 8;
const ROUNDS: u32 = 16;
/// On a machine busy with something else fewer rounds must do, at least so many.
const LEAST_ROUNDS: u32 = 4;
const ENOUGH: Duration = Duration::from_secs(4);
/// Turns of the chains in one trial: about a millisecond, long enough that starting it does not show.
const TURNS: i64 = 500_000;
/// Chains of multiply-adds, as in the C file.
const CHAINS: f64 = 12.0;

/// Why there are no ceilings.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// The program's own kernel does not compile.
    #[error("calibrating: {0}")]
    Compile(#[from] CompileError),
    /// There is no memory for it.
    #[error("calibrating: {0}")]
    Arena(#[from] ArenaError),
    /// No process to run it in.
    #[error("calibrating: {0}")]
    Host(#[from] HostError),
    /// It did not run to its end.
    #[error("calibrating: {0}")]
    Fault(#[from] Fault),
}

/// What a kernel of the C file does; the discriminant is its `MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Nothing = 0,
    Read = 1,
    Write = 2,
    Fp32 = 3,
    Fp16 = 4,
    WritePast = 5,
    Bf16 = 6,
}

/// Measures this processor: some two seconds, more the first time, when the kernels are compiled.
///
/// # Errors
/// [`CalibrateError`].
pub fn calibrate(compiler: &Compiler, limits: &Limits) -> Result<DeviceCard, CalibrateError> {
    let cpu = detect_cpu();
    let bytes = cpu.cold_bytes as usize;
    let mut arena = Arena::new(2 * Arena::footprint(bytes), 2 * Arena::footprint(bytes))?;
    let x = arena.place(Region::Inputs, bytes)?;
    let y = arena.place(Region::Outputs, bytes)?;
    arena.bytes_mut(&x).fill(0x3c);
    let mut bench = Bench::start(compiler, limits, arena, cpu.vector_bits / 8)?;
    let launch_us = bench.launch_us(&x, &y)?;
    let best = bench.best(&x, &y)?;
    let gb_s = |modes: &[Mode]| {
        modes.iter().filter_map(|mode| best.get(mode)).fold(0f64, |most, s| most.max(bytes as f64 / s / 1e9))
    };
    let rate = |mode: Mode| best.get(&mode).map_or(0.0, |seconds| bench.operations(mode) / seconds / 1e9);
    let single = rate(Mode::Fp32);
    // A kernel may always widen to single precision, so no ceiling is below that.
    let gflops = [(Dtype::F32, Mode::Fp32), (Dtype::F16, Mode::Fp16), (Dtype::Bf16, Mode::Bf16)]
        .map(|(dtype, mode)| (dtype, rate(mode).max(single)));
    Ok(DeviceCard {
        backend: "cpu".into(),
        name: cpu.name,
        key: cpu.key,
        cores: bench.host.threads(),
        vector_bits: cpu.vector_bits,
        l1_bytes: cpu.l1_bytes,
        l2_bytes: cpu.l2_bytes,
        l3_bytes: cpu.l3_bytes,
        cold_bytes: cpu.cold_bytes,
        facts: cpu.facts,
        ceilings: Ceilings {
            read_gb_s: gb_s(&[Mode::Read]),
            // Which kind of store is faster depends on the size of the last cache; a kernel may use either.
            write_gb_s: gb_s(&[Mode::Write, Mode::WritePast]),
            gflops: gflops.into(),
            launch_us,
            shown: BTreeMap::new(),
        },
    })
}

struct Bench {
    host: Host,
    modes: Vec<Mode>,
    /// Two vectors each for fp32, fp16 and bf16: the factor and the summand of the chains.
    factors: [Span; 3],
    width: u32,
    _arena: Arena,
}

impl Bench {
    fn start(compiler: &Compiler, limits: &Limits, mut arena: Arena, width: u32) -> Result<Self, CalibrateError> {
        let mut images: Vec<(Mode, Image)> = Vec::new();
        let all = [Mode::Nothing, Mode::Read, Mode::Write, Mode::WritePast, Mode::Fp32, Mode::Fp16, Mode::Bf16];
        for mode in all {
            let (number, width) = (format!("-DMODE={}", mode as u8), format!("-DWIDTH={width}"));
            let flags = ["-O3", "-march=native", "-fvisibility=hidden", "-Wl,-z,now", &number, &width];
            match compiler.compile_trusted("calibrate", SOURCE, &flags) {
                Ok(image) => images.push((mode, image)),
                // What this compiler cannot say, no kernel can use either.
                Err(CompileError::Compiler { .. }) if matches!(mode, Mode::Fp16 | Mode::Bf16) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The chains settle at one half, far from overflow and from subnormals; sums of products grow by little.
        let (halves, small) = ([0.5, 0.25], [0.0078125, 0.0078125]);
        let single = fill(&mut arena, width, halves, |v| v.to_le_bytes().to_vec())?;
        let half = fill(&mut arena, width, halves, |v| f16::from_f32(v).to_le_bytes().to_vec())?;
        let brain = fill(&mut arena, width, small, |v| bf16::from_f32(v).to_le_bytes().to_vec())?;
        let host = Host::start(&images.iter().map(|(_, image)| image).collect::<Vec<_>>(), &arena, limits)?;
        let modes = images.iter().map(|(mode, _)| *mode).collect();
        Ok(Self { host, modes, factors: [single, half, brain], width, _arena: arena })
    }

    fn launch(&mut self, mode: Mode, x: &Span, y: &Span, n: i64) -> Result<f64, Fault> {
        let image = self.modes.iter().position(|own| *own == mode).unwrap_or_default();
        let ints = vec![n, i64::from(self.host.threads())];
        let call = Call { image, pointers: vec![Some(*x), Some(*y)], ints, floats: Vec::new(), zeroed: Vec::new() };
        Ok(self.host.launch(&call, TIMEOUT)?.as_secs_f64())
    }

    /// The least seconds of a launch of each mode: memory over `x` and `y`, arithmetic over [`TURNS`].
    fn best(&mut self, x: &Span, y: &Span) -> Result<BTreeMap<Mode, f64>, Fault> {
        let mut best = BTreeMap::new();
        let start = Instant::now();
        for round in 0..ROUNDS {
            if round >= LEAST_ROUNDS && start.elapsed() > ENOUGH {
                break;
            }
            for mode in self.modes.clone() {
                let (x, n) = match mode {
                    Mode::Fp32 => (self.factors[0], TURNS),
                    Mode::Fp16 => (self.factors[1], TURNS),
                    Mode::Bf16 => (self.factors[2], TURNS),
                    _ => (*x, x.bytes as i64),
                };
                for _ in 0..TRIALS {
                    let seconds = self.launch(mode, &x, y, n)?;
                    let least = best.entry(mode).or_insert(f64::INFINITY);
                    *least = seconds.min(*least);
                }
            }
        }
        Ok(best)
    }

    fn launch_us(&mut self, x: &Span, y: &Span) -> Result<f64, Fault> {
        let mut times = (0..401).map(|_| self.launch(Mode::Nothing, x, y, 0)).collect::<Result<Vec<f64>, _>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2] * 1e6)
    }

    /// Multiply-adds, counted as two, of one launch of an arithmetic mode.
    fn operations(&self, mode: Mode) -> f64 {
        let element = if mode == Mode::Fp32 { 4 } else { 2 };
        let lanes = f64::from(self.width) / f64::from(element);
        2.0 * lanes * CHAINS * TURNS as f64 * f64::from(self.host.threads())
    }
}

/// Two vectors of `width` bytes, one value each.
fn fill(arena: &mut Arena, width: u32, values: [f32; 2], encode: impl Fn(f32) -> Vec<u8>) -> Result<Span, ArenaError> {
    let width = width as usize;
    let span = arena.place(Region::Inputs, 2 * width)?;
    for (half, value) in arena.bytes_mut(&span).chunks_exact_mut(width).zip(values) {
        let element = encode(value);
        half.chunks_exact_mut(element.len()).for_each(|slot| slot.copy_from_slice(&element));
    }
    Ok(span)
}

/// The card of this processor: from `folder` where it was measured before, unless `again`; else measured now and stored.
///
/// # Errors
/// [`CalibrateError`]. A folder that cannot be written is none: it is then measured each time.
pub fn device_card(
    folder: &std::path::Path,
    compiler: &Compiler,
    limits: &Limits,
    again: bool,
) -> Result<DeviceCard, CalibrateError> {
    if !again && let Some(card) = crate::device::cached_card(folder, &detect_cpu().key) {
        return Ok(card);
    }
    let card = calibrate(compiler, limits)?;
    let _ = crate::device::store_card(folder, &card);
    Ok(card)
}
