//! One case: draw, launch, take the output away, only then ask the oracle, compare everything.

use std::time::Duration;

use crate::backend::cpu::{Arena, CaseMemory, Fault, Host, ScratchBuffer, compare, failure};
use crate::evaluation::{CaseResult, ErrorStats, Stage};
use crate::op::{Case, OpError, Operation};

use super::Failure;
use super::cases::PlannedCase;
use super::judge::{Bench, Trial};
use super::task::JudgeError;

/// Time a launch may always take.
const MIN_LIMIT: Duration = Duration::from_secs(2);

/// A kernel slower than this many operations a second is taken to hang.
const SLOWEST_FLOPS: f64 = 5e7;

/// How long one launch of `case` may take before it counts as hanging.
///
/// # Errors
/// A shape that does not fit the operation.
pub(super) fn launch_limit(op: &Operation, case: &Case) -> Result<Duration, OpError> {
    Ok(MIN_LIMIT + Duration::from_secs_f64(op.flops(&case.shape)? as f64 / SLOWEST_FLOPS))
}

/// Runs one planned case in `host`; a case that fails is recorded and ends the evaluation.
pub(super) fn check(trial: &mut Trial<'_>, host: &mut Host, planned: &PlannedCase, seed: u64) -> Result<(), Failure> {
    let PlannedCase { stage, case, .. } = planned;
    let mut outcome = examine(trial, host, planned, seed)?;
    if let Err(Fault::RanOn { .. }) = outcome {
        // A core that was away looks the same as a thread that ran on: only a fresh process that repeats it is believed.
        *host = trial.host()?;
        outcome = examine(trial, host, planned, seed)?;
    }
    let (errors, failure) = outcome.map_err(|fault| Failure::fault(fault, *stage, &describe(trial.op, case)))?;
    settle(trial, planned, errors, failure)
}

/// How far a case's output is from the oracle's, and what is wrong with it.
type Judged = (ErrorStats, Option<String>);

/// The case from drawing to comparing; a fault is the candidate's.
fn examine(
    trial: &mut Trial<'_>,
    host: &mut Host,
    planned: &PlannedCase,
    seed: u64,
) -> Result<Result<Judged, Fault>, Failure> {
    let PlannedCase { stage, case, .. } = planned;
    let (image, resolution) = trial.build.image(&case.shape, case.dtype)?;
    let scratch = ScratchBuffer::of(trial.kernel, resolution);
    trial.arena.reset();
    let mut memory = CaseMemory::place(&mut trial.arena, trial.op, case, &scratch, 1).map_err(memory_error)?;
    memory.draw(&mut trial.arena, 0, seed).map_err(memory_error)?;
    memory.poison(&mut trial.arena, 0, seed);
    let first = match launch(trial, host, &memory, image, case)? {
        Ok(outputs) => judge_output(trial, &memory, case, &outputs)?,
        Err(fault) => return Ok(Err(fault)),
    };
    if *stage != Stage::Smoke || first.1.is_some() {
        return Ok(Ok(first));
    }
    // One random element changes, nothing is poisoned: a result remembered from the first launch is now wrong (JUDGE, row 4).
    memory.change_one(&mut trial.arena, 0, seed);
    let again = match launch(trial, host, &memory, image, case)? {
        Ok(outputs) => judge_output(trial, &memory, case, &outputs)?,
        Err(fault) => return Ok(Err(fault)),
    };
    Ok(Ok(match again {
        (errors, Some(why)) => {
            (errors, Some(format!("{why}, after one input element changed: a result was remembered")))
        }
        (_, None) => first,
    }))
}

/// Each output's bytes, taken at once after a launch and with the candidate's threads stopped.
fn launch(
    trial: &Trial<'_>,
    host: &mut Host,
    memory: &CaseMemory,
    image: usize,
    case: &Case,
) -> Result<Result<Vec<Vec<u8>>, Fault>, Failure> {
    let limit = launch_limit(trial.op, case).map_err(JudgeError::from)?;
    if let Err(fault) = host.launch(&memory.call(image, 0), limit) {
        return Ok(Err(fault));
    }
    let outputs = taken(host, memory, &trial.arena, 0);
    Ok(host.idle_check().map(|()| outputs))
}

/// The outputs of `copy` out of the candidate's reach, while it is stopped.
pub(super) fn taken(host: &Host, memory: &CaseMemory, arena: &Arena, copy: usize) -> Vec<Vec<u8>> {
    host.while_stopped(|| memory.outputs(arena, copy).into_iter().map(<[u8]>::to_vec).collect())
}

/// Looks at the red zones, evaluates the oracle, compares.
fn judge_output(trial: &Trial<'_>, memory: &CaseMemory, case: &Case, outputs: &[Vec<u8>]) -> Result<Judged, Failure> {
    let label = describe(trial.op, case);
    if let Err(why) = memory.check_zones(&trial.arena, 0) {
        return Ok((ErrorStats::default(), Some(format!("{label}: {why}"))));
    }
    compare_with_oracle(trial.bench, memory, &trial.arena, case, 0, outputs)
}

/// Compares `outputs` with the oracle's answer for what the inputs of `copy` hold.
pub(super) fn compare_with_oracle(
    bench: &Bench<'_>,
    memory: &CaseMemory,
    arena: &Arena,
    case: &Case,
    copy: usize,
    outputs: &[Vec<u8>],
) -> Result<Judged, Failure> {
    let expected = bench.expected(case, memory, arena, copy)?;
    let views: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
    let errors = compare(&bench.known.op, case, &views, &expected).map_err(JudgeError::from)?;
    let label = describe(&bench.known.op, case);
    Ok((errors, failure(&errors).map(|why| format!("{label}: {why}"))))
}

/// Records a case's result; a failure becomes the rejection.
pub(super) fn settle(
    trial: &mut Trial<'_>,
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
    format!("{} {}{input}", op.label(&case.shape), case.dtype)
}

pub(super) fn memory_error(error: impl std::fmt::Display) -> Failure {
    JudgeError::machine("tensor memory", error).into()
}

/// Bytes of arena that `case` needs: inputs and outputs apart.
pub(super) fn arena_bytes(
    op: &Operation,
    case: &Case,
    scratch: &[ScratchBuffer],
    copies: usize,
) -> Result<(usize, usize), Failure> {
    CaseMemory::footprint(op, case, scratch, copies).map_err(|error| JudgeError::from(error).into())
}

/// An arena that holds the largest of `cases`.
pub(super) fn arena_for(sizes: impl Iterator<Item = (usize, usize)>) -> Result<Arena, Failure> {
    let (inputs, outputs) = sizes.fold((0, 0), |(i, o), (a, b)| (i.max(a), o.max(b)));
    Arena::new(inputs, outputs).map_err(memory_error)
}
