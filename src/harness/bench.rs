//! What judging one task needs: the device, the operation, whoever waits.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Arena, Backend, CaseMemory, Conditions, Device, Host, MemoryError, Placing, StartError};
use crate::device::DeviceCard;
use crate::evaluation::{CaseResult, ErrorStats, Stage, Verdict};
use crate::kernel::KernelFile;
use crate::op::{Case, Dtype, OpError, OpSource, Operation, OracleKind, Sample, Shape, TargetShape};
use crate::torch::{self, Files, Produced, Service};

use super::Failure;
use super::build::{Build, Making, Wanted};
use super::elsewhere::Elsewhere;
use super::task::{EvaluationTask, JudgeError, Progress};

/// Whoever waits for the judge.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Told where the judge is.
    pub progress: &'a (dyn Fn(Progress) + Sync),
    /// Set when nobody wants the answer any more.
    pub cancelled: &'a AtomicBool,
}

/// Who says what is right.
pub(super) enum Oracle<B: Backend> {
    /// A header, compiled for the device.
    Header(B::Oracle),
    /// PyTorch, in a process of its own.
    Torch(Box<torch::Oracle>),
}

/// An operation with its oracle. A header is compiled when it is first asked: by then the candidate is being compiled too. PyTorch
/// is started at once, and gets ready meanwhile.
pub(super) struct Known<B: Backend> {
    pub(super) op: Operation,
    pub(super) source: OpSource,
    oracle: OnceCell<Oracle<B>>,
}

impl<B: Backend> Known<B> {
    pub(super) fn new(op: Operation, source: OpSource, service: &Arc<Service>) -> Self {
        let oracle = OnceCell::new();
        if op.oracle == OracleKind::Torch {
            service.warm();
            // It was empty.
            let _ = oracle.set(Oracle::Torch(Box::new(torch::Oracle::new(service.clone(), &op))));
        }
        Self { op, source, oracle }
    }

    /// A failure is not kept: it may be the machine's, and the next verdict asks again.
    fn oracle(&self, backend: &B) -> Result<&Oracle<B>, JudgeError> {
        if let Some(oracle) = self.oracle.get() {
            return Ok(oracle);
        }
        let oracle = backend.oracle(&self.op).map_err(|what| JudgeError::machine("compiling the oracle", what))?;
        Ok(self.oracle.get_or_init(|| Oracle::Header(oracle)))
    }
}

/// What every measurement on this device needs.
pub(super) struct Bench<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) known: &'a Known<B>,
    pub(super) watch: Watch<'a>,
    /// Where a session gets a process of its own, if not here.
    pub(super) elsewhere: Option<&'a dyn Elsewhere>,
    /// The task's seed, which also chooses the elements of the oracle's products that are checked.
    pub(super) seed: u64,
    /// When each stage began.
    pub(super) clock: &'a StageClock,
}

/// When stages began, in order; one may begin again.
#[derive(Debug, Default)]
pub(super) struct StageClock(RefCell<Vec<(Stage, Instant)>>);

impl StageClock {
    fn begin(&self, stage: Stage) {
        let mut began = self.0.borrow_mut();
        if began.last().is_none_or(|(last, _)| *last != stage) {
            began.push((stage, Instant::now()));
        }
    }

    /// Seconds of each stage until now.
    pub(super) fn seconds(&self) -> BTreeMap<Stage, f64> {
        let began = self.0.borrow();
        let ends = began.iter().skip(1).map(|(_, at)| *at).chain([Instant::now()]);
        let mut seconds = BTreeMap::new();
        for ((stage, at), end) in began.iter().zip(ends) {
            *seconds.entry(*stage).or_default() += (end - *at).as_secs_f64();
        }
        seconds
    }
}

/// Time a launch may always take.
const MIN_LIMIT: Duration = Duration::from_secs(2);

/// One candidate under examination.
pub(super) struct Trial<'a, B: Backend> {
    pub(super) bench: &'a Bench<'a, B>,
    pub(super) build: &'a Build<B>,
    pub(super) arena: B::Arena,
    /// Of the places that it runs in.
    pub(super) conditions: Conditions,
    pub(super) cases: &'a mut Vec<CaseResult>,
    /// How much of the device the kernels occupy at the largest timed case.
    pub(super) occupancy: Vec<String>,
}

/// Draws a copy's inputs, with the values of a file for what that draws.
pub(super) fn draw_inputs<A: Arena>(
    files: Option<&Files>,
    memory: &CaseMemory,
    arena: &mut A,
    copy: usize,
    seed: u64,
) -> Result<(), JudgeError> {
    match files {
        Some(files) => files.draw(memory, arena, copy, seed).map_err(JudgeError::from),
        None => memory.draw(arena, copy, seed).map_err(JudgeError::from),
    }
}

/// A copy's outputs as a backend takes them.
pub(super) type Taken<B> = <<B as Device>::Host as Host>::Taken;

impl<B: Backend> Bench<'_, B> {
    pub(super) fn op(&self) -> &Operation {
        &self.known.op
    }

    pub(super) fn card(&self) -> &DeviceCard {
        self.backend.card()
    }

    /// The same bench with all sessions in this process.
    pub(super) fn here(&self) -> Bench<'_, B> {
        let Self { backend, known, watch, seed, clock, .. } = *self;
        Bench { backend, known, watch, elsewhere: None, seed, clock }
    }

    /// A fresh place for what was built to run on this memory.
    pub(super) fn host(&self, build: &Build<B>, arena: &B::Arena) -> Result<B::Host, Failure> {
        self.start(build, arena, &Conditions::default())
    }

    pub(super) fn start(
        &self,
        build: &Build<B>,
        arena: &B::Arena,
        conditions: &Conditions,
    ) -> Result<B::Host, Failure> {
        self.backend.host(&build.images(), arena, conditions).map_err(|error| match error {
            StartError::Machine(what) => JudgeError::machine("starting the candidate's process", what).into(),
            StartError::Kernel(_) => Failure::Verdict(Verdict::Error { stage: Stage::Compile, why: error.to_string() }),
        })
    }

    /// An arena that holds the largest of `sizes` (inputs and outputs apart).
    pub(super) fn arena(
        &self,
        sizes: impl IntoIterator<Item = (usize, usize)>,
        placing: Placing,
    ) -> Result<B::Arena, Failure> {
        let (inputs, outputs) = sizes.into_iter().fold((0, 0), |(i, o), (a, b)| (i.max(a), o.max(b)));
        tracing::debug!(inputs, outputs, "memory for tensors");
        Ok(self.backend.arena(inputs, outputs, placing)?)
    }

    /// How far what was taken of `copy` is from the oracle's answer for what that copy's inputs hold.
    pub(super) fn compare(
        &self,
        memory: &CaseMemory,
        arena: &mut B::Arena,
        copy: usize,
        taken: &Taken<B>,
    ) -> Result<ErrorStats, Failure> {
        let seed = self.seed.wrapping_add(copy as u64);
        match self.known.oracle(self.backend)? {
            Oracle::Header(oracle) => self
                .backend
                .compare(oracle, memory, arena, copy, taken, seed)
                .map_err(|error| JudgeError::machine("oracle", error).into()),
            Oracle::Torch(oracle) => {
                let given = match <B::Host as Host>::bytes(taken) {
                    Some(bytes) => Produced::Taken(bytes),
                    None if <B::Host as Host>::stands(taken, memory, arena, copy) => Produced::There,
                    None => {
                        let what = "outputs changed between the launch and the comparison";
                        return Err(JudgeError::machine("oracle", what).into());
                    }
                };
                Ok(oracle.compare(self.backend, memory, arena, copy, given).map_err(JudgeError::from)?)
            }
        }
    }

    /// How far some elements that now stand in the outputs of `copy` are from the oracle's; all of them where it knows whole outputs
    /// only.
    pub(super) fn compare_some(
        &self,
        memory: &CaseMemory,
        arena: &mut B::Arena,
        copy: usize,
        sample: &Sample,
    ) -> Result<ErrorStats, Failure> {
        match self.known.oracle(self.backend)? {
            Oracle::Header(oracle) => self
                .backend
                .compare_some(oracle, memory, arena, copy, sample)
                .map_err(|error| JudgeError::machine("oracle", error).into()),
            Oracle::Torch(oracle) => {
                Ok(oracle.compare(self.backend, memory, arena, copy, Produced::There).map_err(JudgeError::from)?)
            }
        }
    }

    /// Draws a copy's inputs: as the operation's file says, or has PyTorch draw them where the problem does.
    pub(super) fn draw(
        &self,
        memory: &CaseMemory,
        arena: &mut B::Arena,
        copy: usize,
        seed: u64,
    ) -> Result<(), JudgeError> {
        draw_inputs(self.torch().map(torch::Oracle::files), memory, arena, copy, seed)
    }

    /// PyTorch, where it is the oracle.
    pub(super) fn torch(&self) -> Option<&torch::Oracle> {
        match self.known.oracle.get()? {
            Oracle::Torch(oracle) => Some(oracle),
            Oracle::Header(_) => None,
        }
    }

    /// The name of the socket at which other processes find that PyTorch.
    pub(super) fn torch_socket(&self) -> Option<String> {
        self.elsewhere.and(self.torch()).and_then(torch::Oracle::socket)
    }

    /// How long one launch of `case` may take before it counts as hanging.
    ///
    /// # Errors
    /// A shape that does not fit the operation.
    pub(super) fn launch_limit(&self, case: &Case) -> Result<Duration, OpError> {
        let seconds = self.op().flops(&case.shape)? as f64 / self.backend.case_limits().least_flops as f64;
        Ok(MIN_LIMIT + Duration::from_secs_f64(seconds))
    }

    /// Ends the evaluation when nobody wants it any more.
    pub(super) fn check_cancelled(&self) -> Result<(), JudgeError> {
        if self.watch.cancelled.load(Ordering::Relaxed) { Err(JudgeError::Cancelled) } else { Ok(()) }
    }

    /// Tells where the judge is.
    pub(super) fn at(&self, stage: Stage, detail: impl Into<String>) {
        self.clock.begin(stage);
        (self.watch.progress)(Progress { stage, detail: detail.into() });
    }

    /// The kernel file of a text, if it is one for this operation and device.
    pub(super) fn read(&self, text: &str) -> Result<KernelFile, Failure> {
        let error = |why: String| Failure::Verdict(Verdict::Error { stage: Stage::Compile, why });
        let kernel = KernelFile::parse(text).map_err(|why| error(why.to_string()))?;
        let op = &self.op().name;
        if kernel.front.op != *op {
            return Err(error(format!("it is a kernel for {}, and {op} is wanted", kernel.front.op)));
        }
        self.backend.accepts(&kernel.front).map_err(error)?;
        Ok(kernel)
    }

    /// The candidate's kernel file: it serves the types in which it is timed, and all that the incumbent does.
    pub(super) fn candidate(&self, task: &EvaluationTask) -> Result<KernelFile, Failure> {
        let kernel = self.read(&task.candidate)?;
        let incumbent = task.incumbent.as_deref().and_then(|text| KernelFile::parse(text).ok());
        let replaced = incumbent.map(|incumbent| incumbent.front.dtypes).unwrap_or_default();
        let serves = |dtype: &Dtype| kernel.front.dtypes.contains(dtype);
        let timed = task.target.iter().map(|wanted| wanted.dtype).find(|dtype| !serves(dtype));
        let why = match (timed, replaced.into_iter().find(|dtype| !serves(dtype))) {
            (Some(dtype), _) => format!("it does not serve {dtype}, in which it is timed"),
            (None, Some(dtype)) => format!("it does not serve {dtype}, as the kernel that it would replace does"),
            (None, None) => return Ok(kernel),
        };
        Err(Failure::reject(Stage::Compile, why))
    }

    /// Compiles a kernel file for `shapes`.
    pub(super) fn build(&self, kernel: KernelFile, shapes: &BTreeSet<(Shape, Dtype)>) -> Result<Build<B>, Failure> {
        let mut builds = self.build_all(vec![Wanted::new(kernel, shapes)], &mut |_| ())?;
        builds.pop().ok_or_else(|| JudgeError::machine("build", "nothing was compiled").into())
    }

    /// The same without those shapes at which its compiler asks for more memory than there is for a kernel.
    pub(super) fn build_as_fits(
        &self,
        kernel: KernelFile,
        shapes: &BTreeSet<(Shape, Dtype)>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Build<B>, Failure> {
        let wanted = Wanted { as_fits: true, ..Wanted::new(kernel, shapes) };
        let mut builds = self.build_all(vec![wanted], &mut |_| meanwhile())?;
        builds.pop().ok_or_else(|| JudgeError::machine("build", "nothing was compiled").into())
    }

    /// Compiles several kernel files at once, each for its shapes; `early` may be shown what is ready of the first.
    pub(super) fn build_all(
        &self,
        wanted: Vec<Wanted<'_>>,
        early: &mut dyn FnMut(&Making<'_, B>),
    ) -> Result<Vec<Build<B>>, Failure> {
        Build::all(self.backend, self.op(), wanted, self.watch.cancelled, early)
    }

    /// Compiles the kernel file of a text for a target.
    pub(super) fn build_text(&self, text: &str, target: &[TargetShape]) -> Result<Build<B>, Failure> {
        self.build(self.read(text)?, &timed_shapes(target))
    }

    /// The same for several texts, compiled at the same time; ends with the first that fails.
    pub(super) fn build_texts(&self, texts: &[String], target: &[TargetShape]) -> Result<Vec<Build<B>>, Failure> {
        let shapes = timed_shapes(target);
        let wanted = texts.iter().map(|text| Ok(Wanted::new(self.read(text)?, &shapes)));
        self.build_all(wanted.collect::<Result<_, Failure>>()?, &mut |_| ())
    }

    /// [`Self::build_text`] for a kernel that was right before: what is wrong with it now is not the candidate's fault.
    pub(super) fn trusted(&self, text: &str, target: &[TargetShape]) -> Result<Build<B>, Failure> {
        self.build_text(text, target).map_err(|failure| match failure {
            Failure::Verdict(verdict) => JudgeError::Incumbent(verdict.why().to_owned()).into(),
            machine @ Failure::Judge(_) => machine,
        })
    }

    /// What the user has today for a target where that is a library, with its name.
    pub(super) fn library(&self, target: &[TargetShape]) -> Option<(Build<B>, &'static str)> {
        Build::library(self.backend, self.op(), &timed_shapes(target))
    }

    /// The target shapes with every symbol filled in.
    pub(super) fn complete(&self, target: &[TargetShape]) -> Result<Vec<TargetShape>, Failure> {
        if target.is_empty() {
            return Err(JudgeError::machine("request", "no shape to time").into());
        }
        target
            .iter()
            .map(|wanted| {
                let shape = self.op().complete(&wanted.shape).map_err(JudgeError::from)?;
                Ok(TargetShape { shape, ..wanted.clone() })
            })
            .collect()
    }
}

impl<B: Backend> Trial<'_, B> {
    /// A fresh place with the candidate, in the conditions of this trial.
    pub(super) fn host(&self) -> Result<B::Host, Failure> {
        self.bench.start(self.build, &self.arena, &self.conditions)
    }
}

/// The distinct shapes and dtypes of a target.
pub(super) fn timed_shapes(target: &[TargetShape]) -> BTreeSet<(Shape, Dtype)> {
    target.iter().map(|wanted| (wanted.shape.clone(), wanted.dtype)).collect()
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Op(error) => JudgeError::from(error).into(),
            MemoryError::Unavailable(what) => JudgeError::machine("tensor memory", what).into(),
        }
    }
}
