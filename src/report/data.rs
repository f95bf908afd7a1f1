//! A run as the page shows it: plain data, so that the page can be made from any run, real or invented.
//!
//! Figures that were not measured are `None`; what is not [`sound`] counts as not measured.

use std::time::Duration;

/// A run with everything the page says about it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// The run's name.
    pub run: String,
    /// The model directory or the kernel file, as it was given.
    pub model: String,
    /// What was timed, in words: the pass by batch, tokens and dtype, or a kernel's shapes.
    pub pass: String,
    /// The device's name.
    pub device: String,
    /// The backend.
    pub backend: String,
    /// Who proposed.
    pub agent: String,
    /// What the agent used, where it used anything.
    pub used: Option<String>,
    /// Local times of the first and the last verdict, as in the ledger (`2026-02-14T03:12:45`).
    pub span: Option<[String; 2]>,
    /// Wall time spent, interruptions left out.
    pub spent: Duration,
    /// Share of it in which the device was at work (0 to 1).
    pub busy: f64,
    /// Why the run ended, once it has.
    pub ended: Option<String>,
    /// Times it was interrupted and resumed.
    pub resumed: u32,
    /// The experiments at which it was resumed, where they were written down.
    pub resumed_at: Vec<u64>,
    /// What went wrong and was survived: the experiment at hand, and a sentence.
    pub troubles: Vec<(u64, String)>,
    /// The whole model before and after; none where a single kernel was improved outside of any model.
    pub whole: Option<Whole>,
    /// The model's parts, most time before first.
    pub parts: Vec<PartReport>,
    /// The targets in the order they were worked on; those never begun last.
    pub targets: Vec<TargetReport>,
    /// The device's measured ceilings.
    pub ceilings: Option<CeilingLines>,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
    /// The seed of everything drawn.
    pub seed: u64,
}

/// The whole model before and after.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Whole {
    /// A pass before, µs.
    pub before_us: Option<f64>,
    /// The speedup that the kernels kept predict.
    pub predicted: Option<f64>,
    /// The speedup measured, once it was.
    pub measured: Option<Measured>,
    /// Whether both say the same, once it was looked at.
    pub outputs: Option<Outputs>,
}

/// Time before over time after, measured on whole passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The median.
    pub ratio: f64,
    /// The 95 % interval of the median, where there were enough passes.
    pub interval: Option<(f64, f64)>,
    /// The median pass before and after, µs.
    pub passes_us: (f64, f64),
}

/// What the comparison of the model's outputs says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outputs {
    /// Whether they agree.
    pub agree: bool,
    /// By how much, in a sentence.
    pub words: String,
}

/// A row of the Amdahl table: all calls of an operation, or of a step between operations. Times are of one pass.
#[derive(Debug, Clone, PartialEq)]
pub struct PartReport {
    /// The operation's name, or the step's.
    pub name: String,
    /// What it is.
    pub kind: PartKind,
    /// Calls in a pass.
    pub calls: u32,
    /// µs before.
    pub before_us: f64,
    /// µs after.
    pub after_us: f64,
    /// The least time by the measured ceilings, µs.
    pub roofline_us: Option<f64>,
    /// Its kernel's speedup against what the user has, timed alone, where one was kept.
    pub vs_user: Option<f64>,
    /// The same timed in its place in the model, where that was measured.
    pub in_place: Option<f64>,
}

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    /// An operation that kernels serve.
    Op,
    /// A step that no operation computes.
    Glue,
    /// What the parts do not explain.
    Other,
}

/// One target.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetReport {
    /// The operation.
    pub op: String,
    /// Its kernel file.
    pub file: String,
    /// Share of the model at the last ranking (0 to 1).
    pub share: f64,
    /// Whether it was begun.
    pub begun: bool,
    /// Whether it was left for good.
    pub left: bool,
    /// Why it was left, was never begun, or that it is not finished.
    pub why: String,
    /// Time spent on it.
    pub spent: Duration,
    /// Speed against what the user has.
    pub vs_user: Option<f64>,
    /// From what there is to beat (0.5) to the roofline (1); none where it was not timed.
    pub sol_score: Option<f64>,
    /// The library the user has; none where it is the starting point.
    pub against: Option<String>,
    /// Σ calls × time of the starting point, µs.
    pub start_us: Option<f64>,
    /// The same of the best kernel, µs.
    pub best_us: Option<f64>,
    /// The incumbent's times.
    pub timing: Option<TimingReport>,
    /// Every experiment, in order, the starting point first.
    pub tries: Vec<Try>,
    /// What one pass asks of it.
    pub work: Option<TargetWork>,
}

/// How well the incumbent was timed.
#[derive(Debug, Clone, PartialEq)]
pub struct TimingReport {
    /// Σ calls × time, µs.
    pub latency_us: f64,
    /// Standard deviation of a session's median when nothing differs, as a ratio.
    pub spread: f64,
    /// The margin a gain had to exceed, as a ratio.
    pub margin: f64,
    /// Percent of the roofline.
    pub roofline_pct: f64,
    /// Median speedup of each confirming session over the kernel before it.
    pub confirmations: Vec<f64>,
    /// The device's state afterwards, where it is known.
    pub condition: Option<String>,
    /// Each shape.
    pub shapes: Vec<ShapeReport>,
}

/// One shape's time.
#[derive(Debug, Clone, PartialEq)]
pub struct ShapeReport {
    /// The shape and dtype, for people.
    pub label: String,
    /// Calls in a pass.
    pub calls: u32,
    /// µs a call.
    pub us: f64,
    /// The least time by the measured ceilings, µs.
    pub roofline_us: f64,
    /// What bounds it there.
    pub bound: String,
}

/// One experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Try {
    /// Its number in the run.
    pub number: u64,
    /// The technique.
    pub technique: String,
    /// What was changed.
    pub description: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The speedup that its agent expected.
    pub predicted: Option<f64>,
    /// The speedup measured against the incumbent, with its lower bound.
    pub speedup: Option<(f64, f64)>,
    /// Speed against what the user has; only of starts and kept ones.
    pub vs_user: Option<f64>,
    /// The candidate's commit, shortened.
    pub commit: String,
    /// Where judging ended.
    pub stage: String,
    /// Why it was not kept.
    pub why: String,
}

/// What became of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// The starting point.
    Base,
    /// Faster: the branch advanced.
    Keep,
    /// Right, and not faster.
    Revert,
    /// Wrong.
    Reject,
    /// It ended its process.
    Crash,
    /// It did not finish in its time.
    Timeout,
    /// It did not compile.
    Error,
    /// What was kept before it is taken back: the whole model did not agree.
    Withdrawn,
}

impl Outcome {
    /// All of them, the best first.
    pub const ALL: [Self; 8] =
        [Self::Base, Self::Keep, Self::Revert, Self::Reject, Self::Crash, Self::Timeout, Self::Error, Self::Withdrawn];

    /// From the ledger's word.
    #[must_use]
    pub fn from_status(status: &str) -> Option<Self> {
        // A first kernel is where its target starts, as one that was there before.
        let status = if status == "start" { Self::Base.status() } else { status };
        Self::ALL.into_iter().find(|outcome| outcome.status() == status)
    }

    /// The ledger's word.
    #[must_use]
    pub const fn status(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Keep => "keep",
            Self::Revert => "revert",
            Self::Reject => "reject",
            Self::Crash => "crash",
            Self::Timeout => "timeout",
            Self::Error => "error",
            Self::Withdrawn => "withdrawn",
        }
    }

    /// For people.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Base => "start",
            Self::Keep => "kept",
            Self::Revert => "reverted",
            Self::Reject => "rejected",
            Self::Crash => "crashed",
            Self::Timeout => "timed out",
            Self::Error => "did not compile",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// What one pass of the model asks of a target, over all its calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TargetWork {
    /// Useful floating-point operations.
    pub flops: f64,
    /// Compulsory bytes, read and written.
    pub bytes: f64,
}

/// Measured ceilings of the device.
#[derive(Debug, Clone, PartialEq)]
pub struct CeilingLines {
    /// Reading, GB/s.
    pub read_gb_s: f64,
    /// Writing, GB/s.
    pub write_gb_s: f64,
    /// Arithmetic in the run's dtype: its name, GFLOP/s.
    pub arithmetic: Option<(String, f64)>,
}

/// A figure that can be shown: above zero, and nothing that only a broken clock measures (1e-30 to 1e30).
#[must_use]
pub fn sound(value: f64) -> Option<f64> {
    (1e-30..=1e30).contains(&value).then_some(value)
}

impl RunReport {
    /// The model's name: the last part of its path.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.model.rsplit('/').find(|part| !part.is_empty()).unwrap_or(&self.model)
    }

    /// Every experiment with its target's place in the list.
    pub fn tries(&self) -> impl Iterator<Item = &Try> {
        self.targets.iter().flat_map(|target| &target.tries)
    }

    /// Experiments with this outcome.
    #[must_use]
    pub fn count(&self, outcome: Outcome) -> usize {
        self.tries().filter(|tried| tried.outcome == outcome).count()
    }
}
