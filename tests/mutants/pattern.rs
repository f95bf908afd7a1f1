//! Patterns of mutation operators: where they match in code, and what then takes the place.

use crate::code::{Code, Part, is_word};

/// A place where a pattern matches.
pub struct Site<'a> {
    pub begin: usize,
    pub end: usize,
    parts: Vec<(char, &'a str)>,
}

impl Site<'_> {
    /// A replacement with what was found in the place of its letters.
    pub fn fill(&self, replacement: &str) -> String {
        let filled = |text: String, (letter, part): &(char, &str)| text.replace(&format!("${letter}"), part);
        self.parts.iter().fold(replacement.to_owned(), filled)
    }
}

/// Every place where `pattern` matches. In it a space stands for any white space, and
///
/// - `$i` for a name, `$o` for an operand (a name, or a member of something), `$n` for a decimal integer, `$f` for a float;
/// - `$x` for an expression and `$a` for a list of arguments, up to what follows in the pattern.
///
/// Names and numbers match whole.
pub fn sites<'a>(code: &Code<'a>, pattern: &str) -> Vec<Site<'a>> {
    let first = pattern.bytes().next().unwrap_or(b' ');
    let starts = |at: &usize| {
        let before = at.checked_sub(1);
        let in_word = is_word(first) && before.is_some_and(|at| code.byte(at).is_some_and(is_word));
        let in_space = first == b' ' && before.is_some_and(|at| code.is_space(at));
        !in_word && !in_space
    };
    let all = (0..code.text.len()).filter(starts);
    all.filter_map(|begin| {
        let mut parts = Vec::new();
        let end = matches(code, pattern, begin, &mut parts)?;
        Some(Site { begin, end, parts })
    })
    .collect()
}

/// Where a match of `pattern` from `at` ends.
fn matches<'a>(code: &Code<'a>, pattern: &str, at: usize, parts: &mut Vec<(char, &'a str)>) -> Option<usize> {
    let mut letters = pattern.chars();
    let Some(first) = letters.next() else { return Some(at) };
    let rest = letters.as_str();
    match first {
        '$' => {
            let letter = letters.next()?;
            let rest = letters.as_str();
            let end = match letter {
                'i' | 'o' | 'n' | 'f' => word(code, letter, at)?,
                _ => stretch(code, rest, at, letter == 'a')?,
            };
            parts.push((letter, &code.text[at..end]));
            matches(code, rest, end, parts)
        }
        ' ' => {
            let end = code.after(at);
            if end == at { None } else { matches(code, rest, end, parts) }
        }
        letter => {
            let byte = code.byte(at).filter(|byte| char::from(*byte) == letter)?;
            // A name ends where the pattern's does.
            let goes_on = rest.bytes().next().is_some_and(is_word);
            let cut = is_word(byte) && !goes_on && code.byte(at + 1).is_some_and(is_word);
            if cut { None } else { matches(code, rest, at + 1, parts) }
        }
    }
}

/// The end of a name, operand or number at `at`.
fn word(code: &Code<'_>, letter: char, at: usize) -> Option<usize> {
    let byte = |at: usize| code.byte(at);
    if at > 0 && byte(at - 1).is_some_and(|before| is_word(before) || before == b'.') {
        return None;
    }
    let first = byte(at)?;
    let mut end = at;
    while byte(end).is_some_and(is_word) {
        end += 1;
    }
    let text = &code.text[at..end];
    match letter {
        'i' => (end > at && !first.is_ascii_digit()).then_some(end),
        'n' => {
            let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
            let whole = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
            (whole && byte(end) != Some(b'.')).then_some(end)
        }
        'f' => {
            (first.is_ascii_digit() && byte(end) == Some(b'.')).then_some(())?;
            end += 1;
            while let Some(next) = byte(end) {
                let sign = matches!(next, b'-' | b'+') && matches!(byte(end - 1), Some(b'e' | b'E'));
                if !is_word(next) && !sign {
                    break;
                }
                end += 1;
            }
            Some(end)
        }
        _ => {
            (end > at && !first.is_ascii_digit()).then_some(())?;
            loop {
                let step = match (byte(end), byte(end + 1)) {
                    (Some(b'-'), Some(b'>')) => 2,
                    (Some(b'.'), Some(next)) if is_word(next) => 1,
                    _ => return Some(end),
                };
                end += step;
                while byte(end).is_some_and(is_word) {
                    end += 1;
                }
            }
        }
    }
}

/// The end of a stretch of text that begins at `at`: where the rest of the pattern begins, on the same level of brackets.
fn stretch(code: &Code<'_>, rest: &str, at: usize, list: bool) -> Option<usize> {
    let next = rest.bytes().next()?;
    let mut depth = 0;
    for end in at..code.text.len() {
        let Some(byte) = code.byte(end) else {
            // What is between quotation marks belongs to an argument.
            let part = code.part(end);
            if part == Part::Quoted && !list || part == Part::Hint {
                return None;
            }
            continue;
        };
        if depth == 0 && byte == next {
            return (end > at || list).then_some(end);
        }
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' | b'{' | b'}' => return None,
            b',' if depth == 0 && !list => return None,
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

    fn all(text: &str, pattern: &str, replacement: &str) -> Vec<String> {
        let code = Code::of(text);
        sites(&code, pattern)
            .iter()
            .map(|site| format!("{}{}{}", &text[..site.begin], site.fill(replacement), &text[site.end..]))
            .collect()
    }

    #[test]
    fn operators_match_between_spaces_alone() {
        assert_eq!(
            all("f<int>(a < b, c\n    < d)", " < ", " <= "),
            ["f<int>(a <= b, c\n    < d)", "f<int>(a < b, c <= d)"]
        );
        assert_eq!(all("T *x = a * b;", " * ", " + "), ["T *x = a + b;"]);
    }

    #[test]
    fn names_match_whole() {
        assert_eq!(all("eps + my_eps + eps2 + p->eps;", "+ eps", "+ 1"), Vec::<String>::new());
        assert_eq!(all("x + eps);", "+ eps", "+ 1"), ["x + 1);"]);
        assert_eq!(all("x + p->eps;", "+ $o;", "+ [$o];"), ["x + [p->eps];"]);
    }

    #[test]
    fn numbers_are_decimal_and_whole() {
        assert_eq!(
            all("a[1] + 0x10 + 2.5f + v2 + 3u;", "$n", "9"),
            ["a[9] + 0x10 + 2.5f + v2 + 3u;", "a[1] + 0x10 + 2.5f + v2 + 9;"]
        );
        assert_eq!(all("x * 1.5e-3f + 1", "$f", "F"), ["x * F + 1"]);
    }

    #[test]
    fn expressions_end_on_their_own_level() {
        assert_eq!(all("for (i = 0; i < f(n, m); i++)", " < $x;", " < $x - 1;"), ["for (i = 0; i < f(n, m) - 1; i++)"]);
        assert_eq!(all("if ((a) && b) c;", "if ($x)", "if (!($x))"), ["if (!((a) && b)) c;"]);
        assert_eq!(all("asm volatile(\"x;\" ::\"r\"(a) : \"memory\");", "asm volatile($a)", "(void)0"), ["(void)0;"]);
        assert_eq!(all("f(a, b); f(c);", "f($x)", "g($x)"), ["f(a, b); g(c);"]);
    }
}
