//! One target: its starting point, then experiment after experiment until a rule fires.

use serde_json::Value;

use crate::agent::{Agent, Brief, Offer, Proposal};
use crate::evaluation::{Evaluation, Verdict};
use crate::op::OpSource;
use crate::rng::Stream;

use super::experiment::{Judged, Proposed};
use super::stop::StopReason;
use super::{Phase, Run, RunError, RunEvent, Seat, brief};

impl Run {
    /// Works on one target until a rule ends it or the whole run.
    pub(super) async fn work_on(&mut self, index: usize) -> Result<StopReason, RunError> {
        self.state.targets[index].phase = Phase::Active;
        self.watcher.on(&RunEvent::Target { target: &self.state.targets[index], state: &self.state });
        let mut agent = (self.make_agent)(&self.seat(index))?;
        let memory = self.state.targets[index].memory.clone();
        self.remind(agent.as_mut(), &memory);
        let reason = self.improve(index, agent.as_mut()).await?;
        if reason != StopReason::Interrupted {
            self.give_up_mending(index, agent.as_mut())?;
        }
        self.take_bill(agent.as_mut());
        Ok(reason)
    }

    async fn improve(&mut self, index: usize, agent: &mut dyn Agent) -> Result<StopReason, RunError> {
        if let Some(reason) = self.finish_pending(index, agent).await? {
            return Ok(reason);
        }
        self.go_on_mending(index, agent)?;
        if let Some(reason) = self.establish_start(index, agent).await? {
            return Ok(reason);
        }
        loop {
            if let Some(reason) = self.over() {
                return Ok(reason);
            }
            let target = &self.state.targets[index];
            if let Some(reason) = self.state.rules.target(&target.progress) {
                return Ok(reason);
            }
            let offer = self.ask_agent(index, agent).await?;
            match offer {
                _ if self.cancel.is_cancelled() => return Ok(StopReason::Interrupted),
                // Time has passed: the rules say what that means.
                None => {}
                Some(Offer::Exhausted { why }) => self.state.targets[index].progress.exhausted = Some(why),
                Some(Offer::GivenUp { ticket }) => {
                    if let Some(judged) = self.state.targets[index].parked.remove(&ticket) {
                        self.record(index, agent, judged)?;
                    }
                }
                Some(Offer::Proposal(proposal)) => {
                    let proposed = self.proposed(index, proposal, agent);
                    match self.judge(index, agent, proposed, None).await? {
                        Ok(judged) => self.park_or_record(index, agent, judged)?,
                        Err(reason) => return Ok(reason),
                    }
                }
            }
        }
    }

    /// Judges what the user has, once, so that there is something to beat; a reason where there is nothing to go on from.
    pub(super) async fn establish_start(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
    ) -> Result<Option<StopReason>, RunError> {
        let target = &self.state.targets[index];
        if !target.start_judged {
            let proposal = Proposal {
                text: target.start_text.clone(),
                technique: "start".into(),
                description: "the kernel as it is".into(),
                ..Proposal::default()
            };
            let start = Proposed { base: true, ..self.proposed(index, proposal, agent) };
            match self.judge_start(index, agent, start, None).await? {
                Ok(judged) => self.record(index, agent, judged)?,
                Err(reason) => return Ok(Some(reason)),
            }
        }
        let refused = self.state.targets[index].start_us.is_none();
        let why = "the kernel as it is does not pass; `warpsmith log` says where".to_owned();
        Ok(refused.then_some(StopReason::Unjudged { why }))
    }

    /// The judge's word on a starting point. A rejection ends the target, so it must repeat itself on other inputs.
    async fn judge_start(
        &mut self,
        index: usize,
        agent: &dyn Agent,
        start: Proposed,
        seed: Option<u64>,
    ) -> Result<Result<Judged, StopReason>, RunError> {
        let first = match self.judge(index, agent, start.clone(), seed).await? {
            Ok(judged) if matches!(judged.evaluation.verdict, Verdict::Reject { .. }) => judged.evaluation,
            answer => return Ok(answer),
        };
        let other = Stream::new(first.seed, "once more").bits(0);
        let second = self.judge(index, agent, start, Some(other)).await?;
        if let Ok(Judged { evaluation: Evaluation { verdict: Verdict::Base, .. }, .. }) = &second {
            let op = &self.state.targets[index].op;
            let why = first.verdict.why();
            self.trouble(format!("{op}: the kernel as it is was rejected, and passed on other inputs: {why}"));
        }
        Ok(second)
    }

    /// Judges again what an interruption left undecided, with the same number and seed.
    pub(super) async fn finish_pending(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
    ) -> Result<Option<StopReason>, RunError> {
        let Some(pending) = self.ratchet.take_pending() else { return Ok(None) };
        let mut proposed: Proposed =
            serde_json::from_value(pending.meta).map_err(|error| RunError::State(error.to_string()))?;
        if proposed.op != self.state.targets[index].op {
            // It belonged to a target that has since been left; its number is used again.
            return Ok(None);
        }
        if self.was_parked(index, &proposed) {
            return self.ratchet.withdraw(&pending.path).map(|()| None).map_err(RunError::from);
        }
        if proposed.bill_of_run.requests > self.state.bill.requests {
            self.state.bill = proposed.bill_of_run.clone();
        }
        self.remind(agent, &proposed.memory);
        proposed.proposal.text = pending.text;
        let seed = Some(pending.seed);
        let answer = match proposed.base {
            true => self.judge_start(index, agent, proposed, seed).await?,
            false => self.judge(index, agent, proposed, seed).await?,
        };
        match answer {
            Ok(judged) => self.park_or_record(index, agent, judged).map(|()| None),
            Err(reason) => Ok(Some(reason)),
        }
    }

    /// Gives an agent its memory back. One that cannot read it, as when a run goes on with another agent, begins afresh.
    fn remind(&mut self, agent: &mut dyn Agent, memory: &Value) {
        if !memory.is_null()
            && let Err(error) = agent.restore(memory)
        {
            self.trouble(format!("agent {} begins afresh: {error}", agent.name()));
        }
    }

    /// Where the agent of a target works.
    fn seat(&self, index: usize) -> Seat {
        let target = &self.state.targets[index];
        Seat {
            transcript: self.transcript.clone(),
            folder: self.ratchet.folder().to_owned(),
            candidate: self.ratchet.candidate_path(&target.file),
        }
    }

    pub(super) fn brief(&self, index: usize) -> Result<Brief, RunError> {
        let target = &self.state.targets[index];
        let (source, incumbent) = (self.op_source(&target.op)?, self.incumbent(index)?);
        let seed = Stream::new(self.state.seed, &target.op).bits(0);
        let device = self.ratchet.device().clone();
        Ok(brief(&self.state, target, source, incumbent, device, seed, self.state.next_experiment))
    }

    /// The kernel file at the branch's tip.
    pub(super) fn incumbent(&self, index: usize) -> Result<String, RunError> {
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
