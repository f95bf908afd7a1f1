//! What a kernel is asked while a tool watches each of its accesses: as little as shows how it works at the timed shapes.
//!
//! A tool slows a launch down by a factor of hundreds, and the judge's own kernels with it. So nothing is compared here: each case
//! is drawn and launched once. A timed shape is made smaller only as long as its launches stay what they are (kernels, threads of a
//! block, shared memory, a few blocks); then comes the smallest shape.

use std::collections::BTreeSet;

use crate::backend::{Backend, CaseMemory, Conditions, Host, Placing};
use crate::evaluation::Stage;
use crate::kernel::{Facts, KernelFile, PlannedLaunch};
use crate::op::{Case, Dtype, OpError, Operation, Shape, TargetShape};
use crate::rng::Stream;

use super::Failure;
use super::bench::Bench;
use super::check::describe;
use super::task::{EvaluationTask, JudgeError};

/// A shape with no more elements, or multiply-adds, is small enough.
const ELEMENTS: u64 = 1 << 16;
const MACS: u64 = 1 << 23;

/// A launch of more blocks keeps at least so many.
const BLOCKS: u64 = 4;

/// Timed shapes that are watched, at the most.
const SHAPES: usize = 4;

/// Launches a kernel at the cases that are watched.
///
/// # Errors
/// A kernel that does not compile, or faults; the machine's failure.
pub(super) fn launch_watched<B: Backend>(
    bench: &Bench<'_, B>,
    kernel: KernelFile,
    task: &EvaluationTask,
) -> Result<(), Failure> {
    let op = bench.op();
    let cases = cases(op, &kernel, &task.target, &bench.card().facts).map_err(JudgeError::from)?;
    let shapes: BTreeSet<(Shape, Dtype)> = cases.iter().map(|case| (case.shape.clone(), case.dtype)).collect();
    let build = bench.build(kernel, &shapes)?;
    for (number, case) in cases.iter().enumerate() {
        bench.check_cancelled()?;
        bench.at(Stage::Smoke, describe(op, case));
        let (image, scratch) = build.image(&case.shape, case.dtype)?;
        let size =
            CaseMemory::footprint::<B::Arena>(op, case, scratch, 1, Placing::Packed).map_err(JudgeError::from)?;
        let mut arena = bench.arena([size], Placing::Packed)?;
        let mut memory = CaseMemory::place(&mut arena, op, case, scratch, 1)?;
        let seed = Stream::new(task.seed, "watched").bits(number as u64);
        bench.draw(&memory, &mut arena, 0, seed)?;
        memory.poison(&mut arena, 0, seed);
        let mut host = bench.start(&build, &arena, &Conditions::default())?;
        let limit = bench.launch_limit(case).map_err(JudgeError::from)? * WATCHED;
        let answer = host.launch(&memory.call(image, 0), limit).and_then(|_| host.idle_check());
        answer.map_err(|fault| Failure::fault(fault, Stage::Smoke, &describe(op, case)))?;
    }
    Ok(())
}

/// How much longer a launch may take than one that nobody watches.
const WATCHED: u32 = 1000;

/// The timed shapes, smaller, and the smallest shape in their types; a processor's files have no launches, and stay at the
/// smallest.
fn cases(op: &Operation, kernel: &KernelFile, target: &[TargetShape], facts: &Facts) -> Result<Vec<Case>, OpError> {
    let case = |shape, dtype| Case { shape, dtype, input: None, setting: 0 };
    let mut all: Vec<Case> = Vec::new();
    for wanted in target {
        let shape = smaller(op, kernel, (&op.complete(&wanted.shape)?, wanted.dtype), facts)?;
        all.extend(shape.map(|shape| case(shape, wanted.dtype)).filter(|case| !all.contains(case)));
    }
    all.truncate(SHAPES);
    let smallest = op.complete(&op.smoke)?;
    let types: BTreeSet<Dtype> = target.iter().map(|wanted| wanted.dtype).collect();
    let types = if types.is_empty() { kernel.front.dtypes.iter().copied().collect() } else { types };
    all.extend(types.into_iter().map(|dtype| case(smallest.clone(), dtype)));
    Ok(all)
}

/// A shape of which the launches are the same but for their number of blocks; `None` where there are no launches.
fn smaller(
    op: &Operation,
    kernel: &KernelFile,
    (shape, dtype): (&Shape, Dtype),
    facts: &Facts,
) -> Result<Option<Shape>, OpError> {
    let launches = |shape: &Shape| -> Option<Vec<PlannedLaunch>> {
        let ints: Option<Vec<i64>> = op.symbols.iter().map(|symbol| shape.get(symbol)).collect();
        let resolution = kernel.resolve(shape, dtype, facts).ok()?;
        kernel.launches(op, &ints?, &resolution, facts).ok().filter(|all| !all.is_empty())
    };
    let Some(timed) = launches(shape) else { return Ok(None) };
    let blocks = |launch: &PlannedLaunch| launch.grid.iter().map(|blocks| u64::from(*blocks)).product::<u64>();
    let alike = |smaller: &Shape| {
        let all = launches(smaller).unwrap_or_default();
        let same = |(one, other): (&PlannedLaunch, &PlannedLaunch)| {
            (&one.kernel, one.block, one.shared, one.cluster)
                == (&other.kernel, other.block, other.shared, other.cluster)
                && blocks(other) >= blocks(one).min(BLOCKS)
        };
        all.len() == timed.len() && timed.iter().zip(&all).all(same)
    };
    let mut shape = shape.clone();
    while op.all_elements(&shape)? > ELEMENTS || op.macs(&shape)? > MACS {
        let mut halves = op.halves(&shape, None, 1);
        let Some(half) = halves.find(alike) else { break };
        drop(halves);
        shape = half;
    }
    Ok(Some(shape))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::workspace::embedded;

    fn watched(name: &str, target: &[(&str, i64)]) -> Vec<Case> {
        let text = embedded(&format!("kernels/cuda/{name}.cu")).unwrap();
        let kernel = KernelFile::parse(text).unwrap();
        let op = Operation::load(&|path| embedded(path).map(str::to_owned), name).unwrap();
        let facts: Facts = crate::kernel::CUDA_FACTS.iter().map(|fact| ((*fact).to_owned(), 132)).collect();
        let facts = facts.into_iter().chain([("CC".to_owned(), 90), ("SMEM_MAX".to_owned(), 227 << 10)]).collect();
        let mut shape = op.smoke.clone();
        for (symbol, size) in target {
            shape = shape.with(symbol, *size);
        }
        let target = [TargetShape { shape: op.complete(&shape).unwrap(), dtype: Dtype::F16, calls: 1 }];
        cases(&op, &kernel, &target, &facts).unwrap()
    }

    #[test]
    fn a_timed_row_keeps_its_length_where_its_threads_depend_on_it() {
        let all = watched("layernorm", &[("batch", 2048), ("dim", 8192)]);
        assert_eq!(all.len(), 2);
        assert!(all[0].shape.get("dim") >= Some(4096) && all[0].shape.get("batch") <= Some(8), "{:?}", all[0]);
        let all = watched("softmax", &[("rows", 8192), ("cols", 1024)]);
        assert!(all[0].shape.get("cols") >= Some(512), "{:?}", all[0]);
    }

    #[test]
    fn a_product_becomes_small() {
        let all = watched("matmul", &[("M", 4096), ("N", 4096), ("K", 4096)]);
        let sizes: i64 = ["M", "N", "K"].map(|symbol| all[0].shape.get(symbol).unwrap()).iter().product();
        assert!(sizes <= 1 << 26, "{:?}", all[0]);
    }
}
