//! The processor as a [`Backend`](crate::backend::Backend).

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::arena::Arena;
use super::available::available_memory;
use super::compare::compare_with;
use super::compile::{CompileError, Compiler, Image, Unit};
use super::glue::glue;
use super::host::{Host, HostError, Limits};
use super::instruments::instruments;
use super::oracle::Oracle;
use crate::backend::bounds::compare_places;
use crate::backend::{
    Arena as _, BuildError, Call, CaseLimits, CaseMemory, Conditions, Device, Fault, Instrument, MemoryError, Oracles,
    Outside, Placing, Source, StartError, Step, Toolchain, by_file, calls_per_sample,
};
use crate::device::DeviceCard;
use crate::evaluation::ErrorStats;
use crate::kernel::{FrontMatter, KernelFile};
use crate::op::{Dtype, OpSource, Operation, Sample, Shape, Stored, TargetShape};

/// What a processor judges in a fraction of a second a case.
pub const CASE_LIMITS: CaseLimits = CaseLimits {
    // A multiply-add of an oracle costs 7 to 9 ns on two cores.
    macs: 1 << 26,
    macs_twice: u64::MAX,
    // What two cores draw, compute and compare in that time.
    elements: 1 << 23,
    hostile_share: NonZeroU64::new(16).unwrap(),
    // Some milliseconds: less than most timed samples of what has rows so dear.
    sample_macs: 1 << 22,
    timed_bytes: 1 << 30,
    repeats: 3,
    again: 24,
    least_flops: 50_000_000,
    threads_vary: true,
};

/// A sample lasts at least this long where one launch is shorter: launches over rotated buffers, back to back, so that
/// the hand-shake (some µs) stays below the margin.
const SAMPLE_US: f64 = 500.0;

/// This machine's processor.
#[derive(Debug)]
pub struct Cpu {
    compiler: Compiler,
    card: DeviceCard,
    limits: Limits,
}

impl Cpu {
    /// The processor of `card`; `limits` are those of the processes that run kernels.
    #[must_use]
    pub const fn new(compiler: Compiler, card: DeviceCard, limits: Limits) -> Self {
        Self { compiler, card, limits }
    }
}

impl Device for Cpu {
    type Image = Image;
    type Arena = Arena;
    type Host = Host;

    fn card(&self) -> &DeviceCard {
        &self.card
    }

    fn case_limits(&self) -> CaseLimits {
        CASE_LIMITS
    }

    fn free_memory(&self) -> Option<u64> {
        available_memory()
    }

    fn arena(&self, inputs: usize, outputs: usize, placing: Placing) -> Result<Arena, MemoryError> {
        Ok(Arena::placed(inputs, outputs, placing)?)
    }

    fn host(&self, images: &[&Image], arena: &Arena, conditions: &Conditions) -> Result<Host, StartError> {
        let threads = conditions.threads.unwrap_or(self.limits.threads);
        Ok(Host::start(images, arena, &Limits { threads, ..self.limits.clone() })?)
    }

    fn calls_per_sample(&self, incumbent_us: f64, copies: usize) -> usize {
        // The other half is for the other side of the pair.
        calls_per_sample(incumbent_us, SAMPLE_US, (copies / 2) as u32) as usize
    }

    fn hosts_are_processes(&self) -> bool {
        true
    }

    fn is_lost(&self) -> bool {
        false
    }
}

impl Toolchain for Cpu {
    fn accepts(&self, front: &FrontMatter) -> Result<(), String> {
        front.check_backend("cpu").map_err(|error| error.to_string())?;
        let fits = |arch: &String| arch == "native" || arch == std::env::consts::ARCH;
        if front.arch.is_empty() || front.arch.iter().any(fits) {
            return Ok(());
        }
        let wanted = front.arch.join(", ");
        Err(format!("it is for {wanted}; this device is {} ({})", self.card.name, std::env::consts::ARCH))
    }

    fn compile(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
    ) -> Result<Vec<Vec<Image>>, BuildError> {
        for Source { kernel, .. } in files {
            kernel.check_against(op).map_err(|error| BuildError::Kernel(error.to_string()))?;
        }
        let units: Vec<Unit<'_>> = files
            .iter()
            .flat_map(|Source { kernel, resolutions, .. }| {
                resolutions.iter().map(|resolution| Unit { op, kernel, resolution })
            })
            .collect();
        let next = Mutex::new(0..units.len());
        // What makes one compilation run into its limits makes all of them do so.
        let failed = AtomicBool::new(false);
        let done: Mutex<Vec<(usize, Result<Image, CompileError>)>> = Mutex::new(Vec::new());
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while !failed.load(Ordering::Relaxed) && !cancelled.load(Ordering::Relaxed) {
                        let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                        let Some(index) = taken else { return };
                        let result = self.compiler.compile(&units[index]);
                        failed.fetch_or(result.is_err(), Ordering::Relaxed);
                        done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                    }
                });
            }
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(index, _)| *index);
        if cancelled.load(Ordering::Relaxed) {
            return Err(BuildError::Cancelled);
        }
        let images = done.into_iter().map(|(_, result)| result).collect::<Result<Vec<_>, _>>()?;
        Ok(by_file(files, images))
    }

    fn glue(&self, step: Step, dtype: Dtype) -> Result<Image, BuildError> {
        Ok(glue(&self.compiler, step, dtype)?)
    }

    fn library(&self, _: &Operation, _: &Shape, _: Dtype) -> Option<(Image, &'static str)> {
        None
    }

    fn instruments(
        &self,
        source: &OpSource,
        kernel: &KernelFile,
        target: &[TargetShape],
        seed: u64,
    ) -> Vec<Instrument> {
        instruments(&self.compiler, &self.card.facts, &source.operation(), (kernel, target), seed)
    }
}

impl Oracles for Cpu {
    type Oracle = Oracle;

    fn oracle(&self, op: &Operation) -> Result<Oracle, String> {
        let build = |name: &str, text: &str, flags: &[&str]| {
            self.compiler.compile_trusted(name, text, flags).map(|image| image.path).map_err(|error| error.to_string())
        };
        Oracle::compile(&build, op).map_err(|error| error.to_string())
    }

    fn compare(
        &self,
        oracle: &Oracle,
        memory: &CaseMemory,
        arena: &mut Arena,
        copy: usize,
        taken: &Vec<Vec<u8>>,
        seed: u64,
    ) -> Result<ErrorStats, String> {
        let case = memory.case();
        let expected = oracle.expected(case, &arena.inputs(memory, copy), seed).map_err(|error| error.to_string())?;
        let views: Vec<&[u8]> = taken.iter().map(Vec::as_slice).collect();
        compare_with(memory.operation(), (case, memory.sums()), &views, &expected).map_err(|error| error.to_string())
    }

    fn compare_some(
        &self,
        oracle: &Oracle,
        memory: &CaseMemory,
        arena: &mut Arena,
        copy: usize,
        sample: &Sample,
    ) -> Result<ErrorStats, String> {
        let (op, case) = (memory.operation(), memory.case());
        let expected = oracle
            .expected_some(case, &arena.inputs(memory, copy), &arena.outputs(memory, copy), sample)
            .map_err(|error| error.to_string())?;
        let outputs = memory.outputs(copy);
        let mut read =
            |output: usize, stored: Stored, places: &[usize]| arena.gather(&outputs[output], stored.bytes(), places);
        compare_places(op, (case, memory.sums()), &expected, &mut read).map_err(|error| error.to_string())
    }
}

impl crate::backend::Image for Image {
    fn log(&self) -> &str {
        &self.log
    }
}

impl crate::backend::Host for Host {
    type Arena = Arena;
    /// Each output's bytes.
    type Taken = Vec<Vec<u8>>;

    fn launch(&mut self, call: &Call, limit: Duration) -> Result<Duration, Fault> {
        self.launch(call, limit)
    }

    fn run(&mut self, calls: &[Call], limit: Duration) -> Result<Duration, Fault> {
        self.run(calls, limit)
    }

    fn idle_check(&self) -> Result<(), Fault> {
        self.idle_check()
    }

    fn outside(&self) -> Option<Outside> {
        self.outside()
    }

    fn beside(&self) -> Duration {
        self.beside()
    }

    fn bytes(taken: &Vec<Vec<u8>>) -> Option<&[Vec<u8>]> {
        Some(taken)
    }

    fn stands(taken: &Vec<Vec<u8>>, memory: &CaseMemory, arena: &mut Arena, copy: usize) -> bool {
        arena.outputs(memory, copy).into_iter().eq(taken.iter().map(Vec::as_slice))
    }

    fn take(&self, memory: &CaseMemory, arena: &mut Arena, copy: usize) -> Vec<Vec<u8>> {
        self.while_stopped(|| arena.outputs(memory, copy).into_iter().map(<[u8]>::to_vec).collect())
    }
}

impl From<CompileError> for BuildError {
    /// A text that is refused or does not compile is the candidate's doing; a missing compiler is not.
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::NoCompiler { .. } | CompileError::Io { .. } => Self::Machine(error.to_string()),
            _ => Self::Kernel(error.to_string()),
        }
    }
}

impl From<HostError> for StartError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::System(_) | HostError::Fault(Fault::Host(_)) => Self::Machine(error.to_string()),
            HostError::Child(what) => Self::Kernel(what),
            HostError::Fault(fault) => Self::Kernel(fault.to_string()),
        }
    }
}
