//! C text as the preprocessor's directives see it: logical lines without comments.

/// A logical line: spliced, comments gone, string literals taken out of the code.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Number of its first line, from 1.
    pub(super) number: usize,
    /// The code, with `""` and `' '` where literals were.
    pub(super) code: String,
    /// The string literals' contents, in order.
    pub(super) strings: Vec<String>,
    /// A quote follows a number where none may.
    pub(super) quoted_number: bool,
}

/// Whether code ends within a number (C11 6.4.8), which goes on over letters, dots and signs of exponents.
fn ends_in_number(code: &str) -> bool {
    let mut inside = false;
    let mut before = ' ';
    for c in code.chars() {
        let name = c.is_alphanumeric() || c == '_' || c == '$';
        inside = match (inside, c) {
            (true, '.' | '\'') => true,
            (true, '+' | '-') => matches!(before, 'e' | 'E' | 'p' | 'P'),
            (true, _) => name,
            (false, _) => c.is_ascii_digit() && !(before.is_alphanumeric() || matches!(before, '_' | '$')),
        };
        before = c;
    }
    inside
}

/// Logical lines in the order of translation: splices first, then comments (C11 5.1.1.2). Where `separates_digits`, a quote in a
/// number is a part of it.
pub(super) fn split(text: &str, separates_digits: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut line = Line { number: 1, ..Line::default() };
    let mut number = 1;
    let chars: Vec<char> = text.chars().filter(|c| *c != '\r').collect();
    let mut at = 0;
    // The next character after splices; GCC allows blanks between the backslash and the line's end.
    let next = |at: &mut usize, number: &mut usize| -> Option<char> {
        while chars.get(*at) == Some(&'\\') {
            let mut end = *at + 1;
            while matches!(chars.get(end), Some(' ' | '\t' | '\x0b' | '\x0c')) {
                end += 1;
            }
            if chars.get(end) != Some(&'\n') {
                break;
            }
            *number += 1;
            *at = end + 1;
        }
        let c = chars.get(*at).copied();
        *at += 1;
        c
    };
    while let Some(c) = next(&mut at, &mut number) {
        match c {
            '\n' => {
                number += 1;
                lines.push(std::mem::replace(&mut line, Line { number, ..Line::default() }));
            }
            '/' => {
                let (mut ahead, mut ahead_number) = (at, number);
                match next(&mut ahead, &mut ahead_number) {
                    Some('*') => {
                        (at, number) = (ahead, ahead_number);
                        let mut last = ' ';
                        while let Some(c) = next(&mut at, &mut number) {
                            number += usize::from(c == '\n');
                            if last == '*' && c == '/' {
                                break;
                            }
                            last = c;
                        }
                        line.code.push(' ');
                    }
                    Some('/') => {
                        loop {
                            let (mut ahead, mut ahead_number) = (at, number);
                            match next(&mut ahead, &mut ahead_number) {
                                Some('\n') | None => break,
                                Some(_) => (at, number) = (ahead, ahead_number),
                            }
                        }
                        line.code.push(' ');
                    }
                    _ => line.code.push('/'),
                }
            }
            '"' => {
                let mut literal = String::new();
                let mut escaped = false;
                loop {
                    let (mut ahead, mut ahead_number) = (at, number);
                    match next(&mut ahead, &mut ahead_number) {
                        None | Some('\n') => break,
                        Some(c) => {
                            (at, number) = (ahead, ahead_number);
                            if c == '"' && !escaped {
                                break;
                            }
                            escaped = c == '\\' && !escaped;
                            literal.push(c);
                        }
                    }
                }
                line.strings.push(literal);
                line.code.push_str("\"\"");
            }
            '\'' if separates_digits
                && ends_in_number(&line.code)
                && chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_') =>
            {
                line.code.push('\'');
            }
            '\'' => {
                line.quoted_number |= ends_in_number(&line.code);
                let mut escaped = false;
                loop {
                    let (mut ahead, mut ahead_number) = (at, number);
                    match next(&mut ahead, &mut ahead_number) {
                        None | Some('\n') => break,
                        Some(c) => {
                            (at, number) = (ahead, ahead_number);
                            if c == '\'' && !escaped {
                                break;
                            }
                            escaped = c == '\\' && !escaped;
                        }
                    }
                }
                line.code.push_str("' '");
            }
            c => line.code.push(c),
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splices_come_before_comments_and_literals_are_set_apart() {
        let lines = split("a /* b\n c */ d\n#e\\\nf \"x // y\" '\\'' // z\\\n still\ng", false);
        let seen: Vec<(usize, &str)> = lines.iter().map(|line| (line.number, line.code.trim_end())).collect();
        assert_eq!(seen, [(1, "a   d"), (3, "#ef \"\" ' '"), (6, "g")]);
        assert_eq!(lines[1].strings, ["x // y"]);
    }

    #[test]
    fn a_quote_in_a_number_separates_digits_where_the_language_has_it() {
        let code = |text: &str, separates| split(text, separates)[0].code.trim_end().to_owned();
        assert_eq!(
            code("a1'x' + 0x1'f'2 + 1e+5'0 + u8'x' + .5'5 // '", true),
            "a1' ' + 0x1'f'2 + 1e+5'0 + u8' ' + .5'5"
        );
        assert!(split("b + 0x1'f", false)[0].quoted_number);
        assert!(!split("u8'x' + a1'x' + 1 + ' '", false)[0].quoted_number);
    }
}
