//! What the journal knows of a proposal beside its verdict: who, why, what was expected, what it took.

use serde::Deserialize;
use serde_json::Value;

use crate::agent::language::TUNER;
use crate::agent::{Failed, Proposal, Usage};
use crate::engine::Trial;

#[derive(Deserialize)]
struct Story {
    #[serde(default)]
    hypothesis: String,
    predicted: Option<f64>,
    by: Option<String>,
    #[serde(default)]
    mended: Vec<Failed>,
    #[serde(rename = "bill")]
    usage: Option<Usage>,
}

impl Story {
    /// A trial's.
    fn of(trial: Trial) -> Option<Self> {
        let Proposal { hypothesis, predicted, by, .. } = trial.proposal;
        let usage = (!trial.usage.is_empty()).then_some(trial.usage);
        (!trial.is_start).then_some(Self { hypothesis, predicted, by, mended: trial.mended, usage })
    }

    /// What an evaluation had in it before trials had records of their own.
    fn of_an_earlier_version(evaluation: &Value) -> Option<Self> {
        evaluation.get("proposal").and_then(|story| Self::deserialize(story).ok())
    }
}

/// Lines about the proposal of an experiment, from its trial's record and its evaluation; none where it has no story.
pub(super) fn lines(trial: &Value, evaluation: &Value) -> Vec<String> {
    let story = match Trial::deserialize(trial) {
        Ok(trial) => Story::of(trial),
        Err(_) => Story::of_an_earlier_version(evaluation),
    };
    let Some(story) = story else { return Vec::new() };
    let mut lines = Vec::new();
    if !story.hypothesis.is_empty() {
        lines.push(format!("hypothesis: {}", story.hypothesis));
    }
    if let Some(predicted) = story.predicted {
        lines.push(format!("predicted {predicted:.2}x"));
    }
    if let Some(by) = &story.by {
        lines.push(format!("proposed by {by}"));
    }
    for failed in story.mended {
        lines.push(format!(
            "mended after {} at {}: {}",
            failed.verdict.status(),
            failed.verdict.stage(),
            failed.verdict.why()
        ));
    }
    if let Some(usage) = story.usage {
        // Where the tuner stands in nothing was asked for this one.
        let in_vain = if story.by.as_deref() == Some(TUNER) { "in vain before it: " } else { "" };
        lines.push(format!("{in_vain}{usage}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_story_is_told_line_by_line() {
        let bill = json!({"requests": 3, "tokens_in": 12000, "tokens_out": 900, "cost_usd": 0.031, "wall_s": 41.2});
        let verdict = json!({"status": "error", "stage": "compile", "why": "no such thing"});
        let mended = json!([{"proposal": {"text": "", "technique": "t", "description": "d"}, "verdict": verdict}]);
        let entry = json!({"proposal": {"hypothesis": "read once", "predicted": 1.2, "by": "m", "mended": mended, "bill": bill}});
        assert_eq!(
            lines(&Value::Null, &entry),
            [
                "hypothesis: read once",
                "predicted 1.20x",
                "proposed by m",
                "mended after error at compile: no such thing",
                "asked 3 times, 12000 tokens in, 900 out, $0.03, 41 s"
            ]
        );
        let stands_in = json!({"proposal": {"predicted": 1.1, "by": "tuner", "bill": bill}});
        assert_eq!(
            lines(&Value::Null, &stands_in)[2],
            "in vain before it: asked 3 times, 12000 tokens in, 900 out, $0.03, 41 s"
        );
        assert!(lines(&Value::Null, &json!({})).is_empty() && lines(&json!(3), &json!({"proposal": 3})).is_empty());
        let proposal =
            json!({"text": "", "technique": "t", "description": "d", "hypothesis": "read once", "predicted": 1.2});
        let trial = |base| json!({"id": 3, "op": "rmsnorm", "base": base, "proposal": proposal, "bill": bill});
        assert_eq!(
            lines(&trial(false), &json!({})),
            ["hypothesis: read once", "predicted 1.20x", "asked 3 times, 12000 tokens in, 900 out, $0.03, 41 s"]
        );
        assert!(lines(&trial(true), &json!({})).is_empty());
    }
}
