//! Candidate against incumbent: paired timing until the decision is made, then confirmation in fresh processes.

use crate::backend::Backend;
use crate::device::Roofline;
use crate::evaluation::{Baseline, ShapeTiming, Speedup, Stage, Timing, Verdict};
use crate::op::TargetShape;
use crate::stats::median;

use super::Failure;
use super::baselines::{Beside, baselines};
use super::bench::{Bench, timed_shapes};
use super::build::{Build, Wanted};
use super::decision::{Decision, First, Margin, Outcome, Simplification};
use super::fresh::{blocks_of, sessions};
use super::session::{Block, CONFIRM_SESSIONS, LOOK_SESSIONS, SPREAD_SESSIONS, throws_samples_away};
use super::simplicity::is_simpler;
use super::spread::{COPIES, copies, spread};
use super::task::{EvaluationTask, JudgeError};
use super::timing::{MatchUp, Rig, rooflines};

/// A measured time below this share of the physical floor is looked at again (docs/how-timing-decides.md, "Roofline and floor").
const FLOOR_SHARE: f64 = 0.97;

/// No honest kernel is this far below measured ceilings, whatever the noise of their calibration.
const IMPOSSIBLE_SHARE: f64 = 0.7;

/// Of so many blocks one has some of its outputs compared in full, beside the last one before a decision.
const COMPARED_ONE_IN: u64 = 6;

/// What timing has to say.
pub(super) struct Timed {
    pub(super) verdict: Verdict,
    pub(super) timing: Timing,
    pub(super) vs_user: Option<f64>,
    /// The library that `vs_user` is measured against; `None` is the starter.
    pub(super) against: Option<String>,
    /// What PyTorch takes, where it is the oracle.
    pub(super) baselines: Vec<Baseline>,
    /// The first block's ratio: what a rule of one sample would have gone by.
    pub(super) first_block: f64,
}

/// Times `candidate` as the task asks: alone where there is no incumbent (`twins` are its copies then), else until the keep
/// rule has decided.
pub(super) fn time<B: Backend>(
    bench: &Bench<'_, B>,
    task: &EvaluationTask,
    target: &[TargetShape],
    candidate: &Build<B>,
    twins: &[Build<B>],
) -> Result<Timed, Failure> {
    let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
    let rooflines = rooflines(bench, target)?;
    let Some(incumbent_text) = &task.incumbent else {
        let here = bench.here();
        let (bench, count) = if task.look { (&here, LOOK_SESSIONS) } else { (bench, SPREAD_SESSIONS) };
        let spread = spread(bench, target, candidate, twins, &calls, task.seed, count)?;
        let timing = summarise(bench, &spread.decision, target, &rooflines, &spread.sessions, spread.rounds)?;
        // It only says where the run begins; what a keep gains is measured in fresh processes.
        let sessions = if task.look { 1 } else { CONFIRM_SESSIONS };
        let library = against_library(&bench.here(), target, candidate, spread.rounds, (task.seed, sessions))?;
        let margin = spread.decision.margin();
        let Beside { baselines, fastest, kept } =
            baselines(&bench.here(), target, candidate, (margin, task.seed), !task.look)?;
        let library = library.or(fastest);
        let (vs_user, against) = library.map_or((1.0, None), |(ratio, name)| (ratio, Some(name)));
        let vs_user = Some(vs_user);
        // A start that beats everything the user has today is the first that is kept.
        let verdict = match kept.filter(|_| !task.look) {
            Some(speedup) => Verdict::Keep { speedup, simpler: false },
            None => Verdict::Base,
        };
        return Ok(Timed { verdict, timing, vs_user, against, baselines, first_block: 1.0 });
    };
    let incumbent = bench.trusted(incumbent_text, target)?;
    let (margin, rounds) = match task.precision {
        Some(known) => (Margin::from_spread(known.spread), known.rounds as usize),
        None => {
            let timed = timed_shapes(target);
            let copies = copies(incumbent_text, task.seed, COPIES)?;
            let wanted = copies.into_iter().map(|copy| Wanted::new(copy, &timed)).collect();
            let twins = bench.build_all(wanted, &mut |_| ())?;
            let spread = spread(bench, target, &incumbent, &twins, &calls, task.seed, SPREAD_SESSIONS)?;
            (spread.decision.margin(), spread.rounds)
        }
    };
    let mut decision = Decision::new(margin, &calls);
    if let Some(branch_over_best) = task.branch_over_best
        && is_simpler(incumbent_text, &task.candidate)
    {
        decision = decision.for_simpler(Simplification { branch_over_best });
    }

    let mut rig = Rig::new(bench, target, [&incumbent, candidate], task.seed)?;
    let match_up = MatchUp { incumbent: &incumbent, candidate, rounds };
    let first = first_stage(bench, &decision, &mut rig, match_up)?;
    let first_block = decision.logs(&first.blocks[..1]).first().map_or(1.0, |d| d.exp());
    if let Some((speedup, why)) = first.given_up {
        let timing = summarise(bench, &decision, target, &rooflines, &[first.blocks], rounds)?;
        let verdict = Verdict::Revert { speedup, why };
        return Ok(Timed { verdict, timing, vs_user: None, against: None, baselines: Vec::new(), first_block });
    }
    // Processes elsewhere have buffers of their own, and of tensors of several GB a device does not hold both.
    let mut rig = Some(rig).filter(|_| bench.elsewhere.is_none());
    let matches: Vec<_> = (1..=CONFIRM_SESSIONS).map(|number| (number, match_up)).collect();
    let told = (Stage::Confirmation, "once more");
    let confirmed = sessions(bench, rig.as_mut(), target, task.seed, &matches, told)?;
    // In each of several fresh processes: a host that is busy once is no sign of anything.
    let hidden_us = confirmed.iter().map(|session| session.hidden_us).fold(f64::INFINITY, f64::min);
    if hidden_us > 0.0 {
        let why = format!(
            "its threads ran {hidden_us:.0} µs a sample more than the incumbent's, and than is allowed, while no time was taken: \
             what is done before the clock starts or after it stops counts as well"
        );
        return Err(Failure::reject(Stage::Confirmation, why));
    }
    let taken_again =
        confirmed.iter().fold([0, 0], |sum: [u32; 2], it| [0, 1].map(|side| sum[side] + it.taken_again[side]));
    if throws_samples_away(taken_again) {
        let why = format!(
            "its threads ran on behind {} of its samples, which did not count therefore, and behind {} of the incumbent's: only \
             samples that it lets pass would be compared",
            taken_again[0], taken_again[1]
        );
        return Err(Failure::reject(Stage::Confirmation, why));
    }
    let measured = blocks_of(confirmed);
    let outcome = decision.confirm(&measured);
    let mut timing = summarise(bench, &decision, target, &rooflines, &measured, rounds)?;
    timing.blocks = first.blocks.len() as u32;
    timing.confirmations = decision.session_speedups(&measured);
    below_floor(bench, rig, match_up, (target, task.seed), &timing, &rooflines)?;
    let (vs_user, against) = match &outcome {
        Outcome::Keep { speedup, .. } => versus_user(bench, task, target, candidate, rounds, speedup.ratio)?,
        _ => (None, None),
    };
    let Beside { baselines, fastest, .. } = match &outcome {
        Outcome::Keep { .. } => baselines(&bench.here(), target, candidate, (margin, task.seed), true)?,
        Outcome::Revert { .. } => Beside::nothing(),
    };
    let (vs_user, against) = match fastest {
        Some((ratio, name)) => (Some(ratio), Some(name)),
        None => (vs_user, against),
    };
    Ok(Timed { verdict: outcome.into(), timing, vs_user, against, baselines, first_block })
}

/// What a kept candidate gains against what the user has today, and the library's name where that is one; `gain` is what it
/// gained against the incumbent.
fn versus_user<B: Backend>(
    bench: &Bench<'_, B>,
    task: &EvaluationTask,
    target: &[TargetShape],
    candidate: &Build<B>,
    rounds: usize,
    gain: f64,
) -> Result<(Option<f64>, Option<String>), Failure> {
    // What is kept was confirmed in fresh processes; this says how far it is from where the user was.
    let here = bench.here();
    if let Some((ratio, name)) = against_library(&here, target, candidate, rounds, (task.seed, CONFIRM_SESSIONS))? {
        return Ok((Some(ratio), Some(name)));
    }
    let ratio = match &task.baseline {
        Some(baseline) if Some(baseline) == task.incumbent.as_ref() => Some(gain),
        Some(baseline) => {
            let baseline = bench.trusted(baseline, target)?;
            Some(against(
                &here,
                target,
                MatchUp { incumbent: &baseline, candidate, rounds },
                (task.seed, CONFIRM_SESSIONS),
            )?)
        }
        None => None,
    };
    Ok((ratio, None))
}

/// The same against the library that the user has today, with its name; `None` where it is no library.
fn against_library<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    candidate: &Build<B>,
    rounds: usize,
    (seed, sessions): (u64, usize),
) -> Result<Option<(f64, String)>, Failure> {
    let Some((library, name)) = bench.library(target) else { return Ok(None) };
    let ratio = against(bench, target, MatchUp { incumbent: &library, candidate, rounds }, (seed, sessions))?;
    Ok(Some((ratio, name.to_owned())))
}

/// The median speedup of the candidate of a match-up, in fresh processes.
fn against<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    match_up: MatchUp<'_, B>,
    (seed, count): (u64, usize),
) -> Result<f64, Failure> {
    let calls: Vec<u32> = target.iter().map(|wanted| wanted.calls).collect();
    let matches: Vec<_> = (1..=count).map(|number| (number, match_up)).collect();
    let told = (Stage::Confirmation, "against what the user has today");
    let measured = blocks_of(sessions(bench, None, target, seed, &matches, told)?);
    let logs = Decision::new(Margin::default(), &calls).logs(&measured.concat());
    median(&logs).map(f64::exp).ok_or_else(|| JudgeError::machine("timing", "no block was measured").into())
}

struct FirstStage {
    blocks: Vec<Block>,
    given_up: Option<(Speedup, String)>,
}

/// Blocks until the rule gives up or asks for confirmation; in a fresh process when the rule asks for one.
fn first_stage<B: Backend>(
    bench: &Bench<'_, B>,
    decision: &Decision,
    rig: &mut Rig<B>,
    match_up: MatchUp<'_, B>,
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
                    let verify = blocks.len() + 1 == end || rig.is_compared(COMPARED_ONE_IN);
                    blocks.push(rig.block(bench, &mut pair, match_up.rounds, verify)?);
                }
                continue;
            }
        };
        return Ok(FirstStage { blocks, given_up });
    }
}

/// A time below the physical floor is never just kept: every rotated output is verified in a fresh process, and a time
/// that no machine of these ceilings can reach is rejected all the same (docs/how-timing-decides.md,
/// "Roofline and floor"). `rig` is what was measured with here, where it is still there.
fn below_floor<B: Backend>(
    bench: &Bench<'_, B>,
    rig: Option<Rig<B>>,
    match_up: MatchUp<'_, B>,
    (target, seed): (&[TargetShape], u64),
    timing: &Timing,
    floors: &[Roofline],
) -> Result<(), Failure> {
    let suspicious = |share: f64| {
        timing.shapes.iter().zip(floors).find(|(shape, roofline)| shape.candidate_us < share * roofline.floor_us)
    };
    if suspicious(FLOOR_SHARE).is_none() {
        return Ok(());
    }
    bench.at(Stage::Confirmation, "faster than the floor: every output again");
    let mut rig = match rig {
        Some(rig) => rig,
        None => {
            let mut rig = Rig::new(bench, target, [match_up.incumbent, match_up.candidate], seed)?;
            rig.skip_to(CONFIRM_SESSIONS as u32 + 1);
            rig
        }
    };
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
fn summarise<B: Backend>(
    bench: &Bench<'_, B>,
    decision: &Decision,
    target: &[TargetShape],
    rooflines: &[Roofline],
    sessions: &[Vec<Block>],
    rounds: usize,
) -> Result<Timing, Failure> {
    let blocks = sessions.concat();
    let middle = |times: Vec<f64>| {
        median(&times).ok_or_else(|| Failure::from(JudgeError::machine("timing", "a measured time is not a number")))
    };
    let mut shapes = Vec::new();
    for (index, (wanted, roofline)) in target.iter().zip(rooflines).enumerate() {
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
        condition: bench.backend.condition(),
        shapes,
    })
}
