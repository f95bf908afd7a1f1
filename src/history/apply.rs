//! A run's winners on the user's own branch, as one commit that holds nothing else.
//!
//! The order is: objects → branch (compare and swap, *the commit point*) → files → index. A kill before the branch moves
//! leaves nothing; after it the commit is there, and files and index show it undone until the same command is given
//! again, which finds the commit and only finishes. The other order would show winners that no commit explains.

mod error;
mod place;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use git2::{DiffStatsFormat, ErrorCode, IndexEntry, IndexTime, Oid, Repository, RepositoryState};

pub use error::ApplyError;
use place::{Content, Place, look};

use super::archive::{newest, tip};
use super::names::{BRANCHES, Names};
use super::pack::{self, Batch, Kept};
use super::tree::{Changes, Leaf, rewrite, room_for};
use super::{Archive, HistoryError, failpoint, journal, refs};
use crate::workspace::{Workspace, identity, remove_if_there, sync_folder, write_synced};

/// The trailer by which a commit names the run whose winners it holds.
const TRAILER: &str = "Warpsmith-run";

/// A kernel that a run made, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Winner {
    /// The file, relative to the workspace.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// What applying did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The user's branch, as they write it.
    pub branch: String,
    /// The new commit; `None` where there was nothing to commit, or nothing was to be done.
    pub commit: Option<String>,
    /// As `git diff --stat` shows the commit; empty where there was nothing to commit.
    pub diffstat: String,
    /// Files that were behind a commit made earlier, and now are as it has them.
    pub finished: Vec<String>,
    /// Whether the user's own commits are signed, which this one is not.
    pub unsigned: bool,
}

impl Archive {
    /// Brings the winners of `run` into the branch that is checked out, with this commit message (a trailer that names
    /// the run is added). With `dry`, everything is looked at and nothing is written.
    ///
    /// # Errors
    /// [`ApplyError`]: what stands in the way, and what to do.
    pub fn apply(
        &self,
        workspace: &Workspace,
        run: &str,
        winners: &[Winner],
        message: &str,
        dry: bool,
    ) -> Result<Applied, ApplyError> {
        let names = Names::of(run)?;
        let store = &self.store;
        let _lock = store.lock(&format!("apply {run}"))?;
        if !dry {
            store.prepare(workspace)?;
        }
        let (branch, head) = store.retry(|repository| Ok(where_to(repository)))??;
        let start = store.retry(|repository| {
            let links = journal::chain(repository, run, newest(repository, &names)?)?;
            // A chain ends where the run begins.
            Ok(links.last().map(|link| link.commit))
        })?;
        let places = store.retry(|repository| look(store, repository, head, start, winners))?;
        refuse_others(&places, run)?;
        let short = branch.trim_start_matches("refs/heads/").to_owned();
        let unsigned = store.open()?.config().and_then(|config| config.get_bool("commit.gpgsign")).unwrap_or(false);
        let mut applied =
            Applied { branch: short, commit: None, diffstat: String::new(), finished: Vec::new(), unsigned };
        let text = journal::message_with(message, &[(TRAILER.to_owned(), run.to_owned())]);
        let mut written = store.retry(|repository| write(repository, head, &places, &text, dry))?;
        applied.diffstat = std::mem::take(&mut written.diffstat);
        let behind: Vec<&Place<'_>> = places.iter().filter(|place| place.is_behind()).collect();
        applied.finished =
            behind.iter().filter(|place| place.head == Content::Winner).map(|place| place.path()).collect();
        if dry {
            return Ok(applied);
        }
        failpoint::hit("apply-objects", 0)?;
        if let Some(commit) = written.commit {
            let why = format!("warpsmith: apply {run}");
            refs::advance(|| store.open(), &branch, Some(head), commit, &why)
                .map_err(|error| moved(error, &applied.branch))?;
            applied.commit = Some(commit.to_string());
        }
        failpoint::hit("apply-branch", 0)?;
        for place in &behind {
            place_file(&store.private, place)?;
        }
        failpoint::hit("apply-files", 0)?;
        if !behind.is_empty() {
            store.retry(|repository| put_into_index(repository, &behind))?;
        }
        failpoint::hit("apply-index", 0)?;
        if let Some(pack) = &mut written.pack {
            pack.release()?;
        }
        // Those of an earlier attempt that was killed.
        pack::clean(&store.open()?)?;
        Ok(applied)
    }

    /// Whether a commit on one of the user's branches says that it holds the run's winners.
    pub(super) fn is_applied(&self, repository: &Repository, names: &Names) -> Result<bool, HistoryError> {
        let failed = HistoryError::git("look for the run's winners");
        let links = journal::chain(repository, &names.run, newest(repository, names)?)?;
        let mut walk = repository.revwalk().map_err(&failed)?;
        walk.push_glob("refs/heads/*").map_err(&failed)?;
        walk.hide_glob(&format!("{BRANCHES}*")).map_err(&failed)?;
        // Whatever was there before the run cannot be it.
        if let Some(start) = links.last() {
            walk.hide(start.commit).map_err(&failed)?;
        }
        for id in walk {
            let commit = repository.find_commit(id.map_err(&failed)?).map_err(&failed)?;
            let message = String::from_utf8_lossy(commit.message_bytes()).into_owned();
            if journal::trailer(&message, TRAILER) == Some(names.run.as_str()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The text of a file (relative to the workspace) on the run's branch as it stands now, whoever committed to it;
    /// `None` if either is not there.
    ///
    /// # Errors
    /// Git's; or it is not text.
    pub fn branch_text(&self, run: &str, path: &str) -> Result<Option<String>, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| match refs::read(repository, &names.branch)? {
            Some(found) => self.text_in(repository, found, path),
            None => Ok(None),
        })
    }

    /// Whether the run's branch is where its journal puts it; it is not where someone has committed to it since.
    ///
    /// # Errors
    /// As [`Self::entries`].
    pub fn branch_is_as_left(&self, run: &str) -> Result<bool, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| {
            let found = refs::read(repository, &names.branch)?;
            Ok(found.is_none() || found == Some(tip(repository, &names)?))
        })
    }
}

/// The branch that HEAD is on, by its full name, and its commit.
fn where_to(repository: &Repository) -> Result<(String, Oid), ApplyError> {
    let failed = HistoryError::git("read HEAD");
    let doing = match repository.state() {
        RepositoryState::Clean => None,
        RepositoryState::Merge => Some("merge"),
        RepositoryState::Revert | RepositoryState::RevertSequence => Some("revert"),
        RepositoryState::CherryPick | RepositoryState::CherryPickSequence => Some("cherry-pick"),
        RepositoryState::Bisect => Some("bisection"),
        RepositoryState::ApplyMailbox | RepositoryState::ApplyMailboxOrRebase => Some("`git am`"),
        RepositoryState::Rebase | RepositoryState::RebaseInteractive | RepositoryState::RebaseMerge => Some("rebase"),
    };
    if let Some(what) = doing {
        return Err(ApplyError::InProgress { what });
    }
    if repository.head_detached().map_err(&failed)? {
        return Err(ApplyError::Detached);
    }
    let head = match repository.head() {
        Ok(head) => head,
        Err(error) if matches!(error.code(), ErrorCode::UnbornBranch | ErrorCode::NotFound) => {
            return Err(ApplyError::Unborn);
        }
        Err(error) => return Err(failed(error).into()),
    };
    let name = head.name().map_err(&failed)?.to_owned();
    if name.starts_with(BRANCHES) {
        return Err(ApplyError::RunBranch { branch: name.trim_start_matches("refs/heads/").to_owned() });
    }
    if repository.path().join("index.lock").exists() {
        return Err(ApplyError::IndexLocked { path: repository.path().join("index.lock") });
    }
    Ok((name, head.peel_to_commit().map_err(&failed)?.id()))
}

/// Refuses where a file is neither what the run started from nor the winner.
fn refuse_others(places: &[Place<'_>], run: &str) -> Result<(), ApplyError> {
    let others: Vec<String> = places.iter().filter_map(Place::complaint).collect();
    if others.is_empty() {
        return Ok(());
    }
    if places.iter().all(|place| place.complaint().is_none() || place.is_only_uncommitted()) {
        let files: Vec<String> = places.iter().filter(|place| place.complaint().is_some()).map(Place::path).collect();
        return Err(ApplyError::Uncommitted { run: run.to_owned(), files: files.join(" ") });
    }
    Err(ApplyError::Changed { run: run.to_owned(), files: others.join(", ") })
}

/// What was put into the repository.
struct Written {
    pack: Option<Kept>,
    commit: Option<Oid>,
    diffstat: String,
}

/// Puts the commit's objects into the repository (with `dry`, into memory); no ref moves.
fn write(
    repository: &Repository,
    head: Oid,
    places: &[Place<'_>],
    message: &str,
    dry: bool,
) -> Result<Written, HistoryError> {
    let failed = HistoryError::git("write the commit");
    let parent = repository.find_commit(head).map_err(&failed)?;
    let base = parent.tree().map_err(&failed)?;
    let mut batch = Batch::new(repository).map_err(&failed)?;
    let mut changes = Changes::new();
    for place in places.iter().filter(|place| place.head != Content::Winner) {
        let id = batch.blob(place.winner.text.as_bytes()).map_err(&failed)?;
        let mode = room_for(&base, &place.full)?;
        changes.insert(place.full.clone().into_bytes(), Some(Leaf { id, mode }));
    }
    if changes.is_empty() {
        return Ok(Written { pack: None, commit: None, diffstat: String::new() });
    }
    // A tree with a file in it is not empty.
    let tree = rewrite(&mut batch, Some(&base), &changes).map_err(&failed)?.unwrap_or(base.id());
    let new = repository.find_tree(tree).map_err(&failed)?;
    let diff = repository.diff_tree_to_tree(Some(&base), Some(&new), None).map_err(&failed)?;
    let stats = diff.stats().and_then(|stats| stats.to_buf(DiffStatsFormat::FULL, 80)).map_err(&failed)?;
    let diffstat = String::from_utf8_lossy(&stats).trim_end().to_owned();
    if dry {
        return Ok(Written { pack: None, commit: None, diffstat });
    }
    let who = identity(repository).map_err(&failed)?;
    let commit = journal::commit_tree(&mut batch, tree, message, &[head], &who).map_err(&failed)?;
    Ok(Written { pack: Some(batch.seal("apply")?), commit: Some(commit), diffstat })
}

/// A branch that someone else has moved meanwhile is no damage here.
fn moved(error: HistoryError, branch: &str) -> ApplyError {
    match error {
        HistoryError::Moved { .. } => ApplyError::Moved { branch: branch.to_owned() },
        error => error.into(),
    }
}

/// Puts a winner into the working tree, by way of a temporary file where no user looks.
fn place_file(private: &Path, place: &Place<'_>) -> Result<(), HistoryError> {
    if place.absent_on_purpose || place.disk == Content::Winner {
        return Ok(());
    }
    let to = &place.file;
    let aside = private.join("apply.tmp");
    write_synced(&aside, place.winner.text.as_bytes()).map_err(HistoryError::io("write", &aside))?;
    let mode = std::fs::metadata(to).map(|there| there.permissions());
    let moved = || -> std::io::Result<()> {
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        if let Ok(mode) = mode {
            std::fs::set_permissions(&aside, mode)?;
        }
        std::fs::rename(&aside, to)?;
        to.parent().map_or(Ok(()), sync_folder)
    };
    match moved() {
        // The folder of kernels is another file system.
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
            remove_if_there(&aside).map_err(HistoryError::io("remove", &aside))?;
            write_synced(to, place.winner.text.as_bytes()).map_err(HistoryError::io("write", to))
        }
        other => other.map_err(HistoryError::io("write", to)),
    }
}

/// Makes the index say of these files what the commit says; what else is staged stays.
fn put_into_index(repository: &Repository, places: &[&Place<'_>]) -> Result<(), HistoryError> {
    let failed = HistoryError::git("write the index");
    let mut index = repository.index().map_err(&failed)?;
    index.read(true).map_err(&failed)?;
    for place in places {
        let there = index.get_path(Path::new(&place.full), 0);
        let mode = there.as_ref().map_or(0o100_644, |entry| entry.mode);
        let stat = std::fs::symlink_metadata(&place.file).ok();
        let time = |seconds: i64, nanoseconds: i64| IndexTime::new(seconds as i32, nanoseconds as u32);
        // What git remembers of a file to tell, without reading it, that it did not change. Git keeps 32 bits of each.
        let entry = IndexEntry {
            ctime: stat.as_ref().map_or(time(0, 0), |stat| time(stat.ctime(), stat.ctime_nsec())),
            mtime: stat.as_ref().map_or(time(0, 0), |stat| time(stat.mtime(), stat.mtime_nsec())),
            dev: stat.as_ref().map_or(0, |stat| stat.dev() as u32),
            ino: stat.as_ref().map_or(0, |stat| stat.ino() as u32),
            mode,
            uid: stat.as_ref().map_or(0, MetadataExt::uid),
            gid: stat.as_ref().map_or(0, MetadataExt::gid),
            file_size: stat.as_ref().map_or(0, |stat| stat.len() as u32),
            id: place.id,
            flags: 0,
            flags_extended: there.as_ref().map_or(0, |entry| entry.flags_extended),
            path: place.full.clone().into_bytes(),
        };
        index.add(&entry).map_err(&failed)?;
    }
    index.write().map_err(&failed)
}
