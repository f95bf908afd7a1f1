//! One candidate: judged, recorded, kept or discarded. Used by the run, and by whoever else drives the ratchet.

mod describe;

use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::defence::weakened;
use crate::evaluation::{Evaluation, Stage, Verdict};
use crate::harness::{EvaluationTask, Precision, Progress};
use crate::history::{Entries, Entry, History, HistoryError, Order, Pending, Row};
use crate::kernel::KernelFile;
use crate::op::{OpSource, TargetShape};
use crate::worker::protocol::Ask;
use crate::worker::{Client, WorkerError};

pub use describe::{body, ledger_description, one_line, subject, trailers};

/// Why a candidate could not be judged or recorded.
#[derive(Debug, thiserror::Error)]
pub enum RatchetError {
    /// Git, the journal or the ledger.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// Something that does not fit into JSON.
    #[error("the record cannot be written: {0}")]
    State(String),
    /// This program is not one that may keep anything.
    #[error("{0}")]
    Weakened(&'static str),
}

/// A candidate with everything its judging and its record need.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// Its number in the run.
    pub number: u64,
    /// The kernel file it replaces, below the workspace.
    pub file: String,
    /// Its text.
    pub text: String,
    /// The technique's identifier.
    pub technique: String,
    /// What it tries, in a few words.
    pub description: String,
    /// Who proposed it.
    pub agent: String,
    /// What it must beat; `None` for a starting point.
    pub incumbent: Option<String>,
    /// What the user has today.
    pub baseline: Option<String>,
    /// The operation.
    pub op: OpSource,
    /// The timed shapes.
    pub target: Vec<TargetShape>,
    /// How finely the target is measured, where it is known.
    pub precision: Option<Precision>,
    /// Seconds that the second tier may take, should it be kept.
    pub examination_s: f64,
    /// For simplifications; see [`EvaluationTask`].
    pub branch_over_best: Option<f64>,
    /// Its seed.
    pub seed: u64,
    /// What whoever proposed it wants back after an interruption.
    pub meta: Value,
    /// What its author said of it and what it cost, for the journal; null where there is nothing to tell.
    pub story: Value,
}

impl Experiment {
    fn task(&self) -> EvaluationTask {
        EvaluationTask {
            op: self.op.clone(),
            candidate: self.text.clone(),
            incumbent: self.incumbent.clone(),
            baseline: self.baseline.clone(),
            target: self.target.clone(),
            seed: self.seed,
            precision: self.precision,
            look: false,
            examination_s: if self.incumbent.is_some() { self.examination_s } else { 0.0 },
            branch_over_best: self.branch_over_best,
        }
    }
}

/// Asks a worker for a verdict, and writes nothing down.
///
/// # Errors
/// The machine's; a candidate that takes the judge down with it is a verdict.
pub async fn verdict(
    worker: &mut Client,
    experiment: &Experiment,
    watch: &mut (dyn FnMut(Progress) + Send),
    cancel: &CancellationToken,
) -> Result<Evaluation, WorkerError> {
    let ask = Ask::Evaluate(Box::new(experiment.task()));
    match worker.ask(ask, watch, cancel).await {
        Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) => {
            blame(worker, experiment, error, watch, cancel).await
        }
        answer => answer,
    }
}

/// After the worker's death: where the incumbent still passes its smoke test, the candidate is to blame.
async fn blame(
    worker: &mut Client,
    experiment: &Experiment,
    death: WorkerError,
    watch: &mut (dyn FnMut(Progress) + Send),
    cancel: &CancellationToken,
) -> Result<Evaluation, WorkerError> {
    worker.restart().await?;
    let Some(incumbent) = &experiment.incumbent else { return Err(death) };
    let task = EvaluationTask { candidate: incumbent.clone(), incumbent: None, ..experiment.task() };
    let smoke: Evaluation = worker.ask(Ask::Smoke(Box::new(task)), watch, cancel).await?;
    if smoke.verdict != Verdict::Base {
        return Err(death);
    }
    let why = format!("it took the judge down with it ({death}); the incumbent still runs");
    Ok(Evaluation { verdict: Verdict::Crash { stage: Stage::Smoke, why }, seed: experiment.seed, ..smoke })
}

/// The judge and the record together.
pub struct Ratchet {
    worker: Client,
    history: History,
    pending: Option<Pending>,
}

impl Ratchet {
    /// A ratchet over an open history; `pending` is what an interruption left undecided.
    #[must_use]
    pub const fn new(worker: Client, history: History, pending: Option<Pending>) -> Self {
        Self { worker, history, pending }
    }

    /// The worker, for questions that are not experiments.
    pub const fn worker(&mut self) -> &mut Client {
        &mut self.worker
    }

    /// The device it judges on.
    #[must_use]
    pub const fn device(&self) -> &crate::device::DeviceCard {
        self.worker.device()
    }

    /// The undecided experiment, once.
    pub fn take_pending(&mut self) -> Option<Pending> {
        self.pending.take()
    }

    /// The run's folder below `.warpsmith`, which may not be there yet.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.history.folder()
    }

    /// Where a candidate for a kernel file is while it is written and evaluated.
    #[must_use]
    pub fn candidate_path(&self, file: &str) -> std::path::PathBuf {
        self.history.candidate_path(file)
    }

    /// The text of a file at the branch's tip.
    ///
    /// # Errors
    /// Git.
    pub fn tip_text(&self, file: &str) -> Result<Option<String>, RatchetError> {
        Ok(self.history.tip_text(file)?)
    }

    /// Writes the candidate down as pending and asks for a verdict.
    ///
    /// # Errors
    /// Git and the machine; a candidate that takes the judge down with it is a verdict.
    pub async fn judge(
        &mut self,
        experiment: &Experiment,
        watch: &mut (dyn FnMut(Progress) + Send),
        cancel: &CancellationToken,
    ) -> Result<Evaluation, RatchetError> {
        self.history.begin_experiment(&Pending {
            number: experiment.number,
            path: experiment.file.clone(),
            text: experiment.text.clone(),
            seed: experiment.seed,
            meta: experiment.meta.clone(),
        })?;
        Ok(verdict(&mut self.worker, experiment, watch, cancel).await?)
    }

    /// Forgets an experiment that was begun and will never be judged.
    ///
    /// # Errors
    /// The file system.
    pub fn withdraw(&self, file: &str) -> Result<(), RatchetError> {
        Ok(self.history.withdraw(file)?)
    }

    /// Writes a judged experiment into journal, branch and ledger, in the order that survives a kill.
    ///
    /// # Errors
    /// Git and the file system.
    pub fn record<S: Serialize>(
        &mut self,
        experiment: &Experiment,
        evaluation: &Evaluation,
        state: &S,
    ) -> Result<(), RatchetError> {
        let json = |value: serde_json::Result<Value>| value.map_err(|error| RatchetError::State(error.to_string()));
        let timing = evaluation.timing.as_ref();
        let speedup = evaluation.verdict.speedup();
        let order_free = KernelFile::parse(&experiment.text).is_ok_and(|kernel| kernel.front.order_free);
        self.history.record(Entry {
            number: experiment.number,
            path: experiment.file.clone(),
            candidate_text: experiment.text.clone(),
            keep: self.moves_branch(experiment, evaluation)?,
            subject: subject(&experiment.op.name, &experiment.description, evaluation),
            body: body(evaluation),
            trailers: trailers(experiment.number, &experiment.technique, &experiment.agent, evaluation),
            row: Row {
                time: jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S").to_string(),
                status: evaluation.verdict.status().to_owned(),
                speedup: speedup.map(|speedup| speedup.ratio),
                low: speedup.map(|speedup| speedup.low),
                vs_user: evaluation.vs_user,
                us: timing.map(|timing| timing.latency_us),
                roof_pct: timing.map(|timing| timing.roofline_pct),
                stage: evaluation.verdict.stage().to_string(),
                op: evaluation.op.clone(),
                backend: evaluation.backend.clone(),
                technique: one_line(&experiment.technique),
                description: ledger_description(&experiment.description, evaluation, order_free),
                // Filled in where the candidate's commit is known.
                ..Row::default()
            },
            evaluation: with_story(json(serde_json::to_value(evaluation))?, &experiment.story),
            state: json(serde_json::to_value(state))?,
        })?;
        Ok(())
    }

    /// A keep moves the branch; a starting point only where the branch does not have it yet.
    fn moves_branch(&self, experiment: &Experiment, evaluation: &Evaluation) -> Result<bool, RatchetError> {
        Ok(match evaluation.verdict {
            Verdict::Keep { .. } => match weakened() {
                Some(why) => return Err(RatchetError::Weakened(why)),
                None => true,
            },
            Verdict::Withdrawn { .. } => true,
            Verdict::Base => self.history.tip_text(&experiment.file)?.as_ref() != Some(&experiment.text),
            _ => false,
        })
    }

    /// The experiments of the run, the newest first.
    ///
    /// # Errors
    /// Git.
    pub fn newest_first(&self) -> Result<Entries, RatchetError> {
        Ok(self.history.entries(Order::NewestFirst)?)
    }

    /// The text of a file in an experiment's commit.
    ///
    /// # Errors
    /// Git.
    pub fn text_in(&self, commit: &str, file: &str) -> Result<Option<String>, RatchetError> {
        Ok(self.history.archive().text(commit, file)?)
    }

    /// Writes down a state that belongs to no experiment: how a run ended.
    ///
    /// # Errors
    /// Git.
    pub fn checkpoint<S: Serialize>(&mut self, state: &S) -> Result<(), RatchetError> {
        let state = serde_json::to_value(state).map_err(|error| RatchetError::State(error.to_string()))?;
        Ok(self.history.checkpoint(state)?)
    }
}

/// The name in an experiment's entry of the journal under which the proposal's story stands.
pub const STORY: &str = "proposal";

fn with_story(mut evaluation: Value, story: &Value) -> Value {
    if let (Some(entry), false) = (evaluation.as_object_mut(), story.is_null()) {
        entry.insert(STORY.to_owned(), story.clone());
    }
    evaluation
}
