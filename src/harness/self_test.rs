//! The judge judged: a kernel against copies of itself, by the production path.

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::evaluation::Verdict;
use crate::rng::Stream;

use super::Failure;
use super::bench::{StageClock, Watch, timed_shapes};
use super::duel::{Timed, time};
use super::judge::Judge;
use super::spread::twin;
use super::task::{EvaluationTask, JudgeError, Precision, Progress};

/// What the judge makes of changes that change nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// Identical pairs judged.
    pub pairs: u32,
    /// Pairs that were kept: each is a mistake.
    pub false_keeps: u32,
    /// The margin in force (0.01 for 1 %).
    pub margin: f64,
    /// What one naive comparison a pair would have kept: the first block alone, 1 % better.
    pub naive_keeps: u32,
    /// Apparent speedup of each pair.
    pub ratios: Vec<f64>,
}

impl<B: Backend> Judge<B> {
    /// Judges the candidate of `task` against copies of itself at other addresses, `pairs` times, timing and keep rule
    /// exactly as in a run.
    ///
    /// # Errors
    /// The machine's failures, and a kernel that does not pass the stages.
    pub fn self_test(&mut self, task: &EvaluationTask, pairs: u32, watch: Watch<'_>) -> Result<SelfTest, JudgeError> {
        let mut result = SelfTest::default();
        let base = self.evaluate(&EvaluationTask { incumbent: None, ..task.clone() }, watch)?;
        let Some(timing) = base.timing.filter(|_| base.verdict == Verdict::Base) else {
            return Err(JudgeError::Incumbent(base.verdict.why().to_owned()));
        };
        result.margin = timing.margin;
        let precision = Precision { margin: timing.margin, spread: timing.spread, rounds: timing.rounds };
        for pair in 0..pairs {
            let seed = Stream::new(task.seed, "self-test").bits(u64::from(pair));
            let padding = 1 + Stream::new(seed, "padding").below(0, 8192);
            let twin = EvaluationTask {
                incumbent: Some(task.candidate.clone()),
                baseline: None,
                precision: Some(precision),
                seed,
                ..task.clone()
            };
            let timed = self.time_twin(&twin, padding, watch)?;
            result.pairs += 1;
            result.false_keeps += u32::from(matches!(timed.verdict, Verdict::Keep { .. }));
            result.naive_keeps += u32::from(timed.first_block > 1.01);
            result.ratios.extend(timed.verdict.speedup().map(|speedup| speedup.ratio));
            (watch.progress)(Progress {
                stage: crate::evaluation::Stage::Timing,
                detail: format!("pair {} of {pairs}, {} kept", pair + 1, result.false_keeps),
            });
        }
        Ok(result)
    }

    /// Timing and keep rule for the candidate of `task` against a copy of itself.
    fn time_twin(&mut self, task: &EvaluationTask, padding: u64, watch: Watch<'_>) -> Result<Timed, JudgeError> {
        let known = self.know(&task.op)?;
        let clock = StageClock::default();
        let bench = self.bench(&known, watch, task.seed, &clock);
        let run = || {
            let target = bench.complete(&task.target)?;
            let build = bench.build(twin(&task.candidate, padding)?, &timed_shapes(&target))?;
            time(&bench, task, &target, &build, &[])
        };
        run().map_err(|failure| match failure {
            Failure::Judge(error) => error,
            Failure::Verdict(verdict) => JudgeError::Incumbent(verdict.why().to_owned()),
        })
    }
}
