//! What PyTorch takes for a target, where it is the oracle: what the user has today, in pairs with a kernel.

use std::collections::VecDeque;

use crate::backend::Backend;
use crate::evaluation::{Baseline, Speedup, Stage};
use crate::op::{Bar, TargetShape};
use crate::stats::median;
use crate::torch::{self, Ready, TorchError, Way};

use super::Failure;
use super::bench::Bench;
use super::build::Build;
use super::decision::{Decision, Margin, Outcome};
use super::session::{Block, CONFIRM_BLOCKS, CONFIRM_SESSIONS, Round, Side, order};
use super::task::JudgeError;
use super::timing::{MatchUp, Rig, Take};

/// Blocks that say which way is the fastest.
const FIRST_BLOCKS: usize = 5;

/// What PyTorch takes, and what a kernel gains against it.
pub(super) struct Beside {
    pub(super) baselines: Vec<Baseline>,
    /// The gain against the fastest way, and its name.
    pub(super) fastest: Option<(f64, String)>,
    /// The same gain where the rule would keep the kernel against that way.
    pub(super) kept: Option<Speedup>,
}

impl Beside {
    pub(super) const fn nothing() -> Self {
        Self { baselines: Vec::new(), fastest: None, kept: None }
    }
}

/// PyTorch's ways of computing the operation over a target, those that its bar names, each in paired blocks with `candidate`; none where a header is the
/// oracle. The fastest is then met in fresh sessions, as many and as long as those that confirm a gain, and by the same rule. Where `compiled` is
/// false only the eager one is.
pub(super) fn baselines<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    candidate: &Build<B>,
    (margin, seed): (Margin, u64),
    compiled: bool,
) -> Result<Beside, Failure> {
    let Some(oracle) = bench.torch() else { return Ok(Beside::nothing()) };
    let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
    let decision = Decision::new(margin, &calls);
    let match_up = MatchUp { incumbent: candidate, candidate, rounds: 1 };
    let mut rig = Rig::new(bench, target, [candidate, candidate], seed)?;
    let how = oracle.how().map_err(JudgeError::from)?;
    let mut ways = VecDeque::from(match bench.op().bar {
        _ if !compiled => vec![Way::Eager],
        Bar::Fastest => vec![Way::Eager, Way::Compiled, Way::MaxAutotune],
        Bar::Compiled => vec![Way::Compiled],
    });
    // How many launches a sample has is found out as a session starts, and PyTorch's has as many.
    rig.start(bench, match_up)?;
    let (mut all, mut best): (Vec<Baseline>, Option<(f64, Way)>) = (Vec::new(), None);
    while let Some(way) = ways.pop_front() {
        bench.at(Stage::Timing, format!("beside PyTorch, {}", way.name()));
        let ready = prepare(bench, oracle, &mut rig, way)?;
        if let Ok(Ready { lowers, .. }) = ready {
            match way {
                Way::Compiled if lowers => ways.push_front(Way::WithoutLowerings),
                // It is torch.compile as it comes.
                Way::WithoutLowerings if !lowers => continue,
                _ => {}
            }
        }
        let graph = ready.as_ref().is_ok_and(|ready| ready.graph);
        let blocks = match ready {
            Ok(_) => Ok(blocks(bench, oracle, &mut rig, (match_up, way), FIRST_BLOCKS)?),
            Err(why) => Err(why),
        };
        let how = if graph { format!("{how}, replayed as a CUDA graph") } else { how.clone() };
        let ratio = blocks.as_ref().ok().and_then(|blocks| middle(&decision, blocks));
        if let Some(ratio) = ratio
            && best.is_none_or(|(least, _)| ratio < least)
        {
            best = Some((ratio, way));
        }
        all.extend(rows(target, way, &blocks, ratio, &how));
        if bench.op().bar == Bar::Compiled && way != Way::Eager && ways.is_empty() && best.is_none() {
            // Where it does not work there is what it was made of.
            ways.push_back(Way::Eager);
        }
    }
    let mut kept = None;
    let fastest = match best {
        None => None,
        Some((_, way)) => {
            let mut sessions = Vec::new();
            for number in 0..CONFIRM_SESSIONS {
                let told = format!("beside PyTorch, {}, session {} of {CONFIRM_SESSIONS}", way.name(), number + 1);
                bench.at(Stage::Confirmation, told);
                sessions.push(blocks(bench, oracle, &mut rig, (match_up, way), CONFIRM_BLOCKS)?);
            }
            let (speedup, unbeaten) = match decision.confirm(&sessions) {
                Outcome::Keep { speedup, .. } => (*kept.insert(speedup), String::new()),
                Outcome::Revert { speedup, why } => (speedup, why),
            };
            for baseline in all.iter_mut().filter(|baseline| baseline.name == way.name()) {
                baseline.paired = Some(speedup);
                baseline.unbeaten = Some(unbeaten.clone());
            }
            let versions = how.split(',').next().unwrap_or_default();
            Some((speedup.ratio, format!("{}, {versions}", way.name())))
        }
    };
    oracle.forget().map_err(JudgeError::from)?;
    Ok(Beside { baselines: all, fastest, kept })
}

/// Gets a way ready at every shape; how it goes about it, or why it does not work.
fn prepare<B: Backend>(
    bench: &Bench<'_, B>,
    oracle: &torch::Oracle,
    rig: &mut Rig<B>,
    way: Way,
) -> Result<Result<Ready, String>, Failure> {
    let cold = bench.card().cold_bytes;
    let mut all = Ready { graph: true, lowers: false };
    for index in 0..rig.shapes.len() {
        bench.check_cancelled()?;
        let shape = &rig.shapes[index];
        match oracle.prepare((way, index), &shape.memory, &mut rig.arena, shape.batch, cold) {
            Ok(ready) => all = Ready { graph: all.graph && ready.graph, lowers: all.lowers || ready.lowers },
            // That it cannot be asked at all is no word on this way.
            Err(error @ (TorchError::Start { .. } | TorchError::NoTorch(_))) => {
                return Err(JudgeError::from(error).into());
            }
            Err(error) => return Ok(Err(error.to_string())),
        }
    }
    Ok(Ok(all))
}

/// Blocks of a fresh session: PyTorch twice and the kernel twice, in either order.
fn blocks<B: Backend>(
    bench: &Bench<'_, B>,
    oracle: &torch::Oracle,
    rig: &mut Rig<B>,
    (match_up, way): (MatchUp<'_, B>, Way),
    count: usize,
) -> Result<Vec<Block>, Failure> {
    let mut pair = rig.start(bench, match_up)?;
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let order = order(rig.seed, rig.next_round());
        let mut samples_us = Vec::with_capacity(rig.shapes.len());
        for index in 0..rig.shapes.len() {
            let mut times = [0.0; 4];
            for (place, side) in order.into_iter().enumerate() {
                bench.check_cancelled()?;
                let batch = rig.shapes[index].batch;
                times[place] = match side {
                    Side::Incumbent => oracle.block((way, index), batch).map_err(JudgeError::from)?,
                    Side::Candidate => {
                        let us = rig.sample(bench, &mut pair, index, (side, batch), Take::Nothing)?.us();
                        let us = pair.cost_us(side, us * batch as f64) / batch as f64;
                        rig.look(bench, index, batch)?;
                        rig.refresh(index, batch)?;
                        us
                    }
                };
            }
            samples_us.push(times);
        }
        all.push(Block::from_rounds(&[Round { order, samples_us }]));
    }
    Ok(all)
}

fn middle(decision: &Decision, blocks: &[Block]) -> Option<f64> {
    median(&decision.logs(blocks)).map(f64::exp)
}

/// What there is to say of a way at each shape.
fn rows(
    target: &[TargetShape],
    way: Way,
    blocks: &Result<Vec<Block>, String>,
    ratio: Option<f64>,
    how: &str,
) -> Vec<Baseline> {
    let row = |(index, wanted): (usize, &TargetShape)| {
        let times =
            blocks.as_ref().map(|blocks| blocks.iter().map(|block| block.incumbent_us[index]).collect::<Vec<_>>());
        Baseline {
            name: way.name().to_owned(),
            shape: wanted.shape.clone(),
            dtype: wanted.dtype,
            us: times.ok().and_then(|times| median(&times)),
            paired: ratio.map(|ratio| Speedup { ratio, low: 0.0 }),
            unbeaten: None,
            why: blocks.as_ref().err().cloned(),
            how: how.to_owned(),
        }
    };
    target.iter().enumerate().map(row).collect()
}
