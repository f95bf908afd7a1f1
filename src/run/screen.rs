//! The agent's quick look at ideas, through the worker.

use std::time::Instant;

use tokio_util::sync::CancellationToken;

use crate::agent::{BoxFuture, Brief, Screen, Screened};
use crate::harness::ScreenTask;
use crate::op::OpSource;
use crate::worker::protocol::Ask;
use crate::worker::{Client, WorkerError};

use super::{Run, RunError, RunEvent, Watcher};

/// Screens candidates for one proposal.
pub(super) struct WorkerScreen<'a> {
    worker: &'a mut Client,
    watcher: &'a mut dyn Watcher,
    cancel: CancellationToken,
    op: OpSource,
    brief: &'a Brief,
    number: u64,
    busy_s: f64,
    /// What went wrong and was survived, a sentence each.
    troubles: Vec<String>,
}

impl<'a> WorkerScreen<'a> {
    /// For one proposal; `enough` ends it early.
    pub(super) fn new(
        run: &'a mut Run,
        index: usize,
        brief: &'a Brief,
        enough: CancellationToken,
    ) -> Result<Self, RunError> {
        let op = run.op_source(&run.state.targets[index].op)?;
        Ok(Self {
            worker: run.ratchet.worker(),
            watcher: run.watcher.as_mut(),
            cancel: enough,
            op,
            brief,
            number: run.state.next_experiment,
            busy_s: 0.0,
            troubles: Vec::new(),
        })
    }

    /// Asks the worker about some texts; the answer may end before they do.
    async fn ask(&mut self, texts: &[String]) -> Result<Vec<Option<Screened>>, WorkerError> {
        let task = ScreenTask {
            op: self.op.clone(),
            incumbent: self.brief.incumbent.clone(),
            candidates: texts.to_vec(),
            target: self.brief.shapes.clone(),
            seed: self.brief.seed ^ self.brief.experiment,
        };
        let (watcher, number) = (&mut *self.watcher, self.number);
        let mut watch = |progress| watcher.on(&RunEvent::Judging { number, progress: &progress });
        self.worker.ask(Ask::Screen(Box::new(task)), &mut watch, &self.cancel).await
    }

    /// Seconds the device spent on it, and what went wrong.
    pub(super) fn finish(self) -> (f64, Vec<String>) {
        (self.busy_s, self.troubles)
    }

    fn trouble(&mut self, what: String) {
        self.watcher.on(&RunEvent::Trouble { what: &what });
        self.troubles.push(what);
    }
}

impl Screen for WorkerScreen<'_> {
    fn screen<'b>(&'b mut self, texts: Vec<String>) -> BoxFuture<'b, Vec<Option<Screened>>> {
        Box::pin(async move {
            let count = texts.len();
            let began = Instant::now();
            let mut screened: Vec<Option<Screened>> = Vec::with_capacity(count);
            let answer = loop {
                match self.ask(&texts[screened.len()..]).await {
                    // A candidate that costs the worker its device ends the answer; another worker goes on.
                    Ok(some) if !some.is_empty() && screened.len() + some.len() < count => screened.extend(some),
                    Ok(rest) => {
                        screened.extend(rest);
                        break Ok(screened);
                    }
                    Err(error) => break Err(error),
                }
            };
            self.busy_s += began.elapsed().as_secs_f64();
            match answer {
                Ok(mut screened) => {
                    screened.resize(count, None);
                    screened
                }
                Err(error) => {
                    if matches!(error, WorkerError::Died(_) | WorkerError::Protocol(_))
                        && let Err(again) = self.worker.restart().await
                    {
                        self.trouble(again.to_string());
                    }
                    if !error.is_cancelled() {
                        self.trouble(format!("screening failed: {error}"));
                    }
                    // A screen only chooses among ideas; what took the judge down with it is not worth another try.
                    vec![None; count]
                }
            }
        })
    }

    fn waits(&mut self, what: &str) {
        self.watcher.on(&RunEvent::Trouble { what });
    }
}
