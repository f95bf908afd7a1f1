//! The lines between whoever asks and the worker: JSON, one message a line.

use serde::{Deserialize, Serialize};

use crate::backend::CaseLimits;
use crate::device::DeviceCard;
use crate::forward::{CompareTask, MeasureTask};
use crate::harness::{EvaluationTask, Progress, ScreenTask, SessionTask};

/// Raised whenever a message changes its meaning.
pub const PROTOCOL: u32 = 3;

/// The longest line either side accepts, in bytes.
pub const MAX_LINE: usize = 64 << 20;

/// A request with the number that its answers carry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by whoever asks; unique in a session.
    pub id: u64,
    /// What is wanted.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What a worker can be asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// A verdict: answers an [`crate::evaluation::Evaluation`].
    Evaluate(Box<EvaluationTask>),
    /// Stage 1 alone, to tell a bad candidate from a bad machine: answers an [`crate::evaluation::Evaluation`].
    Smoke(Box<EvaluationTask>),
    /// Rough speedups: answers `Vec<Option<Screened>>`, shorter than the question where a candidate cost the worker its device.
    Screen(Box<ScreenTask>),
    /// Same-against-same keeps and spread: answers a [`crate::harness::SelfTest`].
    SelfTest {
        /// The candidate field is judged against a padded copy of itself.
        task: Box<EvaluationTask>,
        /// How many pairs.
        pairs: u32,
    },
    /// One timing session in this process: answers a [`crate::harness::SessionAnswer`].
    Session(Box<SessionTask>),
    /// A model pass: answers [`crate::forward::Rounds`].
    Measure(Box<MeasureTask>),
    /// Two model passes beside each other: answers a [`crate::forward::Comparison`].
    Compare(Box<CompareTask>),
    /// Stops the request with this id as soon as possible; it answers `Failed` with kind `cancelled`.
    Cancel,
}

/// What a worker says.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Reply {
    /// First of all, once the device is known.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Hash of the judging program: verdicts of different judges are not comparable.
        judge: String,
        /// The device and its measured ceilings.
        device: Box<DeviceCard>,
        /// How large its cases are.
        limits: CaseLimits,
    },
    /// At least once a second while a request is under way.
    Event {
        /// The request.
        id: u64,
        /// Where it is.
        progress: Progress,
    },
    /// The answer.
    Done {
        /// The request.
        id: u64,
        /// Its shape depends on what was asked.
        result: serde_json::Value,
        /// Whether the worker ends now: its device is lost to it, and another worker can go on.
        #[serde(default)]
        last: bool,
    },
    /// No answer can be given.
    Failed {
        /// The request, or 0 where the line could not be read.
        id: u64,
        /// What kind of failure.
        kind: FailureKind,
        /// Where and what.
        #[serde(rename = "where")]
        place: String,
        /// What to do about it.
        hint: String,
        /// As of an answer.
        #[serde(default)]
        last: bool,
    },
}

/// Kinds of failure; none of them says anything about a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request does not parse or contradicts itself.
    BadRequest,
    /// The machine cannot do it: memory, compiler, device.
    Machine,
    /// The incumbent, which was right before, no longer is.
    Incumbent,
    /// It was cancelled.
    Cancelled,
}
