//! What this room needs of whoever builds prompts and reads replies.

use crate::agent::change::{ChangeError, Reply};
use crate::agent::{Brief, Failed};

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The standing instructions.
    System,
    /// The question.
    User,
    /// The model's own answer.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What.
    pub text: String,
}

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
