//! A model's reply as a change of a kernel file.
//!
//! The form needs neither JSON nor tools. A few header lines, then the change: the whole file in one fenced block, or
//! search/replace blocks.
//!
//! ````text
//! Hypothesis: the row is read twice and the shape is memory bound; in registers it is read once
//! Technique: read-once
//! Predicted: 1.3
//! Description: keep the row in registers
//! Change:
//! <<<<<<< SEARCH
//! lines as they stand in the incumbent
//! =======
//! lines in their place
//! >>>>>>> REPLACE
//! ````
//!
//! Headers decide nothing, so a reply without one of them is taken. The change decides everything, so it is read
//! strictly: it is applied exactly as it stands or refused with a reason that its author can act on.

mod apply;
mod error;
mod fence;
mod headers;
mod parse;

pub use error::ChangeError;
pub use headers::{Remarks, Techniques};
pub use parse::{MAX_BLOCKS, MAX_REPLY_BYTES, parse, remarks};

/// The first characters of a kernel file in C or CUDA C++.
const FRONT_MATTER: &str = "/*---";
/// Those of one in Triton, whose front matter is in its docstring.
const DOCSTRING: &str = "\"\"\"";

/// A reply that has a change.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Why it should be faster; empty where nobody said.
    pub hypothesis: String,
    /// The technique: an identifier of the playbook, or `other:` and a word. One word in any case.
    pub technique: String,
    /// The speedup that is expected against the incumbent; `None` where none was named that can be read.
    pub predicted: Option<f64>,
    /// What changes, in a line.
    pub description: String,
    /// The change itself.
    pub change: Change,
}

/// How an incumbent becomes a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The candidate's whole text.
    Whole(String),
    /// Lines to be found, and what takes their place; at least one.
    Blocks(Vec<Block>),
}

/// Whole lines, each with its line feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Lines that stand in the incumbent exactly once.
    pub search: String,
    /// Lines that take their place; may be empty.
    pub replace: String,
}

impl Change {
    /// The candidate that this change makes of `incumbent`. All blocks are looked up in the incumbent as it is, so their
    /// order does not matter.
    ///
    /// # Errors
    /// [`ChangeError`]: a search that does not occur exactly once, blocks that overlap, or a change that changes nothing.
    pub fn apply(&self, incumbent: &str) -> Result<String, ChangeError> {
        let text = match self {
            Self::Whole(text) => text.clone(),
            Self::Blocks(blocks) => apply::blocks(blocks, incumbent)?,
        };
        if text == incumbent { Err(ChangeError::ChangesNothing) } else { Ok(text) }
    }
}

#[cfg(test)]
mod tests;
