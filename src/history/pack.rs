//! New objects, written so that no `git gc` can take them away before a ref reaches them.
//!
//! Loose objects would not do: `git gc --prune=now` removes every one that was unreachable when it looked, also if a
//! ref has reached it since. So the objects of a step are collected in memory and put into the repository as one pack
//! with a `.keep` file beside it, which is git's own protocol for a fetch: a kept pack is never removed, and a
//! `repack` lists packs before it reads refs. Once the refs are moved the `.keep` goes, and the pack is like any other.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use git2::{Buf, ObjectType, Odb, Oid, Repository};

use super::HistoryError;
use crate::workspace::{remove_if_there, sync_folder};

/// Higher than libgit2's own stores, so that what is written goes to memory.
const IN_MEMORY: i32 = 1000;
/// What our `.keep` files begin with; the run's id follows.
const KEEP: &str = "warpsmith run ";

/// Objects on their way into a repository. Its repository must not be used for other writing.
pub struct Batch<'r> {
    repository: &'r Repository,
    odb: Odb<'r>,
    ids: Vec<Oid>,
}

/// A pack in the repository that nothing may remove; see [`Kept::release`].
#[derive(Debug)]
pub struct Kept {
    /// The `.keep` file; `None` if there was nothing to write.
    keep: Option<PathBuf>,
    /// The pack without its extension.
    pub stem: Option<PathBuf>,
    /// What is in it.
    pub ids: Vec<Oid>,
}

impl<'r> Batch<'r> {
    /// From here on what is written to the repository stays in memory.
    pub fn new(repository: &'r Repository) -> Result<Self, git2::Error> {
        let odb = repository.odb()?;
        odb.add_new_mempack_backend(IN_MEMORY)?;
        Ok(Self { repository, odb, ids: Vec::new() })
    }

    /// The repository, for reading: it sees the objects of the batch too.
    pub const fn repository(&self) -> &'r Repository {
        self.repository
    }

    /// Adds bytes as they are.
    pub fn blob(&mut self, bytes: &[u8]) -> Result<Oid, git2::Error> {
        let id = self.odb.write(ObjectType::Blob, bytes)?;
        Ok(self.add(id))
    }

    /// Notes an object that was written through the repository.
    pub fn add(&mut self, id: Oid) -> Oid {
        if !self.ids.contains(&id) {
            self.ids.push(id);
        }
        id
    }

    /// Puts the pack of run `run` into the repository. An object that was there already is packed again: unless a ref
    /// reaches it, it may be about to be pruned.
    pub fn seal(self, run: &str) -> Result<Kept, HistoryError> {
        if self.ids.is_empty() {
            return Ok(Kept { keep: None, stem: None, ids: self.ids });
        }
        write_pack(self.repository, &self.odb, self.ids, run)
    }
}

/// Packs `ids`, which the repository has, with a `.keep`.
fn write_pack(repository: &Repository, odb: &Odb<'_>, ids: Vec<Oid>, run: &str) -> Result<Kept, HistoryError> {
    let failed = HistoryError::git("write new objects");
    let mut buffer = Buf::new();
    let mut builder = repository.packbuilder().map_err(&failed)?;
    builder.set_threads(1);
    for id in &ids {
        builder.insert_object(*id, None).map_err(&failed)?;
    }
    builder.write_buf(&mut buffer).map_err(&failed)?;
    Ok(Kept { ids, ..install(repository, odb, &buffer, run)? })
}

/// Puts a pack into the repository, with a `.keep` of run `run`. What is in it is not told.
pub fn install(repository: &Repository, odb: &Odb<'_>, packed: &[u8], run: &str) -> Result<Kept, HistoryError> {
    let failed = HistoryError::git("write new objects");
    // Made apart and moved in with the index last: to git an index without its pack is rubbish to be removed.
    let aside = aside(repository);
    let _ = fs::remove_dir_all(&aside);
    fs::create_dir_all(&aside).map_err(HistoryError::io("write", &aside))?;
    let mut indexer = git2::Indexer::new(Some(odb), &aside, 0o444, false).map_err(&failed)?;
    indexer.write_all(packed).map_err(HistoryError::io("write", &aside))?;
    let name = indexer.commit().map_err(&failed)?;

    let packs = repository.commondir().join("objects/pack");
    fs::create_dir_all(&packs).map_err(HistoryError::io("write", &packs))?;
    let stem = packs.join(format!("pack-{name}"));
    let keep = stem.with_extension("keep");
    let mut file = File::create(&keep).map_err(HistoryError::io("write", &keep))?;
    file.write_all(format!("{KEEP}{run}\n").as_bytes()).map_err(HistoryError::io("write", &keep))?;
    for extension in ["pack", "idx"] {
        let from = aside.join(format!("pack-{name}.{extension}"));
        File::open(&from).and_then(|file| file.sync_all()).map_err(HistoryError::io("write", &from))?;
        let to = stem.with_extension(extension);
        fs::rename(&from, &to).map_err(HistoryError::io("write", &to))?;
    }
    sync_folder(&packs).map_err(HistoryError::io("write", &packs))?;
    let _ = fs::remove_dir_all(&aside);
    Ok(Kept { keep: Some(keep), stem: Some(stem), ids: Vec::new() })
}

impl Kept {
    /// To be called when refs reach the objects.
    pub fn release(&mut self) -> Result<(), HistoryError> {
        match self.keep.take() {
            Some(keep) => remove_if_there(&keep).map_err(HistoryError::io("remove", &keep)),
            None => Ok(()),
        }
    }
}

/// Makes one pack of many small ones, all of which refs reach; a night of experiments would else leave a thousand.
/// Packs that `git gc` has taken up meanwhile are gone, which is as good.
pub fn join(repository: &Repository, run: &str, packs: &[Kept]) -> Result<Kept, HistoryError> {
    let mut ids: Vec<Oid> = Vec::new();
    for pack in packs {
        ids.extend(&pack.ids);
    }
    ids.sort();
    ids.dedup();
    let odb = repository.odb().map_err(HistoryError::git("read objects"))?;
    let mut joined = write_pack(repository, &odb, ids, run)?;
    for stem in packs.iter().filter_map(|pack| pack.stem.as_ref()).filter(|stem| joined.stem.as_ref() != Some(stem)) {
        // The index first: a pack without one is not looked into, an index without its pack is an error.
        for extension in ["idx", "pack"] {
            let path = stem.with_extension(extension);
            remove_if_there(&path).map_err(HistoryError::io("remove", &path))?;
        }
    }
    joined.release()?;
    Ok(joined)
}

/// Removes what a killed run left: `.keep` files, and half a pack. To be called under the repository's lock (so that
/// they are nobody's), when refs reach what is worth keeping.
pub fn clean(repository: &Repository) -> Result<(), HistoryError> {
    let _ = fs::remove_dir_all(aside(repository));
    let Ok(entries) = fs::read_dir(repository.commondir().join("objects/pack")) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = || fs::read(&path).is_ok_and(|text| text.starts_with(KEEP.as_bytes()));
        if path.extension().is_some_and(|extension| extension == "keep") && ours() {
            remove_if_there(&path).map_err(HistoryError::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Where a pack is made; under the repository's lock, so one name will do.
fn aside(repository: &Repository) -> PathBuf {
    Path::new(repository.commondir()).join("warpsmith.tmp")
}
