//! The header lines of a reply: what its author says, which decides nothing.

use std::collections::BTreeSet;

/// Longest hypothesis that is kept, in characters.
const HYPOTHESIS: usize = 2000;
/// Longest description, in characters: it stands in the ledger and in a commit's subject.
const DESCRIPTION: usize = 120;
/// Longest word of an unknown technique, in characters.
const WORD: usize = 20;
/// No kernel gets this much faster; beyond it a prediction is a slip.
const MOST_SPEEDUP: f64 = 1000.0;

/// The identifiers of techniques that count as known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Techniques(BTreeSet<String>);

impl Techniques {
    /// Those that have a heading in `program.md`: ``### `identifier` ``.
    #[must_use]
    pub fn of_program(program: &str) -> Self {
        let headings = program.lines().filter_map(|line| line.strip_prefix("### `")?.trim_end().strip_suffix('`'));
        Self(headings.map(str::to_owned).collect())
    }

    /// Whether `name` is one.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The identifier in what stands after `Technique:`: the first known one, else `other:` and a word made of all of it.
    pub(super) fn read(&self, text: &str) -> String {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let mut names = words.map(|word| word.to_ascii_lowercase().replace('_', "-"));
        names.find(|name| self.knows(name)).unwrap_or_else(|| format!("other:{}", word(text)))
    }
}

/// A text as one word of small letters, digits and hyphens.
fn word(text: &str) -> String {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| !part.is_empty());
    let joined = parts.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-");
    let short = joined.chars().take(WORD).collect::<String>();
    let short = short.trim_end_matches('-');
    if short.is_empty() { "unnamed".to_owned() } else { short.to_owned() }
}

/// What an author says of a change. None of it decides anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Remarks {
    /// Why it should be faster; empty where nobody said.
    pub hypothesis: String,
    /// The technique: an identifier of the playbook, or `other:` and a word. One word in any case.
    pub technique: String,
    /// The speedup that is expected against the incumbent; `None` where none was named that can be read.
    pub predicted: Option<f64>,
    /// What changes, in a line; the beginning of the hypothesis where nobody said.
    pub description: String,
    /// Whether it says that there is nothing to change.
    pub declines: bool,
}

/// A header's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Hypothesis,
    Technique,
    Predicted,
    Description,
    Change,
}

impl Name {
    const ALL: [(&'static str, Self); 5] = [
        ("hypothesis", Self::Hypothesis),
        ("technique", Self::Technique),
        ("predicted", Self::Predicted),
        ("description", Self::Description),
        ("change", Self::Change),
    ];

    /// The header that a line begins, with what stands behind its colon. Markdown around the name is looked over.
    pub(super) fn in_line(line: &str) -> Option<(Self, &str)> {
        let line = line.trim().trim_start_matches(['*', '#', '_', '`', '-', ' ']);
        let (name, value) = line.split_once(':')?;
        let name = name.trim().trim_end_matches(['*', '_', '`', ' ']);
        let (_, found) = Self::ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some((*found, value.trim_start_matches(['*', '_', '`']).trim()))
    }
}

/// What the headers say, as written. The last one of a name counts.
#[derive(Debug, Default)]
pub(super) struct Headers {
    hypothesis: String,
    technique: String,
    predicted: String,
    description: String,
    change: String,
    last: Option<Name>,
}

impl Headers {
    fn field(&mut self, name: Name) -> Option<&mut String> {
        match name {
            Name::Hypothesis => Some(&mut self.hypothesis),
            Name::Technique => Some(&mut self.technique),
            Name::Predicted => Some(&mut self.predicted),
            Name::Description => Some(&mut self.description),
            Name::Change => Some(&mut self.change),
        }
    }

    /// Takes in a header.
    pub(super) fn set(&mut self, name: Name, value: &str) {
        self.last = Some(name);
        if let Some(field) = self.field(name) {
            value.clone_into(field);
        }
    }

    /// Takes in a line that is no header: more of the last one, up to an empty line.
    pub(super) fn more(&mut self, line: &str) {
        let line = line.trim();
        if line.is_empty() {
            self.last = None;
        } else if let Some(field) = self.last.and_then(|name| self.field(name)) {
            field.push(' ');
            field.push_str(line);
        }
    }

    /// What they say, cleaned.
    pub(super) fn remarks(&self, known: &Techniques) -> Remarks {
        let described = one_line(&self.description, DESCRIPTION);
        let described = if described.is_empty() { one_line(&self.hypothesis, DESCRIPTION) } else { described };
        Remarks {
            hypothesis: one_line(&self.hypothesis, HYPOTHESIS),
            technique: known.read(&self.technique),
            predicted: speedup(&self.predicted),
            description: described,
            declines: self.declines(),
        }
    }

    /// Whether it says that there is nothing to change: `Change: none`.
    pub(super) fn declines(&self) -> bool {
        self.change.trim_matches(|c: char| !c.is_alphanumeric()).eq_ignore_ascii_case("none")
    }
}

/// A text in one line without control characters, cut with an ellipsis.
fn one_line(text: &str, longest: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let joined = clean.split_whitespace().collect::<Vec<_>>().join(" ");
    if joined.chars().count() <= longest {
        return joined;
    }
    let cut: String = joined.chars().take(longest - 1).collect();
    format!("{}…", cut.trim_end())
}

/// A predicted speedup: a positive number that `x`, `×` or `times` may follow. A percentage or a range is none, since
/// nobody can say what was meant.
fn speedup(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let first = words.next()?.trim_start_matches(['~', '≈', '*', '`']);
    let first = first.trim_end_matches([',', ';', '.', '*', '`', ')']).trim_end_matches(['x', 'X', '×']);
    let next = words.next().unwrap_or("");
    let unclear = ["%", "percent", "to", "or", "-", "–", "—", "…", "..", "..."];
    if unclear.iter().any(|word| next.starts_with(word) && (word.len() == 1 || next == *word)) {
        return None;
    }
    let digits = first.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value: f64 = first.parse().ok().filter(|_| digits)?;
    (value > 0.0 && value <= MOST_SPEEDUP).then_some(value)
}
