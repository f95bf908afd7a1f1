//! Incumbent and candidate of a timing session, and what is known of each beside its times.

use std::time::Duration;

use crate::backend::{Backend, CaseMemory, Host};

use super::bench::Taken;
use super::build::Build;
use super::session::Block;
use super::timed_shape::TimedShape;

/// Batches after which what hosts ran beside the time taken can be compared.
const ACCOUNTED: usize = 16;

/// What a candidate may run more than the incumbent beside the time taken: by chance, in µs a sample, and as a share of the sample.
const HIDDEN_US: f64 = 150.0;
const HIDDEN_SHARE: f64 = 0.03;

/// One side in a fresh place of its own.
pub(super) struct Runner<'b, B: Backend> {
    pub(super) build: &'b Build<B>,
    pub(super) host: B::Host,
    /// Samples that did not count, because a thread ran on behind them, and were taken again.
    pub(super) taken_again: u32,
}

/// Incumbent and candidate, each in a fresh process.
pub(super) struct Pair<'b, B: Backend> {
    pub(super) incumbent: Runner<'b, B>,
    pub(super) candidate: Runner<'b, B>,
}

impl<B: Backend> Pair<'_, B> {
    /// What the candidate's latest sample left in the outputs of `copy`.
    pub(super) fn take(&self, memory: &CaseMemory, arena: &mut B::Arena, copy: usize) -> Taken<B> {
        self.candidate.host.take(memory, arena, copy)
    }

    /// What the candidate's threads ran beside the time that was taken for the samples of `blocks`, beyond what the incumbent's
    /// did in the same turns and what is allowed; in µs a sample.
    pub(super) fn hidden_us(&self, shapes: &[TimedShape], blocks: &[Block]) -> f64 {
        let accounts = self.candidate.host.outside().zip(self.incumbent.host.outside());
        let Some((candidate, incumbent)) = accounts.filter(|(one, other)| one.batches.min(other.batches) >= ACCOUNTED)
        else {
            return 0.0;
        };
        let more = |one: Duration, other: Duration| one.as_secs_f64() * 1e6 - other.as_secs_f64() * 1e6;
        let excess = more(candidate.typical, incumbent.typical).min(more(candidate.median, incumbent.median));
        let sample_us = |block: &Block| {
            let times = block.candidate_us.iter().zip(shapes).map(|(us, shape)| us * shape.batch as f64);
            times.sum::<f64>() / shapes.len() as f64
        };
        let mean_us = blocks.iter().map(sample_us).sum::<f64>() / blocks.len().max(1) as f64;
        (excess - HIDDEN_US - HIDDEN_SHARE * mean_us).max(0.0)
    }

    /// How many samples of the candidate and of the incumbent did not count, because a thread ran on behind them.
    pub(super) const fn taken_again(&self) -> [u32; 2] {
        [self.candidate.taken_again, self.incumbent.taken_again]
    }
}
