//! Where a winner goes, and what stands there: in HEAD's commit, in the index, on disk.

use std::path::{Path, PathBuf};

use git2::{Index, IndexEntryExtendedFlag, ObjectType, Oid, Repository, Status};

use super::Winner;
use crate::history::HistoryError;
use crate::history::store::Store;
use crate::history::tree::{entry_at, room_for};
use crate::workspace::relative;

/// What stands at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// What the run started from.
    Start,
    /// The run's winner.
    Winner,
    /// Something else, which is the user's.
    Other,
}

/// A file that is to hold a winner.
#[derive(Debug, Clone)]
pub struct Place<'w> {
    pub winner: &'w Winner,
    /// Relative to the repository.
    pub full: String,
    /// On disk.
    pub file: PathBuf,
    /// The winner's blob.
    pub id: Oid,
    pub head: Content,
    pub index: Content,
    pub disk: Content,
    /// Whether a sparse checkout keeps it off the disk.
    pub absent_on_purpose: bool,
}

impl Place<'_> {
    /// Relative to the workspace.
    pub fn path(&self) -> String {
        self.winner.path.clone()
    }

    /// Whether index or disk are not the winner yet.
    pub fn is_behind(&self) -> bool {
        self.index != Content::Winner || self.disk != Content::Winner
    }

    /// Whether the only difference is that what the run started from was never committed.
    pub fn is_only_uncommitted(&self) -> bool {
        self.head == Content::Other && self.disk == Content::Start
    }

    /// What is the user's own here, in a few words.
    pub fn complaint(&self) -> Option<String> {
        let places = [(self.head, "committed"), (self.index, "staged"), (self.disk, "on disk")];
        let other: Vec<&str> =
            places.iter().filter(|(content, _)| *content == Content::Other).map(|(_, place)| *place).collect();
        (!other.is_empty()).then(|| format!("{} ({})", self.winner.path, other.join(", ")))
    }
}

/// Looks at every winner's place. `start` is the commit that the run started from.
pub fn look<'w>(
    store: &Store,
    repository: &Repository,
    head: Oid,
    start: Option<Oid>,
    winners: &'w [Winner],
) -> Result<Vec<Place<'w>>, HistoryError> {
    let failed = HistoryError::git("compare with what the run started from");
    let tree = |commit: Oid| repository.find_commit(commit).and_then(|commit| commit.tree()).map_err(&failed);
    let (head, start) = (tree(head)?, start.map(tree).transpose()?);
    // A split or a sparse index is more than libgit2 reads.
    let mut index = repository.index().map_err(HistoryError::git("read the index (is it split or sparse?)"))?;
    index.read(true).map_err(&failed)?;
    let root = repository.workdir().unwrap_or(&store.root).to_owned();
    let mut places = Vec::new();
    for winner in winners {
        relative(&winner.path)?;
        let full = store.in_repository(&winner.path);
        room_for(&head, &full)?;
        let id = Oid::hash_object(ObjectType::Blob, winner.text.as_bytes()).map_err(&failed)?;
        let blob_in = |tree: &git2::Tree<'_>| entry_at(tree, &full).map(|entry| entry.map(|entry| entry.id()));
        let before = start.as_ref().map(blob_in).transpose().map_err(&failed)?.flatten();
        let content = |found: Option<Oid>| match found {
            Some(found) if found == id => Content::Winner,
            found if found == before => Content::Start,
            _ => Content::Other,
        };
        let (in_index, absent_on_purpose) = index_entry(&index, &full);
        let index = in_index.map_or(Content::Other, content);
        let file = root.join(&full);
        let disk = if absent_on_purpose { index } else { on_disk(repository, &full, &file, index, &content)? };
        let head = content(blob_in(&head).map_err(&failed)?);
        places.push(Place { winner, full, file, id, head, index, disk, absent_on_purpose });
    }
    Ok(places)
}

/// The blob in the index (the outer `None`: a conflict or an intent to add), and whether it is kept off the disk.
fn index_entry(index: &Index, path: &str) -> (Option<Option<Oid>>, bool) {
    let Some(entry) = index.get_path(Path::new(path), 0) else {
        let conflict = (1..=3).any(|stage| index.get_path(Path::new(path), stage).is_some());
        return ((!conflict).then_some(None), false);
    };
    let has = |flag: IndexEntryExtendedFlag| entry.flags_extended & flag.bits() != 0;
    let intended = has(IndexEntryExtendedFlag::INTENT_TO_ADD);
    ((!intended).then_some(Some(entry.id)), has(IndexEntryExtendedFlag::SKIP_WORKTREE))
}

/// What is on disk: by its bytes, else (where git translates line ends) by whether git calls it unchanged.
fn on_disk(
    repository: &Repository,
    path: &str,
    file: &Path,
    index: Content,
    content: &dyn Fn(Option<Oid>) -> Content,
) -> Result<Content, HistoryError> {
    let data = match std::fs::symlink_metadata(file) {
        Ok(data) => data,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(content(None)),
        Err(error) => return Err(HistoryError::io("read", file)(error)),
    };
    if !data.is_file() {
        return Ok(Content::Other);
    }
    let bytes = std::fs::read(file).map_err(HistoryError::io("read", file))?;
    let failed = HistoryError::git("compare with what the run started from");
    let found = content(Some(Oid::hash_object(ObjectType::Blob, &bytes).map_err(&failed)?));
    if found != Content::Other {
        return Ok(found);
    }
    let changed = Status::WT_NEW | Status::WT_MODIFIED | Status::WT_TYPECHANGE | Status::IGNORED | Status::CONFLICTED;
    let status = repository.status_file(Path::new(path)).map_err(&failed)?;
    Ok(if status.intersects(changed) { Content::Other } else { index })
}
