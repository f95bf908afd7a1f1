//! What a host can be asked to launch.

use std::rc::Rc;

use super::super::compile::Compiled;
use super::super::judge::Library;
use crate::backend::Step;
use crate::kernel::{Facts, KernelFile, Resolution};
use crate::op::Operation;

/// Code for a device, with what is needed to launch it; cheap to clone.
#[derive(Debug, Clone)]
pub enum Image {
    /// A kernel file at one set of constants.
    Kernel(Rc<KernelImage>),
    /// What the user has today.
    Library(Library),
    /// A step of the forward pass.
    Glue(Step, Rc<[u8]>),
}

/// A kernel file at one set of constants.
#[derive(Debug)]
pub struct KernelImage {
    /// What the compiler made of it.
    pub compiled: Compiled,
    /// The operation it computes.
    pub op: Operation,
    /// The file.
    pub kernel: KernelFile,
    /// Its constants.
    pub resolution: Resolution,
    /// Facts of the device, for its launch plan.
    pub facts: Facts,
}

impl Image {
    /// What the compiler made of `kernel` at `resolution`.
    #[must_use]
    pub fn of_kernel(
        op: &Operation,
        kernel: &KernelFile,
        resolution: &Resolution,
        facts: &Facts,
        compiled: Compiled,
    ) -> Self {
        Self::Kernel(Rc::new(KernelImage {
            compiled,
            op: op.clone(),
            kernel: kernel.clone(),
            resolution: resolution.clone(),
            facts: facts.clone(),
        }))
    }
}

impl crate::backend::Image for Image {
    fn log(&self) -> &str {
        match self {
            Self::Kernel(image) => &image.compiled.log,
            Self::Library(_) | Self::Glue(..) => "",
        }
    }
}
