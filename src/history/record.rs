//! A run as it goes on: it begins, and experiment after experiment is written down.
//!
//! The order of an experiment, which [`super::recover`] relies on: pending file synced → (evaluate) → objects → journal
//! moves (*the commit point*) → branch moves if kept → ledger row appended and synced → file restored, pending removed.

use git2::{ErrorCode, Oid, Repository, Signature};
use serde_json::Value;

use super::archive::{Archive, Entries, Order};
use super::journal::{self, Draft};
use super::ledger::{COMMIT_DIGITS, Row};
use super::names::Names;
use super::pack::{self, Batch, Kept};
use super::pending::{Pending, RunFolder};
use super::store::Store;
use super::tree::{Changes, Leaf, rewrite, room_for};
use super::{HistoryError, failpoint, project, refs, snapshot};
use crate::workspace::{FileLock, LEDGER_FILE, Workspace, identity, relative};

/// Packs of one experiment each are joined when there are so many; git itself begins to tidy up at fifty.
const JOIN_AT: usize = 40;

/// A run's history, open for writing; it holds the repository's lock.
#[derive(Debug)]
pub struct History {
    pub(super) archive: Archive,
    pub(super) names: Names,
    pub(super) folder: RunFolder,
    /// The journal's last commit.
    pub(super) journal: Oid,
    /// The branch's tip.
    pub(super) tip: Oid,
    /// The last experiment in the journal.
    pub(super) last: u64,
    pub(super) state: Value,
    /// Every run's rows, this one's among them, for the ledger.
    pub(super) rows: Vec<(String, Vec<String>)>,
    /// Packs written since the last joining.
    pub(super) packs: Vec<Kept>,
    /// What the snapshot left out.
    pub(super) left_out: Vec<std::path::PathBuf>,
    pub(super) _lock: FileLock,
}

/// An experiment that has been judged.
#[derive(Debug, Clone)]
pub struct Entry {
    /// As of its [`Pending`].
    pub trial: u64,
    /// Its number: one more than the last.
    pub number: u64,
    /// The kernel file, relative to the workspace.
    pub path: String,
    /// The candidate's text.
    pub candidate_text: String,
    /// Whether the branch advances to it.
    pub keep: bool,
    /// A file that the branch has no longer, where it advances: the kernel of the same operation in another language.
    pub removes: Option<String>,
    /// As in `rmsnorm: vectorised loads (1.18x, 2.31x total)`.
    pub subject: String,
    /// Why, in some sentences; may be empty.
    pub body: String,
    /// `Latency-us`, `Speedup-low`, `Technique`, `Agent`, `Experiment`.
    pub trailers: Vec<(String, String)>,
    /// The ledger's row; run, number and commit are filled in here.
    pub row: Row,
    /// What was proposed, by whom and against what.
    pub record: Value,
    /// What the judge found.
    pub evaluation: Value,
    /// The run's state after it: counters, seeds, budget, the agent's.
    pub state: Value,
}

/// Where an experiment was written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// The candidate's commit.
    pub commit: String,
    /// The journal's commit.
    pub journal: String,
    /// The ledger's line.
    pub row: String,
}

impl History {
    /// Whether the run `run_id` could begin now, for a refusal before anything is measured; [`Self::begin`] looks again.
    ///
    /// # Errors
    /// Another run is going on, or the repository has no place for the branch; each in a sentence.
    pub fn could_begin(workspace: &Workspace, run_id: &str) -> Result<(), HistoryError> {
        let names = Names::of(run_id)?;
        let store = Archive::open(workspace)?.store;
        let _lock = store.lock(&format!("run {run_id}"))?;
        refs::check_branch(&store.open()?, &names)
    }

    /// Begins the run `run_id` (see [`super::next_run_id`]): its branch starts from the workspace as it is on disk,
    /// its journal with `state`. The user's HEAD, index and files are not touched.
    ///
    /// # Errors
    /// The run exists, another run is going on, or the repository cannot be used; each in a sentence.
    pub fn begin(workspace: &Workspace, run_id: &str, state: Value) -> Result<Self, HistoryError> {
        let names = Names::of(run_id)?;
        let archive = Archive::open(workspace)?;
        let store = archive.store.clone();
        let lock = store.lock(&format!("run {run_id}"))?;
        store.prepare(workspace)?;
        let repository = store.open()?;
        refs::check_branch(&repository, &names)?;
        if refs::read(&repository, &names.journal)?.is_some() || refs::read(&repository, &names.branch)?.is_some() {
            return Err(HistoryError::RunExists { run: run_id.to_owned() });
        }
        pack::clean(&repository)?;
        let mut begun = store.retry(|repository| start(repository, &store, &names, &state))?;
        failpoint::hit("begin-objects", 0)?;
        let open = || store.open();
        refs::advance(open, &names.journal, None, begun.journal, "warpsmith: begin")?;
        failpoint::hit("begin-journal", 0)?;
        refs::advance(open, &names.branch, None, begun.start, "warpsmith: begin")?;
        failpoint::hit("begin-branch", 0)?;
        begun.pack.release()?;

        let rows = archive.all_rows()?;
        project::update(&store.root.join(LEDGER_FILE), &rows)?;
        Ok(Self {
            folder: RunFolder::new(store.private.join(run_id)),
            archive,
            names,
            journal: begun.journal,
            tip: begun.start,
            last: 0,
            state,
            rows,
            packs: Vec::new(),
            left_out: begun.left_out,
            _lock: lock,
        })
    }

    /// Puts down what is about to be evaluated. The candidate file is then at [`Self::candidate_path`].
    ///
    /// # Errors
    /// Its number is taken, or a file cannot be written.
    pub fn begin_experiment(&self, pending: &Pending) -> Result<(), HistoryError> {
        if pending.number <= self.last {
            return Err(self.out_of_order(pending.number));
        }
        relative(&pending.path)?;
        self.folder.write(pending)
    }

    /// Takes back what [`Self::begin_experiment`] put down: it will not be judged.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn withdraw(&self, trial: u64, path: &str) -> Result<(), HistoryError> {
        self.restore(path)?;
        self.folder.forget(trial)
    }

    /// Writes an experiment down; when this returns, it is there to stay.
    ///
    /// # Errors
    /// It is not the experiment that follows, the branch was moved or checked out by someone, or something cannot be
    /// written. The run must then be opened anew: [`History::open`] finishes what is half done.
    pub fn record(&mut self, entry: Entry) -> Result<Recorded, HistoryError> {
        self.follows(entry.number)?;
        relative(&entry.path)?;
        entry.removes.as_deref().map(relative).transpose()?;
        let store = self.archive.store.clone();
        let mut written = store.retry(|repository| self.write(repository, &entry))?;
        failpoint::hit("objects", entry.number)?;

        let open = || store.open();
        let why = format!("warpsmith: experiment {}", entry.number);
        refs::advance(open, &self.names.journal, Some(self.journal), written.journal, &why)?;
        failpoint::hit("journal", entry.number)?;
        self.journal = written.journal;
        self.last = entry.number;
        self.state = entry.state;
        // The journal reaches every object.
        written.pack.release()?;

        if entry.keep {
            // Looked at here and not before: what is in the journal is not lost, whatever the user does.
            refs::check_branch(&store.open()?, &self.names)?;
            refs::advance(open, &self.names.branch, Some(self.tip), written.candidate, &why)?;
            self.tip = written.candidate;
            failpoint::hit("branch", entry.number)?;
        }
        let run = &self.names.run;
        match self.rows.iter_mut().find(|(name, _)| name == run) {
            Some((_, rows)) => rows.push(written.row.clone()),
            None => self.rows.push((run.clone(), vec![written.row.clone()])),
        }
        project::update(&store.root.join(LEDGER_FILE), &self.rows)?;
        failpoint::hit("ledger", entry.number)?;
        self.restore(&entry.path)?;
        failpoint::hit("restored", entry.number)?;
        self.folder.forget(entry.trial)?;
        failpoint::hit("done", entry.number)?;

        self.packs.push(written.pack);
        if self.packs.len() >= JOIN_AT {
            // Only tidying: if it fails, as when `git gc` does the same just now, nothing is lost.
            let _ = store.open().and_then(|repository| pack::join(&repository, &self.names.run, &self.packs));
            self.packs.clear();
        }
        let Written { candidate, journal, row, .. } = written;
        Ok(Recorded { commit: candidate.to_string(), journal: journal.to_string(), row })
    }

    /// Writes down a state that belongs to no experiment, such as how the run ended: an entry of the journal alone.
    ///
    /// # Errors
    /// Git's.
    pub fn checkpoint(&mut self, state: Value) -> Result<(), HistoryError> {
        let store = self.archive.store.clone();
        let failed = HistoryError::git("write the run's state");
        let (journal, mut kept) = store.retry(|repository| {
            let who = identity(repository).map_err(&failed)?;
            let mut batch = Batch::new(repository).map_err(&failed)?;
            let note = journal::note(&mut batch, self.last, &state, self.journal, self.tip, &who).map_err(&failed)?;
            Ok((note, batch.seal(&self.names.run)?))
        })?;
        let why = format!("warpsmith: state after experiment {}", self.last);
        refs::advance(|| store.open(), &self.names.journal, Some(self.journal), journal, &why)?;
        self.journal = journal;
        self.state = state;
        kept.release()?;
        self.packs.push(kept);
        Ok(())
    }

    /// Makes the candidate file what the branch's tip has.
    pub(super) fn restore(&self, path: &str) -> Result<(), HistoryError> {
        let text = self.tip_text(path)?;
        self.folder.put(path, text.as_deref())
    }

    fn follows(&self, number: u64) -> Result<(), HistoryError> {
        if number == self.last + 1 { Ok(()) } else { Err(self.out_of_order(number)) }
    }

    fn out_of_order(&self, got: u64) -> HistoryError {
        HistoryError::OutOfOrder { run: self.names.run.clone(), last: self.last, got }
    }

    /// Puts an experiment's objects into the repository; no ref moves.
    fn write(&self, repository: &Repository, entry: &Entry) -> Result<Written, HistoryError> {
        let failed = HistoryError::git("write an experiment");
        let who = identity(repository).map_err(&failed)?;
        let mut batch = Batch::new(repository).map_err(&failed)?;
        let base = repository.find_commit(self.tip).and_then(|tip| tip.tree()).map_err(&failed)?;
        let path = self.archive.store.in_repository(&entry.path);
        let mode = room_for(&base, &path)?;
        let id = batch.blob(entry.candidate_text.as_bytes()).map_err(&failed)?;
        let mut changes = Changes::from([(path.into_bytes(), Some(Leaf { id, mode }))]);
        if let Some(left) = entry.removes.as_ref().filter(|left| **left != entry.path) {
            changes.insert(self.archive.store.in_repository(left).into_bytes(), None);
        }
        // A tree with a file in it is not empty; the base stands in for what cannot be.
        let tree = rewrite(&mut batch, Some(&base), &changes).map_err(&failed)?.unwrap_or(base.id());
        let text = journal::message(&entry.subject, &entry.body, &entry.trailers);
        let candidate = journal::commit_tree(&mut batch, tree, &text, &[self.tip], &who).map_err(&failed)?;

        let mut commit = candidate.to_string();
        commit.truncate(COMMIT_DIGITS);
        let row = Row { run: self.names.run.clone(), exp: entry.number, commit, ..entry.row.clone() }.format();
        let draft = Draft {
            number: entry.number,
            path: &entry.path,
            kept: entry.keep,
            subject: &entry.subject,
            row: &row,
            trial: &entry.record,
            evaluation: &entry.evaluation,
            state: &entry.state,
        };
        let journal = journal::add(&mut batch, &draft, self.journal, candidate, &who).map_err(&failed)?;
        Ok(Written { pack: batch.seal(&self.names.run)?, candidate, journal, row })
    }

    /// The run's id.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.names.run
    }

    /// The branch as a user writes it: `warpsmith/260214a`.
    #[must_use]
    pub fn branch(&self) -> &str {
        self.names.short_branch()
    }

    /// The number of the next experiment.
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// The run's state after the last experiment.
    #[must_use]
    pub const fn state(&self) -> &Value {
        &self.state
    }

    /// The commit at the branch's tip.
    #[must_use]
    pub fn tip(&self) -> String {
        self.tip.to_string()
    }

    /// Files that were too large for the snapshot and are not tracked, relative to the repository; empty after a
    /// resume.
    #[must_use]
    pub fn left_out(&self) -> &[std::path::PathBuf] {
        &self.left_out
    }

    /// The text of a file (relative to the workspace) at the branch's tip; `None` if it is not there.
    ///
    /// # Errors
    /// Git's; or it is not text.
    pub fn tip_text(&self, path: &str) -> Result<Option<String>, HistoryError> {
        self.archive.store.retry(|repository| self.archive.text_in(repository, self.tip, path))
    }

    /// Where the candidate for a kernel file is while it is evaluated.
    #[must_use]
    pub fn candidate_path(&self, path: &str) -> std::path::PathBuf {
        self.folder.candidate(path)
    }

    /// `.warpsmith/<run>`, which may not be there yet.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// The experiments so far.
    ///
    /// # Errors
    /// Git's.
    pub fn entries(&self, order: Order) -> Result<Entries, HistoryError> {
        self.archive.entries(&self.names.run, order)
    }

    /// For reading this and other runs.
    #[must_use]
    pub const fn archive(&self) -> &Archive {
        &self.archive
    }
}

/// What an experiment became.
struct Written {
    pack: Kept,
    candidate: Oid,
    journal: Oid,
    row: String,
}

/// What a run's start became.
struct Begun {
    pack: Kept,
    start: Oid,
    journal: Oid,
    left_out: Vec<std::path::PathBuf>,
}

/// Puts the objects of a run's start into the repository; no ref moves.
fn start(repository: &Repository, store: &Store, names: &Names, state: &Value) -> Result<Begun, HistoryError> {
    let failed = HistoryError::git("write the run's start");
    let who: Signature<'_> = identity(repository).map_err(&failed)?;
    let head = match repository.head() {
        Ok(head) => Some(head.peel_to_commit().map_err(&failed)?),
        Err(error) if matches!(error.code(), ErrorCode::UnbornBranch | ErrorCode::NotFound) => None,
        Err(error) => return Err(failed(error)),
    };
    let tree = head.as_ref().map(git2::Commit::tree).transpose().map_err(&failed)?;
    let plain = store.open()?;
    let mut batch = Batch::new(repository).map_err(&failed)?;
    let taken = snapshot::take(&mut batch, &plain, &store.prefix, tree.as_ref())?;
    let start = match &head {
        // Nothing differs: the run starts from the user's own commit.
        Some(head) if head.tree_id() == taken.tree => head.id(),
        _ => {
            let body = "Uncommitted changes and new files included, so that the run builds on what is really there.";
            let text = journal::message(&format!("Start run {} from the workspace as it is", names.run), body, &[]);
            let parents: Vec<Oid> = head.iter().map(git2::Commit::id).collect();
            journal::commit_tree(&mut batch, taken.tree, &text, &parents, &who).map_err(&failed)?
        }
    };
    let journal = journal::begin(&mut batch, (&names.run, &store.prefix), start, state, &who).map_err(&failed)?;
    Ok(Begun { pack: batch.seal(&names.run)?, start, journal, left_out: taken.left_out })
}
