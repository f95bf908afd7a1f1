//! Questions about the whole model: a worker is asked one, and asked again where a machine fails.
//!
//! What the model is and what its operations compute is taken as it stood when the run began: whoever edits `config.json` or `reference/`
//! meanwhile, or switches the branch, changes no answer.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::model::{ModelConfig, ModelError, Pass};
use crate::verify::{Change, Question, Report, Speedup, VerifyError, choose};
use crate::worker::{Client, WorkerError};

use super::{Run, RunError, RunState};

/// So often a question is asked before it counts as one that cannot be answered.
const TRIES: u32 = 3;

/// Before the next try where a file could not be read: whoever is writing it may have finished by then.
const PAUSE: Duration = Duration::from_secs(2);

/// What the whole model says with a kernel in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    /// What it says without.
    Agrees,
    /// Something else, or nothing where it runs without; in a sentence.
    Differs(String),
    /// It could not be compared, and nobody knows; why.
    Unknown(String),
    /// Whoever asked has taken the question back.
    TakenBack,
}

/// Kernel files by operation, at the start and now.
pub(super) struct Kernels {
    pub(super) before: BTreeMap<String, String>,
    pub(super) after: BTreeMap<String, String>,
}

/// What is asked about.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// In words, for whoever looks at the workers.
    pub(super) what: &'a str,
    pub(super) pass: Pass,
    pub(super) kernels: &'a Kernels,
    /// Each operation's `vs_user`; what is not here, or gained nothing, is not installed.
    pub(super) speedups: &'a BTreeMap<String, f64>,
    /// Operations whose kernel is there before as well.
    pub(super) throughout: &'a [String],
    /// Draws weights and tokens.
    pub(super) seed: u64,
}

impl Run {
    /// Whether the model says the same with kernels as without.
    pub(super) async fn agrees(&mut self, asked: Asked<'_>) -> Result<Word, RunError> {
        if !asked.is_changed() {
            return Ok(Word::Agrees);
        }
        let failure = match self.ask_whole(asked, crate::verify::outputs).await {
            Ok(output) => {
                let differs = |why| Word::Differs(format!("the model's outputs differ: {why}"));
                return Ok(output.wrong.map_or(Word::Agrees, differs));
            }
            Err(error) => error,
        };
        if self.cancel.is_cancelled() {
            return Ok(Word::TakenBack);
        }
        // A kernel that takes the worker down with it looks like a machine that fails. With nothing installed only the machine is left.
        let control = match failure {
            VerifyError::Worker(WorkerError::Start(_)) => return Err(failure.into()),
            VerifyError::Worker(_) => {
                let nothing = Asked { what: "the whole model as it was", speedups: &BTreeMap::new(), ..asked };
                self.ask_whole(nothing, crate::verify::outputs).await.map(drop)
            }
            // The model's own files are at fault, and no kernel.
            VerifyError::Model(_) | VerifyError::Op(_) => return Ok(Word::Unknown(failure.to_string())),
        };
        match control {
            Err(_) if self.cancel.is_cancelled() => Ok(Word::TakenBack),
            Err(error @ VerifyError::Worker(WorkerError::Start(_))) => Err(error.into()),
            control => Ok(without_an_answer(&failure.to_string(), control.err().map(|error| error.to_string()))),
        }
    }

    /// The whole model, before and after.
    pub(super) async fn verify(&mut self, pass: Pass) -> Result<Report, RunError> {
        let (kernels, speedups, seed) = (self.both_kernels()?, self.state.speedups(), self.state.seed);
        let what = "the whole model, before and after";
        let asked = Asked { what, pass, kernels: &kernels, speedups: &speedups, throughout: &[], seed };
        Ok(self.ask_whole(asked, crate::verify::verify).await?)
    }

    /// How much faster whole passes are by all that was kept so far; where a pass has the kernels of `throughout` anyway, by the others.
    pub(super) async fn measure_in_model(&mut self, pass: Pass, throughout: &[String]) -> Result<Speedup, RunError> {
        let (kernels, speedups, seed) = (self.both_kernels()?, self.state.speedups(), self.state.seed);
        let what = "the whole model with what was kept";
        let asked = Asked { what, pass, kernels: &kernels, speedups: &speedups, throughout, seed };
        Ok(self.ask_whole(asked, crate::verify::speedup).await?)
    }

    /// The kernel files of the model at the start and now.
    pub(super) fn both_kernels(&self) -> Result<Kernels, RunError> {
        let mut kernels = Kernels { before: BTreeMap::new(), after: BTreeMap::new() };
        for (index, target) in self.state.targets.iter().enumerate() {
            kernels.after.insert(target.op.clone(), self.incumbent(index)?);
            kernels.before.insert(target.op.clone(), target.start_text.clone());
        }
        Ok(kernels)
    }

    /// A file as it stood when the run began; one that was not there then as it is now.
    pub(super) fn begun_file(&self, path: &str) -> Option<String> {
        self.record.tip_text(path).ok().flatten().or_else(|| self.file(path))
    }

    /// Asks a worker until it answers, [`TRIES`] times at the most.
    async fn ask_whole<T>(
        &mut self,
        asked: Asked<'_>,
        ask: impl AsyncFn(
            &mut Client,
            &Question<'_>,
            &dyn Fn(&str) -> Option<String>,
            &CancellationToken,
        ) -> Result<T, VerifyError>,
    ) -> Result<T, VerifyError> {
        let mut tried = 1;
        loop {
            let error = match self.ask_whole_once(asked, &ask).await {
                Err(error) if tried < TRIES && may_pass(&error) && !self.cancel.is_cancelled() => error,
                answer => return answer,
            };
            tried += 1;
            self.trouble(format!("{} is asked about again: {error}", asked.what));
            if !matches!(error, VerifyError::Worker(_)) {
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = self.cancel.cancelled() => {}
                }
            }
        }
    }

    async fn ask_whole_once<T>(
        &mut self,
        asked: Asked<'_>,
        ask: &impl AsyncFn(
            &mut Client,
            &Question<'_>,
            &dyn Fn(&str) -> Option<String>,
            &CancellationToken,
        ) -> Result<T, VerifyError>,
    ) -> Result<T, VerifyError> {
        let config = self.config()?;
        let question = asked.question(&config, &self.state);
        let read = |path: &str| self.begun_file(path);
        let mut worker = self.pool.worker(asked.what).await?;
        let answer = ask(&mut worker, &question, &read, &self.cancel).await;
        if let Err(VerifyError::Worker(error @ (WorkerError::Died(_) | WorkerError::Protocol(_)))) = &answer {
            worker.lost(error);
        }
        answer
    }

    /// The model's configuration as it was when it was first read.
    fn config(&mut self) -> Result<ModelConfig, ModelError> {
        if let Some(config) = &self.config {
            return Ok(config.clone());
        }
        let config = ModelConfig::load(&self.model_dir)?;
        self.config = Some(config.clone());
        Ok(config)
    }
}

impl<'a> Asked<'a> {
    /// Whether any kernel goes in.
    fn is_changed(self) -> bool {
        let change = |(op, vs_user): (&String, &f64)| Change { op: op.clone(), vs_user: *vs_user };
        !choose(&self.speedups.iter().map(change).collect::<Vec<_>>()).installed.is_empty()
    }

    fn question(self, config: &'a ModelConfig, state: &RunState) -> Question<'a> {
        let Self { pass, kernels, speedups, throughout, seed, .. } = self;
        Question {
            config,
            pass,
            before: &kernels.before,
            after: &kernels.after,
            speedups,
            unjudged: &[],
            throughout,
            predicted: state.predicted().map(|(_, ratio)| ratio),
            seed,
        }
    }
}

/// Whether the same question may have an answer the next time: where no worker is left it has none.
const fn may_pass(error: &VerifyError) -> bool {
    match error {
        VerifyError::Worker(WorkerError::Start(_)) => false,
        VerifyError::Worker(error) => !error.is_cancelled(),
        VerifyError::Model(_) | VerifyError::Op(_) => true,
    }
}

/// What is known where the model with a kernel had no answer in any try: the kernel is to blame where the model as it was has one, and
/// nobody where that fails as well (`control` says how).
fn without_an_answer(failure: &str, control: Option<String>) -> Word {
    match control {
        None => Word::Differs(format!("the model does not run, and does without: {failure}")),
        Some(why) => Word::Unknown(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_to_blame_only_where_the_model_runs_without_it() {
        let died = "the worker died: its output ended";
        assert!(matches!(without_an_answer(died, None), Word::Differs(why) if why.contains(died)));
        assert_eq!(without_an_answer(died, Some("no memory".into())), Word::Unknown("no memory".into()));
    }

    #[test]
    fn what_a_machine_or_a_file_does_once_it_need_not_do_again() {
        let worker = |error| may_pass(&VerifyError::Worker(error));
        assert!(worker(WorkerError::Died(String::new())) && worker(WorkerError::machine("no memory")));
        assert!(!worker(WorkerError::cancelled()) && !worker(WorkerError::Start("none is left".into())));
        assert!(may_pass(&VerifyError::Model(ModelError::NotADirectory { path: "model".into() })));
    }
}
