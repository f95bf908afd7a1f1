//! The experiment under way: written and synced before anything is evaluated, so that a killed run redoes the same.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::HistoryError;
use super::failpoint;
use crate::workspace::{remove_if_there, write_synced};

/// An experiment that has begun and is not in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// Its number, from 1.
    pub number: u64,
    /// The kernel file, relative to the workspace: `kernels/cpu/rmsnorm.c`.
    pub path: String,
    /// The candidate's text.
    pub text: String,
    /// The seed of its evaluation.
    pub seed: u64,
    /// What else the caller needs to do the same again.
    pub meta: serde_json::Value,
}

/// `.warpsmith/<run>`: the pending experiment and the candidate file.
#[derive(Debug, Clone)]
pub struct RunFolder {
    folder: PathBuf,
}

impl RunFolder {
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where the candidate for a kernel file is.
    pub fn candidate(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    fn pending(&self) -> PathBuf {
        self.folder.join("pending.json")
    }

    /// Writes the pending experiment, then its candidate.
    pub fn write(&self, pending: &Pending) -> Result<(), HistoryError> {
        let path = self.pending();
        let text = serde_json::to_vec_pretty(pending)
            .map_err(std::io::Error::other)
            .map_err(HistoryError::io("write", &path))?;
        write_synced(&path, &text).map_err(HistoryError::io("write", &path))?;
        failpoint::hit("pending", pending.number)?;
        self.put(&pending.path, Some(&pending.text))
    }

    /// The pending experiment. One that cannot be read counts as none: the file is replaced in one step, so someone
    /// else wrote it, and all that matters is in the journal.
    pub fn read(&self) -> Result<Option<Pending>, HistoryError> {
        let path = self.pending();
        match std::fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HistoryError::io("read", &path)(error)),
        }
    }

    /// Makes the candidate file say `text`, or not be there.
    pub fn put(&self, path: &str, text: Option<&str>) -> Result<(), HistoryError> {
        let file = self.candidate(path);
        match text {
            Some(text) if std::fs::read(&file).is_ok_and(|there| there == text.as_bytes()) => Ok(()),
            Some(text) => write_synced(&file, text.as_bytes()).map_err(HistoryError::io("write", &file)),
            None => remove_if_there(&file).map_err(HistoryError::io("remove", &file)),
        }
    }

    /// The experiment is over.
    pub fn forget(&self) -> Result<(), HistoryError> {
        let path = self.pending();
        remove_if_there(&path).map_err(HistoryError::io("remove", &path))
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}
