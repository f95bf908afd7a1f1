//! What of a kernel file's text is code: not its front matter, comments, strings, directives, nor what only lays out memory.

/// How hints and facts about layout begin, in whose brackets no mistake is a mistake of the algorithm; assembler without an
/// instruction only holds the compiler back.
const HINTS: [&str; 7] = [
    "__launch_bounds__(",
    "_Alignas(",
    "__align__(",
    "__attribute__(",
    "static_assert(",
    "asm(\"\" :",
    "asm volatile(\"\" :",
];

/// Conditions with this tunable of the starters in C say who does the work, not what is done.
const SWITCH: &str = "INLINE";

/// What a byte of a text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Code,
    /// Between quotation marks, these included.
    Quoted,
    /// Comments, the front matter and directives: to a compiler, or to a mutation, mere space.
    Space,
    /// The arguments of hints.
    Hint,
}

/// A text, and what each of its bytes belongs to.
pub struct Code<'a> {
    pub text: &'a str,
    parts: Vec<Part>,
}

impl<'a> Code<'a> {
    pub fn of(text: &'a str) -> Self {
        let mut code = Self { text, parts: vec![Part::Code; text.len()] };
        let mut at = 0;
        while at < text.len() {
            let rest = &text.as_bytes()[at..];
            let (part, length) = match rest {
                [b'/', b'*', ..] => (Part::Space, text[at..].find("*/").map_or(rest.len(), |end| end + 2)),
                [b'/', b'/', ..] => (Part::Space, line(rest)),
                [b'#', ..] if text[..at].trim_end_matches([' ', '\t']).ends_with('\n') => (Part::Space, line(rest)),
                [quote @ (b'"' | b'\''), ..] => (Part::Quoted, quoted(rest, *quote)),
                _ => (Part::Code, 1),
            };
            code.parts[at..at + length].fill(part);
            at += length;
        }
        for hint in HINTS {
            for (at, _) in text.match_indices(hint) {
                code.hide(at, at + hint.find('(').unwrap_or(0), "");
            }
        }
        for (at, _) in text.match_indices("if (") {
            code.hide(at, at + 3, SWITCH);
        }
        code
    }

    /// Takes what begins at `from` and goes to the bracket that closes the one at `open` for a hint, if it has such a part.
    fn hide(&mut self, from: usize, open: usize, part: &str) {
        if let Some(end) = self.closing(open).filter(|end| self.text[open..*end].contains(part)) {
            self.parts[from..=end].fill(Part::Hint);
        }
    }

    pub fn part(&self, at: usize) -> Part {
        self.parts[at]
    }

    /// The byte at a place where that is code.
    pub fn byte(&self, at: usize) -> Option<u8> {
        (*self.parts.get(at)? == Part::Code).then(|| self.text.as_bytes()[at])
    }

    /// Whether a place is white space, or what counts as such.
    pub fn is_space(&self, at: usize) -> bool {
        self.parts.get(at).is_some_and(|part| match part {
            Part::Space => true,
            Part::Code => self.text.as_bytes()[at].is_ascii_whitespace(),
            Part::Quoted | Part::Hint => false,
        })
    }

    /// The place of the bracket that closes the one at `open`.
    pub fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0;
        for at in open..self.text.len() {
            match self.byte(at) {
                Some(b'(' | b'[' | b'{') => depth += 1,
                Some(b')' | b']' | b'}') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(at);
            }
        }
        None
    }

    /// The place of the bracket that opens the one that closes at `close`.
    pub fn opening(&self, close: usize) -> Option<usize> {
        let mut depth = 0;
        for at in (0..=close).rev() {
            match self.byte(at) {
                Some(b')' | b']' | b'}') => depth += 1,
                Some(b'(' | b'[' | b'{') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(at);
            }
        }
        None
    }

    /// The last place before `at` that is no space.
    pub fn before(&self, at: usize) -> Option<usize> {
        (0..at).rev().find(|place| !self.is_space(*place))
    }

    /// The first place from `at` on that is no space.
    pub fn after(&self, at: usize) -> usize {
        (at..self.text.len()).find(|place| !self.is_space(*place)).unwrap_or(self.text.len())
    }

    /// The name or number that ends at `end`, itself included.
    pub fn word_before(&self, end: usize) -> &'a str {
        let begin = (0..=end).rev().take_while(|at| self.byte(*at).is_some_and(is_word)).last();
        begin.map_or("", |begin| &self.text[begin..=end])
    }
}

/// Whether a byte can be part of a name or number.
pub fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// A line's length without its end; a backslash before the end continues it.
fn line(text: &[u8]) -> usize {
    (0..text.len()).find(|at| text[*at] == b'\n' && (*at == 0 || text[at - 1] != b'\\')).unwrap_or(text.len())
}

fn quoted(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

#[test]
fn front_matter_comments_strings_directives_and_hints_are_no_code() {
    let text = "/*---\na + b\n---*/\n#define X(a) \\\n a + b\nint f(int a) { // a + b\n if (a * b <= INLINE) asm(\"\" : \"+r\"(a)); _Alignas(a + b) int c = a + b;\n return g(\"a + \\\" b\", '+', a /* + */); }\n";
    let code = Code::of(text);
    let seen: String = (0..text.len()).filter_map(|at| code.byte(at).map(char::from)).collect();
    assert_eq!(seen.split_whitespace().collect::<String>(), "intf(inta){;intc=a+b;returng(,,a);}");
}

#[test]
fn brackets_are_matched_past_those_in_comments_and_strings() {
    let text = "f(a, /* ) */ \")\", (b))";
    let code = Code::of(text);
    assert_eq!(code.closing(1), Some(text.len() - 1));
    assert_eq!(code.opening(text.len() - 1), Some(1));
}
