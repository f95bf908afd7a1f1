//! Who proposes candidates. An agent receives a plain brief and returns a text; it compiles, launches and judges
//! nothing, and what it says about its own proposal decides nothing.

mod brief;
pub mod change;
mod choice;
pub mod command;
pub mod language;
mod offer;
mod outside;
pub mod prompt;
pub mod replay;
pub mod transcript;
pub mod tuner;
mod usage;

use std::future::Future;
use std::pin::Pin;

use serde_json::Value;

pub use brief::{Attempt, Brief};
pub use choice::Choice;
pub use offer::{Failed, MOST_REPAIRS, Offer, Outcome, Proposal};
pub use outside::Outside;
pub use usage::Usage;

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

    /// Takes back a proposal that does not compile or is wrong, to mend it: `true` where another [`Offer`] with its
    /// ticket will come, at some time. Until then it is nobody's experiment.
    fn mend(&mut self, failed: &Failed) -> bool {
        let _ = failed;
        false
    }

    /// What it has used since it was last asked, and what went wrong meanwhile.
    fn usage(&mut self) -> Usage {
        Usage::default()
    }

    /// What it has used for one proposal since this was last asked, with what it had tried in vain before. It is a part
    /// of what [`Agent::usage`] says of all of them.
    fn spent_on(&mut self, ticket: u64) -> Usage {
        let _ = ticket;
        Usage::default()
    }

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

    /// Tells whoever watches what keeps the agent waiting.
    fn waits(&mut self, what: &str) {
        let _ = what;
    }
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
