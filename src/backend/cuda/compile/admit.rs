//! Before and after compiling: what a file is held to, what is compiled once for several, and what a kernel that begins early waits for.

use std::cmp::Reverse;

use super::triton::JitUnit;
use super::{Compiled, Unit};
use crate::backend::BuildError;
use crate::kernel::{KernelFile, Language, MustWait, Resolution, nvrtc_options};
use crate::op::Operation;
use crate::sandbox::check_cuda;

/// What is compiled at once.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// A text for NVRTC, with all of its kernels.
    Text(Unit),
    /// The launches of a Triton file at one resolution.
    Jit(Vec<JitUnit>),
}

/// What is begun first ranks lowest: not urgent, how long it takes.
pub(super) type Rank = (bool, Reverse<i64>);

/// How long compiling takes beside other constants: large tiles unroll into many instructions.
pub(super) fn weight(resolution: &Resolution) -> i64 {
    resolution.macros.values().fold(0, |sum, value| sum.saturating_add(value.saturating_abs()))
}

/// The index of `job` among `jobs`, which it joins unless one has the same text: that one then has the kernels of both.
pub(super) fn share(jobs: &mut Vec<(Rank, Job)>, rank: Rank, job: Job) -> usize {
    let same = |(_, known): &(Rank, Job)| match (known, &job) {
        (Job::Text(known), Job::Text(unit)) => {
            (&known.source, &known.arch, &known.options) == (&unit.source, &unit.arch, &unit.options)
        }
        (Job::Jit(known), Job::Jit(units)) => known == units,
        _ => false,
    };
    let Some(index) = jobs.iter().position(same) else {
        jobs.push((rank, job));
        return jobs.len() - 1;
    };
    let (known, kept) = &mut jobs[index];
    *known = rank.min(*known);
    if let (Job::Text(Unit { names, numbers, .. }), Job::Text(unit)) = (kept, job) {
        names.extend(unit.names.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        numbers.extend(unit.numbers);
    }
    index
}

/// Holds a candidate to what can be said before it is compiled; its options as NVRTC takes them.
pub(super) fn admit(op: &Operation, kernel: &KernelFile, capability: u32) -> Result<Vec<String>, BuildError> {
    let refused = |error: &dyn std::fmt::Display| BuildError::Kernel(error.to_string());
    kernel.front.check_backend("cuda").map_err(|error| refused(&error))?;
    kernel.front.check_arch(capability).map_err(|error| refused(&error))?;
    kernel.check_against(op).map_err(|error| refused(&error))?;
    if kernel.language == Language::Triton {
        // Its text is read where it is compiled, by Python's own reader.
        return Ok(Vec::new());
    }
    check_cuda(&kernel.text).map_err(|error| refused(&error))?;
    nvrtc_options(&kernel.front.options).map_err(|error| refused(&error))
}

/// Whether a kernel waits before it uses what the launches in front of it write.
pub(super) fn waits(unit: &Compiled, must: &MustWait) -> Result<(), String> {
    let name = &must.kernel;
    let begins = "the compiled kernel is refused: with pdl = true";
    let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\")";
    let Some(early) = unit.waits.get(name) else {
        return Err(format!(
            "{begins} `{name}` may begin before the launch in front of it has ended, and it uses what that writes; it must say \
             {wait} before it does, under no condition but on a thread's number"
        ));
    };
    match must.arguments.iter().find(|(place, _)| early.contains(place)) {
        Some((_, buffer)) => Err(format!(
            "{begins} `{name}` may begin before the launch in front of it has ended, and one way through it uses `{buffer}` without \
             having met {wait}: say it before, on every way, or in some threads by their number alone and let the others follow a \
             barrier"
        )),
        None => Ok(()),
    }
}
