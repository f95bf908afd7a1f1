//! The agent that asks a language model behind any OpenAI-compatible endpoint.
//!
//! Several requests are in flight at once, each with a direction of its own. What fails on the way is retried for
//! minutes; where it fails for good again and again, the built-in tuner stands in until the endpoint is back.
//! Nothing that a model or a server says decides anything: a reply becomes a candidate's text or nothing.

mod ask;
mod breaker;
mod check;
mod completion;
mod conversation;
mod direction;
mod endpoint;
mod failure;
mod meter;
mod pool;
mod prices;
mod retry;
mod secret;
mod session;
mod settings;
mod state;

use std::sync::Arc;

use serde_json::Value;

use self::endpoint::Endpoint;
use self::pool::Pool;
use self::session::Session;
use self::state::State;
use super::transcript::Transcript;
use super::tuner::Tuner;
use super::{Agent, AgentError, BoxFuture, Brief, Failed, MOST_REPAIRS, Offer, Outcome, Proposal, Screen, Usage};

pub use ask::Ask;
pub use check::check;
pub use failure::Kind;
pub use prices::{Price, PriceTable};
pub use secret::Secret;
pub use settings::{CONTEXT_TOKENS, OPENAI, Settings, weighted};

/// Who a proposal of the tuner's is by.
pub const TUNER: &str = "tuner";

/// Why the agent cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LanguageError {
    /// A setting that cannot be used.
    #[error("{0}")]
    Setting(String),
    /// The endpoint does not answer as it should.
    #[error("{sentence}")]
    Endpoint {
        /// What is wrong, and what to do about it.
        sentence: String,
        /// In which way.
        kind: Kind,
    },
}

/// Asks a language model.
pub struct Language {
    session: Arc<Session>,
    pool: Pool,
    tuner: Tuner,
    /// The sentence of the last request that failed for good.
    last_failure: String,
    /// The incumbent for which the tuner has nothing left, and why.
    tuner_is_done: Option<(String, String)>,
    state: State,
}

impl Language {
    /// An agent that has asked nothing.
    ///
    /// # Errors
    /// [`LanguageError::Setting`], where no connection could be made at all.
    pub fn new(settings: Settings, transcript: Transcript, prompt: Box<dyn Ask>) -> Result<Self, LanguageError> {
        let endpoint = Endpoint::new(&settings)?;
        Ok(Self::of(Arc::new(Session::new(endpoint, settings, prompt, transcript))))
    }

    /// Another one, for another target. What was learnt of the endpoint stays: what its models do not know, how long
    /// their context is, and whether it is there at all.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self::of(Arc::clone(&self.session))
    }

    fn of(session: Arc<Session>) -> Self {
        Self {
            pool: Pool::new(session.settings.proposals),
            session,
            tuner: Tuner::new(),
            last_failure: "the endpoint was away before".to_owned(),
            tuner_is_done: None,
            state: State::default(),
        }
    }

    async fn next(&mut self, brief: &Brief, screen: &mut dyn Screen) -> Result<Offer, AgentError> {
        loop {
            self.take_in();
            self.top_up(brief);
            if let Some(offer) = self.finished(brief) {
                // Its place is taken at once, while the device works on it. Only where one place is all there is, the
                // next question waits for the verdict, and is the better for it.
                if self.session.settings.proposals > 1 {
                    self.top_up(brief);
                }
                return Ok(offer);
            }
            if !self.session.breaker().is_away() {
                self.wait_for_a_request(screen).await;
                continue;
            }
            if self.tuner_has_ideas(brief) {
                match self.tuner.propose(brief, screen).await? {
                    Offer::Proposal(proposal) => return Ok(Offer::Proposal(self.stand_in(proposal))),
                    Offer::Exhausted { why } => self.tuner_is_done = Some((state::fingerprint(&brief.incumbent), why)),
                    Offer::GivenUp { .. } => {}
                }
                continue;
            }
            if self.pool.is_idle() && self.session.breaker().is_hopeless() {
                let tuner = self.tuner_is_done.as_ref().map(|(_, why)| why.as_str()).unwrap_or_default();
                return Ok(Offer::Exhausted { why: format!("{}; the tuner: {tuner}", self.last_failure) });
            }
            self.wait_for_return(screen).await;
        }
    }

    fn tuner_has_ideas(&self, brief: &Brief) -> bool {
        let done = self.tuner_is_done.as_ref();
        done.is_none_or(|(incumbent, _)| *incumbent != state::fingerprint(&brief.incumbent))
    }

    /// The tuner's proposal as one of this agent's.
    fn stand_in(&mut self, proposal: Proposal) -> Proposal {
        self.state.tuned(&proposal.text);
        Proposal { by: Some(TUNER.to_owned()), ticket: self.state.ticket(), ..proposal }
    }

    /// Waits until a request ends, and says meanwhile what it waits for.
    async fn wait_for_a_request(&mut self, screen: &mut dyn Screen) {
        loop {
            tokio::select! {
                () = self.pool.wait() => return,
                what = self.session.meter.hear() => screen.waits(&what),
            }
        }
    }

    /// Waits until a request ends, or until the endpoint may be asked again.
    async fn wait_for_return(&mut self, screen: &mut dyn Screen) {
        let again_at = self.session.breaker().again_at();
        let pause = again_at.map(|at| self.session.settings.scaled(at.saturating_sub(self.session.now())));
        match pause {
            None => self.wait_for_a_request(screen).await,
            Some(pause) if self.pool.is_idle() => tokio::time::sleep(pause).await,
            Some(pause) => {
                tokio::select! {
                    () = self.wait_for_a_request(screen) => {}
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }
}

impl Drop for Language {
    fn drop(&mut self) {
        // Its requests end with it, the one that looks whether the endpoint is back among them.
        self.session.breaker().leave();
    }
}

impl Agent for Language {
    fn name(&self) -> &str {
        "openai"
    }

    fn propose<'a>(
        &'a mut self,
        brief: &'a Brief,
        screen: &'a mut dyn Screen,
    ) -> BoxFuture<'a, Result<Offer, AgentError>> {
        Box::pin(self.next(brief, screen))
    }

    fn learn(&mut self, outcome: &Outcome) {
        // A model may write a text with the tunables of a setting that the tuner knows, around other code: what it took
        // would be learnt of the wrong kernel.
        if self.state.was_tuned(&outcome.text) {
            self.tuner.learn(outcome);
        }
    }

    fn mend(&mut self, failed: &Failed) -> bool {
        failed.verdict.is_failure()
            && failed.proposal.repairs < MOST_REPAIRS
            && !self.session.breaker().is_away()
            && self.pool.mend(failed)
    }

    fn usage(&mut self) -> Usage {
        self.session.meter.drain()
    }

    fn spent_on(&mut self, ticket: u64) -> Usage {
        self.session.meter.take(self.pool.op(), ticket)
    }

    fn save(&self) -> Value {
        self.state.save(&self.tuner)
    }

    fn restore(&mut self, saved: &Value) -> Result<(), AgentError> {
        let unreadable = |why: String| AgentError::State { agent: "openai".to_owned(), why };
        let (state, tuner) = State::restore(saved).map_err(|error| unreadable(error.to_string()))?;
        self.tuner.restore(&tuner)?;
        self.state = state;
        Ok(())
    }
}
