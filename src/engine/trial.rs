//! A trial: one candidate from its proposal to its verdict. Row, commit, the agent's history and the question to the judge are
//! views of it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::{Attempt, Failed, Outcome, Proposal, Usage};
use crate::evaluation::Evaluation;
use crate::history::{Entry, Row};
use crate::kernel::KernelFile;

use super::RunError;
use super::describe::{body, ledger_description, one_line, subject, trailers};

/// One candidate, as it is put to the judge. It does not change any more; one that is mended is a trial of its own.
///
/// Some names in JSON are those of the runs that were written before trials had numbers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Counts what a run puts to its judge, from 1: decisions are taken in this order. 0 where nobody counted.
    #[serde(default)]
    pub id: u64,
    /// The experiment that made the incumbent it is held against; none for a starting point, and where that was not noted.
    #[serde(default)]
    pub parent: Option<u64>,
    /// The operation.
    pub op: String,
    /// The kernel file it replaces, below the workspace.
    #[serde(default)]
    pub file: String,
    /// Whether it is where a target starts: there is nothing to beat.
    #[serde(rename = "base")]
    pub is_start: bool,
    /// Who proposed it: `tuner`, or `openai/<model>`.
    #[serde(default)]
    pub author: String,
    /// The text, and what its author said of it. Records of a trial leave the text to the commit or file beside them.
    pub proposal: Proposal,
    /// What failed before it was mended, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mended: Vec<Failed>,
    /// What the proposal took so far, with what failed before it was mended.
    #[serde(rename = "bill", default, skip_serializing_if = "Usage::is_empty")]
    pub usage: Usage,
    /// Seed of its evaluation.
    #[serde(default)]
    pub seed: u64,
}

impl Trial {
    /// The same, without the text.
    #[must_use]
    pub fn textless(&self) -> Self {
        Self { proposal: Proposal { text: String::new(), ..self.proposal.clone() }, ..self.clone() }
    }
}

/// A trial with the judge's word, which is no experiment yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// What was judged.
    #[serde(rename = "proposed")]
    pub trial: Trial,
    /// What was found.
    pub evaluation: Evaluation,
}

impl Judged {
    /// The proposal with the judge's word.
    pub(super) fn failed(&self) -> Failed {
        Failed { proposal: self.trial.proposal.clone(), verdict: self.evaluation.verdict.clone() }
    }

    /// Names the proposal among those of its agent.
    pub(super) const fn ticket(&self) -> u64 {
        self.trial.proposal.ticket
    }

    /// This failure and those before it.
    pub(super) fn failures(&self) -> Vec<Failed> {
        self.trial.mended.iter().cloned().chain([self.failed()]).collect()
    }

    /// What later proposals are told of it, as the experiment of this number.
    pub(super) fn attempt(&self, experiment: u64) -> Attempt {
        let Proposal { technique, description, hypothesis, predicted, .. } = &self.trial.proposal;
        Attempt {
            experiment,
            technique: technique.clone(),
            description: description.clone(),
            hypothesis: hypothesis.clone(),
            predicted: *predicted,
            verdict: self.evaluation.verdict.clone(),
        }
    }

    /// What its author hears of it.
    pub(super) fn outcome(&self, experiment: u64) -> Outcome {
        let shapes = self.evaluation.timing.as_ref().map_or(Vec::new(), |timing| {
            timing.shapes.iter().map(|shape| shape.incumbent_us / shape.candidate_us).collect()
        });
        Outcome { experiment, text: self.trial.proposal.text.clone(), verdict: self.evaluation.verdict.clone(), shapes }
    }

    /// The journal's record of the trial: everything but the text, which its commit has.
    fn record(&self, number: u64) -> serde_json::Result<Value> {
        let mut record = serde_json::to_value(self.trial.textless())?;
        if let Some(fields) = record.as_object_mut() {
            fields.insert("experiment".to_owned(), number.into());
            fields.insert("decision".to_owned(), self.evaluation.verdict.status().into());
            fields.insert("why".to_owned(), self.evaluation.verdict.why().into());
        }
        Ok(record)
    }

    /// The experiment of this number as history keeps it; `advances` says whether the branch moves to it, `state` is the run's
    /// after it.
    ///
    /// # Errors
    /// What does not fit into JSON.
    pub(super) fn entry(&self, number: u64, advances: bool, state: &impl Serialize) -> Result<Entry, RunError> {
        let json = |value: serde_json::Result<Value>| value.map_err(|error| RunError::State(error.to_string()));
        let Self { trial, evaluation } = self;
        let Proposal { text, technique, description, .. } = &trial.proposal;
        let timing = evaluation.timing.as_ref();
        let speedup = evaluation.verdict.speedup();
        let order_free = KernelFile::parse(text).is_ok_and(|kernel| kernel.front.order_free);
        Ok(Entry {
            trial: trial.id,
            number,
            path: trial.file.clone(),
            candidate_text: text.clone(),
            keep: advances,
            removes: None,
            subject: subject(&trial.op, description, evaluation),
            body: body(evaluation),
            trailers: trailers(number, technique, &trial.author, evaluation),
            row: Row {
                time: jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S").to_string(),
                status: evaluation.verdict.status().to_owned(),
                speedup: speedup.map(|speedup| speedup.ratio),
                low: speedup.map(|speedup| speedup.low),
                vs_user: evaluation.vs_user,
                us: timing.map(|timing| timing.latency_us),
                roof_pct: timing.map(|timing| timing.roofline_pct),
                stage: evaluation.verdict.stage().to_string(),
                op: evaluation.op.clone(),
                backend: evaluation.backend.clone(),
                technique: one_line(technique),
                description: ledger_description(description, evaluation, order_free),
                // Filled in where the candidate's commit is known.
                ..Row::default()
            },
            record: json(self.record(number))?,
            evaluation: json(serde_json::to_value(evaluation))?,
            state: json(serde_json::to_value(state))?,
        })
    }
}

/// What the pending file remembers of a trial, so that a resumed run judges it again without asking its author twice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Undecided {
    #[serde(flatten)]
    pub(super) trial: Trial,
    /// The agent's memory right after it proposed.
    pub(super) memory: Value,
    /// What the whole run had taken by then: after a kill, the journal's last entry may be from before it was asked for.
    #[serde(default)]
    pub(super) usage_of_run: Usage,
}
