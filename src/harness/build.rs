//! One compilation for each set of constants that the cases need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::cpu::{CompileError, Compiler, Image, Unit};
use crate::evaluation::{Stage, Verdict};
use crate::kernel::{Facts, KernelError, KernelFile, Resolution};
use crate::op::{Dtype, Operation, Shape};

use super::Failure;
use super::task::JudgeError;

/// The most compilations one kernel file may ask for: variants and specialisations multiply. Every operation that ships
/// has fewer cases than this, so that every symbol may be specialised.
pub const MAX_IMAGES: usize = 128;

/// Bytes of scratch for one shape, all buffers together, at the most: it is poisoned before every launch.
const MAX_SCRATCH: usize = 1 << 29;

/// A kernel file compiled for all cases of an evaluation.
pub struct Build {
    images: Vec<Image>,
    by_shape: BTreeMap<(Shape, Dtype), (usize, Resolution)>,
}

impl Build {
    /// Compiles `kernel` for every shape and dtype in `wanted`, each distinct set of constants once, on all cores. It ends
    /// with the first that fails, or when `cancelled` is set.
    ///
    /// # Errors
    /// A verdict where the kernel is at fault, else the machine's failure.
    pub fn new(
        compiler: &Compiler,
        op: &Operation,
        kernel: &KernelFile,
        wanted: &BTreeSet<(Shape, Dtype)>,
        facts: &Facts,
        cancelled: &AtomicBool,
    ) -> Result<Self, Failure> {
        let mut distinct: Vec<Resolution> = Vec::new();
        let mut by_shape = BTreeMap::new();
        for (shape, dtype) in wanted {
            let resolution = kernel.resolve(shape, *dtype, facts).map_err(refuse)?;
            if scratch_bytes(kernel, &resolution).is_none_or(|bytes| bytes > MAX_SCRATCH) {
                let why = format!("at {shape} {dtype} its scratch is larger than {} MiB", MAX_SCRATCH >> 20);
                return Err(Failure::Verdict(Verdict::Error { stage: Stage::Compile, why }));
            }
            // Scratch sizes differ by shape without changing the code.
            let code = Resolution { scratch_elements: Vec::new(), ..resolution.clone() };
            let index = distinct.iter().position(|known| *known == code).unwrap_or_else(|| {
                distinct.push(code);
                distinct.len() - 1
            });
            by_shape.insert((shape.clone(), *dtype), (index, resolution));
        }
        if distinct.len() > MAX_IMAGES {
            let why = format!(
                "its variants and specialised symbols ask for {} compilations; at most {MAX_IMAGES} are made",
                distinct.len()
            );
            return Err(Failure::Verdict(Verdict::Error { stage: Stage::Compile, why }));
        }
        let images = compile_all(compiler, op, kernel, &distinct, cancelled)?;
        Ok(Self { images, by_shape })
    }

    /// All images, in the order that [`Build::image`] counts.
    #[must_use]
    pub fn images(&self) -> Vec<&Image> {
        self.images.iter().collect()
    }

    /// The image for a shape and dtype, and the constants it was made with.
    ///
    /// # Errors
    /// A shape that was not asked for in [`Build::new`]: the harness's own mistake.
    pub fn image(&self, shape: &Shape, dtype: Dtype) -> Result<(usize, &Resolution), JudgeError> {
        self.by_shape
            .get(&(shape.clone(), dtype))
            .map(|(index, resolution)| (*index, resolution))
            .ok_or_else(|| JudgeError::machine("build", format!("no image for {shape} {dtype}")))
    }

    /// What the compiler said, each remark once.
    #[must_use]
    pub fn log(&self) -> String {
        let mut lines: Vec<&str> = Vec::new();
        for line in self.images.iter().flat_map(|image| image.log.lines()) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.join("\n")
    }
}

/// Bytes of all scratch buffers; `None` beyond all numbers.
fn scratch_bytes(kernel: &KernelFile, resolution: &Resolution) -> Option<usize> {
    kernel.front.scratch.iter().zip(&resolution.scratch_elements).try_fold(0usize, |sum, (scratch, elements)| {
        sum.checked_add(elements.checked_mul(scratch.dtype.bytes(resolution.dtype))?)
    })
}

/// A kernel that cannot serve a shape it is asked for is rejected; one that contradicts itself is no kernel.
fn refuse(error: KernelError) -> Failure {
    let why = error.to_string();
    Failure::Verdict(match error {
        KernelError::OutsideDomain { .. } => Verdict::Reject { stage: Stage::Compile, why },
        _ => Verdict::Error { stage: Stage::Compile, why },
    })
}

fn compile_all(
    compiler: &Compiler,
    op: &Operation,
    kernel: &KernelFile,
    distinct: &[Resolution],
    cancelled: &AtomicBool,
) -> Result<Vec<Image>, Failure> {
    let next = Mutex::new(0..distinct.len());
    // What makes one compilation run into its limits makes all of them do so.
    let failed = AtomicBool::new(false);
    let done: Mutex<Vec<(usize, Result<Image, CompileError>)>> = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(distinct.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) && !cancelled.load(Ordering::Relaxed) {
                    let taken = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                    let Some(index) = taken else { return };
                    let unit = Unit { op, kernel, resolution: &distinct[index] };
                    let result = compiler.compile(&unit);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    if cancelled.load(Ordering::Relaxed) {
        return Err(JudgeError::Cancelled.into());
    }
    done.into_iter().map(|(_, result)| result.map_err(Failure::from)).collect()
}
