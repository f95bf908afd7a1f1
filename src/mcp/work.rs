//! The run's side: one job after the other.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use super::server::{Asked, Decided, Job, View};
use crate::engine::{Run, RunError};
use crate::worker::WorkerError;

/// Passes on where the judge is to whoever asked the question at hand.
#[derive(Debug, Clone, Default)]
pub struct Feed(Arc<Mutex<Option<mpsc::UnboundedSender<String>>>>);

impl Feed {
    /// Tells whoever listens.
    pub fn tell(&self, where_it_is: String) {
        if let Some(listener) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // One who has gone away hears nothing.
            let _ = listener.send(where_it_is);
        }
    }

    fn turn_to(&self, listener: Option<mpsc::UnboundedSender<String>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = listener;
    }
}

/// Works through the jobs until nobody can send any more, then writes down where the run is.
///
/// # Errors
/// What the run cannot survive; whoever looks at `view` is told too.
pub async fn work(
    run: &mut Run,
    mut jobs: mpsc::Receiver<Job>,
    view: &watch::Sender<View>,
    feed: &Feed,
) -> Result<(), RunError> {
    let show = |run: &Run| drop(view.send_replace(View::Ready(Arc::new(run.state().clone()))));
    show(run);
    while let Some(job) = jobs.recv().await {
        let fatal = match job {
            Job::Evaluate { op, proposal, asked } => {
                let taken_back = asked.cancel.clone();
                let Some(answer) = begin(run, asked, feed) else { continue };
                let judged = run.judge_proposal(&op, *proposal).await;
                if judged.is_err() && taken_back.is_cancelled() {
                    run.withdraw()?;
                }
                show(run);
                let number = run.state().next_experiment - 1;
                let done = run.done_with(&op)?;
                let (told, fatal) = told(judged.map(|evaluation| Decided { number, evaluation, done }));
                drop(answer.send(told));
                fatal
            }
            Job::Finish { asked } => {
                let Some(answer) = begin(run, asked, feed) else { continue };
                run.withdraw()?;
                let summary = run.finish().await.map(|state| state.summary().to_string());
                show(run);
                let (told, fatal) = told(summary);
                drop(answer.send(told));
                fatal
            }
        };
        feed.turn_to(None);
        if let Some(error) = fatal {
            let why = format!("the run cannot go on: {error}");
            view.send_replace(View::Over(why));
            return Err(error);
        }
    }
    if run.state().ended.is_none() { run.pause() } else { Ok(()) }
}

/// Where the answer goes; nowhere, where it is not wanted any more.
fn begin<T>(run: &mut Run, asked: Asked<T>, feed: &Feed) -> Option<tokio::sync::oneshot::Sender<Result<T, String>>> {
    if asked.cancel.is_cancelled() || asked.answer.is_closed() {
        return None;
    }
    run.cancel_with(asked.cancel);
    feed.turn_to(Some(asked.progress));
    Some(asked.answer)
}

/// What the client is told, and the error where the run cannot survive it.
fn told<T>(result: Result<T, RunError>) -> (Result<T, String>, Option<RunError>) {
    match result {
        Ok(answer) => (Ok(answer), None),
        Err(error) => {
            let told = Err(error.to_string());
            (told, (!survives(&error)).then_some(error))
        }
    }
}

/// Whether the next question may have a better answer. After git's errors the history has to be opened anew.
const fn survives(error: &RunError) -> bool {
    matches!(
        error,
        RunError::Nothing(_)
            | RunError::Op(_)
            | RunError::Verify(_)
            | RunError::Worker(WorkerError::Failed { .. } | WorkerError::Died(_))
    )
}
