//! What proposing costs.

use serde::{Deserialize, Serialize};

/// What an agent has used, over some time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Requests that were answered, usefully or not.
    pub requests: u64,
    /// Tokens read.
    pub tokens_in: u64,
    /// Tokens written.
    pub tokens_out: u64,
    /// US dollars; tokens of a model without a known price cost nothing here.
    pub cost_usd: f64,
    /// Seconds from request to answer, added over requests (they may run side by side).
    pub wall_s: f64,
    /// Trouble that was survived, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

impl Usage {
    /// Whether there is nothing on it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Tokens read and written.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.tokens_in + self.tokens_out
    }

    /// Adds the figures of another; its troubles stay where they were said.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.tokens_in += other.tokens_in;
        self.tokens_out += other.tokens_out;
        self.cost_usd += other.cost_usd;
        self.wall_s += other.wall_s;
    }
}

/// Tokens, cost and time, as `asked 3 times, 12000 tokens in, 900 out, $0.03, 41 s`.
impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.requests {
            1 => write!(f, "asked once")?,
            times => write!(f, "asked {times} times")?,
        }
        if self.tokens() > 0 {
            write!(f, ", {} tokens in, {} out", self.tokens_in, self.tokens_out)?;
        }
        if self.cost_usd > 0.0 {
            write!(f, ", ${:.2}", self.cost_usd)?;
        }
        write!(f, ", {:.0} s", self.wall_s)
    }
}
