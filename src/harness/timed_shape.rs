//! One timed shape: its rotated buffers, and what stands in them.

use std::time::Duration;

use crate::backend::{Backend, Call, CaseMemory, Exchange, ScratchBuffer};
use crate::op::{Case, TargetShape};
use crate::rng::Stream;

use super::build::Build;
use super::session::Side;
use super::spots::Spots;
use super::task::JudgeError;
use super::turns::Turns;

/// One timed shape with its rotated buffers.
pub(super) struct TimedShape {
    pub(super) case: Case,
    pub(super) memory: CaseMemory,
    /// Scratch buffers of the incumbent, before those of the candidate.
    pub(super) split: usize,
    pub(super) copies: usize,
    /// Which of them comes when.
    pub(super) turns: Turns,
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
    pub(super) fn used(&self, batch: usize) -> Vec<usize> {
        self.turns.latest(batch)
    }

    /// Whether a copy with other inputs is among those of the next sample.
    pub(super) fn hostile_is_next(&self) -> bool {
        (0..self.batch).any(|ahead| self.is_hostile(self.turns.ahead(ahead)))
    }

    /// Whether a copy has other inputs than the ordinary ones.
    pub(super) fn is_hostile(&self, copy: usize) -> bool {
        self.hostile.iter().any(|(hostile, _)| *hostile == copy)
    }

    /// One change to the inputs of as many copies as were just used, which wait for their turns: what a kernel had worked out for them
    /// is no longer right, and nothing short of reading all of them tells.
    pub(super) fn stirred(&self, seed: u64) -> Vec<Exchange> {
        let stream = Stream::new(seed, "waiting copies");
        let change = |number: u64| {
            let copy = self.turns.ahead(stream.below(2 * number, self.copies as u64) as usize);
            let ordinary = !self.is_hostile(copy);
            ordinary.then(|| self.memory.stir(copy, stream.bits(2 * number + 1))).flatten()
        };
        (0..self.batch as u64).filter_map(change).collect()
    }

    /// Which copies of a sample are checked: the last, and one that nobody can foresee.
    pub(super) fn checked(seed: u64, round: u64, sample: &[usize]) -> Vec<usize> {
        let Some((last, others)) = sample.split_last() else { return Vec::new() };
        let another = Stream::new(seed, "another").below(round << 8 ^ *last as u64, others.len().max(1) as u64);
        std::iter::once(last).chain(others.get(another as usize)).copied().collect()
    }
}
