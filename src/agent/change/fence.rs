//! Fenced blocks as in CommonMark, and what surrounds an answer.

use super::ChangeError;

/// Tags in which models reason before they answer.
const THOUGHTS: [&str; 3] = ["think", "thinking", "reasoning"];

/// An opening fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence {
    mark: char,
    length: usize,
}

impl Fence {
    /// The fence that a line opens: three or more of one mark, then no backtick.
    pub(super) fn opened_by(line: &str) -> Option<Self> {
        let line = line.trim();
        let mark = line.chars().next().filter(|mark| ['`', '~'].contains(mark))?;
        let length = line.chars().take_while(|c| *c == mark).count();
        let info = &line[length..];
        (length >= 3 && !(mark == '`' && info.contains('`'))).then_some(Self { mark, length })
    }

    /// Whether a line closes it: at least as many of the mark, and nothing else.
    pub(super) fn closed_by(self, line: &str) -> bool {
        let line = line.trim();
        line.len() >= self.length && line.chars().all(|c| c == self.mark)
    }
}

/// What stands behind a reply's reasoning: everything up to the last closing tag is dropped, also where its opening is
/// missing, which some servers keep to themselves.
///
/// Nothing within an answer is ever taken out. A kernel that has such a tag in it loses its beginning by this and is
/// refused, and reasoning after an answer has begun is an error.
pub(super) fn behind_thought<'a>(reply: &'a str, is_answer: &dyn Fn(&str) -> bool) -> Result<&'a str, ChangeError> {
    // What is outside of reasoning begins at the start or behind a closing tag.
    let mut outside = Some(0);
    let mut behind = 0;
    for (at, tag) in tags(reply) {
        if tag.starts_with("</") {
            behind = at + tag.len();
            outside = Some(behind);
        } else if let Some(begin) = outside.take()
            && is_answer(&reply[begin..at])
        {
            return Err(ChangeError::ThoughtWithin { line: reply[..at].matches('\n').count() + 1 });
        }
    }
    if outside.is_none() { Err(ChangeError::OnlyThought) } else { Ok(&reply[behind..]) }
}

/// Every tag of reasoning with its place, in order.
fn tags(reply: &str) -> impl Iterator<Item = (usize, &str)> {
    reply.match_indices('<').filter_map(|(at, _)| {
        let rest = &reply[at..];
        let inner = rest.strip_prefix("</").or_else(|| rest.strip_prefix('<'))?;
        let word =
            THOUGHTS.into_iter().find(|word| inner.strip_prefix(word).is_some_and(|rest| rest.starts_with('>')))?;
        let length = rest.len() - inner.len() + word.len() + 1;
        Some((at, &rest[..length]))
    })
}
