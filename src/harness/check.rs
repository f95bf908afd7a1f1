//! One case: draw, launch, take the output away, only then ask the oracle, compare everything.

use std::time::Duration;

use crate::backend::{Arena, Backend, CaseMemory, Change, Fault, Host};
use crate::evaluation::{CaseResult, ErrorStats, Stage};
use crate::op::{Case, Dtype, Operation};

use super::Failure;
use super::bench::{Bench, Taken, Trial};
use super::cases::{LEEWAY, PlannedCase};
use super::task::JudgeError;
use super::timing::SAMPLE_LEEWAY;
use super::undisturbed::undisturbed;

/// Runs one planned case in `host`; a case that fails is recorded and ends the evaluation.
pub(super) fn check<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    planned: &PlannedCase,
    seed: u64,
) -> Result<(), Failure> {
    let PlannedCase { stage, case, .. } = planned;
    let outcome = undisturbed(|again| {
        if again {
            *host = trial.host()?;
        }
        examine(trial, host, planned, seed)
    })?;
    let label = describe(trial.bench.op(), case);
    let (errors, failure) = outcome.map_err(|fault| Failure::fault(fault, *stage, &label))?;
    settle(trial, planned, errors, failure)
}

/// Times its bound that the rms error of a tensor of 16 bits may be where one element of an input is far from all others: what that makes may be
/// nearly all of the rms, and one number that is rounded to the nearest is off by a unit of roundoff u, where the bounds of many, 0.77 u and
/// more, count on the average. Each element has its own bound all the same. Bounds of single precision are far above u.
const ONE_ELEMENT: f64 = 1.4;

/// How far a case's output is from the oracle's, and what is wrong with it.
type Judged = (ErrorStats, Option<String>);

/// The case from drawing to comparing; a fault is the candidate's.
fn examine<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    planned: &PlannedCase,
    seed: u64,
) -> Result<Result<Judged, Fault>, Failure> {
    let PlannedCase { stage, case, .. } = planned;
    let op = trial.bench.op();
    let (image, scratch) = trial.build.image(&case.shape, case.dtype)?;
    trial.arena.reset();
    let mut memory = CaseMemory::place(&mut trial.arena, op, case, scratch, 1)?;
    trial.bench.draw(&memory, &mut trial.arena, 0, seed)?;
    memory.poison(&mut trial.arena, 0, seed);
    // Where the oracle is what takes the time, it is asked about the second launch alone. Hostile inputs stay as they are.
    let macs = op.macs(&case.shape).map_err(JudgeError::from)?;
    let once = macs > trial.bench.backend.case_limits().macs_twice && case.input.is_none();
    let before = match launch(trial, host, &memory, image)? {
        Ok((outputs, _)) => outputs,
        Err(fault) => return Ok(Err(fault)),
    };
    let first = match once {
        false => judge_output(trial, planned, &memory, &before)?,
        true => (ErrorStats::default(), intact(trial, &memory)),
    };
    if first.1.is_some() || (*stage != Stage::Smoke && !once) {
        return Ok(Ok(first));
    }
    if !once {
        same_in_part(trial, &memory, seed)?;
    }
    // One random element changes, nothing is poisoned: a result remembered from the first launch is now wrong.
    let change = memory.change_one(&mut trial.arena, 0, seed);
    let outputs = match launch(trial, host, &memory, image)? {
        Ok((outputs, _)) => outputs,
        Err(fault) => return Ok(Err(fault)),
    };
    // PyTorch's own error was measured on inputs of the case's kind, of which one with an element far from all others is none.
    let changed = PlannedCase {
        leeway: planned.leeway.max(if op.knows_only_wholes() { LEEWAY } else { 1.0 }),
        ..planned.clone()
    };
    let (errors, failure) = judge_output(trial, &changed, &memory, &outputs)?;
    let failure = failure.filter(|_| case.dtype == Dtype::F32 || !errors.within_but_for_rms(ONE_ELEMENT));
    let again = if *stage == Stage::Smoke { trial.bench.backend.case_limits().again } else { 0 };
    for _ in 0..again {
        if let Err(fault) = launch(trial, host, &memory, image)? {
            return Ok(Err(fault));
        }
    }
    let remembered = outputs == before;
    Ok(Ok(match failure {
        Some(why) => (errors, Some(format!("{why}, {}", after_change(change.as_ref(), remembered)))),
        None if once => (errors, None),
        None => first,
    }))
}

/// A right output must also be right where some of its elements are asked for alone, as timing does. Where it is not, the
/// operation's file does not say what an element needs.
fn same_in_part<B: Backend>(trial: &mut Trial<'_, B>, memory: &CaseMemory, seed: u64) -> Result<(), JudgeError> {
    let op = trial.bench.op();
    if op.knows_only_wholes() {
        return Ok(());
    }
    let sample = op.sample(&memory.case().shape, seed, u64::MAX)?;
    let errors = match trial.bench.compare_some(memory, &mut trial.arena, 0, &sample) {
        Err(Failure::Judge(error)) => return Err(error),
        Err(Failure::Verdict(_)) => return Ok(()),
        Ok(errors) => errors,
    };
    if errors.within(SAMPLE_LEEWAY) {
        return Ok(());
    }
    let what = format!(
        "some elements of {} are different when they are asked for alone; an item of a pass may use its own part of each \
         array only (docs/adding-an-operation.md, \"Passes\"): {}",
        describe(op, memory.case()),
        errors.failure().unwrap_or_default()
    );
    Err(JudgeError::machine("the oracle", what))
}

/// What stands in a verdict about a launch on a changed input. Only an output that did not change shows that it was kept.
fn after_change(change: Option<&Change>, remembered: bool) -> String {
    if remembered {
        return "after one input element changed, and the output is the same as before: a result was remembered".into();
    }
    let Some(Change { tensor, element, before, after }) = change else { return "in a second launch".into() };
    format!("after element {element} of `{tensor}` changed from {before:.4} to {after:.4}")
}

/// The outputs, taken at once after a launch on the case's first copy, and how long it took.
pub(super) fn launch<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    memory: &CaseMemory,
    image: usize,
) -> Result<Result<(Taken<B>, Duration), Fault>, Failure> {
    let limit = trial.bench.launch_limit(memory.case()).map_err(JudgeError::from)?;
    let took = match host.launch(&memory.call(image, 0), limit) {
        Ok(took) => took,
        Err(fault) => return Ok(Err(fault)),
    };
    let outputs = host.take(memory, &mut trial.arena, 0);
    Ok(host.idle_check().map(|()| (outputs, took)))
}

/// What a launch on `copy` overwrote beside its outputs, in a sentence.
pub(super) fn damage<A: Arena>(memory: &CaseMemory, arena: &mut A, copy: usize) -> Option<String> {
    if let Err(why) = memory.check_zones(arena, copy) {
        return Some(why);
    }
    memory.changed_input(arena, copy).map(|name| format!("it wrote to its input `{name}`"))
}

/// The same for a case's only copy, with the case.
fn intact<B: Backend>(trial: &mut Trial<'_, B>, memory: &CaseMemory) -> Option<String> {
    let why = damage(memory, &mut trial.arena, 0)?;
    Some(format!("{}: {why}", describe(trial.bench.op(), memory.case())))
}

/// Looks at the red zones and inputs, evaluates the oracle, compares.
fn judge_output<B: Backend>(
    trial: &mut Trial<'_, B>,
    planned: &PlannedCase,
    memory: &CaseMemory,
    outputs: &Taken<B>,
) -> Result<Judged, Failure> {
    if let Some(why) = intact(trial, memory) {
        return Ok((ErrorStats::default(), Some(why)));
    }
    let (errors, failure) = compare_with_oracle(trial.bench, memory, &mut trial.arena, 0, outputs)?;
    let failure = failure.filter(|_| !errors.within(planned.leeway));
    Ok((errors, failure))
}

/// Compares `outputs` with the oracle's answer for what the inputs of `copy` hold.
pub(super) fn compare_with_oracle<B: Backend>(
    bench: &Bench<'_, B>,
    memory: &CaseMemory,
    arena: &mut B::Arena,
    copy: usize,
    outputs: &Taken<B>,
) -> Result<Judged, Failure> {
    let errors = bench.compare(memory, arena, copy, outputs)?;
    let label = describe(bench.op(), memory.case());
    let failure = errors.failure().map(|why| format!("{label}: {why}"));
    Ok((errors, failure))
}

/// Records a case's result; a failure becomes the rejection.
pub(super) fn settle<B: Backend>(
    trial: &mut Trial<'_, B>,
    planned: &PlannedCase,
    errors: ErrorStats,
    failure: Option<String>,
) -> Result<(), Failure> {
    trial.cases.push(CaseResult {
        stage: planned.stage,
        case: planned.case.clone(),
        shrunk: planned.shrunk,
        errors,
        failure: failure.clone(),
    });
    match failure {
        Some(why) => Err(Failure::reject(planned.stage, why)),
        None => Ok(()),
    }
}

/// `2048x2048 f16, input zero_rows`.
pub(super) fn describe(op: &Operation, case: &Case) -> String {
    let input = case.input.as_ref().map_or(String::new(), |name| format!(", input {name}"));
    let values = op.scalars_of(case).unwrap_or_default();
    let others = op.scalars.iter().zip(values).filter(|_| case.setting > 0);
    let others: String = others.map(|(scalar, value)| format!(", {} = {value:e}", scalar.name)).collect();
    format!("{} {}{input}{others}", op.label(&case.shape), case.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_output_that_did_not_change_shows_that_a_result_was_remembered() {
        let change = Change { tensor: "x".into(), element: 7, before: 0.5, after: -40.0 };
        assert!(after_change(Some(&change), true).contains("a result was remembered"));
        assert_eq!(after_change(Some(&change), false), "after element 7 of `x` changed from 0.5000 to -40.0000");
        assert!(!after_change(None, false).contains("remembered"));
    }
}
