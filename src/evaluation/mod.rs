//! What is known about a candidate after the judge has seen it: data only.

mod any_float;
mod errors;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::Bound;
use crate::op::{Case, Dtype, Shape};

/// Where in the judging something happened, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading the front matter and compiling.
    Compile,
    /// Stage 1.
    Smoke,
    /// Stage 2.
    Sweep,
    /// Stage 3.
    Stability,
    /// Stage 4.
    Determinism,
    /// Stage 5.
    Edges,
    /// Paired timing, with the timed outputs checked.
    Timing,
    /// The same in fresh processes.
    Confirmation,
    /// The second tier: what would be kept is asked harder questions, without a clock.
    Examination,
    /// The whole model with what was kept, against the model without.
    Model,
}

impl Stage {
    /// The name in the ledger and in verdicts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compile => "compile",
            Self::Smoke => "smoke",
            Self::Sweep => "sweep",
            Self::Stability => "stability",
            Self::Determinism => "determinism",
            Self::Edges => "edges",
            Self::Timing => "timing",
            Self::Confirmation => "confirm",
            Self::Examination => "examine",
            Self::Model => "model",
        }
    }
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The judge's word. What is kept has a speedup; what is not has a reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub enum Verdict {
    /// A starting point: correct, timed, compared with nothing.
    Base,
    /// The first correct kernel of a target that began without any, and not faster than what the user has: what is proposed
    /// after it is held against it.
    Start,
    /// Correct, and confirmed to be faster than the incumbent.
    Keep {
        /// The confirmed gain.
        speedup: Speedup,
        /// Whether it is kept for being simpler at the same speed.
        #[serde(default)]
        simpler: bool,
    },
    /// Correct, and not faster.
    Revert {
        /// What was measured before giving up.
        speedup: Speedup,
        /// Why it is not a gain, in a sentence.
        why: String,
    },
    /// Wrong, or dishonest.
    Reject {
        /// Where it was found out.
        stage: Stage,
        /// The judge's sentence, with the failing case.
        why: String,
    },
    /// It ended its own process.
    Crash {
        /// Where.
        stage: Stage,
        /// Signal and case.
        why: String,
    },
    /// It did not finish in its time.
    Timeout {
        /// Where.
        stage: Stage,
        /// Limit and case.
        why: String,
    },
    /// It is not a kernel: front matter or compiler refuse it.
    Error {
        /// Where: always before the first launch.
        stage: Stage,
        /// The compiler's words, shortened.
        why: String,
    },
    /// Nothing that was proposed: what had been kept is taken back, because the whole model does not agree with it.
    Withdrawn {
        /// Those experiments, the newest first.
        experiments: Vec<u64>,
        /// What the model said.
        why: String,
    },
}

impl Verdict {
    /// The word in the ledger.
    #[must_use]
    pub const fn status(&self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Start => "start",
            Self::Keep { .. } => "keep",
            Self::Revert { .. } => "revert",
            Self::Reject { .. } => "reject",
            Self::Crash { .. } => "crash",
            Self::Timeout { .. } => "timeout",
            Self::Error { .. } => "error",
            Self::Withdrawn { .. } => "withdrawn",
        }
    }

    /// Whether the branch advances to what was proposed.
    #[must_use]
    pub const fn advances(&self) -> bool {
        matches!(self, Self::Base | Self::Start | Self::Keep { .. })
    }

    /// Whether it is wrong or no kernel at all, rather than not faster.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::Reject { .. } | Self::Crash { .. } | Self::Timeout { .. } | Self::Error { .. })
    }

    /// Where the judging ended.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        match self {
            Self::Base | Self::Start | Self::Revert { .. } => Stage::Timing,
            Self::Keep { .. } => Stage::Confirmation,
            Self::Withdrawn { .. } => Stage::Model,
            Self::Reject { stage, .. }
            | Self::Crash { stage, .. }
            | Self::Timeout { stage, .. }
            | Self::Error { stage, .. } => *stage,
        }
    }

    /// The gain, where one was measured.
    #[must_use]
    pub const fn speedup(&self) -> Option<Speedup> {
        match self {
            Self::Keep { speedup, .. } | Self::Revert { speedup, .. } => Some(*speedup),
            _ => None,
        }
    }

    /// The reason, where there is one to give.
    #[must_use]
    pub fn why(&self) -> &str {
        match self {
            Self::Base | Self::Start | Self::Keep { .. } => "",
            Self::Revert { why, .. }
            | Self::Reject { why, .. }
            | Self::Crash { why, .. }
            | Self::Timeout { why, .. }
            | Self::Error { why, .. }
            | Self::Withdrawn { why, .. } => why,
        }
    }
}

/// Incumbent time over candidate time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Speedup {
    /// Median of the pairs.
    pub ratio: f64,
    /// One-sided lower bound of the ratio (97.5 %).
    pub low: f64,
}

/// Everything the judge found out about one candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The operation.
    pub op: String,
    /// The backend's name.
    pub backend: String,
    /// The judge's word.
    pub verdict: Verdict,
    /// Every case that ran, in order.
    pub cases: Vec<CaseResult>,
    /// Times, where it came to that.
    pub timing: Option<Timing>,
    /// What the user has today over candidate, measured in pairs; only for base and keep.
    pub vs_user: Option<f64>,
    /// The library that `vs_user` is measured against; `None` is the starter.
    #[serde(default)]
    pub against: Option<String>,
    /// What PyTorch takes for the same, where it is the oracle: each way and shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<Baseline>,
    /// Seed of inputs, poison and orders.
    pub seed: u64,
    /// Wall time of the whole judging in seconds.
    pub wall_s: f64,
    /// How much of it went into each stage.
    #[serde(default)]
    pub stage_s: BTreeMap<Stage, f64>,
    /// What the second tier asked, where it came to that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub examination: Option<Examination>,
    /// What the compiler said that is worth keeping (warnings, resources).
    #[serde(default)]
    pub build_log: String,
}

impl Evaluation {
    /// Of a text that no judge was asked about: `why` it is no kernel there.
    #[must_use]
    pub fn unjudged(op: &str, backend: &str, why: String, seed: u64) -> Self {
        Self {
            op: op.to_owned(),
            backend: backend.to_owned(),
            verdict: Verdict::Error { stage: Stage::Compile, why },
            cases: Vec::new(),
            timing: None,
            vs_user: None,
            against: None,
            baselines: Vec::new(),
            seed,
            wall_s: 0.0,
            stage_s: BTreeMap::new(),
            examination: None,
            build_log: String::new(),
        }
    }
}

/// A way in which the user can have an operation computed today, and how long it takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// Its name: `eager`, `torch.compile`.
    pub name: String,
    /// Where it was timed.
    pub shape: Shape,
    /// In this type.
    pub dtype: Dtype,
    /// µs a call; `None` where it does not work.
    pub us: Option<f64>,
    /// What the kernel is faster by, in paired blocks over all shapes of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paired: Option<Speedup>,
    /// Where it is the fastest way: why the kernel would not be kept against it, by the rule for keeping; empty where it would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unbeaten: Option<String>,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Versions, and how it was timed.
    pub how: String,
}

/// How the words of an instrument begin that looked and found nothing.
pub const CLEAN: &str = "clean";

/// How they begin where it could not look.
pub const COULD_NOT_LOOK: &str = "could not look";

/// What was asked of a kernel beyond the stages, before it was kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Examination {
    /// How long it took, in seconds.
    pub took_s: f64,
    /// What was asked about, in words, and in how many cases.
    pub asked: BTreeMap<String, u32>,
    /// How long each of these took, in seconds, compiling left out.
    #[serde(default)]
    pub asked_s: BTreeMap<String, f64>,
    /// Topics of which a question could not be put, and what was in its way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, String>,
    /// Sanitizers that looked, by name: what they said ("clean"), or why they could not.
    pub instruments: BTreeMap<String, String>,
}

/// One case's outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// The stage it ran in.
    pub stage: Stage,
    /// What was asked.
    pub case: Case,
    /// Whether the shape was made smaller for this machine.
    pub shrunk: bool,
    /// How far from the oracle.
    pub errors: ErrorStats,
    /// `None` where it passed.
    pub failure: Option<String>,
}

/// Distance between an output and the oracle over every element of a case.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorStats {
    /// Elements compared.
    pub elements: u64,
    /// Elements outside their bound, NaN and infinity out of place included.
    pub outside: u64,
    /// Largest `|y - r| / bound`.
    pub worst: f64,
    /// Where it is (flat index into its output).
    pub worst_at: u64,
    /// Which outputs the figures of the worst are of, where the operation has more than one.
    #[serde(default, skip_serializing_if = "WorstOutputs::is_unnamed")]
    pub outputs: WorstOutputs,
    /// The candidate's value there.
    #[serde(with = "any_float")]
    pub got: f64,
    /// The oracle's value there.
    #[serde(with = "any_float")]
    pub want: f64,
    /// rms of `y - r` over rms of `r`.
    pub relative_rms: f64,
    /// `rms(y - r)` over its bound for the whole tensor.
    pub tensor_ratio: f64,
    /// The same for the worst row.
    pub row_ratio: f64,
    /// Elements that are not the number of their type nearest to the oracle's, where that is counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub misrounded: u64,
    /// Their number over what an honest kernel may have.
    #[serde(default, skip_serializing_if = "is_none")]
    pub misrounded_ratio: f64,
    /// Elements that are off by half of what they are, where PyTorch is the oracle and that is counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    /// Their number over what an honest kernel may have.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lost_ratio: f64,
    /// Elements nearer to zero than the oracle's, and those further away, where the side is looked at.
    #[serde(default, skip_serializing_if = "is_nowhere")]
    pub sides: [u64; 2],
    /// The more frequent side's number over what chance may give it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub side_ratio: f64,
    /// What does not average out over its bound, where PyTorch is the oracle.
    #[serde(default, skip_serializing_if = "is_none")]
    pub bias_ratio: f64,
    /// Why nothing was compared: an input for which PyTorch itself has no usable result in the kernel's type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untested: Option<String>,
}

fn is_nowhere(sides: &[u64; 2]) -> bool {
    *sides == [0, 0]
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_none(ratio: &f64) -> bool {
    *ratio == 0.0
}

/// Names of the outputs that are furthest off; `None` where the operation has only one, or none is off.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorstOutputs {
    /// Has the element of [`ErrorStats::worst`].
    pub element: Option<String>,
    /// Is the one of [`ErrorStats::tensor_ratio`].
    pub tensor: Option<String>,
    /// Has the row of [`ErrorStats::row_ratio`].
    pub row: Option<String>,
}

impl WorstOutputs {
    /// Whether nothing is named.
    #[must_use]
    pub const fn is_unnamed(&self) -> bool {
        self.element.is_none() && self.tensor.is_none() && self.row.is_none()
    }
}

/// Times of a candidate beside its incumbent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Each shape of the target.
    pub shapes: Vec<ShapeTiming>,
    /// Σ calls × time of the candidate, in µs.
    pub latency_us: f64,
    /// The same of the incumbent.
    pub incumbent_us: f64,
    /// Share of the roofline over the target, in percent.
    pub roofline_pct: f64,
    /// The margin a gain had to exceed, as the logarithm of a ratio (0.01 for 1 %).
    pub margin: f64,
    /// Standard deviation of a session's median when nothing differs: where the margin comes from.
    pub spread: f64,
    /// Rounds in a block (each times both sides twice).
    pub rounds: u32,
    /// Blocks measured in the first stage; of a starting point, in all sessions against itself.
    pub blocks: u32,
    /// Median speedup of each confirming session.
    pub confirmations: Vec<f64>,
    /// The device's state afterwards, where it is known: clock, power cap, throttling.
    #[serde(default)]
    pub condition: Option<String>,
}

/// How far a kernel has come from what there is to beat (0.5 where it is as fast) to its roofline (1): the SOL score of SOL-ExecBench,
/// 1 / (1 + (t - t_sol) / (t_base - t_sol)), with times as parts of the kernel's own: `vs_user` is t_base / t, `roofline_pct` 100 t_sol / t.
///
/// None where there is nothing between the two, or a figure is not finite.
#[must_use]
pub fn sol_score(vs_user: f64, roofline_pct: f64) -> Option<f64> {
    let at_roof = (roofline_pct / 100.0).min(1.0);
    let score = 1.0 / (1.0 + (1.0 - at_roof) / (vs_user - at_roof));
    (vs_user > at_roof && score.is_finite()).then_some(score)
}

/// Above this margin, in percent, a machine is called noisy: a quiet one has 1 to 3.
const NOISY_PCT: f64 = 5.0;

impl Timing {
    /// The margin in percent of speed, as the reasons of reverts say it (margins are kept as logarithms).
    #[must_use]
    pub fn margin_pct(&self) -> f64 {
        100.0 * self.margin.exp_m1()
    }

    /// Whether the kernel differed so much from itself that only large gains can be proven.
    #[must_use]
    pub fn is_noisy(&self) -> bool {
        self.margin_pct() > NOISY_PCT
    }
}

/// One shape's times.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShapeTiming {
    /// The shape.
    pub shape: Shape,
    /// Its dtype.
    pub dtype: Dtype,
    /// Calls in one pass through the model.
    pub calls: u32,
    /// Candidate, µs a call (median).
    pub candidate_us: f64,
    /// Incumbent, µs a call (median).
    pub incumbent_us: f64,
    /// The roofline's time, µs.
    pub roofline_us: f64,
    /// What bounds it there.
    pub bound: Bound,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sol_score_is_a_half_at_what_there_is_to_beat_and_one_at_the_roofline() {
        assert_eq!(sol_score(1.0, 40.0), Some(0.5));
        assert_eq!(sol_score(2.5, 100.0), Some(1.0));
        // 100 us, where 50 are to be had and 150 stand: half of the way.
        let between = sol_score(1.5, 50.0).expect("there is something between");
        assert!((between - 2.0 / 3.0).abs() < 1e-12, "{between}");
        assert!(sol_score(0.8, 50.0).is_some_and(|slower| slower < 0.5));
        assert_eq!(sol_score(0.4, 50.0), None, "what stands is said to be faster than the roofline");
        assert_eq!(sol_score(f64::NAN, 50.0), None);
    }
}
