//! Texts judged one after the other, each against the last one kept; written down where there is a history.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use crate::engine::stop::StopReason;
use crate::engine::{Edited, Run, RunError, RunState, TargetState};

/// A kernel that someone edits.
pub struct Watch {
    run: Run,
}

impl Watch {
    /// A watch that has seen nothing yet, on a run with the kernel as its only target.
    #[must_use]
    pub const fn new(run: Run) -> Self {
        Self { run }
    }

    /// Judges a text: the first that passes is what the following are held against, until one is better. The inner error says why
    /// there is no verdict.
    ///
    /// # Errors
    /// The machine's, which the next text may be spared; git's, which end it. Cancelled, nothing is written down.
    pub async fn judge(
        &mut self,
        text: &str,
        cancel: &CancellationToken,
    ) -> Result<Result<Edited, StopReason>, RunError> {
        self.run.cancel_with(cancel.clone());
        let description = self.describe(text);
        self.run.judge_edit(text, &description).await
    }

    /// What a text changes, in a few words.
    #[must_use]
    pub fn describe(&self, text: &str) -> String {
        self.best().map_or_else(|| "the kernel as it is".to_owned(), |best| changed_lines(&best, text))
    }

    /// Writes down where it ended, where there is a history.
    ///
    /// # Errors
    /// Git.
    pub fn close(&mut self) -> Result<(), RunError> {
        self.run.pause()
    }

    /// The kernel.
    #[must_use]
    pub fn target(&self) -> &TargetState {
        &self.run.state().targets[0]
    }

    /// The last text kept; none until one has passed.
    #[must_use]
    pub fn best(&self) -> Option<String> {
        let target = self.target();
        target.start_us?;
        self.run.incumbent_of(&target.op).ok()
    }

    /// The state, as a run's.
    #[must_use]
    pub const fn state(&self) -> &RunState {
        self.run.state()
    }
}

/// What sets one text apart from another, in a few words: `+3 -1 lines`. Lines that only moved are not counted.
fn changed_lines(before: &str, after: &str) -> String {
    let mut balance: BTreeMap<&str, i64> = BTreeMap::new();
    for line in after.lines() {
        *balance.entry(line.trim_end()).or_default() += 1;
    }
    for line in before.lines() {
        *balance.entry(line.trim_end()).or_default() -= 1;
    }
    let added: i64 = balance.values().filter(|count| **count > 0).sum();
    let removed: i64 = -balance.values().filter(|count| **count < 0).sum::<i64>();
    if added == 0 && removed == 0 { "the same lines".to_owned() } else { format!("+{added} -{removed} lines") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_described_by_the_lines_it_changes() {
        assert_eq!(changed_lines("a\nb\nc\n", "a\nx\ny\nc\n"), "+2 -1 lines");
        assert_eq!(changed_lines("a\nb\n", "b\na\n"), "the same lines");
        assert_eq!(changed_lines("a\na\n", "a\n"), "+0 -1 lines");
        assert_eq!(changed_lines("a \r\n", "a\n"), "the same lines");
    }
}
