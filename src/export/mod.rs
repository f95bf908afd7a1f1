//! What was won, as a Python package that torch.compile uses by itself: no compiler, no dependency but torch.
//!
//! [`package`] writes it: the very images that the judge has judged, the Python that finds their places (the same text that cut the model's
//! graphs), what they were judged for, and a receipt for each. [`verify`] asks a fresh process whether the model says the same with it,
//! [`diagnose`] which kernel is to blame where it does not.

mod card;
mod code;
mod diagnose;
mod receipt;
mod unjudged;
mod verify;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::kernel::KernelError;
use crate::op::OpError;
use crate::torch::model::{Kind, Place};

pub use code::Maker;
pub use diagnose::{Diagnosis, LEAST_SESSIONS, Suspect, Trial, diagnose};
pub use receipt::{Receipt, altered, receipts};
pub use unjudged::capability;
pub use verify::{Asked, Verified, verify};
pub use write::{Chosen, Wanted, package};

/// Where packages for processors and for GPUs have their files, as Hugging Face's kernel packages name it.
const VARIANTS: [&str; 2] = ["build/torch-cpu", "build/torch-cuda"];

/// What was judged, in the package.
pub const PLANS: &str = "plans.json";

/// Why there is no package, or why one cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Nothing to export.
    #[error("{0}")]
    Nothing(String),
    /// The folder is none that may be written to.
    #[error("{}: {why}", place.display())]
    Place {
        /// The folder.
        place: PathBuf,
        /// Why.
        why: String,
    },
    /// A kernel that does not compile any more.
    #[error("{name}: {why}")]
    Compile {
        /// The kernel.
        name: String,
        /// Why.
        why: String,
    },
    /// A kernel file that cannot be read, or not at its shape.
    #[error("{name}: {source}")]
    Kernel {
        /// The kernel.
        name: String,
        /// Why.
        source: KernelError,
    },
    /// An operation's files.
    #[error(transparent)]
    Op(#[from] OpError),
    /// A file.
    #[error("{}: {source}", place.display())]
    Io {
        /// The file.
        place: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

impl ExportError {
    pub(crate) fn io(place: &Path) -> impl FnOnce(io::Error) -> Self + use<'_> {
        move |source| Self::Io { place: place.to_owned(), source }
    }
}

/// `plans.json`: everything that the package's Python needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plans {
    /// The package's name.
    pub name: String,
    /// Of its kernels' keys and images.
    pub version: String,
    /// PyTorch's version when the model was captured.
    pub torch: String,
    /// The device's name.
    pub device: String,
    /// The function that gave the model, where one was named; `verify` asks it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// PyTorch's name of the type that the model was made, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// What it is.
    #[serde(flatten)]
    pub platform: Platform,
    /// Whether a graph in which a kernel is placed goes without Inductor's own patterns, with which the pass was seen to take longer.
    #[serde(default)]
    pub without_lowerings: bool,
    /// The kernels.
    pub kernels: Vec<Plan>,
}

/// What a package's kernels run on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Platform {
    /// A processor.
    Cpu {
        /// What it must be able to do to run the images.
        cpu_flags: Vec<String>,
        /// What brings `ws_parallel`.
        threads: File,
    },
    /// A GPU of the name that the plans have.
    Cuda {
        /// Its compute capability, 90 for 9.0.
        capability: u32,
    },
}

impl Platform {
    /// PyTorch's name of a device of this kind.
    #[must_use]
    pub const fn torch_device(&self) -> &'static str {
        match self {
            Self::Cpu { .. } => "cpu",
            Self::Cuda { .. } => "cuda:0",
        }
    }
}

/// A file of the package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// Below the variant's folder.
    pub path: String,
    /// In hex.
    pub sha256: String,
}

/// A kernel and what it was judged for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The operation's name.
    pub name: String,
    /// The region's hash.
    pub key: String,
    /// The hash that a graph has there before Inductor gives its tensors the strides that were judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<String>,
    /// The same without sizes.
    pub family: String,
    /// What the region is made of.
    pub kind: Kind,
    /// What it reads.
    pub inputs: Vec<Place>,
    /// What it writes.
    pub outputs: Vec<Place>,
    /// Buffers that it needs besides.
    pub scratch: Vec<Buffer>,
    /// What runs.
    #[serde(flatten)]
    pub code: Code,
    /// The same for other architectures, which nobody has judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unjudged: Vec<Unjudged>,
    /// Its text.
    pub source: File,
    /// What the user has over it, as it was measured.
    pub speedup: f64,
    /// Against what.
    pub against: Option<String>,
}

/// A buffer that a kernel needs besides its tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Its length.
    pub bytes: usize,
    /// Whether it is to be zero.
    pub zero: bool,
    /// Whether the kernel leaves it so.
    #[serde(default)]
    pub kept: bool,
}

/// What of a kernel runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Code {
    /// A shared object, on a processor.
    Image {
        /// It.
        image: File,
    },
    /// Kernels of a GPU, in their order.
    Launches {
        /// How each is started.
        launches: Vec<Launch>,
    },
}

impl Code {
    /// Its files.
    #[must_use]
    pub fn files(&self) -> Vec<&File> {
        match self {
            Self::Image { image } => vec![image],
            Self::Launches { launches } => launches.iter().map(|launch| &launch.cubin).collect(),
        }
    }

    /// The digest of its file; where there are several, of their digests, a line each.
    #[must_use]
    pub fn digest(&self) -> String {
        match self.files()[..] {
            [one] => one.sha256.clone(),
            ref many => {
                let lines: String = many.iter().map(|file| format!("{}\n", file.sha256)).collect();
                write::sha256(lines.as_bytes())
            }
        }
    }
}

/// A kernel for an architecture that it was not judged on, or on another device of the one that it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unjudged {
    /// Compute capability, 80 for 8.0.
    pub capability: u32,
    /// What it was compiled for: `sm_80`.
    pub arch: String,
    /// How each is started; none where it cannot be.
    pub launches: Vec<Launch>,
    /// Why there is none.
    pub why_not: Option<String>,
}

impl Unjudged {
    /// Its digest, as [`Code::digest`] makes it; none where there is no file.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        let launches = || Code::Launches { launches: self.launches.clone() };
        self.why_not.is_none().then(|| launches().digest())
    }
}

/// The start of one kernel on a GPU, as it was judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Its code.
    pub cubin: File,
    /// Its name there.
    pub function: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, bytes.
    pub shared: u32,
    /// Blocks of a cluster in x, y, z.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// Whether it may begin before the launch in front of it has ended.
    pub pdl: bool,
    /// Its arguments in order.
    pub args: Vec<Argument>,
}

/// An argument of a kernel on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Argument {
    /// Address of an input, an output or scratch, counted in this order; NULL where there is none.
    Buffer(Option<usize>),
    /// A 64-bit integer.
    Long(i64),
    /// A 32-bit float.
    Float(f32),
    /// A tensor map over a buffer.
    Map(Map),
}

/// What `cuTensorMapEncodeTiled` is given; numbers of the driver's enumerations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// The buffer.
    pub buffer: usize,
    /// `CUtensorMapDataType`.
    pub element: u32,
    /// Elements in each dimension, the contiguous one first.
    pub dims: Vec<u64>,
    /// Bytes between neighbours in each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of the box.
    pub extent: Vec<u32>,
    /// Steps within the box.
    pub steps: Vec<u32>,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u32,
}

/// The folder of a package's files.
fn variant_of(package: &Path) -> Option<PathBuf> {
    VARIANTS.iter().map(|variant| package.join(variant)).find(|folder| folder.join(PLANS).is_file())
}

/// What is in a package.
///
/// # Errors
/// It is none, or its plans cannot be read.
pub fn plans(package: &Path) -> Result<Plans, ExportError> {
    let none = || ExportError::Place { place: package.to_owned(), why: "this is no exported package".into() };
    let place = variant_of(package).ok_or_else(none)?.join(PLANS);
    let text = std::fs::read_to_string(&place).map_err(ExportError::io(&place))?;
    serde_json::from_str(&text).map_err(|error| ExportError::Place { place, why: error.to_string() })
}

/// Whether a folder is a package that was exported.
#[must_use]
pub fn is_package(folder: &Path) -> bool {
    variant_of(folder).is_some()
}
