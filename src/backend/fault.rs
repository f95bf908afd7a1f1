//! How a launch can end other than well.

use std::io;
use std::time::Duration;

/// Why a launch has no result. After any of these the host is gone and a new one must be started.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The candidate ended its own process, or spoilt the device for it.
    #[error("{what}")]
    Crash {
        /// What it did, in words.
        what: String,
        /// The signal that ended it, where one did.
        signal: Option<i32>,
        /// Where it wrote to the inputs, as an offset into that region.
        input_offset: Option<usize>,
    },
    /// It did not return in its time.
    #[error("it did not return within {:.3} s", limit.as_secs_f64())]
    Timeout {
        /// The limit.
        limit: Duration,
    },
    /// It was seen running after it said it was done. A core that was away can look the same, so only what a fresh
    /// process repeats is its doing.
    #[error("it ran on for {:.1} ms after it said it was done", time.as_secs_f64() * 1e3)]
    RanOn {
        /// How long, at least.
        time: Duration,
    },
    /// It worked before it was told to, or after, longer than getting ready and lying down take. What is said of
    /// [`Self::RanOn`] is true here too.
    #[error("it ran for {:.1} ms outside of the time that was taken", time.as_secs_f64() * 1e3)]
    RanOutside {
        /// How long, the thread that did so longest.
        time: Duration,
    },
    /// It did something beside its work: spoke for the harness, or left the process changed.
    #[error("{what}")]
    Escaped {
        /// What, in words.
        what: String,
    },
    /// The harness's own trouble: no verdict about the candidate.
    #[error("the host process: {0}")]
    Host(#[from] io::Error),
}
