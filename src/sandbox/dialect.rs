//! What the text of a kernel may not contain in C or in CUDA, and where the two differ.

use super::lines::{Line, split};

const DIRECTIVES: [&str; 12] =
    ["define", "undef", "if", "ifdef", "ifndef", "elif", "else", "endif", "error", "warning", "include", "pragma"];

/// Words with no honest use in any kernel, wherever they stand.
const WORDS: [(&str, &str); 8] = [
    ("__has_include", "it asks which files the machine has"),
    ("__has_include_next", "it asks which files the machine has"),
    ("__has_embed", "it asks which files the machine has"),
    ("__FILE__", "it spells paths of the machine"),
    ("__BASE_FILE__", "it spells paths of the machine"),
    ("__TIMESTAMP__", "a kernel's bytes may not depend on the clock"),
    ("__DATE__", "a kernel's bytes may not depend on the clock"),
    ("__TIME__", "a kernel's bytes may not depend on the clock"),
];

/// What stands before a raw string, which would hide directives from a reader of lines.
const RAW_PREFIXES: [&str; 5] = ["R", "LR", "uR", "UR", "u8R"];

/// Why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct SourceError {
    /// Line in the kernel file, from 1.
    pub line: usize,
    /// The spelling and the reason.
    pub what: String,
}

/// A language of kernels, as far as it differs from the other.
pub(super) struct Dialect {
    /// Whether a single quote may stand within a number.
    pub(super) separates_digits: bool,
    /// More words with no honest use, underscores around them or not.
    pub(super) words: &'static [(&'static str, &'static str)],
    /// Whether a header may be included.
    pub(super) header: fn(&str) -> bool,
    /// Those that may be, in words.
    pub(super) headers: fn() -> String,
    /// The pragmas a kernel may use, by how they begin.
    pub(super) pragmas: &'static [&'static str],
    /// Whether they may also be written as `_Pragma`.
    pub(super) pragma_operator: bool,
}

impl Dialect {
    /// Checks directives, words and spellings that hide either; the text in lines, for what else a language looks at.
    pub(super) fn check(&self, text: &str) -> Result<Vec<Line>, SourceError> {
        if let Some(at) = text.find('\0') {
            return refuse(line_of(text, at), "a NUL byte");
        }
        for spelling in ["??=", "??/", "%:"] {
            if let Some(at) = text.find(spelling) {
                let what = format!("the spelling `{spelling}` (write `#`, `\\` or the operator itself)");
                return refuse(line_of(text, at), &what);
            }
        }
        let lines = split(text, self.separates_digits);
        if let Some(line) = lines.iter().find(|line| line.quoted_number) {
            return refuse(line.number, "a quote within a number: write the number without");
        }
        lines.iter().try_for_each(|line| self.check_line(line))?;
        Ok(lines)
    }

    fn check_line(&self, line: &Line) -> Result<(), SourceError> {
        let code = line.code.trim();
        if let Some(directive) = code.strip_prefix('#') {
            self.check_directive(line, directive.trim())?;
        }
        for word in words(code) {
            self.check_word(line.number, word)?;
            if RAW_PREFIXES.contains(&word) && code.contains(&format!("{word}\"\"")) {
                return refuse(line.number, "a raw string: write an ordinary one");
            }
            if word == "_Pragma" && !self.pragma_operator {
                return refuse(line.number, "`_Pragma`: write the pragma as a line of its own");
            }
            if word == "_Pragma" && !line.strings.iter().all(|literal| self.knows_pragma(literal)) {
                return refuse(line.number, &format!("`_Pragma`: allowed are {}", self.pragmas.join(", ")));
            }
        }
        Ok(())
    }

    fn check_directive(&self, line: &Line, directive: &str) -> Result<(), SourceError> {
        let name: String = directive.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let rest = directive[name.len()..].trim();
        if directive.is_empty() {
            return Ok(());
        }
        if !DIRECTIVES.contains(&name.as_str()) {
            return refuse(line.number, &format!("`#{directive}` is not among the directives a kernel may use"));
        }
        match name.as_str() {
            "include" => self.check_include(line, rest),
            "pragma" if self.knows_pragma(rest) => Ok(()),
            "pragma" => self.refuse_pragma(line.number, rest),
            _ => Ok(()),
        }
    }

    fn check_include(&self, line: &Line, rest: &str) -> Result<(), SourceError> {
        let header = if rest == "\"\"" {
            line.strings.first().map(String::as_str)
        } else {
            rest.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'))
        };
        match header {
            Some(header) if (self.header)(header) => Ok(()),
            Some(header) => {
                let base = header.rsplit('/').next().unwrap_or_default();
                refuse(line.number, &format!("`#include` of `{base}`: a kernel may include {}", (self.headers)()))
            }
            None => refuse(line.number, "`#include` must name its header literally"),
        }
    }

    /// Whether a word has an honest use.
    pub(super) fn check_word(&self, line: usize, word: &str) -> Result<(), SourceError> {
        let bad = |(bad, _): &&(&str, &str)| *bad == word.trim_matches('_') || *bad == word;
        match WORDS.iter().chain(self.words).find(bad) {
            Some((_, why)) => refuse(line, &format!("`{word}`: {why}")),
            None => Ok(()),
        }
    }

    pub(super) fn refuse_pragma<T>(&self, line: usize, pragma: &str) -> Result<T, SourceError> {
        let allowed = self.pragmas.join(", ");
        refuse(line, &format!("`#pragma {}`: allowed are {allowed}", spelled(pragma)))
    }

    pub(super) fn knows_pragma(&self, text: &str) -> bool {
        let text = spelled(text);
        let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        self.pragmas.iter().any(|pragma| text.strip_prefix(pragma).is_some_and(|rest| !goes_on(rest)))
    }
}

/// With one blank between words.
fn spelled(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).filter(|word| !word.is_empty())
}

pub(super) fn refuse<T>(line: usize, what: &str) -> Result<T, SourceError> {
    Err(SourceError { line, what: what.to_owned() })
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}
