//! One candidate from source text to verdict.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use crate::backend::Backend;
use crate::device::DeviceCard;
use crate::evaluation::{Baseline, CaseResult, Evaluation, Examination, Stage, Timing, Verdict};
use crate::op::{Dtype, OpSource, Shape};
use crate::torch::{Python, Service};

use super::Failure;
use super::bench::{Bench, Known, StageClock, Watch, timed_shapes};
use super::build::{Build, Wanted};
use super::cases::{PlannedCase, plan};
use super::duel::time;
use super::elsewhere::Elsewhere;
use super::examination::examine;
use super::spread::{COPIES, copies};
use super::stages::Stages;
use super::task::{EvaluationTask, JudgeError};
use super::watched::launch_watched;

/// Judges candidates on one device; keeps what is worth keeping warm between them.
pub struct Judge<B: Backend> {
    backend: B,
    elsewhere: Option<Box<dyn Elsewhere>>,
    torch: Arc<Service>,
    known: HashMap<OpSource, Arc<Known<B>>>,
}

impl<B: Backend> Judge<B> {
    /// A judge on a device.
    #[must_use]
    pub fn new(backend: B) -> Self {
        let torch = Arc::new(Service::new(Python::default()).on(backend.device_name()));
        Self { backend, elsewhere: None, torch, known: HashMap::new() }
    }

    /// The same, asking the PyTorch of this Python where an operation's oracle is written in it; it is started when it is needed,
    /// or asked at the socket of a judge that has it.
    #[must_use]
    pub fn with_python(mut self, python: Python, socket: Option<String>) -> Self {
        self.torch = Arc::new(Service::new(python).on(self.backend.device_name()).sharing(socket));
        self
    }

    /// The same, with someone who gives sessions a process of their own; asked only where the device's hosts have none.
    #[must_use]
    pub fn with_elsewhere(mut self, elsewhere: Box<dyn Elsewhere>) -> Self {
        self.elsewhere = Some(elsewhere);
        self
    }

    /// The device it judges on.
    #[must_use]
    pub fn card(&self) -> &DeviceCard {
        self.backend.card()
    }

    /// What drives it.
    #[must_use]
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Judges one candidate.
    ///
    /// # Errors
    /// Only where the machine, the operation's files or the incumbent are at fault; a bad candidate is a verdict.
    pub fn evaluate(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        let started = Instant::now();
        let known = self.know(&task.op)?;
        let clock = StageClock::default();
        let bench = self.bench(&known, watch, task.seed, &clock);
        let mut found = Findings::default();
        let outcome = judge(&bench, task, &mut found);
        found.stage_s = clock.seconds();
        self.written(task, outcome, found, started)
    }

    /// Stage 1 alone: whether a kernel runs on this machine at all.
    ///
    /// # Errors
    /// As [`Judge::evaluate`].
    pub fn smoke(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        let started = Instant::now();
        let known = self.know(&task.op)?;
        let clock = StageClock::default();
        let bench = self.bench(&known, watch, task.seed, &clock);
        let mut found = Findings::default();
        let outcome = smoke(&bench, task, &mut found);
        found.stage_s = clock.seconds();
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
            backend: self.card().backend.clone(),
            verdict,
            cases: found.cases,
            timing: found.timing,
            vs_user: found.vs_user,
            against: found.against,
            baselines: found.baselines,
            seed: task.seed,
            wall_s: started.elapsed().as_secs_f64(),
            stage_s: found.stage_s,
            examination: found.examination,
            build_log: found.build_log,
        })
    }

    /// The operation of `source`, whose oracle is compiled when it is first asked.
    pub(super) fn know(&mut self, source: &OpSource) -> Result<Arc<Known<B>>, JudgeError> {
        if let Some(known) = self.known.get(source) {
            return Ok(known.clone());
        }
        let op = source.operation()?;
        let known = Arc::new(Known::new(op, source.clone(), &self.torch));
        self.known.insert(source.clone(), known.clone());
        Ok(known)
    }

    /// What a measurement needs, for an operation that is known.
    pub(super) fn bench<'a>(
        &'a self,
        known: &'a Known<B>,
        watch: Watch<'a>,
        seed: u64,
        clock: &'a StageClock,
    ) -> Bench<'a, B> {
        let elsewhere = self.elsewhere.as_deref().filter(|_| !self.backend.hosts_are_processes());
        Bench { backend: &self.backend, known, watch, elsewhere, seed, clock }
    }
}

/// What is found out on the way, whatever the verdict.
#[derive(Default)]
struct Findings {
    cases: Vec<CaseResult>,
    timing: Option<Timing>,
    vs_user: Option<f64>,
    against: Option<String>,
    baselines: Vec<Baseline>,
    examination: Option<Examination>,
    build_log: String,
    stage_s: BTreeMap<Stage, f64>,
}

/// Compile, stages 1 to 5, timing, confirmation: the first failure is the verdict.
fn judge<B: Backend>(bench: &Bench<'_, B>, task: &EvaluationTask, found: &mut Findings) -> Result<Verdict, Failure> {
    let op = bench.op();
    bench.at(Stage::Compile, "compiling");
    let target = bench.complete(&task.target)?;
    let kernel = bench.candidate(task)?;
    let planned =
        plan(op, &target, &kernel.front.dtypes, task.seed, &bench.backend.case_limits()).map_err(JudgeError::from)?;
    let (timed, first) = (timed_shapes(&target), shapes_of(&planned, |stage| stage == Stage::Smoke));
    let shapes = shapes_of(&planned, |_| true).union(&timed).cloned().collect();
    let mut wanted = vec![Wanted { first, ..Wanted::new(kernel, &shapes) }];
    if task.incumbent.is_none() {
        let count = if task.look { 1 } else { COPIES };
        wanted.extend(copies(&task.candidate, task.seed, count)?.into_iter().map(|copy| Wanted::new(copy, &timed)));
    }
    let mut stages = Stages::new(bench, &planned, &target, task.seed)?;
    let mut builds = bench.build_all(wanted, &mut |making| stages.early(making))?;
    let twins = builds.split_off(1);
    let build = builds.pop().ok_or_else(|| JudgeError::machine("build", "nothing was compiled"))?;
    pass(stages, &build, found)?;
    let timed = time(bench, task, &target, &build, &twins)?;
    found.timing = Some(timed.timing);
    found.vs_user = timed.vs_user;
    found.against = timed.against;
    found.baselines = timed.baselines;
    if timed.verdict.advances() && task.examination_s > 0.0 {
        examine(bench, task, (&target, build), found.examination.insert(Examination::default()))?;
    }
    Ok(timed.verdict)
}

/// Compile and stage 1; where a tool watches, the launches that it is to see.
fn smoke<B: Backend>(bench: &Bench<'_, B>, task: &EvaluationTask, found: &mut Findings) -> Result<Verdict, Failure> {
    let kernel = bench.candidate(task)?;
    if task.examination_s > 0.0 {
        launch_watched(bench, kernel, task)?;
        return Ok(Verdict::Base);
    }
    let planned = plan(bench.op(), &[], &kernel.front.dtypes, task.seed, &bench.backend.case_limits())
        .map_err(JudgeError::from)?;
    let planned: Vec<_> = planned.into_iter().filter(|planned| planned.stage == Stage::Smoke).collect();
    let build = bench.build(kernel, &shapes_of(&planned, |_| true))?;
    pass(Stages::new(bench, &planned, &[], task.seed)?, &build, found)?;
    Ok(Verdict::Base)
}

/// The distinct shapes and dtypes of some stages.
fn shapes_of(planned: &[PlannedCase], some: impl Fn(Stage) -> bool) -> BTreeSet<(Shape, Dtype)> {
    let planned = planned.iter().filter(|planned| some(planned.stage));
    planned.map(|planned| (planned.case.shape.clone(), planned.case.dtype)).collect()
}

/// Whether everything in `build` passes the stages; what was found is found whatever comes of it.
fn pass<B: Backend>(mut stages: Stages<'_, B>, build: &Build<B>, found: &mut Findings) -> Result<(), Failure> {
    let outcome = stages.finish(build);
    let (cases, occupancy) = stages.found();
    found.cases = cases;
    found.build_log = build.log().lines().map(str::to_owned).chain(occupancy).collect::<Vec<_>>().join("\n");
    outcome
}
