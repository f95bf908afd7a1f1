//! What is mapped into this process.

use std::io;
use std::ops::Range;

/// What was mapped when it was read.
#[derive(Debug)]
pub struct Maps(Vec<Mapping>);

/// A line of proc_pid_maps(5).
#[derive(Debug)]
struct Mapping {
    range: Range<usize>,
    writable: bool,
    executable: bool,
    name: String,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let (begin, end) = fields.next()?.split_once('-')?;
        let [begin, end] = [begin, end].map(|text| usize::from_str_radix(text, 16).ok());
        let access = fields.next()?;
        let [writable, executable] = ['w', 'x'].map(|letter| access.contains(letter));
        let name = fields.nth(3).unwrap_or_default().to_owned();
        Some(Self { range: begin?..end?, writable, executable, name })
    }
}

impl Maps {
    /// What is mapped now.
    ///
    /// # Errors
    /// A system without `/proc`.
    pub fn read() -> io::Result<Self> {
        Ok(Self(std::fs::read_to_string("/proc/self/maps")?.lines().filter_map(Mapping::parse).collect()))
    }

    /// The mapping of code that `address` lies in.
    #[must_use]
    pub fn code_around(&self, address: usize) -> Option<Range<usize>> {
        self.0.iter().find(|one| one.executable && one.range.contains(&address)).map(|one| one.range.clone())
    }

    /// Takes the system's clocks out of this process (vdso(7)): the pages that hold the time and the code that reads them.
    ///
    /// # Errors
    /// A system that does not give them up.
    ///
    /// # Safety
    /// Nothing in this process asks the C library what time it is from now on.
    pub unsafe fn unmap_clocks(&self) -> io::Result<()> {
        for one in self.0.iter().filter(|one| one.name.starts_with("[vvar") || one.name.starts_with("[vdso")) {
            // SAFETY: nothing but the C library's questions for the time refers to these pages; the caller asks none.
            if unsafe { libc::munmap(one.range.start as *mut libc::c_void, one.range.len()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Code, constants and what the loader relocated stay as they are from now on, whoever asks (mseal(2), Linux 6.10). Without
    /// it a candidate that reaches the C library's own system calls could make its constants writable.
    pub fn seal_files(&self) {
        const MSEAL: libc::c_long = 462;
        let files = |one: &&Mapping| one.name.starts_with('/') && !one.name.starts_with("/memfd:");
        for one in self.0.iter().filter(files).filter(|one| !one.writable) {
            // SAFETY: the call changes no memory; a kernel that does not know it says so.
            unsafe { libc::syscall(MSEAL, one.range.start, one.range.len(), 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_of_the_system_are_read() {
        let line = "7f54a6cee000-7f54a6cf0000 r-xp 00000000 00:00 0                          [vdso]";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.range, &*mapping.name), (0x7f54a6cee000..0x7f54a6cf0000, "[vdso]"));
        assert!(mapping.executable && !mapping.writable);
        let line = "7ffce1c9b000-7ffce1cbc000 rw-p 00000000 fe:00 325843 /usr/lib/a b";
        assert!(Mapping::parse(line).is_some_and(|mapping| mapping.writable && mapping.name == "/usr/lib/a"));
        assert!(Mapping::parse("rubbish").is_none());
    }

    #[test]
    fn code_is_found_where_it_is() {
        let here = Maps::read as *const () as usize;
        let maps = Maps::read().unwrap();
        assert!(maps.code_around(here).unwrap().contains(&here));
        assert!(maps.code_around(16).is_none());
    }
}
