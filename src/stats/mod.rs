//! Statistics of measured times: pure functions, safe against NaN.
//!
//! A sample that holds a NaN has no order, so it has no median either: such a sample gives `None`
//! (or a p-value of 1), never a number that could pass for a gain.

mod bounds;
mod order;
mod rank;

pub use bounds::{mean_and_sd, median_lower, median_upper};
pub use order::{median, spread};
pub use rank::{sign_test, signed_rank_test};
