//! A run's state and ledger as the report's data.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::Row;
use crate::op::{Dtype, Shape};
use crate::profile::{self, CallCost, Profile, What};
use crate::report::{
    CeilingLines, Measured, Outcome, Outputs, PartKind, PartReport, RunReport, ShapeReport, TargetReport, TargetWork,
    TimingReport, Try, Whole, sound,
};

use super::{Phase, RunState, TargetState, Workload};

/// What one call of an operation must at least do, where its formulae are known.
pub type CostOf<'a> = &'a dyn Fn(&str, &Shape, Dtype) -> Option<CallCost>;

impl RunState {
    /// The run as the report shows it; `rows` are its experiments, oldest first.
    #[must_use]
    pub fn report(&self, rows: &[Row], cost: CostOf<'_>) -> RunReport {
        let span = rows.first().zip(rows.last()).map(|(first, last)| [first.time.clone(), last.time.clone()]);
        let parts = self.workload.whole().map(|profile| self.parts(profile)).unwrap_or_default();
        let notes = self.workload.whole().into_iter().flat_map(|profile| &profile.notes);
        RunReport {
            run: self.run.clone(),
            model: self.model.clone(),
            pass: self.timed_at(),
            device: self.device.clone(),
            backend: self.backend.clone(),
            agent: self.agent.name().to_owned(),
            used: (!self.usage.is_empty()).then(|| self.usage.to_string()),
            span,
            spent: Duration::try_from_secs_f64(self.elapsed_s).unwrap_or_default(),
            busy: self.busy(),
            ended: self.ended.as_ref().map(ToString::to_string),
            resumed: self.resumed,
            resumed_at: self.resumed_at.clone(),
            troubles: self.troubles.iter().map(|trouble| (trouble.experiment, trouble.what.clone())).collect(),
            whole: (self.workload != Workload::Operation).then(|| self.whole()),
            parts,
            targets: self.targets.iter().map(|target| target.report(rows, cost)).collect(),
            ceilings: self.ceilings.as_ref().map(|ceilings| CeilingLines {
                read_gb_s: ceilings.read_gb_s,
                write_gb_s: ceilings.write_gb_s,
                arithmetic: self
                    .workload
                    .dtype(&self.targets)
                    .and_then(|dtype| Some((dtype.to_string(), *ceilings.gflops.get(&dtype)?))),
            }),
            notes: notes.cloned().collect(),
            seed: self.seed,
        }
    }

    fn whole(&self) -> Whole {
        let verified = self.verified.as_ref();
        Whole {
            before_us: self.workload.whole_us(),
            predicted: self.predicted().map(|(_, ratio)| ratio),
            measured: verified.map(|report| Measured {
                ratio: report.measured.median,
                interval: report.measured.low.zip(report.measured.high),
                passes_us: (report.measured.before_us, report.measured.after_us),
            }),
            outputs: verified
                .map(|report| Outputs { agree: report.output.wrong.is_none(), words: report.output_line() }),
        }
    }

    /// The profile's parts, before and after.
    fn parts(&self, profile: &Profile) -> Vec<PartReport> {
        // What beats a library as it stood is installed as well.
        let changed = self.targets.iter().filter(|target| target.kept > 0 || target.gain() > 1.0);
        let alone = changed.map(|target| (target.op.as_str(), target.gain())).collect();
        let measured = self.verified.iter().flat_map(|report| &report.parts);
        let in_place =
            measured.filter_map(|part| Some((part.op.as_str(), sound(part.before_us / part.after_us)?))).collect();
        parts(&profile.rows, profile.other_us, &alone, &in_place)
    }
}

/// A profile's rows by name, most time first, and what they do not explain (`other_us`). `alone` has the speedup of what
/// was kept against what the user has, `in_place` the same measured in the model.
fn parts(
    rows: &[profile::Row],
    other_us: f64,
    alone: &BTreeMap<&str, f64>,
    in_place: &BTreeMap<&str, f64>,
) -> Vec<PartReport> {
    let mut parts: Vec<PartReport> = Vec::new();
    for row in rows {
        let kind = if matches!(row.what, What::Op { .. }) { PartKind::Op } else { PartKind::Glue };
        if let Some(part) = parts.iter_mut().find(|part| part.kind == kind && part.name == row.name()) {
            part.calls += row.calls;
            part.before_us += row.us;
            part.roofline_us = part.roofline_us.map(|us| us + row.roofline_us);
            continue;
        }
        let of = |speedups: &BTreeMap<&str, f64>| speedups.get(row.name()).copied().filter(|_| kind == PartKind::Op);
        parts.push(PartReport {
            name: row.name().to_owned(),
            kind,
            calls: row.calls,
            before_us: row.us,
            after_us: row.us,
            roofline_us: Some(row.roofline_us),
            vs_user: of(alone),
            in_place: of(in_place),
        });
    }
    for part in &mut parts {
        // What is not faster than what the user has is not installed.
        let installed = part.vs_user.filter(|speedup| *speedup > 1.0);
        part.after_us = part.before_us / part.in_place.or(installed).unwrap_or(1.0);
    }
    parts.sort_by(|a, b| b.before_us.total_cmp(&a.before_us));
    if other_us > 0.0 {
        parts.push(PartReport {
            name: "other".to_owned(),
            kind: PartKind::Other,
            calls: 0,
            before_us: other_us,
            after_us: other_us,
            roofline_us: None,
            vs_user: None,
            in_place: None,
        });
    }
    parts
}

impl TargetState {
    fn report(&self, rows: &[Row], cost: CostOf<'_>) -> TargetReport {
        let summary = self.summary();
        TargetReport {
            op: self.op.clone(),
            file: self.file.clone(),
            share: self.share,
            begun: matches!(self.phase, Phase::Active | Phase::Done(_)),
            left: matches!(self.phase, Phase::Done(_)),
            why: summary.why,
            spent: self.progress.spent,
            vs_user: self.progress.vs_user,
            sol_score: self.progress.sol_score(),
            against: self.against.clone(),
            start_us: self.start_us,
            best_us: self.best_us,
            timing: self.timing.as_ref().map(|timing| TimingReport {
                latency_us: timing.latency_us,
                spread: timing.spread,
                margin: timing.margin,
                roofline_pct: timing.roofline_pct,
                confirmations: timing.confirmations.clone(),
                condition: timing.condition.clone(),
                shapes: timing
                    .shapes
                    .iter()
                    .map(|shape| ShapeReport {
                        label: format!("{} {}", shape.shape, shape.dtype),
                        calls: shape.calls,
                        us: shape.candidate_us,
                        roofline_us: shape.roofline_us,
                        bound: shape.bound.to_string(),
                    })
                    .collect(),
            }),
            tries: rows.iter().filter(|row| row.op == self.op).map(|row| self.tried(row)).collect(),
            work: self.work(cost),
        }
    }

    /// An experiment from its row, and from what the target remembers of it.
    fn tried(&self, row: &Row) -> Try {
        let attempt = self.tried.iter().find(|attempt| attempt.experiment == row.exp);
        Try {
            number: row.exp,
            technique: row.technique.clone(),
            // The ledger's description has the reason in it.
            description: attempt.map_or(&row.description, |attempt| &attempt.description).clone(),
            outcome: Outcome::from_status(&row.status).unwrap_or(Outcome::Error),
            predicted: attempt.and_then(|attempt| attempt.predicted),
            speedup: row.speedup.zip(row.low),
            vs_user: row.vs_user,
            commit: row.commit.clone(),
            stage: row.stage.clone(),
            why: attempt.map_or(String::new(), |attempt| crate::engine::one_line(attempt.verdict.why())),
        }
    }

    /// What a pass asks of the target, where every shape's cost is known.
    fn work(&self, cost: CostOf<'_>) -> Option<TargetWork> {
        let mut work = TargetWork { flops: 0.0, bytes: 0.0 };
        for target in &self.shapes {
            let call = cost(&self.op, &target.shape, target.dtype)?;
            work.flops += call.flops * f64::from(target.calls);
            work.bytes += (call.read_bytes + call.write_bytes) * f64::from(target.calls);
        }
        Some(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Attempt;
    use crate::device::Bound;
    use crate::evaluation::{Speedup, Verdict};
    use crate::op::TargetShape;

    fn row(op: &str, calls: u32, us: f64) -> profile::Row {
        profile::Row {
            rank: 1,
            what: What::Op { op: op.to_owned(), shape: Shape::default() },
            label: String::new(),
            calls,
            us,
            share: 0.0,
            cumulative: 0.0,
            roofline_us: us / 2.0,
            bound: Bound::Memory,
            gains: None,
        }
    }

    #[test]
    fn parts_are_summed_by_name_and_only_what_is_faster_is_installed() {
        let rows = [row("softmax", 2, 10.0), row("matmul", 4, 60.0), row("rmsnorm", 3, 9.0), row("matmul", 1, 20.0)];
        let alone = BTreeMap::from([("matmul", 2.0), ("softmax", 0.8), ("rmsnorm", 3.0)]);
        let parts = parts(&rows, 5.0, &alone, &BTreeMap::from([("matmul", 1.6)]));
        let told: Vec<_> =
            parts.iter().map(|part| (part.name.as_str(), part.calls, part.before_us, part.after_us)).collect();
        let wanted =
            [("matmul", 5, 80.0, 50.0), ("softmax", 2, 10.0, 10.0), ("rmsnorm", 3, 9.0, 3.0), ("other", 0, 5.0, 5.0)];
        assert_eq!(told, wanted);
        assert_eq!(parts[0].roofline_us, Some(40.0));
        assert!(super::parts(&[], 0.0, &alone, &alone).is_empty());
    }

    #[test]
    fn an_experiment_has_its_figures_from_the_ledger_and_its_words_from_the_target() {
        let mut target = TargetState::new("rmsnorm", "kernels/cpu/rmsnorm.c".into(), String::new(), Vec::new());
        let speedup = Speedup { ratio: 0.9, low: 0.8 };
        target.tried.push(Attempt {
            experiment: 2,
            technique: "tune".into(),
            description: "VEC 1→4".into(),
            hypothesis: String::new(),
            predicted: Some(1.2),
            verdict: Verdict::Revert { speedup, why: "it is\nslower".into() },
        });
        let row = |exp, op: &str, status: &str| Row {
            exp,
            op: op.into(),
            status: status.into(),
            description: "VEC 1→4; it is slower".into(),
            speedup: Some(0.9),
            low: Some(0.8),
            ..Row::default()
        };
        let rows = [row(1, "rmsnorm", "base"), row(2, "rmsnorm", "revert"), row(3, "matmul", "keep")];
        let report = target.report(&rows, &|_, _, _| None);
        let told: Vec<_> = report.tries.iter().map(|tried| (tried.number, tried.outcome, tried.why.as_str())).collect();
        assert_eq!(told, [(1, Outcome::Base, ""), (2, Outcome::Revert, "it is slower")]);
        assert_eq!(report.tries[1].description, "VEC 1→4");
        assert_eq!((report.tries[1].predicted, report.tries[1].speedup), (Some(1.2), Some((0.9, 0.8))));
        assert!(!report.begun && !report.left && report.why == "not begun");
    }

    #[test]
    fn the_work_of_a_target_is_that_of_all_its_calls() {
        let shape = |calls| TargetShape { shape: Shape::default(), dtype: Dtype::F32, calls };
        let target = TargetState::new("a", "a.c".into(), String::new(), vec![shape(2), shape(3)]);
        let call = CallCost { label: String::new(), read_bytes: 8.0, write_bytes: 2.0, flops: 100.0 };
        let known = |_: &str, _: &Shape, _: Dtype| Some(call.clone());
        assert_eq!(target.work(&known), Some(TargetWork { flops: 500.0, bytes: 50.0 }));
        assert_eq!(target.work(&|_, _, _| None), None);
    }
}
