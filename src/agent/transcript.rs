//! What was said in a run, a JSON line each: for a reader, and for playing the proposals again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Proposal, Usage};

/// The transcript's name in a run's folder.
pub const FILE: &str = "transcript.jsonl";

/// One thing that was said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum Said {
    /// What a language model or a command was asked. Long parts that were said before are not repeated.
    Asked {
        /// The operation.
        op: String,
        /// The proposal it is about.
        ticket: u64,
        /// The model's name, or the command.
        to: String,
        /// The messages or the prompt; never a key.
        prompt: Value,
    },
    /// What came back.
    Answered {
        /// The operation.
        op: String,
        /// The proposal it is about.
        ticket: u64,
        /// The answer's text, or the error's.
        text: String,
        /// Whether it is an error.
        failed: bool,
        /// Tokens, cost and time of this one.
        usage: Usage,
    },
    /// A candidate as it went to the judge.
    Proposed {
        /// The operation.
        op: String,
        /// The experiment it was judged as.
        experiment: u64,
        /// The candidate.
        proposal: Proposal,
    },
    /// The judge's word on it.
    Judged {
        /// The operation.
        op: String,
        /// The experiment.
        experiment: u64,
        /// The status of the ledger.
        status: String,
        /// The judge's sentence; empty for a keep.
        why: String,
    },
}

/// A line with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When, in UTC.
    pub at: jiff::Timestamp,
    /// What.
    #[serde(flatten)]
    pub said: Said,
}

/// An open transcript; clones write to the same file.
#[derive(Debug, Clone, Default)]
pub struct Transcript {
    file: Option<Arc<Mutex<File>>>,
}

impl Transcript {
    /// Goes on with the transcript in `folder`, or begins it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let file = OpenOptions::new().create(true).append(true).open(folder.join(FILE))?;
        Ok(Self { file: Some(Arc::new(Mutex::new(file))) })
    }

    /// One that is written nowhere.
    #[must_use]
    pub fn nowhere() -> Self {
        Self::default()
    }

    /// Writes a line in one piece. A full disk loses the transcript and not the run: the journal has every candidate.
    pub fn say(&self, said: Said) {
        let Some(file) = &self.file else { return };
        let line = Line { at: jiff::Timestamp::now(), said };
        let Ok(mut text) = serde_json::to_string(&line) else { return };
        text.push('\n');
        let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(text.as_bytes());
    }
}

/// Reads a transcript; a last line that was cut off by a kill is left out.
///
/// # Errors
/// The file cannot be read, or a line other than the last is not a transcript's: with its number.
pub fn read(path: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let mut said = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(line) => said.push(line),
            Err(_) if index + 1 == lines.len() && !text.ends_with('\n') => break,
            Err(error) => {
                let what = format!("{} line {}: {error}", path.display(), index + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
    Ok(said)
}
