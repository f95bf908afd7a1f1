//! Where files are: the workspace, the machine's cache, the repository, and the copies inside the binary.

mod cache;
mod duration;
mod embedded;
mod error;
mod files;
mod lock;
mod python;
mod repository;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

pub use cache::cache_dir;
pub use duration::{DurationError, duration};
pub use embedded::{HEADERS, embedded, embedded_names};
pub use error::WorkspaceError;
pub use files::{remove_if_there, sync_folder, write_synced};
pub use lock::{DeviceLock, FileLock};
pub use python::{PYTHON, python};
pub use repository::{identity, open as open_repository};
pub use settings::{
    BackendName, Commands, DeviceSettings, PhaseName, PriceSettings, RunSettings, Settings, TunerSettings,
};

/// The file that makes a directory a workspace.
pub const SETTINGS_FILE: &str = "warpsmith.toml";
/// The ledger at a workspace's root.
pub const LEDGER_FILE: &str = "results.tsv";
/// The instructions that an agent, or a person, works by.
const PROGRAM_FILE: &str = "program.md";
/// The folder for what a run writes beside the ledger; it ignores itself.
pub const PRIVATE_FOLDER: &str = ".warpsmith";
/// In a run's folder: what happened to processes, devices, requests and git.
pub const LOG_FILE: &str = "warpsmith.log";
/// In a run's folder: what the whole of a PyTorch model said as the run ended. Nothing else knows what is not to be exported.
pub const WHOLE_FILE: &str = "whole.json";
/// In a run's folder: what its workers do.
pub const WORKERS_FILE: &str = "workers.json";

/// What a new workspace's settings file says: every default, as a comment.
const NEW_SETTINGS: &str = "\
# Settings of Warpsmith for this directory; every key is optional.

[run]
# max_reverts = 5        # a kernel is left after so many experiments in a row that were not kept
# roofline = 0.9         # or at this share of what the machine can do
# speedup = 2.0          # or at this speedup over what you have today
# per_kernel = \"2h\"      # or after this time
# examination = \"20s\"    # what each keep is examined for; less by itself where the budget is short
# budget = \"8h\"          # the whole run; without it, until every kernel is done
# phase = \"decode\"       # without these four: prefill, f32 (on a GPU the model's own type), one sequence, 128 tokens
# dtype = \"bf16\"
# batch = 1
# seq = 512
# notify = 'notify-send \"$WARPSMITH_SUMMARY\"'   # run by sh when a run ends or is interrupted
# worker = \"ssh gpu7 warpsmith worker\"   # judges and times there instead of on this machine

[device]
# backend = \"cuda\"       # or \"cpu\"; without it, a GPU where there is one
# index = 0              # which GPU
";

/// A directory that holds `warpsmith.toml`.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// Its path, absolute and without links.
    root: PathBuf,
    /// What `warpsmith.toml` says.
    settings: Settings,
}

/// What [`Workspace::make`] had to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// The settings file, if it was written.
    pub settings: Option<PathBuf>,
    /// Other files that were written.
    pub files: Vec<PathBuf>,
    /// The folder of the new repository, if one was made.
    pub repository: Option<PathBuf>,
}

impl Made {
    /// What was made, a sentence each.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let settings = self.settings.iter().map(|path| format!("made a workspace: {}", path.display()));
        let files = (!self.files.is_empty()).then(|| {
            if let [only] = self.files.as_slice() {
                return format!("made {}", only.display());
            }
            let folders: BTreeSet<&Path> = self.files.iter().filter_map(|path| path.parent()).collect();
            let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("copied {} files into {}", self.files.len(), folders.join(", "))
        });
        let repository = self
            .repository
            .iter()
            .map(|path| format!("made a git repository in {}; it holds only Warpsmith's own files", path.display()));
        settings.chain(files).chain(repository).collect()
    }

    /// Whether nothing had to be done.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// A file's text, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The text.
    pub text: String,
    /// The file on disk; `None` for the copy inside the binary.
    pub path: Option<PathBuf>,
}

impl Workspace {
    /// The workspace of a model: the nearest directory at or above `model_dir` with a `warpsmith.toml`.
    ///
    /// # Errors
    /// The model directory cannot be read, or the settings are wrong.
    pub fn find(model_dir: &Path) -> Result<Option<Self>, WorkspaceError> {
        let start = canonical(model_dir)?;
        match start.ancestors().find(|folder| folder.join(SETTINGS_FILE).is_file()) {
            Some(root) => Self::at(root).map(Some),
            None => Ok(None),
        }
    }

    /// The workspace at `root`; without a settings file, every setting has its default.
    fn at(root: &Path) -> Result<Self, WorkspaceError> {
        let path = root.join(SETTINGS_FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            other => other.map_err(WorkspaceError::reading(&path))?,
        };
        let settings = Settings::parse(&text).map_err(|what| WorkspaceError::Settings { path, what })?;
        Ok(Self { root: root.to_owned(), settings })
    }

    /// Makes a workspace in the model directory, in a new repository if there is none at or above it. What is there
    /// already is left as it is; of everything else in the directory, nothing comes into a new repository.
    ///
    /// # Errors
    /// The directory cannot be written, or is in a repository that cannot be used.
    pub fn make(model_dir: &Path) -> Result<(Self, Made), WorkspaceError> {
        Self::make_with(model_dir, &[])
    }

    /// The same with a copy of the program page, and (with `copies`) of every starter kernel and operation.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn init(dir: &Path, copies: bool) -> Result<(Self, Made), WorkspaceError> {
        let mut names: Vec<&str> = embedded_names(PROGRAM_FILE).collect();
        if copies {
            // A copy of a header would be read by nobody.
            names.extend(embedded_names("kernels/").filter(|name| !name.starts_with(HEADERS)));
            names.extend(embedded_names("reference/"));
        }
        Self::make_with(dir, &names)
    }

    /// The workspace with copies of these files of the binary.
    fn make_with(dir: &Path, copies: &[&str]) -> Result<(Self, Made), WorkspaceError> {
        let root = canonical(dir)?;
        // Looked at first: what cannot be used is refused before anything is written.
        match open_repository(&root) {
            Ok(_) | Err(WorkspaceError::NoRepository { .. }) => {}
            Err(error) => return Err(error),
        }
        let mut made = Made::default();
        let path = root.join(SETTINGS_FILE);
        if !path.exists() {
            write_synced(&path, NEW_SETTINGS.as_bytes()).map_err(WorkspaceError::writing(&path))?;
            made.settings = Some(path);
        }
        let workspace = Self::at(&root)?;
        for name in copies {
            let path = root.join(name);
            // Also where it is a link that leads nowhere: it is the user's.
            if let (Err(_), Some(text)) = (path.symlink_metadata(), embedded(name)) {
                write_synced(&path, text.as_bytes()).map_err(WorkspaceError::writing(&path))?;
                made.files.push(path);
            }
        }
        made.repository = workspace.repository_with(copies)?;
        Ok((workspace, made))
    }

    /// Makes a repository at the root if the workspace is in none; returns where.
    ///
    /// # Errors
    /// As [`Self::make`].
    pub fn ensure_repository(&self) -> Result<Option<PathBuf>, WorkspaceError> {
        self.repository_with(&[])
    }

    /// The same; a new repository begins with the settings and these files.
    fn repository_with(&self, files: &[&str]) -> Result<Option<PathBuf>, WorkspaceError> {
        match open_repository(&self.root) {
            Ok(_) => Ok(None),
            Err(WorkspaceError::NoRepository { .. }) => {
                let all = [SETTINGS_FILE].iter().chain(files).copied();
                let there: Vec<&str> = all.filter(|file| self.root.join(file).is_file()).collect();
                repository::make(&self.root, &there)?;
                Ok(Some(self.root.clone()))
            }
            Err(error) => Err(error),
        }
    }

    /// Its path, absolute and without links.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What `warpsmith.toml` says.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A file of the workspace by its name relative to the root (`kernels/cpu/rmsnorm.c`): from disk, else the copy
    /// inside the binary.
    ///
    /// # Errors
    /// Neither has it, it cannot be read, or the name leads out of the workspace.
    pub fn file(&self, name: &str) -> Result<Text, WorkspaceError> {
        let path = self.root.join(relative(name)?);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Text { text, path: Some(path) }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match embedded(name) {
                Some(text) => Ok(Text { text: text.to_owned(), path: None }),
                None => Err(WorkspaceError::NoFile { name: name.to_owned(), root: self.root.clone() }),
            },
            Err(error) => Err(WorkspaceError::reading(&path)(error)),
        }
    }

    /// The first of these files that there is, with its name: on disk in this order, else in this order among the copies
    /// inside the binary. What stands in the workspace comes before every copy.
    ///
    /// # Errors
    /// As [`Self::file`], for the first one on disk.
    pub fn first_file(&self, names: &[String]) -> Result<Option<(String, Text)>, WorkspaceError> {
        let mut on_disk = None;
        for name in names {
            if on_disk.is_none() && self.root.join(relative(name)?).exists() {
                on_disk = Some(name);
            }
        }
        match on_disk.or_else(|| names.iter().find(|name| embedded(name).is_some())) {
            Some(name) => Ok(Some((name.clone(), self.file(name)?))),
            None => Ok(None),
        }
    }

    /// The names of the files directly in `folder` (`reference`), on disk and inside the binary; sorted, each once.
    ///
    /// # Errors
    /// The folder is there and cannot be read, or its name leads out of the workspace.
    pub fn names(&self, folder: &str) -> Result<Vec<String>, WorkspaceError> {
        let path = self.root.join(relative(folder)?);
        let prefix = format!("{folder}/");
        let mut names: Vec<String> =
            embedded_names(&prefix).filter(|name| !name[prefix.len()..].contains('/')).map(str::to_owned).collect();
        match std::fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(WorkspaceError::reading(&path)(error)),
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(WorkspaceError::reading(&path))?;
                    if let (true, Some(name)) = (entry.path().is_file(), entry.file_name().to_str()) {
                        names.push(format!("{prefix}{name}"));
                    }
                }
            }
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// `.warpsmith`, made if need be; it ignores itself, so that git never shows it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn private_folder(&self) -> Result<PathBuf, WorkspaceError> {
        let folder = self.root.join(PRIVATE_FOLDER);
        let ignore = folder.join(".gitignore");
        if !ignore.is_file() {
            write_synced(&ignore, b"*\n").map_err(WorkspaceError::writing(&ignore))?;
        }
        Ok(folder)
    }
}

/// The absolute path without links.
fn canonical(path: &Path) -> Result<PathBuf, WorkspaceError> {
    let failed = |source| WorkspaceError::NoDirectory { path: path.to_owned(), source };
    let full = path.canonicalize().map_err(failed)?;
    // Found out now, in the words for it, and not by the first file that cannot be opened in it.
    std::fs::read_dir(&full).map_err(failed)?;
    Ok(full)
}

/// A name as a path that stays below where it is joined.
pub(crate) fn relative(name: &str) -> Result<&Path, WorkspaceError> {
    let path = Path::new(name);
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain || name.is_empty() || name.contains(['\0', '\n']) {
        return Err(WorkspaceError::BadName(name.to_owned()));
    }
    Ok(path)
}
