//! One question of an examination: how it is put to a kernel, and what is wrong with what comes out.

use std::time::{Duration, Instant};

use crate::backend::{Arena, Backend, CaseMemory, Fault, Host};
use crate::defence::Defence;
use crate::evaluation::{CaseResult, ErrorStats, Stage};
use crate::op::Case;
use crate::rng::Stream;

use super::Failure;
use super::bench::{Bench, Taken, Trial};
use super::build::Build;
use super::check::{self, compare_with_oracle, damage, describe};
use super::questions::{Question, whole};
use super::task::JudgeError;
use super::timing::SAMPLE_LEEWAY;
use super::undisturbed::undisturbed;

/// Where comparing all of an output would take too long, so many rows of it are compared.
const ROWS: u64 = 24;

/// No further row is begun after that.
const ROWS_TAKE: Duration = Duration::from_secs(1);

/// Puts one question, and tells how long the kernel's launches took.
pub(super) fn ask<B: Backend>(
    bench: &Bench<'_, B>,
    build: &Build<B>,
    question: &Question,
    seed: u64,
) -> Result<Duration, Failure> {
    let (op, case) = (bench.op(), &question.case);
    let (_, scratch) = build.image(&case.shape, case.dtype)?;
    let sizes = CaseMemory::footprint::<B::Arena>(op, case, scratch, 1 + question.before.len(), question.placing)
        .map_err(JudgeError::from)?;
    let arena = bench.arena([sizes], question.placing)?;
    let mut cases: Vec<CaseResult> = Vec::new();
    let conditions = question.conditions;
    let mut trial = Trial { bench, build, arena, conditions, cases: &mut cases, occupancy: Vec::new() };
    let mut host = trial.host()?;
    let mut launched = Duration::ZERO;
    let wrong = undisturbed(|again| {
        if again {
            host = trial.host()?;
        }
        answer(&mut trial, &mut host, question, (seed, &mut launched))
    })?;
    // Of a row of launches the one that is wrong is named by the answer; the first is what all of them have in common.
    let label = format!("{} ({})", describe(op, question.before.first().unwrap_or(case)), question.topic.name());
    match wrong.map_err(|fault| Failure::fault(fault, Stage::Examination, &label))? {
        Some(why) => Err(Failure::reject(Stage::Examination, format!("{label}: {why}"))),
        None => Ok(launched),
    }
}

/// Puts the question, and looks at what came out: what is wrong with it, if anything.
fn answer<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    question: &Question,
    (seed, launched): (u64, &mut Duration),
) -> Result<Result<Option<String>, Fault>, Failure> {
    let (bench, case) = (trial.bench, &question.case);
    let (_, scratch) = trial.build.image(&case.shape, case.dtype)?;
    trial.arena.reset();
    let memory = CaseMemory::place(&mut trial.arena, bench.op(), case, scratch, 1 + question.before.len())?;
    let memory = memory.with_sums(question.sums);
    match question.before.is_empty() {
        true => again_and_again(trial, host, question, memory, (seed, launched)),
        false => in_a_row(trial, host, question, &memory, (seed, launched)),
    }
}

/// Launches on the same input as often as the question says.
fn again_and_again<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    question: &Question,
    mut memory: CaseMemory,
    (seed, launched): (u64, &mut Duration),
) -> Result<Result<Option<String>, Fault>, Failure> {
    let (bench, case) = (trial.bench, &question.case);
    let (image, _) = trial.build.image(&case.shape, case.dtype)?;
    bench.draw(&memory, &mut trial.arena, 0, seed)?;
    let mut first = None;
    for launch in 0..question.launches {
        bench.check_cancelled()?;
        let seed = seed.wrapping_add(u64::from(launch));
        memory.poison(&mut trial.arena, 0, seed);
        let (outputs, took) = match check::launch(trial, host, &memory, image)? {
            Ok(launched) => launched,
            Err(fault) => return Ok(Err(fault)),
        };
        *launched += took;
        let same_as_first = first.as_ref().map(|first| *first == outputs);
        let wrong = match same_as_first.is_none() || trial.build.order_free() {
            true => wrong_outputs(trial, &memory, 0, &outputs, (question.leeway, seed))?,
            false => damage(&memory, &mut trial.arena, 0),
        };
        let differs = same_as_first == Some(false) && !trial.build.order_free();
        let wrong = wrong.or_else(|| {
            differs.then(|| {
                format!("launch {} on the same input gave other bits; a race, or an uninitialised value", launch + 1)
            })
        });
        if wrong.is_some() {
            return Ok(Ok(wrong));
        }
        first.get_or_insert(outputs);
    }
    if question.launches > 1 || !Defence::UsedBuffers.stands() || Stream::new(seed, "used buffers").below(0, 2) > 0 {
        return Ok(Ok(None));
    }
    // Once more as in a model: other inputs, and what the launch before has left in outputs and scratch.
    let seed = seed.wrapping_add(1);
    bench.draw(&memory, &mut trial.arena, 0, seed)?;
    let (outputs, took) = match check::launch(trial, host, &memory, image)? {
        Ok(launched) => launched,
        Err(fault) => return Ok(Err(fault)),
    };
    *launched += took;
    let wrong = wrong_outputs(trial, &memory, 0, &outputs, (question.leeway, seed))?;
    Ok(Ok(wrong.map(|why| format!("launched again on the same buffers, with other inputs: {why}"))))
}

/// Launches on several copies, one after the other with nothing between them, as those of a timed sample follow each other, each with
/// other inputs. What a launch leaves behind for the next, in shared memory or anywhere, meets values there that it was not made for.
fn in_a_row<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    question: &Question,
    memory: &CaseMemory,
    (seed, launched): (u64, &mut Duration),
) -> Result<Result<Option<String>, Fault>, Failure> {
    let (bench, case) = (trial.bench, &question.case);
    let (image, _) = trial.build.image(&case.shape, case.dtype)?;
    let stream = Stream::new(seed, "in a row");
    let cases: Vec<&Case> = question.before.iter().chain([case]).collect();
    let copies = cases.len();
    let mut row = Vec::with_capacity(copies);
    for (case, copy) in cases.into_iter().zip(stream.permutation(copies)) {
        let mut holds = memory.with_case(case).map_err(JudgeError::from)?;
        let seed = stream.bits((copies + copy) as u64);
        bench.draw(&holds, &mut trial.arena, copy, seed)?;
        holds.poison(&mut trial.arena, copy, seed);
        row.push((holds, copy, seed));
    }
    let calls: Vec<_> = row.iter().map(|(holds, copy, _)| holds.call(image, *copy)).collect();
    let limit = bench.launch_limit(case).map_err(JudgeError::from)?;
    match host.run(&calls, limit * copies as u32) {
        Ok(took) => *launched += took,
        Err(fault) => return Ok(Err(fault)),
    }
    let taken: Vec<_> = row.iter().map(|(holds, copy, _)| host.take(holds, &mut trial.arena, *copy)).collect();
    if let Err(fault) = host.idle_check() {
        return Ok(Err(fault));
    }
    for (place, ((holds, copy, seed), outputs)) in row.iter().zip(&taken).enumerate() {
        if let Some(why) = wrong_outputs(trial, holds, *copy, outputs, (question.leeway, *seed))? {
            let label = describe(bench.op(), holds.case());
            return Ok(Ok(Some(format!("launch {} of {copies} in a row, {label}: {why}", place + 1))));
        }
    }
    Ok(Ok(None))
}

/// What is wrong with a copy's buffers and with its outputs, all of them or rows that `seed` chooses.
fn wrong_outputs<B: Backend>(
    trial: &mut Trial<'_, B>,
    memory: &CaseMemory,
    copy: usize,
    outputs: &Taken<B>,
    (leeway, seed): (f64, u64),
) -> Result<Option<String>, Failure> {
    let (bench, limits) = (trial.bench, trial.bench.backend.case_limits());
    if let Some(why) = damage(memory, &mut trial.arena, copy) {
        return Ok(Some(why));
    }
    // Where the oracle knows nothing less, all is compared, whatever it takes.
    if bench.op().knows_only_wholes() || whole(bench.op(), memory.case(), &limits).map_err(JudgeError::from)? {
        let (errors, why) = compare_with_oracle(bench, memory, &mut trial.arena, copy, outputs)?;
        return Ok(why.filter(|_| !errors.within(leeway)));
    }
    rows(trial, memory, copy, (leeway, seed))
}

/// Compares rows that `seed` chooses.
fn rows<B: Backend>(
    trial: &mut Trial<'_, B>,
    memory: &CaseMemory,
    copy: usize,
    (leeway, seed): (f64, u64),
) -> Result<Option<String>, Failure> {
    let (op, began) = (trial.bench.op(), Instant::now());
    let stream = Stream::new(seed, "rows");
    let most = trial.bench.backend.case_limits().macs / ROWS;
    for row in 0..ROWS {
        let sample = op.sample(&memory.case().shape, stream.bits(row), most).map_err(JudgeError::from)?;
        // One row of 2^31 columns keeps a warp busy for a second: then a few say as much.
        if sample.is_empty() || began.elapsed() > ROWS_TAKE {
            break;
        }
        let errors: ErrorStats = trial.bench.compare_some(memory, &mut trial.arena, copy, &sample)?;
        if let Some(why) = errors.failure().filter(|_| !errors.within(leeway.max(SAMPLE_LEEWAY))) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}
