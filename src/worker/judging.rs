//! The judge as the server sees it, whatever the device.

use std::sync::atomic::AtomicBool;

use crate::backend::{Backend, CaseLimits};
use crate::device::DeviceCard;
use crate::evaluation::Evaluation;
use crate::forward::{self, CompareTask, Comparison, ForwardError, MeasureTask, Rounds};
use crate::harness::{
    EvaluationTask, Judge, JudgeError, ScreenTask, Screened, SelfTest, SessionAnswer, SessionTask, Watch,
};

/// Everything that a worker is asked, by one device; the methods are those of [`Judge`] and of the forward pass.
#[expect(clippy::missing_errors_doc, reason = "all fail where the machine, the operation's files or the incumbent do")]
pub trait Judging {
    /// The device.
    fn card(&self) -> &DeviceCard;
    /// How large its cases are.
    fn case_limits(&self) -> CaseLimits;
    /// A verdict.
    fn evaluate(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError>;
    /// Stage 1 alone.
    fn smoke(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError>;
    /// Rough speedups.
    fn screen(&mut self, task: &ScreenTask, watch: Watch<'_>) -> Result<Vec<Option<Screened>>, JudgeError>;
    /// Same-against-same keeps and spread.
    fn self_test(&mut self, task: &EvaluationTask, pairs: u32, watch: Watch<'_>) -> Result<SelfTest, JudgeError>;
    /// One timing session in this process.
    fn session(&mut self, task: &SessionTask, watch: Watch<'_>) -> Result<SessionAnswer, JudgeError>;
    /// A model pass.
    fn measure(&mut self, task: &MeasureTask, cancelled: &AtomicBool) -> Result<Rounds, ForwardError>;
    /// Two model passes beside each other.
    fn compare(&mut self, task: &CompareTask, cancelled: &AtomicBool) -> Result<Comparison, ForwardError>;
    /// Whether this process can judge nothing any more.
    fn is_lost(&self) -> bool;
}

impl<B: Backend> Judging for Judge<B> {
    fn card(&self) -> &DeviceCard {
        self.card()
    }

    fn case_limits(&self) -> CaseLimits {
        self.backend().case_limits()
    }

    fn evaluate(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        self.evaluate(task, watch)
    }

    fn smoke(&mut self, task: &EvaluationTask, watch: Watch<'_>) -> Result<Evaluation, JudgeError> {
        self.smoke(task, watch)
    }

    fn screen(&mut self, task: &ScreenTask, watch: Watch<'_>) -> Result<Vec<Option<Screened>>, JudgeError> {
        self.screen(task, watch)
    }

    fn self_test(&mut self, task: &EvaluationTask, pairs: u32, watch: Watch<'_>) -> Result<SelfTest, JudgeError> {
        self.self_test(task, pairs, watch)
    }

    fn session(&mut self, task: &SessionTask, watch: Watch<'_>) -> Result<SessionAnswer, JudgeError> {
        self.session(task, watch)
    }

    fn measure(&mut self, task: &MeasureTask, cancelled: &AtomicBool) -> Result<Rounds, ForwardError> {
        forward::measure(self.backend(), task, cancelled)
    }

    fn compare(&mut self, task: &CompareTask, cancelled: &AtomicBool) -> Result<Comparison, ForwardError> {
        forward::contest(self.backend(), task, cancelled)
    }

    fn is_lost(&self) -> bool {
        self.backend().is_lost()
    }
}
