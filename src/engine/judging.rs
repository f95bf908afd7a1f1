//! Asking the workers: for a verdict, and what happens where one dies of it.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::evaluation::{Evaluation, Stage, Verdict};
use crate::harness::{EvaluationTask, Progress};
use crate::worker::WorkerError;
use crate::worker::protocol::Ask;

use super::pool::{Lease, Pool};

/// What whoever asks the workers has to tell meanwhile.
#[derive(Debug)]
pub(super) enum Note {
    /// Where the judge is with an experiment.
    Judging { number: u64, progress: Progress },
    /// Something went wrong that the run survives.
    Trouble(String),
    /// What keeps the agent waiting.
    Waits(String),
    /// The answer on a trial, and how long it was waited for.
    Answer { trial: u64, answer: Box<Answer>, took: Duration },
}

/// What a judge answers.
pub(super) type Answer = Result<Evaluation, WorkerError>;

/// Where notes go.
pub(super) type Notes = UnboundedSender<Note>;

/// Tells a note; a run that has ended hears nothing.
pub(super) fn tell(notes: &Notes, note: Note) {
    drop(notes.send(note));
}

/// A candidate and the number it is shown under.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) number: u64,
    /// Whether it was judged before, and all after it wait for its decision.
    pub(super) again: bool,
    pub(super) task: EvaluationTask,
}

/// Workers that may die of a candidate before it is asked who is to blame: others die of their own accord, or lose their connection.
const DEATHS: u32 = 3;

/// The judge's word on a candidate.
///
/// A worker that dies costs it nothing but time: it is judged again by another, or by the same once it is back. Where several died and
/// the incumbent passes, the candidate is to blame. Where a machine fails once it is asked once more.
///
/// # Errors
/// The machine's, the second time; that no worker is left; that nobody wants the answer any more.
pub(super) async fn verdict(pool: &Pool, question: &Question, notes: &Notes, cancel: &CancellationToken) -> Answer {
    let number = question.number;
    let what = format!("#{number}");
    let (mut deaths, mut failed) = (0, false);
    loop {
        let mut worker = free(pool, &what, question.again || deaths > 0 || failed, cancel).await?;
        let ask = Ask::Evaluate(Box::new(question.task.clone()));
        let mut watch = |progress| tell(notes, Note::Judging { number, progress });
        match worker.ask(ask, &mut watch, cancel).await {
            Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) => {
                worker.lost(&error);
                deaths += 1;
                if deaths == DEATHS {
                    return blame(pool, question, &error, notes, cancel).await;
                }
                tell(notes, Note::Trouble(format!("#{number} is judged again: {error}")));
            }
            Err(error) if error.spares_the_run() && !failed => {
                failed = true;
                tell(notes, Note::Trouble(format!("#{number} is judged again: {error}")));
            }
            answer => return answer,
        }
    }
}

async fn free(pool: &Pool, what: &str, first: bool, cancel: &CancellationToken) -> Result<Lease, WorkerError> {
    let worker = async { if first { pool.worker_first(what).await } else { pool.worker(what).await } };
    tokio::select! {
        worker = worker => worker,
        () = cancel.cancelled() => Err(WorkerError::cancelled()),
    }
}

/// After so many deaths: where the incumbent still passes its smoke test, the candidate is to blame; else the machine.
async fn blame(
    pool: &Pool,
    question: &Question,
    death: &WorkerError,
    notes: &Notes,
    cancel: &CancellationToken,
) -> Answer {
    let not_known = || WorkerError::machine(&format!("{DEATHS} workers died of it, the last one so: {death}"));
    let Some(incumbent) = &question.task.incumbent else { return Err(not_known()) };
    let mut worker = free(pool, &format!("the incumbent of #{}", question.number), true, cancel).await?;
    let task = EvaluationTask { candidate: incumbent.clone(), incumbent: None, ..question.task.clone() };
    let mut watch = |progress| tell(notes, Note::Judging { number: question.number, progress });
    match worker.ask::<Evaluation>(Ask::Smoke(Box::new(task)), &mut watch, cancel).await {
        Ok(smoke) if smoke.verdict == Verdict::Base => {
            let why = format!("it took the judge down with it ({death}); the incumbent still runs");
            Ok(Evaluation { verdict: Verdict::Crash { stage: Stage::Smoke, why }, seed: question.task.seed, ..smoke })
        }
        Ok(_) => Err(not_known()),
        Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) => {
            worker.lost(&error);
            Err(not_known())
        }
        Err(error) => Err(error),
    }
}
