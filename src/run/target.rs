//! One target: its starting point, then experiment after experiment until a rule fires.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::{Agent, Attempt, Brief, Offer, Outcome, Proposal};
use crate::evaluation::Evaluation;
use crate::op::OpSource;
use crate::ratchet::{Experiment, RatchetError};
use crate::rng::Stream;

use super::screen::WorkerScreen;
use super::stop::StopReason;
use super::{Phase, Run, RunError, RunEvent};

/// What the journal's pending file remembers of a proposal, so that a resumed run judges it again without asking twice.
#[derive(Debug, Serialize, Deserialize)]
struct Proposed {
    op: String,
    technique: String,
    description: String,
    predicted: Option<f64>,
    base: bool,
    /// The agent's memory right after it proposed.
    memory: Value,
}

impl Run<'_> {
    /// Works on one target until a rule ends it or the whole run.
    pub(super) async fn work_on(&mut self, index: usize) -> Result<StopReason, RunError> {
        self.state.targets[index].phase = Phase::Active;
        self.watcher.on(&RunEvent::Target { target: &self.state.targets[index], state: &self.state });
        let mut agent = (self.make_agent)();
        let memory = self.state.targets[index].memory.clone();
        if !memory.is_null() {
            agent.restore(&memory)?;
        }
        if let Some(reason) = self.finish_pending(index, agent.as_mut()).await? {
            return Ok(reason);
        }
        if !self.state.targets[index].start_judged
            && let Some(reason) = self.establish_start(index, agent.as_mut()).await?
        {
            return Ok(reason);
        }
        if self.state.targets[index].start_us.is_none() {
            let why = "the kernel as it is does not pass; `warpsmith log` says where".to_owned();
            return Ok(StopReason::Unjudged { why });
        }
        loop {
            if let Some(reason) = self.over() {
                return Ok(reason);
            }
            let target = &self.state.targets[index];
            if let Some(reason) = self.state.rules.target(&target.progress) {
                return Ok(reason);
            }
            let brief = self.brief(index)?;
            self.watcher.on(&RunEvent::Proposing);
            let mut screen = WorkerScreen::new(self, index, &brief)?;
            let offer = agent.propose(&brief, &mut screen).await?;
            let (busy_s, troubles) = screen.finish();
            self.state.busy_s += busy_s;
            troubles.into_iter().for_each(|what| self.state.note(what));
            match offer {
                _ if self.cancel.is_cancelled() => return Ok(StopReason::Interrupted),
                Offer::Exhausted { why } => self.state.targets[index].progress.exhausted = Some(why),
                Offer::GivenUp { .. } => {}
                Offer::Proposal(proposal) => {
                    let memory = agent.save();
                    let op = self.state.targets[index].op.clone();
                    let Proposal { text, technique, description, predicted, .. } = proposal;
                    let proposed = Proposed { op, technique, description, predicted, base: false, memory };
                    if let Some(reason) = self.experiment(index, agent.as_mut(), text, proposed).await? {
                        return Ok(reason);
                    }
                }
            }
        }
    }

    /// Judges what the user has, so that there is something to beat.
    async fn establish_start(&mut self, index: usize, agent: &mut dyn Agent) -> Result<Option<StopReason>, RunError> {
        let target = &self.state.targets[index];
        let proposed = Proposed {
            op: target.op.clone(),
            technique: "start".into(),
            description: "the kernel as it is".into(),
            predicted: None,
            base: true,
            memory: agent.save(),
        };
        let text = target.start_text.clone();
        self.experiment(index, agent, text, proposed).await
    }

    /// Judges again what an interruption left undecided, with the same number and seed.
    async fn finish_pending(&mut self, index: usize, agent: &mut dyn Agent) -> Result<Option<StopReason>, RunError> {
        let Some(pending) = self.ratchet.take_pending() else { return Ok(None) };
        let proposed: Proposed =
            serde_json::from_value(pending.meta).map_err(|error| RunError::State(error.to_string()))?;
        if proposed.op != self.state.targets[index].op {
            // It belonged to a target that has since been left; its number is used again.
            return Ok(None);
        }
        agent.restore(&proposed.memory)?;
        self.experiment(index, agent, pending.text, proposed).await
    }

    /// One experiment from text to record; a reason comes back only where the run was interrupted.
    async fn experiment(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
        text: String,
        proposed: Proposed,
    ) -> Result<Option<StopReason>, RunError> {
        let number = self.state.next_experiment;
        let target = &self.state.targets[index];
        let incumbent = if proposed.base { None } else { Some(self.incumbent(index)?) };
        let experiment = Experiment {
            number,
            file: target.file.clone(),
            text,
            technique: proposed.technique.clone(),
            description: proposed.description.clone(),
            agent: if proposed.base { "warpsmith".to_owned() } else { agent.name().to_owned() },
            incumbent,
            baseline: Some(target.start_text.clone()),
            op: self.op_source(&target.op)?,
            target: target.shapes.clone(),
            precision: target.precision,
            branch_over_best: target.best_us.zip(target.fastest_us).map(|(now, fastest)| now / fastest),
            seed: Stream::new(self.state.seed, "experiment").bits(number),
            meta: serde_json::to_value(&proposed).map_err(|error| RunError::State(error.to_string()))?,
        };
        self.watcher.on(&RunEvent::Experiment { number, description: &proposed.description });
        let began = Instant::now();
        let evaluation = match self.judge(&experiment).await {
            Ok(evaluation) => evaluation,
            Err(RatchetError::Worker(error)) if error.is_cancelled() => return Ok(Some(StopReason::Interrupted)),
            Err(RatchetError::Worker(error)) if error.spares_the_run() => {
                return Ok(Some(StopReason::Unjudged { why: error.to_string() }));
            }
            Err(error) => return Err(error.into()),
        };
        self.state.busy_s += began.elapsed().as_secs_f64();
        self.take_in(index, agent, &experiment, &proposed, &evaluation);
        self.ratchet.record(&experiment, &evaluation, &self.state)?;
        let description = &experiment.description;
        self.watcher.on(&RunEvent::Decided { number, description, evaluation: &evaluation, state: &self.state });
        Ok(None)
    }

    /// Asks for a verdict, twice where the machine failed: a night must not end by one bad moment.
    async fn judge(&mut self, experiment: &Experiment) -> Result<Evaluation, RatchetError> {
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
        if proposed.base {
            target.start_judged = true;
            return;
        }
        target.tried.push(Attempt {
            experiment: experiment.number,
            technique: proposed.technique.clone(),
            description: proposed.description.clone(),
            predicted: proposed.predicted,
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

    fn brief(&mut self, index: usize) -> Result<Brief, RunError> {
        let incumbent = self.incumbent(index)?;
        let device = self.ratchet.worker().device().clone();
        let target = &self.state.targets[index];
        Ok(Brief {
            op: target.op.clone(),
            source: self.op_source(&target.op)?,
            backend: self.state.backend.clone(),
            file: target.file.clone(),
            incumbent,
            starter: target.start_text.clone(),
            shapes: target.shapes.clone(),
            timing: target.timing.clone(),
            resources: target.resources.clone(),
            vs_user: target.vs_user(),
            against: target.against.clone(),
            share: target.share,
            device,
            margin: target.precision.map_or(0.01, |precision| precision.margin),
            history: target.tried.clone(),
            seed: Stream::new(self.state.seed, &target.op).bits(0),
            experiment: self.state.next_experiment,
        })
    }

    /// The kernel file at the branch's tip.
    fn incumbent(&self, index: usize) -> Result<String, RunError> {
        let target = &self.state.targets[index];
        Ok(self.ratchet.tip_text(&target.file)?.unwrap_or_else(|| target.start_text.clone()))
    }

    /// What the operation must compute, as it stood when the run began: an agent that edits `reference/` meanwhile
    /// changes nothing.
    pub(super) fn op_source(&self, op: &str) -> Result<OpSource, RunError> {
        let read = |path: &str| {
            let begun = self.ratchet.tip_text(path).ok().flatten();
            begun.or_else(|| self.workspace.file(path).ok().map(|file| file.text))
        };
        Ok(OpSource::read(op, &read)?)
    }
}
