//! What a run has to say when it is over: plain data in, text out. The summary is a page of a terminal, the report one
//! of a browser.

mod chart;
mod data;
mod figures;
mod page;
#[cfg(test)]
mod sample;
mod score;
mod summary;
mod target;
#[cfg(test)]
mod tests;
mod tiles;
mod trail;
mod whole;

pub use data::{
    CeilingLines, Measured, Outcome, Outputs, PartKind, PartReport, RunReport, ShapeReport, TargetReport, TargetWork,
    TimingReport, Try, Whole, sound,
};
pub(crate) use figures::counted;
pub use page::{PAGE_FILE, Rendered};
pub use score::{ScoreColumn, ScorePage, ScoreRow};
pub use summary::{KernelSummary, ModelSummary, Subject, Summary, TargetSummary, an_hour, fine_times, latency, spell};
