//! What a language model is asked, built from parts that a person can read and override.
//!
//! Each part is a plain text with `{placeholders}` (`prompt/parts/*.md`); a file `prompts/<part>.md` in the workspace
//! wins over the one inside the program, and an empty one leaves its part out. Everything that comes from logs, kernels
//! or earlier proposals is fenced, so that it cannot pose as instructions. The prompt is kept inside the model's context
//! by leaving out the least useful first, and never by cutting code.

mod budget;
mod facts;
mod fenced;
mod history;
mod operation;
mod program;
mod template;

use super::change::{self, ChangeError, Remarks, Reply, Techniques};
use super::{Brief, Failed};
use crate::evaluation::Verdict;

use budget::Cut;
use program::Program;
use template::{Audience, Parts, Values};
pub use template::{PARTS, PartText, Place};

/// Bytes of English and code that make a token, about: what tokenizers of today's models come to on this prompt, from
/// 3.2 to 4. A low figure is the careful one.
pub const BYTES_PER_TOKEN: f64 = 3.5;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The standing instructions.
    System,
    /// The question.
    User,
    /// The model's own answer.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What.
    pub text: String,
}

/// Why there is no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// A template asks for something that nobody fills in.
    #[error("prompts/{part}.md: nothing is known as `{{{name}}}`; there is {known}")]
    Placeholder {
        /// The part.
        part: &'static str,
        /// The placeholder.
        name: String,
        /// Those the part has.
        known: String,
    },
    /// A template without what it is for.
    #[error("prompts/{part}.md has no `{{{name}}}`, and without it there is nothing to work on")]
    Missing {
        /// The part.
        part: &'static str,
        /// The placeholder.
        name: &'static str,
    },
    /// The operation's own files are wrong.
    #[error("the operation cannot be described: {0}")]
    Operation(String),
    /// Not even the kernel fits.
    #[error(
        "{op} needs about {needed} tokens with the kernel and everything left out that may be, {answer} of them for the \
         answer, and the model's context has {context}: take a model with a longer context, or say with --context how \
         long it really is"
    )]
    TooLong {
        /// The operation.
        op: String,
        /// Tokens of prompt and answer, by [`BYTES_PER_TOKEN`].
        needed: usize,
        /// Tokens kept for the answer.
        answer: usize,
        /// The model's.
        context: usize,
    },
}

/// Builds prompts from the workspace's templates and instructions.
#[derive(Debug, Clone)]
pub struct Prompt {
    parts: Parts,
    program: Program,
    techniques: Techniques,
}

impl Prompt {
    /// Reads `program.md` and `prompts/<part>.md` through `read` (path below the workspace → text, `None` where there is
    /// no such file).
    ///
    /// # Errors
    /// A template with a placeholder that is not known, or without the one it is for.
    pub fn new(read: &dyn Fn(&str) -> Option<String>) -> Result<Self, PromptError> {
        let program = read("program.md").unwrap_or_default();
        Ok(Self {
            parts: Parts::read(read)?,
            techniques: Techniques::of_program(&program),
            program: Program::parse(&program),
        })
    }

    /// The question for a model with a context of so many tokens: the standing instructions, then the task. A quarter
    /// of the context, and never less than the whole file takes, is left for the answer.
    ///
    /// `direction` is a sentence on what to try, or what others are trying at the moment.
    ///
    /// # Errors
    /// [`PromptError::TooLong`] where the kernel does not fit.
    pub fn messages(
        &self,
        brief: &Brief,
        direction: Option<&str>,
        context_tokens: usize,
    ) -> Result<Vec<Message>, PromptError> {
        let parts = self.parts_for(brief, direction, context_tokens)?;
        let joined = |system: bool| {
            let texts = parts.iter().filter(|part| part.system == system).map(|part| part.text.as_str());
            texts.collect::<Vec<_>>().join("\n\n")
        };
        Ok(vec![Message { role: Role::System, text: joined(true) }, Message { role: Role::User, text: joined(false) }])
    }

    /// The same in parts, in order, without those that have nothing to say.
    ///
    /// # Errors
    /// As [`Self::messages`].
    pub fn parts_for(
        &self,
        brief: &Brief,
        direction: Option<&str>,
        context_tokens: usize,
    ) -> Result<Vec<PartText>, PromptError> {
        self.fitted(brief, operation::describe(brief)?, direction, context_tokens, Audience::Model)
    }

    /// The task for an agent with a shell, which edits the kernel file at `path` in place: one text, with everything but
    /// the form of an answer.
    ///
    /// # Errors
    /// As [`Self::messages`].
    pub fn briefing(
        &self,
        brief: &Brief,
        path: &str,
        direction: Option<&str>,
        context_tokens: usize,
    ) -> Result<String, PromptError> {
        let mut fixed = operation::describe(brief)?;
        fixed.set("path", path.to_owned());
        let parts = self.fitted(brief, fixed, direction, context_tokens, Audience::Shell)?;
        Ok(parts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n\n"))
    }

    fn fitted(
        &self,
        brief: &Brief,
        fixed: Values,
        direction: Option<&str>,
        context_tokens: usize,
        audience: Audience,
    ) -> Result<Vec<PartText>, PromptError> {
        budget::fit(brief, context_tokens, &|cut, dropped| {
            let mut values = fixed.clone();
            self.fill_in(&mut values, brief, direction, cut, dropped);
            self.parts.question(&values, audience)
        })
    }

    /// Everything that depends on what is left out, and the rest of the brief.
    fn fill_in(&self, values: &mut Values, brief: &Brief, direction: Option<&str>, cut: &Cut, dropped: &str) {
        facts::device(values, brief);
        facts::evaluation(values, brief);
        values.set("program", self.program.text(brief, cut));
        values.set("history", history::tried(&brief.history, cut));
        values.set("failure", history::last_failure(&brief.history));
        values.set("direction", direction.unwrap_or_default().trim().to_owned());
        values.set("dropped", dropped.to_owned());
        if cut.oracle() {
            values.set("header", String::new());
        }
        if cut.headers() {
            values.set("headers", String::new());
        }
        if cut.definition() {
            values.set("toml", String::new());
        }
    }

    /// What a model is told of its own proposal that does not compile or is wrong. Blocks in its answer are meant for
    /// the proposal's text.
    #[must_use]
    pub fn repair(&self, failed: &Failed) -> String {
        let verdict = &failed.verdict;
        let mut values = Values::default();
        values.set("status", verdict.status().to_owned());
        values.set("stage", verdict.stage().name().to_owned());
        values.set("why", fenced::log(verdict.why()));
        values.set("advice", advice(verdict).to_owned());
        values.set("candidate", fenced::code(&failed.proposal.text));
        self.parts.fill("repair", &values)
    }

    /// What a model is told whose reply has no change that can be used.
    #[must_use]
    pub fn again(&self, error: &ChangeError) -> String {
        let mut values = Values::default();
        values.set("reason", error.to_string());
        self.parts.fill("again", &values)
    }

    /// A template as it stands, of the workspace or of the program.
    #[must_use]
    pub fn template(&self, part: &str) -> Option<&str> {
        self.parts.template(part)
    }

    /// What an agent with a shell said of its change, anywhere in what it printed.
    #[must_use]
    pub fn remarks(&self, printed: &str) -> Remarks {
        change::remarks(printed, &self.techniques)
    }

    /// Reads a reply; techniques are those of `program.md`.
    ///
    /// # Errors
    /// [`ChangeError`].
    pub fn parse(&self, reply: &str) -> Result<Reply, ChangeError> {
        change::parse(reply, &self.techniques)
    }
}

/// Tokens of a text, about.
#[must_use]
pub fn tokens(text: &str) -> usize {
    (text.len() as f64 / BYTES_PER_TOKEN).ceil() as usize
}

/// What usually helps, by verdict.
const fn advice(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Error { .. } => "It was never run: front matter, the reader of sources or the compiler refuse it.",
        Verdict::Reject { .. } => {
            "It ran and is wrong or dishonest there. Ask which index, tail, type or special value leads to just this case."
        }
        Verdict::Crash { .. } => {
            "It ended its process: look at tails, alignment of wide accesses, and the sizes of shared memory and scratch."
        }
        Verdict::Timeout { .. } => {
            "It did not return: look for a loop without end, or a barrier that not all threads reach."
        }
        _ => "It is correct.",
    }
}

#[cfg(test)]
mod tests;
