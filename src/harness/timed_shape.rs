//! One timed shape: its rotated buffers, and what stands in them.

use std::time::Duration;

use crate::backend::{Backend, Call, CaseMemory, ScratchBuffer};
use crate::op::{Case, TargetShape};
use crate::rng::Stream;

use super::build::Build;
use super::session::Side;
use super::spots::Spots;
use super::task::JudgeError;

/// One timed shape with its rotated buffers.
pub(super) struct TimedShape {
    pub(super) case: Case,
    pub(super) memory: CaseMemory,
    /// Scratch buffers of the incumbent, before those of the candidate.
    pub(super) split: usize,
    pub(super) copies: usize,
    /// The copy of the next launch.
    pub(super) next: usize,
    /// Launches of a sample.
    pub(super) batch: usize,
    /// Of one launch.
    pub(super) limit: Duration,
    /// What stood in some places of each copy's outputs before they were used.
    pub(super) spots: Vec<Option<Spots>>,
    /// Copies whose inputs are not the ordinary ones, each with its memory as that case has it.
    pub(super) hostile: Vec<(usize, CaseMemory)>,
}

/// A target shape as a case with its ordinary input.
pub(super) fn timed_case(wanted: &TargetShape) -> Case {
    Case { shape: wanted.shape.clone(), dtype: wanted.dtype, input: None, setting: 0 }
}

/// Scratch of the incumbent, then of the candidate, and how many are the incumbent's: neither sees the other's.
pub(super) fn both_scratch<B: Backend>(
    builds: [&Build<B>; 2],
    case: &Case,
) -> Result<(Vec<ScratchBuffer>, usize), JudgeError> {
    let mut scratch = builds[0].image(&case.shape, case.dtype)?.1.to_vec();
    let split = scratch.len();
    scratch.extend_from_slice(builds[1].image(&case.shape, case.dtype)?.1);
    Ok((scratch, split))
}

impl TimedShape {
    /// A launch of one side, with that side's scratch only.
    pub(super) fn call(&self, side: Side, image: usize, copy: usize) -> Call {
        let hostile = self.hostile.iter().find(|(hostile, _)| *hostile == copy);
        let memory = hostile.map_or(&self.memory, |(_, memory)| memory);
        let mut call = memory.call(image, copy);
        let tensors = call.pointers.len() - self.memory.scratch_count();
        match side {
            Side::Incumbent => call.pointers.truncate(tensors + self.split),
            Side::Candidate => drop(call.pointers.drain(tensors..tensors + self.split)),
        }
        call.zeroed.retain(|span| call.pointers.contains(&Some(*span)));
        call
    }

    /// The copies of the latest `batch` launches, the last one first.
    pub(super) fn used(&self, batch: usize) -> impl Iterator<Item = usize> + use<> {
        let (next, copies) = (self.next, self.copies);
        (1..=batch).map(move |back| (next + copies * batch - back) % copies)
    }

    /// Whether a copy with other inputs is among those of the next sample.
    pub(super) fn hostile_is_next(&self) -> bool {
        let ahead = |copy: usize| (copy + self.copies - self.next) % self.copies;
        self.hostile.iter().any(|(copy, _)| ahead(*copy) < self.batch)
    }

    /// Which copies of a sample that starts at `first` are checked: the last, and one that nobody can foresee (JUDGE, row 6).
    pub(super) fn checked(&self, seed: u64, round: u64, first: usize, batch: usize) -> Vec<usize> {
        let copy = |launch: usize| (first + launch) % self.copies;
        let mut checked = vec![copy(batch - 1)];
        if batch > 1 {
            let another = Stream::new(seed, "another").below(round << 8 ^ first as u64, batch as u64 - 1);
            checked.push(copy(another as usize));
        }
        checked
    }
}
