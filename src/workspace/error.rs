//! What can be wrong with a workspace and the repository around it.

use std::io;
use std::path::{Path, PathBuf};

/// What can be wrong with a workspace and the repository around it; each is one sentence with what to do.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The model directory is not one.
    #[error("{path} is not a directory that can be read ({source}); name the directory that holds the model's config.json", path = path.display())]
    NoDirectory {
        /// As asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// `read` or `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// `warpsmith.toml` is not one.
    #[error("{path} cannot be used: {what}; correct it, or remove the line for its default", path = path.display())]
    Settings {
        /// The file.
        path: PathBuf,
        /// The reader's sentence.
        what: String,
    },
    /// Neither the workspace nor the binary has it.
    #[error("there is no {name} in {root}, and this program carries no copy of one", root = root.display())]
    NoFile {
        /// The name asked for.
        name: String,
        /// The workspace.
        root: PathBuf,
    },
    /// A name that leads out of the workspace.
    #[error(
        "`{0}` is not a name of a file in a workspace; write it relative to the workspace, as kernels/cpu/rmsnorm.c"
    )]
    BadName(String),
    /// No repository at or above the workspace.
    #[error("{path} is in no git repository, and a run keeps its history in one; run `git init` there, or let `warpsmith run` make one", path = path.display())]
    NoRepository {
        /// The workspace.
        path: PathBuf,
    },
    /// A repository without files.
    #[error("{path} is a bare git repository, without files to start from; use a clone of it", path = path.display())]
    Bare {
        /// The repository.
        path: PathBuf,
    },
    /// A repository of a kind that cannot be opened.
    #[error("the git repository at {path} {what}; {hint}", path = path.display())]
    Unsupported {
        /// Where it was looked for.
        path: PathBuf,
        /// What it uses.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// Git's own words, where none of the above fits.
    #[error("cannot {doing} the git repository at {path}: {source}", path = path.display())]
    Git {
        /// `open` or `make`.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// What libgit2 said.
        source: git2::Error,
    },
}

impl WorkspaceError {
    /// For `map_err`, after reading `path`.
    pub(super) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { doing: "read", path: path.to_owned(), source }
    }

    /// For `map_err`, after writing `path`.
    pub(super) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self::Io { doing: "write", path: path.to_owned(), source }
    }
}
