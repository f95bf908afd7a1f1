//! The model has the last word: what was kept for a target stays only where the whole model says the same with it.
//!
//! The judge asks about an operation by itself. What it never thought of shows in the model, or nowhere. So when a target is left the model
//! with its kernel is compared with the model without, on several draws of tokens and weights; where they differ beyond the bound, the kernels kept for
//! it are tried from the newest back, and the branch returns to the newest with which the model agrees. That is an experiment of its own,
//! which names those that are taken back. Nothing is rewritten.

use std::time::Instant;

use serde_json::Value;

use crate::evaluation::{Evaluation, Verdict};
use crate::model::{ModelConfig, Pass};
use crate::ratchet::Experiment;
use crate::rng::Stream;
use crate::verify::VerifyError;
use crate::worker::WorkerError;

use super::{Run, RunError, RunEvent, RunState, TargetState};

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
    /// What the run cannot survive; a model that cannot be compared at all is noted, and nothing is taken back.
    pub(super) async fn last_word(&mut self, index: usize) -> Result<(), RunError> {
        let target = &self.state.targets[index];
        let Some(pass) = self.state.pass.filter(|_| target.kept > 0 && !target.agreed && target.vs_user() > 1.0) else {
            return Ok(());
        };
        let began = Instant::now();
        let op = target.op.clone();
        let now = self.incumbent(index)?;
        let speedup = target.vs_user();
        let Some(why) = self.differs(pass, index, &now, speedup).await? else {
            // A question that was taken back says nothing.
            self.state.targets[index].agreed = !self.cancel.is_cancelled();
            return Ok(());
        };
        let mut taken_back = Vec::new();
        for step in self.line(index)? {
            if step.text != now && self.differs(pass, index, &step.text, step.target.vs_user()).await?.is_none() {
                if self.cancel.is_cancelled() {
                    return Ok(());
                }
                return self.take_back(index, step, taken_back, why, began);
            }
            taken_back.push(step.number);
        }
        self.trouble(format!("{op}: {why}; it is so with every kernel of this run, and nothing was taken back"));
        self.state.targets[index].agreed = true;
        Ok(())
    }

    /// What the model says differently with `text` for a target, in a sentence; none where it says the same. What was kept for
    /// others and has not been compared yet is left out.
    async fn differs(
        &mut self,
        pass: Pass,
        index: usize,
        text: &str,
        vs_user: f64,
    ) -> Result<Option<String>, RunError> {
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
        let config = ModelConfig::load(&self.model_dir)?;
        for draw in 0..DRAWS {
            let read = |path: &str| self.workspace.file(path).ok().map(|file| file.text);
            let question = kernels.question(&config, pass, &self.state, &speedups);
            let seed = Stream::new(self.state.seed, "last word").bits(draw);
            let question = crate::verify::Question { seed, ..question };
            if !question.is_changed() {
                return Ok(None);
            }
            match crate::verify::outputs(self.ratchet.worker(), &question, &read, &self.cancel).await {
                Ok(output) => {
                    if let Some(why) = output.wrong {
                        return Ok(Some(format!("the model's outputs differ: {why}")));
                    }
                }
                Err(VerifyError::Worker(error)) if error.is_cancelled() => return Ok(None),
                Err(VerifyError::Worker(error @ WorkerError::Failed { .. })) => {
                    return Ok(Some(format!("the model does not run: {error}")));
                }
                Err(VerifyError::Worker(error @ (WorkerError::Died(_) | WorkerError::Protocol(_)))) => {
                    self.ratchet.worker().restart().await?;
                    return Ok(Some(format!("the model does not run: {error}")));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// The kernels of a target that were incumbents, the newest first, its starting point last; without those taken back before.
    fn line(&self, index: usize) -> Result<Vec<Step>, RunError> {
        let TargetState { file, op, .. } = &self.state.targets[index];
        let unreadable = |error: serde_json::Error| RunError::State(error.to_string());
        let mut gone: Vec<u64> = Vec::new();
        let mut line = Vec::new();
        for entry in self.ratchet.newest_first()? {
            let entry = entry?;
            if entry.path != *file || gone.contains(&entry.number) {
                continue;
            }
            let verdict: Verdict = serde_json::from_value(entry.evaluation["verdict"].clone()).map_err(unreadable)?;
            match &verdict {
                Verdict::Withdrawn { experiments, .. } => gone.extend(experiments),
                verdict if verdict.advances() => {}
                _ => continue,
            }
            let state: RunState = serde_json::from_value(entry.state).map_err(unreadable)?;
            let target = state.targets.into_iter().find(|target| target.op == *op);
            if let (Some(target), Some(text)) = (target, self.ratchet.text_in(&entry.commit, file)?) {
                line.push(Step { number: entry.number, text, target });
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
        let named: Vec<String> = experiments.iter().map(|number| format!("#{number}")).collect();
        let why = format!("with {} {why}", named.join(" and "));
        let verdict = Verdict::Withdrawn { experiments: experiments.clone(), why };
        let target = &mut self.state.targets[index];
        target.go_back(&step.target, &experiments, &verdict);
        target.agreed = true;
        let seed = Stream::new(self.state.seed, "experiment").bits(number);
        let target = &self.state.targets[index];
        let experiment = Experiment {
            number,
            file: target.file.clone(),
            text: step.text,
            technique: "withdraw".into(),
            description: format!("back to #{}", step.number),
            agent: "warpsmith".into(),
            incumbent: None,
            baseline: None,
            op: self.op_source(&target.op)?,
            target: target.shapes.clone(),
            precision: None,
            examination_s: 0.0,
            branch_over_best: None,
            seed,
            meta: Value::Null,
            story: Value::Null,
        };
        let evaluation = Evaluation {
            op: target.op.clone(),
            backend: self.state.backend.clone(),
            verdict,
            cases: Vec::new(),
            timing: target.timing.clone(),
            vs_user: target.progress.vs_user,
            against: target.against.clone(),
            seed,
            wall_s: began.elapsed().as_secs_f64(),
            stage_s: [].into(),
            examination: None,
            build_log: target.resources.clone(),
        };
        self.ratchet.record(&experiment, &evaluation, &self.state)?;
        let description = &experiment.description;
        self.watcher.on(&RunEvent::Decided { number, description, evaluation: &evaluation, state: &self.state });
        Ok(())
    }
}
