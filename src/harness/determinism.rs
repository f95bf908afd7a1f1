//! Stage 4: the same bits every time, at other addresses, with other poison, after a fresh load.

use crate::backend::{Arena, Backend, CaseMemory, Host};
use crate::evaluation::Stage;
use crate::op::Case;

use super::Failure;
use super::bench::Trial;
use super::cases::PlannedCase;
use super::check::{compare_with_oracle, damage, describe, settle};
use super::task::JudgeError;

/// Sets of buffers: the first is used in one process, the others in a second one.
pub(super) const PLACES: usize = 3;

/// Runs the largest timed case repeatedly on the same input.
pub(super) fn determinism<B: Backend>(trial: &mut Trial<'_, B>, case: &Case, seed: u64) -> Result<(), Failure> {
    let stage = Stage::Determinism;
    let op = trial.bench.op();
    let (image, scratch) = trial.build.image(&case.shape, case.dtype)?;
    let order_free = trial.build.order_free();
    let limit = trial.bench.launch_limit(case).map_err(JudgeError::from)?;
    let label = describe(op, case);
    trial.arena.reset();
    let mut memory = CaseMemory::place(&mut trial.arena, op, case, scratch, PLACES)?;
    let mut outputs = Vec::with_capacity(PLACES);
    let mut host: Option<B::Host> = None;
    for copy in 0..PLACES {
        trial.bench.draw(&memory, &mut trial.arena, copy, seed)?;
        memory.poison(&mut trial.arena, copy, seed.wrapping_add(1 + copy as u64));
        if copy < 2 {
            host = Some(trial.host()?);
        }
        let Some(host) = host.as_mut() else { continue };
        host.launch(&memory.call(image, copy), limit).map_err(|fault| Failure::fault(fault, stage, &label))?;
        outputs.push(host.take(&memory, &mut trial.arena, copy));
        if copy == 0 {
            trial.occupancy = host.occupancy(&memory.call(image, copy));
        }
        if let Some(why) = damage(&memory, &mut trial.arena, copy) {
            return Err(Failure::reject(stage, format!("{label}: {why}")));
        }
    }
    let (errors, mut failure) = compare_with_oracle(trial.bench, &memory, &mut trial.arena, 0, &outputs[0])?;
    // Where the bits may differ, each output must be right by itself.
    for (copy, output) in outputs.iter().enumerate().skip(1).filter(|_| order_free) {
        let (_, wrong) = compare_with_oracle(trial.bench, &memory, &mut trial.arena, copy, output)?;
        failure = failure.or(wrong);
    }
    // Races that three launches do not show may show in more of them.
    let repeats = trial.bench.backend.case_limits().repeats as usize;
    if let Some(host) = host.as_mut().filter(|_| failure.is_none() && !order_free) {
        for turn in PLACES..repeats {
            trial.bench.check_cancelled()?;
            let copy = turn % PLACES;
            memory.poison(&mut trial.arena, copy, seed.wrapping_add(1 + turn as u64));
            host.launch(&memory.call(image, copy), limit).map_err(|fault| Failure::fault(fault, stage, &label))?;
            outputs.push(host.take(&memory, &mut trial.arena, copy));
        }
    }
    // A stated accumulation order may vary within the tolerance; otherwise every bit is the same.
    if failure.is_none() && !order_free && outputs.iter().any(|output| *output != outputs[0]) {
        failure = Some(format!(
            "{label}: the same input gave other bits in another launch; a race, or an uninitialised value \
             (sums whose order is free say so with `order_free = true`)"
        ));
    }
    let planned = PlannedCase { stage, case: case.clone(), shrunk: false, leeway: 1.0 };
    settle(trial, &planned, errors, failure)
}
