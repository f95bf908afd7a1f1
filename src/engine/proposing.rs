//! Asking the agent, for as long as the rules allow.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::agent::{Agent, Offer};

use super::screen::WorkerScreen;
use super::stop::Moment;
use super::{Run, RunError, RunEvent};

/// Whoever is asked hears that it is enough, and may still answer within this time.
const GRACE: Duration = Duration::from_millis(500);

impl Run {
    /// What the agent offers for a target; `None` where the time was up, or the user's patience.
    pub(super) async fn ask_agent(&mut self, index: usize, agent: &mut dyn Agent) -> Result<Option<Offer>, RunError> {
        let brief = self.brief(index)?;
        self.watcher.on(&RunEvent::Proposing);
        let enough = self.cancel.child_token();
        let alarm = self.alarm(index, &enough);
        let mut screen = WorkerScreen::new(self, index, &brief, enough.clone())?;
        let offer = {
            let late = async {
                enough.cancelled().await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::pin!(late);
            let proposing = agent.propose(&brief, &mut screen);
            tokio::pin!(proposing);
            loop {
                tokio::select! {
                    offer = &mut proposing => break Some(offer),
                    () = &mut late => break None,
                    // Verdicts that land meanwhile are taken in order afterwards.
                    () = self.listen() => {}
                }
            }
        };
        if let Some(alarm) = alarm {
            alarm.abort();
        }
        self.state.busy_s += screen.busy_s();
        self.take_bill(agent);
        Ok(offer.transpose()?)
    }

    /// Calls `enough` when the first limit of run or target is reached.
    fn alarm(&mut self, index: usize, enough: &CancellationToken) -> Option<tokio::task::JoinHandle<()>> {
        self.tick();
        let run = Duration::try_from_secs_f64(self.state.elapsed_s).unwrap_or_default();
        let target = self.state.targets[index].progress.spent;
        let left = self.state.rules.time_left(run, target, Moment(jiff::Timestamp::now()))?;
        let enough = enough.clone();
        Some(tokio::spawn(async move {
            tokio::time::sleep(left).await;
            enough.cancel();
        }))
    }

    /// Adds what the agent used to the run's account, and passes on what went wrong.
    pub(super) fn take_bill(&mut self, agent: &mut dyn Agent) {
        let usage = agent.usage();
        self.state.usage.add(&usage);
        usage.troubles.into_iter().for_each(|what| self.trouble(what));
    }
}
