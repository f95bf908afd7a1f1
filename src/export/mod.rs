//! What was won, as a Python package that torch.compile uses by itself: no compiler, no dependency but torch.
//!
//! [`package`] writes it: the very images that the judge has judged, the Python that finds their places (the same text that cut the model's
//! graphs), what they were judged for, and a receipt for each. [`verify`] asks a fresh process whether the model says the same with it.

mod card;
mod receipt;
mod verify;
mod write;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::cpu::CompileError;
use crate::kernel::KernelError;
use crate::op::OpError;
use crate::torch::model::{Kind, Place};

pub use receipt::{Receipt, altered, receipts};
pub use verify::{Asked, Verified, verify};
pub use write::{Chosen, Wanted, package};

/// Where a package for processors has its files, as Hugging Face's kernel packages name it.
pub const VARIANT: &str = "build/torch-cpu";

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
    #[error("{name}: {source}")]
    Compile {
        /// The kernel.
        name: String,
        /// Why.
        source: CompileError,
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
    /// The processor's name.
    pub device: String,
    /// What a processor must be able to do to run the images.
    pub cpu_flags: Vec<String>,
    /// What brings `ws_parallel`.
    pub threads: File,
    /// The kernels.
    pub kernels: Vec<Plan>,
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
    /// Its shared object.
    pub image: File,
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
}

/// What is in a package.
///
/// # Errors
/// It is none, or its plans cannot be read.
pub fn plans(package: &Path) -> Result<Plans, ExportError> {
    let place = package.join(VARIANT).join(PLANS);
    let text = std::fs::read_to_string(&place).map_err(ExportError::io(&place))?;
    serde_json::from_str(&text).map_err(|error| ExportError::Place { place, why: error.to_string() })
}

/// Whether a folder is a package that was exported.
#[must_use]
pub fn is_package(folder: &Path) -> bool {
    folder.join(VARIANT).join(PLANS).is_file()
}
