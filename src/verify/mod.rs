//! The whole model before and after: the same weights and inputs, compared and timed side by side.
//!
//! [`choose`] says which kernels go in; [`Report::new`] says what a [`Comparison`](crate::forward::Comparison) of both
//! models means, and renders it.

mod ask;
mod diagnose;
mod predict;
mod report;
mod speedup;
#[cfg(test)]
mod tests;

pub use ask::{Question, VerifyError, outputs, speedup, verify};
pub use diagnose::{Culprit, Diagnosis, Shares, Suspect, Trial, culprits, diagnose};
pub use predict::{Change, Choice, choose, predicted};
pub use report::{Part, Report};
pub use speedup::Speedup;
