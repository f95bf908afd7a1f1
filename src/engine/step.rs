//! A run driven from outside, a proposal at a time: the judging and the record are the same.

use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Outside, Proposal};
use crate::evaluation::Evaluation;

use super::stop::StopReason;
use super::{Phase, Run, RunError, RunState, TargetState, Workload};

/// What became of a text that someone has written by hand.
#[derive(Debug, Clone)]
pub struct Edited {
    /// Its number, from 1.
    pub number: u64,
    /// What it changes, in a few words.
    pub description: String,
    /// What the judge found.
    pub evaluation: Evaluation,
}

impl Run {
    /// Where the run is.
    #[must_use]
    pub const fn state(&self) -> &RunState {
        &self.state
    }

    /// The kernel file of an operation as it is at the branch's tip.
    ///
    /// # Errors
    /// No such target, or git.
    pub fn incumbent_of(&self, op: &str) -> Result<String, RunError> {
        self.incumbent(self.target_of(op)?)
    }

    /// Why nothing more is judged for an operation, by which of the user's rules, and what is left to do; `None` as long as
    /// none has fired.
    ///
    /// # Errors
    /// No such target.
    pub fn done_with(&mut self, op: &str) -> Result<Option<String>, RunError> {
        let index = self.target_of(op)?;
        if let Some(reason) = self.over_for_all() {
            let then = match self.state.single() {
                Some(_) => "`finish` ends the run",
                None if self.state.workload == Workload::Operation => "`finish` ends the run",
                None => "`finish` compares the whole model before and after, and ends the run",
            };
            return Ok(Some(format!("nothing more is judged: {reason}; {then}")));
        }
        let rule = |target: &TargetState| self.state.rules.target(&target.progress);
        let Some(reason) = rule(&self.state.targets[index]) else { return Ok(None) };
        let open = |target: &&TargetState| !matches!(target.phase, Phase::Skipped(_)) && rule(target).is_none();
        let left: Vec<&str> = self.state.targets.iter().filter(open).map(|target| target.op.as_str()).collect();
        Ok(Some(match left.is_empty() {
            true if self.state.single().is_some() => format!("{op} is done: {reason}; `finish` ends the run"),
            true => format!("{op} is done: {reason}; no other operation is left, and `finish` ends the run"),
            false => format!("{op} is done: {reason}; left to work on: {}", left.join(", ")),
        }))
    }

    /// The rule by which nothing is judged any more, whatever the operation.
    fn over_for_all(&mut self) -> Option<StopReason> {
        // Whether a target is left says its own rule, and a question that is taken back ends nothing.
        self.over().filter(|reason| !matches!(reason, StopReason::NoTargets | StopReason::Interrupted))
    }

    /// Judges and records one proposal for a target, after the target's starting point where that has no verdict yet.
    ///
    /// # Errors
    /// No such target, a rule that has fired ([`Self::done_with`]), a starting point that does not pass, or what a run cannot survive.
    pub async fn judge_proposal(&mut self, op: &str, proposal: Proposal) -> Result<Evaluation, RunError> {
        let index = self.target_of(op)?;
        self.refuse_where_done(op)?;
        for target in &mut self.state.targets {
            if target.phase == Phase::Active {
                target.phase = Phase::Waiting;
            }
        }
        self.state.targets[index].phase = Phase::Active;
        let mut agent = Outside { name: self.state.agent.name().to_owned() };
        let agent: &mut dyn Agent = &mut agent;
        let stopped = |reason: StopReason| RunError::Nothing(format!("{op}: {reason}"));
        if let Some(reason) = self.finish_pending(index, agent).await? {
            return Err(stopped(reason));
        }
        if let Some(reason) = self.settle_all(index, agent).await? {
            return Err(stopped(reason));
        }
        if let Some(reason) = self.establish_start(index, agent).await? {
            return Err(stopped(reason));
        }
        if let Some(reason) = self.judge_rivals(index, agent).await? {
            return Err(stopped(reason));
        }
        self.refuse_where_done(op)?;
        let undecided = self.trial(index, proposal, agent);
        let judged = self.judge(index, undecided).await?.map_err(stopped)?;
        let evaluation = judged.evaluation.clone();
        self.record(index, agent, judged)?;
        if let Some(reason) = self.state.rules.target(&self.state.targets[index].progress) {
            self.leave(index, &reason);
        }
        Ok(evaluation)
    }

    /// Judges and records a text that someone has written by hand, for the run's only target: the first that passes is where it
    /// starts, and what follows is held against the last one kept. The inner error says why there is no verdict.
    ///
    /// # Errors
    /// What a run cannot survive. What has no verdict is not recorded.
    pub async fn judge_edit(&mut self, text: &str, description: &str) -> Result<Result<Edited, StopReason>, RunError> {
        const ONLY: usize = 0;
        let began = Instant::now();
        let mut agent = Outside { name: self.state.agent.name().to_owned() };
        let is_start = self.state.targets[ONLY].start_us.is_none();
        let mut undecided = if is_start {
            text.clone_into(&mut self.state.targets[ONLY].start_text);
            self.starting_trial(ONLY, &agent)
        } else {
            let (technique, text) = ("by-hand".to_owned(), text.to_owned());
            self.trial(ONLY, Proposal { text, technique, ..Proposal::default() }, &mut agent)
        };
        undecided.trial.proposal.description = description.to_owned();
        undecided.trial.author.clone_from(&agent.name);
        let answer = self.judge(ONLY, undecided).await;
        self.state.targets[ONLY].progress.spent += began.elapsed();
        match answer {
            Ok(Ok(judged)) => {
                let number = self.state.next_experiment;
                let evaluation = judged.evaluation.clone();
                self.record(ONLY, &mut agent, judged)?;
                Ok(Ok(Edited { number, description: description.to_owned(), evaluation }))
            }
            Ok(Err(reason)) => {
                self.forget(ONLY)?;
                Ok(Err(reason))
            }
            Err(error) => {
                self.forget(ONLY)?;
                Err(error)
            }
        }
    }

    fn refuse_where_done(&mut self, op: &str) -> Result<(), RunError> {
        self.done_with(op)?.map_or(Ok(()), |why| Err(RunError::Nothing(why)))
    }

    /// Lets `cancel` take back what is judged from now on.
    pub fn cancel_with(&mut self, cancel: CancellationToken) {
        self.flight_stop = cancel.child_token();
        self.cancel = cancel;
    }

    /// Forgets an experiment that was begun and has no verdict: whoever proposed it wants none any more.
    ///
    /// # Errors
    /// The file system.
    pub fn withdraw(&mut self) -> Result<(), RunError> {
        self.withdraw_pending()?;
        match self.state.targets.iter().position(|target| target.phase == Phase::Active) {
            Some(index) => self.forget(index),
            None => Ok(()),
        }
    }

    /// Takes back the latest trial, which was one of this target's.
    fn forget(&mut self, index: usize) -> Result<(), RunError> {
        let TargetState { file, .. } = &self.state.targets[index];
        Ok(self.record.withdraw(self.state.trials, file)?)
    }

    /// Writes down where the run is, so that it can be gone on with.
    ///
    /// # Errors
    /// Git.
    pub fn pause(&mut self) -> Result<(), RunError> {
        self.tick();
        self.checkpoint()
    }

    /// Compares the whole model (where it is about one) before and after, and ends the run.
    ///
    /// # Errors
    /// What the comparison cannot survive, and git.
    pub async fn finish(&mut self) -> Result<&RunState, RunError> {
        let reason = self.over_for_all().unwrap_or(StopReason::Closed);
        self.close(reason).await?;
        Ok(&self.state)
    }

    fn target_of(&self, op: &str) -> Result<usize, RunError> {
        let index = self.state.targets.iter().position(|target| target.op == op);
        let ops = || self.state.targets.iter().map(|target| target.op.as_str()).collect::<Vec<_>>().join(", ");
        index.ok_or_else(|| RunError::Nothing(format!("there is no target `{op}` in this run; there are: {}", ops())))
    }
}
