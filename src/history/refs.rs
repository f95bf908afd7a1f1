//! Moving refs: compare and swap, with patience for `git pack-refs` and `git gc`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use git2::{ErrorCode, Oid, Repository};

use super::HistoryError;
use super::names::Names;

/// How long another process may hold a ref's lock: git holds one for a moment. One that stays as it is for longer was
/// left by a process that is gone, most likely ourselves, killed.
const LOCK_LEFT_BEHIND: Duration = Duration::from_secs(2);
/// How long moving a ref is tried.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Where a ref points; `None` if it is not there.
pub fn read(repository: &Repository, name: &str) -> Result<Option<Oid>, HistoryError> {
    match repository.refname_to_id(name) {
        Ok(id) => Ok(Some(id)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(source) => Err(HistoryError::Git { doing: "read a ref", source }),
    }
}

/// Moves a ref from `old` (`None`: it must not be there) to `new`, synced. `open` gives a fresh repository: what
/// libgit2 remembers of refs can be out of date.
pub fn advance(
    open: impl Fn() -> Result<Repository, HistoryError>,
    name: &str,
    old: Option<Oid>,
    new: Oid,
    why: &str,
) -> Result<(), HistoryError> {
    let start = Instant::now();
    let mut lock = LockWatch::default();
    loop {
        let repository = open()?;
        let found = read(&repository, name);
        if matches!(found, Ok(Some(id)) if id == new) {
            return Ok(());
        }
        let moved = match old {
            Some(old) => repository.reference_matching(name, new, true, old, why),
            None => repository.reference(name, new, false, why),
        };
        let Err(source) = moved else {
            tracing::debug!(name, %new, took_s = start.elapsed().as_secs_f64(), "a ref moves");
            return Ok(());
        };
        // A ref that is truly elsewhere stays there: no need to try for long.
        let patience = match &found {
            Ok(found) if *found != old && source.code() != ErrorCode::Locked => 10 * PAUSE,
            _ => PATIENCE,
        };
        if start.elapsed() > patience {
            return Err(match found {
                Ok(found) if found != old => moved_by_someone(name, found, old),
                _ => HistoryError::Git { doing: "move a ref", source },
            });
        }
        lock.look(&repository.commondir().join(format!("{name}.lock")));
        std::thread::sleep(PAUSE);
    }
}

/// The failure for a ref that is not where the journal says.
pub fn moved_by_someone(name: &str, found: Option<Oid>, expected: Option<Oid>) -> HistoryError {
    let words = |id: Option<Oid>| id.map_or_else(|| "nowhere".to_owned(), |id| id.to_string());
    HistoryError::Moved { name: name.to_owned(), found: words(found), expected: words(expected) }
}

/// Removes a lock file that nobody seems to hold.
#[derive(Default)]
struct LockWatch {
    seen: Option<(SystemTime, Instant)>,
}

impl LockWatch {
    fn look(&mut self, path: &Path) {
        let Ok(written) = fs::metadata(path).and_then(|data| data.modified()) else {
            self.seen = None;
            return;
        };
        match self.seen {
            Some((then, since)) if then == written => {
                if since.elapsed() > LOCK_LEFT_BEHIND {
                    // If it cannot be removed, moving the ref fails in the end and says so.
                    let _ = fs::remove_file(path);
                }
            }
            _ => self.seen = Some((written, Instant::now())),
        }
    }
}

/// Refuses a repository in which the run's branch has no place or is someone's HEAD.
pub fn check_branch(repository: &Repository, names: &Names) -> Result<(), HistoryError> {
    if read(repository, "refs/heads/warpsmith")?.is_some() {
        return Err(HistoryError::NameTaken { branch: names.short_branch().to_owned() });
    }
    match checked_out(repository.commondir(), &names.branch) {
        Some(at) => {
            Err(HistoryError::CheckedOut { branch: names.short_branch().to_owned(), at: at.display().to_string() })
        }
        None => Ok(()),
    }
}

/// The working tree whose HEAD is on `branch`: the main one or a linked one.
pub fn checked_out(common: &Path, branch: &str) -> Option<PathBuf> {
    let on_it = |git_dir: &Path| {
        fs::read_to_string(git_dir.join("HEAD"))
            .is_ok_and(|head| head.strip_prefix("ref:").is_some_and(|name| name.trim() == branch))
    };
    if on_it(common) {
        return Some(common.parent().filter(|_| common.ends_with(".git")).unwrap_or(common).to_owned());
    }
    let linked = fs::read_dir(common.join("worktrees")).ok()?;
    linked.flatten().map(|entry| entry.path()).filter(|path| on_it(path)).find_map(|path| {
        let tree = fs::read_to_string(path.join("gitdir")).unwrap_or_default();
        let link = Path::new(tree.trim());
        // One that somebody removed as a folder is nobody's, until `git worktree prune` forgets it; a locked one may be on a disk that is away.
        let gone = link.is_absolute() && !link.exists() && !path.join("locked").exists();
        (!gone).then(|| link.parent().map_or_else(|| path.clone(), Path::to_owned))
    })
}
