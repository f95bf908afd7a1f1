//! Which workspace a run is of: a repository may hold several, and the branch has a run's files where its own workspace is.

use git2::Repository;

use super::HistoryError;
use super::archive::{Archive, newest};
use super::journal::{self, Link};
use super::names::Names;
use super::store::Store;
use super::tree::entry_at;

impl Archive {
    /// Whether a run was begun in this workspace.
    ///
    /// # Errors
    /// There is no such run, or its journal cannot be read.
    pub fn is_here(&self, run: &str) -> Result<bool, HistoryError> {
        let names = Names::of(run)?;
        self.store.retry(|repository| {
            let links = journal::chain(repository, run, newest(repository, &names)?)?;
            match check(repository, &self.store, run, &links) {
                Err(HistoryError::OtherWorkspace { .. }) => Ok(false),
                checked => checked.map(|()| true),
            }
        })
    }
}

/// Refuses a run of another workspace; `links` are its journal, the newest first.
pub(super) fn check(repository: &Repository, store: &Store, run: &str, links: &[Link]) -> Result<(), HistoryError> {
    let place = links.last().map_or(Ok(None), |first| journal::place(repository, run, first.id))?;
    let is_here = match &place {
        Some(place) => *place == store.prefix,
        None => writes_here(repository, store, links)?,
    };
    if is_here { Ok(()) } else { Err(HistoryError::OtherWorkspace { run: run.to_owned(), place }) }
}

/// Whether a run whose journal does not say where it was begun changes files of this workspace. One that has changed none yet may be of any
/// workspace that its start has.
fn writes_here(repository: &Repository, store: &Store, links: &[Link]) -> Result<bool, HistoryError> {
    let failed = HistoryError::git("read a run's commits");
    for link in links.iter().filter(|link| link.is_experiment()) {
        let path = store.in_repository(&journal::path(repository, link.id)?);
        let candidate = repository.find_commit(link.commit).map_err(&failed)?;
        let after = candidate.tree().map_err(&failed)?;
        let before = candidate.parent(0).and_then(|parent| parent.tree()).map_err(&failed)?;
        if before.id() != after.id() {
            let id = |tree| entry_at(tree, &path).map(|entry| entry.map(|entry| entry.id())).map_err(&failed);
            return Ok(id(&before)? != id(&after)?);
        }
    }
    let Some(first) = links.last() else { return Ok(false) };
    let start = repository.find_commit(first.commit).and_then(|commit| commit.tree()).map_err(&failed)?;
    let folder = store.prefix.trim_end_matches('/');
    Ok(folder.is_empty() || entry_at(&start, folder).map_err(&failed)?.is_some())
}
