//! The workspace as it is on disk, as a tree: what a run's branch starts from.
//!
//! The user's index is read and never written. Where it says that a file is unchanged since it was hashed, its blob is
//! taken, so that a huge file costs nothing. What is not on disk on purpose (submodules, sparse entries) and what lies
//! outside the workspace is carried over from HEAD's tree.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use git2::{AttrCheckFlags, Index, IndexEntry, IndexEntryExtendedFlag, ObjectType, Oid, Repository, Tree};

use super::HistoryError;
use super::pack::Batch;
use super::tree::{Changes, Leaf, PLAIN, SUBMODULE, rewrite};
use crate::workspace::{LEDGER_FILE, PRIVATE_FOLDER};

/// A file of more bytes is left out if git does not track it: weights, most likely.
pub const LARGE: u64 = 16 << 20;

const EXECUTABLE: i32 = 0o100_755;
const LINK: i32 = 0o120_000;

/// What was found.
#[derive(Debug)]
pub struct Snapshot {
    /// The whole repository's tree.
    pub tree: Oid,
    /// Large files that git does not track, relative to the repository.
    pub left_out: Vec<PathBuf>,
    /// Bytes read in order to hash them; a test holds it to nothing for what is unchanged.
    #[cfg_attr(not(test), expect(dead_code))]
    pub read: u64,
}

/// Takes the snapshot of what is below `prefix` (empty, or ending in `/`); the rest is `head`'s. `plain` is the same
/// repository without a batch on it.
pub fn take(
    batch: &mut Batch<'_>,
    plain: &Repository,
    prefix: &str,
    head: Option<&Tree<'_>>,
) -> Result<Snapshot, HistoryError> {
    let failed = HistoryError::git("read the workspace's state");
    let mut before = BTreeMap::new();
    if let Some(tree) = head {
        collect(plain, tree, &mut Vec::new(), prefix.as_bytes(), &mut before).map_err(&failed)?;
    }
    let mut scan = Scan::new(batch, plain, prefix, &before)?;
    scan.tracked()?;
    let folder = scan.root.join(prefix);
    scan.untracked(&folder, prefix.as_bytes())?;
    let Scan { mut found, left_out, read, .. } = scan;

    // The ledger and our own folder are what a run writes; a branch with them in it could not be merged.
    let exempt = |path: &Vec<u8>| {
        let name = &path[prefix.len().min(path.len())..];
        name == LEDGER_FILE.as_bytes() || name.split(|b| *b == b'/').next() == Some(PRIVATE_FOLDER.as_bytes())
    };
    found.retain(|path, _| !exempt(path));
    before.retain(|path, _| !exempt(path));
    let mut changes: Changes =
        before.keys().filter(|path| !found.contains_key(*path)).map(|p| (p.clone(), None)).collect();
    changes.extend(found.into_iter().filter(|(path, leaf)| before.get(path) != Some(leaf)).map(|(p, l)| (p, Some(l))));

    let tree = match rewrite(batch, head, &changes).map_err(&failed)? {
        Some(tree) => tree,
        None => {
            let empty = batch.repository().treebuilder(None).and_then(|builder| builder.write()).map_err(&failed)?;
            batch.add(empty)
        }
    };
    Ok(Snapshot { tree, left_out, read })
}

/// The files of `tree` below `prefix`.
fn collect(
    repository: &Repository,
    tree: &Tree<'_>,
    path: &mut Vec<u8>,
    prefix: &[u8],
    files: &mut BTreeMap<Vec<u8>, Leaf>,
) -> Result<(), git2::Error> {
    for entry in tree {
        let length = path.len();
        path.extend_from_slice(entry.name_bytes());
        if entry.kind() == Some(ObjectType::Tree) {
            path.push(b'/');
            if path.starts_with(prefix) || prefix.starts_with(path) {
                collect(repository, &repository.find_tree(entry.id())?, path, prefix, files)?;
            }
        } else if path.starts_with(prefix) {
            files.insert(path.clone(), Leaf { id: entry.id(), mode: entry.filemode() });
        }
        path.truncate(length);
    }
    Ok(())
}

/// Looking through the workspace.
struct Scan<'a, 'r> {
    batch: &'a mut Batch<'r>,
    plain: &'a Repository,
    prefix: &'a str,
    before: &'a BTreeMap<Vec<u8>, Leaf>,
    /// The working tree's root.
    root: PathBuf,
    /// Whether the executable bit on disk means something.
    modes: bool,
    /// Whether a tracked file may be absent on purpose.
    sparse: bool,
    found: BTreeMap<Vec<u8>, Leaf>,
    left_out: Vec<PathBuf>,
    read: u64,
}

impl<'a, 'r> Scan<'a, 'r> {
    fn new(
        batch: &'a mut Batch<'r>,
        plain: &'a Repository,
        prefix: &'a str,
        before: &'a BTreeMap<Vec<u8>, Leaf>,
    ) -> Result<Self, HistoryError> {
        let config = plain.config().map_err(HistoryError::git("read the repository's settings"))?;
        Ok(Self {
            root: plain.workdir().unwrap_or(Path::new("/")).to_owned(),
            modes: config.get_bool("core.fileMode").unwrap_or(true),
            sparse: config.get_bool("core.sparseCheckout").unwrap_or(false),
            batch,
            plain,
            prefix,
            before,
            found: BTreeMap::new(),
            left_out: Vec::new(),
            read: 0,
        })
    }

    /// The files that git tracks, as they are on disk.
    fn tracked(&mut self) -> Result<(), HistoryError> {
        let index_path = self.plain.path().join("index");
        let written = fs::metadata(&index_path).map(|data| (data.mtime(), data.mtime_nsec())).unwrap_or_default();
        let Ok(index) = self.plain.index() else {
            // A split or a sparse index is more than libgit2 reads. Without it HEAD says what is tracked; an empty one
            // (of a file that is not there) stands in, since looking up attributes needs one.
            let mut empty = Index::open(&self.plain.path().join("warpsmith-no-index"))
                .map_err(HistoryError::git("do without the index"))?;
            for repository in [self.plain, self.batch.repository()] {
                repository.set_index(&mut empty).map_err(HistoryError::git("do without the index"))?;
            }
            let before: Vec<_> = self.before.iter().map(|(path, leaf)| (path.clone(), *leaf)).collect();
            return before.into_iter().try_for_each(|(path, leaf)| self.one(path, leaf, self.sparse, |_| false));
        };
        for entry in index.iter().filter(|entry| entry.path.starts_with(self.prefix.as_bytes())) {
            let leaf = Leaf { id: entry.id, mode: i32::try_from(entry.mode).unwrap_or(PLAIN) };
            let absent = entry.flags_extended & IndexEntryExtendedFlag::SKIP_WORKTREE.bits() != 0;
            self.one(entry.path.clone(), leaf, absent, |data| unchanged(&entry, data, written))?;
        }
        Ok(())
    }

    /// One tracked file: `leaf` if it is unchanged or absent on purpose, else what is on disk.
    fn one(
        &mut self,
        path: Vec<u8>,
        leaf: Leaf,
        may_be_absent: bool,
        unchanged: impl Fn(&Metadata) -> bool,
    ) -> Result<(), HistoryError> {
        let carried = self.before.get(&path).copied().unwrap_or(leaf);
        if leaf.mode == SUBMODULE {
            self.found.insert(path, carried);
            return Ok(());
        }
        let file = self.root.join(OsStr::from_bytes(&path));
        let now = match fs::symlink_metadata(&file) {
            Ok(data) if data.is_dir() => None,
            Ok(data) if unchanged(&data) => Some(leaf),
            Ok(data) => self.hash(&path, &file, &data, Some(leaf))?,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                may_be_absent.then_some(carried)
            }
            Err(error) => return Err(HistoryError::io("read", &file)(error)),
        };
        if let Some(now) = now {
            self.found.insert(path, now);
        }
        Ok(())
    }

    /// The files that git neither tracks nor ignores, below `folder`, whose path in the repository is `path`
    /// (empty, or ending in `/`).
    fn untracked(&mut self, folder: &Path, path: &[u8]) -> Result<(), HistoryError> {
        for entry in fs::read_dir(folder).map_err(HistoryError::io("read", folder))? {
            let entry = entry.map_err(HistoryError::io("read", folder))?;
            let (name, file) = (entry.file_name(), entry.path());
            let mut inner = [path, name.as_bytes()].concat();
            let ours = path == self.prefix.as_bytes() && (name == LEDGER_FILE || name == PRIVATE_FOLDER);
            if name == ".git" || ours || self.found.contains_key(&inner) {
                continue;
            }
            // It may have gone since the folder was listed.
            let Ok(data) = fs::symlink_metadata(&file) else { continue };
            if data.is_dir() {
                inner.push(b'/');
                // A repository inside this one, tracked or not, is not part of it.
                if !file.join(".git").exists() && !self.ignored(&inner)? {
                    self.untracked(&file, &inner)?;
                }
            } else if (data.is_file() || data.is_symlink()) && !self.ignored(&inner)? {
                match if data.len() > LARGE { None } else { self.hash(&inner, &file, &data, None)? } {
                    Some(leaf) => {
                        self.found.insert(inner, leaf);
                    }
                    None => self.left_out.push(PathBuf::from(OsStr::from_bytes(&inner))),
                }
            }
        }
        Ok(())
    }

    fn ignored(&self, path: &[u8]) -> Result<bool, HistoryError> {
        self.plain.is_path_ignored(OsStr::from_bytes(path)).map_err(HistoryError::git("read which files are ignored"))
    }

    /// What is on disk, hashed as `git add` would. `known` is what the index has; `None` is returned for what only a
    /// program of the user's could store.
    fn hash(
        &mut self,
        path: &[u8],
        file: &Path,
        data: &Metadata,
        known: Option<Leaf>,
    ) -> Result<Option<Leaf>, HistoryError> {
        let failed = HistoryError::git("store a file of the workspace");
        if data.is_symlink() {
            let target = fs::read_link(file).map_err(HistoryError::io("read", file))?;
            let id = self.batch.blob(target.as_os_str().as_bytes()).map_err(&failed)?;
            return Ok(Some(Leaf { id, mode: LINK }));
        }
        // A filter such as Git LFS is the user's to run: what it made last is carried over.
        let filter = self.plain.get_attr(Path::new(OsStr::from_bytes(path)), "filter", AttrCheckFlags::FILE_THEN_INDEX);
        if filter.is_ok_and(|filter| filter.is_some()) {
            return Ok(known);
        }
        let mode = match known {
            Some(Leaf { mode: mode @ (PLAIN | EXECUTABLE), .. }) if !self.modes => mode,
            _ if self.modes && data.permissions().mode() & 0o100 != 0 => EXECUTABLE,
            _ => PLAIN,
        };
        self.read += data.len();
        // A large file that was only touched is not taken into memory to find that out.
        if let Some(known) = known
            && data.len() > LARGE
            && Oid::hash_file(ObjectType::Blob, file).map_err(&failed)? == known.id
        {
            return Ok(Some(Leaf { id: known.id, mode }));
        }
        let id = self.batch.repository().blob_path(file).map_err(&failed)?;
        if known.is_none_or(|known| known.id != id) {
            self.batch.add(id);
        }
        Ok(Some(Leaf { id, mode }))
    }
}

/// Whether a file is what its index entry was made from, by git's own rule: everything the system says about it is the
/// same, and it was not written in the moment in which the index was (`written`, s and ns).
fn unchanged(entry: &IndexEntry, data: &Metadata, written: (i64, i64)) -> bool {
    // Seconds are kept in 32 bits, and nanoseconds by some gits not at all.
    let same = |then: git2::IndexTime, now: (i64, i64)| {
        then.seconds() == now.0 as i32 && (then.nanoseconds() == 0 || i64::from(then.nanoseconds()) == now.1)
    };
    let changed = (data.mtime(), data.mtime_nsec());
    let settled =
        changed.0 < written.0 || (changed.0 == written.0 && entry.mtime.nanoseconds() != 0 && changed.1 < written.1);
    let link = entry.mode & 0o170_000 == 0o120_000;
    let executable = entry.mode & 0o111 != 0;
    // Git keeps the low 32 bits of both.
    let numbers = entry.file_size == data.len() as u32 && entry.ino == data.ino() as u32;
    let intended = entry.flags_extended & IndexEntryExtendedFlag::INTENT_TO_ADD.bits() != 0;
    !intended
        && settled
        && numbers
        && same(entry.mtime, changed)
        && same(entry.ctime, (data.ctime(), data.ctime_nsec()))
        && link == data.is_symlink()
        && (link || executable == (data.mode() & 0o100 != 0))
}
