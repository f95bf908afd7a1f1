//! What the judge is asked, by value: nothing here refers to a file of the machine that asks.

use serde::{Deserialize, Serialize};

use crate::evaluation::Stage;
use crate::op::{OpError, OpSource, TargetShape};
use crate::torch::TorchError;

/// A candidate to judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationTask {
    /// The operation.
    pub op: OpSource,
    /// The candidate's kernel file.
    pub candidate: String,
    /// What it must beat; `None` judges a starting point (`Verdict::Base`).
    pub incumbent: Option<String>,
    /// What the user has today; a keep is measured against it as well.
    pub baseline: Option<String>,
    /// The shapes that are timed, with their calls.
    pub target: Vec<TargetShape>,
    /// Seed of inputs, poison, orders and the secret shape.
    pub seed: u64,
    /// How finely this machine measures this target, where it is known already.
    pub precision: Option<Precision>,
    /// Where it is not known, and there is nothing to decide: a look in this process, without fresh ones.
    pub look: bool,
    /// Seconds that the second tier may take of what would be kept; none where it is zero. With stage 1 alone: where it is not, a tool
    /// is watching.
    #[serde(default)]
    pub examination_s: f64,
    /// The branch's time over the best it ever had, where equal-but-simpler candidates are welcome.
    pub branch_over_best: Option<f64>,
}

/// How finely a machine measures a target: from the kernel timed against itself, once a target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    /// The margin a gain must exceed (0.01 for 1 %).
    pub margin: f64,
    /// Standard deviation of a session's median when nothing differs.
    pub spread: f64,
    /// Rounds in a block.
    pub rounds: u32,
}

/// Candidates to compare roughly with the incumbent, without a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScreenTask {
    /// The operation.
    pub op: OpSource,
    /// The kernel file they are compared with.
    pub incumbent: String,
    /// The candidates' kernel files.
    pub candidates: Vec<String>,
    /// The shapes that are timed.
    pub target: Vec<TargetShape>,
    /// Seed of inputs and orders.
    pub seed: u64,
}

/// Where the judge is, for whoever watches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// What is being looked at there, in a few words.
    pub detail: String,
}

/// Why the judge could not judge: the machine's fault, never the candidate's.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The operation's files.
    #[error(transparent)]
    Op(#[from] OpError),
    /// PyTorch, or what is written in it.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// A model's files of weights.
    #[error("{0}")]
    Weights(String),
    /// The incumbent, which was right before, is not now.
    #[error("the incumbent no longer passes: {0}")]
    Incumbent(String),
    /// The oracle or the harness itself failed.
    #[error("{place}: {what}")]
    Machine {
        /// Where.
        place: &'static str,
        /// What happened.
        what: String,
    },
    /// Whoever asked does not want to know any more.
    #[error("cancelled")]
    Cancelled,
}

impl JudgeError {
    /// A failure of the machine at `place`.
    pub fn machine(place: &'static str, what: impl std::fmt::Display) -> Self {
        Self::Machine { place, what: what.to_string() }
    }
}
