//! The text of each save of a file, however an editor writes it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode};
use notify::{Config, Event, EventKind, PollWatcher, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

use super::Debounce;

/// Where the system has no notifications to give, the folder is looked at so often.
const POLL: Duration = Duration::from_millis(500);

/// Why a file cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum SavesError {
    /// It cannot be read at the start.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its folder cannot be watched.
    #[error("{path} cannot be watched: {why}", path = path.display())]
    Watch {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Its folder is gone.
    #[error("the folder {path} is gone, and with it what was watched", path = path.display())]
    Gone {
        /// The folder.
        path: PathBuf,
    },
}

/// The saves of one file, in order. The folder is watched rather than the file: many editors write a new file and give
/// it the old one's name.
pub struct Saves {
    path: PathBuf,
    folder: PathBuf,
    changes: mpsc::UnboundedReceiver<()>,
    debounce: Debounce,
    clock: Instant,
    /// The hash of the text that was given out last.
    last: blake3::Hash,
    /// Whether the system gives notifications.
    notified: bool,
    /// Ends with this.
    _watcher: Box<dyn Watcher + Send>,
}

impl Saves {
    /// Watches the file at `path`; its text as it is now comes beside.
    ///
    /// # Errors
    /// It cannot be read, or its folder cannot be watched.
    pub fn of(path: &Path) -> Result<(Self, String), SavesError> {
        let unread = |source| SavesError::Read { path: path.to_owned(), source };
        // Where the name is a link, the file behind it is what an editor writes.
        let path = path.canonicalize().map_err(unread)?;
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let (send, changes) = mpsc::unbounded_channel();
        // Before the first reading, so that no save falls between the two.
        let (watcher, notified) = watcher(&path, &folder, send)?;
        let text = std::fs::read(&path).map_err(unread)?;
        let saves = Self {
            last: blake3::hash(&text),
            path,
            folder,
            changes,
            debounce: Debounce::default(),
            clock: Instant::now(),
            notified,
            _watcher: watcher,
        };
        Ok((saves, String::from_utf8_lossy(&text).into_owned()))
    }

    /// Whether the system tells of changes; else the folder is looked at twice a second.
    #[must_use]
    pub const fn is_notified(&self) -> bool {
        self.notified
    }

    /// The next text that differs from the one before. Can be dropped while it waits; nothing is lost.
    ///
    /// # Errors
    /// The folder is gone.
    pub async fn next(&mut self) -> Result<String, SavesError> {
        loop {
            let due = self.debounce.due().map(|due| due.saturating_sub(self.clock.elapsed()));
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(()) => self.debounce.change(self.clock.elapsed()),
                    None => return Err(SavesError::Gone { path: self.folder.clone() }),
                },
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    self.debounce.looked();
                    if let Some(text) = self.look()? {
                        return Ok(text);
                    }
                }
            }
        }
    }

    /// The file's text where it is another than before. One that is not there, or has nothing in it, is being written.
    fn look(&mut self) -> Result<Option<String>, SavesError> {
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(_) if !self.folder.is_dir() => return Err(SavesError::Gone { path: self.folder.clone() }),
            Err(_) => return Ok(None),
        };
        let hash = blake3::hash(&text);
        if text.is_empty() || hash == self.last {
            return Ok(None);
        }
        self.last = hash;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

/// Watches the folder, by the system's notifications or (where there are none left to have) by looking.
fn watcher(
    path: &Path,
    folder: &Path,
    send: mpsc::UnboundedSender<()>,
) -> Result<(Box<dyn Watcher + Send>, bool), SavesError> {
    let handler = |send: mpsc::UnboundedSender<()>| {
        let (path, folder) = (path.to_owned(), folder.to_owned());
        move |event: notify::Result<Event>| {
            if event.map_or(true, |event| concerns(&event, &path, &folder)) {
                // Fails only where nobody waits for saves any more.
                let _ = send.send(());
            }
        }
    };
    let started = RecommendedWatcher::new(handler(send.clone()), Config::default()).and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    if let Ok(watcher) = started {
        return Ok((Box::new(watcher), true));
    }
    let failed = |error: notify::Error| SavesError::Watch { path: folder.to_owned(), why: error.to_string() };
    let config = Config::default().with_poll_interval(POLL);
    let mut watcher = PollWatcher::new(handler(send), config).map_err(failed)?;
    watcher.watch(folder, RecursiveMode::NonRecursive).map_err(failed)?;
    Ok((Box::new(watcher), false))
}

/// Whether the file may have another text after this. Swap and backup files beside it have names of their own, and
/// reading is no change.
fn concerns(event: &Event, path: &Path, folder: &Path) -> bool {
    let read = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
    let named = event.paths.iter().any(|of| of == path || of == folder);
    !read && (named || event.need_rescan())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    /// Longer than a notification ever takes, so that only a hang is a failure.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn next(saves: &mut Saves) -> String {
        tokio::time::timeout(PATIENCE, saves.next()).await.expect("a save is noticed").unwrap()
    }

    #[tokio::test]
    async fn every_way_of_writing_a_file_is_a_save() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.c");
        fs::write(&path, "one").unwrap();
        let (mut saves, text) = Saves::of(&path).unwrap();
        assert_eq!(text, "one");
        // Truncated and written.
        fs::write(&path, "two").unwrap();
        assert_eq!(next(&mut saves).await, "two");
        // A new file with the old one's name; the old one kept as a backup.
        fs::rename(&path, folder.path().join("k.c~")).unwrap();
        fs::write(folder.path().join(".k.c.swp"), "no save").unwrap();
        fs::write(folder.path().join("k.c.tmp"), "three").unwrap();
        fs::rename(folder.path().join("k.c.tmp"), &path).unwrap();
        assert_eq!(next(&mut saves).await, "three");
        // Removed, and made again.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "four").unwrap();
        assert_eq!(next(&mut saves).await, "four");
    }

    #[tokio::test]
    async fn what_changes_nothing_is_no_save() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.c");
        fs::write(&path, "one").unwrap();
        let (mut saves, _) = Saves::of(&path).unwrap();
        fs::write(&path, "one").unwrap();
        fs::write(&path, "").unwrap();
        fs::write(folder.path().join("other.c"), "another").unwrap();
        let waited = tokio::time::timeout(3 * super::super::debounce::LONGEST, saves.next()).await;
        assert!(waited.is_err(), "{waited:?}");
        fs::write(&path, "two").unwrap();
        assert_eq!(next(&mut saves).await, "two");
    }

    #[tokio::test]
    async fn a_link_is_followed_to_the_file_that_is_written() {
        let (folder, links) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (path, link) = (folder.path().join("k.c"), links.path().join("link.c"));
        fs::write(&path, "one").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let (mut saves, _) = Saves::of(&link).unwrap();
        fs::write(&link, "two").unwrap();
        assert_eq!(next(&mut saves).await, "two");
    }

    #[tokio::test]
    async fn a_folder_that_goes_away_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("k.c"), "one").unwrap();
        let (mut saves, _) = Saves::of(&inner.join("k.c")).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        let ended = tokio::time::timeout(PATIENCE, saves.next()).await.expect("it is noticed");
        assert!(matches!(ended, Err(SavesError::Gone { .. })), "{ended:?}");
        assert!(matches!(Saves::of(&inner.join("k.c")), Err(SavesError::Read { .. })));
    }

    #[test]
    fn reading_the_file_is_no_change() {
        let event = |kind| Event::new(kind).add_path("/d/k.c".into());
        let concerned = |kind| concerns(&event(kind), Path::new("/d/k.c"), Path::new("/d"));
        assert!(!concerned(EventKind::Access(AccessKind::Open(AccessMode::Any))));
        assert!(!concerned(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        assert!(concerned(EventKind::Access(AccessKind::Close(AccessMode::Write))));
        assert!(concerned(EventKind::Modify(notify::event::ModifyKind::Any)));
        assert!(!concerns(&event(EventKind::Any), Path::new("/d/other.c"), Path::new("/e")));
    }
}
