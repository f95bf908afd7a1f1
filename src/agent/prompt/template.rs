//! The parts of a prompt, and filling them in.

use std::collections::BTreeMap;

use super::PromptError;

/// A part of the prompt.
#[derive(Debug)]
pub struct Part {
    /// Its name: of the file in `prompts/` and behind `--part`.
    pub name: &'static str,
    /// The text where the workspace has none.
    pub text: &'static str,
    /// Whether it stands among the standing instructions.
    system: bool,
    /// Whether it belongs to the question; the others are follow-ups.
    question: bool,
    /// What it can be filled with.
    pub placeholders: &'static [&'static str],
    /// The placeholder it is for: where that is empty there is no such part.
    subject: Option<&'static str>,
}

macro_rules! part {
    ($name:literal, $system:literal, $question:literal, $placeholders:expr, $subject:expr) => {
        Part {
            name: $name,
            text: include_str!(concat!("parts/", $name, ".md")),
            system: $system,
            question: $question,
            placeholders: $placeholders,
            subject: $subject,
        }
    };
}

impl Part {
    /// Whether it belongs to the question; the others are follow-ups to a reply.
    #[must_use]
    pub const fn is_question(&self) -> bool {
        self.question
    }
}

/// All parts, in the order of the prompt. What changes least comes first, so that a server can keep it.
pub const PARTS: [Part; 16] = [
    part!("rules", true, true, &["op", "language"], None),
    part!("form", true, true, &[], None),
    part!("program", true, true, &["program"], Some("program")),
    part!("operation", false, true, &["op", "summary", "signature", "share", "shapes"], None),
    part!("definition", false, true, &["op", "toml"], Some("toml")),
    part!("oracle", false, true, &["op", "header"], Some("header")),
    part!("device", false, true, &["device"], None),
    part!("incumbent", false, true, &["file", "incumbent"], Some("incumbent")),
    part!("evaluation", false, true, &["timing", "margin", "against", "vs_user", "resources"], None),
    part!("history", false, true, &["history"], Some("history")),
    part!("failure", false, true, &["failure"], Some("failure")),
    part!("direction", false, true, &["direction"], Some("direction")),
    part!("dropped", false, true, &["dropped"], Some("dropped")),
    part!("task", false, true, &["op", "device_name"], None),
    part!("repair", false, false, &["status", "stage", "why", "advice", "candidate"], None),
    part!("again", false, false, &["reason"], None),
];

/// A part of the question, filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartText {
    /// Its name.
    pub name: &'static str,
    /// Whether it stands among the standing instructions.
    pub system: bool,
    /// Its text.
    pub text: String,
}

/// What placeholders stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Values(BTreeMap<&'static str, String>);

impl Values {
    pub(super) fn set(&mut self, name: &'static str, text: String) {
        self.0.insert(name, text);
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }
}

/// The templates in force, in the order of [`PARTS`].
#[derive(Debug, Clone)]
pub(super) struct Parts(Vec<String>);

impl Parts {
    /// Takes the workspace's templates, else the program's own.
    pub(super) fn read(read: &dyn Fn(&str) -> Option<String>) -> Result<Self, PromptError> {
        let text = |part: &Part| {
            let text = read(&format!("prompts/{}.md", part.name)).unwrap_or_else(|| part.text.to_owned());
            check(part, &text).map(|()| text)
        };
        PARTS.iter().map(text).collect::<Result<_, _>>().map(Self)
    }

    /// The parts of the question that have something to say.
    pub(super) fn question(&self, values: &Values) -> Vec<PartText> {
        let wanted = |part: &Part| part.question && part.subject.is_none_or(|name| !values.get(name).is_empty());
        let filled = PARTS.iter().zip(&self.0).filter(|(part, _)| wanted(part));
        filled
            .map(|(part, text)| PartText { name: part.name, system: part.system, text: fill(text, values) })
            .filter(|part| !part.text.is_empty())
            .collect()
    }

    /// One part, filled in; empty where there is no such part.
    pub(super) fn fill(&self, name: &str, values: &Values) -> String {
        self.template(name).map_or_else(String::new, |text| fill(text, values))
    }

    pub(super) fn template(&self, name: &str) -> Option<&str> {
        let index = PARTS.iter().position(|part| part.name == name)?;
        self.0.get(index).map(String::as_str)
    }
}

/// Whether every placeholder is known, and the kernel is in its part.
fn check(part: &Part, text: &str) -> Result<(), PromptError> {
    let used: Vec<&str> = pieces(text).filter_map(|piece| piece.err()).collect();
    if let Some(name) = used.iter().find(|name| !part.placeholders.contains(name)) {
        let known: Vec<String> = part.placeholders.iter().map(|name| format!("`{{{name}}}`")).collect();
        let known = if known.is_empty() { "none in this part".to_owned() } else { known.join(", ") };
        return Err(PromptError::Placeholder { part: part.name, name: (*name).to_owned(), known });
    }
    for name in ["incumbent", "candidate"] {
        if part.placeholders.contains(&name) && !used.contains(&name) {
            return Err(PromptError::Missing { part: part.name, name });
        }
    }
    Ok(())
}

/// Fills a template in. What is put in is not looked through again.
fn fill(text: &str, values: &Values) -> String {
    let filled: String = pieces(text).map(|piece| piece.unwrap_or_else(|name| values.get(name))).collect();
    filled.trim().to_owned()
}

/// A template as plain text (`Ok`) and names of placeholders (`Err`): small letters and `_` in braces. Other braces are
/// text.
fn pieces(text: &str) -> impl Iterator<Item = Result<&str, &str>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let named = |at: usize| {
            let name = rest[at + 1..].split_once('}')?.0;
            let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            sound.then_some(name)
        };
        let found = rest.match_indices('{').find_map(|(at, _)| named(at).map(|name| (at, name)));
        match found {
            Some((0, name)) => {
                rest = &rest[name.len() + 2..];
                Some(Err(name))
            }
            Some((at, _)) => {
                let (text, after) = rest.split_at(at);
                rest = after;
                Some(Ok(text))
            }
            None => Some(Ok(std::mem::take(&mut rest))),
        }
    })
}
