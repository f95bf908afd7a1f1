//! The judge: five stages of correctness, paired timing, and the decision.

mod answer;
mod baselines;
mod bench;
mod beside;
mod build;
mod cases;
mod check;
mod decision;
mod determinism;
mod duel;
mod elsewhere;
mod examination;
mod fresh;
mod judge;
mod pair;
mod questions;
#[cfg(test)]
mod questions_tests;
mod screen;
mod self_test;
mod session;
mod simplicity;
#[cfg(test)]
mod simulation;
mod spots;
mod spread;
mod stages;
mod task;
mod timed_shape;
mod timing;
mod topic;
mod turns;
mod undisturbed;
mod unlisted;
mod unslowed;
mod watched;
mod ways;

pub use bench::Watch;
pub use build::MAX_IMAGES;
pub use cases::{PlannedCase, plan};
pub use decision::{Decision, First, Margin, Outcome, Simplification};
pub use elsewhere::{Elsewhere, SessionAnswer, SessionTask};
pub use judge::Judge;
pub use screen::Screened;
pub use self_test::SelfTest;
pub use session::{Block, CONFIRM_BLOCKS, CONFIRM_SESSIONS, SPREAD_SESSIONS, Session};
pub use simplicity::is_simpler;
pub use task::{EvaluationTask, JudgeError, Precision, Progress, ScreenTask};

use crate::backend::Fault;
use crate::evaluation::{Stage, Verdict};

/// Why an evaluation ends early: the candidate's doing, or the judge's.
#[derive(Debug)]
pub enum Failure {
    /// The candidate's: this is the verdict.
    Verdict(Verdict),
    /// The machine's: there is no verdict.
    Judge(JudgeError),
}

impl From<JudgeError> for Failure {
    fn from(error: JudgeError) -> Self {
        Self::Judge(error)
    }
}

impl Failure {
    /// A rejection at `stage`.
    pub fn reject(stage: Stage, why: impl Into<String>) -> Self {
        Self::Verdict(Verdict::Reject { stage, why: why.into() })
    }

    /// What a fault of the candidate's process means at `stage`, while it was doing `what`.
    #[must_use]
    pub fn fault(fault: Fault, stage: Stage, what: &str) -> Self {
        match fault {
            Fault::Crash { what: how, input_offset: Some(_), .. } => Self::reject(stage, format!("{how} at {what}")),
            Fault::Crash { what: how, .. } => Self::Verdict(Verdict::Crash { stage, why: format!("{how} at {what}") }),
            Fault::Timeout { .. } => Self::Verdict(Verdict::Timeout { stage, why: format!("{fault} at {what}") }),
            Fault::Escaped { .. } | Fault::RanOn { .. } | Fault::RanOutside { .. } => {
                Self::reject(stage, format!("{fault} at {what}"))
            }
            Fault::Host(error) => Self::Judge(JudgeError::machine("candidate's process", error)),
        }
    }
}
