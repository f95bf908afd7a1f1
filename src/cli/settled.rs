//! What a run's whole PyTorch model said as the run ended, as it is kept in the run's folder.

use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::export::Verified;
use crate::report::{self, Measured, Outputs};
use crate::verify::Culprit;
use crate::workspace::{PRIVATE_FOLDER, WHOLE_FILE, Workspace};

/// What the whole model said of a run's kernels.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Settled {
    /// The comparison with what is left in the package; none where nothing is.
    pub(super) verified: Option<Verified>,
    /// Kernels that the model does not agree with, and why.
    pub(super) refused: Vec<Culprit>,
    /// Kernels that are right and make the model slower, and why.
    #[serde(default)]
    pub(super) slower: Vec<Culprit>,
}

/// The folder of a run.
pub(super) fn folder_of(workspace: &Workspace, run: &str) -> PathBuf {
    workspace.root().join(PRIVATE_FOLDER).join(run)
}

/// What the whole model said of a run's kernels as it ended; none where it was not asked.
///
/// # Errors
/// A file that is there and cannot be read: what it says must not be lost.
pub(super) fn seen(workspace: &Workspace, run: &str) -> anyhow::Result<Option<Settled>> {
    let path = folder_of(workspace, run).join(WHOLE_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map(Some).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

impl Settled {
    /// How much faster the whole was, in a sentence, where it was measured.
    pub(super) fn gain(&self) -> Option<String> {
        let verified = self.verified.as_ref()?;
        let (ratio, low, high) = verified.whole_gain()?;
        let how = if verified.replayed_gain().is_some() { " as CUDA graphs" } else { "" };
        Some(format!("{ratio:.3}x as fast{how} ({low:.3} to {high:.3})"))
    }

    /// Kernels that are not to be exported, with the reason.
    pub(super) fn left_out(&self) -> Vec<Culprit> {
        let refused = |it: &Culprit| {
            let why = format!("the whole model does not agree with it: {}", it.why);
            Culprit { op: it.op.clone(), why }
        };
        self.refused.iter().map(refused).chain(self.slower.iter().cloned()).collect()
    }

    /// Has a run's page say it too; what a reader of it should know, a sentence each.
    pub(super) fn tell(&self, whole: &mut report::Whole) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(verified) = &self.verified {
            let replayed = verified.replayed_passes_us();
            if replayed.is_some() {
                notes.push("the whole was measured as CUDA graphs, with what is exported and without".to_owned());
            }
            if let Some(passes_us) = replayed.or_else(|| verified.passes_us()) {
                whole.measured = Some(Measured { ratio: passes_us.0 / passes_us.1, interval: None, passes_us });
            }
            whole.outputs = Some(Outputs { agree: verified.wrong().is_empty(), words: verified.in_words() });
        }
        notes.extend(self.left_out().iter().map(|it| format!("{} is not exported: {}", it.op, it.why)));
        notes
    }
}
