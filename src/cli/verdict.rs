//! An evaluation for people.

use std::fmt::Write as _;

use crate::evaluation::{Evaluation, ShapeTiming, Stage, Timing, Verdict};

/// The verdict, the cases by stage, and the times of each shape.
pub(super) fn full(evaluation: &Evaluation) -> String {
    let mut text = String::new();
    let headline = match &evaluation.verdict {
        Verdict::Base => "correct".to_owned(),
        Verdict::Keep { speedup, .. } => {
            format!("correct and faster: {:.3}x, at least {:.3}x (a run would keep it)", speedup.ratio, speedup.low)
        }
        Verdict::Revert { speedup, why } => {
            format!("correct, not a gain: {:.3}x; {why} (a run would revert it)", speedup.ratio)
        }
        other => format!("{} at {}: {}", other.status(), other.stage(), other.why()),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}: {headline}", evaluation.op);
    for stage in [Stage::Smoke, Stage::Sweep, Stage::Stability, Stage::Determinism, Stage::Edges] {
        let cases: Vec<_> = evaluation.cases.iter().filter(|case| case.stage == stage).collect();
        if cases.is_empty() {
            continue;
        }
        let failed = cases.iter().filter(|case| case.failure.is_some()).count();
        let shrunk = cases.iter().filter(|case| case.shrunk).count();
        let worst = cases.iter().map(|case| case.errors.worst.max(case.errors.row_ratio)).fold(0.0, f64::max);
        let note = if shrunk > 0 { format!(", {shrunk} made smaller for this machine") } else { String::new() };
        let _ = writeln!(
            text,
            "  {:<12} {:>3} cases, {failed} failed, worst error {:.2} of its bound{note}",
            stage.name(),
            cases.len(),
            worst
        );
    }
    if let Some(timing) = &evaluation.timing {
        text.push_str(&shapes(evaluation, timing));
        let _ = writeln!(text, "  margin here {:.1} %, {} blocks", 100.0 * timing.margin, timing.blocks);
    }
    let _ = write!(text, "  seed {}, judged in {:.1} s", evaluation.seed, evaluation.wall_s);
    text
}

/// A line for each timed shape.
pub(super) fn shapes(evaluation: &Evaluation, timing: &Timing) -> String {
    let compared = !matches!(evaluation.verdict, Verdict::Base);
    let line = |shape: &ShapeTiming| {
        let against = if compared { format!(", incumbent {:.1} µs", shape.incumbent_us) } else { String::new() };
        format!(
            "  {} {}: {:.1} µs{against}, {:.0} % of the roofline ({:.1} µs, {} bound)\n",
            shape.shape,
            shape.dtype,
            shape.candidate_us,
            100.0 * shape.roofline_us / shape.candidate_us,
            shape.roofline_us,
            shape.bound
        )
    };
    timing.shapes.iter().map(line).collect()
}
