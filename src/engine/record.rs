//! Where a run writes: its history, or nowhere but in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::history::{Entry, History, HistoryError, Order, Pending};

/// An experiment that was recorded, as far as a run asks for it again.
pub(super) struct Past {
    /// The experiment.
    pub(super) number: u64,
    /// The candidate's text.
    pub(super) text: String,
    /// What the judge found.
    pub(super) evaluation: Value,
    /// The run's state after it.
    pub(super) state: Value,
}

/// What a run writes down, and reads of it; all fail as git and the file system do.
pub(super) trait Record: Send {
    /// A folder for whatever the run keeps beside; it may not be there yet.
    fn folder(&self) -> &Path;
    /// Where a candidate for a kernel file is while it is judged.
    fn candidate_path(&self, file: &str) -> PathBuf;
    /// A file's text at the branch's tip.
    fn tip_text(&self, file: &str) -> Result<Option<String>, HistoryError>;
    /// Puts down what is about to be judged.
    fn begin(&mut self, pending: &Pending) -> Result<(), HistoryError>;
    /// Takes that back.
    fn withdraw(&mut self, trial: u64, file: &str) -> Result<(), HistoryError>;
    /// Writes an experiment down, in the order that survives a kill.
    fn record(&mut self, entry: Entry) -> Result<(), HistoryError>;
    /// Writes down a state that belongs to no experiment.
    fn checkpoint(&mut self, state: Value) -> Result<(), HistoryError>;
    /// The experiments on files of one target that advanced the branch or were taken back, the newest first.
    fn line(&self, files: &[String]) -> Result<Vec<Past>, HistoryError>;
}

impl Record for History {
    fn folder(&self) -> &Path {
        Self::folder(self)
    }
    fn candidate_path(&self, file: &str) -> PathBuf {
        Self::candidate_path(self, file)
    }
    fn tip_text(&self, file: &str) -> Result<Option<String>, HistoryError> {
        Self::tip_text(self, file)
    }
    fn begin(&mut self, pending: &Pending) -> Result<(), HistoryError> {
        self.begin_experiment(pending)
    }
    fn withdraw(&mut self, trial: u64, file: &str) -> Result<(), HistoryError> {
        Self::withdraw(self, trial, file)
    }
    fn record(&mut self, entry: Entry) -> Result<(), HistoryError> {
        Self::record(self, entry).map(drop)
    }
    fn checkpoint(&mut self, state: Value) -> Result<(), HistoryError> {
        Self::checkpoint(self, state)
    }
    fn line(&self, files: &[String]) -> Result<Vec<Past>, HistoryError> {
        let mut line = Vec::new();
        for entry in self.entries(Order::NewestFirst)? {
            let entry = entry?;
            if !files.contains(&entry.path) || !entry.kept && entry.evaluation["verdict"]["status"] != "base" {
                continue;
            }
            if let Some(text) = self.archive().text(&entry.commit, &entry.path)? {
                line.push(Past { number: entry.number, text, evaluation: entry.evaluation, state: entry.state });
            }
        }
        Ok(line)
    }
}

/// A run of which nothing is written: only the texts that would be at the branch's tip are known.
#[derive(Debug, Default)]
pub(super) struct Unwritten {
    tip: BTreeMap<String, String>,
}

impl Record for Unwritten {
    fn folder(&self) -> &Path {
        Path::new("")
    }
    fn candidate_path(&self, _file: &str) -> PathBuf {
        PathBuf::new()
    }
    fn tip_text(&self, file: &str) -> Result<Option<String>, HistoryError> {
        Ok(self.tip.get(file).cloned())
    }
    fn begin(&mut self, _pending: &Pending) -> Result<(), HistoryError> {
        Ok(())
    }
    fn withdraw(&mut self, _trial: u64, _file: &str) -> Result<(), HistoryError> {
        Ok(())
    }
    fn record(&mut self, entry: Entry) -> Result<(), HistoryError> {
        if entry.keep {
            if let Some(left) = &entry.removes {
                self.tip.remove(left);
            }
            self.tip.insert(entry.path, entry.candidate_text);
        }
        Ok(())
    }
    fn checkpoint(&mut self, _state: Value) -> Result<(), HistoryError> {
        Ok(())
    }
    fn line(&self, _files: &[String]) -> Result<Vec<Past>, HistoryError> {
        Ok(Vec::new())
    }
}
