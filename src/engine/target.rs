//! One target: its starting point, then experiment after experiment until a rule fires.

use std::time::Duration;

use serde_json::Value;

use crate::agent::{Agent, Brief, Offer};
use crate::evaluation::{Evaluation, Verdict};
use crate::op::OpSource;
use crate::rng::Stream;

use super::stop::StopReason;
use super::trial::{Judged, Undecided};
use super::{Phase, Run, RunError, RunEvent, Seat, TargetState, brief};

/// Trials that may be under way for each worker, those among them that have their answer and wait for an older one's.
const MOST_AHEAD: usize = 4;

impl Run {
    /// Works on one target until a rule ends it or the whole run.
    pub(super) async fn work_on(&mut self, index: usize) -> Result<StopReason, RunError> {
        self.state.targets[index].phase = Phase::Active;
        self.tick();
        (self.ahead.trial, self.decided_s) = (Duration::ZERO, self.state.elapsed_s);
        tracing::info!(op = self.state.targets[index].op, "a target begins");
        self.watcher.on(&RunEvent::Target { target: &self.state.targets[index], state: &self.state });
        let mut agent = self.agent_of(index)?;
        let file = self.state.targets[index].file.clone();
        let reason = match self.prepare(index, agent.as_mut()).await? {
            Some(reason) => reason,
            None => {
                if self.state.targets[index].file != file {
                    // It works on the file of another language now.
                    agent = self.agent_of(index)?;
                }
                self.improve(index, agent.as_mut()).await?
            }
        };
        if reason != StopReason::Interrupted {
            self.give_up_mending(index, agent.as_mut())?;
        }
        self.take_bill(agent.as_mut());
        Ok(reason)
    }

    /// Whoever proposes for a target, with its memory.
    fn agent_of(&mut self, index: usize) -> Result<Box<dyn Agent>, RunError> {
        let mut agent = (self.make_agent)(&self.seat(index))?;
        let memory = self.state.targets[index].memory.clone();
        self.remind(agent.as_mut(), &memory);
        Ok(agent)
    }

    /// Everything that comes before the first proposal; a reason where that ends the target.
    async fn prepare(&mut self, index: usize, agent: &mut dyn Agent) -> Result<Option<StopReason>, RunError> {
        if let Some(reason) = self.finish_pending(index, agent).await? {
            return Ok(Some(reason));
        }
        self.go_on_mending(index, agent)?;
        if let Some(reason) = self.establish_start(index, agent).await? {
            return Ok(Some(reason));
        }
        self.judge_rivals(index, agent).await
    }

    async fn improve(&mut self, index: usize, agent: &mut dyn Agent) -> Result<StopReason, RunError> {
        loop {
            while let Some((sent, answer)) = self.flight.next() {
                if let Some(reason) = self.settle(index, agent, sent, answer)? {
                    self.recall(&reason)?;
                    return Ok(reason);
                }
            }
            if self.cancel.is_cancelled() {
                self.recall(&StopReason::Interrupted)?;
                return Ok(StopReason::Interrupted);
            }
            let stop = self.over().or_else(|| self.state.rules.target(&self.state.targets[index].progress));
            let stop = stop.or_else(|| self.makes_room(index));
            if let Some(reason) = stop {
                if self.flight.is_empty() {
                    return Ok(reason);
                }
                // What was sent before the rule fired is decided as well.
                self.landing().await;
            } else if self.has_enough_under_way() {
                self.landing().await;
            } else {
                self.take_offer(index, agent).await?;
            }
        }
    }

    /// Whether this target is left in favour of the next.
    fn makes_room(&self, index: usize) -> Option<StopReason> {
        let own = &self.state.targets[index].op;
        let is_next = |target: &&TargetState| target.phase == Phase::Waiting && !target.within.contains(own);
        let next = self.state.targets.iter().find(is_next)?;
        let ranked = self.state.workload.ranked(&self.state.speedups());
        let ceiling = ranked.iter().find(|known| known.op == next.op)?.ceiling;
        let run = Duration::from_secs_f64(self.state.elapsed_s);
        self.state.rules.room(run, self.state.targets[index].progress.spent, self.ahead, Some((&next.op, ceiling)))
    }

    /// Asks the agent, and sends what it proposes.
    async fn take_offer(&mut self, index: usize, agent: &mut dyn Agent) -> Result<(), RunError> {
        match self.ask_agent(index, agent).await? {
            _ if self.cancel.is_cancelled() => {}
            // Time has passed: the rules say what that means.
            None => {}
            // It may have ideas again when it hears what became of those under way.
            Some(Offer::Exhausted { .. }) if !self.flight.is_empty() => self.landing().await,
            Some(Offer::Exhausted { why }) => self.state.targets[index].progress.exhausted = Some(why),
            Some(Offer::GivenUp { ticket }) => {
                if let Some(judged) = self.state.targets[index].parked.remove(&ticket) {
                    self.record(index, agent, judged)?;
                }
            }
            Some(Offer::Proposal(proposal)) => {
                let undecided = self.trial(index, proposal, agent);
                let number = self.state.next_experiment + self.flight.len() as u64;
                self.send(index, undecided, number)?;
            }
        }
        Ok(())
    }

    /// Whether every worker has something to judge, or too much waits for the decision on the oldest.
    fn has_enough_under_way(&self) -> bool {
        let workers = self.pool.len().max(1);
        self.flight.waited_for() >= workers || self.flight.len() >= MOST_AHEAD * workers
    }

    /// Waits until the answer on some trial is there.
    async fn landing(&mut self) {
        let waited_for = self.flight.waited_for();
        while waited_for > 0 && self.flight.waited_for() == waited_for {
            self.listen().await;
        }
    }

    /// Judges what the user has, once, so that there is something to beat; a reason where there is nothing to go on from. A target
    /// that begins without a kernel has nothing to judge: its first correct candidate is what is gone on from.
    pub(super) async fn establish_start(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
    ) -> Result<Option<StopReason>, RunError> {
        if self.state.targets[index].empty {
            return Ok(None);
        }
        if !self.state.targets[index].start_judged {
            let start = self.starting_trial(index, agent);
            match self.judge_start(index, start).await? {
                Ok(judged) => self.record(index, agent, judged)?,
                Err(reason) => return Ok(Some(reason)),
            }
        }
        let refused = self.state.targets[index].start_us.is_none();
        let why = "the kernel as it is does not pass; `warpsmith log` says where".to_owned();
        Ok(refused.then_some(StopReason::Unjudged { why }))
    }

    /// Judges what a target could have begun with as well, in other languages: what is faster than the incumbent is gone on from. A reason
    /// where the run or its rules end that.
    pub(super) async fn judge_rivals(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
    ) -> Result<Option<StopReason>, RunError> {
        if self.state.targets[index].rivals.is_empty() {
            return Ok(None);
        }
        // One that an interruption left undecided is among them.
        if let Some(reason) = self.settle_all(index, agent).await? {
            return Ok(Some(reason));
        }
        while let Some(rival) = self.state.targets[index].rivals.first().cloned() {
            if self.cancel.is_cancelled() {
                return Ok(Some(StopReason::Interrupted));
            }
            if let Some(reason) = self.over() {
                return Ok(Some(reason));
            }
            let file = rival.file.clone();
            let undecided = self.rival_trial(index, rival, agent);
            match self.judge(index, undecided).await? {
                Ok(judged) => self.record(index, agent, judged)?,
                Err(StopReason::Interrupted) => return Ok(Some(StopReason::Interrupted)),
                Err(reason) => {
                    self.record.withdraw(self.state.trials, &file)?;
                    self.state.targets[index].rivals.remove(0);
                    self.trouble(format!("{file} could not be judged: {reason}"));
                }
            }
        }
        Ok(None)
    }

    /// The judge's word on a starting point. A rejection ends the target, so it must repeat itself on other inputs.
    async fn judge_start(&mut self, index: usize, start: Undecided) -> Result<Result<Judged, StopReason>, RunError> {
        let first = match self.judge(index, start.clone()).await? {
            Ok(judged) if matches!(judged.evaluation.verdict, Verdict::Reject { .. }) => judged.evaluation,
            answer => return Ok(answer),
        };
        let mut again = start;
        again.trial.seed = Stream::new(first.seed, "once more").bits(0);
        let second = self.judge(index, again).await?;
        if let Ok(Judged { evaluation: Evaluation { verdict: Verdict::Base, .. }, .. }) = &second {
            let op = &self.state.targets[index].op;
            let why = first.verdict.why();
            self.trouble(format!("{op}: the kernel as it is was rejected, and passed on other inputs: {why}"));
        }
        Ok(second)
    }

    /// Sends what an interruption left undecided to the judge again, with the same seeds.
    pub(super) async fn finish_pending(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
    ) -> Result<Option<StopReason>, RunError> {
        for pending in std::mem::take(&mut self.pending) {
            let mut undecided: Undecided =
                serde_json::from_value(pending.meta).map_err(|error| RunError::State(error.to_string()))?;
            undecided.trial.proposal.text = pending.text;
            undecided.trial.seed = pending.seed;
            let trial = &mut undecided.trial;
            let decided = trial.id > 0 && trial.id <= self.state.decided;
            // One of a target that has since been left will not be decided any more.
            if decided || trial.op != self.state.targets[index].op || self.was_parked(index, trial) {
                self.record.withdraw(pending.trial, &pending.path)?;
                continue;
            }
            if trial.id == 0 {
                // From before trials were counted: it goes on under a number.
                self.record.withdraw(0, &pending.path)?;
                self.state.trials += 1;
                trial.id = self.state.trials;
                trial.author = if trial.is_start { "warpsmith".to_owned() } else { agent.name().to_owned() };
            }
            if trial.file.is_empty() {
                trial.file.clone_from(&self.state.targets[index].file);
            }
            self.state.trials = self.state.trials.max(trial.id);
            if undecided.usage_of_run.requests > self.state.usage.requests {
                self.state.usage = undecided.usage_of_run.clone();
            }
            self.remind(agent, &undecided.memory);
            if undecided.trial.is_start {
                match self.judge_start(index, undecided).await? {
                    Ok(judged) => self.record(index, agent, judged)?,
                    Err(reason) => return Ok(Some(reason)),
                }
            } else {
                let number = self.state.next_experiment + self.flight.len() as u64;
                self.send(index, undecided, number)?;
            }
        }
        Ok(None)
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
            folder: self.record.folder().to_owned(),
            candidate: self.record.candidate_path(&target.file),
        }
    }

    pub(super) fn brief(&self, index: usize) -> Result<Brief, RunError> {
        let target = &self.state.targets[index];
        let (source, incumbent) = (self.op_source(&target.op)?, self.incumbent(index)?);
        let seed = Stream::new(self.state.seed, &target.op).bits(0);
        let device = self.pool.device().clone();
        Ok(brief(&self.state, target, source, incumbent, device, seed, self.state.next_experiment))
    }

    /// The kernel file at the branch's tip.
    pub(super) fn incumbent(&self, index: usize) -> Result<String, RunError> {
        let target = &self.state.targets[index];
        let tip = self.record.tip_text(&target.file)?;
        target
            .stands_at(tip)
            .ok_or_else(|| RunError::NoKernel { run: self.state.run.clone(), file: target.file.clone() })
    }

    /// What a candidate is held against; none as long as the target has no kernel, and PyTorch alone is to be beaten.
    pub(super) fn to_beat(&self, index: usize) -> Result<Option<String>, RunError> {
        if self.state.targets[index].is_unwritten() { Ok(None) } else { self.incumbent(index).map(Some) }
    }

    /// What the operation must compute, as it stood when the run began: an agent that edits `reference/` meanwhile
    /// changes nothing.
    pub(super) fn op_source(&self, op: &str) -> Result<OpSource, RunError> {
        let own = self.state.targets.iter().find(|target| target.op == op).and_then(|target| target.source.clone());
        if let Some(source) = own {
            return Ok(source);
        }
        Ok(OpSource::read(op, &|path: &str| self.begun_file(path))?)
    }
}
