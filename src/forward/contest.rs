//! Two models on the same weights and inputs, paired so that the machine's moods cancel.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::measure::{go_on, micros};
use super::{Effort, ForwardError, OutputCheck, Rounds, Stretch, Timed, bound, compare_outputs, rounds};
use crate::model::Graph;
use crate::rng::Stream;

/// Which of the two models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// With the kernels the user has.
    Before,
    /// With the kernels of the run.
    After,
}

/// Two models on the same weights and inputs.
pub trait Contest {
    /// Puts both sides in fresh processes: what dominates the error of a comparison is a bias of each process
    /// (address layout, placement on cores), which more passes do not average away.
    ///
    /// # Errors
    /// A process that does not start.
    fn restart(&mut self) -> Result<(), ForwardError>;
    /// One pass, all calls back to back.
    ///
    /// # Errors
    /// A call that failed.
    fn whole(&mut self, side: Side) -> Result<Duration, ForwardError>;
    /// One pass in parts, as [`Timed::parts`] has it.
    ///
    /// # Errors
    /// A call that failed.
    fn parts(&mut self, side: Side) -> Result<Vec<Stretch>, ForwardError>;
    /// One call that does nothing.
    ///
    /// # Errors
    /// A process that is gone.
    fn nothing(&mut self, side: Side) -> Result<Duration, ForwardError>;
    /// The logits of a fresh pass, for which nothing of an earlier one is left in memory: what a side does not write
    /// must not pass for its output.
    ///
    /// # Errors
    /// A call that failed.
    fn output(&mut self, side: Side) -> Result<Vec<f64>, ForwardError>;
}

/// How many processes and passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sessions {
    /// Fresh pairs of processes.
    pub count: usize,
    /// Blocks of two passes a side in each, at least.
    pub least: usize,
    /// And at most.
    pub most: usize,
    /// Blocks are added until a session took this long.
    pub budget: Duration,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { count: 5, least: 4, most: 40, budget: Duration::from_secs(2) }
    }
}

/// Two passes of each side, timed in a symmetric order. µs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The passes before.
    pub before_us: [f64; 2],
    /// The passes after.
    pub after_us: [f64; 2],
}

/// Everything measured about two models; what it means is decided elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Whether both say the same.
    pub output: OutputCheck,
    /// The model before, by parts; empty where nobody asked.
    pub before: Rounds,
    /// The model after, by parts.
    pub after: Rounds,
    /// Paired whole passes, by session: each has fresh processes.
    pub sessions: Vec<Vec<Block>>,
}

/// Outputs first, then parts where somebody asks for them, then paired whole passes in fresh processes.
///
/// # Errors
/// The first call that fails, or [`ForwardError::Cancelled`].
pub fn compare(
    contest: &mut dyn Contest,
    graph: &Graph,
    sessions: &Sessions,
    parts: Option<&Effort>,
    seed: u64,
    cancelled: &AtomicBool,
) -> Result<Comparison, ForwardError> {
    let (said, says) = (contest.output(Side::Before)?, contest.output(Side::After)?);
    let row = graph.tensors[graph.output].dims.last().map_or(1, |vocab| *vocab as usize);
    let output = compare_outputs(&said, &says, row, bound(graph.pass.dtype, graph.nodes.len()));
    let (mut before, mut after) = (Rounds::default(), Rounds::default());
    if let Some(parts) = parts {
        // By turns, as whole passes are, so that the parts of both sides meet the same machine.
        let half = Effort { budget: parts.budget / 2, least: parts.least.div_ceil(2), most: parts.most.div_ceil(2) };
        let mut measure = |side| rounds(&mut OneSide { contest, side }, &half, cancelled);
        before = measure(Side::Before)?;
        after = measure(Side::After)?;
        after.extend(measure(Side::After)?);
        before.extend(measure(Side::Before)?);
    }
    Ok(Comparison { output, before, after, sessions: compare_times(contest, sessions, seed, cancelled)? })
}

/// Blocks of before-after-after-before or the reverse, in random order, in fresh processes.
///
/// A drift that is linear over a block cancels in it; the random order keeps a periodic one from siding with either.
///
/// # Errors
/// The first call that fails.
pub fn compare_times(
    contest: &mut dyn Contest,
    sessions: &Sessions,
    seed: u64,
    cancelled: &AtomicBool,
) -> Result<Vec<Vec<Block>>, ForwardError> {
    let order = Stream::new(seed, "verify blocks");
    let mut all = Vec::new();
    let mut drawn = 0;
    for _ in 0..sessions.count {
        contest.restart()?;
        for side in [Side::Before, Side::After] {
            contest.whole(side)?;
        }
        let start = Instant::now();
        let mut blocks = Vec::new();
        while blocks.len() < sessions.least.max(1)
            || (blocks.len() < sessions.most && start.elapsed() < sessions.budget)
        {
            go_on(cancelled)?;
            let before_outside = order.bits(drawn) & 1 == 0;
            drawn += 1;
            let mut pass = |side| contest.whole(side).map(micros);
            blocks.push(if before_outside {
                let (b0, a0, a1, b1) =
                    (pass(Side::Before)?, pass(Side::After)?, pass(Side::After)?, pass(Side::Before)?);
                Block { before_us: [b0, b1], after_us: [a0, a1] }
            } else {
                let (a0, b0, b1, a1) =
                    (pass(Side::After)?, pass(Side::Before)?, pass(Side::Before)?, pass(Side::After)?);
                Block { before_us: [b0, b1], after_us: [a0, a1] }
            });
        }
        all.push(blocks);
    }
    Ok(all)
}

/// One side of a contest as a model that can be timed.
struct OneSide<'a> {
    contest: &'a mut dyn Contest,
    side: Side,
}

impl Timed for OneSide<'_> {
    fn whole(&mut self) -> Result<Duration, ForwardError> {
        self.contest.whole(self.side)
    }

    fn parts(&mut self) -> Result<Vec<Stretch>, ForwardError> {
        self.contest.parts(self.side)
    }

    fn nothing(&mut self) -> Result<Duration, ForwardError> {
        self.contest.nothing(self.side)
    }
}
