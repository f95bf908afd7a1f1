//! Times of calls, from outside: what a call that does nothing costs is measured in the same way, and taken off.

use super::files::TimeStats;
use crate::stats::{median, spread};

/// No clock here tells less than this from nothing, ms.
const FINEST: f64 = 1e-3;

/// What a call costs that does nothing: waking the process, a request, an answer, stopping it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Idle {
    /// The typical time, ms.
    typical: f64,
    /// What such times differ by, ms: twice their standard deviation, as those in the middle have it.
    spread: f64,
}

/// Times with that taken off.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Net {
    pub stats: TimeStats,
    /// The typical one is what can just be told from nothing, and the true one is shorter.
    pub unresolved: bool,
}

impl Idle {
    /// Of calls that did nothing, ms.
    pub(super) fn of(times: &[f64]) -> Self {
        let spread = 2.0 * spread(times).unwrap_or(0.0);
        Self { typical: median(times).unwrap_or(0.0), spread: spread.max(FINEST) }
    }

    /// What calls took beyond that, ms; never less than what can be told from nothing.
    pub(super) fn off(&self, times: &[f64], hardware: &str) -> Net {
        let net: Vec<f64> = times.iter().map(|time| (time - self.typical).max(self.spread)).collect();
        let typical = median(times).unwrap_or(0.0) - self.typical;
        Net { stats: TimeStats::of(&net, hardware), unresolved: typical <= self.spread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_costs_by_itself_is_taken_off_and_nothing_becomes_free() {
        let idle = Idle::of(&[0.10, 0.11, 0.12, 0.13, 0.14]);
        let net = idle.off(&[1.12, 1.13, 1.11], "cpu");
        assert!((net.stats.typical() - 1.0).abs() < 1e-9 && !net.unresolved, "{net:?}");
        let net = idle.off(&[0.12, 0.05, 0.13], "cpu");
        assert!(net.unresolved && net.stats.min >= 0.02 - 1e-9, "{net:?}");
    }
}
