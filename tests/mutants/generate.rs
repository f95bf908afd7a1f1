//! The mutants of a kernel file: a pure function of its text.

use std::collections::BTreeSet;

use warpsmith::rng::Stream;

use crate::code::{Code, is_word};
use crate::pattern::sites;
use crate::table::{Find, Kind, Language, OPERATORS};

/// A kernel file with one mistake.
#[derive(Debug, Clone)]
pub struct Mutant {
    /// The file that it was made of, such as `cpu/softmax.c`.
    pub file: String,
    pub kind: Kind,
    /// Counted from one.
    pub line: usize,
    /// That line, and what became of it, without the space around.
    pub before: String,
    pub after: String,
    pub text: String,
}

/// Every operator at every site of a text, each text once, in the order of the operators.
pub fn mutants(file: &str, text: &str) -> Vec<Mutant> {
    let language = if file.ends_with(".cu") { Language::Cuda } else { Language::C };
    let code = Code::of(text);
    let (mut all, mut known) = (Vec::new(), BTreeSet::from([text.to_owned()]));
    for operator in OPERATORS.iter().filter(|operator| operator.only.is_none_or(|only| only == language)) {
        let edits: Vec<(usize, usize, String)> = match &operator.find {
            Find::Statement => statements(&code).into_iter().map(|(begin, end)| (begin, end, String::new())).collect(),
            Find::Text(pattern) => edits(&code, pattern, operator.to, &[""]),
            Find::With(pattern, parts) => edits(&code, pattern, operator.to, parts),
            Find::Unless(pattern, longer) => {
                let not: BTreeSet<usize> = sites(&code, longer).iter().map(|site| site.begin).collect();
                edits(&code, pattern, operator.to, &[""]).into_iter().filter(|edit| !not.contains(&edit.0)).collect()
            }
        };
        for (begin, end, to) in edits {
            let changed = [&text[..begin], &to, &text[end..]].concat();
            if is_size_of_array(&code, begin, end) || !known.insert(changed.clone()) {
                continue;
            }
            let (line, before) = line_at(text, code.after(begin));
            let after = line_at(&changed, code.after(begin)).1;
            all.push(Mutant { file: file.to_owned(), kind: operator.kind, line, before, after, text: changed });
        }
    }
    all
}

fn edits(code: &Code<'_>, pattern: &str, to: &str, parts: &[&str]) -> Vec<(usize, usize, String)> {
    let has_part = |begin: usize, end: usize| parts.iter().any(|part| code.text[begin..end].contains(part));
    let found = sites(code, pattern).into_iter().filter(|site| has_part(site.begin, site.end));
    found.map(|site| (site.begin, site.end, site.fill(to))).collect()
}

/// Some of the mutants, each kind in turn, as `seed` says.
pub fn draw(all: &[Mutant], count: usize, seed: u64) -> Vec<Mutant> {
    let stream = Stream::new(seed, "mutants");
    let mut keyed: Vec<(u64, &Mutant)> = all.iter().enumerate().map(|(at, it)| (stream.bits(at as u64), it)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    let mut turns = std::collections::BTreeMap::new();
    let mut in_turn: Vec<(usize, u64, &Mutant)> = Vec::new();
    for (key, mutant) in keyed {
        let turn: &mut usize = turns.entry(mutant.kind).or_default();
        in_turn.push((*turn, key, mutant));
        *turn += 1;
    }
    in_turn.sort_by_key(|(turn, key, _)| (*turn, *key));
    in_turn.into_iter().take(count).map(|(_, _, mutant)| mutant.clone()).collect()
}

/// The line with a byte of a text, and its number.
fn line_at(text: &str, at: usize) -> (usize, String) {
    let begin = text[..at].rfind('\n').map_or(0, |end| end + 1);
    let end = text[at..].find('\n').map_or(text.len(), |end| at + end);
    (text[..at].matches('\n').count() + 1, text[begin..end].trim().to_owned())
}

/// Whether a number is the size of an array where that is declared: more of it is no mistake.
fn is_size_of_array(code: &Code<'_>, begin: usize, end: usize) -> bool {
    let between = begin > 0 && code.byte(begin - 1) == Some(b'[') && code.byte(end) == Some(b']');
    let Some(name_end) = (begin.checked_sub(2)).filter(|_| between) else { return false };
    let name = code.word_before(name_end);
    let Some(before) = code.before(name_end + 1 - name.len()) else { return false };
    // `float part[2]`, `first, bits[2]`, but not `return part[2]`.
    !name.is_empty()
        && (code.byte(before) == Some(b',')
            || code.byte(before).is_some_and(is_word) && code.word_before(before) != "return")
}

/// Words that begin what is no statement to drop.
const NO_STATEMENT: [&str; 12] =
    ["return", "break", "continue", "if", "for", "while", "else", "do", "goto", "case", "asm", "template"];

/// Statements that assign, count or call: from their first byte to their semicolon.
fn statements(code: &Code<'_>) -> Vec<(usize, usize)> {
    let begins = |at: &usize| {
        if code.is_space(*at) || code.byte(*at).is_none() || *at > 0 && !begins_after(code, *at) {
            return false;
        }
        true
    };
    let mut found = Vec::new();
    for begin in (0..code.text.len()).filter(begins) {
        let Some(end) = end_of_statement(code, begin) else { continue };
        let text = &code.text[begin..end];
        let first: String = text.chars().take_while(|letter| letter.is_ascii() && is_word(*letter as u8)).collect();
        let second = text[first.len()..].trim_start();
        let declares = !first.is_empty() && second.starts_with(|it: char| it == '_' || it == '*' || it.is_alphabetic());
        let of_template = second.starts_with('<') && !text.contains(">(");
        let does = text.contains('=') || text.contains('(') || text.contains("++");
        if does && !declares && !of_template && !NO_STATEMENT.contains(&first.as_str()) {
            found.push((begin, end));
        }
    }
    found
}

/// Whether a statement can begin at `at`, by what is before it.
fn begins_after(code: &Code<'_>, at: usize) -> bool {
    let Some(before) = code.before(at) else { return false };
    match code.byte(before) {
        // Not between the parts of a `for`.
        Some(b';' | b'{' | b'}') => !in_parentheses(code, before),
        Some(b')') => code
            .opening(before)
            .and_then(|open| code.before(open))
            .is_some_and(|end| ["if", "for", "while"].contains(&code.word_before(end))),
        _ => code.word_before(before) == "else",
    }
}

/// Whether the innermost bracket around a place is a round one.
fn in_parentheses(code: &Code<'_>, at: usize) -> bool {
    let mut depth = 0;
    for place in (0..at).rev() {
        match code.byte(place) {
            Some(b')' | b']' | b'}') => depth += 1,
            Some(bracket @ (b'(' | b'[' | b'{')) => {
                if depth == 0 {
                    return bracket == b'(';
                }
                depth -= 1;
            }
            _ => {}
        }
    }
    false
}

/// The place of the semicolon of a statement without braces.
fn end_of_statement(code: &Code<'_>, begin: usize) -> Option<usize> {
    let mut depth = 0;
    for at in begin..code.text.len() {
        match code.byte(at) {
            Some(b'(' | b'[') => depth += 1,
            Some(b')' | b']') => depth -= 1,
            Some(b';') if depth == 0 => return Some(at),
            Some(b'{' | b'}' | b';') => return None,
            _ => {}
        }
        if depth < 0 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "/*---\nx = 1\n---*/\nvoid f(float *y, int n) {\n    float a[4];\n    for (int i = 0; i < n; i++) {\n        \
        /* y = 2; */\n        if (i > 2) continue;\n        y[i] += a[3] * 2;\n    }\n    g(y), *y = 1;\n}\n";

    fn lines(kind: Kind) -> Vec<String> {
        mutants("x.c", TEXT).into_iter().filter(|it| it.kind == kind).map(|it| it.after).collect()
    }

    #[test]
    fn statements_are_dropped_but_no_declarations_headers_or_comments() {
        assert_eq!(lines(Kind::Statement), ["if (i > 2) ;", ";", ";"]);
    }

    #[test]
    fn constants_change_in_code_alone_and_no_array_grows() {
        let changed = lines(Kind::Constant);
        assert_eq!(
            changed,
            [
                "for (int i = (0 + 1); i < n; i++) {",
                "if (i > (2 + 1)) continue;",
                "y[i] += a[(3 + 1)] * 2;",
                "y[i] += a[3] * (2 + 1);",
                "g(y), *y = (1 + 1);"
            ]
        );
    }

    #[test]
    fn each_text_comes_once_and_none_is_the_original() {
        let all = mutants("x.c", TEXT);
        let texts: BTreeSet<&str> = all.iter().map(|it| it.text.as_str()).collect();
        assert_eq!(texts.len(), all.len());
        assert!(!texts.contains(TEXT));
    }

    #[test]
    fn a_drawn_sample_has_every_kind_and_is_the_seeds() {
        let all = mutants("x.c", TEXT);
        let kinds: BTreeSet<Kind> = all.iter().map(|it| it.kind).collect();
        let [one, again] = [4, 4].map(|seed| draw(&all, kinds.len(), seed));
        assert_eq!(one.iter().map(|it| it.kind).collect::<BTreeSet<_>>(), kinds);
        assert_eq!(
            one.iter().map(|it| &it.text).collect::<Vec<_>>(),
            again.iter().map(|it| &it.text).collect::<Vec<_>>()
        );
    }
}
