//! A run's state as the summary that the report prints.

use std::time::Duration;

use crate::evaluation::Verdict;
use crate::report::{KernelSummary, ModelSummary, Subject, Summary, TargetSummary};

use super::{Phase, RunState, TargetState};

impl RunState {
    /// The run in a page.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            run: self.run.clone(),
            experiments: self.next_experiment - 1,
            spent: Duration::from_secs_f64(self.elapsed_s),
            busy: self.busy(),
            agent: (!self.usage.is_empty()).then(|| format!("{}: {}", self.agent.name(), self.usage)),
            ended: self.ended.as_ref().map_or_else(|| "it was interrupted".to_owned(), ToString::to_string),
            targets: self.targets.iter().map(TargetState::summary).collect(),
            subject: match self.single() {
                Some(kernel) => Subject::Kernel(KernelSummary { file: kernel.file.clone(), at: self.timed_at() }),
                None => Subject::Model(self.workload.whole_us().map(|before_us| self.model_summary(before_us))),
            },
        }
    }

    fn model_summary(&self, before_us: f64) -> ModelSummary {
        ModelSummary {
            before_us,
            predicted: self.predicted().map_or(1.0, |(_, ratio)| ratio),
            measured: self.verified.as_ref().map(|report| {
                let measured = &report.measured;
                (measured.median, measured.low.unwrap_or(measured.median), measured.high.unwrap_or(measured.median))
            }),
            outputs: self.verified.as_ref().map(crate::verify::Report::output_line),
        }
    }

    /// What was timed, in words: the pass through the model, or (where there is no model) the shapes.
    #[must_use]
    pub fn timed_at(&self) -> String {
        self.workload.label(&self.targets)
    }

    /// Share of the time in which the device was at work.
    #[must_use]
    pub fn busy(&self) -> f64 {
        if self.elapsed_s > 0.0 { (self.busy_s / self.elapsed_s).min(1.0) } else { 0.0 }
    }
}

impl TargetState {
    pub(super) fn summary(&self) -> TargetSummary {
        let reverted = self.tried.iter().filter(|tried| matches!(tried.verdict, Verdict::Revert { .. })).count() as u32;
        TargetSummary {
            op: self.op.clone(),
            share: self.share,
            times_us: self.start_us.zip(self.best_us),
            vs_user: self.vs_user(),
            roofline_pct: self.progress.roofline_pct,
            kept: self.kept,
            reverted,
            rejected: self.not_kept - reverted.min(self.not_kept),
            why: match &self.phase {
                Phase::Waiting => "not begun".to_owned(),
                Phase::Active => "not finished".to_owned(),
                Phase::Done(reason) => reason.to_string(),
                Phase::Skipped(why) => why.clone(),
            },
        }
    }
}
