//! Reading runs, without the lock: for the status, the log and whoever wants to look while a run goes on.

use std::collections::BTreeSet;

use git2::{Oid, Repository};
use serde_json::Value;

use super::journal::{self, JournalEntry};
use super::ledger::{Row, parse_ledger};
use super::names::{BRANCHES, JOURNAL, JOURNALS, Names, is_run_id};
use super::store::Store;
use super::tree::entry_at;
use super::{HistoryError, refs};
use crate::workspace::{LEDGER_FILE, Workspace};

/// The runs of a repository.
#[derive(Debug, Clone)]
pub struct Archive {
    pub(super) store: Store,
}

/// Which way to go through a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// From the last experiment back.
    NewestFirst,
    /// From the first experiment on.
    OldestFirst,
}

impl Archive {
    /// The runs of the workspace's repository.
    ///
    /// # Errors
    /// It is in no repository, or in one that cannot be opened.
    pub fn open(workspace: &Workspace) -> Result<Self, HistoryError> {
        Ok(Self { store: Store::of(workspace)? })
    }

    /// The runs that have a journal, oldest first.
    ///
    /// # Errors
    /// Git's.
    pub fn runs(&self) -> Result<Vec<String>, HistoryError> {
        self.store.retry(|repository| names(repository, JOURNALS, JOURNAL)).map(|runs| runs.into_iter().collect())
    }

    /// The newest run of this workspace. One whose journal cannot be read is not passed over: whoever opens it is told what is wrong.
    ///
    /// # Errors
    /// Git's.
    pub fn latest_run(&self) -> Result<Option<String>, HistoryError> {
        Ok(self.runs()?.into_iter().rev().find(|run| self.is_here(run).unwrap_or(true)))
    }

    /// Who is writing to the repository's history just now: the run that holds its lock.
    ///
    /// # Errors
    /// The lock cannot be looked at.
    pub fn writer(&self) -> Result<Option<String>, HistoryError> {
        match self.store.lock("status") {
            Ok(_) => Ok(None),
            Err(HistoryError::Busy { holder }) => Ok(Some(holder)),
            Err(error) => Err(error),
        }
    }

    /// Every run id that is in use, be it by a journal, a branch or rows of the ledger: a new run needs another.
    ///
    /// # Errors
    /// Git's.
    pub fn used_run_ids(&self) -> Result<Vec<String>, HistoryError> {
        let mut ids = self.store.retry(|repository| {
            let mut ids = names(repository, JOURNALS, JOURNAL)?;
            ids.extend(names(repository, BRANCHES, "")?);
            Ok(ids)
        })?;
        let ledger = std::fs::read_to_string(self.store.root.join(LEDGER_FILE)).unwrap_or_default();
        // A line that is no row still uses its id.
        let first = ledger.lines().filter_map(|line| line.split('\t').next()).map(str::trim);
        ids.extend(first.filter(|id| is_run_id(id)).map(str::to_owned));
        Ok(ids.into_iter().collect())
    }

    /// The experiments of a run, read one by one.
    ///
    /// # Errors
    /// There is no such run, or its journal cannot be read.
    pub fn entries(&self, run: &str, order: Order) -> Result<Entries, HistoryError> {
        let names = Names::of(run)?;
        let mut ids = self.store.retry(|repository| {
            let links = journal::chain(repository, run, newest(repository, &names)?)?;
            Ok(links.iter().filter(|link| link.is_experiment()).map(|link| link.id).collect::<Vec<_>>())
        })?;
        // Taken from the end.
        if order == Order::NewestFirst {
            ids.reverse();
        }
        Ok(Entries { store: self.store.clone(), repository: None, run: run.to_owned(), ids })
    }

    /// The last experiment of a run.
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub fn last_entry(&self, run: &str) -> Result<Option<JournalEntry>, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| {
            let mut link = journal::link(repository, run, newest(repository, &names)?)?;
            while let (true, Some(previous)) = (link.note, link.previous) {
                link = journal::link(repository, run, previous)?;
            }
            if link.is_experiment() { journal::entry(repository, run, link.id).map(Some) } else { Ok(None) }
        })
    }

    /// The state of a run after its last experiment.
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub fn state(&self, run: &str) -> Result<Value, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| journal::state(repository, run, newest(repository, &names)?))
    }

    /// Where the run's branch is, as its journal says.
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub fn tip(&self, run: &str) -> Result<String, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| Ok(tip(repository, &names)?.to_string()))
    }

    /// The text of a file (relative to the workspace) at the tip of a run's branch.
    ///
    /// # Errors
    /// As [`Self::entries`]; or it is not text.
    pub fn tip_text(&self, run: &str, path: &str) -> Result<Option<String>, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| self.text_in(repository, tip(repository, &names)?, path))
    }

    /// The text of a file (relative to the workspace) in a commit, as in that of a [`JournalEntry`].
    ///
    /// # Errors
    /// Git's; or it is not text.
    pub fn text(&self, commit: &str, path: &str) -> Result<Option<String>, HistoryError> {
        let id = Oid::from_str(commit).map_err(HistoryError::git("read a commit's id"))?;
        self.store.retry(|repository| self.text_in(repository, id, path))
    }

    pub(super) fn text_in(
        &self,
        repository: &Repository,
        commit: Oid,
        path: &str,
    ) -> Result<Option<String>, HistoryError> {
        let failed = HistoryError::git("read a file of the branch");
        let path = self.store.in_repository(path);
        let tree = repository.find_commit(commit).and_then(|commit| commit.tree()).map_err(&failed)?;
        let Some(entry) = entry_at(&tree, &path).map_err(&failed)? else { return Ok(None) };
        let object = entry.to_object(repository).map_err(&failed)?;
        let Some(blob) = object.as_blob() else { return Ok(None) };
        match String::from_utf8(blob.content().to_vec()) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(HistoryError::BadPath { path, what: "what is there is not text".to_owned() }),
        }
    }

    /// The experiments of a run as rows of the ledger, oldest first: much less to read than [`Self::entries`].
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub fn experiments(&self, run: &str) -> Result<Vec<Row>, HistoryError> {
        let damaged = |line: &str, what: String| HistoryError::Damaged {
            run: run.to_owned(),
            at: line.chars().take(12).collect(),
            what,
        };
        let row = |line: &String| Row::parse(line).map_err(|error| damaged(line, error.to_string()));
        self.rows(run)?.iter().map(row).collect()
    }

    /// The rows of every run that has a journal, for the ledger.
    pub(super) fn all_rows(&self) -> Result<Vec<(String, Vec<String>)>, HistoryError> {
        self.runs()?.into_iter().map(|run| Ok((run.clone(), self.rows(&run)?))).collect()
    }

    fn rows(&self, run: &str) -> Result<Vec<String>, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| {
            let links = journal::chain(repository, run, newest(repository, &names)?)?;
            let experiments = links.iter().rev().filter(|link| link.is_experiment());
            experiments.map(|link| journal::row(repository, run, link.id)).collect()
        })
    }

    /// The rows of the ledger at the workspace's root as they stand.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn ledger(&self) -> Result<Vec<Row>, HistoryError> {
        let path = self.store.root.join(LEDGER_FILE);
        match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map(|text| parse_ledger(&text)).map_err(HistoryError::io("read", &path)),
        }
    }
}

/// The run ids in the refs `<folder><run><last>`.
pub(super) fn names(repository: &Repository, folder: &str, last: &str) -> Result<BTreeSet<String>, HistoryError> {
    let failed = HistoryError::git("list the runs");
    let mut ids = BTreeSet::new();
    for name in repository.references_glob(&format!("{folder}*")).map_err(&failed)?.names() {
        let name = name.map_err(&failed)?;
        ids.extend(
            name.strip_prefix(folder)
                .and_then(|rest| rest.strip_suffix(last))
                .filter(|id| is_run_id(id))
                .map(str::to_owned),
        );
    }
    Ok(ids)
}

/// The journal's last commit.
pub(super) fn newest(repository: &Repository, names: &Names) -> Result<Oid, HistoryError> {
    match refs::read(repository, &names.journal)? {
        Some(newest) => Ok(newest),
        None => Err(HistoryError::NoRun {
            run: names.run.clone(),
            known: self::names(repository, JOURNALS, JOURNAL)?.into_iter().collect(),
        }),
    }
}

/// Where the journal puts the branch: at the last candidate that was kept, else at the start.
pub(super) fn tip(repository: &Repository, names: &Names) -> Result<Oid, HistoryError> {
    let mut link = journal::link(repository, &names.run, newest(repository, names)?)?;
    while let (false, Some(previous)) = (link.kept, link.previous) {
        link = journal::link(repository, &names.run, previous)?;
    }
    Ok(link.commit)
}

/// Experiments of a run; see [`Archive::entries`].
pub struct Entries {
    store: Store,
    /// Open as long as it serves.
    repository: Option<Repository>,
    run: String,
    /// Still to be read, the next one last.
    ids: Vec<Oid>,
}

impl Iterator for Entries {
    type Item = Result<JournalEntry, HistoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let id = self.ids.pop()?;
        if let Some(Ok(entry)) = self.repository.as_ref().map(|open| journal::entry(open, &self.run, id)) {
            return Some(Ok(entry));
        }
        self.repository = self.store.open().ok();
        Some(self.store.retry(|repository| journal::entry(repository, &self.run, id)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ids.len(), Some(self.ids.len()))
    }
}

impl ExactSizeIterator for Entries {}
