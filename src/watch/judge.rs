//! Texts judged one after the other, each against the last one kept; written down where there is a history.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::Attempt;
use crate::evaluation::{Evaluation, Verdict};
use crate::harness::Progress;
use crate::op::OpSource;
use crate::ratchet::{Experiment, Ratchet, RatchetError, verdict};
use crate::rng::Stream;
use crate::run::{RunState, TargetState};
use crate::worker::Client;

/// What judges.
pub enum Driver {
    /// The judge alone: nothing is written down.
    Judge(Box<Client>),
    /// Judge and history: what is better advances the branch.
    Ratchet(Box<Ratchet>),
}

/// A kernel that someone edits.
pub struct Watch {
    driver: Driver,
    op: OpSource,
    /// As of a run with one target ([`crate::run::alone`]), also where nothing is written down.
    state: RunState,
    target: usize,
    /// What the next text must beat; none until a text has passed.
    best: Option<String>,
    /// When the state's clocks were last brought up.
    began: Instant,
}

/// What became of a text.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Its number, from 1.
    pub number: u64,
    /// What it changes, in a few words.
    pub description: String,
    /// What the judge found.
    pub evaluation: Evaluation,
}

impl Watch {
    /// A watch that has seen nothing yet; `state` has the kernel as its only target.
    #[must_use]
    pub fn new(driver: Driver, op: OpSource, state: RunState) -> Self {
        Self { driver, op, state, target: 0, best: None, began: Instant::now() }
    }

    /// Judges a text: the first that passes is what the following are held against, until one is better.
    ///
    /// # Errors
    /// The machine's, which the next text may be spared; git's, which end it. Cancelled, nothing is written down.
    pub async fn judge(
        &mut self,
        text: &str,
        progress: &mut (dyn FnMut(Progress) + Send),
        cancel: &CancellationToken,
    ) -> Result<Judged, RatchetError> {
        let experiment = self.experiment(text);
        let asked = Instant::now();
        let answer = match &mut self.driver {
            Driver::Judge(worker) => Ok(verdict(worker, &experiment, progress, cancel).await?),
            Driver::Ratchet(ratchet) => {
                let answer = ratchet.judge(&experiment, progress, cancel).await;
                if answer.is_err() {
                    ratchet.withdraw(&experiment.file)?;
                }
                answer
            }
        };
        let evaluation = answer?;
        self.state.busy_s += asked.elapsed().as_secs_f64();
        self.take_in(&experiment, &evaluation);
        if let Driver::Ratchet(ratchet) = &mut self.driver {
            ratchet.record(&experiment, &evaluation, &self.state)?;
        }
        Ok(Judged { number: experiment.number, description: experiment.description, evaluation })
    }

    /// What a text changes, in a few words.
    #[must_use]
    pub fn describe(&self, text: &str) -> String {
        self.best.as_ref().map_or_else(|| "the kernel as it is".to_owned(), |best| changed_lines(best, text))
    }

    fn experiment(&self, text: &str) -> Experiment {
        let number = self.state.next_experiment;
        let target = self.target();
        let technique = if self.best.is_some() { "by-hand" } else { "start" };
        let baseline = if self.best.is_some() { &target.start_text } else { text };
        Experiment {
            number,
            file: target.file.clone(),
            text: text.to_owned(),
            technique: technique.to_owned(),
            description: self.describe(text),
            agent: self.state.agent.name().to_owned(),
            incumbent: self.best.clone(),
            baseline: Some(baseline.to_owned()),
            op: self.op.clone(),
            target: target.shapes.clone(),
            precision: target.precision,
            examination_s: self.state.rules.examination_s(),
            branch_over_best: target.best_us.zip(target.fastest_us).map(|(now, fastest)| now / fastest),
            seed: Stream::new(self.state.seed, "experiment").bits(number),
            meta: Value::Null,
            story: Value::Null,
        }
    }

    /// The state after a verdict: everything that is recorded with it.
    fn take_in(&mut self, experiment: &Experiment, evaluation: &Evaluation) {
        self.state.next_experiment += 1;
        self.tick();
        let first = self.best.is_none();
        let target = &mut self.state.targets[self.target];
        target.learn(evaluation);
        if first {
            if evaluation.verdict == Verdict::Base {
                target.start_judged = true;
                target.start_text.clone_from(&experiment.text);
            }
        } else {
            target.tried.push(Attempt {
                experiment: experiment.number,
                technique: experiment.technique.clone(),
                description: experiment.description.clone(),
                hypothesis: String::new(),
                predicted: None,
                verdict: evaluation.verdict.clone(),
            });
        }
        if evaluation.verdict.advances() {
            self.best = Some(experiment.text.clone());
        }
    }

    /// Brings the clocks of the state up to now.
    fn tick(&mut self) {
        let passed = self.began.elapsed();
        self.began = Instant::now();
        self.state.elapsed_s += passed.as_secs_f64();
        self.state.targets[self.target].progress.spent += passed;
    }

    /// Writes down where it ended, where there is a history.
    ///
    /// # Errors
    /// Git.
    pub fn close(&mut self) -> Result<(), RatchetError> {
        self.tick();
        match &mut self.driver {
            Driver::Judge(_) => Ok(()),
            Driver::Ratchet(ratchet) => ratchet.checkpoint(&self.state),
        }
    }

    /// The kernel.
    #[must_use]
    pub fn target(&self) -> &TargetState {
        &self.state.targets[self.target]
    }

    /// The last text kept; none until one has passed.
    #[must_use]
    pub fn best(&self) -> Option<&str> {
        self.best.as_deref()
    }

    /// The state, as a run's.
    #[must_use]
    pub const fn state(&self) -> &RunState {
        &self.state
    }
}

/// What sets one text apart from another, in a few words: `+3 -1 lines`. Lines that only moved are not counted.
fn changed_lines(before: &str, after: &str) -> String {
    let mut balance: BTreeMap<&str, i64> = BTreeMap::new();
    for line in after.lines() {
        *balance.entry(line.trim_end()).or_default() += 1;
    }
    for line in before.lines() {
        *balance.entry(line.trim_end()).or_default() -= 1;
    }
    let added: i64 = balance.values().filter(|count| **count > 0).sum();
    let removed: i64 = -balance.values().filter(|count| **count < 0).sum::<i64>();
    if added == 0 && removed == 0 { "the same lines".to_owned() } else { format!("+{added} -{removed} lines") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_described_by_the_lines_it_changes() {
        assert_eq!(changed_lines("a\nb\nc\n", "a\nx\ny\nc\n"), "+2 -1 lines");
        assert_eq!(changed_lines("a\nb\n", "b\na\n"), "the same lines");
        assert_eq!(changed_lines("a\na\n", "a\n"), "+0 -1 lines");
        assert_eq!(changed_lines("a \r\n", "a\n"), "the same lines");
    }
}
