//! A run in a file: its journal and its branch with everything they reach, as a bundle that `git fetch` reads as well. A run goes on
//! from one on another machine.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use git2::{Buf, Oid, Repository, Sort};

use super::archive::Archive;
use super::names::{BRANCHES, JOURNAL, JOURNALS, Names};
use super::{HistoryError, journal, pack, place, refs};
use crate::workspace::{Workspace, write_synced};

/// The first line: git's format of its version 2 (`gitformat-bundle`).
const HEADER: &str = "# v2 git bundle";

/// The longest line of a header.
const MOST_LINE: u64 = 4096;

impl Archive {
    /// Writes a run to a file, in one step: the journal, the branch, and every object that they reach.
    ///
    /// # Errors
    /// There is no such run, git, or the file cannot be written.
    pub fn bundle(&self, run: &str, path: &Path) -> Result<(), HistoryError> {
        let names = Names::of(run)?;
        let bundle = self.store.retry(|repository| {
            let mut tips = Vec::new();
            for name in [&names.journal, &names.branch] {
                tips.push((name, refs::read(repository, name)?));
            }
            let [(_, Some(_)), _] = tips[..] else {
                return Err(HistoryError::NoRun { run: run.to_owned(), known: self.runs()? });
            };
            written(
                repository,
                &tips.into_iter().filter_map(|(name, id)| Some((name.as_str(), id?))).collect::<Vec<_>>(),
            )
            .map_err(HistoryError::git("write a bundle"))
        })?;
        write_synced(path, &bundle).map_err(HistoryError::io("write", path))
    }
}

/// The bundle of these refs.
fn written(repository: &Repository, tips: &[(&str, Oid)]) -> Result<Vec<u8>, git2::Error> {
    let mut walk = repository.revwalk()?;
    walk.set_sorting(Sort::TOPOLOGICAL)?;
    let mut bundle = format!("{HEADER}\n").into_bytes();
    for (name, id) in tips {
        walk.push(*id)?;
        bundle.extend_from_slice(format!("{id} {name}\n").as_bytes());
    }
    bundle.push(b'\n');
    let mut packed = repository.packbuilder()?;
    packed.set_threads(1);
    packed.insert_walk(&mut walk)?;
    let mut buffer = Buf::new();
    packed.write_buf(&mut buffer)?;
    bundle.extend_from_slice(&buffer);
    Ok(bundle)
}

/// Takes a run out of a bundle, and returns its id. One that is here already must have the same journal, or an earlier part of it.
///
/// # Errors
/// The file is no bundle of a run, the run is here with another journal, another run is going on, or git.
pub fn unbundle(workspace: &Workspace, path: &Path) -> Result<String, HistoryError> {
    let bad = |what: &str| HistoryError::BadBundle { path: path.to_owned(), what: what.to_owned() };
    let file = std::fs::File::open(path).map_err(HistoryError::io("read", path))?;
    let mut reader = BufReader::new(file);
    let mut line = || -> Result<String, HistoryError> {
        let mut text = String::new();
        let read = reader.by_ref().take(MOST_LINE).read_line(&mut text);
        read.map_err(|_| bad("it is no text where its header should be"))?;
        text.strip_suffix('\n').map(str::to_owned).ok_or_else(|| bad("its header does not end"))
    };
    if line()? != HEADER {
        return Err(bad("its first line is not that of a git bundle"));
    }
    let mut tips: BTreeMap<String, Oid> = BTreeMap::new();
    loop {
        let line = line()?;
        if line.is_empty() {
            break;
        }
        let (id, name) = line.split_once(' ').ok_or_else(|| bad("a line of its header is no ref"))?;
        let id = Oid::from_str(id).map_err(|_| bad("it builds on commits that it does not have"))?;
        tips.insert(name.to_owned(), id);
    }
    let run = tips.keys().find_map(|name| name.strip_prefix(JOURNALS)?.strip_suffix(JOURNAL)).map(str::to_owned);
    let run = run.ok_or_else(|| bad("it has no journal of a run"))?;
    let names = Names::of(&run)?;
    let (Some(journal), Some(branch)) = (tips.get(&names.journal), tips.get(&names.branch)) else {
        return Err(bad(&format!("it has no {BRANCHES}{run}")));
    };
    let mut packed = Vec::new();
    reader.read_to_end(&mut packed).map_err(HistoryError::io("read", path))?;

    let store = Archive::open(workspace)?.store;
    let _lock = store.lock(&format!("run {run}"))?;
    store.prepare(workspace)?;
    let repository = store.open()?;
    refs::check_branch(&repository, &names)?;
    pack::clean(&repository)?;
    let odb = repository.odb().map_err(HistoryError::git("read objects"))?;
    let mut kept = pack::install(&repository, &odb, &packed, &run).map_err(|error| match error {
        HistoryError::Git { source, .. } => bad(&format!("its objects cannot be read ({})", source.message())),
        error => error,
    })?;
    let here = store.open()?;
    place::check(&here, &store, &run, &journal::chain(&here, &run, *journal)?)?;
    let open = || store.open();
    for (name, id) in [(&names.journal, *journal), (&names.branch, *branch)] {
        let here = refs::read(&store.open()?, name)?;
        let follows =
            |here: Oid| here == id || open().is_ok_and(|git| git.graph_descendant_of(id, here).unwrap_or(false));
        if here.is_some_and(|here| !follows(here)) {
            return Err(HistoryError::RunExists { run });
        }
        refs::advance(open, name, here, id, "warpsmith: from a bundle")?;
    }
    kept.release()?;
    Ok(run)
}
