//! The agent's quick look at ideas, through whichever workers are free.

use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::agent::{BoxFuture, Brief, Screen, Screened};
use crate::harness::ScreenTask;
use crate::op::OpSource;
use crate::worker::WorkerError;
use crate::worker::protocol::Ask;

use super::judging::{Note, Notes, tell};
use super::pool::{Lease, Pool};
use super::{Run, RunError};

/// Screens candidates for one proposal.
pub(super) struct WorkerScreen {
    pool: Pool,
    notes: Notes,
    cancel: CancellationToken,
    /// The question, without candidates.
    task: ScreenTask,
    number: u64,
    busy_s: f64,
}

impl WorkerScreen {
    /// For one proposal; `enough` ends it early.
    pub(super) fn new(run: &Run, index: usize, brief: &Brief, enough: CancellationToken) -> Result<Self, RunError> {
        let op: OpSource = run.op_source(&run.state.targets[index].op)?;
        Ok(Self {
            pool: run.pool.clone(),
            notes: run.notes.clone(),
            cancel: enough,
            task: ScreenTask {
                op,
                incumbent: brief.incumbent.clone(),
                candidates: Vec::new(),
                target: brief.shapes.clone(),
                seed: brief.seed ^ brief.experiment,
            },
            number: run.state.next_experiment,
            busy_s: 0.0,
        })
    }

    /// Seconds that the workers spent on it, each counted by its share of them all.
    pub(super) const fn busy_s(&self) -> f64 {
        self.busy_s
    }

    /// Asks one worker about some texts. What took it down is not worth another try: a screen only chooses among ideas.
    async fn ask(&self, mut worker: Lease, texts: &[String]) -> Vec<Option<Screened>> {
        let mut screened: Vec<Option<Screened>> = Vec::with_capacity(texts.len());
        let number = self.number;
        while screened.len() < texts.len() {
            let candidates = texts[screened.len()..].to_vec();
            let ask = Ask::Screen(Box::new(ScreenTask { candidates, ..self.task.clone() }));
            let mut watch = |progress| tell(&self.notes, Note::Judging { number, progress });
            match worker.ask::<Vec<Option<Screened>>>(ask, &mut watch, &self.cancel).await {
                // A candidate that costs the worker its device ends the answer; another worker goes on.
                Ok(some) if !some.is_empty() => screened.extend(some),
                Ok(_) => break,
                Err(error) => {
                    if !error.is_cancelled() {
                        tell(&self.notes, Note::Trouble(format!("screening failed: {error}")));
                    }
                    if matches!(error, WorkerError::Died(_) | WorkerError::Protocol(_)) {
                        worker.lost(&error);
                    }
                    return vec![None; texts.len()];
                }
            }
        }
        screened.resize(texts.len(), None);
        screened
    }
}

impl Screen for WorkerScreen {
    fn screen<'b>(&'b mut self, texts: Vec<String>) -> BoxFuture<'b, Vec<Option<Screened>>> {
        Box::pin(async move {
            let what = format!("ideas for #{}", self.number);
            let mut workers = match self.pool.worker(&what).await {
                Ok(worker) => vec![worker],
                Err(error) => {
                    tell(&self.notes, Note::Trouble(format!("screening failed: {error}")));
                    return vec![None; texts.len()];
                }
            };
            while workers.len() < texts.len()
                && let Some(another) = self.pool.free_worker(&what)
            {
                workers.push(another);
            }
            let began = Instant::now();
            let (count, all) = (workers.len(), self.pool.len().max(1));
            let each = texts.len().div_ceil(count).max(1);
            let asked = workers.into_iter().zip(texts.chunks(each)).map(|(worker, texts)| self.ask(worker, texts));
            let screened = futures_util::future::join_all(asked).await.concat();
            self.busy_s += began.elapsed().as_secs_f64() * count as f64 / all as f64;
            screened
        })
    }

    fn waits(&mut self, what: &str) {
        tell(&self.notes, Note::Waits(what.to_owned()));
    }
}
