//! What the tools answer, as plain data made from a run's state and ledger.

use rmcp::schemars::{self, JsonSchema};
use serde::Serialize;

use crate::engine::{Phase, RunState, TargetState, is_keep};
use crate::evaluation::{CaseResult, Evaluation, Timing};
use crate::history::Row;
use crate::op::{Case, TargetShape};

/// The failing cases of a verdict; the first ones say what is wrong.
const MOST_CASES: usize = 5;

/// The run and what it may work on.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Targets {
    /// The run's name; its branch is `warpsmith/<run>`.
    run: String,
    /// The model directory, or the kernel file that is improved on its own.
    model: String,
    /// The pass that is made faster: phase, batch, tokens and type; of a kernel on its own, the shapes that are timed.
    pass: String,
    /// The device.
    device: String,
    /// `cpu` or `cuda`.
    backend: String,
    /// One whole pass at the start, in µs.
    whole_us: Option<f64>,
    /// How many times as fast the pass is now, as predicted by Amdahl's law from what was kept.
    predicted_speedup: Option<f64>,
    /// The operations, most promising first.
    targets: Vec<Target>,
}

/// One operation of the model.
#[derive(Debug, Serialize, JsonSchema)]
struct Target {
    /// The operation, as the other tools want it.
    op: String,
    /// The kernel file that is improved.
    file: String,
    /// Share of the pass at the last ranking (0 to 1); 0 where there is none.
    share: f64,
    /// How many times as fast the pass would be with this at its roofline; none where it was not profiled.
    ceiling: Option<f64>,
    /// Whether it may be worked on: `waiting`, `active`, or why not.
    standing: String,
    /// The sum of calls times time at the start, in µs; none before the first experiment.
    start_us: Option<f64>,
    /// The same now.
    now_us: Option<f64>,
    /// How many times as fast as what the user has today.
    vs_user: f64,
    /// Percent of the roofline now.
    roofline_pct: Option<f64>,
    /// Experiments kept.
    kept: u32,
    /// Experiments not kept.
    not_kept: u32,
}

impl Targets {
    pub(super) fn of(state: &RunState) -> Self {
        let ranked = state.workload.ranked(&state.speedups());
        let target = |target: &TargetState| Target {
            op: target.op.clone(),
            file: target.file.clone(),
            share: target.share,
            ceiling: ranked.iter().find(|ranked| ranked.op == target.op).map(|ranked| ranked.ceiling),
            standing: standing(&target.phase),
            start_us: target.start_us,
            now_us: target.best_us,
            vs_user: target.vs_user(),
            roofline_pct: target.progress.roofline_pct,
            kept: target.kept,
            not_kept: target.not_kept,
        };
        Self {
            run: state.run.clone(),
            model: state.model.clone(),
            pass: state.timed_at(),
            device: state.device.clone(),
            backend: state.backend.clone(),
            whole_us: state.workload.whole_us(),
            predicted_speedup: state.predicted().map(|(_, ratio)| ratio),
            targets: state.targets.iter().map(target).collect(),
        }
    }
}

fn standing(phase: &Phase) -> String {
    match phase {
        Phase::Waiting => "waiting".to_owned(),
        Phase::Active => "active".to_owned(),
        Phase::Done(reason) => format!("left: {reason}"),
        Phase::Skipped(why) => format!("skipped: {why}"),
    }
}

/// The target of this name, or a sentence with those there are.
pub(super) fn target<'a>(state: &'a RunState, op: &str) -> Result<&'a TargetState, String> {
    state.targets.iter().find(|target| target.op == op).ok_or_else(|| {
        let there: Vec<&str> = state.targets.iter().map(|target| target.op.as_str()).collect();
        format!("no target of this run has that name; there are {}", there.join(", "))
    })
}

/// The best kernel so far and what is known of it; the source comes beside.
#[derive(Debug, Serialize)]
pub(super) struct Incumbent<'a> {
    op: &'a str,
    file: &'a str,
    /// Whether it has been timed; if not, the first experiment times it.
    judged: bool,
    vs_user: f64,
    /// What `vs_user` is measured against.
    against: &'a str,
    latency_us: Option<f64>,
    roofline_pct: Option<f64>,
    /// A gain must exceed this (0.01 for 1 %).
    margin: Option<f64>,
    shapes: Vec<ShapeTime>,
    /// Registers, spills and occupancy, as the compiler has them.
    resources: &'a str,
}

impl<'a> Incumbent<'a> {
    pub(super) fn of(target: &'a TargetState) -> Self {
        let shapes = match &target.timing {
            Some(timing) => ShapeTime::all(timing),
            None => target.shapes.iter().map(ShapeTime::untimed).collect(),
        };
        Self {
            op: &target.op,
            file: &target.file,
            judged: target.start_us.is_some(),
            vs_user: target.vs_user(),
            against: target.against.as_deref().unwrap_or("the kernel at the start"),
            latency_us: target.best_us,
            roofline_pct: target.progress.roofline_pct,
            margin: target.precision.map(|precision| precision.margin),
            shapes,
            resources: &target.resources,
        }
    }
}

/// One shape of a target.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ShapeTime {
    /// The sizes and the type.
    shape: String,
    /// Calls in one pass through the model.
    calls: u32,
    /// Median time of a call in µs.
    us: Option<f64>,
    /// The same of the kernel it was compared with.
    incumbent_us: Option<f64>,
    /// The least time that the measured ceilings of the device allow, in µs.
    roofline_us: Option<f64>,
    /// What bounds it there.
    bound: Option<String>,
}

impl ShapeTime {
    fn all(timing: &Timing) -> Vec<Self> {
        let of = |shape: &crate::evaluation::ShapeTiming| Self {
            shape: format!("{} {}", shape.shape, shape.dtype),
            calls: shape.calls,
            us: Some(shape.candidate_us),
            incumbent_us: Some(shape.incumbent_us),
            roofline_us: Some(shape.roofline_us),
            bound: Some(shape.bound.to_string()),
        };
        timing.shapes.iter().map(of).collect()
    }

    fn untimed(target: &TargetShape) -> Self {
        Self {
            shape: format!("{} {}", target.shape, target.dtype),
            calls: target.calls,
            us: None,
            incumbent_us: None,
            roofline_us: None,
            bound: None,
        }
    }
}

/// What the judge found out about a candidate, and what became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Judged {
    /// The experiment's number.
    experiment: u64,
    /// `keep`, `revert` (right, no gain), `reject` (wrong), `crash`, `timeout` or `error` (not a kernel).
    status: String,
    /// Whether the candidate is the incumbent now.
    kept: bool,
    /// Where judging ended.
    stage: String,
    /// The judge's reason, where it was not kept.
    why: String,
    /// The incumbent's time over the candidate's.
    speedup: Option<f64>,
    /// Its lower bound.
    low: Option<f64>,
    /// How many times as fast as what the user has today; measured for a keep only.
    vs_user: Option<f64>,
    /// The sum of calls times time, in µs.
    latency_us: Option<f64>,
    /// Percent of the roofline.
    roofline_pct: Option<f64>,
    /// A gain must exceed this (0.01 for 1 %).
    margin: Option<f64>,
    /// Each timed shape.
    shapes: Vec<ShapeTime>,
    /// Cases that passed.
    passed: usize,
    /// The first failing cases.
    failed: Vec<FailedCase>,
    /// What the compiler says that is worth knowing: registers, spills, warnings.
    resources: String,
    /// The commit with the candidate, kept or not.
    commit: Option<String>,
    /// Which limit of the user's is reached now, and what is left to work on; nothing more is judged for this operation.
    done: Option<String>,
    /// Wall time of the judging in seconds.
    seconds: f64,
}

/// A case that a candidate fails.
#[derive(Debug, Serialize, JsonSchema)]
struct FailedCase {
    /// The stage.
    stage: String,
    /// What was computed.
    case: String,
    /// What is wrong.
    failure: String,
}

impl Judged {
    pub(super) fn of(experiment: u64, evaluation: &Evaluation, commit: Option<String>, done: Option<String>) -> Self {
        let timing = evaluation.timing.as_ref();
        let speedup = evaluation.verdict.speedup();
        let failed = |case: &CaseResult| {
            let failure = case.failure.clone()?;
            let Case { shape, dtype, input, setting: _ } = &case.case;
            let input = input.as_ref().map_or(String::new(), |input| format!(", {input} input"));
            Some(FailedCase { stage: case.stage.to_string(), case: format!("{shape} {dtype}{input}"), failure })
        };
        Self {
            experiment,
            status: evaluation.verdict.status().to_owned(),
            kept: is_keep(evaluation),
            stage: evaluation.verdict.stage().to_string(),
            why: evaluation.verdict.why().to_owned(),
            speedup: speedup.map(|speedup| speedup.ratio),
            low: speedup.map(|speedup| speedup.low),
            vs_user: evaluation.vs_user,
            latency_us: timing.map(|timing| timing.latency_us),
            roofline_pct: timing.map(|timing| timing.roofline_pct),
            margin: timing.map(|timing| timing.margin),
            shapes: timing.map(ShapeTime::all).unwrap_or_default(),
            passed: evaluation.cases.iter().filter(|case| case.failure.is_none()).count(),
            failed: evaluation.cases.iter().filter_map(failed).take(MOST_CASES).collect(),
            resources: evaluation.build_log.clone(),
            commit,
            done,
            seconds: evaluation.wall_s,
        }
    }
}

/// Rows of the ledger.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct History {
    /// Experiments of the run so far that fit the question.
    experiments: usize,
    /// The latest of them, oldest first.
    rows: Vec<Experiment>,
}

/// One experiment.
#[derive(Debug, Serialize, JsonSchema)]
struct Experiment {
    /// Its number.
    experiment: u64,
    /// The operation.
    op: String,
    /// As of `evaluate`; `base` is the kernel at the start, `start` the first correct one of a target that began without any.
    status: String,
    /// Where judging ended.
    stage: String,
    /// The technique's identifier.
    technique: String,
    /// What was tried, and why it was not kept.
    description: String,
    /// The incumbent's time over the candidate's.
    speedup: Option<f64>,
    /// Its lower bound.
    low: Option<f64>,
    /// How many times as fast as what the user has today.
    vs_user: Option<f64>,
    /// The sum of calls times time, in µs.
    us: Option<f64>,
    /// The commit with the candidate, kept or not.
    commit: String,
}

impl History {
    pub(super) fn of(rows: Vec<Row>, op: Option<&str>, latest: usize) -> Self {
        let rows: Vec<Row> = rows.into_iter().filter(|row| op.is_none_or(|op| row.op == op)).collect();
        let experiments = rows.len();
        let of = |row: Row| Experiment {
            experiment: row.exp,
            op: row.op,
            status: row.status,
            stage: row.stage,
            technique: row.technique,
            description: row.description,
            speedup: row.speedup,
            low: row.low,
            vs_user: row.vs_user,
            us: row.us,
            commit: row.commit,
        };
        Self { experiments, rows: rows.into_iter().skip(experiments.saturating_sub(latest)).map(of).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{Stage, Verdict};

    #[test]
    fn the_latest_rows_of_one_operation_come_oldest_first() {
        let row = |exp, op: &str| Row { exp, op: op.into(), ..Row::default() };
        let rows = vec![row(1, "a"), row(2, "b"), row(3, "a"), row(4, "a")];
        let history = History::of(rows.clone(), Some("a"), 2);
        let numbers: Vec<u64> = history.rows.iter().map(|row| row.experiment).collect();
        assert_eq!((history.experiments, numbers), (3, vec![3, 4]));
        assert_eq!(History::of(rows, None, 100).rows.len(), 4);
    }

    #[test]
    fn a_reject_says_why_and_has_no_times() {
        let evaluation = Evaluation {
            op: "a".into(),
            backend: "cpu".into(),
            verdict: Verdict::Reject { stage: Stage::Sweep, why: "wrong".into() },
            cases: Vec::new(),
            timing: None,
            vs_user: None,
            against: None,
            baselines: Vec::new(),
            examination: None,
            seed: 1,
            wall_s: 0.5,
            stage_s: [].into(),
            build_log: String::new(),
        };
        let judged = Judged::of(7, &evaluation, Some("abc".into()), None);
        assert_eq!((judged.status.as_str(), judged.stage.as_str(), judged.why.as_str()), ("reject", "sweep", "wrong"));
        assert!(!judged.kept && judged.speedup.is_none() && judged.shapes.is_empty());
    }
}
