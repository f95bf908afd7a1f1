//! Rough comparison of many candidates with the incumbent: for choosing among ideas, never a verdict.

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::evaluation::Stage;
use crate::op::TargetShape;
use crate::stats::median;

use super::Failure;
use super::bench::{Bench, StageClock, Watch};
use super::build::Build;
use super::decision::{Decision, Margin};
use super::judge::Judge;
use super::session::Block;
use super::task::{JudgeError, ScreenTask};
use super::timing::{MatchUp, Rig};

/// Blocks a screened candidate is measured for.
const BLOCKS: u64 = 4;

/// A candidate that is no faster than this, as a share of the incumbent's speed, is measured no further after its first block, and its
/// outputs are not looked at: no search proposes it, and the slower it is the more its other blocks would cost.
const HOPELESS: f64 = 0.25;

/// A rough measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Screened {
    /// Incumbent over candidate, of `Σ calls × time` over the target's shapes.
    pub speedup: f64,
    /// The same for each shape alone, in the target's order.
    pub shapes: Vec<f64>,
}

impl<B: Backend> Judge<B> {
    /// Times each candidate briefly against the incumbent; `None` where it does not compile, crashes, or a timed output is
    /// wrong (which nobody looks at where it is hopelessly slow). Where a candidate costs this process its device, the answer ends with it and is shorter than the question.
    ///
    /// # Errors
    /// The machine's failures and the incumbent's.
    pub fn screen(&mut self, task: &ScreenTask, watch: Watch<'_>) -> Result<Vec<Option<Screened>>, JudgeError> {
        let known = self.know(&task.op)?;
        let clock = StageClock::default();
        let bench = self.bench(&known, watch, task.seed, &clock);
        screen(&bench, task).map_err(|failure| match failure {
            Failure::Judge(error) => error,
            Failure::Verdict(verdict) => JudgeError::Incumbent(verdict.why().to_owned()),
        })
    }
}

fn screen<B: Backend>(bench: &Bench<'_, B>, task: &ScreenTask) -> Result<Vec<Option<Screened>>, Failure> {
    let target = bench.complete(&task.target)?;
    let incumbent = bench.build_text(&task.incumbent, &target)?;
    let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
    let decision = Decision::new(Margin::default(), &calls);
    let count = task.candidates.len();
    bench.at(Stage::Compile, format!("compiling {count} candidates"));
    let builds = builds(bench, &target, &task.candidates)?;
    let mut screened = Vec::with_capacity(count);
    for (index, build) in builds.into_iter().enumerate() {
        if bench.backend.is_lost() {
            break;
        }
        bench.at(Stage::Timing, format!("screening {} of {count}", index + 1));
        screened.push(
            match build.and_then(|candidate| screen_one(bench, (task.seed, &decision), &target, &incumbent, &candidate))
            {
                Ok(blocks) => median(&decision.logs(&blocks))
                    .map(|d| Screened { speedup: d.exp(), shapes: decision.shape_speedups(&blocks) }),
                Err(Failure::Verdict(_)) => None,
                Err(machine @ Failure::Judge(_)) => return Err(machine),
            },
        );
    }
    Ok(screened)
}

/// The candidates, compiled at the same time where nothing is wrong with any of them: a compiler uses one core, and machines have more.
fn builds<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    texts: &[String],
) -> Result<Vec<Result<Build<B>, Failure>>, Failure> {
    match bench.build_texts(texts, target) {
        Ok(builds) => Ok(builds.into_iter().map(Ok).collect()),
        // The first that fails ends them all, and does not say which it was.
        Err(Failure::Verdict(_)) => Ok(texts.iter().map(|text| bench.build_text(text, target)).collect()),
        Err(machine @ Failure::Judge(_)) => Err(machine),
    }
}

fn screen_one<B: Backend>(
    bench: &Bench<'_, B>,
    (seed, decision): (u64, &Decision),
    target: &[TargetShape],
    incumbent: &Build<B>,
    candidate: &Build<B>,
) -> Result<Vec<Block>, Failure> {
    let mut rig = Rig::new(bench, target, [incumbent, candidate], seed)?;
    let match_up = MatchUp { incumbent, candidate, rounds: 1 };
    let mut pair = rig.start(bench, match_up)?;
    let mut blocks = Vec::new();
    for number in 0..BLOCKS {
        blocks.push(rig.block(bench, &mut pair, match_up.rounds, number + 1 == BLOCKS)?);
        if decision.logs(&blocks).iter().all(|log| *log < HOPELESS.ln()) {
            break;
        }
    }
    Ok(blocks)
}
