//! What stands in the way of applying a run's winners.

use std::path::PathBuf;

use crate::history::HistoryError;

/// What stands in the way of applying a run's winners; each is one sentence with what to do, and nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The repository or the journal.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// HEAD is on no branch.
    #[error(
        "HEAD is detached, so that the commit would be on no branch; go to one with `git switch BRANCH`, or make one here with `git switch -c NEW-NAME`, and apply again"
    )]
    Detached,
    /// HEAD's branch has no commit.
    #[error(
        "there is no commit yet that the winners could follow; commit your own files first (`git add -A`, `git commit`), and apply again"
    )]
    Unborn,
    /// HEAD is on a run's branch.
    #[error(
        "`{branch}` is checked out, which belongs to its run; go to your own branch with `git switch BRANCH`, and apply again"
    )]
    RunBranch {
        /// The branch.
        branch: String,
    },
    /// Git is in the middle of something.
    #[error("git is in the middle of a {what} here; finish it or give it up (`git status` says how), and apply again")]
    InProgress {
        /// Of what.
        what: &'static str,
    },
    /// Another git writes the index, or one that was killed did.
    #[error(
        "another git is at work here ({path} is there); wait for it, or remove that file if none is, and apply again", path = path.display()
    )]
    IndexLocked {
        /// The lock file.
        path: PathBuf,
    },
    /// The run started from changes that are still not committed.
    #[error(
        "run {run} started with changes that are not committed yet; commit them first (`git add {files}`, `git commit`), and apply again"
    )]
    Uncommitted {
        /// The run.
        run: String,
        /// The files, separated by spaces.
        files: String,
    },
    /// Files that are neither what the run started from nor its winner.
    #[error(
        "not as run {run} found it: {files}; nothing was written. Commit your changes and let git decide with `git merge warpsmith/{run}`, or put back what the run started from"
    )]
    Changed {
        /// The run.
        run: String,
        /// The files and where they differ.
        files: String,
    },
    /// Someone else committed meanwhile.
    #[error("someone else committed to {branch} meanwhile, and nothing was changed; apply again")]
    Moved {
        /// The branch.
        branch: String,
    },
}
