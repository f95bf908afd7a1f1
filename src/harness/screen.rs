//! Rough comparison of many candidates with the incumbent: for choosing among ideas, never a verdict.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::evaluation::Stage;
use crate::op::{Dtype, Shape};

use super::Failure;
use super::build::Build;
use super::decision::{Decision, Margin};
use super::duel::{Contender, MatchUp};
use super::judge::{Bench, Judge, Watch, complete, read, timed_shapes};
use super::session::Block;
use super::task::{JudgeError, ScreenTask};
use super::timing::Rig;
use crate::stats::median;

/// Blocks a screened candidate is measured for.
const BLOCKS: u64 = 4;

/// A rough measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Screened {
    /// Incumbent over candidate, of `Σ calls × time` over the target's shapes.
    pub speedup: f64,
    /// The same for each shape alone, in the target's order.
    pub shapes: Vec<f64>,
}

impl Judge {
    /// Times each candidate briefly against the incumbent; `None` where it does not compile, crashes, or a timed output is wrong.
    ///
    /// # Errors
    /// The machine's failures and the incumbent's.
    pub fn screen(&mut self, task: &ScreenTask, watch: Watch<'_>) -> Result<Vec<Option<Screened>>, JudgeError> {
        let known = self.know(&task.op)?;
        let bench = self.bench(&known, watch, task.seed);
        screen(&bench, task).map_err(|failure| match failure {
            Failure::Judge(error) => error,
            Failure::Verdict(verdict) => JudgeError::Incumbent(verdict.why().to_owned()),
        })
    }
}

fn screen(bench: &Bench<'_>, task: &ScreenTask) -> Result<Vec<Option<Screened>>, Failure> {
    let op = &bench.known.op;
    let target = complete(op, &task.target)?;
    let shapes: BTreeSet<(Shape, Dtype)> = timed_shapes(&target);
    let incumbent_kernel = read(op, &task.incumbent, bench.card)?;
    let incumbent = bench.build(&incumbent_kernel, &shapes)?;
    let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
    let decision = Decision::new(Margin::default(), &calls);
    task.candidates
        .iter()
        .enumerate()
        .map(|(index, text)| {
            bench.at(Stage::Timing, format!("screening {} of {}", index + 1, task.candidates.len()));
            match screen_one(bench, task, &target, &incumbent, text, &shapes) {
                Ok(blocks) => Ok(median(&decision.logs(&blocks))
                    .map(|d| Screened { speedup: d.exp(), shapes: decision.shape_speedups(&blocks) })),
                Err(Failure::Verdict(_)) => Ok(None),
                Err(machine @ Failure::Judge(_)) => Err(machine),
            }
        })
        .collect()
}

fn screen_one(
    bench: &Bench<'_>,
    task: &ScreenTask,
    target: &[crate::op::TargetShape],
    incumbent: &Build,
    text: &str,
    shapes: &BTreeSet<(Shape, Dtype)>,
) -> Result<Vec<Block>, Failure> {
    let incumbent_kernel = read(&bench.known.op, &task.incumbent, bench.card)?;
    let kernel = read(&bench.known.op, text, bench.card)?;
    let build = bench.build(&kernel, shapes)?;
    let mut rig = Rig::new(bench, target, [&incumbent_kernel, &kernel], task.seed)?;
    let match_up = MatchUp {
        incumbent: Contender { kernel: &incumbent_kernel, build: incumbent },
        candidate: Contender { kernel: &kernel, build: &build },
        rounds: 1,
    };
    let mut pair = rig.start(bench, match_up)?;
    (0..BLOCKS).map(|block| rig.block(bench, &mut pair, match_up.rounds, block + 1 == BLOCKS)).collect()
}
