//! What this room needs of whoever builds prompts and reads replies.

use crate::agent::change::{ChangeError, Reply};
use crate::agent::prompt::{Message, Prompt};
use crate::agent::{Brief, Failed};

/// Builds prompts and reads replies.
pub trait Ask: Send + Sync {
    /// The question for a model with a context of so many tokens, room for the answer included. `direction` says what to
    /// try, or what others are trying.
    ///
    /// # Errors
    /// Why there is no question, in a sentence.
    fn messages(&self, brief: &Brief, direction: Option<&str>, context_tokens: usize) -> Result<Vec<Message>, String>;

    /// What a model is told of its own proposal that does not compile or is wrong. Its answer changes the proposal's
    /// text.
    fn repair(&self, failed: &Failed) -> String;

    /// What a model is told whose reply has no change that can be used.
    fn again(&self, error: &ChangeError) -> String;

    /// Reads a reply.
    ///
    /// # Errors
    /// [`ChangeError`], with a reason that its author can act on.
    fn parse(&self, reply: &str) -> Result<Reply, ChangeError>;
}

impl Ask for Prompt {
    fn messages(&self, brief: &Brief, direction: Option<&str>, context_tokens: usize) -> Result<Vec<Message>, String> {
        self.messages(brief, direction, context_tokens).map_err(|error| error.to_string())
    }

    fn repair(&self, failed: &Failed) -> String {
        self.repair(failed)
    }

    fn again(&self, error: &ChangeError) -> String {
        self.again(error)
    }

    fn parse(&self, reply: &str) -> Result<Reply, ChangeError> {
        self.parse(reply)
    }
}
