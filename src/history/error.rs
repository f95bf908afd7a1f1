//! What can go wrong with a run's history.

use std::io;
use std::path::{Path, PathBuf};

use crate::workspace::WorkspaceError;

/// What there is instead of a run that there is not.
fn known_runs(known: &[String]) -> String {
    match known {
        [] => "there is none yet".to_owned(),
        known => format!("those that `warpsmith log --run` takes: {}", known.join(", ")),
    }
}

/// Where a workspace is.
fn workspace_at(place: &str) -> String {
    match place.trim_end_matches('/') {
        "" => ", the one at its root".to_owned(),
        folder => format!(", the one in {folder}"),
    }
}

/// What can go wrong with a run's history; each is one sentence with what to do.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The workspace or its repository cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// `refs/heads/warpsmith` is a file where a folder is needed.
    #[error(
        "a branch is named `warpsmith`, so that git has no room for `{branch}`; rename it with `git branch -m warpsmith NEW-NAME`"
    )]
    NameTaken {
        /// The branch that the run needs.
        branch: String,
    },
    /// The run's branch is someone's HEAD.
    #[error(
        "the branch `{branch}` is checked out in {at}, and moving it would change what is seen there; run `git switch --detach` there first"
    )]
    CheckedOut {
        /// The branch.
        branch: String,
        /// The working tree.
        at: String,
    },
    /// Another run has the lock.
    #[error("{holder} is using this repository; wait until it ends, or work in a clone")]
    Busy {
        /// Who, as written in the lock file.
        holder: String,
    },
    /// The run id is in use.
    #[error("there is a run {run} already; resume it with `warpsmith run --resume {run}`, or choose another id")]
    RunExists {
        /// The run.
        run: String,
    },
    /// The run id is not known.
    #[error("there is no run {run} in this repository's history; {}", known_runs(known))]
    NoRun {
        /// The run.
        run: String,
        /// Those there are, oldest first.
        known: Vec<String>,
    },
    /// The run was begun in another workspace of this repository.
    #[error("run {run} is of another workspace of this repository{}; it goes on there, and --resume RUN names another", place.as_deref().map_or_else(String::new, workspace_at))]
    OtherWorkspace {
        /// The run.
        run: String,
        /// Where that workspace is in the repository, where the journal says so: empty, or ending in `/`.
        place: Option<String>,
    },
    /// A run id that is none.
    #[error("`{0}` is not a run id; they look like 260214a")]
    BadRun(String),
    /// Someone else moved one of our refs.
    #[error(
        "`{name}` was moved to {found} by someone else, and the journal says {expected}; keep that work with `git branch NEW-NAME {found}`, then put it back with `git update-ref {name} {expected}`"
    )]
    Moved {
        /// The ref's full name.
        name: String,
        /// Where it is (an id, or `nowhere`).
        found: String,
        /// Where the journal puts it.
        expected: String,
    },
    /// A journal that this program did not write, or that lost something.
    #[error(
        "the journal of run {run} is damaged at {at}: {what}; look at it with `git log refs/warpsmith/{run}/journal`"
    )]
    Damaged {
        /// The run.
        run: String,
        /// The journal's commit.
        at: String,
        /// What is missing.
        what: String,
    },
    /// The caller is not at the experiment that follows.
    #[error("experiment {got} does not follow: the journal of run {run} ends at {last}")]
    OutOfOrder {
        /// The run.
        run: String,
        /// The journal's last experiment.
        last: u64,
        /// The number given.
        got: u64,
    },
    /// A path in the branch that cannot hold a kernel.
    #[error("{path} cannot be written on the branch: {what}; rename what is in its way")]
    BadPath {
        /// Relative to the repository.
        path: String,
        /// What is in its way.
        what: String,
    },
    /// A file that is no bundle of a run.
    #[error("{} is no run that can be gone on with: {what}; `warpsmith bundle RUN FILE` writes one", path.display())]
    BadBundle {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// `read`, `write`, `lock` or `remove`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Git's own words, after retries.
    #[error("git failed to {doing}: {source}")]
    Git {
        /// What was to be done.
        doing: &'static str,
        /// What libgit2 said.
        source: git2::Error,
    },
    /// A failpoint fired in a test of this process.
    #[cfg(test)]
    #[error("killed at {0}")]
    Killed(&'static str),
}

impl HistoryError {
    /// For `map_err`, with what was to be done.
    pub(super) fn git(doing: &'static str) -> impl Fn(git2::Error) -> Self {
        move |source| Self::Git { doing, source }
    }

    /// For `map_err`, with what was to be done to which file.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    /// Whether trying again on a freshly opened repository may help: `git gc` may have moved an object from one file to
    /// another under our hands, and `git pack-refs` holds locks for a moment.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self, Self::Git { .. })
    }
}
