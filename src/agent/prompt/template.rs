//! The parts of a prompt, and filling them in.

use std::collections::BTreeMap;

use super::PromptError;

/// Where a part stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Among a model's standing instructions.
    Model,
    /// At the beginning for an agent with a shell.
    Shell,
    /// Among the standing instructions of both.
    Standing,
    /// In the question, for both.
    Question,
    /// At the end of a model's question.
    ModelEnd,
    /// In a follow-up to a model's reply.
    FollowUp,
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    /// A language model that answers in the form.
    Model,
    /// An agent with a shell that edits the file.
    Shell,
}

impl Place {
    const fn is_for(self, audience: Audience) -> bool {
        match self {
            Self::Standing | Self::Question => true,
            Self::Model | Self::ModelEnd => matches!(audience, Audience::Model),
            Self::Shell => matches!(audience, Audience::Shell),
            Self::FollowUp => false,
        }
    }

    const fn is_standing(self) -> bool {
        matches!(self, Self::Model | Self::Shell | Self::Standing)
    }
}

/// A part of the prompt.
#[derive(Debug)]
pub struct Part {
    /// Its name: of the file in `prompts/` and behind `--part`.
    pub name: &'static str,
    /// The text where the workspace has none.
    pub text: &'static str,
    /// Where it stands.
    pub place: Place,
    /// What it can be filled with.
    pub placeholders: &'static [&'static str],
    /// The placeholder it is for: where that is empty there is no such part.
    subject: Option<&'static str>,
}

macro_rules! part {
    ($name:literal, $place:ident, $placeholders:expr) => {
        part!($name, $place, $placeholders, None)
    };
    ($name:literal, $place:ident, $placeholders:expr, $subject:expr) => {
        Part {
            name: $name,
            text: include_str!(concat!("parts/", $name, ".md")),
            place: Place::$place,
            placeholders: $placeholders,
            subject: $subject,
        }
    };
}

/// All parts, in the order of the prompt. What changes least comes first, so that a server can keep it.
pub const PARTS: [Part; 18] = [
    part!("rules", Model, &["op", "language"]),
    part!("form", Model, &[]),
    part!("shell", Shell, &["op", "language", "path", "flags"]),
    part!("program", Standing, &["program"], Some("program")),
    part!("operation", Question, &["op", "summary", "signature", "share", "shapes"]),
    part!("definition", Question, &["op", "toml"], Some("toml")),
    part!("oracle", Question, &["op", "header"], Some("header")),
    part!("device", Question, &["device"]),
    part!("incumbent", Question, &["file", "standing", "incumbent"]),
    part!("headers", Question, &["headers"], Some("headers")),
    part!("evaluation", Question, &["timing", "margin", "against", "vs_user", "resources"]),
    part!("history", Question, &["history"], Some("history")),
    part!("failure", Question, &["failure"], Some("failure")),
    part!("direction", Question, &["direction"], Some("direction")),
    part!("dropped", Question, &["dropped"], Some("dropped")),
    part!("task", ModelEnd, &["op", "device_name"]),
    part!("repair", FollowUp, &["status", "stage", "why", "advice", "candidate"]),
    part!("again", FollowUp, &["reason"]),
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
    pub(super) fn question(&self, values: &Values, audience: Audience) -> Vec<PartText> {
        let wanted =
            |part: &Part| part.place.is_for(audience) && part.subject.is_none_or(|name| !values.get(name).is_empty());
        let filled = PARTS.iter().zip(&self.0).filter(|(part, _)| wanted(part));
        filled
            .map(|(part, text)| PartText {
                name: part.name,
                system: part.place.is_standing(),
                text: fill(text, values),
            })
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
