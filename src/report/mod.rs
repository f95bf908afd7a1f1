//! What a run has to say when it is over: plain data in, text out.

mod summary;

pub use summary::{ModelSummary, Summary, TargetSummary, milliseconds, spell};
