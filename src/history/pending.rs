//! The experiments under way: written and synced before anything is evaluated, so that a killed run redoes the same.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::HistoryError;
use super::failpoint;
use crate::workspace::{remove_if_there, write_synced};

/// An experiment that has begun and is not in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// Tells it from others under way; 0 in files from before there could be several.
    #[serde(default)]
    pub trial: u64,
    /// The number it will have, from 1, if all before it become experiments.
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

    /// Adds an experiment to those pending, then writes its candidate.
    pub fn write(&self, pending: &Pending) -> Result<(), HistoryError> {
        let mut all = self.read()?;
        match all.iter_mut().find(|other| other.trial == pending.trial) {
            Some(same) => same.clone_from(pending),
            None => all.push(pending.clone()),
        }
        self.put_down(&all)?;
        failpoint::hit("pending", pending.number)?;
        self.put(&pending.path, Some(&pending.text))
    }

    /// Those under way; a single one stands for itself.
    fn put_down(&self, all: &[Pending]) -> Result<(), HistoryError> {
        let path = self.pending();
        let text = match all {
            [] => return remove_if_there(&path).map_err(HistoryError::io("remove", &path)),
            [one] => serde_json::to_vec_pretty(one),
            several => serde_json::to_vec_pretty(several),
        };
        let text = text.map_err(std::io::Error::other).map_err(HistoryError::io("write", &path))?;
        write_synced(&path, &text).map_err(HistoryError::io("write", &path))
    }

    /// The pending experiments. What cannot be read counts as none: the file is replaced in one step, so someone
    /// else wrote it, and all that matters is in the journal.
    pub fn read(&self) -> Result<Vec<Pending>, HistoryError> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Several(Vec<Pending>),
            One(Box<Pending>),
        }
        let path = self.pending();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HistoryError::io("read", &path)(error)),
        };
        Ok(match serde_json::from_slice(&text) {
            Ok(Written::Several(all)) => all,
            Ok(Written::One(one)) => vec![*one],
            Err(_) => Vec::new(),
        })
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

    /// An experiment is over.
    pub fn forget(&self, trial: u64) -> Result<(), HistoryError> {
        let mut all = self.read()?;
        all.retain(|pending| pending.trial != trial);
        self.put_down(&all)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }
}
