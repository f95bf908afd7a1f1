//! Requests as they are really made: retried, billed, written down.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Settings;
use super::ask::Ask;
use super::breaker::CircuitBreaker;
use super::completion::{Completion, TokenCount, tokens};
use super::endpoint::{Answer, Endpoint, Manner, role_name};
use super::failure::{Failure, Kind};
use super::meter::Meter;
use super::retry::{self, Attempts, Step};
use crate::agent::Usage;
use crate::agent::prompt::Message;
use crate::agent::transcript::{Said, Transcript};
use crate::rng::Stream;

/// A message longer than this is written down once, in bytes.
const SAID_ONCE: usize = 1024;

/// Whoever watches is told why nothing comes, once attempts in vain and pauses have taken so long.
const WORTH_SAYING: Duration = Duration::from_secs(5);

/// What all requests share.
pub struct Session {
    /// Where they go.
    pub endpoint: Endpoint,
    /// How.
    pub settings: Settings,
    /// Who words them.
    pub prompt: Box<dyn Ask>,
    /// What they used.
    pub meter: Meter,
    transcript: Transcript,
    /// Whether the endpoint is there.
    breaker: Mutex<CircuitBreaker>,
    began: Instant,
    /// What each model's server was found to do without.
    manners: Mutex<BTreeMap<String, Manner>>,
    /// Hashes of long messages that were written down.
    written: Mutex<BTreeSet<String>>,
}

/// Who asks what for.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The operation.
    pub op: &'a str,
    /// The proposal.
    pub ticket: u64,
    /// The model.
    pub model: &'a str,
}

impl Session {
    /// A session that has asked nothing.
    pub fn new(endpoint: Endpoint, settings: Settings, prompt: Box<dyn Ask>, transcript: Transcript) -> Self {
        Self {
            endpoint,
            settings,
            prompt,
            meter: Meter::default(),
            transcript,
            breaker: Mutex::default(),
            began: Instant::now(),
            manners: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Whether the endpoint is there.
    pub fn breaker(&self) -> MutexGuard<'_, CircuitBreaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nominal time since the session began: pauses that are slept short count in full.
    pub fn now(&self) -> Duration {
        let seconds = self.began.elapsed().as_secs_f64() / self.settings.time_scale;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// A reply that has text, after as many attempts as it takes and patience allows.
    ///
    /// # Errors
    /// The last attempt's failure.
    pub async fn request(&self, subject: Subject<'_>, messages: &[Message]) -> Result<Completion, Failure> {
        let Subject { op, ticket, model } = subject;
        let prompt = self.for_the_record(messages);
        self.transcript.say(Said::Asked { op: op.to_owned(), ticket, to: model.to_owned(), prompt });
        let bytes: usize = messages.iter().map(|message| message.text.len()).sum();
        let jitter = Stream::new(ticket, model);
        let mut elapsed = Duration::ZERO;
        let mut before: Vec<Failure> = Vec::new();
        let mut wait = self.meter.wait();
        loop {
            let began = Instant::now();
            let answer = self.endpoint.ask(model, messages, &self.manner(model)).await;
            let wall = began.elapsed();
            elapsed += wall;
            let usage = self.charge(subject, bytes, &answer, wall);
            let outcome = answer.outcome.and_then(|reply| reply.check().map(|()| reply));
            let (tokens, failed) = (usage.tokens(), outcome.is_err());
            tracing::info!(model, ticket, took_s = wall.as_secs_f64(), tokens, failed, "a language model answers");
            let text = match &outcome {
                Ok(reply) => reply.text.clone(),
                Err(failure) => failure.sentence(&self.settings.host(), model),
            };
            let failed = outcome.is_err();
            self.transcript.say(Said::Answered { op: op.to_owned(), ticket, text, failed, usage });
            let failure = match outcome {
                Ok(reply) => {
                    if let Some(first) = before.first() {
                        let attempt = before.len() + 1;
                        let fact = first.fact(&self.settings.host(), model);
                        self.meter.trouble(format!("{fact}: answered at attempt {attempt}"));
                    }
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            if let Kind::Parameter(name) = &failure.kind
                && self.do_without(model, name)
            {
                continue;
            }
            let alike = before.iter().filter(|b| discriminant(&b.kind) == discriminant(&failure.kind)).count() + 1;
            let attempts = Attempts {
                failed: before.len() as u32 + 1,
                alike: alike as u32,
                elapsed,
                retry_after: failure.retry_after,
            };
            let jitter = jitter.uniform(before.len() as u64);
            match retry::next(&failure.kind, attempts, self.settings.patience, jitter) {
                Step::GiveUp => return Err(failure),
                Step::Wait(pause) => {
                    elapsed += pause;
                    if elapsed >= WORTH_SAYING {
                        let fact = failure.fact(&self.settings.host(), model);
                        wait.is_for(format!("{fact}: asking again, for up to {} s", self.settings.patience.as_secs()));
                    }
                    before.push(failure);
                    tokio::time::sleep(self.settings.scaled(pause)).await;
                }
            }
        }
    }

    /// Tokens that a model reads and writes together, as far as is known by now.
    pub fn context(&self, model: &str) -> usize {
        self.manner(model).context.unwrap_or_else(|| self.settings.context(model))
    }

    /// Takes note that `model` refused messages of so many tokens: `false` where the context cannot be taken for shorter.
    pub fn shorten(&self, model: &str, limit: Option<usize>, sent: usize) -> bool {
        // Without a figure from the server, or with one that would change nothing, a good part less than was sent.
        let guessed = (sent as f64 * 0.7) as usize;
        let shorter = limit.filter(|limit| *limit < self.context(model)).unwrap_or(guessed);
        if shorter >= self.context(model) || shorter < 512 {
            return false;
        }
        self.change_manner(model, |manner| manner.context = Some(shorter));
        self.meter
            .note(format!("the context of {model} is shorter than was thought: prompts are kept to {shorter} tokens"));
        true
    }

    fn manner(&self, model: &str) -> Manner {
        self.manners.lock().unwrap_or_else(PoisonError::into_inner).get(model).cloned().unwrap_or_default()
    }

    fn change_manner<T>(&self, model: &str, change: impl FnOnce(&mut Manner) -> T) -> T {
        let mut manners = self.manners.lock().unwrap_or_else(PoisonError::into_inner);
        change(manners.entry(model.to_owned()).or_default())
    }

    /// Leaves a parameter out from now on: `false` where it was left out already, so that leaving it out cannot help.
    fn do_without(&self, model: &str, name: &str) -> bool {
        let new = self.change_manner(model, |manner| manner.without.insert(name.to_owned()));
        if new {
            self.meter.note(format!("{model} does not know `{name}`; it is asked without"));
        }
        new
    }

    /// Bills one attempt. What the server does not count is estimated from lengths.
    fn charge(&self, subject: Subject<'_>, bytes: usize, answer: &Answer, wall: Duration) -> Usage {
        let Subject { op, ticket, model } = subject;
        let counted = answer.outcome.as_ref().ok().and_then(|reply| reply.usage);
        let answered = answer.outcome.is_ok() || answer.written > 0;
        let usage = match counted {
            Some(usage) => usage,
            None if answered => TokenCount { tokens_in: tokens(bytes), tokens_out: tokens(answer.written) },
            None => TokenCount { tokens_in: 0, tokens_out: 0 },
        };
        if counted.is_none() && answer.outcome.is_ok() {
            let host = self.settings.host();
            self.meter
                .note(format!("{host} does not count tokens: those of {model} are estimated from its texts' length"));
        }
        let cost = self.settings.prices.cost(model, usage.tokens_in, usage.tokens_out);
        if cost.is_none() && answered {
            self.meter.note(format!(
                "no price is known for {model}: it counts as free; add a row `[[prices]]` to warpsmith.toml"
            ));
        }
        let usage = Usage {
            requests: u64::from(answered),
            tokens_in: usage.tokens_in,
            tokens_out: usage.tokens_out,
            cost_usd: cost.unwrap_or_default(),
            wall_s: wall.as_secs_f64(),
            troubles: Vec::new(),
        };
        self.meter.add(op, ticket, &usage);
        usage
    }

    /// Messages for the transcript: long ones that were written down before are named by their hash.
    fn for_the_record(&self, messages: &[Message]) -> Value {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |message: &Message| {
            let role = role_name(message.role);
            if message.text.len() <= SAID_ONCE {
                return json!({"role": role, "text": self.settings.api_key.redact(&message.text)});
            }
            let hash = super::state::fingerprint(&message.text);
            if written.insert(hash.clone()) {
                json!({"role": role, "id": hash, "text": self.settings.api_key.redact(&message.text)})
            } else {
                json!({"role": role, "same_as": hash})
            }
        };
        Value::Array(messages.iter().map(line).collect())
    }
}
