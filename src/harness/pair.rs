//! Incumbent and candidate of a timing session, and what is known of each beside its times.

use std::collections::VecDeque;
use std::time::Duration;

use crate::backend::{Backend, CaseMemory, Host};

use super::bench::Taken;
use super::build::Build;
use super::session::{Block, Side};
use super::timed_shape::TimedShape;
use crate::defence::Defence;

/// Batches after which what hosts ran beside the time taken can be compared.
const ACCOUNTED: usize = 16;

/// What a candidate may run more than the incumbent beside the time taken: by chance, in µs a sample, and as a share of the sample.
const HIDDEN_US: f64 = 150.0;
const HIDDEN_SHARE: f64 = 0.03;

/// Samples of the incumbent, the latest, that say what is usual beside a sample; of these a twentieth, the most, are left out.
const USUAL_OF: usize = 200;

/// What part of a sample may have been run beside it before it counts: less of it is chance, of which a mean over all samples
/// tells more ([`Pair::hidden_us`]).
const CHARGED_SHARE: f64 = 0.1;

/// What a sample of the candidate costs that took `took_us` while its longest thread ran `beside_us` outside that time: the
/// sum, less what is usual for the incumbent (`usual_us`, in any order; what chance allows, where no kernel is beside it), where
/// that is a tenth of it or more.
///
/// However a kernel comes to work before the clock starts, or behind its end: nothing is gained, in whichever samples it is done.
pub(super) fn charged_us(took_us: f64, beside_us: f64, usual_us: &[f64]) -> f64 {
    let mut usual = usual_us.to_vec();
    usual.sort_unstable_by(f64::total_cmp);
    let most = usual.len().checked_sub(1 + usual.len() / 20).map_or(HIDDEN_US, |at| usual[at]);
    let more = beside_us - most;
    if more > CHARGED_SHARE * (took_us + more) { took_us + more } else { took_us }
}

/// One side in a fresh place of its own.
pub(super) struct Runner<'b, B: Backend> {
    pub(super) build: &'b Build<B>,
    pub(super) host: B::Host,
    /// Samples that did not count, because a thread ran on behind them, and were taken again.
    pub(super) taken_again: u32,
    /// What the longest thread ran beside each of the latest samples, µs.
    pub(super) beside_us: VecDeque<f64>,
}

/// Incumbent and candidate, each in a fresh process.
pub(super) struct Pair<'b, B: Backend> {
    pub(super) incumbent: Runner<'b, B>,
    pub(super) candidate: Runner<'b, B>,
}

impl<'b, B: Backend> Runner<'b, B> {
    /// A side of which nothing is known yet.
    pub(super) const fn new(build: &'b Build<B>, host: B::Host) -> Self {
        Self { build, host, taken_again: 0, beside_us: VecDeque::new() }
    }

    /// What the longest thread ran beside the latest sample, µs; it is remembered.
    fn beside_us(&mut self) -> f64 {
        let us = self.host.beside().as_secs_f64() * 1e6;
        if self.beside_us.len() == USUAL_OF {
            self.beside_us.pop_front();
        }
        self.beside_us.push_back(us);
        us
    }
}

impl<B: Backend> Pair<'_, B> {
    /// What the latest sample of a side costs, which took `took_us`; see [`charged_us`].
    pub(super) fn cost_us(&mut self, side: Side, took_us: f64) -> f64 {
        match side {
            Side::Incumbent => {
                self.incumbent.beside_us();
                took_us
            }
            Side::Candidate => {
                let beside_us = self.candidate.beside_us();
                let usual_us = self.incumbent.beside_us.make_contiguous();
                if Defence::Charged.stands() { charged_us(took_us, beside_us, usual_us) } else { took_us }
            }
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: [f64; 20] = [40.0; 20];

    #[test]
    fn work_beside_a_sample_costs_what_it_would_within() {
        assert_eq!(charged_us(10.0, 1030.0, &USUAL), 1000.0);
        assert_eq!(charged_us(600.0, 440.0, &USUAL), 1000.0);
        assert_eq!(charged_us(10.0, 1150.0, &[]), 1010.0);
    }

    #[test]
    fn what_is_usual_beside_a_sample_costs_nothing() {
        for beside_us in [0.0, 39.0, 60.0, 140.0] {
            assert_eq!(charged_us(1000.0, beside_us, &USUAL), 1000.0);
        }
        // A core that was away shows in one of the incumbent's samples too, and makes room for nothing.
        let mut once = USUAL;
        once[7] = 9000.0;
        assert_eq!(charged_us(10.0, 1030.0, &once), 1000.0);
        let often = [USUAL[0], 900.0];
        assert_eq!(charged_us(1000.0, 900.0, &often), 1000.0);
    }
}
