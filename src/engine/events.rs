//! What happens in a run, for whoever watches: the command line now, other front ends later.

use crate::evaluation::{Evaluation, Verdict};
use crate::harness::Progress;
use crate::verify::Report;

use super::state::{RunState, TargetState};
use super::stop::StopReason;

/// One thing that happened.
#[derive(Debug)]
pub enum RunEvent<'a> {
    /// Everything is ready; nothing has been measured yet.
    Started {
        /// The state the run starts or resumes from.
        state: &'a RunState,
        /// Whether it continues an interrupted run.
        resumed: bool,
    },
    /// The waiting targets have been put in order.
    Ranked {
        /// The state with the new order.
        state: &'a RunState,
    },
    /// Work on a target begins.
    Target {
        /// The target.
        target: &'a TargetState,
        /// The whole.
        state: &'a RunState,
    },
    /// The agent is thinking.
    Proposing,
    /// An experiment begins.
    Experiment {
        /// Its number.
        number: u64,
        /// What it tries.
        description: &'a str,
    },
    /// The judge is at work.
    Judging {
        /// The experiment.
        number: u64,
        /// Where the judge is.
        progress: &'a Progress,
    },
    /// An experiment is decided and recorded.
    Decided {
        /// Its number.
        number: u64,
        /// What it tried.
        description: &'a str,
        /// Everything found out.
        evaluation: &'a Evaluation,
        /// The state after it.
        state: &'a RunState,
    },
    /// Work on a target has ended.
    TargetDone {
        /// The target.
        target: &'a TargetState,
        /// Why.
        reason: &'a StopReason,
    },
    /// Something went wrong that the run survives.
    Trouble {
        /// What, in a sentence.
        what: &'a str,
    },
    /// The whole model is being compared, before and after.
    Verifying,
    /// The comparison's result.
    Verified {
        /// The report.
        report: &'a Report,
    },
}

/// Who watches a run.
pub trait Watcher: Send {
    /// Called for every event, in order; must return soon.
    fn on(&mut self, event: &RunEvent<'_>);
}

/// Whether an evaluation advanced the branch by a gain.
#[must_use]
pub fn is_keep(evaluation: &Evaluation) -> bool {
    matches!(evaluation.verdict, Verdict::Keep { .. })
}
