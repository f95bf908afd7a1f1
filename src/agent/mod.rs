//! Who proposes candidates. An agent receives a plain brief and returns a text; it compiles, launches and judges
//! nothing, and what it says about its own proposal decides nothing.

pub mod tuner;

use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::device::DeviceCard;
use crate::evaluation::{Timing, Verdict};
use crate::op::TargetShape;

pub use crate::harness::Screened;

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Proposes candidates for one target after the other.
pub trait Agent: Send {
    /// The name in the ledger and in commits, such as `tuner`.
    fn name(&self) -> &str;

    /// The next candidate for the target of `brief`, or that there is none.
    ///
    /// # Errors
    /// [`AgentError`], where it cannot work at all; a poor idea is not an error.
    fn propose<'a>(
        &'a mut self,
        brief: &'a Brief,
        screen: &'a mut dyn Screen,
    ) -> BoxFuture<'a, Result<Offer, AgentError>>;

    /// What became of the last proposal.
    fn learn(&mut self, outcome: &Outcome);

    /// Everything it must remember over a restart.
    fn save(&self) -> Value;

    /// Takes up what [`Agent::save`] returned.
    ///
    /// # Errors
    /// [`AgentError::State`], where it is not of this agent's making.
    fn restore(&mut self, state: &Value) -> Result<(), AgentError>;
}

/// Times candidates roughly: a fresh process for each and few blocks, with one timed output of each shape checked.
///
/// A screen's figure is for choosing among ideas. It is never a verdict.
pub trait Screen: Send {
    /// Rough speedups against the incumbent, one for each text in order; `None` where it does not compile, crashes or
    /// is visibly wrong.
    fn screen<'a>(&'a mut self, texts: Vec<String>) -> BoxFuture<'a, Vec<Option<Screened>>>;
}

/// What an agent is told about the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    /// The operation's name.
    pub op: String,
    /// The backend's name.
    pub backend: String,
    /// The kernel file to improve: the branch's tip.
    pub incumbent: String,
    /// The kernel file the run started from.
    pub starter: String,
    /// The shapes that count, with their calls.
    pub shapes: Vec<TargetShape>,
    /// The incumbent's times, where they are known.
    pub timing: Option<Timing>,
    /// The machine.
    pub device: DeviceCard,
    /// What a gain must exceed to be kept (0.01 for 1 %).
    pub margin: f64,
    /// What was tried on this target before, oldest first.
    pub history: Vec<Attempt>,
    /// The run's seed for this target: the same brief and state give the same proposal.
    pub seed: u64,
    /// The experiment's number in the run, from 1.
    pub experiment: u64,
}

/// An earlier experiment on the same target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number in the run.
    pub experiment: u64,
    /// The technique's identifier.
    pub technique: String,
    /// What was tried, in a few words.
    pub description: String,
    /// The speedup that whoever proposed it expected, where it named one.
    #[serde(default)]
    pub predicted: Option<f64>,
    /// What the judge said.
    pub verdict: Verdict,
}

/// An agent's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "offer", rename_all = "snake_case")]
pub enum Offer {
    /// A candidate.
    Proposal {
        /// The kernel file.
        text: String,
        /// An identifier for the ledger, such as `tune`.
        technique: String,
        /// What changed, in a few words, such as `BLOCK_M 32→64, UNROLL 2→4`.
        description: String,
        /// The speedup it expects against the incumbent.
        predicted: Option<f64>,
    },
    /// It has no idea left for this target.
    Exhausted {
        /// Why, in a sentence.
        why: String,
    },
}

/// What became of a proposal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The experiment's number in the run.
    pub experiment: u64,
    /// The text that was judged.
    pub text: String,
    /// The judge's word.
    pub verdict: Verdict,
    /// Speedup of each shape alone, in the brief's order; empty where it was not timed.
    pub shapes: Vec<f64>,
}

/// Why an agent cannot work.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The incumbent is not a kernel file.
    #[error("the incumbent of {op} cannot be read: {source}; `warpsmith bench` on it says more")]
    Incumbent {
        /// The operation.
        op: String,
        /// What is wrong with it.
        source: crate::kernel::KernelError,
    },
    /// A saved state that is not this agent's.
    #[error(
        "the saved state of agent `{agent}` cannot be read: {why}; start a new run, or use the version that wrote it"
    )]
    State {
        /// The agent.
        agent: String,
        /// What is wrong with it.
        why: String,
    },
    /// What it depends on is not there.
    #[error("agent `{agent}` is not available: {why}")]
    Unavailable {
        /// The agent.
        agent: String,
        /// What is missing, and how to get it.
        why: String,
    },
}
