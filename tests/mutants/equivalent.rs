//! Mutants that the judge takes, and rightly so.

use crate::generate::Mutant;

/// Mutants that compute the same, or as well, by the lines that they change.
pub struct Equivalent {
    /// The files that have such a line.
    pub files: &'static [&'static str],
    /// What these lines become.
    pub lines: &'static [&'static str],
    pub why: &'static str,
}

/// All that were looked at, one by one.
pub const EQUIVALENT: &[Equivalent] = &[];

/// Why a mutant is none.
pub fn reason(mutant: &Mutant) -> Option<&'static str> {
    let is_it = |row: &&Equivalent| {
        row.files.contains(&mutant.file.as_str()) && row.lines.contains(&mutant.after.as_str())
    };
    EQUIVALENT.iter().find(is_it).map(|row| row.why)
}
