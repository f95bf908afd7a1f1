//! After a kill: what the journal has is finished, what it lacks is done again.

use git2::Oid;

use super::archive::{Archive, newest};
use super::journal::{self, Link};
use super::names::Names;
use super::pending::{Pending, RunFolder};
use super::record::History;
use super::{HistoryError, pack, place, project, refs};
use crate::workspace::{LEDGER_FILE, Workspace};

impl History {
    /// Opens a run to go on with it. Whatever a kill left half done is finished; the experiments that had begun and are
    /// not in the journal are returned, a candidate file in place, to be done again with the same seeds.
    ///
    /// # Errors
    /// There is no such run, it is of another workspace, another run is going on, the branch was moved or is checked out, or the repository cannot
    /// be used; each in a sentence.
    pub fn open(workspace: &Workspace, run_id: &str) -> Result<(Self, Vec<Pending>), HistoryError> {
        let names = Names::of(run_id)?;
        let archive = Archive::open(workspace)?;
        let store = archive.store.clone();
        let lock = store.lock(&format!("run {run_id}"))?;
        store.prepare(workspace)?;
        let links = store.retry(|repository| {
            refs::check_branch(repository, &names)?;
            let links = journal::chain(repository, run_id, newest(repository, &names)?)?;
            place::check(repository, &store, run_id, &links)?;
            Ok(links)
        })?;
        // A chain is never empty, and ends where the run begins.
        let (Some(last), Some(first)) = (links.first().copied(), links.last().copied()) else {
            return Err(HistoryError::NoRun { run: run_id.to_owned(), known: archive.runs()? });
        };
        let tip = links.iter().find(|link| link.kept).unwrap_or(&first).commit;
        let state = store.retry(|repository| journal::state(repository, run_id, last.id))?;
        let rows = archive.all_rows()?;
        let history = Self {
            folder: RunFolder::new(store.private.join(run_id)),
            archive,
            names,
            journal: last.id,
            tip,
            last: last.number,
            state,
            rows,
            packs: Vec::new(),
            left_out: Vec::new(),
            _lock: lock,
        };
        history.finish_branch(&links)?;
        pack::clean(&store.open()?)?;
        project::update(&store.root.join(LEDGER_FILE), &history.rows)?;
        let pending = history.finish_pending()?;
        Ok((history, pending))
    }

    /// The branch may be where it was before the last experiment that was kept, or not be there yet.
    fn finish_branch(&self, links: &[Link]) -> Result<(), HistoryError> {
        let store = &self.archive.store;
        let found = store.retry(|repository| refs::read(repository, &self.names.branch))?;
        if found == Some(self.tip) {
            return Ok(());
        }
        let mut earlier = links.iter().filter(|link| link.kept || link.previous.is_none()).map(|link| link.commit);
        let before: Option<Oid> = earlier.nth(1);
        if found.is_some() && found != before {
            return Err(refs::moved_by_someone(&self.names.branch, found, Some(self.tip)));
        }
        refs::advance(|| store.open(), &self.names.branch, found, self.tip, "warpsmith: resume")
    }

    /// A pending experiment is over if the journal has it, and else begins anew. Which of several the journal has, only the
    /// run's state can tell.
    fn finish_pending(&self) -> Result<Vec<Pending>, HistoryError> {
        let mut open = Vec::new();
        for pending in self.folder.read()? {
            let begins = |pending: &Pending| pending.trial > 0 || pending.number == self.last + 1;
            if begins(&pending) && crate::workspace::relative(&pending.path).is_ok() {
                self.folder.put(&pending.path, Some(&pending.text))?;
                open.push(pending);
                continue;
            }
            if crate::workspace::relative(&pending.path).is_ok() {
                self.restore(&pending.path)?;
            }
            self.folder.forget(pending.trial)?;
        }
        if open.is_empty() {
            // Perhaps there is one that cannot be read.
            self.folder.forget(0)?;
        }
        Ok(open)
    }
}
