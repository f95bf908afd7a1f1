//! Candidate against incumbent: paired timing until the decision is made, then confirmation in fresh processes.

use std::time::{Duration, Instant};

use crate::evaluation::{ShapeTiming, Speedup, Stage, Timing, Verdict};
use crate::kernel::{self, KernelFile};
use crate::op::{Case, TargetShape};
use crate::rng::Stream;
use crate::stats::median;

use super::Failure;
use super::build::Build;
use super::decision::{Decision, First, Margin, Outcome, Simplification};
use super::judge::{Bench, read, timed_shapes};
use super::session::{Block, CONFIRM_BLOCKS, CONFIRM_SESSIONS, SPREAD_SESSIONS, rounds_for};
use super::simplicity::is_simpler;
use super::task::{EvaluationTask, JudgeError};
use super::timing::Rig;

/// A measured time below this share of the physical floor is looked at again (JUDGE: 0.97).
const FLOOR_SHARE: f64 = 0.97;

/// No honest kernel is this far below measured ceilings, whatever the noise of their calibration.
const IMPOSSIBLE_SHARE: f64 = 0.7;

/// Blocks between two checks of a timed output, at the most; the first and the last of a session are always checked.
const VERIFY_EVERY: usize = 8;

/// A block takes about this long at the most, however noisy the machine: eighty of them are a verdict's worst case.
const BLOCK_TIME: Duration = Duration::from_millis(60);

/// A kernel with what was compiled from it.
#[derive(Clone, Copy)]
pub(super) struct Contender<'a> {
    pub(super) kernel: &'a KernelFile,
    pub(super) build: &'a Build,
}

/// Two kernels, and how many rounds a block of theirs has.
#[derive(Clone, Copy)]
pub(super) struct MatchUp<'a> {
    pub(super) incumbent: Contender<'a>,
    pub(super) candidate: Contender<'a>,
    pub(super) rounds: usize,
}

/// What timing has to say.
pub(super) struct Timed {
    pub(super) verdict: Verdict,
    pub(super) timing: Timing,
    pub(super) vs_user: Option<f64>,
    /// The first block's ratio: what a rule of one sample would have gone by.
    pub(super) first_block: f64,
}

/// Times `candidate` as the task asks: alone where there is no incumbent, else until the keep rule has decided.
pub(super) fn time(
    bench: &Bench<'_>,
    task: &EvaluationTask,
    target: &[TargetShape],
    candidate: Contender<'_>,
) -> Result<Timed, Failure> {
    let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
    let Some(incumbent_text) = &task.incumbent else {
        let spread = spread(bench, target, candidate, &calls, task.seed)?;
        let timing = summarise(&spread.decision, target, &spread.rig, &spread.sessions, spread.rounds)?;
        return Ok(Timed { verdict: Verdict::Base, timing, vs_user: Some(1.0), first_block: 1.0 });
    };
    let incumbent_kernel = trusted(bench, incumbent_text)?;
    let incumbent_build = trusted_build(bench, &incumbent_kernel, target)?;
    let incumbent = Contender { kernel: &incumbent_kernel, build: &incumbent_build };
    let (margin, rounds) = match task.precision {
        Some(known) => (Margin::from_spread(known.spread), known.rounds as usize),
        None => {
            let spread = spread(bench, target, incumbent, &calls, task.seed)?;
            (spread.decision.margin(), spread.rounds)
        }
    };
    let mut decision = Decision::new(margin, &calls);
    if let Some(branch_over_best) = task.branch_over_best
        && is_simpler(&incumbent_kernel.text, &candidate.kernel.text)
    {
        decision = decision.for_simpler(Simplification { branch_over_best });
    }

    let mut rig = Rig::new(bench, target, [incumbent.kernel, candidate.kernel], task.seed)?;
    let match_up = MatchUp { incumbent, candidate, rounds };
    let first = first_stage(bench, &decision, &mut rig, match_up)?;
    let first_block = decision.logs(&first.blocks[..1]).first().map_or(1.0, |d| d.exp());
    if let Some((speedup, why)) = first.given_up {
        let timing = summarise(&decision, target, &rig, &[first.blocks], rounds)?;
        return Ok(Timed { verdict: Verdict::Revert { speedup, why }, timing, vs_user: None, first_block });
    }
    let mut sessions = Vec::new();
    for session in 0..CONFIRM_SESSIONS {
        bench.at(Stage::Confirmation, format!("fresh process {} of {CONFIRM_SESSIONS}", session + 1));
        sessions.push(fresh_session(bench, &mut rig, match_up)?);
    }
    let outcome = decision.confirm(&sessions);
    let mut timing = summarise(&decision, target, &rig, &sessions, rounds)?;
    timing.blocks = first.blocks.len() as u32;
    timing.confirmations = decision.session_speedups(&sessions);
    below_floor(bench, &mut rig, match_up, &timing)?;
    let vs_user = match (&outcome, &task.baseline) {
        (Outcome::Keep { speedup, .. }, Some(baseline)) if baseline == incumbent_text => Some(speedup.ratio),
        (Outcome::Keep { .. }, Some(baseline)) => {
            Some(against(bench, target, baseline, candidate, &calls, rounds, task.seed)?)
        }
        _ => None,
    };
    Ok(Timed { verdict: outcome.into(), timing, vs_user, first_block })
}

struct FirstStage {
    blocks: Vec<Block>,
    given_up: Option<(Speedup, String)>,
}

/// Blocks until the rule gives up or asks for confirmation; in a fresh process when the rule asks for one.
fn first_stage(
    bench: &Bench<'_>,
    decision: &Decision,
    rig: &mut Rig,
    match_up: MatchUp<'_>,
) -> Result<FirstStage, Failure> {
    let mut pair = rig.start(bench, match_up)?;
    let mut blocks: Vec<Block> = Vec::new();
    loop {
        let given_up = match decision.first(&blocks) {
            First::Confirm => None,
            First::GiveUp { speedup, why } => Some((speedup, why)),
            First::More { blocks: more, fresh } => {
                if fresh && !blocks.is_empty() {
                    pair = rig.start(bench, match_up)?;
                }
                let end = blocks.len() + more;
                while blocks.len() < end {
                    bench.at(Stage::Timing, format!("block {}", blocks.len() + 1));
                    let verify = blocks.len().is_multiple_of(VERIFY_EVERY) || blocks.len() + 1 == end;
                    blocks.push(rig.block(bench, &mut pair, match_up.rounds, verify)?);
                }
                continue;
            }
        };
        return Ok(FirstStage { blocks, given_up });
    }
}

/// One session of [`CONFIRM_BLOCKS`] blocks in two fresh processes.
fn fresh_session(bench: &Bench<'_>, rig: &mut Rig, match_up: MatchUp<'_>) -> Result<Vec<Block>, Failure> {
    let mut pair = rig.start(bench, match_up)?;
    (0..CONFIRM_BLOCKS)
        .map(|block| {
            let verify = block == 0 || block + 1 == CONFIRM_BLOCKS;
            rig.block(bench, &mut pair, match_up.rounds, verify)
        })
        .collect()
}

/// What the machine shows when nothing differs.
pub(super) struct Spread {
    decision: Decision,
    rounds: usize,
    sessions: Vec<Vec<Block>>,
    rig: Rig,
}

/// Same-against-same sessions in fresh processes: the kernel against a copy of itself with other addresses.
///
/// The first one, of single rounds, settles how many rounds a block has; the others give the margin.
pub(super) fn spread(
    bench: &Bench<'_>,
    target: &[TargetShape],
    contender: Contender<'_>,
    calls: &[u32],
    seed: u64,
) -> Result<Spread, Failure> {
    let mut rig = Rig::new(bench, target, [contender.kernel; 2], seed)?;
    let decision = Decision::new(Margin::default(), calls);
    let padding = |number| Stream::new(seed, "padding").below(number, 4096);
    let twins =
        [twin(bench, contender.kernel, target, padding(0))?, twin(bench, contender.kernel, target, padding(1))?];
    let mut session = |number: usize, rounds: usize| {
        bench.at(Stage::Timing, format!("the machine's own spread, process {} of {}", number + 1, SPREAD_SESSIONS + 1));
        let twin = Contender { kernel: contender.kernel, build: &twins[number % twins.len()] };
        fresh_session(bench, &mut rig, MatchUp { incumbent: contender, candidate: twin, rounds })
    };
    let began = Instant::now();
    let scatter = decision.scatter(&session(0, 1)?);
    let affordable = BLOCK_TIME.as_secs_f64() / (began.elapsed().as_secs_f64() / CONFIRM_BLOCKS as f64);
    let rounds = rounds_for(scatter).min(affordable as usize).max(1);
    let sessions = (1..=SPREAD_SESSIONS).map(|number| session(number, rounds)).collect::<Result<Vec<_>, _>>()?;
    let margin = Margin::from_sessions(&decision, &sessions);
    Ok(Spread { decision: Decision::new(margin, calls), rounds, sessions, rig })
}

/// The same kernel at other addresses: what a candidate that changes nothing looks like.
pub(super) fn twin(
    bench: &Bench<'_>,
    kernel: &KernelFile,
    target: &[TargetShape],
    padding: u64,
) -> Result<Build, Failure> {
    let text = kernel::pad(&kernel.text, padding as usize + 1);
    let padded = KernelFile::parse(&text).map_err(|error| JudgeError::machine("padding", error))?;
    bench.build(&padded, &timed_shapes(target))
}

/// The median speedup of `candidate` over the kernel file `baseline`, in fresh processes.
fn against(
    bench: &Bench<'_>,
    target: &[TargetShape],
    baseline: &str,
    candidate: Contender<'_>,
    calls: &[u32],
    rounds: usize,
    seed: u64,
) -> Result<f64, Failure> {
    bench.at(Stage::Confirmation, "against what the user has today");
    let kernel = trusted(bench, baseline)?;
    let build = trusted_build(bench, &kernel, target)?;
    let mut rig = Rig::new(bench, target, [&kernel, candidate.kernel], seed)?;
    let incumbent = Contender { kernel: &kernel, build: &build };
    let match_up = MatchUp { incumbent, candidate, rounds };
    let sessions: Vec<Vec<Block>> =
        (0..CONFIRM_SESSIONS).map(|_| fresh_session(bench, &mut rig, match_up)).collect::<Result<_, _>>()?;
    let logs = Decision::new(Margin::default(), calls).logs(&sessions.concat());
    median(&logs).map(f64::exp).ok_or_else(|| JudgeError::machine("timing", "no block was measured").into())
}

/// A kernel that was right before: what is wrong with it now is not the candidate's fault.
fn trusted(bench: &Bench<'_>, text: &str) -> Result<KernelFile, Failure> {
    read(&bench.known.op, text, bench.card).map_err(blame_incumbent)
}

fn trusted_build(bench: &Bench<'_>, kernel: &KernelFile, target: &[TargetShape]) -> Result<Build, Failure> {
    bench.build(kernel, &timed_shapes(target)).map_err(blame_incumbent)
}

fn blame_incumbent(failure: Failure) -> Failure {
    match failure {
        Failure::Verdict(verdict) => JudgeError::Incumbent(verdict.why().to_owned()).into(),
        machine @ Failure::Judge(_) => machine,
    }
}

/// A time below the physical floor is never just kept: every rotated output is verified in a fresh process, and a time
/// that no machine of these ceilings can reach is rejected all the same (JUDGE, row 55).
fn below_floor(bench: &Bench<'_>, rig: &mut Rig, match_up: MatchUp<'_>, timing: &Timing) -> Result<(), Failure> {
    let floors = rig.rooflines();
    let suspicious = |share: f64| {
        timing.shapes.iter().zip(&floors).find(|(shape, roofline)| shape.candidate_us < share * roofline.floor_us)
    };
    if suspicious(FLOOR_SHARE).is_none() {
        return Ok(());
    }
    bench.at(Stage::Confirmation, "faster than the floor: every output again");
    let mut pair = rig.start(bench, match_up)?;
    rig.verify_all(bench, &mut pair)?;
    match suspicious(IMPOSSIBLE_SHARE) {
        Some((shape, roofline)) => Err(Failure::reject(
            Stage::Confirmation,
            format!(
                "{:.1} µs at {} is below the physical floor of {:.1} µs; either the work is not done or the ceilings are \
                 wrong (`warpsmith doctor --recalibrate`)",
                shape.candidate_us, shape.shape, roofline.floor_us
            ),
        )),
        None => Ok(()),
    }
}

/// Medians by shape over all blocks of the sessions.
fn summarise(
    decision: &Decision,
    target: &[TargetShape],
    rig: &Rig,
    sessions: &[Vec<Block>],
    rounds: usize,
) -> Result<Timing, Failure> {
    let blocks = sessions.concat();
    let middle = |times: Vec<f64>| {
        median(&times).ok_or_else(|| Failure::from(JudgeError::machine("timing", "a measured time is not a number")))
    };
    let mut shapes = Vec::new();
    for (index, (wanted, roofline)) in target.iter().zip(rig.rooflines()).enumerate() {
        shapes.push(ShapeTiming {
            shape: wanted.shape.clone(),
            dtype: wanted.dtype,
            calls: wanted.calls,
            candidate_us: middle(blocks.iter().map(|block| block.candidate_us[index]).collect())?,
            incumbent_us: middle(blocks.iter().map(|block| block.incumbent_us[index]).collect())?,
            roofline_us: roofline.us,
            bound: roofline.bound,
        });
    }
    let total = |of: &dyn Fn(&ShapeTiming) -> f64| shapes.iter().map(|s| f64::from(s.calls) * of(s)).sum::<f64>();
    let latency_us = total(&|shape| shape.candidate_us);
    Ok(Timing {
        latency_us,
        incumbent_us: total(&|shape| shape.incumbent_us),
        roofline_pct: 100.0 * total(&|shape| shape.roofline_us) / latency_us,
        margin: decision.margin().ratio(),
        spread: decision.margin().spread(),
        blocks: blocks.len() as u32,
        rounds: rounds as u32,
        confirmations: Vec::new(),
        shapes,
    })
}

/// A target shape as a case with its ordinary input.
pub(super) fn timed_case(wanted: &TargetShape) -> Case {
    Case { shape: wanted.shape.clone(), dtype: wanted.dtype, input: None }
}
