//! The run's folder before and after a program worked in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::super::transcript;
use crate::workspace::{LOG_FILE, WORKERS_FILE};

/// Files that are looked at; more are left alone and said.
const MOST_FILES: usize = 4096;

/// What the run itself writes there while the program works; to put it back would undo that.
const WRITTEN_MEANWHILE: [&str; 3] = [transcript::FILE, LOG_FILE, WORKERS_FILE];

/// Everything in a folder but the one file that is to change.
#[derive(Debug)]
pub(super) struct Snapshot {
    folder: PathBuf,
    /// Files by path, with what was in them.
    files: BTreeMap<PathBuf, Vec<u8>>,
    candidate: PathBuf,
}

impl Snapshot {
    /// Remembers what is in `folder`, but for what the run writes meanwhile.
    pub(super) fn of(folder: &Path, candidate: &Path) -> Result<Self, String> {
        let mut files = BTreeMap::new();
        for path in files_below(folder) {
            if path != candidate && !is_written_meanwhile(folder, &path) {
                let text = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                files.insert(path, text);
            }
        }
        Ok(Self { folder: folder.to_owned(), files, candidate: candidate.to_owned() })
    }

    /// Undoes everything that happened in the folder since, but to the candidate; what that was, by name.
    pub(super) fn put_back(&self) -> Vec<String> {
        let name = |path: &Path| path.strip_prefix(&self.folder).unwrap_or(path).display().to_string();
        let mut changed = Vec::new();
        for path in files_below(&self.folder) {
            let ours =
                path == self.candidate || is_written_meanwhile(&self.folder, &path) || self.files.contains_key(&path);
            if !ours {
                changed.push(name(&path));
                let _ = fs::remove_file(&path);
            }
        }
        for (path, text) in &self.files {
            let same = is_plain(path) && fs::read(path).is_ok_and(|now| now == *text);
            if !same {
                changed.push(name(path));
                let _ = remove(path);
                let _ = path.parent().map(fs::create_dir_all);
                let _ = fs::write(path, text);
            }
        }
        changed.sort();
        changed
    }
}

fn is_written_meanwhile(folder: &Path, path: &Path) -> bool {
    WRITTEN_MEANWHILE.iter().any(|name| path == folder.join(name))
}

fn is_plain(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Whatever is there, a link without what it points to.
fn remove(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Files and links below a folder; links are not followed.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(_) if found.len() < MOST_FILES => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Writes a file and the folders above it; a link that stands there is replaced, not followed.
pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{} cannot be written: {error}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    if !is_plain(path) {
        let _ = remove(path);
    }
    fs::write(path, text).map_err(failed)
}

/// A plain file's text, at most so many bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<String, String> {
    if !is_plain(path) {
        return Err("it is no plain file".to_owned());
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(most + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > most { Err(format!("it has more than {most} bytes")) } else { Ok(text) }
}
