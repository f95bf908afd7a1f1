//! What to work on, best first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Profile, What, amdahl};
use crate::op::TargetShape;

/// The least end-to-end gain that is worth a target's time: 1 %.
pub const LEAST_GAIN: f64 = 0.01;

/// An operation with what improving it can do for the whole pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankedTarget {
    /// The operation.
    pub op: String,
    /// The shapes at which the model calls it, the one with the most time first.
    pub shapes: Vec<TargetShape>,
    /// Time of all its calls in a pass, µs, after what was gained already.
    pub us: f64,
    /// The same as a share of the pass.
    pub share: f64,
    /// How much faster the whole pass gets with this operation at its roofline (1.2: 1.2 times as fast).
    pub ceiling: f64,
    /// Whether the ceiling is too low to be worth the time.
    pub skipped: bool,
}

impl Profile {
    /// The pass with what was `gained` installed, µs: the whole less what each operation saves.
    #[must_use]
    pub fn predict(&self, gained: &BTreeMap<String, f64>) -> f64 {
        let saved = self.rows.iter().map(|row| match &row.what {
            What::Op { op, .. } => row.us - row.us / factor(gained, op),
            What::Glue(_) => 0.0,
        });
        self.whole_us.max(self.parts_us) - saved.sum::<f64>()
    }

    /// The model's operations, the highest end-to-end ceiling first.
    ///
    /// `gained` has the speedup over the profiled kernel for what has been improved since (`vs_user` of the target);
    /// the ranking is that of the pass as it would be with these installed. Speedups of 1 or less are not installed.
    #[must_use]
    pub fn ranked_targets(&self, gained: &BTreeMap<String, f64>) -> Vec<RankedTarget> {
        let mut targets: Vec<RankedTarget> = Vec::new();
        let mut rooflines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for row in &self.rows {
            let What::Op { op, shape } = &row.what else { continue };
            let us = row.us / factor(gained, op);
            let at = targets.iter().position(|target| target.op == *op).unwrap_or_else(|| {
                let op = op.clone();
                targets.push(RankedTarget { op, shapes: Vec::new(), us: 0.0, share: 0.0, ceiling: 1.0, skipped: true });
                targets.len() - 1
            });
            targets[at].us += us;
            targets[at].shapes.push(TargetShape { shape: shape.clone(), dtype: self.pass.dtype, calls: row.calls });
            rooflines.entry(op.clone()).or_default().push((us, us / row.roofline_us));
        }
        let pass_us = self.predict(gained).max(f64::MIN_POSITIVE);
        for target in &mut targets {
            let parts: Vec<(f64, f64)> = rooflines[&target.op].iter().map(|(us, k)| (us / pass_us, *k)).collect();
            target.share = target.us / pass_us;
            target.ceiling = amdahl::gain_of_parts(&parts);
            target.skipped = target.ceiling - 1.0 < LEAST_GAIN;
        }
        targets.sort_by(|a, b| b.ceiling.total_cmp(&a.ceiling).then(b.share.total_cmp(&a.share)));
        targets
    }
}

/// The speedup of an operation; what is not faster is not installed.
fn factor(gained: &BTreeMap<String, f64>, op: &str) -> f64 {
    gained.get(op).copied().filter(|speedup| *speedup > 1.0).unwrap_or(1.0)
}
