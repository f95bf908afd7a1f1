//! From a reply's text to a [`Reply`].

use super::fence::{Fence, behind_thought};
use super::headers::{Headers, Name, Remarks, Techniques};
use super::{Block, Change, ChangeError, DOCSTRING, FRONT_MATTER, Reply};

/// The longest reply that is read, in bytes: twice the longest kernel file that is read.
pub const MAX_REPLY_BYTES: usize = 2 << 20;
/// The most search/replace blocks of a reply: who changes more rewrites the file.
pub const MAX_BLOCKS: usize = 200;

const SEARCH: &str = "<<<<<<< SEARCH";
const MIDDLE: &str = "=======";
const REPLACE: &str = ">>>>>>> REPLACE";

/// Reads a reply. Reasoning in front of the answer is dropped; prose around headers and blocks is looked over.
///
/// # Errors
/// [`ChangeError`], with a reason that its author can act on.
pub fn parse(reply: &str, techniques: &Techniques) -> Result<Reply, ChangeError> {
    if reply.len() > MAX_REPLY_BYTES {
        return Err(ChangeError::TooLong { bytes: reply.len(), limit: MAX_REPLY_BYTES });
    }
    if let Some(at) = reply.find('\0') {
        return Err(ChangeError::Nul { line: reply[..at].matches('\n').count() + 1 });
    }
    let answer = behind_thought(reply, &begins_answer)?;
    // Lines are counted in the reply as it came, for the reasons.
    let first = reply[..reply.len() - answer.len()].matches('\n').count() + 1;
    let lines: Vec<Line<'_>> =
        answer.split_inclusive('\n').enumerate().map(|(index, text)| Line { number: first + index, text }).collect();
    let lines = unwrapped(&lines);
    let (headers, begins) = read_headers(lines);
    let change = read_change(&lines[begins..]).map_err(|error| match error {
        ChangeError::NoChange if headers.declines() => {
            ChangeError::Declined { why: headers.remarks(techniques).hypothesis }
        }
        other => other,
    })?;
    let Remarks { hypothesis, technique, predicted, description, .. } = headers.remarks(techniques);
    Ok(Reply { hypothesis, technique, predicted, description, change })
}

/// What is said of a change anywhere in a text, such as what a command printed: the last header of a name counts.
#[must_use]
pub fn remarks(text: &str, techniques: &Techniques) -> Remarks {
    let mut headers = Headers::default();
    for line in text.lines() {
        match Name::in_line(line) {
            Some((name, value)) => headers.set(name, value),
            None => headers.more(line),
        }
    }
    headers.remarks(techniques)
}

/// Whether an answer begins somewhere in a text.
fn begins_answer(text: &str) -> bool {
    text.lines().any(|line| marker(line).is_some() || matches!(Name::in_line(line), Some((Name::Change, _))))
}

/// A line with its line feed.
#[derive(Debug, Clone, Copy)]
struct Line<'a> {
    /// In the reply, from 1.
    number: usize,
    text: &'a str,
}

impl Line<'_> {
    /// Without what ends it.
    fn bare(&self) -> &str {
        self.text.trim_end()
    }
}

/// The answer without a fence around all of it, which some models put there.
fn unwrapped<'l, 'a>(lines: &'l [Line<'a>]) -> &'l [Line<'a>] {
    let filled = |line: &Line<'_>| !line.bare().is_empty();
    let (Some(first), Some(last)) = (lines.iter().position(filled), lines.iter().rposition(filled)) else {
        return lines;
    };
    let Some(fence) = Fence::opened_by(lines[first].text) else { return lines };
    if first == last || !fence.closed_by(lines[last].text) {
        return lines;
    }
    let inner = &lines[first + 1..last];
    let begins_with_header = inner.iter().find(|line| filled(line)).is_some_and(|l| Name::in_line(l.text).is_some());
    if begins_with_header { inner } else { lines }
}

/// The headers, and the index of the line where the change may begin: behind `Change:`, or the first line where there is
/// no such header.
fn read_headers(lines: &[Line<'_>]) -> (Headers, usize) {
    let mut headers = Headers::default();
    let mut fence: Option<Fence> = None;
    for (index, line) in lines.iter().enumerate() {
        if let Some(open) = fence {
            if open.closed_by(line.text) {
                fence = None;
            }
            continue;
        }
        if marker(line.text).is_some() {
            break;
        }
        match Name::in_line(line.text) {
            Some((Name::Change, value)) => {
                headers.set(Name::Change, value);
                return (headers, index + 1);
            }
            Some((name, value)) => headers.set(name, value),
            None => {
                fence = Fence::opened_by(line.text);
                headers.more(if fence.is_some() { "" } else { line.text });
            }
        }
    }
    (headers, 0)
}

/// The marker that a line is, in the form's order.
fn marker(line: &str) -> Option<&'static str> {
    [SEARCH, MIDDLE, REPLACE].into_iter().find(|marker| line.trim_end() == *marker)
}

/// The marker that a line was probably meant to be. A row of `=` is no attempt at one: comments have them.
fn almost_marker(line: &str) -> Option<&'static str> {
    let line = line.trim();
    let looks = |mark: char, word: &str| {
        let marks = line.chars().take_while(|c| *c == mark).count();
        marks >= 3 && line[marks..].trim().trim_end_matches(mark).trim().eq_ignore_ascii_case(word)
    };
    match () {
        () if looks('<', "search") => Some(SEARCH),
        () if looks('>', "replace") => Some(REPLACE),
        () => None,
    }
}

fn read_change(lines: &[Line<'_>]) -> Result<Change, ChangeError> {
    let marked = lines.iter().any(|line| marker(line.text) == Some(SEARCH) || almost_marker(line.text).is_some());
    if marked { read_blocks(lines).map(Change::Blocks) } else { read_whole(lines).map(Change::Whole) }
}

/// A second answer after the change has begun.
fn refuse_header(line: &Line<'_>) -> Result<(), ChangeError> {
    match Name::in_line(line.text) {
        Some((Name::Hypothesis | Name::Technique | Name::Change, _)) => {
            let header = line.bare().chars().take(60).collect();
            Err(ChangeError::Second { line: line.number, header })
        }
        _ => Ok(()),
    }
}

/// One fenced block that begins with the front matter. Snippets may stand before it, and no code after it: what looks
/// like more code may be the rest of a file that closed its own fence.
fn read_whole(lines: &[Line<'_>]) -> Result<String, ChangeError> {
    let mut found: Option<String> = None;
    let mut snippet = false;
    let mut index = 0;
    while let Some(line) = lines.get(index) {
        index += 1;
        let Some(fence) = Fence::opened_by(line.text) else {
            refuse_header_after(found.is_some(), line)?;
            continue;
        };
        if found.is_some() {
            return Err(ChangeError::Several { line: line.number });
        }
        let length = lines[index..].iter().position(|inner| fence.closed_by(inner.text));
        let length = length.ok_or(ChangeError::OpenFence { line: line.number })?;
        let text: String = lines[index..index + length].iter().map(|inner| inner.text).collect();
        index += length + 1;
        if [FRONT_MATTER, DOCSTRING].iter().any(|start| text.trim_start().starts_with(start)) {
            found = Some(text.trim_start().to_owned());
        } else {
            snippet = true;
        }
    }
    found.ok_or(if snippet { ChangeError::NotWhole } else { ChangeError::NoChange })
}

fn refuse_header_after(begun: bool, line: &Line<'_>) -> Result<(), ChangeError> {
    if begun { refuse_header(line) } else { Ok(()) }
}

/// The side of a block that is being read.
enum Side {
    Outside,
    Search { began: usize, search: String },
    Replace { began: usize, search: String, replace: String },
}

/// All blocks; fences and prose between them are looked over.
fn read_blocks(lines: &[Line<'_>]) -> Result<Vec<Block>, ChangeError> {
    let mut blocks = Vec::new();
    let mut side = Side::Outside;
    for line in lines {
        let block = blocks.len() + 1;
        let found = marker(line.text);
        let misplaced = |found, wanted| Err(ChangeError::Misplaced { block, line: line.number, found, wanted });
        if let (None, Some(wanted)) = (found, almost_marker(line.text)) {
            let found = line.bare().trim().chars().take(60).collect();
            return Err(ChangeError::Marker { line: line.number, found, wanted });
        }
        side = match (side, found) {
            (Side::Outside, Some(SEARCH)) if blocks.len() == MAX_BLOCKS => {
                return Err(ChangeError::TooManyBlocks { limit: MAX_BLOCKS });
            }
            (Side::Outside, Some(SEARCH)) => Side::Search { began: line.number, search: String::new() },
            (Side::Outside, Some(other)) => return misplaced(other, "`<<<<<<< SEARCH`"),
            (Side::Outside, None) => {
                if line.text.starts_with(FRONT_MATTER) {
                    return Err(ChangeError::Both);
                }
                if !blocks.is_empty() {
                    refuse_header(line)?;
                }
                Side::Outside
            }
            (Side::Search { began, search }, Some(MIDDLE)) => Side::Replace { began, search, replace: String::new() },
            (Side::Search { .. }, Some(other)) => return misplaced(other, "`=======`"),
            (Side::Search { began, search }, None) => Side::Search { began, search: search + line.text },
            (Side::Replace { search, replace, .. }, Some(REPLACE)) => {
                if search.is_empty() {
                    return Err(ChangeError::EmptySearch { block });
                }
                blocks.push(Block { search, replace });
                Side::Outside
            }
            (Side::Replace { .. }, Some(other)) => return misplaced(other, "`>>>>>>> REPLACE`"),
            (Side::Replace { began, search, replace }, None) => {
                Side::Replace { began, search, replace: replace + line.text }
            }
        };
    }
    let block = blocks.len() + 1;
    match side {
        Side::Outside => Ok(blocks),
        Side::Search { began, .. } => Err(ChangeError::OpenBlock { block, line: began, missing: MIDDLE }),
        Side::Replace { began, .. } => Err(ChangeError::OpenBlock { block, line: began, missing: REPLACE }),
    }
}
