//! Keeping a prompt inside a context: what is left out, and in which order.

use super::template::PartText;
use super::{PromptError, tokens};
use crate::agent::Brief;

/// Tokens around a message: its role, its marks.
const AROUND: usize = 16;
/// Tokens for hypothesis and headers beside a whole file.
const REST: usize = 512;
/// Attempts that are told with the judge's reason where old ones are shortened.
const RECENT: usize = 8;
/// The same where room is scarce.
const FEW: usize = 3;

/// One thing that is left out, in the order of [`STEPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Old attempts without hypothesis and reason.
    OldAttempts,
    /// Old attempts as counts by technique.
    OldCounted,
    /// Techniques of other operations and other devices.
    OtherTechniques,
    /// Of each technique only what to do.
    TechniquesInLines,
    /// Of the techniques only their identifiers.
    TechniquesNamed,
    /// `reference/<op>.h`.
    Oracle,
    /// The headers that the kernel includes.
    Headers,
    /// All but the last few attempts as counts.
    FewAttempts,
    /// Sections of `program.md` by their headings, the least useful first.
    Section(&'static str),
    /// Sections that nobody here knows: the user's own.
    OwnSections,
    /// `reference/<op>.toml`.
    Definition,
    /// The rest of `program.md`.
    Program,
    /// All attempts but the last one as counts.
    OneAttempt,
}

use Step::{
    Definition, FewAttempts, Headers, OldAttempts, OldCounted, OneAttempt, Oracle, OtherTechniques, OwnSections,
    Program, Section, TechniquesInLines, TechniquesNamed,
};

/// What is left out, the least useful first.
pub(super) const STEPS: [Step; 30] = [
    OldAttempts,
    OldCounted,
    OtherTechniques,
    TechniquesInLines,
    TechniquesNamed,
    Oracle,
    Headers,
    FewAttempts,
    Section("When to stop"),
    Section("When you are stuck"),
    Section("The loop"),
    Section("A long night"),
    Section("Noise"),
    Section("Handing in"),
    OwnSections,
    Section("What not to try"),
    Section("Choosing what to try"),
    Section("Reading a verdict"),
    Section("Reading an evaluation"),
    Definition,
    Section("Operation by operation"),
    Section("Numerics"),
    Section("What counts as cheating"),
    Section("A kernel in C"),
    Section("A kernel in CUDA"),
    OneAttempt,
    Section("The rules"),
    Section("Scratch, launches, tensor maps"),
    Section("Front matter"),
    Program,
];

impl Step {
    /// What is missing then, in words; steps that go further than others of a kind come later in [`STEPS`].
    fn words(self) -> (u8, String) {
        match self {
            OldAttempts => (0, "hypotheses and reasons of old attempts".into()),
            OldCounted => (0, "old attempts one by one".into()),
            FewAttempts => (0, format!("attempts one by one, but for the last {FEW}")),
            OneAttempt => (0, "attempts one by one, but for the last".into()),
            OtherTechniques => (1, "techniques for other operations and devices".into()),
            TechniquesInLines => (1, "when each technique pays and what it costs".into()),
            TechniquesNamed => (1, "the playbook, but for its identifiers".into()),
            Oracle => (2, "the oracle".into()),
            Definition => (3, "the operation's definition".into()),
            Section(_) | OwnSections => (4, "parts of program.md".into()),
            Program => (4, "program.md".into()),
            Headers => (5, "the headers that the kernel includes".into()),
        }
    }
}

/// How far a prompt is cut: so many of [`STEPS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut(usize);

impl Cut {
    /// The cut whose last step is this one.
    #[cfg(test)]
    pub(super) fn through(step: Step) -> Self {
        Self(STEPS.iter().position(|other| *other == step).map_or(0, |index| index + 1))
    }

    /// All cuts, from nothing left out to as little as possible.
    fn all() -> impl Iterator<Item = Self> {
        (0..=STEPS.len()).map(Self)
    }

    /// Whether this is left out.
    pub(super) fn has(&self, step: Step) -> bool {
        STEPS[..self.0].contains(&step)
    }

    pub(super) fn oracle(&self) -> bool {
        self.has(Oracle)
    }

    pub(super) fn headers(&self) -> bool {
        self.has(Headers)
    }

    pub(super) fn definition(&self) -> bool {
        self.has(Definition)
    }

    /// Attempts that are told with their reasons.
    pub(super) fn whole_attempts(&self) -> usize {
        match () {
            () if self.has(OneAttempt) => 1,
            () if self.has(FewAttempts) => FEW,
            () if self.has(OldAttempts) => RECENT,
            () => usize::MAX,
        }
    }

    pub(super) fn old_attempts_counted(&self) -> bool {
        self.has(OldCounted)
    }
}

/// Tokens that are left for the answer: a quarter of the context, and enough for the whole file with some reasoning.
fn room_for_answer(brief: &Brief, context_tokens: usize) -> usize {
    let file = tokens(&brief.incumbent);
    (context_tokens / 4).max(file + file / 4 + REST)
}

/// The prompt with as little left out as the context allows. `render` makes the parts for a cut; its second argument
/// says what is missing.
pub(super) fn fit(
    brief: &Brief,
    context_tokens: usize,
    render: &dyn Fn(&Cut, &str) -> Vec<PartText>,
) -> Result<Vec<PartText>, PromptError> {
    let answer = room_for_answer(brief, context_tokens);
    let mut dropped: Vec<(u8, String)> = Vec::new();
    let mut before: Option<usize> = None;
    let mut least = usize::MAX;
    for cut in Cut::all() {
        // What has nothing to leave out is not said to be left out.
        let bare = size(&render(&cut, ""));
        if let (Some(step), Some(before)) = (cut.0.checked_sub(1).and_then(|index| STEPS.get(index)), before)
            && bare < before
        {
            let (kind, words) = step.words();
            dropped.retain(|(other, _)| *other != kind);
            dropped.push((kind, words));
        }
        before = Some(bare);
        let said = dropped.iter().map(|(_, words)| words.as_str()).collect::<Vec<_>>().join("; ");
        let parts = render(&cut, &said);
        let needed = size(&parts) + answer;
        if needed <= context_tokens {
            return Ok(parts);
        }
        least = least.min(needed);
    }
    Err(PromptError::TooLong { op: brief.op.clone(), needed: least, answer, context: context_tokens })
}

/// Tokens of the messages that parts make.
fn size(parts: &[PartText]) -> usize {
    2 * AROUND + parts.iter().map(|part| tokens(&part.text) + 1).sum::<usize>()
}
