//! One candidate from source text to verdict.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::backend::cpu::{
    Arena, CaseMemory, Compiler, Expected, Host, HostError, Image, Limits, Oracle, ScratchBuffer,
};
use crate::device::DeviceCard;
use crate::evaluation::{CaseResult, Evaluation, Stage, Timing, Verdict};
use crate::kernel::KernelFile;
use crate::op::{Case, Dtype, OpSource, Operation, Shape, TargetShape};
use crate::rng::Stream;

use super::Failure;
use super::build::Build;
use super::cases::{PlannedCase, plan};
use super::check::{arena_bytes, arena_for, check};
use super::determinism::determinism;
use super::duel::{Contender, time};
use super::task::{EvaluationTask, JudgeError, Progress};

/// Whoever waits for the judge.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Told where the judge is.
    pub progress: &'a (dyn Fn(Progress) + Sync),
    /// Set when nobody wants the answer any more.
    pub cancelled: &'a AtomicBool,
}

/// Judges candidates on one device; keeps what is worth keeping warm between them.
pub struct Judge {
    compiler: Compiler,
    card: DeviceCard,
    known: HashMap<OpSource, Arc<Known>>,
}

/// An operation with its compiled oracle.
pub(super) struct Known {
    pub(super) op: Operation,
    oracle: Oracle,
}

/// What every measurement on this device needs.
pub(super) struct Bench<'a> {
    pub(super) compiler: &'a Compiler,
    pub(super) card: &'a DeviceCard,
    pub(super) known: &'a Known,
    pub(super) watch: Watch<'a>,
    /// The task's seed, which also chooses the elements of the oracle's products that are checked.
    pub(super) seed: u64,
}

/// One candidate under examination.
pub(super) struct Trial<'a> {
    pub(super) bench: &'a Bench<'a>,
    pub(super) op: &'a Operation,
    pub(super) kernel: &'a KernelFile,
    pub(super) build: &'a Build,
    pub(super) arena: Arena,
    pub(super) cases: &'a mut Vec<CaseResult>,
}

impl Bench<'_> {
    /// A fresh process with these images and this memory.
    pub(super) fn host(&self, images: &[&Image], arena: &Arena) -> Result<Host, Failure> {
        self.start(images, arena, &Limits::default())
    }

    fn start(&self, images: &[&Image], arena: &Arena, limits: &Limits) -> Result<Host, Failure> {
        Host::start(images, arena, limits).map_err(|error| match error {
            HostError::System(error) => JudgeError::machine("starting the candidate's process", error).into(),
            refused => Failure::Verdict(Verdict::Error { stage: Stage::Compile, why: refused.to_string() }),
        })
    }

    /// The oracle's answer for what `memory` holds in `copy`.
    pub(super) fn expected(
        &self,
        case: &Case,
        memory: &CaseMemory,
        arena: &Arena,
        copy: usize,
    ) -> Result<Expected, Failure> {
        self.known
            .oracle
            .expected(&case.shape, case.dtype, &memory.inputs(arena, copy), self.seed.wrapping_add(copy as u64))
            .map_err(|error| JudgeError::machine("oracle", error).into())
    }

    /// Ends the evaluation when nobody wants it any more.
    pub(super) fn check_cancelled(&self) -> Result<(), JudgeError> {
        if self.watch.cancelled.load(Ordering::Relaxed) { Err(JudgeError::Cancelled) } else { Ok(()) }
    }

    /// Tells where the judge is.
    pub(super) fn at(&self, stage: Stage, detail: impl Into<String>) {
        (self.watch.progress)(Progress { stage, detail: detail.into() });
    }

    /// Compiles a kernel file for `shapes`.
    pub(super) fn build(&self, kernel: &KernelFile, shapes: &BTreeSet<(Shape, Dtype)>) -> Result<Build, Failure> {
        Build::new(self.compiler, &self.known.op, kernel, shapes, &self.card.facts, self.watch.cancelled)
    }
}

impl Trial<'_> {
    /// A fresh process with the candidate, in which nothing is zero by luck.
    pub(super) fn host(&self) -> Result<Host, Failure> {
        self.bench.start(&self.build.images(), &self.arena, &Limits { dirty: true, ..Limits::default() })
    }
}

impl Judge {
    /// A judge for the device of `card`.
    #[must_use]
    pub fn new(compiler: Compiler, card: DeviceCard) -> Self {
        Self { compiler, card, known: HashMap::new() }
    }

    /// The device it judges on.
    #[must_use]
    pub const fn card(&self) -> &DeviceCard {
        &self.card
    }

    /// The compiler it uses.
    #[must_use]
    pub const fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// Judges one candidate.
    ///
    /// # Errors
    /// Only where the machine, the operation's files or the incumbent are at fault; a bad candidate is a verdict.
    pub fn evaluate(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        let started = Instant::now();
        let known = self.know(&task.op)?;
        let bench = self.bench(&known, watch, task.seed);
        let mut found = Findings::default();
        let outcome = judge(&bench, task, &mut found);
        self.written(task, outcome, found, started)
    }

    /// Stage 1 alone: whether a kernel runs on this machine at all.
    ///
    /// # Errors
    /// As [`Judge::evaluate`].
    pub fn smoke(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        let started = Instant::now();
        let known = self.know(&task.op)?;
        let bench = self.bench(&known, watch, task.seed);
        let mut found = Findings::default();
        let outcome = smoke(&bench, task, &mut found);
        self.written(task, outcome, found, started)
    }

    fn written(
        &self,
        task: &EvaluationTask,
        outcome: Result<Verdict, Failure>,
        found: Findings,
        started: Instant,
    ) -> Result<Evaluation, JudgeError> {
        let verdict = match outcome {
            Ok(verdict) | Err(Failure::Verdict(verdict)) => verdict,
            Err(Failure::Judge(error)) => return Err(error),
        };
        Ok(Evaluation {
            op: task.op.name.clone(),
            backend: self.card.backend.clone(),
            verdict,
            cases: found.cases,
            timing: found.timing,
            vs_user: found.vs_user,
            seed: task.seed,
            wall_s: started.elapsed().as_secs_f64(),
            build_log: found.build_log,
        })
    }

    /// The operation of `source` with its oracle, compiled at first sight.
    pub(super) fn know(&mut self, source: &OpSource) -> Result<Arc<Known>, JudgeError> {
        if let Some(known) = self.known.get(source) {
            return Ok(known.clone());
        }
        let op = source.operation()?;
        let build = |name: &str, text: &str, flags: &[&str]| {
            self.compiler.compile_trusted(name, text, flags).map(|image| image.path).map_err(|error| error.to_string())
        };
        let oracle =
            Oracle::compile(&build, &op).map_err(|error| JudgeError::machine("compiling the oracle", error))?;
        let known = Arc::new(Known { op, oracle });
        self.known.insert(source.clone(), known.clone());
        Ok(known)
    }

    /// What a measurement needs, for an operation that is known.
    pub(super) fn bench<'a>(&'a self, known: &'a Known, watch: Watch<'a>, seed: u64) -> Bench<'a> {
        Bench { compiler: &self.compiler, card: &self.card, known, watch, seed }
    }
}

/// What is found out on the way, whatever the verdict.
#[derive(Default)]
struct Findings {
    cases: Vec<CaseResult>,
    timing: Option<Timing>,
    vs_user: Option<f64>,
    build_log: String,
}

/// Compile, stages 1 to 5, timing, confirmation: the first failure is the verdict.
fn judge(bench: &Bench<'_>, task: &EvaluationTask, found: &mut Findings) -> Result<Verdict, Failure> {
    let op = &bench.known.op;
    bench.at(Stage::Compile, "compiling");
    let target = complete(op, &task.target)?;
    let kernel = read(op, &task.candidate, bench.card)?;
    let planned = plan(op, &target, task.seed).map_err(JudgeError::from)?;
    let mut shapes: BTreeSet<(Shape, Dtype)> =
        planned.iter().map(|planned| (planned.case.shape.clone(), planned.case.dtype)).collect();
    shapes.extend(timed_shapes(&target));
    let build = bench.build(&kernel, &shapes)?;
    found.build_log = build.log();
    stages(bench, &kernel, &build, &planned, &target, task.seed, &mut found.cases)?;
    let timed = time(bench, task, &target, Contender { kernel: &kernel, build: &build })?;
    found.timing = Some(timed.timing);
    found.vs_user = timed.vs_user;
    Ok(timed.verdict)
}

/// Compile and stage 1.
fn smoke(bench: &Bench<'_>, task: &EvaluationTask, found: &mut Findings) -> Result<Verdict, Failure> {
    let op = &bench.known.op;
    let kernel = read(op, &task.candidate, bench.card)?;
    let mut planned = plan(op, &[], task.seed).map_err(JudgeError::from)?;
    planned.retain(|planned| planned.stage == Stage::Smoke);
    let shapes = planned.iter().map(|planned| (planned.case.shape.clone(), planned.case.dtype)).collect();
    let build = bench.build(&kernel, &shapes)?;
    stages(bench, &kernel, &build, &planned, &[], task.seed, &mut found.cases)?;
    Ok(Verdict::Base)
}

/// The candidate's kernel file, if it is one for this operation and device.
pub(super) fn read(op: &Operation, text: &str, card: &DeviceCard) -> Result<KernelFile, Failure> {
    let error = |why: String| Failure::Verdict(Verdict::Error { stage: Stage::Compile, why });
    let kernel = KernelFile::parse(text).map_err(|why| error(why.to_string()))?;
    if kernel.front.op != op.name {
        return Err(error(format!("it is a kernel for {}, and {} is wanted", kernel.front.op, op.name)));
    }
    let fits = |arch: &String| arch == "native" || arch == std::env::consts::ARCH;
    if !kernel.front.arch.is_empty() && !kernel.front.arch.iter().any(fits) {
        let wanted = kernel.front.arch.join(", ");
        return Err(error(format!("it is for {wanted}; this device is {} ({})", card.name, std::env::consts::ARCH)));
    }
    if let Some(missing) = Dtype::ALL.iter().find(|dtype| !kernel.front.dtypes.contains(dtype)) {
        return Err(Failure::reject(
            Stage::Compile,
            format!("it does not serve {missing}; every kernel serves f16, bf16 and f32"),
        ));
    }
    Ok(kernel)
}

fn stages(
    bench: &Bench<'_>,
    kernel: &KernelFile,
    build: &Build,
    planned: &[PlannedCase],
    target: &[TargetShape],
    seed: u64,
    cases: &mut Vec<CaseResult>,
) -> Result<(), Failure> {
    let op = &bench.known.op;
    let largest = largest(op, target)?;
    let sizes = planned
        .iter()
        .map(|planned| (&planned.case, 1))
        .chain(largest.iter().map(|case| (case, 3)))
        .map(|(case, copies)| {
            let (_, resolution) = build.image(&case.shape, case.dtype)?;
            arena_bytes(op, case, &ScratchBuffer::of(kernel, resolution), copies)
        })
        .collect::<Result<Vec<_>, Failure>>()?;
    let arena = arena_for(sizes.into_iter())?;
    let mut trial = Trial { bench, op, kernel, build, arena, cases };
    for stage in [Stage::Smoke, Stage::Sweep, Stage::Stability, Stage::Determinism, Stage::Edges] {
        if stage == Stage::Determinism {
            if let Some(case) = &largest {
                bench.at(stage, "same input again");
                determinism(&mut trial, case, Stream::new(seed, "determinism").bits(0))?;
            }
            continue;
        }
        if !planned.iter().any(|planned| planned.stage == stage) {
            continue;
        }
        // A fresh process for each stage: nothing computed in one can help in the next.
        let mut host = trial.host()?;
        for (index, case) in planned.iter().filter(|planned| planned.stage == stage).enumerate() {
            bench.check_cancelled()?;
            bench.at(stage, super::check::describe(op, &case.case));
            check(&mut trial, &mut host, case, Stream::new(seed, stage.name()).bits(index as u64))?;
        }
    }
    Ok(())
}

/// The target shapes with every symbol filled in.
pub(super) fn complete(op: &Operation, target: &[TargetShape]) -> Result<Vec<TargetShape>, Failure> {
    if target.is_empty() {
        return Err(JudgeError::machine("request", "no shape to time").into());
    }
    target
        .iter()
        .map(|wanted| {
            let shape = op.complete(&wanted.shape).map_err(JudgeError::from)?;
            Ok(TargetShape { shape, ..wanted.clone() })
        })
        .collect()
}

pub(super) fn timed_shapes(target: &[TargetShape]) -> BTreeSet<(Shape, Dtype)> {
    target.iter().map(|wanted| (wanted.shape.clone(), wanted.dtype)).collect()
}

/// The timed case with the most work.
fn largest(op: &Operation, target: &[TargetShape]) -> Result<Option<Case>, Failure> {
    let mut best: Option<(u64, Case)> = None;
    for wanted in target {
        let flops = op.flops(&wanted.shape).map_err(JudgeError::from)?;
        if best.as_ref().is_none_or(|(most, _)| flops > *most) {
            best = Some((flops, Case { shape: wanted.shape.clone(), dtype: wanted.dtype, input: None }));
        }
    }
    Ok(best.map(|(_, case)| case))
}
