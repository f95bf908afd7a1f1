//! KernelBench: samples that somebody else made (`ModelNew`, in Python, with host code of its own), judged in two columns.
//!
//! [`Evaluator`] runs a sample by the benchmark's own protocol, which a sample can fool because it runs beside it, and by a strict judge
//! that it cannot: in a process of its own that stands still but while it is asked, on inputs nobody has seen, with the judge's clock,
//! every call compared with double precision. [`Score`] is what the benchmark makes of results.

mod busy;
mod confine;
mod files;
mod judge;
mod link;
mod pace;
mod score;
mod session;
mod strict;
mod twin;
mod verdict;

pub use files::{Baselines, Mode, ProtocolResult, Results, SampleName, StrictResult, TimeStats};
pub use score::{Attempt, Score, THRESHOLDS};
pub use session::{Evaluator, Session, Settings};
pub use twin::Timed;
