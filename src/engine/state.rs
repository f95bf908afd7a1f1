//! A run as the journal holds it: everything that a resumed run needs, and nothing from a clock.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::{Attempt, Choice, Usage};
use crate::device::Ceilings;
use crate::evaluation::{Evaluation, Timing, Verdict};
use crate::harness::Precision;
use crate::kernel::{KernelFile, Language, kernel_file};
use crate::op::{OpError, OpSource, TargetShape};
use crate::verify::Report;

use super::stop::{Rules, StopReason, TargetProgress};
use super::trial::Judged;
use super::workload::Workload;

/// Raised whenever the meaning of a field changes; a run of another version is not resumed.
pub const VERSION: u32 = 3;

/// Everything about a run at one entry of its journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// [`VERSION`].
    pub version: u32,
    /// The run's name, such as `261120a`.
    pub run: String,
    /// The model directory, or the kernel file that is improved outside of any model; relative to the workspace.
    pub model: String,
    /// What the targets are parts of.
    #[serde(flatten)]
    pub workload: Workload,
    /// Who proposes.
    pub agent: Choice,
    /// What its proposals have cost so far.
    #[serde(rename = "bill")]
    pub usage: Usage,
    /// The backend.
    pub backend: String,
    /// The device's name.
    pub device: String,
    /// What identifies the very device: figures of different ones are not comparable.
    pub device_key: String,
    /// Hash of the judging program at the start.
    pub judge: String,
    /// Seed of everything drawn in this run.
    pub seed: u64,
    /// When to stop.
    pub rules: Rules,
    /// Wall time spent so far in seconds, interruptions left out.
    pub elapsed_s: f64,
    /// Wall time during which the device was judging, in seconds.
    pub busy_s: f64,
    /// Number of the next experiment.
    pub next_experiment: u64,
    /// Trials so far: one that is mended becomes no experiment by itself.
    #[serde(default)]
    pub trials: u64,
    /// The last trial that was decided; all before it were as well.
    #[serde(default)]
    pub decided: u64,
    /// Targets: done ones, the active one, waiting ones in Amdahl order.
    pub targets: Vec<TargetState>,
    /// What the kernels kept so far do for the whole pass, measured when a target was last left.
    pub in_model: Option<InModel>,
    /// The device's measured ceilings at the start, by which rooflines were drawn.
    #[serde(default)]
    pub ceilings: Option<Ceilings>,
    /// What went wrong and was survived, oldest first; at most [`MOST_TROUBLES`].
    #[serde(default)]
    pub troubles: Vec<Trouble>,
    /// Times the run was interrupted and resumed.
    pub resumed: u32,
    /// The experiment that each resumption went on with, oldest first.
    #[serde(default)]
    pub resumed_at: Vec<u64>,
    /// Whether its experiments are over, and only the comparison of the whole model is missing.
    #[serde(default)]
    pub closing: bool,
    /// Why the run ended, once it has.
    pub ended: Option<StopReason>,
    /// The whole model before and after, once the run has ended.
    pub verified: Option<Report>,
}

/// So many troubles are kept: a machine that fails all night would fill every entry of the journal with them.
pub const MOST_TROUBLES: usize = 100;

/// Something that went wrong and was survived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The experiment at hand, or the next one.
    pub experiment: u64,
    /// What went wrong, in a sentence.
    pub what: String,
}

/// The whole pass with the kernels of one moment against the pass as it was at the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InModel {
    /// Time at the start over time then.
    pub ratio: f64,
    /// `vs_user` of each operation then.
    pub speedups: BTreeMap<String, f64>,
}

/// One operation of the model as a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetState {
    /// The operation.
    pub op: String,
    /// Its kernel file below the workspace.
    pub file: String,
    /// What it must compute, where no file of the workspace says so: a region of a PyTorch model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<OpSource>,
    /// The kernel file's text at the start: what the user has today; of a target that begins without a kernel, the file to be
    /// written in.
    pub start_text: String,
    /// Whether it begins without a kernel: what there is to beat is PyTorch alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub empty: bool,
    /// The shapes the model uses.
    pub shapes: Vec<TargetShape>,
    /// Whether the user asked for it by name: then it is worked on, however little the model can gain.
    pub named: bool,
    /// Share of the model's time when it was ranked last (0 to 1).
    pub share: f64,
    /// Where it stands.
    pub phase: Phase,
    /// Whether the starting point has its verdict: it is judged once, even where it was refused and the run killed then.
    pub start_judged: bool,
    /// Σ calls × time of the starting point, µs; none where it was refused.
    pub start_us: Option<f64>,
    /// The same of the best kernel so far, µs, had it been timed when the starting point was: `start_us` over the paired
    /// gain since. Times of different moments do not divide to it where the machine's speed has changed in between.
    pub best_us: Option<f64>,
    /// The best Σ calls × time ever kept, µs: equal-but-simpler kernels may not stray from it.
    pub fastest_us: Option<f64>,
    /// The starting point's `vs_user`: 1, or how it compares with the library.
    #[serde(default)]
    pub start_vs_user: Option<f64>,
    /// The library that `vs_user` is measured against; none where that is the starting point.
    #[serde(default)]
    pub against: Option<String>,
    /// The incumbent's latest times.
    pub timing: Option<Timing>,
    /// What the compiler said of the incumbent: registers, spills, occupancy.
    #[serde(default)]
    pub resources: String,
    /// Targets that hold all of its calls as parts of theirs: of a PyTorch model the joined regions that are worked on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub within: Vec<String>,
    /// What the stop rules look at.
    pub progress: TargetProgress,
    /// How finely this machine measures it.
    pub precision: Option<Precision>,
    /// Experiments kept.
    pub kept: u32,
    /// Whether the whole model was seen to say the same with the incumbent.
    #[serde(default)]
    pub agreed: bool,
    /// How much faster the whole pass is with the incumbent than without, where it is slower beyond doubt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_in_model: Option<f64>,
    /// Experiments not kept.
    pub not_kept: u32,
    /// What was tried, in order.
    pub tried: Vec<Attempt>,
    /// What the agent wants to remember about it.
    pub memory: Value,
    /// Failed proposals that their author is mending, by ticket: what is known of each, should nothing come of it.
    #[serde(default)]
    pub parked: BTreeMap<u64, Judged>,
    /// The experiment that made the incumbent.
    #[serde(default)]
    pub incumbent: Option<u64>,
    /// The languages that its kernel may be in; where none is named, its file's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub languages: Vec<Language>,
    /// What it could have begun with as well and has not been judged yet: kernels in other languages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<Rival>,
    /// Files, in other languages, that its incumbents were before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_files: Vec<String>,
}

/// A kernel that a target could have begun with, in another language than the one it began with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rival {
    /// Its kernel file below the workspace.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// Where a target stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not begun.
    Waiting,
    /// Being worked on.
    Active,
    /// Left, and why.
    Done(StopReason),
    /// Never begun, and why.
    Skipped(String),
}

impl TargetState {
    /// A target that nobody has touched yet.
    #[must_use]
    pub fn new(op: &str, file: String, start_text: String, shapes: Vec<TargetShape>) -> Self {
        Self {
            op: op.to_owned(),
            file,
            source: None,
            start_text,
            empty: false,
            shapes,
            named: false,
            share: 0.0,
            phase: Phase::Waiting,
            start_judged: false,
            start_us: None,
            best_us: None,
            fastest_us: None,
            start_vs_user: None,
            against: None,
            timing: None,
            resources: String::new(),
            within: Vec::new(),
            progress: TargetProgress::default(),
            precision: None,
            kept: 0,
            agreed: false,
            slower_in_model: None,
            not_kept: 0,
            tried: Vec::new(),
            memory: Value::Null,
            parked: BTreeMap::new(),
            incumbent: None,
            languages: Vec::new(),
            rivals: Vec::new(),
            left_files: Vec::new(),
        }
    }

    /// The file that a text is for: the target's own, or, where the target may be in the text's language and its own file is in another,
    /// the operation's in that language.
    #[must_use]
    pub fn file_for(&self, text: &str) -> String {
        match KernelFile::parse(text) {
            Ok(kernel)
                if self.languages.contains(&kernel.language)
                    && Language::of_file(&self.file) != Some(kernel.language) =>
            {
                kernel_file(&self.op, kernel.language.folder())
            }
            _ => self.file.clone(),
        }
    }

    /// Why a text is no answer for this target: it is in a language that its kernel may not be in. What is no kernel file the judge refuses.
    #[must_use]
    pub fn refuses(&self, text: &str) -> Option<String> {
        let language = KernelFile::parse(text).ok()?.language;
        let own = Language::of_file(&self.file)?;
        if own == language || self.languages.contains(&language) {
            return None;
        }
        let others = self.languages.iter().filter(|it| **it != own);
        let may: Vec<&str> = std::iter::once(&own).chain(others).map(|it| it.name()).collect();
        Some(format!(
            "it is in {}, and this run takes kernels for {} in {} only: write it in that, or begin a run with `--language {},{}`",
            language.name(),
            self.op,
            may.join(" and "),
            may.join(","),
            language.name()
        ))
    }

    /// The files that its incumbents are and were.
    pub(super) fn files(&self) -> Vec<String> {
        self.left_files.iter().chain([&self.file]).cloned().collect()
    }

    /// The text that it stands at, where the branch's tip has `tip` as its file: what it started from as long as nothing has moved the
    /// branch to a kernel of its own; none where the branch should have one and does not.
    pub(super) fn stands_at(&self, tip: Option<String>) -> Option<String> {
        let is_on_the_branch = self.kept > 0 || self.incumbent.is_some();
        tip.or_else(|| (!is_on_the_branch).then(|| self.start_text.clone()))
    }

    /// Goes on with another file; the one that is left, where that is another one.
    pub(super) fn go_on_with(&mut self, file: &str) -> Option<String> {
        if self.file == file {
            return None;
        }
        let left = std::mem::replace(&mut self.file, file.to_owned());
        self.left_files.retain(|it| it != file && *it != left);
        self.left_files.push(left.clone());
        Some(left)
    }

    /// What it must compute: a region's own, else the operation's files as `read` finds them.
    ///
    /// # Errors
    /// There are no such files.
    pub fn operation(&self, read: &dyn Fn(&str) -> Option<String>) -> Result<OpSource, OpError> {
        self.source.clone().map_or_else(|| OpSource::read(&self.op, read), Ok)
    }

    /// Whether nothing correct is there yet: a candidate is then held against PyTorch alone.
    #[must_use]
    pub const fn is_unwritten(&self) -> bool {
        self.empty && self.start_us.is_none()
    }

    /// Takes in an evaluation of one of its candidates.
    pub fn learn(&mut self, evaluation: &Evaluation) {
        self.progress.record(&evaluation.verdict);
        match &evaluation.verdict {
            Verdict::Base | Verdict::Start | Verdict::Keep { .. } => {
                self.kept += u32::from(matches!(evaluation.verdict, Verdict::Keep { .. }));
                self.agreed = false;
                self.slower_in_model = None;
                // A first kernel that was not kept has no proven gain, whatever its median says: it stays out of the model.
                let most = if evaluation.verdict == Verdict::Start { 1.0 } else { f64::INFINITY };
                self.progress.vs_user = evaluation.vs_user.map(|ratio| ratio.min(most)).or(self.progress.vs_user);
                self.against = evaluation.against.clone().or(self.against.take());
                self.resources.clone_from(&evaluation.build_log);
                if let Some(timing) = &evaluation.timing {
                    let now_us = self.as_at_the_start(evaluation.vs_user).unwrap_or(timing.latency_us);
                    self.start_us = self.start_us.or(Some(timing.latency_us));
                    self.start_vs_user = self.start_vs_user.or(evaluation.vs_user);
                    self.best_us = Some(now_us);
                    self.fastest_us = Some(self.fastest_us.map_or(now_us, |us| us.min(now_us)));
                    self.progress.roofline_pct = Some(timing.roofline_pct * timing.latency_us / now_us);
                    let Timing { margin, spread, rounds, .. } = *timing;
                    let precision = Precision { margin, spread, rounds };
                    self.precision = self.precision.or(Some(precision));
                    self.timing = Some(timing.clone());
                }
            }
            _ => self.not_kept += 1,
        }
    }

    /// Goes back to what was known when `then` was the incumbent, because the kernels kept since (`experiments`) are taken back.
    pub(super) fn go_back(&mut self, then: &Self, experiments: &[u64], verdict: &Verdict) {
        self.kept = then.kept;
        self.slower_in_model = None;
        (self.start_us, self.best_us, self.fastest_us) = (then.start_us, then.best_us, then.fastest_us);
        self.against.clone_from(&then.against);
        self.timing.clone_from(&then.timing);
        self.resources.clone_from(&then.resources);
        self.progress.vs_user = then.progress.vs_user;
        self.progress.roofline_pct = then.progress.roofline_pct;
        for tried in self.tried.iter_mut().filter(|tried| experiments.contains(&tried.experiment)) {
            tried.verdict = verdict.clone();
        }
    }

    /// The time, µs, that a kernel with this `vs_user` would have had when the starting point was timed.
    fn as_at_the_start(&self, vs_user: Option<f64>) -> Option<f64> {
        let gain = vs_user? / self.start_vs_user?;
        let us = self.start_us? / gain;
        (us.is_finite() && us > 0.0).then_some(us)
    }

    /// What the user had over what there is now (1 where nothing was measured).
    #[must_use]
    pub fn vs_user(&self) -> f64 {
        self.progress.vs_user.unwrap_or(1.0)
    }

    /// What its kernel is for the model: `vs_user`, and 1 where the model is slower with it, so that it is not installed.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.slower_in_model.map_or(self.vs_user(), |_| 1.0)
    }
}

impl RunState {
    /// The kernel of a run that improves a single one, outside of any model.
    #[must_use]
    pub fn single(&self) -> Option<&TargetState> {
        match &self.targets[..] {
            [only] if self.workload == Workload::Operation => Some(only),
            _ => None,
        }
    }

    /// The target being worked on.
    #[must_use]
    pub fn active(&self) -> Option<&TargetState> {
        self.targets.iter().find(|target| target.phase == Phase::Active)
    }

    /// Writes down what went wrong and was survived.
    pub fn note(&mut self, what: String) {
        if self.troubles.len() < MOST_TROUBLES {
            self.troubles.push(Trouble { experiment: self.next_experiment, what });
        }
    }

    /// Goes on after an interruption.
    pub fn resume(&mut self) {
        self.resumed += 1;
        if self.resumed_at.len() < MOST_TROUBLES {
            self.resumed_at.push(self.next_experiment);
        }
    }

    /// Experiments an hour so far.
    #[must_use]
    pub fn experiments_per_hour(&self) -> f64 {
        if self.elapsed_s > 0.0 { (self.next_experiment as f64 - 1.0) / self.elapsed_s * 3600.0 } else { 0.0 }
    }

    /// Each operation's [`TargetState::gain`], for the end-to-end figures; only what beats the user's is installed.
    #[must_use]
    pub fn speedups(&self) -> BTreeMap<String, f64> {
        self.targets.iter().map(|target| (target.op.clone(), target.gain())).collect()
    }

    /// The model's predicted time now, µs, and its ratio to the start.
    ///
    /// What was kept when a target was last left is measured in the model; what came after it is predicted by Amdahl's
    /// law from the first profile and `vs_user`. In place, caches and clocks are what they are in the model, and kernels
    /// timed alone predict the whole only to about 8 %.
    #[must_use]
    pub fn predicted(&self) -> Option<(f64, f64)> {
        let predict = |gained: &BTreeMap<String, f64>| self.workload.predict(gained);
        let (start_us, now_us) = (predict(&BTreeMap::new())?, predict(&self.speedups())?);
        let ratio = match &self.in_model {
            Some(then) => then.ratio * predict(&then.speedups)? / now_us,
            None => start_us / now_us,
        };
        Some((start_us / ratio, ratio))
    }
}

#[cfg(test)]
mod tests;
