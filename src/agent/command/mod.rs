//! Any program that edits a file as an agent: it gets the prompt and the kernel file, and what it leaves there is its proposal.

mod folder;
mod process;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::prompt::Prompt;
use super::transcript::{Said, Transcript};
use super::{Agent, AgentError, BoxFuture, Brief, Failed, Offer, Outcome, Proposal, Screen, Usage};
use folder::Snapshot;
use process::{Ended, Task};

/// So many tries in a row without a proposal, and the program has nothing left for a target.
const MOST_FAILURES: u32 = 3;

/// A kernel file has at most so many bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Tokens of a prompt for a program that has a context of its own to look after.
const CONTEXT: usize = 60_000;

/// The prompt's name in the run's folder.
pub const PROMPT_FILE: &str = "prompt.md";

/// A copy of the kernel file as it was given out, to compare with.
const INCUMBENT_FILE: &str = "incumbent";

/// The technique of whoever named none.
const UNNAMED: &str = "other:unnamed";

/// What a command agent works with.
#[derive(Debug, Clone)]
pub struct Desk {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// How long it may take for one proposal.
    pub limit: Duration,
    /// The run's folder: where it works, and all that it may change.
    pub folder: PathBuf,
    /// The kernel file there.
    pub candidate: PathBuf,
    /// What is said is written down here.
    pub transcript: Transcript,
}

/// Runs a program for each proposal.
#[derive(Debug)]
pub struct Command {
    desk: Desk,
    prompt: Prompt,
    next_ticket: u64,
    /// A proposal that failed and is to be mended next.
    mending: Option<Failed>,
    failures: u32,
    usage: Usage,
    /// The part of it that no proposal has been charged with: one is made at a time, so it is the next one's.
    uncharged: Usage,
}

/// One try of the program.
enum Tried {
    Changed {
        text: String,
        said: String,
    },
    /// It says that nothing is left.
    Declined {
        why: String,
    },
    Nothing {
        why: String,
    },
}

impl Command {
    /// An agent at a desk.
    #[must_use]
    pub fn new(desk: Desk, prompt: Prompt) -> Self {
        Self {
            desk,
            prompt,
            next_ticket: 1,
            mending: None,
            failures: 0,
            usage: Usage::default(),
            uncharged: Usage::default(),
        }
    }

    async fn next(&mut self, brief: &Brief) -> Result<Offer, AgentError> {
        loop {
            let mending = self.mending.take();
            let (ticket, repairs) = match &mending {
                Some(failed) => (failed.proposal.ticket, failed.proposal.repairs + 1),
                None => (self.next_ticket, 0),
            };
            self.next_ticket = self.next_ticket.max(ticket + 1);
            match self.attempt(brief, mending.as_ref(), ticket).await? {
                Tried::Changed { text, said } => {
                    self.failures = 0;
                    let remarks = self.prompt.remarks(&said);
                    let described = !remarks.description.is_empty();
                    let named = remarks.technique != UNNAMED;
                    return Ok(Offer::Proposal(Proposal {
                        text,
                        technique: if named { remarks.technique } else { "edit".to_owned() },
                        description: if described { remarks.description } else { "an edit".to_owned() },
                        hypothesis: remarks.hypothesis,
                        predicted: remarks.predicted,
                        by: None,
                        ticket,
                        repairs,
                    }));
                }
                Tried::Declined { why } if mending.is_none() => return Ok(Offer::Exhausted { why }),
                Tried::Declined { why } | Tried::Nothing { why } => {
                    self.usage.troubles.push(why.clone());
                    if mending.is_some() {
                        return Ok(Offer::GivenUp { ticket });
                    }
                    self.failures += 1;
                    if self.failures >= MOST_FAILURES {
                        return Ok(Offer::Exhausted {
                            why: format!("{MOST_FAILURES} times without a proposal; {why}"),
                        });
                    }
                }
            }
        }
    }

    /// Runs the program once on the file that it is to change.
    async fn attempt(&mut self, brief: &Brief, mending: Option<&Failed>, ticket: u64) -> Result<Tried, AgentError> {
        let given = mending.map_or(brief.incumbent.as_str(), |failed| failed.proposal.text.as_str());
        let prompt = self.question(brief, mending)?;
        let put = |path: &PathBuf, text: &str| folder::write(path, text).map_err(|why| self.unavailable(&why));
        put(&self.desk.candidate, given)?;
        put(&self.desk.folder.join(PROMPT_FILE), &prompt)?;
        put(&self.desk.folder.join(INCUMBENT_FILE), given)?;
        let before = Snapshot::of(&self.desk.folder, &self.desk.candidate).map_err(|why| self.unavailable(&why))?;
        self.say_asked(brief, ticket, &prompt);
        let began = Instant::now();
        let task = Task {
            argv: &self.desk.argv,
            folder: &self.desk.folder,
            prompt: &prompt,
            prompt_file: self.desk.folder.join(PROMPT_FILE),
            candidate: &self.desk.candidate,
            limit: self.desk.limit,
        };
        let ended = task.run().await.map_err(|why| self.unavailable(&why))?;
        let mut usage = Usage { requests: 1, wall_s: began.elapsed().as_secs_f64(), ..Usage::default() };
        let changed = before.put_back();
        if !changed.is_empty() {
            usage.troubles.push(format!(
                "{} changed more than the kernel file; put back: {}",
                self.program(),
                changed.join(", ")
            ));
        }
        self.say_answered(brief, ticket, &ended, &usage);
        self.usage.add(&usage);
        self.uncharged.add(&usage);
        self.usage.troubles.append(&mut usage.troubles);
        Ok(self.result(given, ended))
    }

    fn result(&self, given: &str, ended: Ended) -> Tried {
        let nothing = |why: String| Tried::Nothing { why: format!("{}: {why}", self.program()) };
        if let Some(why) = &ended.failure {
            return nothing(format!("{why}{}", ended.last_words()));
        }
        let text = match folder::read(&self.desk.candidate, MOST_BYTES) {
            Ok(text) => text,
            Err(why) => return nothing(format!("the kernel file cannot be read any more: {why}")),
        };
        let remarks = self.prompt.remarks(&ended.output);
        if text == given && remarks.declines {
            let silent = remarks.hypothesis.is_empty();
            return Tried::Declined { why: if silent { "it says so".to_owned() } else { remarks.hypothesis } };
        }
        if text == given {
            return nothing(format!("it changed nothing{}", ended.last_words()));
        }
        Tried::Changed { text, said: ended.output }
    }

    /// The prompt, with how to answer by editing instead of by a reply.
    fn question(&self, brief: &Brief, mending: Option<&Failed>) -> Result<String, AgentError> {
        let file = self.desk.candidate.strip_prefix(&self.desk.folder).unwrap_or(&self.desk.candidate);
        let briefing = self.prompt.briefing(brief, &file.to_string_lossy(), None, CONTEXT);
        let mut texts = vec![briefing.map_err(|error| self.unavailable(&error.to_string()))?];
        texts.extend(mending.map(|failed| self.prompt.repair(failed)));
        Ok(texts.join("\n\n"))
    }

    fn program(&self) -> &str {
        self.desk.argv.first().map_or("the command", String::as_str)
    }

    fn unavailable(&self, why: &str) -> AgentError {
        AgentError::Unavailable { agent: self.name().to_owned(), why: why.to_owned() }
    }

    fn say_asked(&self, brief: &Brief, ticket: u64, prompt: &str) {
        let (op, to) = (brief.op.clone(), self.desk.argv.join(" "));
        self.desk.transcript.say(Said::Asked { op, ticket, to, prompt: json!(prompt) });
    }

    fn say_answered(&self, brief: &Brief, ticket: u64, ended: &Ended, usage: &Usage) {
        self.desk.transcript.say(Said::Answered {
            op: brief.op.clone(),
            ticket,
            text: ended.output.clone(),
            failed: ended.failure.is_some(),
            usage: usage.clone(),
        });
    }
}

impl Agent for Command {
    fn name(&self) -> &str {
        "command"
    }

    fn propose<'a>(
        &'a mut self,
        brief: &'a Brief,
        _screen: &'a mut dyn Screen,
    ) -> BoxFuture<'a, Result<Offer, AgentError>> {
        Box::pin(self.next(brief))
    }

    fn learn(&mut self, _outcome: &Outcome) {}

    fn mend(&mut self, failed: &Failed) -> bool {
        // What a model proposed before the run went on with this agent is not its own.
        let own = failed.proposal.by.is_none();
        if own {
            self.mending = Some(failed.clone());
        }
        own
    }

    fn usage(&mut self) -> Usage {
        std::mem::take(&mut self.usage)
    }

    fn spent_on(&mut self, _ticket: u64) -> Usage {
        std::mem::take(&mut self.uncharged)
    }

    fn save(&self) -> Value {
        json!(self.next_ticket)
    }

    fn restore(&mut self, state: &Value) -> Result<(), AgentError> {
        let why = || format!("{state} is no ticket");
        self.next_ticket =
            state.as_u64().ok_or_else(|| AgentError::State { agent: self.name().to_owned(), why: why() })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
