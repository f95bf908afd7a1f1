//! The repository as history uses it: opened afresh, every write synced, tried again while `git gc` moves things.

use std::path::{Path, PathBuf};
use std::time::Duration;

use git2::{ConfigLevel, Repository};

use super::HistoryError;
use crate::workspace::{FileLock, Workspace, WorkspaceError, open_repository, write_synced};

/// Tries, with pauses of 1, 2, 4, … 128 ms and then 128 ms: about two seconds.
const TRIES: u32 = 20;

/// Overrides the user's settings while we write: libgit2 does not sync refs and objects unless told so here.
const SETTINGS: &str = "[core]\n\tfsyncObjectFiles = true\n";

/// The repository of a workspace.
#[derive(Debug, Clone)]
pub struct Store {
    /// The workspace's root.
    pub root: PathBuf,
    /// `.warpsmith`.
    pub private: PathBuf,
    /// The workspace's place in the repository: empty, or ending in `/`.
    pub prefix: String,
}

/// How often, and after which pause, a lock that is held is tried again.
const LOCK_TRIES: u32 = 4;
const LOCK_PAUSE: Duration = Duration::from_millis(25);

impl Store {
    /// The repository of `workspace`; nothing is written yet.
    pub fn of(workspace: &Workspace) -> Result<Self, HistoryError> {
        let root = workspace.root().to_owned();
        let repository = open_repository(&root)?;
        let tree = repository.workdir().unwrap_or(&root);
        let tree = tree.canonicalize().map_err(HistoryError::io("read", tree))?;
        let below = root.strip_prefix(&tree).unwrap_or(Path::new(""));
        let Some(below) = below.to_str() else {
            return Err(HistoryError::BadPath {
                path: below.display().to_string(),
                what: "the workspace's path is not valid UTF-8".to_owned(),
            });
        };
        let prefix = if below.is_empty() { String::new() } else { format!("{below}/") };
        Ok(Self { private: root.join(crate::workspace::PRIVATE_FOLDER), root, prefix })
    }

    /// Prepares for writing: `.warpsmith` with what overrides the user's settings.
    pub fn prepare(&self, workspace: &Workspace) -> Result<(), HistoryError> {
        workspace.private_folder()?;
        let path = self.settings();
        write_synced(&path, SETTINGS.as_bytes()).map_err(HistoryError::io("write", &path))
    }

    /// A fresh repository, for reading and (after [`Self::prepare`]) for synced writing.
    pub fn open(&self) -> Result<Repository, HistoryError> {
        let repository = open_repository(&self.root)?;
        let settings = self.settings();
        if settings.is_file() {
            let failed = HistoryError::git("read the repository's settings");
            // Before anything is looked up: libgit2 remembers what it has read.
            let mut config = repository.config().map_err(&failed)?;
            config.add_file(&settings, ConfigLevel::App, true).map_err(&failed)?;
        }
        Ok(repository)
    }

    /// Does something with a fresh repository, again with another one if git fails: `git gc` takes packs away, and
    /// finds in them what libgit2 was about to read, at any time. The last failure is returned.
    pub fn retry<T>(&self, mut work: impl FnMut(&Repository) -> Result<T, HistoryError>) -> Result<T, HistoryError> {
        let mut tried = 0;
        loop {
            // `open` fails passingly too: it reads HEAD's folder while git renames in it.
            let result = self.open().and_then(|repository| work(&repository));
            match result {
                Err(error) if tried < TRIES && (error.may_pass() || opening_failed(&error)) => {
                    tracing::debug!(%error, tried, "git is asked again");
                    std::thread::sleep(Duration::from_millis(1 << tried.min(7)));
                    tried += 1;
                }
                other => return other,
            }
        }
    }

    /// Takes the lock on the repository, for all its working trees; `holder` is told to others, as in `run 260214a`.
    pub fn lock(&self, holder: &str) -> Result<FileLock, HistoryError> {
        let path = self.open()?.commondir().join("warpsmith.lock");
        let mut patience = LOCK_TRIES;
        loop {
            match FileLock::try_take(&path, holder).map_err(HistoryError::io("lock", &path))? {
                Ok(lock) => return Ok(lock),
                // Whoever only looks holds it for a moment.
                Err(_) if patience > 0 => std::thread::sleep(LOCK_PAUSE),
                Err(holder) => return Err(HistoryError::Busy { holder }),
            }
            patience -= 1;
        }
    }

    /// A path of the workspace as a path of the repository.
    pub fn in_repository(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    fn settings(&self) -> PathBuf {
        self.private.join("git.config")
    }
}

/// Whether the repository was there and could not be opened this time.
const fn opening_failed(error: &HistoryError) -> bool {
    matches!(error, HistoryError::Workspace(WorkspaceError::Git { .. }))
}
