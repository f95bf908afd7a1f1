//! The model has the last word: what was kept for a target stays only where the whole model says the same with it.
//!
//! The judge asks about an operation by itself. What it never thought of shows in the model, or nowhere. So when a target is left the model
//! with its kernel is compared with the model without, on several draws of tokens and weights; where they differ beyond the bound, or the model
//! runs only without, the kernels kept for it are tried from the newest back, and the branch returns to the newest with which the model agrees.
//! That is an experiment of its own, which names those that are taken back. Nothing is rewritten.
//!
//! It has the last word on time as well: as the run ends, what gains little by itself and makes the whole pass slower is left out of the model. It
//! stays on the branch, since it is no worse than the judge said.

use std::time::Instant;

use crate::agent::Proposal;
use crate::evaluation::{Evaluation, Verdict};
use crate::model::Pass;
use crate::rng::Stream;

use super::trial::{Judged, Trial};
use super::whole::{Asked, Word};
use super::{InModel, LEAST_VISIBLE_SHARE, Run, RunError, RunState, TargetState};

/// A kernel that gains less by itself may cost the whole pass: in it caches and clocks are others' too, and calls of different kinds follow each other.
const DOUBTFUL: f64 = 1.1;

/// Draws of the model's inputs that must agree.
const DRAWS: u64 = 2;

/// A kernel that was the incumbent once.
struct Step {
    /// The experiment that made it so.
    number: u64,
    text: String,
    /// What was known of the target then.
    target: TargetState,
}

impl Run {
    /// Compares the model with what was kept for a target, and takes back what the model does not agree with.
    ///
    /// # Errors
    /// What the run cannot survive; a model that cannot be compared is noted, and nothing is taken back.
    pub(super) async fn last_word(&mut self, index: usize) -> Result<(), RunError> {
        let target = &self.state.targets[index];
        let Some(pass) =
            self.state.workload.pass().filter(|_| target.kept > 0 && !target.agreed && target.vs_user() > 1.0)
        else {
            return Ok(());
        };
        let began = Instant::now();
        let op = target.op.clone();
        let now = self.incumbent(index)?;
        let speedup = target.vs_user();
        let why = match self.word(pass, index, &now, speedup).await? {
            Word::Differs(why) => why,
            Word::Agrees => {
                self.state.targets[index].agreed = true;
                return Ok(());
            }
            Word::Unknown(why) => {
                self.could_not_compare(&op, &why);
                return Ok(());
            }
            Word::TakenBack => return Ok(()),
        };
        let mut taken_back = Vec::new();
        for step in self.line(index)? {
            if step.text != now {
                match self.word(pass, index, &step.text, step.target.vs_user()).await? {
                    Word::Agrees => return self.take_back(index, step, taken_back, why, began),
                    Word::Differs(_) => {}
                    Word::Unknown(unknown) => {
                        self.could_not_compare(&op, &format!("{why}; with an earlier kernel, {unknown}"));
                        return Ok(());
                    }
                    Word::TakenBack => return Ok(()),
                }
            }
            taken_back.push(step.number);
        }
        self.trouble(format!("{op}: {why}; it is so with every kernel of this run, and nothing was taken back"));
        self.state.targets[index].agreed = true;
        Ok(())
    }

    /// Leaves kernels out that the whole pass is slower with, of those that gain little by themselves, also where they were there from the start. A
    /// pass with all of them is compared with one without the one that gains least, and so on.
    ///
    /// # Errors
    /// What the run cannot survive; a kernel that cannot be tried is noted, and stays.
    pub(super) async fn leave_out_slower(&mut self, pass: Pass) -> Result<(), RunError> {
        let mut doubtful: Vec<usize> = (0..self.state.targets.len())
            .filter(|index| {
                let target = &self.state.targets[*index];
                1.0 < target.gain() && target.gain() < DOUBTFUL && target.share >= LEAST_VISIBLE_SHARE
            })
            .collect();
        doubtful.sort_by(|a, b| self.state.targets[*a].gain().total_cmp(&self.state.targets[*b].gain()));
        for index in doubtful {
            let op = self.state.targets[index].op.clone();
            let others: Vec<String> =
                self.state.targets.iter().map(|target| target.op.clone()).filter(|other| *other != op).collect();
            match self.measure_in_model(pass, &others).await {
                Ok(seen) if seen.is_slower() => {
                    if let Some(InModel { ratio, speedups }) = &mut self.state.in_model {
                        *ratio /= seen.median;
                        speedups.insert(op.clone(), 1.0);
                    }
                    let target = &mut self.state.targets[index];
                    target.slower_in_model = Some(seen.median);
                    let than = target.against.as_deref().unwrap_or("what was there before");
                    let alone = format!("{:.2}x {than} by itself", target.vs_user());
                    let what = format!("{op} is left out: it is {alone}, and the model is {:.3}x with it", seen.median);
                    self.trouble(what);
                }
                Ok(_) => {}
                Err(_) if self.cancel.is_cancelled() => return Ok(()),
                Err(error) => {
                    self.trouble(format!("{op}: the whole model could not be timed with it and without: {error}"))
                }
            }
        }
        Ok(())
    }

    /// Nothing is taken back for what a machine or a file of the user's does. It is asked again as the run ends.
    fn could_not_compare(&mut self, op: &str, why: &str) {
        let what = "the whole model could not be compared with and without what was kept, which stays";
        self.trouble(format!("{op}: {what}: {why}"));
    }

    /// What the model says with `text` for a target. What was kept for others and has not been compared yet is left out.
    async fn word(&mut self, pass: Pass, index: usize, text: &str, vs_user: f64) -> Result<Word, RunError> {
        let mut kernels = self.both_kernels()?;
        let mut speedups = self.state.speedups();
        for (other, target) in self.state.targets.iter().enumerate() {
            if other != index && target.kept > 0 && !target.agreed {
                speedups.insert(target.op.clone(), 1.0);
            }
        }
        let op = self.state.targets[index].op.clone();
        speedups.insert(op.clone(), vs_user);
        kernels.after.insert(op, text.to_owned());
        let what = "the whole model with and without what was kept";
        for draw in 0..DRAWS {
            let seed = Stream::new(self.state.seed, "last word").bits(draw);
            let asked = Asked { what, pass, kernels: &kernels, speedups: &speedups, throughout: &[], seed };
            match self.agrees(asked).await? {
                Word::Agrees => {}
                word => return Ok(word),
            }
        }
        Ok(Word::Agrees)
    }

    /// The kernels of a target that were incumbents, the newest first, its starting point last; without those taken back before.
    fn line(&self, index: usize) -> Result<Vec<Step>, RunError> {
        let target = &self.state.targets[index];
        let op = &target.op;
        let unreadable = |error: serde_json::Error| RunError::State(error.to_string());
        let mut gone: Vec<u64> = Vec::new();
        let mut line = Vec::new();
        for past in self.record.line(&target.files())? {
            if gone.contains(&past.number) {
                continue;
            }
            let verdict: Verdict = serde_json::from_value(past.evaluation["verdict"].clone()).map_err(unreadable)?;
            if let Verdict::Withdrawn { experiments, .. } = &verdict {
                gone.extend(experiments);
            }
            let state: RunState = serde_json::from_value(past.state).map_err(unreadable)?;
            if let Some(target) = state.targets.into_iter().find(|target| target.op == *op) {
                line.push(Step { number: past.number, text: past.text, target });
            }
        }
        Ok(line)
    }

    /// Makes an earlier kernel the incumbent again, as an experiment that names those it takes back.
    fn take_back(
        &mut self,
        index: usize,
        step: Step,
        experiments: Vec<u64>,
        why: String,
        began: Instant,
    ) -> Result<(), RunError> {
        self.tick();
        let number = self.state.next_experiment;
        self.state.next_experiment += 1;
        self.state.trials += 1;
        self.state.decided = self.state.trials;
        let named: Vec<String> = experiments.iter().map(|number| format!("#{number}")).collect();
        let why = format!("with {} {why}", named.join(" and "));
        let verdict = Verdict::Withdrawn { experiments: experiments.clone(), why };
        let target = &mut self.state.targets[index];
        target.go_back(&step.target, &experiments, &verdict);
        let left = target.go_on_with(&step.target.file);
        target.agreed = true;
        target.incumbent = Some(step.number);
        let seed = Stream::new(self.state.seed, "trial").bits(self.state.trials);
        let target = &self.state.targets[index];
        let proposal = Proposal {
            text: step.text,
            technique: "withdraw".into(),
            description: format!("back to #{}", step.number),
            ..Proposal::default()
        };
        let trial = Trial {
            id: self.state.trials,
            parent: Some(step.number),
            op: target.op.clone(),
            file: target.file.clone(),
            author: "warpsmith".into(),
            seed,
            proposal,
            ..Trial::default()
        };
        let evaluation = Evaluation {
            op: target.op.clone(),
            backend: self.state.backend.clone(),
            verdict,
            cases: Vec::new(),
            timing: target.timing.clone(),
            vs_user: target.progress.vs_user,
            against: target.against.clone(),
            baselines: Vec::new(),
            seed,
            wall_s: began.elapsed().as_secs_f64(),
            stage_s: [].into(),
            examination: None,
            build_log: target.resources.clone(),
        };
        self.write(number, true, left, &Judged { trial, evaluation })
    }
}
