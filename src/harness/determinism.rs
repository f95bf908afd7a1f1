//! Stage 4: the same bits every time, at other addresses, with other poison, after a fresh load.

use crate::backend::cpu::{CaseMemory, Host, ScratchBuffer};
use crate::evaluation::Stage;
use crate::op::Case;

use super::Failure;
use super::cases::PlannedCase;
use super::check::{compare_with_oracle, describe, launch_limit, memory_error, settle, taken};
use super::judge::Trial;
use super::task::JudgeError;

/// Launches compared: the first in one process, the others at other addresses in a second one.
const REPEATS: usize = 3;

/// Runs the largest timed case repeatedly on the same input.
pub(super) fn determinism(trial: &mut Trial<'_>, case: &Case, seed: u64) -> Result<(), Failure> {
    let stage = Stage::Determinism;
    let (image, resolution) = trial.build.image(&case.shape, case.dtype)?;
    let scratch = ScratchBuffer::of(trial.kernel, resolution);
    let limit = launch_limit(trial.op, case).map_err(JudgeError::from)?;
    let label = describe(trial.op, case);
    trial.arena.reset();
    let mut memory = CaseMemory::place(&mut trial.arena, trial.op, case, &scratch, REPEATS).map_err(memory_error)?;
    let mut outputs = Vec::with_capacity(REPEATS);
    let mut host: Option<Host> = None;
    for copy in 0..REPEATS {
        memory.draw(&mut trial.arena, copy, seed).map_err(memory_error)?;
        memory.poison(&mut trial.arena, copy, seed.wrapping_add(1 + copy as u64));
        if copy < 2 {
            host = Some(trial.host()?);
        }
        let Some(host) = host.as_mut() else { continue };
        host.launch(&memory.call(image, copy), limit).map_err(|fault| Failure::fault(fault, stage, &label))?;
        if let Err(why) = memory.check_zones(&trial.arena, copy) {
            return Err(Failure::reject(stage, format!("{label}: {why}")));
        }
        outputs.push(taken(host, &memory, &trial.arena, copy));
    }
    let (errors, mut failure) = compare_with_oracle(trial.bench, &memory, &trial.arena, case, 0, &outputs[0])?;
    // Where the bits may differ, each output must be right by itself.
    for (copy, output) in outputs.iter().enumerate().skip(1).filter(|_| trial.kernel.front.order_free) {
        let (_, wrong) = compare_with_oracle(trial.bench, &memory, &trial.arena, case, copy, output)?;
        failure = failure.or(wrong);
    }
    // A stated accumulation order may vary within the tolerance; otherwise every bit is the same.
    if failure.is_none() && !trial.kernel.front.order_free && outputs.iter().any(|output| *output != outputs[0]) {
        failure = Some(format!(
            "{label}: the same input gave other bits in another launch; a race, or an uninitialised value \
             (sums whose order is free say so with `order_free = true`)"
        ));
    }
    let planned = PlannedCase { stage, case: case.clone(), shrunk: false };
    settle(trial, &planned, errors, failure)
}
