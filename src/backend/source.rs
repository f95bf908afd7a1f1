//! What is compiled, and in which order it comes back.

use crate::kernel::{KernelFile, Resolution};

/// A kernel file and what it is to be compiled for.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file.
    pub kernel: &'a KernelFile,
    /// The constants to compile it with, a compilation each.
    pub resolutions: &'a [Resolution],
    /// How many of them, the first, are wanted before everything else.
    pub urgent: usize,
}

impl<'a> Source<'a> {
    /// A file of which nothing is wanted before the rest.
    #[must_use]
    pub const fn new(kernel: &'a KernelFile, resolutions: &'a [Resolution]) -> Self {
        Self { kernel, resolutions, urgent: 0 }
    }
}

/// The index of a file, that of a resolution of it, and the image made of them.
pub type Ready<I> = (usize, usize, I);

/// Images that follow each other, file by file.
pub(super) fn by_file<I>(files: &[Source<'_>], images: Vec<I>) -> Vec<Vec<I>> {
    let mut images = images.into_iter();
    files.iter().map(|file| images.by_ref().take(file.resolutions.len()).collect()).collect()
}
