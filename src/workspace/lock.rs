//! Locks that end with their process, however it ends: the kernel holds them on an open file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

/// How often a waiting process looks again.
const POLL: Duration = Duration::from_millis(50);

/// An exclusive lock on a file; given back when dropped.
#[derive(Debug)]
pub struct FileLock {
    /// The lock lives at most as long as this is open.
    file: File,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has just forked has the file open until it executes its
        // program. If this fails, the lock ends with that child.
        let _ = self.file.unlock();
    }
}

impl FileLock {
    /// Takes the lock on the file at `path` (made where it is not), and writes into it who holds it.
    /// `Err(holder)` in the inner result: someone else has it, and this is what they wrote.
    ///
    /// # Errors
    /// The file cannot be opened, locked or written.
    pub fn try_take(path: &Path, holder: &str) -> io::Result<Result<Self, String>> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut who = String::new();
                // What stands there may be anything; it only goes into a sentence.
                let _ = (&file).take(200).read_to_string(&mut who);
                let who: String = who.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                let who = who.trim();
                return Ok(Err(if who.is_empty() { "another process".to_owned() } else { who.to_owned() }));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{holder} (process {})\n", std::process::id()).as_bytes())?;
        Ok(Ok(Self { file }))
    }
}

/// The right to time on a device: two runs, a watch and a test never time at once.
#[derive(Debug)]
pub struct DeviceLock {
    /// The file is left where it is: removing it would let two processes lock two files of one name.
    _lock: FileLock,
}

impl DeviceLock {
    /// Takes the lock of the device `key` in `cache` (see [`super::cache_dir`]) unless someone holds it;
    /// `Err(holder)` in the inner result says who.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn try_take(cache: &Path, key: &str, holder: &str) -> io::Result<Result<Self, String>> {
        std::fs::create_dir_all(cache)?;
        let name: String = key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        Ok(FileLock::try_take(&cache.join(format!("lock-{name}")), holder)?.map(|lock| Self { _lock: lock }))
    }

    /// The same, waiting until it is free. While it is not, `waiting(holder)` is called about twenty times a second;
    /// `false` from it gives up, which returns `None`.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn take(
        cache: &Path,
        key: &str,
        holder: &str,
        mut waiting: impl FnMut(&str) -> bool,
    ) -> io::Result<Option<Self>> {
        loop {
            match Self::try_take(cache, key, holder)? {
                Ok(lock) => return Ok(Some(lock)),
                Err(who) if !waiting(&who) => return Ok(None),
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_second_taker_learns_who_holds_the_device() {
        let cache = tempfile::tempdir().unwrap();
        let first = DeviceLock::try_take(cache.path(), "cpu/x 86", "run 260214a").unwrap().unwrap();
        let holder = DeviceLock::try_take(cache.path(), "cpu/x 86", "bench").unwrap().unwrap_err();
        assert_eq!(holder, format!("run 260214a (process {})", std::process::id()));
        assert!(DeviceLock::try_take(cache.path(), "another", "bench").unwrap().is_ok());
        drop(first);
        assert!(DeviceLock::try_take(cache.path(), "cpu/x 86", "bench").unwrap().is_ok());
    }

    #[test]
    fn a_lock_that_is_given_back_is_free_though_a_child_has_the_file_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let lock = FileLock::try_take(&path, "a").unwrap().unwrap();
        let inherited = lock.file.try_clone().unwrap();
        assert!(FileLock::try_take(&path, "b").unwrap().is_err());
        drop(lock);
        assert!(FileLock::try_take(&path, "b").unwrap().is_ok());
        drop(inherited);
    }

    #[test]
    fn waiting_ends_when_the_device_is_free_or_the_caller_gives_up() {
        let cache = tempfile::tempdir().unwrap();
        let mut held = Some(DeviceLock::try_take(cache.path(), "cpu", "run 260214a").unwrap().unwrap());
        assert!(DeviceLock::take(cache.path(), "cpu", "bench", |_| false).unwrap().is_none());
        let mut asked = 0;
        let lock = DeviceLock::take(cache.path(), "cpu", "bench", |who| {
            assert!(who.starts_with("run 260214a"));
            asked += 1;
            if asked == 2 {
                held = None;
            }
            true
        });
        assert!(lock.unwrap().is_some());
        assert_eq!(asked, 2);
    }
}
