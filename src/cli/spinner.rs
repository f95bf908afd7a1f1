//! One line that says where the judge is, on a terminal only.

use std::io::IsTerminal;

use indicatif::ProgressBar;

use super::lines::stage_words;
use crate::harness::Progress;

/// Shows the latest progress in place; nothing stays behind.
pub(super) struct Spinner(Option<ProgressBar>);

impl Spinner {
    pub(super) fn new(silent: bool) -> Self {
        Self((!silent && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner))
    }

    pub(super) fn show(&self, progress: &Progress) {
        if let Some(bar) = &self.0 {
            bar.set_message(format!("{}: {}", stage_words(progress.stage), progress.detail));
            bar.tick();
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
