//! The git repository around a workspace: opening it, and making one where there is none.

use std::path::Path;
use std::sync::Once;

use git2::{ErrorCode, Repository, RepositoryInitOptions, RepositoryOpenFlags, Signature};

use super::error::WorkspaceError;
use super::files::write_synced;

/// What a repository made here ignores: all that is not Warpsmith's, weights of many gigabytes among it.
const EXCLUDE: &str = "# Made by Warpsmith: only its own files belong to this repository.\n\
                       /*\n!/warpsmith.toml\n!/program.md\n!/kernels/\n!/reference/\n";

/// Opens the repository that holds `path`: at or above it, never one that the environment names (`GIT_DIR` and the
/// like are set in hooks and would lead to another).
///
/// # Errors
/// [`WorkspaceError::NoRepository`], [`WorkspaceError::Bare`], or a sentence about what cannot be opened.
pub fn open(path: &Path) -> Result<Repository, WorkspaceError> {
    static ONCE: Once = Once::new();
    // A tree carried over names objects that a sparse or partial clone, or a submodule, does not have here.
    ONCE.call_once(|| git2::opts::strict_object_creation(false));
    let none: [&str; 0] = [];
    let repository = Repository::open_ext(path, RepositoryOpenFlags::empty(), none).map_err(|e| explain(path, e))?;
    if repository.workdir().is_none() {
        return Err(WorkspaceError::Bare { path: repository.path().to_owned() });
    }
    Ok(repository)
}

/// Turns what libgit2 says into a sentence with a way out.
fn explain(path: &Path, source: git2::Error) -> WorkspaceError {
    let said = source.message().to_lowercase();
    let (what, hint) = match source.code() {
        ErrorCode::NotFound => return WorkspaceError::NoRepository { path: path.to_owned() },
        ErrorCode::Owner => (
            "belongs to another user".to_owned(),
            "if you trust it, run `git config --global --add safe.directory` with its path",
        ),
        _ if said.contains("refstorage") || said.contains("reftable") => (
            "keeps its refs as reftable, which is not supported yet".to_owned(),
            "convert it with `git refs migrate --ref-format=files`",
        ),
        _ if said.contains("sha256") || said.contains("objectformat") || said.contains("object format") => (
            "names its objects by sha256, which is not supported yet".to_owned(),
            "copy the workspace to a repository made with `git init --object-format=sha1`",
        ),
        _ if said.contains("partialclone") => (
            "is a partial clone, which is not supported yet".to_owned(),
            "clone it without --filter (--depth 1 is fine)",
        ),
        _ if said.contains("extension") || said.contains("version") => {
            (format!("is of a kind that is not supported yet ({})", source.message()), "use a plain clone of it")
        }
        _ => return WorkspaceError::Git { doing: "open", path: path.to_owned(), source },
    };
    WorkspaceError::Unsupported { path: path.to_owned(), what, hint }
}

/// Makes a repository in `root` whose first commit holds the `files` named (relative to `root`) and whose excludes
/// keep out everything that is not Warpsmith's.
///
/// # Errors
/// What libgit2 or the file system says.
pub(super) fn make(root: &Path, files: &[&str]) -> Result<Repository, WorkspaceError> {
    let failed = |source| WorkspaceError::Git { doing: "make", path: root.to_owned(), source };
    // Without templates: a user's templates may carry hooks, which have no business here.
    let repository = Repository::init_opts(root, RepositoryInitOptions::new().no_reinit(true).external_template(false))
        .map_err(failed)?;
    let exclude = repository.path().join("info/exclude");
    write_synced(&exclude, EXCLUDE.as_bytes()).map_err(WorkspaceError::writing(&exclude))?;
    let commit = || -> Result<(), git2::Error> {
        let mut index = repository.index()?;
        for file in files {
            index.add_path(Path::new(file))?;
        }
        let tree = repository.find_tree(index.write_tree()?)?;
        let who = identity(&repository)?;
        repository.commit(Some("HEAD"), &who, &who, "Make a Warpsmith workspace\n", &tree, &[])?;
        index.write()
    };
    commit().map_err(failed)?;
    Ok(repository)
}

/// The user's name and address, or Warpsmith's own where there are none.
///
/// # Errors
/// Only if the clock cannot be read.
pub fn identity(repository: &Repository) -> Result<Signature<'static>, git2::Error> {
    repository.signature().or_else(|_| Signature::now("Warpsmith", "warpsmith@localhost"))
}
