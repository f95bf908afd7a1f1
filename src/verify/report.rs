//! The comparison as data and as text.

use serde::{Deserialize, Serialize};

use super::{Change, Speedup, predicted};
use crate::forward::{Comparison, OutputCheck};
use crate::model::{Answer, Graph, Pass};

/// A model before and after.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The model's name.
    pub model: String,
    /// The pass.
    pub pass: Pass,
    /// The device's name.
    pub device: String,
    /// What a row of the output is.
    #[serde(default)]
    pub answer: Answer,
    /// Whether both say the same.
    pub output: OutputCheck,
    /// How much faster whole passes got.
    pub measured: Speedup,
    /// How much faster they should have got: what the run predicted, else the same as `from_parts`.
    pub predicted: f64,
    /// The same from the parts' times and the judge's speedups, by Amdahl's law.
    pub from_parts: f64,
    /// The operations whose kernel changed.
    pub parts: Vec<Part>,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
}

/// An operation whose kernel changed, timed in place. µs, all calls of a pass together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The operation.
    pub op: String,
    /// The judge's speedup over what the user has.
    pub vs_user: f64,
    /// With the kernel before.
    pub before_us: f64,
    /// With the kernel after.
    pub after_us: f64,
}

impl Report {
    /// What `comparison` of `graph` on `device` says; `changes` are the kernels that differ between the sides, with the
    /// speedups the judge gave them.
    #[must_use]
    pub fn new(graph: &Graph, comparison: &Comparison, changes: &[Change], device: &str) -> Self {
        let part = |change: &Change| {
            let nodes = graph.calls_of(&change.op);
            let (before_us, after_us) = (comparison.before.sum(&nodes), comparison.after.sum(&nodes));
            Part { op: change.op.clone(), vs_user: change.vs_user, before_us, after_us }
        };
        let parts: Vec<Part> = changes.iter().map(part).collect();
        let gains: Vec<(f64, f64)> = parts.iter().map(|part| (part.before_us, part.vs_user)).collect();
        // As in the profile: parts timed one by one can take longer than the pass that they are parts of.
        let all: Vec<usize> = (0..graph.nodes.len()).collect();
        let from_parts = predicted(comparison.before.whole().max(comparison.before.sum(&all)), &gains);
        Self {
            model: graph.model.clone(),
            pass: graph.pass,
            device: device.to_owned(),
            answer: graph.answer,
            output: comparison.output.clone(),
            measured: Speedup::of(&comparison.sessions),
            predicted: from_parts,
            from_parts,
            parts,
            notes: [&graph.notes[..], &comparison.before.notes[..]].concat(),
        }
    }

    /// `measured / predicted - 1`: how far the measured speedup lies above the predicted one.
    #[must_use]
    pub fn difference(&self) -> f64 {
        self.measured.median / self.predicted - 1.0
    }

    /// The report in a few lines, at most 100 columns wide.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![
            format!("{} · {} · {} · {}", self.model, self.pass.label(), self.pass.dtype, self.device),
            self.output_line(),
            self.measured_line(),
            self.predicted_line(),
        ];
        if !self.parts.is_empty() {
            lines.push(String::new());
            lines.push(format!(
                "{:<18} {:>11} {:>11} {:>9} {:>9}",
                "operation", "before ms", "after ms", "in place", "vs_user"
            ));
        }
        for part in &self.parts {
            let (before, after) = (part.before_us / 1e3, part.after_us / 1e3);
            let in_place = before / after;
            lines.push(format!("{:<18} {before:>11.3} {after:>11.3} {in_place:>8.2}x {:>8.2}x", part.op, part.vs_user));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n") + "\n"
    }

    /// Whether both models say the same, in a line.
    #[must_use]
    pub fn output_line(&self) -> String {
        let check = &self.output;
        let tokens = match self.answer {
            Answer::NextToken => format!("same next token at {} of {} positions", check.same_token, check.positions),
            Answer::TokenHere => format!("same token at {} of {} positions", check.same_token, check.positions),
            Answer::Vector => {
                let sequences = if check.positions == 1 { "sequence" } else { "sequences" };
                format!("vectors of {} {sequences}", check.positions)
            }
        };
        match (&check.wrong, check.rms_relative) {
            (None, Some(rms)) => {
                format!("outputs agree to {rms:.1e} of their rms (bound {:.1e}); {tokens}", check.bound)
            }
            (why, _) => format!("OUTPUTS DIFFER: {}; {tokens}", why.as_deref().unwrap_or("they cannot be compared")),
        }
    }

    fn measured_line(&self) -> String {
        let Speedup { median, low, high, before_us, after_us, passes, sessions } = &self.measured;
        let interval = match (low, high) {
            (Some(low), Some(high)) => format!("95 % {low:.3} to {high:.3}, "),
            _ => String::new(),
        };
        let (before, after) = (before_us / 1e3, after_us / 1e3);
        let processes = sessions.len();
        format!(
            "{before:.2} -> {after:.2} ms: {median:.3}x measured ({interval}{passes} passes a side, {processes} fresh processes)"
        )
    }

    fn predicted_line(&self) -> String {
        let percent = self.difference() * 100.0;
        let place = if percent < 0.0 { "below" } else { "above" };
        let mut line = format!("{:.3}x predicted; measured is {:.1} % {place}", self.predicted, percent.abs());
        if self.predicted.to_bits() != self.from_parts.to_bits() {
            line += &format!("; kernels timed alone say {:.3}x", self.from_parts);
        }
        line
    }
}
