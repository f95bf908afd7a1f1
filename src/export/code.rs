//! What of a kernel runs, made as the judge made it: a shared object for a processor, cubins and their launches for a GPU.

use std::slice;
use std::sync::atomic::AtomicBool;

use super::unjudged::unjudged;
use super::write::{Files, sha256};
use super::{Argument, Code, ExportError, Launch, Map, Platform, Unjudged, VARIANTS};
use crate::backend::cpu::{self, Unit};
use crate::backend::cuda::{self, KernelImage, map_spec};
use crate::kernel::{self, Facts, KernelFile, Language, MapSource, PlannedLaunch, Resolution};
use crate::op::{Operation, Shape};

/// `ws_parallel`, of every package for processors.
const THREADS: &str = include_str!("threads.c");

/// How `ws_parallel` is built: for any processor of the kind, since it computes nothing.
const THREAD_FLAGS: [&str; 4] = ["-O2", "-fvisibility=hidden", "-pthread", "-Wl,-z,noexecstack"];

/// Instruction sets that a kernel for the machine at hand may use, by how the system's names for them begin.
const SETS: [&str; 19] = [
    "sse", "ssse", "avx", "fma", "f16c", "bmi", "abm", "movbe", "adx", "popcnt", "gfni", "vaes", "pclmul", "vpclmul",
    "amx", "sha_ni", "asimd", "sve", "fphp",
];

/// The compiler of the kind of device that a run was on.
#[derive(Debug, Clone, Copy)]
pub enum Maker<'a> {
    /// Of a processor.
    Cpu {
        /// It.
        compiler: &'a cpu::Compiler,
        /// What the processor can do, as the system names it.
        flags: &'a [String],
    },
    /// Of a GPU.
    Cuda {
        /// It.
        compiler: &'a cuda::Compiler,
        /// The GPU's compute capability, 90 for 9.0.
        capability: u32,
        /// Other architectures that it compiles for, which nobody has judged.
        others: &'a [u32],
    },
}

/// A kernel at the sizes that it was judged at.
pub(super) struct Making<'a> {
    pub(super) name: &'a str,
    pub(super) op: &'a Operation,
    pub(super) file: &'a KernelFile,
    pub(super) shape: &'a Shape,
    pub(super) resolution: &'a Resolution,
    pub(super) facts: &'a Facts,
}

impl Making<'_> {
    fn fails(&self) -> impl Fn(String) -> ExportError + use<> {
        let name = self.name.to_owned();
        move |why| ExportError::Compile { name: name.clone(), why }
    }
}

impl Maker<'_> {
    /// The compiler, as it names itself.
    pub(super) fn version(&self, file: &KernelFile) -> String {
        match self {
            Self::Cpu { compiler, .. } => compiler.version().to_owned(),
            Self::Cuda { .. } if file.language == Language::Triton => "Triton".into(),
            Self::Cuda { compiler, .. } => {
                let (major, minor) = compiler.version();
                format!("NVRTC {major}.{minor}")
            }
        }
    }

    /// The folder of a package's files.
    pub(super) const fn variant(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => VARIANTS[0],
            Self::Cuda { .. } => VARIANTS[1],
        }
    }

    /// What every kernel of a package needs.
    pub(super) fn platform(&self, files: &mut Files<'_>) -> Result<Platform, ExportError> {
        match self {
            Self::Cpu { compiler, flags } => {
                let threads = compiler
                    .compile_trusted("ws_parallel", THREADS, &THREAD_FLAGS)
                    .map_err(|error| ExportError::Compile { name: "ws_parallel".into(), why: error.to_string() })?;
                let bytes = std::fs::read(&threads.path).map_err(ExportError::io(&threads.path))?;
                let threads = files.write(&format!("cpu/{}.so", sha256(&bytes)), &bytes)?;
                let known = |flag: &&String| SETS.iter().any(|set| flag.starts_with(set));
                Ok(Platform::Cpu { cpu_flags: flags.iter().filter(known).cloned().collect(), threads })
            }
            Self::Cuda { capability, .. } => Ok(Platform::Cuda { capability: *capability }),
        }
    }

    /// Compiles a kernel as it was judged, and writes what runs of it; with it, bytes of each buffer that its compiler asks for beside
    /// the file's scratch.
    pub(super) fn code(&self, making: &Making<'_>, files: &mut Files<'_>) -> Result<(Code, Vec<usize>), ExportError> {
        match self {
            Self::Cpu { compiler, .. } => {
                let Making { op, file, resolution, .. } = *making;
                let image = compiler
                    .compile(&Unit { op, kernel: file, resolution })
                    .map_err(|error| making.fails()(error.to_string()))?;
                let bytes = std::fs::read(&image.path).map_err(ExportError::io(&image.path))?;
                let image = files.write(&format!("cpu/{}.so", sha256(&bytes)), &bytes)?;
                Ok((Code::Image { image }, Vec::new()))
            }
            Self::Cuda { compiler, capability, .. } => {
                let (launches, scratch) = launches(compiler, *capability, making, files)?;
                Ok((Code::Launches { launches }, scratch))
            }
        }
    }

    /// The same for the other architectures that were asked for; `scratch` is what [`Self::code`] gave.
    pub(super) fn unjudged(&self, making: &Making<'_>, scratch: &[usize], files: &mut Files<'_>) -> Vec<Unjudged> {
        match self {
            Self::Cpu { .. } => Vec::new(),
            Self::Cuda { compiler, others, .. } => unjudged(compiler, others, making, scratch, files),
        }
    }
}

/// Compiles a kernel for an architecture and writes its cubins; with its launches, bytes that its code asks for beside the file's scratch.
pub(super) fn launches(
    compiler: &cuda::Compiler,
    capability: u32,
    making: &Making<'_>,
    files: &mut Files<'_>,
) -> Result<(Vec<Launch>, Vec<usize>), ExportError> {
    let Making { op, file, shape, resolution, facts, .. } = *making;
    let never = AtomicBool::new(false);
    let compiled = compiler
        .candidate(op, file, slice::from_ref(resolution), capability, facts, &never)
        .map_err(|error| making.fails()(error.to_string()))?;
    let compiled = compiled.into_iter().next();
    let image = KernelImage {
        compiled: compiled.ok_or_else(|| making.fails()("nothing was compiled".into()))?,
        op: op.clone(),
        kernel: file.clone(),
        resolution: resolution.clone(),
        facts: facts.clone(),
    };
    let (ints, floats) = (op.ints(shape)?, op.scalars(shape)?);
    let planned = image.launches(&ints).map_err(|error| making.fails()(error.to_string()))?;
    let launch = |planned: PlannedLaunch| -> Result<Launch, ExportError> {
        let missing = || making.fails()(format!("`{}` was not compiled", planned.kernel));
        let (cubin, function) = match image.compiled.jit.get(&planned.kernel) {
            Some(code) => (&code.cubin, code.lowered.clone()),
            None => {
                let lowered = image.compiled.names.get(&planned.kernel).ok_or_else(missing)?;
                (&image.compiled.cubin, lowered.clone())
            }
        };
        let cubin = files.write(&format!("cuda/{}.cubin", sha256(cubin)), cubin)?;
        let args = planned.args.iter().map(|one| argument(one, &image, &ints, &floats));
        let args = args.collect::<Option<Vec<_>>>();
        let PlannedLaunch { grid, block, shared, cluster, cooperative, pdl, .. } = planned;
        let args = args.ok_or_else(|| making.fails()("its plan gives what the operation does not have".into()))?;
        Ok(Launch { cubin, function, grid, block, shared, cluster, cooperative, pdl, args })
    };
    let launches = planned.into_iter().map(launch).collect::<Result<_, _>>()?;
    Ok((launches, image.own_scratch(&ints)))
}

/// An argument with the values that it has at these sizes; none where the operation lacks it.
fn argument(given: &kernel::Argument, image: &KernelImage, ints: &[i64], floats: &[f32]) -> Option<Argument> {
    use kernel::Argument as Given;
    let tensors = image.op.tensors.len();
    Some(match given {
        Given::Tensor(index) => Argument::Buffer(Some(*index)),
        Given::Scratch(index) => Argument::Buffer(Some(tensors + index)),
        Given::Symbol(index) => Argument::Long(*ints.get(*index)?),
        Given::Scalar(index) => Argument::Float(*floats.get(*index)?),
        Given::Constant(value) => Argument::Long(*value),
        Given::Float(bits) => Argument::Float(f32::from_bits(*bits)),
        Given::TensorMap(map) => {
            let buffer = match map.source {
                MapSource::Tensor(index) => index,
                MapSource::Scratch(index) => tensors + index,
            };
            let spec = map_spec(map, 0, image.resolution.dtype);
            Argument::Map(Map {
                buffer,
                element: spec.element.number(),
                dims: spec.dims,
                strides: spec.strides,
                extent: spec.extent,
                steps: spec.steps,
                swizzle: spec.swizzle.number(),
            })
        }
    })
}
