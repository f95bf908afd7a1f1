//! What an agent answers, and what it hears back.

use serde::{Deserialize, Serialize};

use crate::evaluation::Verdict;

/// How often a proposal that does not compile or is wrong goes back to its author.
pub const MOST_REPAIRS: u32 = 2;

/// An agent's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "offer", rename_all = "snake_case")]
pub enum Offer {
    /// A candidate.
    Proposal(Proposal),
    /// A proposal that was taken back to be mended, and cannot be.
    GivenUp {
        /// The proposal's.
        ticket: u64,
    },
    /// It has no idea left for this target.
    Exhausted {
        /// Why, in a sentence.
        why: String,
    },
}

/// A candidate, and what its author says of it. None of this decides anything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// The kernel file.
    pub text: String,
    /// An identifier for the ledger, such as `tune`.
    pub technique: String,
    /// What changed, in a few words, such as `BLOCK_M 32→64, UNROLL 2→4`.
    pub description: String,
    /// Why it should be faster; empty where nobody said.
    #[serde(default)]
    pub hypothesis: String,
    /// The speedup it expects against the incumbent.
    #[serde(default)]
    pub predicted: Option<f64>,
    /// Who proposed it, where that is not the agent itself: a language model's name, or `tuner` standing in.
    #[serde(default)]
    pub by: Option<String>,
    /// Names the proposal among those of its agent. One that is mended keeps it.
    #[serde(default)]
    pub ticket: u64,
    /// How often it was mended.
    #[serde(default)]
    pub repairs: u32,
}

/// A proposal that does not compile or is wrong, on its way back to its author.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// What was proposed.
    pub proposal: Proposal,
    /// The judge's word.
    pub verdict: Verdict,
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
