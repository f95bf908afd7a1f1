//! One candidate: judged, then recorded.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::agent::transcript::Said;
use crate::agent::{Agent, Attempt, Bill, Failed, Outcome, Proposal};
use crate::evaluation::Evaluation;
use crate::ratchet::{Experiment, RatchetError};
use crate::rng::Stream;

use super::stop::StopReason;
use super::{Run, RunError, RunEvent};

/// What the journal's pending file remembers of a proposal, so that a resumed run judges it again without asking twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Proposed {
    pub(super) op: String,
    pub(super) base: bool,
    /// In the pending file without its text, which stands beside it.
    pub(super) proposal: Proposal,
    /// What failed before it was mended, oldest first.
    pub(super) mended: Vec<Failed>,
    /// The agent's memory right after it proposed.
    pub(super) memory: Value,
    /// What the proposal took so far, with what failed before it was mended.
    #[serde(default)]
    pub(super) bill: Bill,
    /// What the whole run had taken by then: after a kill, the journal's last entry may be from before it was asked for.
    #[serde(default)]
    pub(super) bill_of_run: Bill,
}

/// A candidate with the judge's word, which is no experiment yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    proposed: Proposed,
    pub(super) evaluation: Evaluation,
}

impl Judged {
    /// The proposal with the judge's word.
    pub(super) fn failed(&self) -> Failed {
        Failed { proposal: self.proposed.proposal.clone(), verdict: self.evaluation.verdict.clone() }
    }

    /// Names the proposal among those of its agent.
    pub(super) const fn ticket(&self) -> u64 {
        self.proposed.proposal.ticket
    }

    /// Whether it is a starting point.
    pub(super) const fn is_base(&self) -> bool {
        self.proposed.base
    }

    /// What it took so far.
    pub(super) const fn bill(&self) -> &Bill {
        &self.proposed.bill
    }

    /// This failure and those before it.
    pub(super) fn failures(&self) -> Vec<Failed> {
        self.proposed.mended.iter().cloned().chain([self.failed()]).collect()
    }
}

impl Run {
    /// A proposal with what is known of it; one that mends another goes on with that one's story and bill.
    pub(super) fn proposed(&self, index: usize, proposal: Proposal, agent: &mut dyn Agent) -> Proposed {
        let target = &self.state.targets[index];
        let mends = target.parked.get(&proposal.ticket);
        let mut bill = mends.map_or_else(Bill::default, |judged| judged.bill().clone());
        bill.add(&agent.spent_on(proposal.ticket));
        Proposed {
            op: target.op.clone(),
            base: false,
            mended: mends.map_or(Vec::new(), Judged::failures),
            memory: agent.save(),
            bill,
            bill_of_run: self.state.bill.clone(),
            proposal,
        }
    }

    /// The judge's word on a candidate, by `seed` or a fresh one; the inner error says why there is none.
    pub(super) async fn judge(
        &mut self,
        index: usize,
        agent: &dyn Agent,
        proposed: Proposed,
        seed: Option<u64>,
    ) -> Result<Result<Judged, StopReason>, RunError> {
        let number = self.state.next_experiment;
        let experiment = self.experiment(index, agent, &proposed, seed)?;
        self.watcher.on(&RunEvent::Experiment { number, description: &experiment.description });
        if !proposed.base {
            let (op, proposal) = (proposed.op.clone(), proposed.proposal.clone());
            self.transcript.say(Said::Proposed { op, experiment: number, proposal });
        }
        let began = Instant::now();
        let evaluation = match self.ask_judge(&experiment).await {
            Ok(evaluation) => evaluation,
            Err(RatchetError::Worker(error)) if error.is_cancelled() => return Ok(Err(StopReason::Interrupted)),
            Err(RatchetError::Worker(error)) if error.spares_the_run() => {
                return Ok(Err(StopReason::Unjudged { why: error.to_string() }));
            }
            Err(error) => return Err(error.into()),
        };
        self.state.targets[index].judged += 1;
        self.state.busy_s += began.elapsed().as_secs_f64();
        if !proposed.base {
            self.transcript.say(Said::Judged {
                op: proposed.op.clone(),
                experiment: number,
                status: evaluation.verdict.status().to_owned(),
                why: evaluation.verdict.why().to_owned(),
            });
        }
        Ok(Ok(Judged { proposed, evaluation }))
    }

    fn experiment(
        &self,
        index: usize,
        agent: &dyn Agent,
        proposed: &Proposed,
        seed: Option<u64>,
    ) -> Result<Experiment, RunError> {
        let number = self.state.next_experiment;
        let target = &self.state.targets[index];
        let proposal = &proposed.proposal;
        let textless = Proposed { proposal: Proposal { text: String::new(), ..proposal.clone() }, ..proposed.clone() };
        // What was judged under this number before and went back to be mended had inputs of its own.
        let first = Stream::new(self.state.seed, "experiment").bits(number);
        let again = || Stream::new(first, "again").bits(target.judged);
        Ok(Experiment {
            number,
            file: target.file.clone(),
            text: proposal.text.clone(),
            technique: proposal.technique.clone(),
            description: proposal.description.clone(),
            agent: author(agent, proposed),
            incumbent: if proposed.base { None } else { Some(self.incumbent(index)?) },
            baseline: Some(target.start_text.clone()),
            op: self.op_source(&target.op)?,
            target: target.shapes.clone(),
            precision: target.precision,
            examination_s: self.state.rules.examination_s(),
            branch_over_best: target.best_us.zip(target.fastest_us).map(|(now, fastest)| now / fastest),
            seed: seed.unwrap_or_else(|| if target.judged == 0 { first } else { again() }),
            meta: serde_json::to_value(&textless).map_err(|error| RunError::State(error.to_string()))?,
            story: Value::Null,
        })
    }

    /// Asks for a verdict, twice where the machine failed: a night must not end by one bad moment.
    async fn ask_judge(&mut self, experiment: &Experiment) -> Result<Evaluation, RatchetError> {
        let number = experiment.number;
        let watcher = &mut self.watcher;
        let mut watch = |progress| watcher.on(&RunEvent::Judging { number, progress: &progress });
        match self.ratchet.judge(experiment, &mut watch, &self.cancel).await {
            Err(RatchetError::Worker(error)) if error.spares_the_run() => {
                self.trouble(format!("#{number} is judged again: {error}"));
                let watcher = &mut self.watcher;
                let mut watch = |progress| watcher.on(&RunEvent::Judging { number, progress: &progress });
                self.ratchet.judge(experiment, &mut watch, &self.cancel).await
            }
            answer => answer,
        }
    }

    /// Makes a judged candidate the run's next experiment: state, journal, branch, ledger.
    pub(super) fn record(&mut self, index: usize, agent: &mut dyn Agent, judged: Judged) -> Result<(), RunError> {
        let Judged { mut proposed, evaluation } = judged;
        if !proposed.base {
            // What was spent on mending it in vain.
            proposed.bill.add(&agent.spent_on(proposed.proposal.ticket));
        }
        // While it was being mended, others may have taken the number it had when it was judged.
        let mut experiment = self.experiment(index, agent, &proposed, Some(evaluation.seed))?;
        let number = experiment.number;
        self.take_in(index, agent, &experiment, &proposed, &evaluation);
        experiment.story = story(&proposed);
        self.ratchet.record(&experiment, &evaluation, &self.state)?;
        let description = &experiment.description;
        self.watcher.on(&RunEvent::Decided { number, description, evaluation: &evaluation, state: &self.state });
        Ok(())
    }

    /// The state after an experiment: everything that is recorded with it.
    fn take_in(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
        experiment: &Experiment,
        proposed: &Proposed,
        evaluation: &Evaluation,
    ) {
        self.tick();
        self.state.next_experiment += 1;
        let target = &mut self.state.targets[index];
        target.learn(evaluation);
        target.judged = 0;
        if proposed.base {
            target.start_judged = true;
            return;
        }
        target.tried.push(Attempt {
            experiment: experiment.number,
            technique: experiment.technique.clone(),
            description: experiment.description.clone(),
            hypothesis: proposed.proposal.hypothesis.clone(),
            predicted: proposed.proposal.predicted,
            verdict: evaluation.verdict.clone(),
        });
        let shapes = evaluation.timing.as_ref().map_or(Vec::new(), |timing| {
            timing.shapes.iter().map(|shape| shape.incumbent_us / shape.candidate_us).collect()
        });
        agent.learn(&Outcome {
            experiment: experiment.number,
            text: experiment.text.clone(),
            verdict: evaluation.verdict.clone(),
            shapes,
        });
        target.memory = agent.save();
    }
}

/// What stands in the journal about a proposal: what its author said, what failed first, what it cost.
fn story(proposed: &Proposed) -> Value {
    if proposed.base {
        return Value::Null;
    }
    let Proposal { hypothesis, predicted, by, .. } = &proposed.proposal;
    let mut story = json!({ "predicted": predicted });
    let mut add = |name: &str, value: Value| story[name] = value;
    if !hypothesis.is_empty() {
        add("hypothesis", json!(hypothesis));
    }
    if let Some(by) = by {
        add("by", json!(by));
    }
    if !proposed.mended.is_empty() {
        add("mended", json!(proposed.mended));
    }
    if !proposed.bill.is_empty() {
        add("bill", json!(proposed.bill));
    }
    story
}

/// Who proposed it, for ledger and commit: `tuner`, or `openai/<model>`.
fn author(agent: &dyn Agent, proposed: &Proposed) -> String {
    match &proposed.proposal.by {
        _ if proposed.base => "warpsmith".to_owned(),
        Some(by) if by == "tuner" => by.clone(),
        Some(by) => format!("{}/{by}", agent.name()),
        None => agent.name().to_owned(),
    }
}
