//! What makes code of kernel files, and what can be had beside it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Device, Ready, Source, Step};
use crate::kernel::{FrontMatter, KernelFile, Resolution};
use crate::op::{Dtype, OpSource, Operation, Shape, TargetShape};

/// The compilers of a device's languages, a vendor's library, and programs that watch a kernel run.
pub trait Toolchain: Device {
    /// Whether a kernel file is for this device.
    ///
    /// # Errors
    /// A sentence for the verdict.
    fn accepts(&self, front: &FrontMatter) -> Result<(), String>;

    /// Compiles kernel files of one operation, all at once as far as the machine allows; images are in the order of files and
    /// resolutions. Ends with the first that fails, or soon after `cancelled` is set.
    ///
    /// # Errors
    /// [`BuildError`].
    fn compile(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
    ) -> Result<Vec<Vec<Self::Image>>, BuildError>;

    /// The same, and tells `ready` of images while others are still being compiled: each with the index of its file and that of
    /// its resolution, and of none every few milliseconds while nothing else comes, which is time to do something else. A backend whose
    /// compiler needs the cores that checking needs never calls it.
    ///
    /// # Errors
    /// The same.
    fn compile_in_turn(
        &self,
        op: &Operation,
        files: &[Source<'_>],
        cancelled: &AtomicBool,
        _ready: &mut dyn FnMut(Vec<Ready<Self::Image>>),
    ) -> Result<Vec<Vec<Self::Image>>, BuildError> {
        self.compile(op, files, cancelled)
    }

    /// A digest of all that the compiler is given of `kernel` at `resolution`: where two are equal, so is the code, and launches alone differ.
    /// `None` where each set of constants is compiled for itself.
    fn compile_key(&self, _op: &Operation, _kernel: &KernelFile, _resolution: &Resolution) -> Option<String> {
        None
    }

    /// The image of `kernel` at `resolution`, of code that was compiled for a resolution with the same [`Toolchain::compile_key`]; `None` where
    /// that code must not be launched so.
    fn relaunched(
        &self,
        _op: &Operation,
        _kernel: &KernelFile,
        _resolution: &Resolution,
        _code: &Self::Image,
    ) -> Option<Self::Image> {
        None
    }

    /// A step of the forward pass that is no operation, compiled.
    ///
    /// # Errors
    /// [`BuildError`].
    fn glue(&self, step: Step, dtype: Dtype) -> Result<Self::Image, BuildError>;

    /// What the user has today for `op` where that is a library rather than the starter (cuBLAS), with its name; it takes
    /// the calls a kernel takes.
    fn library(&self, op: &Operation, shape: &Shape, dtype: Dtype) -> Option<(Self::Image, &'static str)>;

    /// Sanitizers and the like that can look at a kernel in a process of their own, or why one is missing here.
    fn instruments(
        &self,
        _source: &OpSource,
        _kernel: &KernelFile,
        _target: &[TargetShape],
        _seed: u64,
    ) -> Vec<Instrument> {
        Vec::new()
    }
}

/// Looks at a kernel for at most a time: what was found, in a sentence, if anything.
///
/// It fails, with a sentence, where it could not look.
pub type Look = Box<dyn FnOnce(Duration) -> Result<Option<String>, String> + Send>;

/// A program that watches a kernel run.
pub struct Instrument {
    /// Its name.
    pub name: &'static str,
    /// How it looks; why it cannot, where it is missing.
    pub look: Result<Look, String>,
}

/// Compiled code.
pub trait Image: Clone + std::fmt::Debug {
    /// What the compiler remarked: data, cut and without paths of the machine. Resources of each kernel come first where the
    /// compiler reports them.
    fn log(&self) -> &str;
    /// Bytes of each buffer that the compiler wants beside the file's scratch, behind which they come, for these values of the symbols.
    fn own_scratch(&self, _ints: &[i64]) -> Vec<usize> {
        Vec::new()
    }
}

/// Why there is no image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The text is refused or does not compile.
    #[error("{0}")]
    Kernel(String),
    /// The machine has no compiler, or it failed by itself.
    #[error("{0}")]
    Machine(String),
    /// Nobody wants it any more.
    #[error("cancelled")]
    Cancelled,
}
