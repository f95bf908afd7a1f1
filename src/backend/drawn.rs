//! Inputs that somebody else has drawn, in memory that travels as a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Values of inputs, each at its place in a file of memory.
#[derive(Debug)]
pub struct FileValues {
    file: File,
    /// First byte of each input in the operation's order; `None` of one that is drawn here.
    places: Vec<Option<usize>>,
}

impl FileValues {
    /// Those in `file`.
    #[must_use]
    pub const fn new(file: File, places: Vec<Option<usize>>) -> Self {
        Self { file, places }
    }

    /// The values of input number `index`, as they were drawn; nothing where there are none of it.
    ///
    /// # Errors
    /// A file that is too short.
    pub fn read(&self, index: usize, out: &mut [u8]) -> io::Result<()> {
        match self.places.get(index).copied().flatten() {
            Some(at) => self.file.read_exact_at(out, at as u64),
            None => Ok(()),
        }
    }
}
