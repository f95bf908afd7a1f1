//! Which agent a run has, as its state keeps it: everything but a key.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An agent and its settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Choice {
    /// The built-in search over tunables.
    #[default]
    Tuner,
    /// Language models behind an OpenAI-compatible endpoint.
    Openai {
        /// The endpoint's address.
        base_url: String,
        /// Models with their weights.
        models: Vec<(String, f64)>,
        /// Proposals in flight at once.
        proposals: usize,
        /// Tokens that fit into a model's context, where the user said so.
        #[serde(default)]
        context: Option<usize>,
    },
    /// A program that edits the kernel file.
    Command {
        /// The program and its arguments.
        argv: Vec<String>,
        /// How long it may take for one proposal.
        limit: Duration,
    },
    /// The proposals of an earlier run.
    Replay {
        /// Its transcript.
        file: String,
    },
    /// Someone outside, who proposes when they like.
    Outside {
        /// What they come through, such as `mcp`.
        name: String,
    },
}

impl Choice {
    /// The name in ledger, commits and first lines.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Tuner => "tuner",
            Self::Openai { .. } => "openai",
            Self::Command { .. } => "command",
            Self::Replay { .. } => "replay",
            Self::Outside { name } => name,
        }
    }
}
