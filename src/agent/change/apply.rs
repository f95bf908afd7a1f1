//! Putting search/replace blocks into a file: exactly, or not at all.

use std::collections::HashMap;
use std::ops::Range;

use super::{Block, ChangeError};

/// So many lines of a search are compared when the nearest place is looked for; that is for a sentence only.
const COMPARED: usize = 100;
/// Longest quotation of a line in a sentence, in characters.
const QUOTED: usize = 100;

/// The incumbent with every block in its place.
pub(super) fn blocks(blocks: &[Block], incumbent: &str) -> Result<String, ChangeError> {
    let lines: Vec<&str> = incumbent.split_inclusive('\n').collect();
    let mut places = HashMap::<&str, Vec<usize>>::new();
    for (index, line) in lines.iter().enumerate() {
        places.entry(without_feed(line)).or_default().push(index);
    }
    let mut found = Vec::with_capacity(blocks.len());
    for (index, block) in blocks.iter().enumerate() {
        found.push((place(index + 1, block, &lines, &places)?, index));
    }
    found.sort_by_key(|(range, _)| range.start);
    for pair in found.windows(2) {
        let [(before, first), (after, second)] = pair else { continue };
        if after.start < before.end {
            let (first, second) = (first.min(second) + 1, first.max(second) + 1);
            return Err(ChangeError::Overlap { first, second });
        }
    }
    let mut text = String::with_capacity(incumbent.len());
    let mut at = 0;
    for (range, index) in found {
        text.extend(lines[at..range.start].iter().copied());
        let replace = &blocks[index].replace;
        // A file that ends without a line feed goes on to do so.
        let last = range.end == lines.len() && !incumbent.ends_with('\n');
        text.push_str(if last { without_feed(replace) } else { replace });
        at = range.end;
    }
    text.extend(lines[at..].iter().copied());
    Ok(text)
}

/// Without the line feed at its end; a carriage return before it stays, as it is part of the line.
fn without_feed(line: &str) -> &str {
    line.strip_suffix('\n').unwrap_or(line)
}

/// The only lines of the file that are the block's search.
fn place(
    number: usize,
    block: &Block,
    lines: &[&str],
    places: &HashMap<&str, Vec<usize>>,
) -> Result<Range<usize>, ChangeError> {
    let search: Vec<&str> = block.search.split_inclusive('\n').map(without_feed).collect();
    let first = search.first().ok_or(ChangeError::EmptySearch { block: number })?;
    let candidates = places.get(first).map_or(&[][..], Vec::as_slice);
    let mut hits = candidates.iter().copied().filter(|at| {
        let here = lines.get(*at..at + search.len());
        here.is_some_and(|here| here.iter().zip(&search).all(|(line, wanted)| without_feed(line) == *wanted))
    });
    match (hits.next(), hits.next()) {
        (Some(at), None) => Ok(at..at + search.len()),
        (Some(at), Some(again)) => {
            Err(ChangeError::Ambiguous { block: number, times: 2 + hits.count(), first: at + 1, second: again + 1 })
        }
        (None, _) => Err(ChangeError::NotFound { block: number, nearest: nearest(&search, lines) }),
    }
}

/// Where the file comes closest to the search, and how it differs there.
fn nearest(search: &[&str], lines: &[&str]) -> String {
    let search = &search[..search.len().min(COMPARED)];
    let alike = |at: usize| {
        search
            .iter()
            .zip(&lines[at..])
            .filter(|(wanted, line)| !wanted.trim().is_empty() && wanted.trim() == line.trim())
            .count()
    };
    let best = (0..lines.len()).map(|at| (alike(at), at)).max_by_key(|(count, at)| (*count, usize::MAX - at));
    match best {
        Some((count, at)) if count > 0 => {
            let differs = search.iter().zip(&lines[at..]).position(|(wanted, line)| *wanted != without_feed(line));
            match differs {
                Some(offset) => {
                    let (wanted, line) = (search[offset], without_feed(lines[at + offset]));
                    format!(
                        "The nearest place: line {} is {}{}",
                        at + offset + 1,
                        quoted(line),
                        difference(wanted, line)
                    )
                }
                None => format!("The file ends in line {}, before the search does.", lines.len()),
            }
        }
        _ => most_similar(search, lines),
    }
}

/// What is different between two lines that are near each other.
fn difference(wanted: &str, line: &str) -> String {
    if wanted.trim_end_matches('\r') == line.trim_end_matches('\r') {
        return ", which differs in the carriage return at its end only.".into();
    }
    if wanted.trim_end() == line.trim_end() {
        return ", which differs in white space at its end only.".into();
    }
    if wanted.trim() == line.trim() {
        return ", which differs in its indentation only. Copy lines exactly.".into();
    }
    format!(", the search has {}. Copy lines exactly.", quoted(wanted))
}

/// The line that shares most with the search's first filled line, at its two ends.
fn most_similar(search: &[&str], lines: &[&str]) -> String {
    let Some(wanted) = search.iter().map(|line| line.trim()).find(|line| !line.is_empty()) else {
        return "Its lines are empty ones: add filled lines around them.".into();
    };
    let shared = |line: &str| {
        let front = wanted.chars().zip(line.chars()).take_while(|(a, b)| a == b).count();
        let back = wanted.chars().rev().zip(line.chars().rev()).take_while(|(a, b)| a == b).count();
        front + back
    };
    let best = lines
        .iter()
        .enumerate()
        .map(|(index, line)| (shared(line.trim()), index))
        .max_by_key(|(n, at)| (*n, usize::MAX - at));
    match best {
        Some((count, index)) if 2 * count >= wanted.chars().count() => {
            format!("The nearest line is {}, {}. Copy lines exactly.", index + 1, quoted(without_feed(lines[index])))
        }
        _ => format!("No line is like {}. Is it from an earlier version of the file?", quoted(wanted)),
    }
}

/// A line as evidence: in quotes, on one line, not too long.
fn quoted(line: &str) -> String {
    let short: String = line.chars().take(QUOTED).collect();
    let more = if short.len() < line.len() { "…" } else { "" };
    format!("{short:?}{more}")
}
