//! Large files that are read where they lie.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

/// A file's content, read as it is looked at.
#[derive(Debug)]
pub struct MappedFile {
    /// None where the file is empty, which cannot be mapped.
    map: Option<Mmap>,
}

impl MappedFile {
    /// Maps a file for reading.
    ///
    /// # Errors
    /// The system's, and what is no regular file: opening a pipe would never end.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { map: None });
        }
        // SAFETY: what is read is checked as bytes of any value, and nothing is held as another type, so a file that another
        // process writes to meanwhile gives other numbers and no worse. One that is cut short ends this process by SIGBUS when
        // the missing part is read; the worker is a process of its own for such cases, and whoever asked it is told.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { map: Some(map) })
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_read_and_what_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        assert_eq!(&*MappedFile::open(&path).unwrap(), b"content");
        std::fs::write(&path, "").unwrap();
        assert!(MappedFile::open(&path).unwrap().is_empty());
        assert!(MappedFile::open(dir.path()).unwrap_err().to_string().contains("not a regular file"));
        assert!(MappedFile::open(&dir.path().join("nowhere")).is_err());
    }
}
