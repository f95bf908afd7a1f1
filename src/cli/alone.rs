//! A kernel file on its own, outside of any model: the workspace it belongs to, and the state that it starts from.

use std::path::Path;

use anyhow::{Context, bail};

use super::bench::Wanted;
use crate::engine::{Options, RunState, TargetState};
use crate::kernel::is_unwritten;
use crate::op::TargetShape;
use crate::worker::Client;
use crate::workspace::{PRIVATE_FOLDER, Workspace};

/// The workspace of a kernel file, and what to say about it. None is made: nobody knows how much around the file is meant.
pub(super) fn workspace_of(kernel: &Path) -> anyhow::Result<(Workspace, Vec<String>)> {
    let full = kernel.canonicalize().with_context(|| kernel.display().to_string())?;
    let folder = full.parent().unwrap_or(Path::new("/"));
    let workspace = Workspace::find(folder)?.with_context(|| {
        format!(
            "{} belongs to no workspace, where its history could be kept; `warpsmith init` makes one",
            kernel.display()
        )
    })?;
    if full.starts_with(workspace.root().join(PRIVATE_FOLDER)) {
        bail!(
            "{} is a run's own copy; name the kernel file itself, or `warpsmith apply` the run first",
            kernel.display()
        );
    }
    let made = workspace.ensure_repository()?;
    let said = made.map(|path| format!("made a git repository in {}", path.display()));
    Ok((workspace, said.into_iter().collect()))
}

/// A path below the workspace, or in full where it is elsewhere.
pub(super) fn path_in(workspace: &Workspace, path: &Path) -> anyhow::Result<String> {
    let full = path.canonicalize().with_context(|| path.display().to_string())?;
    let path = full.strip_prefix(workspace.root()).unwrap_or(&full);
    // A model that is its own workspace.
    Ok(if path.as_os_str().is_empty() { ".".into() } else { path.to_string_lossy().into_owned() })
}

/// The state that the kernel starts from; `options.model` names its file.
pub(super) fn begun(options: Options, wanted: &Wanted, shapes: Vec<TargetShape>, worker: &Client) -> RunState {
    let target = target_of(wanted, options.model.clone(), shapes);
    crate::engine::alone(options, target, worker.device(), worker.judge())
}

/// A kernel, by its file in the workspace, as a target of its own.
pub(super) fn target_of(wanted: &Wanted, file: String, shapes: Vec<TargetShape>) -> TargetState {
    let mut target = TargetState::new(&wanted.source.name, file, wanted.text.clone(), shapes);
    target.empty = !wanted.source.python.is_empty() && is_unwritten(&wanted.text);
    target
}

/// What is timed, in the words of a first line: `rmsnorm on NAME, timed at rows=512 cols=4096 f32`.
pub(super) fn words(op: &str, shapes: &[TargetShape], worker: &Client) -> String {
    let at: Vec<String> = shapes.iter().map(|target| format!("{} {}", target.shape, target.dtype)).collect();
    format!("{op} on {}, timed at {}", worker.device().name, at.join("; "))
}
