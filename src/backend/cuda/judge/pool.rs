//! Physical memory kept for the next arena. While it is kept, no address leads to it.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::super::driver::{CudaError, Gpu, Physical};

/// No more than this is kept, bytes.
const MOST_KEPT: usize = 16 << 30;
/// The largest piece, in granules (128 MiB on today's devices).
const LARGEST: usize = 64;

/// Pieces of memory that nobody uses, by size.
#[derive(Debug)]
pub(super) struct Pool {
    gpu: Gpu,
    /// Sizes are multiples of it, bytes.
    granule: usize,
    kept: RefCell<BTreeMap<usize, Vec<Physical>>>,
}

impl Pool {
    /// An empty one.
    pub(super) fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Ok(Self { gpu: gpu.clone(), granule: gpu.granularity()?, kept: RefCell::default() })
    }

    /// What sizes are multiples of, bytes.
    pub(super) const fn granule(&self) -> usize {
        self.granule
    }

    /// A piece of `bytes`: one that was kept, else a new one.
    pub(super) fn take(&self, bytes: usize) -> Result<Physical, CudaError> {
        if let Some(kept) = self.kept.borrow_mut().get_mut(&bytes).and_then(Vec::pop) {
            return Ok(kept);
        }
        self.gpu.physical(bytes).or_else(|error| {
            if !error.is_out_of_memory() {
                return Err(error);
            }
            // What is kept has other sizes.
            self.clear();
            self.gpu.physical(bytes)
        })
    }

    /// Keeps a piece for the next arena.
    pub(super) fn keep(&self, piece: Physical) {
        if self.kept_bytes() + piece.bytes() <= MOST_KEPT {
            self.kept.borrow_mut().entry(piece.bytes()).or_default().push(piece);
        }
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.borrow().iter().map(|(bytes, pieces)| bytes * pieces.len()).sum()
    }

    /// Gives back what is kept.
    pub(super) fn clear(&self) {
        self.kept.borrow_mut().clear();
    }
}

/// Sizes of the pieces that make up `granules`, in granules. Small ones come first, each as large as all before it, so that what
/// is used of the memory ends close to the end of a piece; all are powers of two, so that pieces fit again.
pub(super) fn pieces(granules: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let (mut left, mut next) = (granules, 1);
    while left >= next {
        sizes.push(next);
        left -= next;
        // 1, 1, 2, 4, …: the sum before a piece is its size.
        next = if sizes.len() == 1 { 1 } else { (2 * next).min(LARGEST) };
    }
    while left > 0 {
        let size = 1 << left.ilog2();
        sizes.push(size);
        left -= size;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_what_is_wanted_and_no_more() {
        for granules in (0..700).chain([4096, 100_001]) {
            let sizes = pieces(granules);
            assert_eq!(sizes.iter().sum::<usize>(), granules);
            assert!(sizes.iter().all(|size| size.is_power_of_two() && *size <= LARGEST), "{sizes:?}");
        }
        assert_eq!(pieces(8), [1, 1, 2, 4]);
        assert_eq!(pieces(13), [1, 1, 2, 4, 4, 1]);
        assert!(pieces(100_001).len() < 1700);
    }
}
