//! Where the user's Python has Triton, asked of that Python without importing anything of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// Says where Python and Triton are. `find_spec` runs nothing of a package at the top.
const ASK: &str = r#"
import importlib.metadata, importlib.util, json, os, sys
spec = importlib.util.find_spec("triton")
found = spec is not None and spec.origin is not None
try:
    version = importlib.metadata.version("triton") if found else None
except importlib.metadata.PackageNotFoundError:
    version = "unknown"
print(json.dumps(dict(
    executable=os.path.realpath(sys.executable), paths=[p for p in sys.path if p],
    prefixes=[sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
    triton=os.path.dirname(spec.origin) if found else None, version=version, python=sys.version.split()[0])))
"#;

/// What every program on Linux needs to start, or takes for granted.
const OF_THE_SYSTEM: [&str; 8] = [
    "/usr/lib",
    "/usr/lib64",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/dev/urandom",
    "/usr/share/zoneinfo",
    "/proc/self",
];

/// A Python with Triton.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The interpreter itself, links followed.
    pub(super) executable: PathBuf,
    /// Where it looks for modules.
    pub(super) paths: Vec<String>,
    /// Files and folders that it reads.
    pub(super) read: Vec<PathBuf>,
    /// Triton's version, as its package has it.
    pub version: String,
    /// Python's version.
    pub python: String,
    /// Triton's folder.
    pub folder: PathBuf,
}

#[derive(Deserialize)]
struct Said {
    executable: PathBuf,
    paths: Vec<String>,
    prefixes: Vec<PathBuf>,
    triton: Option<PathBuf>,
    version: Option<String>,
    python: String,
}

impl Found {
    /// Asks `python`.
    ///
    /// # Errors
    /// A sentence: there is no such Python, or it has no Triton.
    pub fn of(python: &Path) -> Result<Self, String> {
        let name = python.display();
        let said = Command::new(python)
            .args(["-c", ASK])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| format!("{name} cannot be started: {error}"))?;
        let said: Said = serde_json::from_slice(&said.stdout).map_err(|_| format!("{name} does not answer"))?;
        let Some(folder) = said.triton else { return Err(format!("{name} has no triton (pip install triton)")) };
        // Where the package stands its description does too, which it reads to find its backends.
        let beside = folder.parent().map(Path::to_owned);
        let system = OF_THE_SYSTEM.into_iter().map(PathBuf::from);
        let prefix = |path: PathBuf| match path == Path::new("/usr") {
            // Of the system's own Python, its modules: the folders of libraries are read anyway.
            true => PathBuf::from("/usr/lib"),
            false => path,
        };
        let prefixes = said.prefixes.into_iter().filter(|path| path.parent().is_some()).map(prefix);
        let mut read: Vec<PathBuf> = prefixes.chain(beside).chain([said.executable.clone()]).chain(system).collect();
        read.sort();
        read.dedup();
        let version = said.version.unwrap_or_else(|| "unknown".to_owned());
        Ok(Self { executable: said.executable, paths: said.paths, read, version, python: said.python, folder })
    }
}
