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
    /// Whether it is what a target starts from, rather than someone's proposal.
    pub(super) is_start: bool,
    pub(super) task: EvaluationTask,
}

/// Workers that may die of a candidate before it is asked who is to blame: others die of their own accord, or lose their connection.
const DEATHS: u64 = 3;

/// Whether so many deaths with a candidate speak against it, where `others` died meanwhile with other candidates: workers that are killed
/// from outside die with whatever they have. Twice as many are too many for chance.
const fn is_suspect(deaths: u64, others: u64) -> bool {
    deaths >= DEATHS && (deaths > 2 * others || deaths >= 2 * DEATHS)
}

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
    let lost_before = pool.lost();
    loop {
        let mut worker = free(pool, &what, question.again || deaths > 0 || failed, cancel).await?;
        let ask = Ask::Evaluate(Box::new(question.task.clone()));
        let mut watch = |progress| tell(notes, Note::Judging { number, progress });
        match worker.ask(ask, &mut watch, cancel).await {
            Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) => {
                worker.lost(&error);
                deaths += 1;
                if is_suspect(deaths, pool.lost().saturating_sub(lost_before + deaths)) {
                    return blame(pool, question, (deaths, &error), notes, cancel).await;
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

/// After so many deaths: where the incumbent still passes its smoke test, the candidate is to blame; else the machine. Where there is no
/// incumbent yet, a proposal is held to blame.
async fn blame(
    pool: &Pool,
    question: &Question,
    (deaths, death): (u64, &WorkerError),
    notes: &Notes,
    cancel: &CancellationToken,
) -> Answer {
    let not_known = || WorkerError::machine(&format!("{deaths} workers died of it, the last one so: {death}"));
    let Some(incumbent) = &question.task.incumbent else {
        // With a starting point nobody knows what else is wrong. A candidate is not to end the target for those after it.
        if question.is_start {
            return Err(not_known());
        }
        let why = format!(
            "it took the judge down with it, {deaths} times ({death}), and there is no kernel yet that runs here"
        );
        return Ok(Evaluation {
            verdict: Verdict::Crash { stage: Stage::Smoke, why },
            ..Evaluation::unjudged(&question.task.op.name, &pool.device().backend, String::new(), question.task.seed)
        });
    };
    let task = EvaluationTask { candidate: incumbent.clone(), incumbent: None, ..question.task.clone() };
    let mut watch = |progress| tell(notes, Note::Judging { number: question.number, progress });
    for _ in 0..DEATHS {
        let mut worker = free(pool, &format!("the incumbent of #{}", question.number), true, cancel).await?;
        match worker.ask::<Evaluation>(Ask::Smoke(Box::new(task.clone())), &mut watch, cancel).await {
            Ok(smoke) if smoke.verdict == Verdict::Base => {
                let why = format!("it took the judge down with it ({death}); the incumbent still runs");
                let verdict = Verdict::Crash { stage: Stage::Smoke, why };
                return Ok(Evaluation { verdict, seed: question.task.seed, ..smoke });
            }
            Ok(_) => return Err(not_known()),
            Err(error @ (WorkerError::Died(_) | WorkerError::Protocol(_))) => worker.lost(&error),
            Err(error) => return Err(error),
        }
    }
    Err(not_known())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_is_suspect_where_workers_die_with_it_and_not_with_others() {
        assert!(!is_suspect(2, 0) && is_suspect(3, 0) && is_suspect(3, 1));
        assert!(!is_suspect(3, 2) && !is_suspect(5, 9) && is_suspect(5, 2));
        assert!(is_suspect(6, 40), "two that kill their workers are both found in the end");
    }
}
