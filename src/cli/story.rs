//! What the journal knows of a proposal beside its verdict: who, why, what was expected, what it took.

use serde::Deserialize;
use serde_json::Value;

use crate::agent::language::TUNER;
use crate::agent::{Bill, Failed};
use crate::ratchet::STORY;

#[derive(Deserialize)]
struct Story {
    #[serde(default)]
    hypothesis: String,
    predicted: Option<f64>,
    by: Option<String>,
    #[serde(default)]
    mended: Vec<Failed>,
    bill: Option<Bill>,
}

/// Lines about the proposal in an experiment's entry; none where it has no story.
pub(super) fn lines(entry: &Value) -> Vec<String> {
    let Some(story) = entry.get(STORY).and_then(|story| Story::deserialize(story).ok()) else { return Vec::new() };
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
    if let Some(bill) = story.bill {
        // Where the tuner stands in nothing was asked for this one.
        let in_vain = if story.by.as_deref() == Some(TUNER) { "in vain before it: " } else { "" };
        lines.push(format!("{in_vain}{bill}"));
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
            lines(&entry),
            [
                "hypothesis: read once",
                "predicted 1.20x",
                "proposed by m",
                "mended after error at compile: no such thing",
                "asked 3 times, 12000 tokens in, 900 out, $0.03, 41 s"
            ]
        );
        let stands_in = json!({"proposal": {"predicted": 1.1, "by": "tuner", "bill": bill}});
        assert_eq!(lines(&stands_in)[2], "in vain before it: asked 3 times, 12000 tokens in, 900 out, $0.03, 41 s");
        assert!(lines(&json!({})).is_empty() && lines(&json!({"proposal": 3})).is_empty());
    }
}
