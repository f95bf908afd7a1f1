//! Fenced blocks as in CommonMark, and what surrounds an answer.

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

/// The line, from 0, behind a reply's reasoning: everything up to the last closing tag is dropped, with the tag or
/// without its opening, which some servers keep to themselves. `None` where the reasoning is never closed.
///
/// Nothing within an answer is ever taken out, so a kernel that has such a tag in it cannot be changed by this: the reply
/// loses its beginning and is refused.
pub(super) fn behind_thought(reply: &str) -> Option<&str> {
    let behind = THOUGHTS
        .iter()
        .filter_map(|tag| {
            let close = format!("</{tag}>");
            reply.rfind(&close).map(|at| at + close.len())
        })
        .max()
        .unwrap_or(0);
    let rest = &reply[behind..];
    let open = THOUGHTS.iter().any(|tag| rest.trim_start().starts_with(&format!("<{tag}>")));
    (!open).then_some(rest)
}
