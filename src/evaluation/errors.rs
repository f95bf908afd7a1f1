//! What a distance from the oracle means, in words.

// `!(a <= b)` is how a comparison is written here, so that NaN fails.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use super::ErrorStats;

impl ErrorStats {
    /// Why an output is wrong, in a sentence; `None` where it passed.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let relative = self.relative_rms;
        if self.outside > 0 || !(self.worst <= 1.0) {
            return Some(format!(
                "{} of {} elements are outside their bound; the worst is element {}: {} where {} belongs ({} times the bound; relative rms error {relative:.2e})",
                self.outside,
                self.elements,
                self.worst_at,
                Number(self.got),
                Number(self.want),
                Number(self.worst),
            ));
        }
        if !(self.tensor_ratio <= 1.0) {
            return Some(format!(
                "each element is near, but together they are {:.2} times as far off as an honest kernel may be (relative rms error {relative:.2e})",
                self.tensor_ratio
            ));
        }
        if !(self.row_ratio <= 1.0) {
            return Some(format!(
                "one row is {:.2} times as far off as an honest kernel may be (relative rms error of the whole {relative:.2e})",
                self.row_ratio
            ));
        }
        None
    }
}

/// A value as people read it: few digits, and an exponent only where it helps.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.0.abs();
        if size == f64::MAX {
            f.write_str("infinitely many")
        } else if size == 0.0 || (1e-3..1e5).contains(&size) || !self.0.is_finite() {
            write!(f, "{:.5}", self.0)
        } else {
            write!(f, "{:.4e}", self.0)
        }
    }
}
