//! How much faster, and how sure.

use serde::{Deserialize, Serialize};

use crate::forward::Block;
use crate::stats;

/// A pass that takes so much longer is told from what processes differ by.
const LEAST_LOSS: f64 = 0.005;

/// What paired passes say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speedup {
    /// Time before over time after: the median over blocks.
    pub median: f64,
    /// Lower end of the 95 % interval of the median, by order statistics over blocks; `None` below 6 blocks.
    pub low: Option<f64>,
    /// Its upper end.
    pub high: Option<f64>,
    /// The medians of the sessions: how far processes differ.
    pub sessions: Vec<f64>,
    /// The median pass before, µs.
    pub before_us: f64,
    /// The median pass after, µs.
    pub after_us: f64,
    /// Passes of each side.
    pub passes: usize,
}

impl Speedup {
    /// From blocks by session. A drift of the machine that is linear over a block cancels in it.
    #[must_use]
    pub fn of(sessions: &[Vec<Block>]) -> Self {
        let ratios: Vec<Vec<f64>> = sessions.iter().map(|blocks| blocks.iter().map(log_ratio).collect()).collect();
        let pooled = ratios.concat();
        let passes =
            |side: &dyn Fn(&Block) -> [f64; 2]| -> Vec<f64> { sessions.iter().flatten().flat_map(side).collect() };
        let (before, after) = (passes(&|block| block.before_us), passes(&|block| block.after_us));
        Self {
            median: stats::median(&pooled).map_or(1.0, f64::exp),
            low: stats::median_lower(&pooled, 0.975).map(f64::exp),
            high: stats::median_upper(&pooled, 0.975).map(f64::exp),
            sessions: ratios.iter().filter_map(|session| stats::median(session)).map(f64::exp).collect(),
            before_us: stats::median(&before).unwrap_or_default(),
            after_us: stats::median(&after).unwrap_or_default(),
            passes: before.len(),
        }
    }

    /// Whether it is slower beyond doubt: in each of the sessions, whose processes differ, and by more than half a percent.
    #[must_use]
    pub fn is_slower(&self) -> bool {
        let Self { median, high, sessions, .. } = self;
        *median < 1.0 - LEAST_LOSS && high.is_some_and(|high| high < 1.0) && sessions.iter().all(|ratio| *ratio < 1.0)
    }
}

fn log_ratio(block: &Block) -> f64 {
    (block.before_us.iter().sum::<f64>() / block.after_us.iter().sum::<f64>()).ln()
}
