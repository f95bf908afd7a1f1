//! Problem files: PyTorch with `Model` and `get_inputs`.

use std::path::Path;

use anyhow::{Context, anyhow};

use super::options::PythonArgs;
use crate::torch::{Problem, Python, Service, TorchError};

/// Whether a path names a problem file rather than a model, a kernel or an operation.
pub(super) fn is_problem(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py") && path.is_file()
}

/// The problem in a file, with the values that it draws looked at.
pub(super) fn read(path: &Path, python: &PythonArgs) -> anyhow::Result<Problem> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let service = Service::new(Python::chosen(python.python.as_deref()));
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let described = service.describe(&file, &text, true).map_err(told)?;
    Problem::new(&file, &text, described).map_err(told)
}

/// What PyTorch cannot do, and what to do about it.
pub(super) fn told(error: TorchError) -> anyhow::Error {
    anyhow!("{error}; {}", error.hint())
}
