//! Which kernels are installed, and what they should do for the whole pass.

use serde::{Deserialize, Serialize};

/// A kernel that could be installed in the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The operation it serves.
    pub op: String,
    /// Its speedup over what the user has today, as the judge confirmed it.
    pub vs_user: f64,
}

/// The changes, parted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Choice {
    /// Faster than what the user has.
    pub installed: Vec<Change>,
    /// Not faster: the model keeps what it had.
    pub left_out: Vec<Change>,
}

/// A kernel is installed only where it beats what the user has; a figure that is not one does not.
#[must_use]
pub fn choose(changes: &[Change]) -> Choice {
    let (installed, left_out) = changes.iter().cloned().partition(|change| change.vs_user > 1.0);
    Choice { installed, left_out }
}

/// `whole / (whole - Σ t (1 - 1/s))`: the speedup of a pass of `whole_us` whose parts of `t` µs become `s` times as
/// fast, `(t, s)` in `parts` (Amdahl 1967). Speedups of 1 or less save nothing, since they are not installed.
#[must_use]
pub fn predicted(whole_us: f64, parts: &[(f64, f64)]) -> f64 {
    let saved: f64 = parts.iter().filter(|(_, s)| *s > 1.0).map(|(us, s)| us * (1.0 - 1.0 / s)).sum();
    // Parts are timed apart from the whole: noise may make them the longer, but never a pass of no time.
    let least = whole_us * 1e-3;
    if whole_us > 0.0 { whole_us / (whole_us - saved).max(least) } else { 1.0 }
}
