//! Where a model spends its time, and what improving each part can do for the whole.
//!
//! [`aggregate`] turns measured rounds into a [`Profile`]; [`Profile::table`] renders it;
//! [`Profile::ranked_targets`] says what to work on, best first. [`Compiled`] is the same of a PyTorch model as torch.compile runs it.

mod account;
pub mod amdahl;
mod ask;
mod compiled;
mod compiled_table;
mod compiled_times;
mod rows;
mod table;
mod targets;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::device::Bound;
use crate::model::{Glue, Pass};
use crate::op::Shape;
pub use account::{Account, account};
pub use ask::{ProfileError, measure};
#[cfg(test)]
pub(crate) use compiled::tests::sample as compiled_sample;
pub use compiled::{Compiled, CompiledRow};
pub use rows::{CallCost, aggregate};
pub use targets::{LEAST_GAIN, RankedTarget};
#[cfg(test)]
pub(crate) use tests::sample;

/// A model's pass, taken apart. All times in µs, of one pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The model's name.
    pub model: String,
    /// The pass that was run.
    pub pass: Pass,
    /// Layers that were run.
    pub layers: u64,
    /// Layers the model has.
    pub layers_of_model: u64,
    /// Weights of the layers that were run.
    pub parameters: u64,
    /// The device's name.
    pub device: String,
    /// Rounds that were measured; times are means over the middle half of them.
    pub rounds: usize,
    /// A whole pass, timed as one.
    pub whole_us: f64,
    /// The calls of a pass, timed apart, together.
    pub parts_us: f64,
    /// What the parts do not explain: `whole - parts`, or 0 where the parts take longer.
    pub other_us: f64,
    /// How much longer the parts take: `parts - whole`, or 0 where they do not.
    #[serde(default)]
    pub overlap_us: f64,
    /// What the parts do not explain, as a share of the pass.
    pub other_share: f64,
    /// What starting a call costs; taken off every time above.
    pub launch_us: f64,
    /// Calls of one kind at one shape, most time first.
    pub rows: Vec<Row>,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
}

/// All calls of one kind at one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Place in the order of time, from 1.
    pub rank: usize,
    /// What is called.
    pub what: What,
    /// Its sizes, for people.
    pub label: String,
    /// Calls in a pass.
    pub calls: u32,
    /// Time of all of them, µs.
    pub us: f64,
    /// The same as a share of the pass, or of its parts' sum where that is the longer.
    pub share: f64,
    /// Shares down to this row.
    pub cumulative: f64,
    /// The least time all of them could take by the measured ceilings, µs.
    pub roofline_us: f64,
    /// What bounds them.
    pub bound: Bound,
    /// What an improvement does for the whole; glue is not improved.
    pub gains: Option<Gains>,
}

impl Row {
    /// The operation's name, or the glue's.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.what {
            What::Op { op, .. } => op,
            What::Glue(glue) => glue.name(),
        }
    }
}

/// What a row's calls are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A target.
    Op {
        /// The operation.
        op: String,
        /// Every symbol's value.
        shape: Shape,
    },
    /// A step between them.
    Glue(Glue),
}

/// How much faster the whole pass gets (1.2: 1.2 times as fast) when these calls alone improve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gains {
    /// At 1.5 times their speed.
    pub at_1_5: f64,
    /// At twice their speed.
    pub at_2: f64,
    /// At their roofline.
    pub at_roofline: f64,
}

/// The largest share of a pass that may stay unexplained before the profile says so.
pub const MOST_OTHER: f64 = 0.10;
