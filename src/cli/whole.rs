//! A PyTorch model at the end of a run: with what was kept, and without. Each kernel was judged by itself; what it gives in its place only
//! the whole can say.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;

use super::export::{Winners, package};
use super::options::PythonArgs;
use super::problem::told;
use super::verify_package::asked;
use crate::engine::RunState;
use crate::export::{self, Asked, Verified};
use crate::history::Archive;
use crate::op::Bar;
use crate::torch::Python;
use crate::workspace::{DeviceLock, PRIVATE_FOLDER, Workspace, cache_dir};

/// What was seen of the whole.
pub(super) struct Whole {
    verified: Verified,
    package: PathBuf,
    model: PathBuf,
}

/// Tries what a run kept in its model, as a package in the run's folder, in a fresh process; none where it kept nothing, or is on no PyTorch model.
///
/// # Errors
/// A package that cannot be written, a Python without PyTorch, a model that fails.
pub(super) async fn of_run(
    workspace: Arc<Workspace>,
    state: RunState,
    python: PythonArgs,
) -> anyhow::Result<Option<Whole>> {
    let (seen, heard) = tokio::sync::oneshot::channel();
    // Nobody waits for this thread where the user has enough.
    std::thread::spawn(move || drop(seen.send(tried(&workspace, &state, &python))));
    heard.await?
}

fn tried(workspace: &Workspace, state: &RunState, python: &PythonArgs) -> anyhow::Result<Option<Whole>> {
    let Some(max_autotune) = state.workload.compiled().map(|compiled| compiled.bar() == Bar::Fastest) else {
        return Ok(None);
    };
    let archive = Archive::open(workspace)?;
    // A name that Python can import.
    let folder = workspace.root().join(PRIVATE_FOLDER).join(&state.run).join("package");
    let output = folder.join(format!("run_{}", state.run));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let winners = Winners { all: false, arch: &[], python };
    let Some(plans) = package(&archive, state, &output, &winners)? else { return Ok(None) };
    let model = workspace.root().join(&state.model);
    let model = model.canonicalize().with_context(|| model.display().to_string())?;
    super::say("verifying the whole model, before and after");
    // While another run is timing, both would be spoiled.
    let _lock = DeviceLock::take(&cache_dir(), &state.device_key, "the whole model", |_| true)?;
    let python = Python::chosen(python.python.as_deref());
    let question = Asked { max_autotune, ..asked(&plans, &output, &model) };
    let verified = export::verify(&python, &question, &mut |_| {}).map_err(told)?;
    Ok(Some(Whole { verified, package: output, model }))
}

impl Whole {
    /// Whether results are what they were.
    pub(super) fn is_right(&self) -> bool {
        self.verified.wrong().is_empty()
    }

    /// What was seen, and what to do where it is not what was hoped for.
    pub(super) fn text(&self) -> String {
        let mut text = self.verified.text();
        let gain = self.verified.replayed_gain().or_else(|| self.verified.gain());
        let culprit = format!(
            "warpsmith verify {} --model {} --diagnose    names the kernel",
            self.package.display(),
            self.model.display()
        );
        if !self.is_right() {
            text += &format!("\nOUTPUTS DIFFER with what was kept: {culprit}");
        } else if gain.is_some_and(|(_, _, most)| most < 1.0) {
            text += &format!(
                "\nthe model is NOT faster with what was kept, though each kernel is by itself: {culprit} that costs more than it gains"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn whole(compiled_us: f64, ours_us: f64, wrong: Option<&str>) -> Whole {
        let verified = serde_json::json!({
            "reference": "double precision", "kernels": 1, "unusable": {}, "torch": "2.11", "threads": 2, "notes": [],
            "outputs": [{"way": "patched and compiled", "output": 0, "error": 1e-7, "limit": 1e-6, "wrong": wrong}],
            "nan": [], "called": {"patched and compiled": {"a": 3}, "patched": {"a": 1}}, "second_shape": null,
            // Without CUDA graphs the host's time is in both.
            "us": {
                "compiled": [500.0], "patched and compiled": [400.0],
                "compiled, replayed": [compiled_us], "patched and compiled, replayed": [ours_us],
            },
        });
        let verified = serde_json::from_value(verified).unwrap();
        Whole { verified, package: "package/run_1".into(), model: "model".into() }
    }

    #[test]
    fn what_is_wrong_or_slower_is_said_with_the_command_that_names_the_kernel() {
        let faster = whole(100.0, 90.0, None);
        assert!(faster.is_right() && !faster.text().contains("--diagnose"), "{}", faster.text());
        let slower = whole(100.0, 102.0, None);
        assert!(slower.is_right() && slower.text().contains("NOT faster"), "{}", slower.text());
        let wrong = whole(100.0, 90.0, Some("off by 1"));
        assert!(!wrong.is_right());
        for part in ["OUTPUTS DIFFER", "warpsmith verify package/run_1 --model model --diagnose"] {
            assert!(wrong.text().contains(part), "{}", wrong.text());
        }
    }
}
