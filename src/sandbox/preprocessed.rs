//! Reading what the compiler sees of a C kernel: its text after preprocessing, where no macro, no pasting of words or strings
//! and no spelling hides anything.

use super::dialect::{SourceError, refuse};
use super::source::{
    ATTRIBUTES, C, INSTRUCTIONS, attribute_refused, directive_refused, instruction_refused, pragma_refused,
};

/// What headers of the compiler's own say to it; a kernel does not.
const PRAGMAS_OF_HEADERS: [&str; 4] = ["GCC push_options", "GCC pop_options", "GCC target", "clang"];

/// A piece of the text that means something by itself.
#[derive(Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// What a string stands for.
    Text(String),
    /// A character constant, or a number.
    Value,
    Sign(char),
}

/// Checks `text`, the output of the preprocessor for a translation unit, of which `own` is the kernel's own file.
///
/// # Errors
/// The first thing that no kernel may contain, with its line in the kernel's file: what [`super::check_c`] looks for, here as the
/// compiler is given it. Headers of the compiler's own may give it switches, but none that change arithmetic.
pub fn check_preprocessed_c(text: &str, own: &str) -> Result<(), SourceError> {
    let mut reader = Reader { own, in_own: false, depth: None, asm: Asm::No, joined: String::new(), from: 0 };
    let mut number = 1;
    for line in text.lines() {
        if let Some(marker) = line.strip_prefix("# ") {
            let mut fields = marker.splitn(2, ' ');
            if let (Some(Ok(at)), Some(file)) = (fields.next().map(str::parse::<usize>), fields.next()) {
                let file = file.strip_prefix('"').and_then(|file| file.split('"').next()).unwrap_or_default();
                (number, reader.in_own) = (at, file == own);
                continue;
            }
        }
        if let Some(pragma) = line.trim_start().strip_prefix('#') {
            reader.check_pragma(number, pragma)?;
        } else {
            reader.check_line(number, line)?;
        }
        number += 1;
    }
    reader.end_of_string()
}

/// How far an `asm` is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asm {
    No,
    /// The word, and what may stand between it and its bracket.
    Word,
    /// Its bracket: the template follows.
    Open,
}

struct Reader<'a> {
    own: &'a str,
    in_own: bool,
    /// Open brackets of an attribute.
    depth: Option<usize>,
    asm: Asm,
    /// Strings that follow each other are one.
    joined: String,
    /// Line of its first one.
    from: usize,
}

impl Reader<'_> {
    fn check_pragma(&self, number: usize, directive: &str) -> Result<(), SourceError> {
        let Some(pragma) = directive.trim_start().strip_prefix("pragma") else {
            return refuse(number, &format!("`#{}` in what {} becomes", directive.trim(), self.own));
        };
        let known = C.knows_pragma(pragma);
        let of_a_header = PRAGMAS_OF_HEADERS.iter().any(|one| pragma.trim_start().starts_with(one));
        if known || (!self.in_own && of_a_header) { Ok(()) } else { pragma_refused(number, pragma) }
    }

    fn check_line(&mut self, number: usize, line: &str) -> Result<(), SourceError> {
        let mut rest = line;
        while let Some((token, after)) = next_token(rest) {
            rest = after;
            if let Token::Text(text) = token {
                if self.joined.is_empty() {
                    self.from = number;
                }
                self.joined.push_str(&text);
                continue;
            }
            self.end_of_string()?;
            self.check_token(number, &token, rest)?;
        }
        Ok(())
    }

    fn check_token(&mut self, number: usize, token: &Token<'_>, rest: &str) -> Result<(), SourceError> {
        self.asm = match (token, self.asm) {
            (Token::Word("asm" | "__asm" | "__asm__"), _) => Asm::Word,
            (Token::Word("volatile" | "__volatile__" | "__volatile" | "goto" | "inline"), Asm::Word) => Asm::Word,
            (Token::Sign('('), Asm::Word) => Asm::Open,
            _ => Asm::No,
        };
        match token {
            Token::Word("__attribute__" | "__attribute") => self.depth = Some(0),
            Token::Sign('[') if rest.trim_start().starts_with('[') => self.depth = Some(0),
            Token::Sign('(' | '[') => self.depth = self.depth.map(|open| open + 1),
            Token::Sign(')' | ']') => self.depth = self.depth.filter(|open| *open > 1).map(|open| open - 1),
            Token::Word(word) => {
                C.check_word(number, word)?;
                let binds = ATTRIBUTES.contains(&word.trim_matches('_'));
                if self.in_own && binds && self.depth.is_some() {
                    return attribute_refused(number, word);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What strings that followed each other are together.
    fn end_of_string(&mut self) -> Result<(), SourceError> {
        let text = std::mem::take(&mut self.joined);
        if text.is_empty() || !self.in_own {
            return Ok(());
        }
        let lower = text.to_ascii_lowercase();
        if let Some(word) = INSTRUCTIONS.iter().find(|word| lower.contains(**word)) {
            return instruction_refused(self.from, word);
        }
        if self.asm == Asm::Open && has_directive(&text) {
            return directive_refused(self.from);
        }
        Ok(())
    }
}

/// Directives of the assembler's that begin as local labels do; it makes no difference of large letters and small ones.
const LIKE_LABELS: [&str; 11] =
    ["largecomm", "lcomm", "lflags", "line", "linkonce", "list", "ln", "loc", "local", "loc_mark_labels", "long"];

/// Whether a statement of an assembler's text may begin with `.name`: a dot before a letter is part of a name only behind a letter,
/// a number or an operand, or where a local label (`.L0`) is meant.
fn has_directive(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_dot = |(_, byte): &(usize, &u8)| **byte == b'.';
    bytes.iter().enumerate().filter(is_dot).any(|(at, _)| {
        let before = at.checked_sub(1).map(|at| bytes[at]);
        let part = before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b']' | b'}' | b'%' | b'='));
        let length = bytes[at + 1..].iter().take_while(|c| c.is_ascii_alphanumeric() || **c == b'_').count();
        let name = &bytes[at + 1..=at + length];
        let letter = name.first().is_some_and(|c| c.is_ascii_alphabetic() || *c == b'_');
        let like = |one: &&str| name.eq_ignore_ascii_case(one.as_bytes());
        let label = name.first() == Some(&b'L') && !LIKE_LABELS.iter().any(like);
        letter && !part && !label
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// The first token of a line, and what follows it; `None` at its end.
fn next_token(line: &str) -> Option<(Token<'_>, &str)> {
    let line = line.trim_start();
    let first = line.chars().next()?;
    let split = |at: usize| line.split_at(at);
    if first.is_ascii_digit() {
        let end = line.find(|c: char| !is_name(c) && c != '.').unwrap_or(line.len());
        return Some((Token::Value, split(end).1));
    }
    if is_name(first) {
        let end = line.find(|c: char| !is_name(c)).unwrap_or(line.len());
        let (word, rest) = split(end);
        // A prefix of a string or a character is a part of it.
        if matches!(word, "L" | "u" | "U" | "u8") && rest.starts_with(['"', '\'']) {
            return next_token(rest);
        }
        return Some((Token::Word(word), rest));
    }
    if first == '"' || first == '\'' {
        let mut escaped = false;
        let body = &line[1..];
        let end = body.find(|c| {
            let ends = c == first && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let (body, rest) = end.map_or((body, ""), |end| (&body[..end], &body[end + 1..]));
        return Some((if first == '"' { Token::Text(unescaped(body)) } else { Token::Value }, rest));
    }
    Some((Token::Sign(first), split(first.len_utf8()).1))
}

/// A string's content as the compiler understands it.
fn unescaped(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let (radix, most) = match rest.peek() {
            Some('0'..='7') => (8, 3),
            Some('x') => (16, usize::MAX),
            Some('u') => (16, 4),
            Some('U') => (16, 8),
            _ => {
                out.extend(rest.next().map(|c| match c {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'v' | 'f' => ' ',
                    other => other,
                }));
                continue;
            }
        };
        if radix == 16 {
            rest.next();
        }
        let mut value = 0u32;
        let mut digits = 0;
        while let Some(digit) = rest.peek().and_then(|c| c.to_digit(radix)).filter(|_| digits < most) {
            value = value.wrapping_mul(radix).wrapping_add(digit);
            digits += 1;
            rest.next();
        }
        out.push(if most == usize::MAX || radix == 8 {
            char::from(value as u8)
        } else {
            char::from_u32(value).unwrap_or(' ')
        });
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(text: &str) -> Result<(), SourceError> {
        check_preprocessed_c(&format!("# 0 \"unit.c\"\n# 1 \"k.c\"\n{text}\n"), "k.c")
    }

    #[test]
    fn an_honest_kernel_passes() {
        check(
            "static inline __attribute__((always_inline)) float f(float section) { return section; }\n\
             #pragma omp simd reduction(+:s)\n#pragma GCC unroll 4\n\
             __attribute__((aligned(64), target(\"avx2\"))) static const char *weak = \"a.b .c \" \"x\";\n\
             void k(void) { __asm__ volatile(\"vaddps %0, %1, %2\\n\\tprefetcht0 (%3)\" \"\\n.L%=: jne .Lnext%=\\n fmla v0.4s, %1.4s, v2.s[0]\" ::: \"memory\"); }\n\
             char c = '\\''; char d = '\"'; int e = 0x1p-3 + 1.e+5;",
        )
        .unwrap();
    }

    #[test]
    fn what_pasting_makes_is_refused() {
        for text in [
            "__attribute__((optimize(\"fast\" \"-math\"))) void k(void);",
            "__attribute__((__optimize__(\"fast-math\"))) void k(void);",
            "[[gnu::optimize(\"fast-math\")]] void k(void);",
            "#pragma GCC optimize (\"fast-math\")",
            "#pragma GCC push_options",
            "#pragma GCC target(\"fpmath=387\")",
            "__attribute__((unused,\n constructor)) void k(void);",
            "__attribute__((\n section(\"x\"))) int k;",
            "[[gnu::section(\"x\")]] int k;",
            "static __thread int k;",
            "__asm__(\".\" \"byte 15, 5\");",
            "__asm__(\".By\" \"te 15, 5\");",
            "__asm__ volatile(\"nop;\\56byte 15\");",
            "__asm__(\"nop /* */ .byte 15\");",
            "__asm__(\"nop\\n.Long 5\");",
            "__asm__(\"nop\\n.BYTE 5\");",
            "__asm__ volatile(\"nop\\n x: .byte 15\");",
            "void k(void) { asm volatile(\"sys\" \"call\"); }",
            "void k(void) { asm volatile(\"sys\"\n\"\\x63\" \"all\"); }",
            "void k(void) { asm volatile(\"rd\" \"TSC\"); }",
            "#include \"x\"",
        ] {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn headers_may_say_more_but_nothing_that_changes_arithmetic() {
        let header = |text: &str| {
            let text = format!("# 1 \"k.c\"\nint a;\n# 1 \"/usr/include/x.h\" 1 3 4\n{text}\n# 3 \"k.c\" 2\nint b;\n");
            check_preprocessed_c(&text, "k.c")
        };
        header("#pragma GCC push_options\n#pragma GCC target(\"avx\")\nextern int f(void) __asm__(\"\" \"g\");")
            .unwrap();
        header("extern int __attribute__((__visibility__(\"default\"))) f(void);").unwrap();
        // A kernel that gives a word of a header's another meaning.
        assert!(header("extern __attribute__((optimize(\"fast-math\"))) int f(void);").is_err());
        assert!(header("#pragma GCC optimize(\"fast-math\")").is_err());
    }

    #[test]
    fn a_refusal_names_the_line_of_the_kernels_own_file() {
        let text = "# 1 \"unit.c\"\nfloat x;\n# 7 \"k.c\"\nint a;\n__asm__(\"nop\\n\"\n  \".byte 1\");\n";
        assert_eq!(check_preprocessed_c(text, "k.c").unwrap_err().line, 8);
    }
}
