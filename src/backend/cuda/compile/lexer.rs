//! The text of the virtual machine as statements, each in one spelling.
//!
//! Inline assembler is copied into this text as it was written, and the assembler takes many spellings of one instruction: spaces
//! within its name, none behind it, comments anywhere, directives before it that end with no semicolon. So the text is taken apart
//! once, as the assembler does it, and every reader sees what is put together from it: no comments, no line numbers, names of
//! instructions in one piece, and strings without their contents. What compilers never write is refused.

use std::ops::Range;

/// What may begin a statement beside an instruction. Line numbers are left out of what readers see.
const DIRECTIVES: [&str; 35] = [
    ".version",
    ".target",
    ".address_size",
    ".visible",
    ".extern",
    ".weak",
    ".common",
    ".entry",
    ".func",
    ".global",
    ".const",
    ".shared",
    ".local",
    ".param",
    ".reg",
    ".maxntid",
    ".reqntid",
    ".minnctapersm",
    ".maxnctapersm",
    ".maxnreg",
    ".maxclusterrank",
    ".explicitcluster",
    ".reqnctapercluster",
    ".noreturn",
    ".pragma",
    ".file",
    ".loc",
    ".section",
    ".branchtargets",
    ".calltargets",
    ".callprototype",
    ".b8",
    ".b16",
    ".b32",
    ".b64",
];

/// Signs that a text has beside words and strings.
const SIGNS: &str = ",;:(){}[]<>=+-*/%!@|&~^?";

/// A text in one spelling.
pub(super) struct Text {
    clean: String,
    pieces: Vec<Piece>,
}

struct Piece {
    function: usize,
    range: Range<usize>,
    head: Option<Head>,
}

#[derive(Clone, Copy)]
struct Head {
    is_kernel: bool,
    /// Where in the text the directive ends.
    after: usize,
}

/// A statement: an instruction with what stands before it, a directive, or a function's head with its brace.
pub(super) struct Statement<'a> {
    /// Which function it stands in; registers are a function's own.
    pub function: usize,
    pub text: &'a str,
    /// Of a function's head whether it is a kernel's, and what follows `.entry` or `.func`.
    pub head: Option<(bool, &'a str)>,
}

impl Text {
    /// Takes a text apart.
    ///
    /// # Errors
    /// A sentence: it has what no compiler writes.
    pub(super) fn of(ptx: &str) -> Result<Self, String> {
        let ptx = ptx.trim_end_matches('\0');
        if ptx.bytes().any(|byte| byte < b' ' && !matches!(byte, b'\n' | b'\t')) || ptx.contains("\\\n") {
            return Err("inline assembler with control characters or a line that goes on after a backslash".into());
        }
        let mut lexer = Lexer { rest: ptx };
        let mut building = Building::default();
        while let Some(token) = lexer.next()? {
            building.add(token, &mut lexer)?;
        }
        building.close(None);
        Ok(Self { clean: building.clean, pieces: building.pieces })
    }

    /// Its statements, in order; functions that follow one another have numbers that differ.
    pub(super) fn statements(&self) -> Vec<Statement<'_>> {
        let statement = |piece: &Piece| Statement {
            function: piece.function,
            text: self.clean[piece.range.clone()].trim(),
            head: piece.head.map(|head| (head.is_kernel, &self.clean[head.after..piece.range.end])),
        };
        self.pieces.iter().map(statement).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    /// A name or a number.
    Word(&'a str),
    /// A directive, or a kind of an instruction, with its dot.
    Dotted(&'a str),
    /// What a string has in its quotes.
    Quoted(&'a str),
    Sign(char),
}

struct Lexer<'a> {
    rest: &'a str,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Result<Option<Token<'a>>, String> {
        self.skip()?;
        let mut after = self.rest.chars();
        let Some(first) = after.next() else { return Ok(None) };
        let second = after.next().unwrap_or(' ');
        let token = match first {
            '"' => {
                let (quoted, rest) = self.rest[1..].split_once('"').ok_or("a string without an end")?;
                self.rest = rest;
                return Ok(Some(Token::Quoted(quoted)));
            }
            '.' if in_word(second) => {
                let mut end = 1 + word(&self.rest[1..]);
                // `.shared::cta`, and of more than two parts.
                while let Some(part) = self.rest[end..].strip_prefix("::").filter(|part| part.starts_with(in_word)) {
                    end += 2 + word(part);
                }
                Token::Dotted(self.take(end))
            }
            first if in_word(first) || first == '%' && in_word(second) => {
                let mut end = first.len_utf8() + word(&self.rest[first.len_utf8()..]);
                let fraction =
                    self.rest[end..].strip_prefix('.').filter(|part| part.starts_with(|c: char| c.is_ascii_digit()));
                if let Some(fraction) = fraction.filter(|_| first.is_ascii_digit()) {
                    end += 1 + word(fraction);
                }
                Token::Word(self.take(end))
            }
            sign if SIGNS.contains(sign) => {
                self.take(1);
                Token::Sign(sign)
            }
            other => return Err(format!("inline assembler with `{other}`, which no compiler writes")),
        };
        Ok(Some(token))
    }

    fn take(&mut self, end: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    /// Goes past spaces and comments.
    fn skip(&mut self) -> Result<(), String> {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\n']);
            if let Some(comment) = self.rest.strip_prefix("//") {
                self.rest = comment.find('\n').map_or("", |end| &comment[end..]);
            } else if let Some(comment) = self.rest.strip_prefix("/*") {
                self.rest = comment.split_once("*/").ok_or("a comment without an end")?.1;
            } else {
                return Ok(());
            }
        }
    }

    /// The next token where it is one of those asked for.
    fn next_if(&mut self, wanted: impl Fn(Token<'a>) -> bool) -> Result<Option<Token<'a>>, String> {
        let before = self.rest;
        let token = self.next()?.filter(|token| wanted(*token));
        if token.is_none() {
            self.rest = before;
        }
        Ok(token)
    }
}

fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$')
}

/// How many bytes a text has of a word that it begins with.
fn word(text: &str) -> usize {
    text.find(|c: char| !in_word(c)).unwrap_or(text.len())
}

fn is_number(token: Token<'_>) -> bool {
    matches!(token, Token::Word(word) if word.starts_with(|c: char| c.is_ascii_digit()))
}

/// What stands last, as far as it says how the next token is joined to it.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Last {
    #[default]
    Nothing,
    /// A name, or one with what is joined to it.
    Name,
    Number,
    Directive,
    Sign(char),
}

#[derive(Default)]
struct Building {
    clean: String,
    pieces: Vec<Piece>,
    start: usize,
    function: usize,
    depth: usize,
    head: Option<Head>,
    last: Last,
    /// Nothing but braces and labels stands before in this statement.
    begins: bool,
    /// The directive that this statement is.
    is_pragma: bool,
    /// Braces hold what a variable is filled with.
    fills: bool,
}

impl Building {
    fn add<'a>(&mut self, token: Token<'a>, lexer: &mut Lexer<'a>) -> Result<(), String> {
        match token {
            Token::Word(word) => {
                let joined = matches!(self.last, Last::Nothing | Last::Sign('@' | '!' | '[' | '(' | '<' | '+' | '-'));
                self.put(if joined { "" } else { " " }, word);
                self.last = if is_number(token) { Last::Number } else { Last::Name };
                self.begins = false;
            }
            Token::Dotted(word) => self.add_dotted(word, lexer)?,
            Token::Quoted(quoted) => {
                if !self.is_pragma || !is_known_pragma(quoted) {
                    return Err(format!("a string in assembler that no compiler writes ({quoted:?})"));
                }
                self.put(" ", "\"\"");
                self.last = Last::Nothing;
            }
            Token::Sign(sign) => self.add_sign(sign)?,
        }
        Ok(())
    }

    fn put(&mut self, space: &str, text: &str) {
        if !self.clean.ends_with([' ', '(']) {
            self.clean.push_str(space);
        }
        self.clean.push_str(text);
    }

    fn add_dotted<'a>(&mut self, word: &'a str, lexer: &mut Lexer<'a>) -> Result<(), String> {
        if self.depth > 0 && self.last == Last::Name {
            self.put("", word);
            return Ok(());
        }
        let begins = self.begins || self.clean[self.start..].trim().is_empty();
        if begins && !DIRECTIVES.contains(&word) {
            return Err(format!("the directive `{word}`, which no compiler writes into a kernel"));
        }
        match word {
            ".loc" | ".file" if begins => {
                self.begins = true;
                return lines(word, lexer);
            }
            ".loc" | ".file" | ".pragma" | ".reg" if !begins => return Err(format!("`{word}` within a statement")),
            ".entry" | ".func" if self.depth > 0 || self.head.is_some() => {
                return Err(format!("`{word}` within a function"));
            }
            _ => {}
        }
        self.put(" ", word);
        if matches!(word, ".entry" | ".func") {
            self.function += 1;
            self.head = Some(Head { is_kernel: word == ".entry", after: self.clean.len() });
        }
        self.is_pragma |= word == ".pragma";
        self.last = Last::Directive;
        self.begins = false;
        Ok(())
    }

    fn add_sign(&mut self, sign: char) -> Result<(), String> {
        let space = match sign {
            '[' | '(' | '-' if matches!(self.last, Last::Sign(_)) => "",
            '!' if self.last == Last::Sign('@') => "",
            '{' | '}' | '[' | '(' | '@' | '!' | '=' | '-' | '~' => " ",
            _ => "",
        };
        let begins = self.begins || self.clean[self.start..].trim().is_empty();
        match sign {
            ';' => {
                self.close(None);
                return Ok(());
            }
            '{' => {
                self.fills |= self.depth == 0 && self.last == Last::Sign('=');
                self.depth += 1;
            }
            '}' => self.depth = self.depth.checked_sub(1).ok_or("braces that do not match")?,
            _ => {}
        }
        self.put(space, sign.encode_utf8(&mut [0; 4]));
        if sign == ',' {
            self.clean.push(' ');
        }
        let outside = self.depth == 0 && sign == '}' && !self.fills;
        if sign == '{' && self.depth == 1 && self.head.is_some() || outside {
            let head = self.head.take();
            self.close(head);
            self.function += usize::from(outside);
            return Ok(());
        }
        self.last = Last::Sign(sign);
        // A label may have a directive behind it.
        self.begins = matches!(sign, '{' | '}') && begins || sign == ':';
        Ok(())
    }

    /// Ends a statement.
    fn close(&mut self, head: Option<Head>) {
        let head = head.or(self.head.take());
        let range = self.start..self.clean.len();
        if !self.clean[range.clone()].trim().is_empty() {
            self.pieces.push(Piece { function: self.function, range, head });
        }
        self.clean.push('\n');
        self.start = self.clean.len();
        (self.last, self.begins, self.is_pragma, self.fills) = (Last::Nothing, true, false, false);
    }
}

/// Goes past a directive that tells debuggers of lines, and ends with no semicolon.
fn lines<'a>(directive: &str, lexer: &mut Lexer<'a>) -> Result<(), String> {
    let wrong = || format!("a `{directive}` that no compiler writes");
    if directive == ".file" {
        lexer.next_if(is_number)?.ok_or_else(wrong)?;
        while let Some(Token::Quoted(name)) = lexer.next_if(|token| matches!(token, Token::Quoted(_)))? {
            if name.contains([';', '{', '}', '\\', '\n']) || name.contains("//") || name.contains("/*") {
                return Err(format!("a string in assembler that no compiler writes ({name:?})"));
            }
        }
        while lexer.next_if(|token| token == Token::Sign(','))?.is_some() {
            lexer.next_if(is_number)?.ok_or_else(wrong)?;
        }
        return Ok(());
    }
    for _ in 0..3 {
        lexer.next_if(is_number)?.ok_or_else(wrong)?;
    }
    while lexer.next_if(|token| token == Token::Sign(','))?.is_some() {
        match lexer.next()? {
            Some(Token::Word("function_name")) => {
                lexer.next_if(|token| matches!(token, Token::Word(_)))?.ok_or_else(wrong)?;
                if lexer.next_if(|token| token == Token::Sign('+'))?.is_some() {
                    lexer.next_if(is_number)?.ok_or_else(wrong)?;
                }
            }
            Some(Token::Word("inlined_at")) => {
                for _ in 0..3 {
                    lexer.next_if(is_number)?.ok_or_else(wrong)?;
                }
            }
            _ => return Err(wrong()),
        }
    }
    Ok(())
}

/// Whether compilers and their manuals have this after `.pragma`.
fn is_known_pragma(quoted: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    matches!(quoted, "nounroll" | "enable_smem_spilling")
        || ["used_bytes_mask ", "frequency "].iter().any(|word| quoted.strip_prefix(word).is_some_and(number))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn texts(ptx: &str) -> Vec<String> {
        Text::of(ptx).unwrap().statements().iter().map(|statement| statement.text.to_owned()).collect()
    }

    fn body(text: &str) -> String {
        let all = texts(&format!(".entry k()\n{{\n{text};\n}}"));
        all[1..all.len() - 1].join("; ")
    }

    #[test]
    fn one_instruction_has_one_spelling() {
        for (spelling, one) in [
            ("ld .global .volatile .u32%r1,[%rd1]", "ld.global.volatile.u32 %r1, [%rd1]"),
            ("@ ! p red.global.add.u32[%rd1],1", "@!p red.global.add.u32 [%rd1], 1"),
            (".loc 1 1 1\n membar .gl", "membar.gl"),
            (".loc 1 2 3, function_name $L__info+4, inlined_at 1 2 3\nL : bar .sync 0", "L: bar.sync 0"),
            ("bar.warp.sync-1", "bar.warp.sync -1"),
            ("mov/* a */.u32 /* ; */ %r1,%tid .x // ;\n", "mov.u32 %r1, %tid.x"),
            (
                "cp.async.bulk.tensor.2d.shared::cluster.global [%r1],[%rd1,{%r2,%r3}]",
                "cp.async.bulk.tensor.2d.shared::cluster.global",
            ),
            (".reg .b32 %r<5>", ".reg .b32 %r<5>"),
            ("{ .param .align 8 .b8 p[16]", "{ .param .align 8 .b8 p [16]"),
            ("mov.f32 %f1, 0f3F800000", "mov.f32 %f1, 0f3F800000"),
        ] {
            assert!(body(spelling).starts_with(one), "{spelling}: {}", body(spelling));
        }
        // Nobody parts a dot from its word.
        assert!(Text::of(".entry k()\n{\nmembar . gl;\n}").is_err());
    }

    #[test]
    fn a_string_is_no_text() {
        assert_eq!(body(".pragma \"nounroll\"; ret"), ".pragma \"\"; ret");
        assert_eq!(body(".pragma \"used_bytes_mask 0xf0\"; ret"), ".pragma \"\"; ret");
        for string in ["//", "/*", ";membar.gl;", "entry", "nounroll;", "a\\", ""] {
            let error = Text::of(&format!(".entry k()\n{{\n.pragma \"{string}\"; ret;\n}}")).err().unwrap();
            assert!(error.contains("a string in assembler that no compiler writes"), "{string}: {error}");
        }
        assert!(Text::of(".entry k()\n{\nmov.u32 %r1, \"nounroll\";\n}").is_err());
        assert_eq!(texts(".file 1 \"/a b/k.py\" \"k.py\"\n.file 2 \"k.cu\", 17, 4\n.version 9.0"), [".version 9.0"]);
        assert!(Text::of(".file 1 \"a//b\"").is_err());
        // A comment has no strings, and a string no comments.
        assert_eq!(body("// \"\n.pragma \"nounroll\"; /* \" */ ret"), ".pragma \"\"; ret");
    }

    #[test]
    fn a_function_begins_with_a_directive_outside_of_functions() {
        let text = ".visible .entry k(.param .u64 a)\n{\nentry: .reg .pred func;\n@func ret;\n{ bra entry; }\n}\n\
            .global .b8 t[2] = {1, 2};\n.func (.param .b32 r) f()\n{\nret;\n}";
        let text = Text::of(text).unwrap();
        let all = text.statements();
        let heads: Vec<_> = all.iter().filter_map(|statement| statement.head).collect();
        assert_eq!(heads, [(true, " k (.param .u64 a) {"), (false, " (.param .b32 r) f () {")]);
        let numbers: Vec<usize> = all.iter().map(|statement| statement.function).collect();
        assert_eq!(numbers, [1, 1, 1, 1, 1, 2, 3, 3, 3]);
        assert_eq!(all[5].text, ".global .b8 t [2] = { 1, 2 }");
        assert!(Text::of(".entry k()\n{\n.func f()\n{\n}\n}").is_err());
        assert!(Text::of("}").is_err());
    }

    #[test]
    fn what_no_compiler_writes_is_refused() {
        for text in [
            "#define a b",
            "mov\\\n.u32",
            "a \\ b",
            "ret\r",
            "/* ",
            "\"a",
            ".include \"a\"",
            ".alias a, b;",
            "ret\u{a0}",
            ".loc 1 1",
        ] {
            assert!(Text::of(text).is_err(), "{text}");
        }
        let section = ".section .debug_str\n{\n$L__info_string0:\n.b8 95\n.b8 0\n}\n.version 9.0";
        assert_eq!(texts(section).len(), 2);
    }
}
