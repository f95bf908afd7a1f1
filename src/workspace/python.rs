//! Which Python is the user's.

use std::path::{Path, PathBuf};

/// What names it in the environment.
pub const PYTHON: &str = "WARPSMITH_PYTHON";

/// The one that is named, else that of `$WARPSMITH_PYTHON`, else the active environment's `python3`.
#[must_use]
pub fn python(named: Option<&Path>) -> PathBuf {
    let of_environment = || std::env::var_os(PYTHON).filter(|text| !text.is_empty()).map(PathBuf::from);
    named.map(Path::to_owned).or_else(of_environment).unwrap_or_else(|| "python3".into())
}
