//! Whether two models say the same, on the scale of what they say.

use serde::{Deserialize, Serialize};

use crate::op::Dtype;

/// The outputs of the model after, against those before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputCheck {
    /// rms of the differences over rms of the outputs before (NaN becomes `None` in JSON).
    pub rms_relative: Option<f64>,
    /// What it may be at most.
    pub bound: f64,
    /// Positions at which both name the same next token.
    pub same_token: usize,
    /// Positions.
    pub positions: usize,
    /// Why the outputs do not agree, in a sentence; `None` where they do.
    pub wrong: Option<String>,
}

/// How far two honest models of `calls` calls may differ, as a fraction of the output's rms: `L sqrt(2 calls)`.
///
/// The judge lets one call differ from the exact result by L of the tensor's rms (docs/judging.md, "Tolerances": the loosest of
/// the operations, fused_mlp). Each call's error is its own, so in a residual stream they add in quadrature over the
/// calls, and once more over the two models, neither of which is exact.
#[must_use]
pub fn bound(dtype: Dtype, calls: usize) -> f64 {
    let one_call = match dtype {
        Dtype::F16 => 8e-4,
        Dtype::Bf16 => 6e-3,
        Dtype::F32 => 2e-5,
    };
    one_call * (2.0 * calls as f64).sqrt()
}

/// Compares logits, rows of `row` each; `bound` is that of [`bound()`].
#[must_use]
pub fn compare_outputs(before: &[f64], after: &[f64], row: usize, bound: f64) -> OutputCheck {
    let row = row.max(1);
    let (mut squares, mut differences, mut odd) = (0.0, 0.0, 0usize);
    for (b, a) in before.iter().zip(after) {
        odd += usize::from(!a.is_finite() && b.is_finite());
        squares += b * b;
        differences += (a - b) * (a - b);
    }
    let rms_relative = (differences / squares).sqrt();
    let rows = || before.chunks(row).zip(after.chunks(row));
    let wrong = if before.len() != after.len() {
        Some(format!("{} outputs before, {} after", before.len(), after.len()))
    } else if before.iter().any(|b| !b.is_finite()) {
        Some("the model before gives NaN or infinity in this dtype, so there is nothing to compare with".to_owned())
    } else if squares == 0.0 {
        Some("the model before gives zeros only, so there is nothing to compare with".to_owned())
    } else if odd > 0 {
        Some(format!("{odd} of {} outputs became NaN or infinity", after.len()))
    } else if rms_relative.is_nan() || rms_relative > bound {
        Some(format!("the outputs differ by {rms_relative:.1e} of their rms, more than {bound:.1e}"))
    } else {
        None
    };
    OutputCheck {
        rms_relative: rms_relative.is_finite().then_some(rms_relative),
        bound,
        same_token: rows().filter(|(b, a)| largest(b) == largest(a)).count(),
        positions: rows().count(),
        wrong,
    }
}

fn largest(row: &[f64]) -> Option<usize> {
    (0..row.len()).max_by(|&i, &j| row[i].total_cmp(&row[j]))
}
