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
    Answer { trial: u64, answer: Answer, took: Duration },
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
    pub(super) task: EvaluationTask,
}

/// The judge's word on a candidate.
///
/// A worker that dies costs it nothing but time: it is judged again by another, or by the same once it is back. Where a second one dies
/// and the incumbent passes there, the candidate is to blame. Where a machine fails once it is asked once more.
///
/// # Errors
/// The machine's, the second time; that no worker is left; that nobody wants the answer any more.
pub(super) async fn verdict(pool: &Pool, question: &Question, notes: &Notes, cancel: &CancellationToken) -> Answer {
    let number = question.number;
    let what = format!("#{number}");
    let (mut died, mut failed) = (false, false);
    loop {
        let mut worker = tokio::select! {
            worker = pool.worker(&what) => worker?,
            () = cancel.cancelled() => return Err(WorkerError::cancelled()),
        };
        let ask = Ask::Evaluate(Box::new(question.task.clone()));
        let mut watch = |progress| tell(notes, Note::Judging { number, progress });
        match worker.ask(ask, &mut watch, cancel).await {
            Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) if !died => {
                died = true;
                tell(notes, Note::Trouble(format!("#{number} is judged again: {error}")));
                worker.lost(&error);
            }
            Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) => {
                worker.lost(&error);
                return blame(pool, question, error, notes, cancel).await;
            }
            Err(error) if error.spares_the_run() && !failed => {
                failed = true;
                tell(notes, Note::Trouble(format!("#{number} is judged again: {error}")));
            }
            answer => return answer,
        }
    }
}

/// After the second death: where the incumbent still passes its smoke test, the candidate is to blame.
async fn blame(
    pool: &Pool,
    question: &Question,
    death: WorkerError,
    notes: &Notes,
    cancel: &CancellationToken,
) -> Answer {
    let Some(incumbent) = &question.task.incumbent else { return Err(death) };
    let mut worker: Lease = pool.worker(&format!("the incumbent of #{}", question.number)).await?;
    let task = EvaluationTask { candidate: incumbent.clone(), incumbent: None, ..question.task.clone() };
    let mut watch = |progress| tell(notes, Note::Judging { number: question.number, progress });
    let smoke: Evaluation = worker.ask(Ask::Smoke(Box::new(task)), &mut watch, cancel).await?;
    if smoke.verdict != Verdict::Base {
        return Err(death);
    }
    let why = format!("it took the judge down with it ({death}); the incumbent still runs");
    Ok(Evaluation { verdict: Verdict::Crash { stage: Stage::Smoke, why }, seed: question.task.seed, ..smoke })
}
