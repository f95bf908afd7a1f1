//! The child's view of the memory it shares with the judge.
//!
//! One stretch of addresses holds it all, in which only the harness may change what is mapped and how
//! (`sandbox::kernel_filter`): a reserve that nothing uses, the inputs, the outputs, and the judge's words, which can only be
//! read. Of inputs and outputs no more can be touched than what holds buffers.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use super::child::Setup;
use super::control::{self, Visible};
use super::gate;

/// Between what can be touched, bytes: a whole number of pages on every system.
const GUARD: usize = 1 << 16;
/// Addresses before it all, beside what the process may have: no stretch of its own memory is longer.
const RESERVE: usize = 4 << 30;

pub(super) struct Regions {
    start: usize,
    end: usize,
    reserve: usize,
    bases: [usize; 2],
    sizes: [usize; 2],
    words: usize,
    visible: [Visible; 2],
}

/// What may be done with the visible part of a region.
const ACCESS: [libc::c_int; 2] = [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE];

fn mmap(address: usize, bytes: usize, access: i32, flags: i32, fd: i32, offset: usize) -> io::Result<usize> {
    let hint = address as *mut libc::c_void;
    // SAFETY: a new mapping at an address of the system's choice, or one over a part of what this module has mapped before.
    let map = unsafe { libc::mmap(hint, bytes, access, flags, fd, offset as libc::off_t) };
    if map == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(map as usize) }
}

impl Regions {
    /// Maps inputs, outputs and what stands behind the head of the page that is shared with the judge, with the pages that hold
    /// buffers present already.
    pub(super) fn map(files: [&OwnedFd; 2], page: &OwnedFd, setup: &Setup) -> io::Result<Self> {
        let reserve = RESERVE.saturating_add(setup.memory as usize).next_multiple_of(GUARD);
        let words = control::BYTES - control::HEAD;
        let sizes = setup.regions.map(|bytes| bytes.next_multiple_of(GUARD));
        let bytes = reserve + sizes[0] + sizes[1] + words.next_multiple_of(GUARD) + 4 * GUARD;
        let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = mmap(0, bytes, libc::PROT_NONE, nothing, -1, 0)?;
        let inputs = start + reserve + GUARD;
        let outputs = inputs + sizes[0] + GUARD;
        let said = outputs + sizes[1] + GUARD;
        let shared = libc::MAP_SHARED | libc::MAP_FIXED;
        let bases = [inputs, outputs];
        for ((base, file), bytes) in bases.iter().zip(files).zip(setup.regions) {
            mmap(*base, bytes, libc::PROT_NONE, shared, file.as_raw_fd(), 0)?;
            // SAFETY: advice about the mapping just made. Failing is no harm.
            unsafe {
                libc::madvise(*base as *mut libc::c_void, bytes, libc::MADV_HUGEPAGE);
                libc::madvise(*base as *mut libc::c_void, bytes, libc::MADV_DONTDUMP);
            }
        }
        mmap(said, words, libc::PROT_READ, shared, page.as_raw_fd(), control::HEAD)?;
        let visible = [Visible::default(), Visible::default()];
        let mut own = Self { start, end: start + bytes, reserve, bases, sizes: setup.regions, words: said, visible };
        if !own.show(&setup.visible) {
            return Err(io::Error::last_os_error());
        }
        own.populate();
        Ok(own)
    }

    /// Has the pages that hold buffers present before the first launch.
    fn populate(&self) {
        let advice = [libc::MADV_POPULATE_READ, libc::MADV_POPULATE_WRITE];
        for ((base, visible), advice) in self.bases.iter().zip(&self.visible).zip(advice) {
            for [from, to] in &visible.stretches {
                // SAFETY: advice about pages of this module's own. Failing is no harm: they then come at their first use.
                unsafe { libc::madvise((base + from) as *mut libc::c_void, to - from, advice) };
            }
        }
    }

    /// Lets what is `visible` be touched, and nothing else; whether that was possible.
    pub(super) fn show(&mut self, visible: &[Visible; 2]) -> bool {
        let one = |region: usize| -> bool {
            let (old, new) = (&self.visible[region], &visible[region]);
            if old.version == new.version {
                return true;
            }
            let size = self.sizes[region];
            let sound = |[from, to]: &[usize; 2]| from <= to && *to <= size;
            let protect = |[from, to]: [usize; 2], access: libc::c_int| {
                from == to || gate::protect(self.bases[region] + from, to - from, access)
            };
            if !new.stretches.iter().all(sound) {
                return false;
            }
            // Buffers that follow each other only become more or fewer; else everything goes and comes again.
            match (&old.stretches[..], &new.stretches[..]) {
                ([[0, before]], [[0, after]]) if before > after => protect([*after, *before], libc::PROT_NONE),
                ([[0, before]], [[0, after]]) => protect([*before, *after], ACCESS[region]),
                (before, after) => {
                    before.iter().all(|stretch| protect(*stretch, libc::PROT_NONE))
                        && after.iter().all(|stretch| protect(*stretch, ACCESS[region]))
                }
            }
        };
        let shown = one(0) && one(1);
        self.visible.clone_from(visible);
        shown
    }

    /// Where inputs and outputs begin.
    pub(super) const fn bases(&self) -> [usize; 2] {
        self.bases
    }

    /// Where the judge's words begin.
    pub(super) const fn words(&self) -> *const u64 {
        self.words as *const u64
    }

    /// Addresses that only the harness may change.
    pub(super) const fn guarded(&self) -> Range<u64> {
        (self.start + self.reserve) as u64..self.end as u64
    }

    /// Bytes before them that nothing uses.
    pub(super) const fn reserve(&self) -> usize {
        self.reserve
    }

    /// Bytes of address space that it all takes.
    pub(super) const fn reserved(&self) -> usize {
        self.end - self.start
    }
}
