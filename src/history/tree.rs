//! Trees from blobs: a base tree with some paths changed, without index or checkout.

use std::collections::BTreeMap;

use git2::{Oid, Tree, TreeEntry};

use super::HistoryError;
use super::pack::Batch;

/// A file in a tree: its blob (or a submodule's commit) and its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// The object.
    pub id: Oid,
    /// Git's mode: 0o100644, 0o100755, 0o120000 or 0o160000.
    pub mode: i32,
}

/// Paths (bytes, `/` between parts) and what is to stand there; `None` removes.
pub type Changes = BTreeMap<Vec<u8>, Option<Leaf>>;

/// The mode of a plain file.
pub const PLAIN: i32 = 0o100_644;
/// The mode of a submodule.
pub const SUBMODULE: i32 = 0o160_000;
/// The mode of a folder.
const FOLDER: i32 = 0o040_000;

/// `base` with the changes; all that they do not touch is carried over unread. `None` if nothing is left.
pub fn rewrite(batch: &mut Batch<'_>, base: Option<&Tree<'_>>, changes: &Changes) -> Result<Option<Oid>, git2::Error> {
    if changes.is_empty()
        && let Some(base) = base
    {
        return Ok(Some(base.id()));
    }
    let repository = batch.repository();
    let mut builder = repository.treebuilder(base)?;
    for (name, group) in by_first_part(changes) {
        let there = builder.get(&name)?.map(|entry| Leaf { id: entry.id(), mode: entry.filemode() });
        match group {
            Group { leaf: Some(Some(leaf)), .. } => {
                builder.insert(name, leaf.id, leaf.mode)?;
            }
            Group { leaf, below } => {
                let folder = match there {
                    Some(Leaf { id, mode: FOLDER }) => Some(repository.find_tree(id)?),
                    _ => None,
                };
                let was_folder = folder.is_some();
                let new = if was_folder || !below.is_empty() { rewrite(batch, folder.as_ref(), &below)? } else { None };
                match new {
                    Some(id) => {
                        builder.insert(name, id, FOLDER)?;
                    }
                    // Something that is not mentioned stays: a file is removed only by its own name.
                    None if there.is_some() && (was_folder || leaf.is_some()) => builder.remove(name)?,
                    None => {}
                }
            }
        }
    }
    if builder.is_empty() {
        return Ok(None);
    }
    let id = builder.write()?;
    Ok(Some(batch.add(id)))
}

/// What the changes say about one name of a folder.
#[derive(Default)]
struct Group {
    /// About the name itself.
    leaf: Option<Option<Leaf>>,
    /// About what is below it.
    below: Changes,
}

/// Sorts changes by the first part of their paths.
fn by_first_part(changes: &Changes) -> BTreeMap<Vec<u8>, Group> {
    let mut groups: BTreeMap<Vec<u8>, Group> = BTreeMap::new();
    for (path, change) in changes {
        match path.iter().position(|byte| *byte == b'/') {
            Some(at) => {
                groups.entry(path[..at].to_vec()).or_default().below.insert(path[at + 1..].to_vec(), *change);
            }
            None => groups.entry(path.clone()).or_default().leaf = Some(*change),
        }
    }
    groups
}

/// The entry at a path (parts separated by `/`).
pub fn entry_at<'t>(tree: &'t Tree<'_>, path: &str) -> Result<Option<TreeEntry<'t>>, git2::Error> {
    match tree.get_path(std::path::Path::new(path)) {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if error.code() == git2::ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The mode for a file at `path`; refuses a place where none can be.
pub fn room_for(tree: &Tree<'_>, path: &str) -> Result<i32, HistoryError> {
    let failed = HistoryError::git("read the branch's tree");
    let bad = |what: &str| HistoryError::BadPath { path: path.to_owned(), what: what.to_owned() };
    for (at, _) in path.match_indices('/') {
        let entry = entry_at(tree, &path[..at]).map_err(&failed)?;
        if entry.is_some_and(|entry| entry.kind() != Some(git2::ObjectType::Tree)) {
            return Err(bad(&format!("{} is not a folder", &path[..at])));
        }
    }
    match entry_at(tree, path).map_err(&failed)? {
        None => Ok(PLAIN),
        Some(entry) if entry.kind() != Some(git2::ObjectType::Blob) => Err(bad("there is a folder or a submodule")),
        // What was a link becomes a file.
        Some(entry) => Ok(if entry.filemode() & 0o170_000 == 0o100_000 { entry.filemode() } else { PLAIN }),
    }
}
