//! `program.md` in a prompt: what does not concern the backend is always left out, the rest as the context demands.
//!
//! What a passage is for stands in its text. A heading that ends with `in C` or `in CUDA`, a technique's `Do (…)`, and a
//! paragraph or item that begins with bold words and `(C)` or `(CUDA)` are for that language only.

use super::budget::{Cut, STEPS, Step};
use super::facts::generation;
use crate::agent::Brief;
use crate::kernel;

/// Sections that stay as long as anything of the document does, besides the playbook's.
const BASIC: [&str; 2] = ["The rules", "The kernel file"];
/// Paragraphs that are for GPUs only: tables by their heads, and what cannot say so in brackets.
const CUDA_PARAGRAPHS: [&str; 4] =
    ["| CUDA |", "| key of `[[launch]]`", "| key of `[[tensormap]]`", "Launches of a call"];
/// The chapter with a section for each operation, or for a few of them.
const BY_OPERATION: &str = "Operation by operation";
/// The tier of techniques that belong to operations.
const OPERATIONS_TIER: &str = "Tier 6";

/// The document, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Program {
    sections: Vec<Section>,
}

/// A heading and the paragraphs up to the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Section {
    /// Number of `#`; 0 before the first heading.
    level: usize,
    heading: String,
    /// The heading of level 2 that it stands under, or its own.
    chapter: String,
    paragraphs: Vec<String>,
}

/// What a kernel is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    C,
    Cuda,
    Triton,
}

impl Language {
    /// Whether what is written for `other` is for this one too: what a GPU asks of a kernel it asks of Triton's.
    fn reads(self, other: Self) -> bool {
        self == other || (self == Self::Triton && other == Self::Cuda)
    }
}

impl Program {
    /// Takes a document apart. Any text is one.
    pub(super) fn parse(text: &str) -> Self {
        let mut sections =
            vec![Section { level: 0, heading: String::new(), chapter: String::new(), paragraphs: vec![] }];
        let mut paragraph = String::new();
        let mut in_code = false;
        for line in text.lines() {
            let level = line.chars().take_while(|c| *c == '#').count();
            let heading = line[level..].strip_prefix(' ').filter(|_| !in_code && (1..=6).contains(&level));
            if let Some(heading) = heading {
                close(&mut sections, &mut paragraph);
                let chapter = match sections.last() {
                    Some(last) if level > 2 => last.chapter.clone(),
                    _ => heading.to_owned(),
                };
                sections.push(Section { level, heading: heading.to_owned(), chapter, paragraphs: vec![] });
                continue;
            }
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            if line.is_empty() && !in_code {
                close(&mut sections, &mut paragraph);
            } else {
                paragraph.push_str(line);
                paragraph.push('\n');
            }
        }
        close(&mut sections, &mut paragraph);
        Self { sections }
    }

    /// What a prompt says of it.
    pub(super) fn text(&self, brief: &Brief, cut: &Cut) -> String {
        let language = match brief.language() {
            kernel::Language::C => Language::C,
            kernel::Language::Cuda => Language::Cuda,
            kernel::Language::Triton => Language::Triton,
        };
        let techniques: Vec<&Section> =
            self.sections.iter().filter(|section| self.technique_fits(section, brief, language, cut)).collect();
        let names = techniques.iter().filter_map(|section| section.technique());
        let names = names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let named = |what: &str| if names.is_empty() { String::new() } else { format!("{what}: {names}.") };
        if cut.has(Step::Program) {
            return named("Identifiers of techniques");
        }
        let mut parts = Vec::new();
        for section in &self.sections {
            if section.technique().is_some() {
                if techniques.contains(&section) && !cut.has(Step::TechniquesNamed) {
                    parts.push(section.as_technique(cut.has(Step::TechniquesInLines)));
                }
            } else if section.stays(cut) && section.for_language(language) && section.for_operation(&brief.op) {
                parts.push(section.text(language));
                if section.heading == "The playbook" && cut.has(Step::TechniquesNamed) {
                    parts.push(named("The identifiers"));
                }
            }
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    /// Whether a section is a technique for this language and, where room is scarce, for this device and operation.
    fn technique_fits(&self, section: &Section, brief: &Brief, language: Language, cut: &Cut) -> bool {
        let Some(name) = section.technique() else { return false };
        let tag = section.tag();
        if language_of(tag).is_some_and(|own| !language.reads(own)) {
            return false;
        }
        !cut.has(Step::OtherTechniques) || (for_device(tag, brief) && self.for_operation(section, name, &brief.op))
    }

    /// Whether a technique of the operations' tier is for this one: the table that says what usually decides names it
    /// there, or nowhere.
    fn for_operation(&self, section: &Section, name: &str, op: &str) -> bool {
        if !section.chapter.starts_with(OPERATIONS_TIER) {
            return true;
        }
        let quoted = format!("`{name}`");
        let rows = || {
            let tables = self.sections.iter().filter(|section| section.chapter == "Choosing what to try");
            tables
                .flat_map(|section| &section.paragraphs)
                .flat_map(|text| text.lines())
                .filter(|line| line.starts_with('|'))
        };
        let own = |row: &&str| row.split('|').nth(1).is_some_and(|ops| ops.split(',').any(|other| other.trim() == op));
        let known = rows().any(|row| own(&row));
        !known || rows().any(|row| own(&row) && row.contains(&quoted)) || !rows().any(|row| row.contains(&quoted))
    }
}

fn close(sections: &mut [Section], paragraph: &mut String) {
    let text = std::mem::take(paragraph);
    if let Some(section) = sections.last_mut().filter(|_| !text.is_empty()) {
        section.paragraphs.push(text.trim_end().to_owned());
    }
}

impl Section {
    /// The technique's identifier, where it is one.
    fn technique(&self) -> Option<&str> {
        self.heading.strip_prefix('`')?.strip_suffix('`').filter(|_| self.level == 3)
    }

    /// What a technique is for: the words behind `Do`.
    fn tag(&self) -> &str {
        let first = self.paragraphs.first().map_or("", String::as_str);
        first.strip_prefix("- **Do (").and_then(|rest| rest.split_once(')')).map_or("", |(tag, _)| tag)
    }

    /// Whether the cut leaves it in.
    fn stays(&self, cut: &Cut) -> bool {
        let tier = self.chapter.starts_with("Tier ");
        if tier {
            return !cut.has(Step::TechniquesNamed);
        }
        let named =
            |heading: &str| STEPS.iter().copied().find(|step| matches!(step, Step::Section(name) if *name == heading));
        if named(&self.heading).is_some_and(|step| cut.has(step)) {
            return false;
        }
        match named(&self.chapter) {
            Some(step) => !cut.has(step),
            None => {
                let known = self.level < 2 || self.chapter == "The playbook" || BASIC.contains(&self.chapter.as_str());
                known || !cut.has(Step::OwnSections)
            }
        }
    }

    fn for_language(&self, language: Language) -> bool {
        match () {
            () if self.heading.ends_with(" in C") => language == Language::C,
            () if self.heading.ends_with(" in CUDA") => language == Language::Cuda,
            () if self.heading.ends_with(" in Triton") => language == Language::Triton,
            () => true,
        }
    }

    /// Whether it is not some other operation's.
    fn for_operation(&self, op: &str) -> bool {
        self.chapter != BY_OPERATION || self.level < 3 || self.heading.split(", ").any(|name| name == op)
    }

    fn title(&self) -> String {
        if self.level == 0 { String::new() } else { format!("{} {}", "#".repeat(self.level), self.heading) }
    }

    /// Heading and paragraphs, without what is for another language.
    fn text(&self, language: Language) -> String {
        let kept = self.paragraphs.iter().map(|text| for_language(text, language)).filter(|text| !text.is_empty());
        let all: Vec<String> = std::iter::once(self.title()).chain(kept).filter(|text| !text.is_empty()).collect();
        all.join("\n\n")
    }

    /// A technique in full, or what to do in a line.
    fn as_technique(&self, in_a_line: bool) -> String {
        if !in_a_line {
            return format!("{}\n{}", self.title(), self.paragraphs.join("\n\n"));
        }
        let first = self.paragraphs.first().and_then(|text| text.lines().next()).unwrap_or("");
        format!("- {}: {}", self.heading, first.split_once(":** ").map_or(first, |(_, todo)| todo))
    }
}

/// A paragraph without items and rows that are for another language; empty where it is for another one altogether.
fn for_language(text: &str, language: Language) -> String {
    if text.starts_with("```") {
        return text.to_owned();
    }
    if language == Language::C && CUDA_PARAGRAPHS.iter().any(|start| text.starts_with(start)) {
        return String::new();
    }
    let mut kept = Vec::new();
    let mut keeping = true;
    for line in text.lines() {
        let begins = line.starts_with("- ") || line.starts_with("**") || line.starts_with('|') || numbered(line);
        if begins {
            let tag = if line.starts_with('|') { row_tag(line) } else { bold_tag(line) };
            keeping = language_of(tag).is_none_or(|own| language.reads(own));
        }
        if keeping {
            kept.push(line);
        }
    }
    kept.join("\n")
}

fn numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// What stands in brackets in or right behind the bold words that a line begins with; or these words, as in `**C.**`.
fn bold_tag(line: &str) -> &str {
    let Some((_, bold)) = line.split_once("**").filter(|(before, _)| before.len() < 5) else { return "" };
    let Some((words, after)) = bold.split_once("**") else { return "" };
    let bracketed = |text: &'_ str| text.find('(').zip(text.find(')')).filter(|(open, close)| open < close);
    if let Some((open, close)) = bracketed(words) {
        return &words[open + 1..close];
    }
    if let Some(tag) = after.strip_prefix(" (").and_then(|rest| rest.split_once(')')) {
        return tag.0;
    }
    if words == "C." || words == "CUDA." { words } else { "" }
}

/// The language that a row's second cell begins with, before a colon.
fn row_tag(line: &str) -> &str {
    let cell = line.split(" | ").nth(1).unwrap_or("");
    let before = cell.split_once(": ").map_or("", |(before, _)| before);
    before.rsplit(", ").next().filter(|word| ["C", "CUDA", "Triton"].contains(word)).unwrap_or("")
}

/// The one language that a tag is for; none where it is for both or for none in particular.
fn language_of(tag: &str) -> Option<Language> {
    let mut words = tag.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let all: Vec<&str> = words.by_ref().collect();
    let c = all.iter().any(|word| ["C", "x86", "Arm"].contains(word));
    let cuda = all.contains(&"CUDA");
    if !c && !cuda && all.contains(&"Triton") {
        return Some(Language::Triton);
    }
    match (c, cuda) {
        (true, false) => Some(Language::C),
        (false, true) => Some(Language::Cuda),
        _ => None,
    }
}

/// Whether a technique's tag names no device, or one like the brief's.
fn for_device(tag: &str, brief: &Brief) -> bool {
    let bits = brief.device.vector_bits;
    if tag.contains("Arm") {
        return bits <= 128;
    }
    if tag.contains("without AVX-512") {
        return bits < 512;
    }
    if tag.contains("AVX-512") || tag.contains("AVX512") {
        return bits >= 512;
    }
    let Some(capability) = brief.device.facts.get("CC") else { return true };
    let named = ["Ampere", "Ada", "Hopper", "Blackwell"].into_iter().zip([80, 89, 90, 100]);
    let mut named = named.filter(|(name, _)| tag.contains(name)).peekable();
    named.peek().is_none()
        || named.any(|(name, from)| {
            name == generation(*capability) || (tag.contains(&format!("{name} and later")) && *capability >= from)
        })
}
