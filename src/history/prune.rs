//! Taking away what a run left behind: its folder, its branch where nothing is lost by it, its journal where asked.
//!
//! Folder and branch can be had again from the journal, which reaches every kept commit. The journal cannot: it goes only
//! when it is named; as long as it is there, so is what the whole of a PyTorch model said of the kernels. Rows of `results.tsv` stay; they count as those of a run without a journal from then on.

use std::collections::BTreeSet;
use std::path::Path;

use git2::{BranchType, Oid, Repository};

use super::archive::{names as runs_in, newest, tip};
use super::names::{BRANCHES, JOURNAL, JOURNALS, Names, is_run_id};
use super::{Archive, HistoryError, journal, pack, refs};
use crate::workspace::{FileLock, WHOLE_FILE};

/// What is taken away beside the folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Prune {
    /// The branch also where it is neither merged nor applied.
    pub branches: bool,
    /// The journal: every experiment that was not kept, and the way back to the branch.
    pub journal: bool,
    /// Nothing is removed, only looked at.
    pub dry: bool,
}

/// What was taken away of a run, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pruned {
    /// The run.
    pub run: String,
    /// Bytes in its folder below `.warpsmith`, where there was one.
    pub folder: Option<u64>,
    /// Its branch, where there was one.
    pub branch: Option<BranchFate>,
    /// Experiments in the journal that was removed.
    pub journal: Option<usize>,
}

/// What became of a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchFate {
    /// It was removed.
    Removed {
        /// Where it was.
        tip: String,
        /// Why nothing is lost by it, or that it was asked for.
        why: &'static str,
    },
    /// It stays.
    Left {
        /// Why.
        why: String,
    },
}

/// The repository's runs, with its lock: nothing begins or goes on meanwhile.
#[derive(Debug)]
pub struct Pruner<'a> {
    archive: &'a Archive,
    _lock: FileLock,
}

impl Archive {
    /// Takes the repository's lock, to remove what runs left behind.
    ///
    /// # Errors
    /// A run is going on.
    pub fn pruner(&self) -> Result<Pruner<'_>, HistoryError> {
        Ok(Pruner { archive: self, _lock: self.store.lock("prune")? })
    }
}

impl Pruner<'_> {
    /// The runs that left something behind: a journal, a branch or a folder. Oldest first.
    ///
    /// # Errors
    /// Git's.
    pub fn runs(&self) -> Result<Vec<String>, HistoryError> {
        let store = &self.archive.store;
        let mut runs: BTreeSet<String> = store.retry(|repository| {
            let mut runs = runs_in(repository, JOURNALS, JOURNAL)?;
            runs.extend(runs_in(repository, BRANCHES, "")?);
            Ok(runs)
        })?;
        let folders = std::fs::read_dir(&store.private).into_iter().flatten().flatten();
        runs.extend(folders.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_run_id(name)));
        Ok(runs.into_iter().collect())
    }

    /// Removes what `what` says of `run`. Killed in between, some of it is gone and the rest can be removed later.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn prune(&self, run: &str, what: Prune) -> Result<Pruned, HistoryError> {
        let names = Names::of(run)?;
        let store = &self.archive.store;
        let folder = store.private.join(run);
        let branch = store.retry(|repository| self.branch(repository, &names, what))?;
        let experiments = store.retry(|repository| match refs::read(repository, &names.journal)? {
            Some(newest) if what.journal => {
                // A journal that cannot be read is no reason to keep it.
                let links = journal::chain(repository, run, newest).unwrap_or_default();
                Ok(Some(links.iter().filter(|link| link.is_experiment()).count()))
            }
            _ => Ok(None),
        })?;
        let has_journal = store.retry(|repository| refs::read(repository, &names.journal))?.is_some();
        let stays = (has_journal && !what.journal).then_some(WHOLE_FILE);
        let bytes = bytes_beside(&folder, stays);
        if !what.dry {
            if bytes.is_some() {
                remove_beside(&folder, stays).map_err(HistoryError::io("remove", &folder))?;
            }
            let failed = HistoryError::git("remove a run's refs");
            let repository = store.open()?;
            if matches!(branch, Some(BranchFate::Removed { .. })) {
                // With its reflog and whatever the user's settings say of it.
                let found = repository.find_branch(names.short_branch(), BranchType::Local);
                found.and_then(|mut branch| branch.delete()).map_err(&failed)?;
            }
            // Last: while it is there, the branch can be had again.
            if experiments.is_some() {
                repository.find_reference(&names.journal).and_then(|mut found| found.delete()).map_err(&failed)?;
            }
            pack::clean(&repository)?;
        }
        Ok(Pruned { run: run.to_owned(), folder: bytes, branch, journal: experiments })
    }

    /// What is to become of the run's branch; `None` if there is none.
    fn branch(&self, repository: &Repository, names: &Names, what: Prune) -> Result<Option<BranchFate>, HistoryError> {
        let Some(found) = refs::read(repository, &names.branch)? else { return Ok(None) };
        let removed = |why| Ok(Some(BranchFate::Removed { tip: found.to_string(), why }));
        let left = |why: &str| Ok(Some(BranchFate::Left { why: why.to_owned() }));
        if let Some(at) = refs::checked_out(repository.commondir(), &names.branch) {
            return left(&format!("it is checked out in {}", at.display()));
        }
        if is_merged(repository, names, found)? {
            return removed("merged");
        }
        let has_journal = refs::read(repository, &names.journal)?.is_some();
        if has_journal && tip(repository, names)? != found {
            return left("it has commits that are not the run's, and are on no other branch");
        }
        if has_journal && newest(repository, names).is_ok() && self.archive.is_applied(repository, names)? {
            return removed("applied");
        }
        if what.branches {
            removed("as asked")
        } else {
            left("it is neither merged nor applied; --branches removes it")
        }
    }
}

/// Whether another branch, here or of a remote, has everything that the run's branch has.
fn is_merged(repository: &Repository, names: &Names, tip: Oid) -> Result<bool, HistoryError> {
    let failed = HistoryError::git("compare branches");
    for reference in repository.references().map_err(&failed)? {
        let reference = reference.map_err(&failed)?;
        let name = reference.name_bytes();
        let counts = name.starts_with(b"refs/heads/") || name.starts_with(b"refs/remotes/");
        if !counts || name == names.branch.as_bytes() {
            continue;
        }
        // A remote's HEAD may point to what was never fetched.
        let Ok(commit) = reference.peel_to_commit() else { continue };
        if commit.id() == tip || repository.graph_descendant_of(commit.id(), tip).map_err(&failed)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Bytes in a run's folder beside the file that stays; none where there is nothing else.
fn bytes_beside(folder: &Path, stays: Option<&str>) -> Option<u64> {
    std::fs::symlink_metadata(folder).ok()?;
    let kept = stays.and_then(|name| std::fs::metadata(folder.join(name)).ok());
    let entries = || std::fs::read_dir(folder).into_iter().flatten().flatten();
    let others = entries().any(|entry| stays.is_none_or(|name| entry.file_name() != name));
    (others || kept.is_none()).then(|| bytes_in(folder).saturating_sub(kept.map_or(0, |file| file.len())))
}

/// Removes a run's folder, or all in it beside the file that stays, where that is there.
fn remove_beside(folder: &Path, stays: Option<&str>) -> std::io::Result<()> {
    let Some(stays) = stays.filter(|name| folder.join(name).is_file()) else {
        return std::fs::remove_dir_all(folder);
    };
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == stays {
            continue;
        }
        // A link is removed, not what it leads to.
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Bytes of the files in a folder; links are not followed.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_in(&entry.path()),
        Ok(data) => data.len(),
        // Gone since it was listed.
        Err(_) => 0,
    };
    entries.map(size).sum()
}
