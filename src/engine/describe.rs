//! A verdict in the words of a commit and of the ledger.

use crate::evaluation::{Evaluation, Verdict};

/// The subject line of the candidate's commit: `rmsnorm: vectorised loads (1.18x, 2.31x total)`.
#[must_use]
pub fn subject(op: &str, description: &str, evaluation: &Evaluation) -> String {
    let outcome = match &evaluation.verdict {
        Verdict::Base | Verdict::Start => {
            let us =
                evaluation.timing.as_ref().map_or(String::new(), |timing| format!(", {:.0} µs", timing.latency_us));
            return format!("{op}: where it starts{us}");
        }
        Verdict::Keep { simpler: true, .. } => "simpler, as fast".to_owned(),
        Verdict::Keep { speedup, .. } => match evaluation.vs_user {
            Some(total) => format!("{:.2}x, {total:.2}x total", speedup.ratio),
            None => format!("{:.2}x", speedup.ratio),
        },
        other => other.status().to_owned(),
    };
    format!("{op}: {} ({outcome})", one_line(description))
}

/// The trailers of the candidate's commit.
#[must_use]
pub fn trailers(number: u64, technique: &str, agent: &str, evaluation: &Evaluation) -> Vec<(String, String)> {
    let mut trailers = Vec::new();
    let mut add = |name: &str, value: String| trailers.push((name.to_owned(), value));
    if let Some(timing) = &evaluation.timing {
        add("Latency-us", format!("{:.2}", timing.latency_us));
    }
    if let Some(speedup) = evaluation.verdict.speedup() {
        add("Speedup-low", format!("{:.4}", speedup.low));
    }
    add("Technique", one_line(technique));
    add("Agent", one_line(agent));
    add("Experiment", number.to_string());
    trailers
}

/// The commit's body: per shape what was measured, so that `git show` answers "why believe it".
#[must_use]
pub fn body(evaluation: &Evaluation) -> String {
    let Some(timing) = &evaluation.timing else { return evaluation.verdict.why().to_owned() };
    let mut lines = Vec::new();
    for shape in &timing.shapes {
        lines.push(format!(
            "{} {}: {:.1} µs, was {:.1} µs ({} calls, {:.0} % of the roofline, {} bound)",
            shape.shape,
            shape.dtype,
            shape.candidate_us,
            shape.incumbent_us,
            shape.calls,
            100.0 * shape.roofline_us / shape.candidate_us,
            shape.bound
        ));
    }
    let passed = evaluation.cases.iter().filter(|case| case.failure.is_none()).count();
    lines.push(format!("{passed} cases correct; margin {:.1} %", timing.margin_pct()));
    if !timing.confirmations.is_empty() {
        let sessions: Vec<String> = timing.confirmations.iter().map(|ratio| format!("{ratio:.3}x")).collect();
        lines.push(format!("confirmed in fresh processes: {}", sessions.join(", ")));
    }
    if let (Some(against), Some(ratio)) = (&evaluation.against, evaluation.vs_user) {
        lines.push(format!("{ratio:.2}x against {against}, which is what the user has today"));
    }
    if let Some(condition) = &timing.condition {
        lines.push(format!("device afterwards: {condition}"));
    }
    if !evaluation.verdict.why().is_empty() {
        lines.push(evaluation.verdict.why().to_owned());
    }
    lines.join("\n")
}

/// What the ledger says of an experiment: what was tried, whether its sums may differ between runs (`order_free`), and why
/// it was not kept.
#[must_use]
pub fn ledger_description(description: &str, evaluation: &Evaluation, order_free: bool) -> String {
    let why = evaluation.verdict.why();
    let mut said = one_line(description);
    if order_free {
        said.push_str("; order-free");
    }
    if !why.is_empty() {
        said.push_str(&format!("; {}", one_line(why)));
    }
    if let Some(against) = &evaluation.against {
        said.push_str(&format!("; vs_user is against {}", one_line(against)));
    }
    said
}

/// Text from outside on one line, without control characters, at most 200 characters.
#[must_use]
pub fn one_line(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{Speedup, Stage};

    fn evaluation(verdict: Verdict) -> Evaluation {
        Evaluation {
            op: "rmsnorm".into(),
            backend: "cpu".into(),
            verdict,
            cases: Vec::new(),
            timing: None,
            vs_user: Some(2.31),
            against: None,
            baselines: Vec::new(),
            examination: None,
            seed: 1,
            wall_s: 1.0,
            build_log: String::new(),
            stage_s: [].into(),
        }
    }

    #[test]
    fn a_keep_says_its_gain_and_the_total() {
        let keep = evaluation(Verdict::Keep { speedup: Speedup { ratio: 1.18, low: 1.16 }, simpler: false });
        assert_eq!(subject("rmsnorm", "vectorised loads", &keep), "rmsnorm: vectorised loads (1.18x, 2.31x total)");
        let trailers = trailers(14, "vector-loads", "tuner", &keep);
        assert!(trailers.contains(&("Speedup-low".into(), "1.1600".into())));
        assert!(trailers.contains(&("Experiment".into(), "14".into())));
    }

    #[test]
    fn the_ledger_names_the_library_that_the_user_has() {
        let mut base = evaluation(Verdict::Base);
        assert_eq!(ledger_description("as it is", &base, false), "as it is");
        assert_eq!(ledger_description("as it is", &base, true), "as it is; order-free");
        base.against = Some("cuBLAS".into());
        assert_eq!(ledger_description("as it is", &base, false), "as it is; vs_user is against cuBLAS");
    }

    #[test]
    fn text_from_outside_stays_on_one_line() {
        let reject = evaluation(Verdict::Reject { stage: Stage::Sweep, why: "wrong\nat\t3".into() });
        assert_eq!(ledger_description("a\r\nb", &reject, false), "a b; wrong at 3");
        assert_eq!(subject("rmsnorm", "x\ny", &reject), "rmsnorm: x y (reject)");
        assert_eq!(one_line(&"é".repeat(500)).chars().count(), 200);
    }
}
