//! Physical memory kept for the next arena. While it is kept, no address leads to it.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use super::super::driver::{CudaError, Gpu, Physical};

/// No more than this is kept, bytes: where tensors have several GB, PyTorch, which evaluates in double precision beside them, wants the
/// rest, and a piece of that size is soon made again beside what a launch on it takes.
const MOST_KEPT: usize = 4 << 30;
/// In no more pieces.
const PIECES: usize = 8;

/// Pieces of memory that nobody uses.
#[derive(Debug)]
pub(super) struct Pool {
    gpu: Gpu,
    /// Sizes are multiples of it, bytes.
    granule: usize,
    /// The smallest first.
    kept: RefCell<Vec<Physical>>,
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

    /// A piece of so many bytes: the smallest that was kept and is large enough, else a new one of the least size.
    ///
    /// A change of access costs about as much for a large piece as for a small one (some 40 µs), so memory is as few pieces as
    /// can be.
    pub(super) fn take(&self, bytes: &RangeInclusive<usize>) -> Result<Physical, CudaError> {
        let fits = self.kept.borrow().iter().position(|piece| bytes.contains(&piece.bytes()));
        if let Some(fits) = fits {
            return Ok(self.kept.borrow_mut().remove(fits));
        }
        self.gpu.physical(*bytes.start()).or_else(|error| {
            if !error.is_out_of_memory() {
                return Err(error);
            }
            // What is kept has other sizes.
            self.clear();
            self.gpu.physical(*bytes.start())
        })
    }

    /// Keeps a piece for the next arena; others make room for it, the smallest first.
    pub(super) fn keep(&self, piece: Physical) {
        if piece.bytes() > MOST_KEPT {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        let place = kept.partition_point(|other| other.bytes() < piece.bytes());
        kept.insert(place, piece);
        while kept.len() > PIECES || kept.iter().map(Physical::bytes).sum::<usize>() > MOST_KEPT {
            kept.remove(0);
        }
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.kept.borrow().iter().map(Physical::bytes).sum()
    }

    /// Gives back what is kept.
    pub(super) fn clear(&self) {
        self.kept.borrow_mut().clear();
    }
}
