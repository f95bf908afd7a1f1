//! What PyTorch takes for a target, where it is the oracle: what the user has today.

use crate::backend::{Backend, CaseMemory, Placing};
use crate::evaluation::{Baseline, Stage, Timing};
use crate::op::TargetShape;
use crate::rng::Stream;

use super::Failure;
use super::bench::Bench;
use super::task::JudgeError;
use super::timed_shape::timed_case;

/// PyTorch's ways of computing the operation, each at each shape of the target; none where a header is the oracle. They are timed
/// under the same lock as kernels, in a process of their own and not in pairs.
pub(super) fn baselines<B: Backend>(
    bench: &Bench<'_, B>,
    target: &[TargetShape],
    compiled: bool,
) -> Result<Vec<Baseline>, Failure> {
    let op = bench.op();
    if !op.knows_only_wholes() {
        return Ok(Vec::new());
    }
    bench.at(Stage::Timing, "what PyTorch takes");
    let mut all = Vec::new();
    for wanted in target {
        let case = timed_case(wanted);
        let size = CaseMemory::footprint::<B::Arena>(op, &case, &[], 1, Placing::Packed).map_err(JudgeError::from)?;
        let mut arena = bench.arena([size], Placing::Packed)?;
        let memory = CaseMemory::place(&mut arena, op, &case, &[], 1)?;
        memory.draw(&mut arena, 0, Stream::new(bench.seed, "baselines").bits(0)).map_err(JudgeError::from)?;
        all.extend(bench.baselines(&memory, &mut arena, 0, compiled)?);
    }
    Ok(all)
}

/// The fastest way that works at every shape, and how many times the kernel's time it takes.
pub(super) fn fastest(baselines: &[Baseline], timing: &Timing) -> Option<(f64, String)> {
    let total = |name: &str| {
        timing.shapes.iter().try_fold(0.0, |sum, shape| {
            let own = baselines.iter().find(|it| it.name == name && it.shape == shape.shape && it.dtype == shape.dtype);
            own.and_then(|it| it.us).map(|us| sum + f64::from(shape.calls) * us)
        })
    };
    let names = baselines.iter().map(|it| it.name.as_str());
    let (us, name) = names.filter_map(|name| Some((total(name)?, name))).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let versions = baselines.first().map_or("", |it| it.how.split(',').next().unwrap_or_default());
    (timing.latency_us > 0.0).then(|| (us / timing.latency_us, format!("{name}, {versions}, timed by itself")))
}
