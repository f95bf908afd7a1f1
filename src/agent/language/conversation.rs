//! One conversation: from a task to a candidate's text, or to the reason why there is none.

use std::sync::Arc;

use super::completion::tokens;
use super::failure::{Failure, Kind};
use super::session::{Session, Subject};
use crate::agent::change::{ChangeError, Reply};
use crate::agent::prompt::{Message, Role};
use crate::agent::{Brief, Failed};

/// How often a prompt is made shorter for a context that is shorter than was thought.
const SHORTENED: u32 = 4;
/// How often a reply that may have been cut off is asked for again.
const CUT_OFF: u32 = 2;

/// What is wanted of a model.
#[derive(Debug, Clone)]
pub struct Task {
    /// The proposal.
    pub ticket: u64,
    /// The model.
    pub model: String,
    /// As it was when the question was made.
    pub brief: Arc<Brief>,
    /// What to try, or what others are trying.
    pub direction: Option<String>,
    /// What is to be mended, and the reply that made it.
    pub mend: Option<(Failed, String)>,
}

/// A candidate.
#[derive(Debug, Clone)]
pub struct Draft {
    /// What was wanted.
    pub task: Task,
    /// What the model says of it.
    pub reply: Reply,
    /// The reply's text.
    pub said: String,
    /// The candidate, made from the text that the task was about.
    pub text: String,
}

/// The end of a conversation.
#[derive(Debug)]
pub enum Ended {
    /// A candidate.
    Draft(Box<Draft>),
    /// None.
    Failed(Failure),
}

/// Asks, asks once more where the reply has no usable change, and applies the change.
pub async fn hold(session: Arc<Session>, task: Task) -> Ended {
    match converse(&session, &task).await {
        Ok((reply, said, text)) => Ended::Draft(Box::new(Draft { task, reply, said, text })),
        Err(failure) => Ended::Failed(failure),
    }
}

async fn converse(session: &Session, task: &Task) -> Result<(Reply, String, String), Failure> {
    let subject = Subject { op: &task.brief.op, ticket: task.ticket, model: &task.model };
    let (mut turns, basis) = match &task.mend {
        Some((failed, said)) => {
            let turns = vec![assistant(said), user(session.prompt.repair(failed))];
            (turns, failed.proposal.text.as_str())
        }
        None => (Vec::new(), task.brief.incumbent.as_str()),
    };
    let (mut shortened, mut cut_off, mut asked_again) = (0, 0, false);
    loop {
        let messages = question(session, task, &turns)?;
        let reply = match session.request(subject, &messages).await {
            Ok(reply) => reply,
            Err(failure) => {
                let sent = messages.iter().map(|message| tokens(message.text.len()) as usize).sum();
                if let Kind::TooLong(limit) = failure.kind
                    && shortened < SHORTENED
                    && session.shorten(&task.model, limit, sent)
                {
                    shortened += 1;
                    continue;
                }
                return Err(failure);
            }
        };
        let read = session.prompt.parse(&reply.text);
        let error = match read.and_then(|read| read.change.apply(basis).map(|text| (read, text))) {
            Ok((read, text)) => return Ok((read, reply.text, text)),
            Err(error) => error,
        };
        if let ChangeError::Declined { why } = &error {
            return Err(Failure::new(Kind::Declined, why));
        }
        if reply.finish.is_none() && cut_off < CUT_OFF {
            // A server that never says why it stopped may have broken off: then the same question is the best one.
            cut_off += 1;
            continue;
        }
        if asked_again {
            let cut = reply.finish == Some(super::completion::Finish::Length);
            let kind = if cut { Kind::CutShort } else { Kind::NoChange };
            return Err(Failure::new(kind, &error.to_string()));
        }
        asked_again = true;
        turns.push(assistant(&reply.text));
        turns.push(user(session.prompt.again(&error)));
    }
}

/// The messages of the next request: the question, kept so short that the turns since fit beside it.
fn question(session: &Session, task: &Task, turns: &[Message]) -> Result<Vec<Message>, Failure> {
    let context = session.context(&task.model);
    let direction = task.direction.as_deref();
    let length = |turns: &[Message]| turns.iter().map(|turn| tokens(turn.text.len()) as usize).sum::<usize>();
    let with = |turns: &[Message]| {
        let room = context.saturating_sub(length(turns));
        let mut messages = session.prompt.messages(&task.brief, direction, room)?;
        messages.extend_from_slice(turns);
        Ok::<_, String>(messages)
    };
    // Where even the shortest prompt leaves no room, the earlier turns go: the last one says what is wrong.
    let last = turns.len().saturating_sub(1);
    with(turns).or_else(|_| with(&turns[last..])).map_err(|why| Failure::new(Kind::NoPrompt, &why))
}

fn user(text: String) -> Message {
    Message { role: Role::User, text }
}

/// A reply as a turn: without its reasoning, which is long and which models are not to be shown again.
fn assistant(said: &str) -> Message {
    let answer = said.rsplit_once("</think>").map_or(said, |(_, answer)| answer).trim();
    Message { role: Role::Assistant, text: if answer.is_empty() { "(nothing)".into() } else { answer.to_owned() } }
}
