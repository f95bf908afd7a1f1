//! Timing sessions in processes of their own, where a kernel does not get one by itself.

use serde::{Deserialize, Serialize};

use crate::backend::Instrument;
use crate::evaluation::Verdict;
use crate::op::{OpSource, TargetShape};

use super::Failure;
use super::bench::Watch;
use super::session::Session;
use super::task::EvaluationTask;

/// One session to measure in a fresh process, by value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionTask {
    /// The operation.
    pub op: OpSource,
    /// The kernel file that is timed against; `None` is the library that the user has today.
    pub incumbent: Option<String>,
    /// The other one.
    pub candidate: String,
    /// The timed shapes, complete.
    pub target: Vec<TargetShape>,
    /// Rounds in a block.
    pub rounds: u32,
    /// Seed of inputs and orders.
    pub seed: u64,
    /// Which session of that seed it is; no two have the same orders.
    pub number: u32,
    /// Whether the candidate is asked about hostile inputs between samples.
    #[serde(default)]
    pub asks: bool,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionAnswer {
    /// It was measured.
    Measured(Session),
    /// The candidate did not come through it: this is the verdict.
    Failed(Verdict),
}

/// Whoever can measure sessions in fresh processes.
pub trait Elsewhere {
    /// Measures each task in a process of its own, one after the other, which asks PyTorch at `socket` where there is one.
    ///
    /// # Errors
    /// The first session that fails, whoever is at fault.
    fn sessions(&self, tasks: &[SessionTask], socket: Option<&str>, watch: Watch<'_>) -> Result<Vec<Session>, Failure>;

    /// Tools that can watch such a process while it is asked for stage 1 of the task's candidate.
    fn instruments(&self, _task: &EvaluationTask, _socket: Option<&str>) -> Vec<Instrument> {
        Vec::new()
    }
}
