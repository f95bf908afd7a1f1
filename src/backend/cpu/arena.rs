//! The memory that judge and candidate share: tensors, and nothing else.
//!
//! Two regions, each an anonymous file mapped by both processes at addresses of their own. The judge writes both; the
//! candidate's mapping of the inputs is read-only, and sealed so that it cannot be made writable. Of either it can touch only
//! the pages that hold buffers ([`super::layout`]): what no buffer owns keeps nothing from one launch to the next.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::control::Visible;
use super::layout::{Layout, page};
use super::poison::fill;
use crate::backend::{CaseMemory, Disturbed, Lent, MemoryError, Piece, Placing, Poison, Region, Span};
use crate::op::DrawPlan;

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The system refuses the memory.
    #[error("{bytes} bytes of shared memory: {source}")]
    System {
        /// How much was asked for.
        bytes: usize,
        /// What it said.
        source: io::Error,
    },
    /// A region is full.
    #[error("{wanted} more bytes do not fit: {region:?} has {capacity} bytes, {used} of them used")]
    Full {
        /// The region.
        region: Region,
        /// Its size.
        capacity: usize,
        /// Bytes placed so far, red zones included.
        used: usize,
        /// Bytes that did not fit, red zones included.
        wanted: usize,
    },
}

impl From<ArenaError> for MemoryError {
    fn from(error: ArenaError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// The judge's view of the shared memory.
#[derive(Debug)]
pub struct Arena {
    inputs: Arc<Area>,
    outputs: Arc<Area>,
}

/// A region, which hosts know as well: what they let a child touch follows the buffers.
#[derive(Debug)]
pub(super) struct Area {
    file: File,
    map: MmapRaw,
    layout: Mutex<Layout>,
}

impl Area {
    fn new(name: &str, bytes: usize, placing: Placing) -> Result<Self, ArenaError> {
        // A page for empty regions: mapping nothing is an error.
        let bytes = bytes.max(1).next_multiple_of(page());
        let system = |source: io::Error| ArenaError::System { bytes, source };
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(|e| system(e.into()))?;
        let file = File::from(file);
        file.set_len(bytes as u64).map_err(system)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file).map_err(system)?;
        Ok(Self { file, map, layout: Mutex::new(Layout::new(placing, bytes)) })
    }

    fn layout(&self) -> MutexGuard<'_, Layout> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, to be mapped by a child.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its size in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.map.len()
    }

    /// What a child may touch of it now.
    pub(super) fn visible(&self) -> Visible {
        self.layout().visible().clone()
    }

    /// Writes zeros where a child can write although no buffer or red zone is there.
    pub(super) fn wipe_slack(&self) {
        let slack = self.layout().slack();
        // SAFETY: inside the mapping, behind all buffers, so that no reference of this process's leads there.
        unsafe { std::ptr::write_bytes(self.map.as_mut_ptr().add(slack.start), 0, slack.len()) };
    }

    /// Whether those zeros still stand.
    pub(super) fn slack_is_clean(&self) -> bool {
        let slack = self.layout().slack();
        // SAFETY: inside the mapping; bytes of any value are valid, and nothing of the child's runs.
        let bytes = unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(slack.start), slack.len()) };
        bytes.iter().all(|byte| *byte == 0)
    }

    /// How far behind the end of a fenced buffer `offset` is, where that is a fence.
    pub(super) fn beyond(&self, offset: usize) -> Option<usize> {
        self.layout().beyond(offset)
    }

    fn seal(&self, seals: SealFlags) {
        // A kernel without this seal is reported by `protections`; the child's mapping is read-only all the same.
        let _ = fcntl_add_seals(&self.file, SealFlags::SHRINK | SealFlags::GROW);
        let _ = fcntl_add_seals(&self.file, seals);
    }
}

impl Arena {
    /// Memory for `input_bytes` and `output_bytes`, red zones included ([`Arena::footprint`]); it costs nothing until used.
    ///
    /// # Errors
    /// [`ArenaError::System`].
    pub fn new(input_bytes: usize, output_bytes: usize) -> Result<Self, ArenaError> {
        Self::placed(input_bytes, output_bytes, Placing::Packed)
    }

    /// The same with buffers that lie as `placing` says.
    ///
    /// # Errors
    /// [`ArenaError::System`].
    pub fn placed(input_bytes: usize, output_bytes: usize, placing: Placing) -> Result<Self, ArenaError> {
        let inputs = Area::new("warpsmith-inputs", input_bytes, placing)?;
        let outputs = Area::new("warpsmith-outputs", output_bytes, placing)?;
        inputs.seal(SealFlags::FUTURE_WRITE | SealFlags::SEAL);
        outputs.seal(SealFlags::SEAL);
        Ok(Self { inputs: Arc::new(inputs), outputs: Arc::new(outputs) })
    }

    /// Bytes a buffer of `bytes` takes up in a region of buffers that follow each other.
    #[must_use]
    pub fn footprint(bytes: usize) -> usize {
        <Self as crate::backend::Arena>::footprint(bytes, Placing::Packed)
    }

    /// A buffer of its own, 64-byte aligned, with a red zone before it and a red zone or a fence behind. What it holds is what
    /// was there before.
    ///
    /// # Errors
    /// [`ArenaError::Full`].
    pub fn place(&mut self, region: Region, bytes: usize) -> Result<Span, ArenaError> {
        let area = self.area(region);
        let mut layout = area.layout();
        match layout.place(bytes) {
            Some(offset) => Ok(Span { region, offset, bytes }),
            None => Err(ArenaError::Full { region, capacity: area.capacity(), used: layout.used(), wanted: bytes }),
        }
    }

    /// The red zones before and after a placed buffer; the one after begins with its very next byte.
    #[must_use]
    pub fn red_zones(&self, span: &Span) -> [Span; 2] {
        self.area(span.region).layout().red_zones(span)
    }

    /// Forgets every buffer; the memory stays and is used again.
    pub fn reset(&mut self) {
        self.inputs.layout().reset();
        self.outputs.layout().reset();
    }

    /// Bytes placed in a region, red zones included.
    #[must_use]
    pub fn used(&self, region: Region) -> usize {
        self.area(region).layout().used()
    }

    /// Size of a region in bytes.
    #[must_use]
    pub fn capacity(&self, region: Region) -> usize {
        self.area(region).capacity()
    }

    /// What a span holds.
    ///
    /// # Panics
    /// A span that is not of this arena.
    #[must_use]
    pub fn bytes(&self, span: &Span) -> &[u8] {
        let start = self.checked(span);
        // SAFETY: `checked` has the span inside the mapping, which lives as long as `self`. The candidate's process may
        // write to outputs, but between launches it is asleep, which the host verifies; bytes of any value are valid.
        unsafe { std::slice::from_raw_parts(start, span.bytes) }
    }

    /// The same, to write to.
    ///
    /// # Panics
    /// A span that is not of this arena.
    pub fn bytes_mut(&mut self, span: &Span) -> &mut [u8] {
        let start = self.checked(span);
        // SAFETY: as in `bytes`, and `&mut self` makes this the only reference in this process.
        unsafe { std::slice::from_raw_parts_mut(start, span.bytes) }
    }

    /// Each input of a copy of `memory`, `None` where absent: what the oracle takes.
    #[must_use]
    pub fn inputs(&self, memory: &CaseMemory, copy: usize) -> Vec<Option<&[u8]>> {
        memory.inputs(copy).iter().map(|span| span.as_ref().map(|span| self.bytes(span))).collect()
    }

    /// Each output of a copy of `memory`: what [`super::compare`] takes.
    #[must_use]
    pub fn outputs(&self, memory: &CaseMemory, copy: usize) -> Vec<&[u8]> {
        memory.outputs(copy).iter().map(|span| self.bytes(span)).collect()
    }

    fn checked(&self, span: &Span) -> *mut u8 {
        let map = &self.area(span.region).map;
        let fits = span.offset.checked_add(span.bytes).is_some_and(|end| end <= map.len());
        assert!(fits, "{span:?} is outside an arena of {} bytes", map.len());
        // SAFETY: the offset is inside the mapping.
        unsafe { map.as_mut_ptr().add(span.offset) }
    }

    /// A region, for a host.
    pub(super) const fn area(&self, region: Region) -> &Arc<Area> {
        match region {
            Region::Inputs => &self.inputs,
            Region::Outputs => &self.outputs,
        }
    }
}

impl crate::backend::Arena for Arena {
    fn footprint(bytes: usize, placing: Placing) -> usize {
        // What nobody has as many bytes for is refused when it is asked for.
        Layout::footprint(bytes, placing).unwrap_or(usize::MAX)
    }

    fn red_zones(&self, span: &Span) -> [Span; 2] {
        self.red_zones(span)
    }

    fn place(&mut self, region: Region, bytes: usize) -> Result<Span, MemoryError> {
        Ok(self.place(region, bytes)?)
    }

    fn reset(&mut self) {
        self.reset();
    }

    fn draw(&mut self, span: &Span, plan: &DrawPlan) {
        plan.fill(self.bytes_mut(span));
    }

    fn poison(&mut self, stretches: &[Poison]) {
        for Poison { span, stored, key } in stretches {
            fill(self.bytes_mut(span), *stored, *key);
        }
    }

    fn disturbed(&mut self, stretches: &[Poison]) -> Option<Disturbed> {
        let mut wanted = Vec::new();
        for (index, Poison { span, stored, key }) in stretches.iter().enumerate() {
            wanted.resize(span.bytes, 0);
            fill(&mut wanted, *stored, *key);
            // As a whole first: that runs at the speed of memory, and nearly always nothing differs.
            if self.bytes(span) == wanted {
                continue;
            }
            let differs = |(a, b): (&u8, &u8)| a != b;
            let mut pairs = self.bytes(span).iter().zip(&wanted);
            if let Some(first) = pairs.position(differs) {
                let last = pairs.rposition(differs).map_or(first, |further| first + 1 + further);
                return Some(Disturbed { index, first, last });
            }
        }
        None
    }

    fn zero(&mut self, span: &Span) {
        self.bytes_mut(span).fill(0);
    }

    fn not_zero(&mut self, span: &Span) -> Option<usize> {
        self.bytes(span).iter().position(|byte| *byte != 0)
    }

    fn fill(&mut self, span: &Span, write: &mut dyn FnMut(&mut [u8])) {
        write(self.bytes_mut(span));
    }

    fn read(&mut self, span: &Span) -> Vec<u8> {
        self.bytes(span).to_vec()
    }

    fn gather(&mut self, span: &Span, size: usize, indices: &[usize]) -> Vec<u8> {
        let bytes = self.bytes(span);
        indices.iter().flat_map(|index| &bytes[index * size..(index + 1) * size]).copied().collect()
    }

    fn poke(&mut self, span: &Span, at: usize, bytes: &[u8]) {
        self.bytes_mut(span)[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn lend(&mut self, region: Region) -> Result<Option<Lent>, MemoryError> {
        // Outputs are a candidate's to write as long as its process lives.
        if region == Region::Outputs {
            return Ok(None);
        }
        let refused = |error: io::Error| MemoryError::Unavailable(format!("lending the inputs: {error}"));
        let file = self.inputs.file().try_clone_to_owned().map_err(refused)?;
        Ok(Some(Lent { device: false, pieces: vec![Piece { file, at: 0, bytes: self.inputs.capacity() }] }))
    }

    fn changed_input(&mut self, _: &[Span]) -> Option<usize> {
        // The candidate's mapping of them is read-only.
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_full_region_says_so_and_reset_empties_it() {
        let mut arena = Arena::new(4096, 4096).unwrap();
        arena.place(Region::Inputs, 3000).unwrap();
        assert!(matches!(arena.place(Region::Inputs, 3000), Err(ArenaError::Full { .. })));
        assert!(matches!(arena.place(Region::Inputs, usize::MAX - 8), Err(ArenaError::Full { .. })));
        arena.reset();
        arena.place(Region::Inputs, 3000).unwrap();
    }

    #[test]
    fn the_judge_writes_inputs_and_nobody_maps_them_writable_later() {
        let mut arena = Arena::new(4096, 4096).unwrap();
        let span = arena.place(Region::Inputs, 4).unwrap();
        arena.bytes_mut(&span).copy_from_slice(b"abcd");
        assert_eq!(arena.bytes(&span), b"abcd");
        if crate::sandbox::protections()[3].available {
            assert!(MmapOptions::new().len(4096).map_raw(&arena.inputs.file).is_err());
        }
        MmapOptions::new().len(4096).map_raw_read_only(&arena.inputs.file).unwrap();
    }
}
