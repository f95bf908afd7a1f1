//! A trial's way: made of a proposal, sent to a judge, decided, recorded.

use std::time::{Duration, Instant};

use crate::agent::transcript::Said;
use crate::agent::{Agent, Proposal, Usage};
use crate::defence::weakened;
use crate::evaluation::{Evaluation, Verdict};
use crate::harness::EvaluationTask;
use crate::history::{Entry, Pending};
use crate::kernel::Language;
use crate::rng::Stream;

use super::flight::Sent;
use super::judging::{Answer, Note, Question, tell, verdict};
use super::state::Rival;
use super::stop::StopReason;
use super::trial::{Judged, Trial, Undecided};
use super::{Phase, Run, RunError, RunEvent};

/// The technique of a trial that puts another language's kernel against the incumbent.
pub(super) const RIVAL: &str = "language";

impl Run {
    /// A proposal as the run's next trial; one that mends another goes on with that one's story and usage.
    pub(super) fn trial(&mut self, index: usize, proposal: Proposal, agent: &mut dyn Agent) -> Undecided {
        let id = self.next_trial();
        let target = &self.state.targets[index];
        let mends = target.parked.get(&proposal.ticket);
        let mut usage = mends.map_or_else(Usage::default, |judged| judged.trial.usage.clone());
        usage.add(&agent.spent_on(proposal.ticket));
        let trial = Trial {
            id,
            parent: target.incumbent,
            op: target.op.clone(),
            file: target.file_for(&proposal.text),
            is_start: false,
            author: author(agent, &proposal),
            mended: mends.map_or(Vec::new(), Judged::failures),
            usage,
            seed: self.seed_of(id),
            proposal,
        };
        Undecided { trial, memory: agent.save(), usage_of_run: self.state.usage.clone() }
    }

    /// The kernel as it is, from which a target starts, as the run's next trial.
    pub(super) fn starting_trial(&mut self, index: usize, agent: &dyn Agent) -> Undecided {
        let id = self.next_trial();
        let target = &self.state.targets[index];
        let proposal = Proposal {
            text: target.start_text.clone(),
            technique: "start".into(),
            description: "the kernel as it is".into(),
            ..Proposal::default()
        };
        let trial = Trial {
            id,
            op: target.op.clone(),
            file: target.file.clone(),
            is_start: true,
            author: "warpsmith".to_owned(),
            seed: self.seed_of(id),
            proposal,
            ..Trial::default()
        };
        Undecided { trial, memory: agent.save(), usage_of_run: self.state.usage.clone() }
    }

    /// A kernel in another language that a target could have begun with, as the run's next trial: it is held against the incumbent.
    pub(super) fn rival_trial(&mut self, index: usize, rival: Rival, agent: &dyn Agent) -> Undecided {
        let id = self.next_trial();
        let target = &self.state.targets[index];
        let language = Language::of_file(&rival.file).map_or("another language", Language::name);
        let proposal = Proposal {
            text: rival.text,
            technique: RIVAL.into(),
            description: format!("the kernel there is in {language}"),
            ..Proposal::default()
        };
        let trial = Trial {
            id,
            parent: target.incumbent,
            op: target.op.clone(),
            file: rival.file,
            author: "warpsmith".to_owned(),
            seed: self.seed_of(id),
            proposal,
            ..Trial::default()
        };
        Undecided { trial, memory: agent.save(), usage_of_run: self.state.usage.clone() }
    }

    fn next_trial(&mut self) -> u64 {
        self.state.trials += 1;
        self.state.trials
    }

    fn seed_of(&self, trial: u64) -> u64 {
        Stream::new(self.state.seed, "trial").bits(trial)
    }

    /// Puts a trial to the judge, under the number that it will have if all before it become experiments. Its answer will land.
    pub(super) fn send(&mut self, index: usize, undecided: Undecided, number: u64) -> Result<(), RunError> {
        self.put(index, undecided, number, false)
    }

    fn put(&mut self, index: usize, undecided: Undecided, number: u64, again: bool) -> Result<(), RunError> {
        let target = &self.state.targets[index];
        let trial = &undecided.trial;
        let textless = Undecided { trial: trial.textless(), ..undecided.clone() };
        self.record.begin(&Pending {
            trial: trial.id,
            number,
            path: trial.file.clone(),
            text: trial.proposal.text.clone(),
            seed: trial.seed,
            meta: serde_json::to_value(&textless).map_err(|error| RunError::State(error.to_string()))?,
        })?;
        let incumbent = if trial.is_start { None } else { self.to_beat(index)? };
        let examination_s = if trial.is_start { 0.0 } else { self.state.rules.examination_s() };
        let task = EvaluationTask {
            op: self.op_source(&target.op)?,
            candidate: trial.proposal.text.clone(),
            incumbent: incumbent.clone(),
            baseline: (!target.empty).then(|| target.start_text.clone()),
            target: target.shapes.clone(),
            seed: trial.seed,
            precision: target.precision,
            look: false,
            examination_s,
            branch_over_best: target.best_us.zip(target.fastest_us).map(|(now, fastest)| now / fastest),
        };
        self.watcher.on(&RunEvent::Experiment { number, description: &trial.proposal.description });
        if !trial.is_start {
            let (op, proposal) = (trial.op.clone(), trial.proposal.clone());
            self.transcript.say(Said::Proposed { op, experiment: number, proposal });
        }
        let refused = (!trial.is_start).then(|| target.refuses(&trial.proposal.text)).flatten();
        let refused = refused.map(|why| Evaluation::unjudged(&target.op, &self.state.backend, why, trial.seed));
        let (id, is_start, began) = (trial.id, trial.is_start, Instant::now());
        tracing::info!(trial = id, number, op = trial.op, by = trial.author, seed = trial.seed, "a trial is sent");
        self.flight.send(undecided, number, incumbent);
        let (pool, notes, stop) = (self.pool.clone(), self.notes.clone(), self.flight_stop.clone());
        tokio::spawn(async move {
            let answer = match refused {
                Some(evaluation) => Ok(evaluation),
                None => verdict(&pool, &Question { number, again, is_start, task }, &notes, &stop).await,
            };
            tell(&notes, Note::Answer { trial: id, answer: Box::new(answer), took: began.elapsed() });
        });
        self.show_workers();
        Ok(())
    }

    /// Sends a trial and waits for the judge's word; the inner error says why there is none. Nothing else is under way.
    pub(super) async fn judge(
        &mut self,
        index: usize,
        undecided: Undecided,
    ) -> Result<Result<Judged, StopReason>, RunError> {
        self.send(index, undecided, self.state.next_experiment)?;
        loop {
            if let Some((sent, answer)) = self.flight.next() {
                return self.judged(&sent, answer).map(|answer| answer.map(|evaluation| sent.with(evaluation)));
            }
            self.listen().await;
        }
    }

    /// A judge's answer as its word, or as the reason why there is none.
    fn judged(&self, sent: &Sent<Answer>, answer: Answer) -> Result<Result<Evaluation, StopReason>, RunError> {
        let mut evaluation = match answer {
            Ok(evaluation) => evaluation,
            Err(error) if error.is_cancelled() => return Ok(Err(StopReason::Interrupted)),
            Err(error) if error.spares_the_run() || (error.is_of_the_definition() && self.has_other_targets()) => {
                return Ok(Err(StopReason::Unjudged { why: error.to_string() }));
            }
            Err(error) => return Err(error.into()),
        };
        let trial = &sent.undecided.trial;
        // To the judge whatever has nothing to beat is a starting point.
        if !trial.is_start && evaluation.verdict == Verdict::Base {
            evaluation.verdict = Verdict::Start;
        }
        if !trial.is_start {
            self.transcript.say(Said::Judged {
                op: trial.op.clone(),
                experiment: sent.number,
                status: evaluation.verdict.status().to_owned(),
                why: evaluation.verdict.why().to_owned(),
            });
        }
        Ok(Ok(evaluation))
    }

    /// Whether the run is for more than the target that is worked on.
    fn has_other_targets(&self) -> bool {
        self.state.targets.iter().filter(|target| !matches!(target.phase, Phase::Skipped(_))).count() > 1
    }

    /// Decides a trial whose turn it is; a reason where that ends the target.
    ///
    /// One that beats an incumbent which has been replaced meanwhile must beat the new one as well: it is judged once more.
    pub(super) fn settle(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
        sent: Sent<Answer>,
        answer: Answer,
    ) -> Result<Option<StopReason>, RunError> {
        let evaluation = match self.judged(&sent, answer)? {
            Ok(evaluation) => evaluation,
            Err(reason) => return Ok(Some(reason)),
        };
        if evaluation.verdict.advances() && sent.incumbent != self.to_beat(index)? {
            let mut undecided = sent.undecided;
            undecided.trial.parent = self.state.targets[index].incumbent;
            undecided.trial.seed = Stream::new(undecided.trial.seed, "against the new incumbent").bits(0);
            return self.put(index, undecided, self.state.next_experiment, true).map(|()| None);
        }
        self.park_or_record(index, agent, sent.with(evaluation)).map(|()| None)
    }

    /// Decides all that is under way, as it lands.
    pub(super) async fn settle_all(
        &mut self,
        index: usize,
        agent: &mut dyn Agent,
    ) -> Result<Option<StopReason>, RunError> {
        while !self.flight.is_empty() {
            match self.flight.next() {
                Some((sent, answer)) => {
                    if let Some(reason) = self.settle(index, agent, sent, answer)? {
                        self.recall(&reason)?;
                        return Ok(Some(reason));
                    }
                }
                None => self.listen().await,
            }
        }
        Ok(None)
    }

    /// Takes back all that is under way. What an interruption leaves stays pending: a resumed run judges it.
    pub(super) fn recall(&mut self, reason: &StopReason) -> Result<(), RunError> {
        self.flight_stop.cancel();
        self.flight_stop = self.cancel.child_token();
        for undecided in self.flight.clear() {
            if *reason != StopReason::Interrupted {
                self.record.withdraw(undecided.trial.id, &undecided.trial.file)?;
            }
        }
        Ok(())
    }

    /// Makes a judged trial the run's next experiment: state, journal, branch, ledger.
    pub(super) fn record(&mut self, index: usize, agent: &mut dyn Agent, mut judged: Judged) -> Result<(), RunError> {
        if !judged.trial.is_start {
            // What was spent on mending it in vain.
            judged.trial.usage.add(&agent.spent_on(judged.ticket()));
        }
        let advances = self.advances(&judged)?;
        let (number, left) = self.take_in(index, agent, &judged);
        self.write(number, advances, left, &judged)?;
        self.tick();
        self.ahead.trial = Duration::from_secs_f64((self.state.elapsed_s - self.decided_s).max(0.0));
        self.decided_s = self.state.elapsed_s;
        Ok(())
    }

    /// Writes an experiment down and tells of it. `left` is the file that the target's kernel was in before, where it is in another one now:
    /// the branch has one for each target.
    pub(super) fn write(
        &mut self,
        number: u64,
        advances: bool,
        left: Option<String>,
        judged: &Judged,
    ) -> Result<(), RunError> {
        let entry = judged.entry(number, advances, &self.state)?;
        self.record.record(Entry { removes: left.filter(|_| advances), ..entry })?;
        let (id, status) = (judged.trial.id, judged.evaluation.verdict.status());
        tracing::info!(trial = id, experiment = number, status, branch_moves = advances, "an experiment is recorded");
        let (description, evaluation) = (&judged.trial.proposal.description, &judged.evaluation);
        self.watcher.on(&RunEvent::Decided { number, description, evaluation, state: &self.state });
        self.show_workers();
        Ok(())
    }

    /// Whether the branch moves: a keep moves it, a starting point only where the branch does not have it yet.
    fn advances(&self, judged: &Judged) -> Result<bool, RunError> {
        Ok(match judged.evaluation.verdict {
            Verdict::Keep { .. } => match weakened() {
                Some(why) => return Err(RunError::State(why.to_owned())),
                None => true,
            },
            Verdict::Withdrawn { .. } | Verdict::Start => true,
            Verdict::Base => self.record.tip_text(&judged.trial.file)?.as_ref() != Some(&judged.trial.proposal.text),
            _ => false,
        })
    }

    /// The state after an experiment: everything that is recorded with it. Its number, and the file that the target's kernel was in before,
    /// where it is in another one now.
    fn take_in(&mut self, index: usize, agent: &mut dyn Agent, judged: &Judged) -> (u64, Option<String>) {
        self.tick();
        let number = self.state.next_experiment;
        self.state.next_experiment += 1;
        self.state.decided = self.state.decided.max(judged.trial.id);
        let target = &mut self.state.targets[index];
        target.learn(&judged.evaluation);
        let mut left = None;
        if judged.evaluation.verdict.advances() {
            target.incumbent = Some(number);
            left = target.go_on_with(&judged.trial.file);
        }
        if judged.trial.is_start {
            target.start_judged = true;
            return (number, left);
        }
        target.tried.push(judged.attempt(number));
        let rivals = target.rivals.len();
        target.rivals.retain(|rival| rival.text != judged.trial.proposal.text);
        // A rival is nobody's proposal.
        if rivals == target.rivals.len() {
            agent.learn(&judged.outcome(number));
            target.memory = agent.save();
        }
        (number, left)
    }
}

impl Sent<Answer> {
    fn with(self, evaluation: Evaluation) -> Judged {
        Judged { trial: self.undecided.trial, evaluation }
    }
}

/// Who proposed it, for ledger and commit: `tuner`, or `openai/<model>`.
fn author(agent: &dyn Agent, proposal: &Proposal) -> String {
    match &proposal.by {
        Some(by) if by == "tuner" => by.clone(),
        Some(by) => format!("{}/{by}", agent.name()),
        None => agent.name().to_owned(),
    }
}
