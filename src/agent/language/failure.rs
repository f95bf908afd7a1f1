//! What can go wrong with a request, told from status and body, and said in a sentence.

mod body;
mod classify;

use std::time::Duration;

pub use body::Body;
pub use classify::{OPTIONAL, SYSTEM, retry_after, told};

/// Characters of a server's own words in a sentence.
const SERVERS_WORDS: usize = 200;

/// A way in which a request fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// No connection: refused, no such host, no TLS.
    Unreachable,
    /// Nothing came for too long.
    Silent,
    /// The connection broke, or the stream ended before the reply did.
    Dropped,
    /// Too many requests or tokens in a short time.
    RateLimited,
    /// The server has no time, or a fault of its own.
    Overloaded,
    /// The quota or the money is spent.
    Spent,
    /// The key is wrong, or may not do this.
    Key,
    /// There is no such model.
    NoModel,
    /// There is nothing at this address.
    NoPlace,
    /// It does not know a parameter, which is named.
    Parameter(String),
    /// The messages are longer than the model's context, whose length may be named.
    TooLong(Option<usize>),
    /// Another complaint about the request.
    BadRequest,
    /// It is no answer of a chat endpoint.
    Odd,
    /// The reply has no text.
    Empty,
    /// The model refuses.
    Refused,
    /// A filter took the reply away.
    Filtered,
    /// The reply ends at the length limit, before its end.
    CutShort,
    /// The reply has no change that can be used.
    NoChange,
    /// The model says that it has no idea left.
    Declined,
    /// There is nothing to ask: the prompt cannot be built.
    NoPrompt,
}

impl Kind {
    /// Whether it will be the same when it is asked again soon.
    #[must_use]
    pub const fn stays(&self) -> bool {
        matches!(self, Self::Spent | Self::Key | Self::NoModel | Self::NoPlace | Self::NoPrompt | Self::Declined)
    }

    /// Whether an answer came, of whatever worth: the endpoint is there, and the words were paid for.
    #[must_use]
    pub const fn was_answered(&self) -> bool {
        matches!(self, Self::Empty | Self::Refused | Self::Filtered | Self::CutShort | Self::NoChange | Self::Declined)
    }
}

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// In which way.
    pub kind: Kind,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// The server's words or the reason, in one line; never the key.
    pub words: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure without a status.
    #[must_use]
    pub fn new(kind: Kind, words: &str) -> Self {
        Self { kind, status: None, words: one_line(words), retry_after: None }
    }

    /// One clear sentence: what is wrong at `host` with `model`, and what to do about it.
    #[must_use]
    pub fn sentence(&self, host: &str, model: &str) -> String {
        self.fact(host, model) + &self.advised(model)
    }

    /// The same, with what comes of it before the advice.
    #[must_use]
    pub fn with(&self, host: &str, model: &str, what_comes: &str) -> String {
        format!("{}; {what_comes}{}", self.fact(host, model), self.advised(model))
    }

    /// What is wrong at `host` with `model`.
    #[must_use]
    pub fn fact(&self, host: &str, model: &str) -> String {
        let said = if self.words.is_empty() { String::new() } else { format!(" ({})", self.words) };
        let status = self.status.map_or(String::new(), |status| format!(" with status {status}"));
        match &self.kind {
            Kind::Unreachable => format!("{host} cannot be reached{said}"),
            Kind::Silent => format!("{host} was silent for too long{said}"),
            Kind::Dropped => format!("{host} broke off its reply{said}"),
            Kind::RateLimited => format!("{host} limits the rate of requests to {model}{said}"),
            Kind::Overloaded => format!("{host} failed{status}{said}"),
            Kind::Spent => format!("the quota at {host} is spent{said}"),
            Kind::Key => format!("{host} refuses the key{said}"),
            Kind::NoModel => format!("{host} has no model `{model}`{said}"),
            Kind::NoPlace => format!("there is no chat endpoint at {host}{status}{said}"),
            Kind::Parameter(name) => format!("{model} at {host} does not know the parameter `{name}`{said}"),
            Kind::TooLong(_) => format!("the prompt is longer than the context of {model} at {host}{said}"),
            Kind::BadRequest => format!("{host} refuses the request{status}{said}"),
            Kind::Odd => format!("{host} answers, but not as a chat endpoint{status}{said}"),
            Kind::Empty => format!("{model} gave an empty reply{said}"),
            Kind::Refused => format!("{model} refused{said}"),
            Kind::Filtered => format!("a content filter at {host} took the reply of {model} away{said}"),
            Kind::CutShort => format!("the reply of {model} was cut off at its length limit{said}"),
            Kind::Declined => format!("{model} has nothing left to propose{said}"),
            Kind::NoPrompt => format!("{model} cannot be asked{said}"),
            Kind::NoChange => format!("the reply of {model} has no change that can be used{said}"),
        }
    }

    fn advised(&self, model: &str) -> String {
        self.advice(model).map_or(String::new(), |advice| format!("; {advice}"))
    }

    /// What to do about it, where someone can do something.
    fn advice(&self, model: &str) -> Option<String> {
        let advice = match &self.kind {
            Kind::Silent => {
                return Some(format!("a server that is loading {model} needs a moment: try again then"));
            }
            Kind::Unreachable => "is the address in OPENAI_BASE_URL right, and the server up?",
            Kind::RateLimited => "fewer `--proposals` help",
            Kind::Overloaded => "it may go better later",
            Kind::Spent => "add credit or raise the limit there, then start again",
            Kind::Key => "check OPENAI_API_KEY",
            Kind::NoModel => "check `--model`",
            Kind::NoPlace => "OPENAI_BASE_URL is the part before /chat/completions, and mostly ends with /v1",
            Kind::TooLong(_) => "say with --context how long it is",
            Kind::Odd => "check OPENAI_BASE_URL, and any proxy in between",
            Kind::Dropped
            | Kind::Parameter(_)
            | Kind::BadRequest
            | Kind::Empty
            | Kind::Refused
            | Kind::Filtered
            | Kind::CutShort
            | Kind::Declined
            | Kind::NoPrompt
            | Kind::NoChange => return None,
        };
        Some(advice.to_owned())
    }
}

/// The first words of a text, in one line.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        if words.chars().count() + word.chars().count() >= SERVERS_WORDS {
            let room = SERVERS_WORDS.saturating_sub(words.chars().count() + 1);
            if !words.is_empty() {
                words.push(' ');
            }
            words.extend(word.chars().take(room).filter(|c| !c.is_control()));
            words.push('…');
            return words;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words.extend(word.chars().filter(|c| !c.is_control()));
    }
    words.trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
