//! A PyTorch model at the end of a run: with what was kept, and without. Each kernel was judged by itself; what it gives in its place only
//! the whole can say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::export::{Winners, package};
use super::options::PythonArgs;
use super::problem::told;
use super::settled::{SEEN, Settled, folder_of};
use super::verify_package::asked;
use crate::engine::RunState;
use crate::export::{self, Asked, Diagnosis, Plans, Verified};
use crate::history::Archive;
use crate::op::Bar;
use crate::torch::{Python, TorchError};
use crate::verify::Culprit;
use crate::workspace::{DeviceLock, Workspace, cache_dir};

/// What was seen of the whole.
pub(super) struct Whole {
    settled: Settled,
    package: PathBuf,
    model: PathBuf,
}

/// A model, and packages of a run's kernels to try in it.
trait Trying {
    /// The package of all but these kernels; none where none is left.
    fn package(&mut self, refused: &[Culprit]) -> anyhow::Result<Option<Plans>>;
    fn verify(&mut self, plans: &Plans) -> Result<Verified, TorchError>;
    fn diagnose(&mut self, plans: &Plans, all: &Result<Verified, TorchError>) -> Result<Diagnosis, TorchError>;
}

/// Leaves out what the model does not agree with, until it agrees with what is left. Where no kernel alone is to blame all are left out.
fn settle(model: &mut impl Trying) -> anyhow::Result<Settled> {
    let mut refused: Vec<Culprit> = Vec::new();
    while let Some(plans) = model.package(&refused)? {
        let seen = model.verify(&plans);
        if seen.as_ref().is_ok_and(|verified| verified.wrong().is_empty()) {
            return Ok(Settled { verified: seen.ok(), refused });
        }
        // Its error is of the model without any kernel, or of PyTorch.
        let mut wrong = model.diagnose(&plans, &seen).map_err(told)?.wrong();
        if wrong.is_empty() {
            // A process that ended may have been ended by others.
            let verified = seen.or_else(|_| model.verify(&plans)).map_err(told)?;
            let Some(fault) = verified.wrong().into_iter().next() else {
                return Ok(Settled { verified: Some(verified), refused });
            };
            let why = format!("no kernel alone is to blame, but all together: {fault}");
            wrong = plans.kernels.iter().map(|plan| Culprit { op: plan.name.clone(), why: why.clone() }).collect();
        }
        refused.extend(wrong);
    }
    Ok(Settled { verified: None, refused })
}

/// Tries what a run kept in its model, as a package in the run's folder, in fresh processes; none where it kept nothing, or is on no PyTorch
/// model. What the model does not agree with is written down for `export`, which leaves it out.
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

/// A run's kernels and its model.
struct Tried<'a> {
    archive: &'a Archive,
    state: &'a RunState,
    output: &'a Path,
    model: &'a Path,
    python: &'a PythonArgs,
    max_autotune: bool,
}

impl Tried<'_> {
    fn asked<'a>(&'a self, plans: &'a Plans) -> Asked<'a> {
        Asked { max_autotune: self.max_autotune, ..asked(plans, self.output, self.model) }
    }

    fn python(&self) -> Python {
        Python::chosen(self.python.python.as_deref())
    }
}

impl Trying for Tried<'_> {
    fn package(&mut self, refused: &[Culprit]) -> anyhow::Result<Option<Plans>> {
        if self.output.exists() {
            std::fs::remove_dir_all(self.output).with_context(|| self.output.display().to_string())?;
        }
        let winners = Winners { all: false, refused, arch: &[], python: self.python };
        package(self.archive, self.state, self.output, &winners)
    }

    fn verify(&mut self, plans: &Plans) -> Result<Verified, TorchError> {
        super::say("verifying the whole model, before and after");
        export::verify(&self.python(), &self.asked(plans), &mut |_| {})
    }

    fn diagnose(&mut self, plans: &Plans, all: &Result<Verified, TorchError>) -> Result<Diagnosis, TorchError> {
        super::warn("the model does not agree with what was kept: each kernel is tried alone");
        export::diagnose(&self.python(), &self.asked(plans), plans, all, &mut |_| {})
    }
}

fn tried(workspace: &Workspace, state: &RunState, python: &PythonArgs) -> anyhow::Result<Option<Whole>> {
    let Some(max_autotune) = state.workload.compiled().map(|compiled| compiled.bar() == Bar::Fastest) else {
        return Ok(None);
    };
    let archive = Archive::open(workspace)?;
    // A name that Python can import.
    let output = folder_of(workspace, &state.run).join("package").join(format!("run_{}", state.run));
    let model = workspace.root().join(&state.model);
    let model = model.canonicalize().with_context(|| model.display().to_string())?;
    let mut asking = Tried { archive: &archive, state, output: &output, model: &model, python, max_autotune };
    if asking.package(&[])?.is_none() {
        return Ok(None);
    }
    // While another run is timing, both would be spoiled.
    let _lock = DeviceLock::take(&cache_dir(), &state.device_key, "the whole model", |_| true)?;
    let settled = settle(&mut asking)?;
    let path = folder_of(workspace, &state.run).join(SEEN);
    std::fs::write(&path, serde_json::to_string_pretty(&settled)?).with_context(|| path.display().to_string())?;
    Ok(Some(Whole { settled, package: output, model }))
}

impl Whole {
    /// Whether the model agrees with everything that was kept.
    pub(super) fn is_right(&self) -> bool {
        self.settled.refused.is_empty()
    }

    /// What was seen, and what to do where it is not what was hoped for.
    pub(super) fn text(&self) -> String {
        let Settled { verified, refused } = &self.settled;
        let mut lines: Vec<String> = verified.iter().map(Verified::text).collect();
        let gain = verified.as_ref().and_then(|verified| verified.replayed_gain().or_else(|| verified.gain()));
        if gain.is_some_and(|(_, _, most)| most < 1.0) {
            lines.push(format!(
                "the model is NOT faster with what was kept, though each kernel is by itself: warpsmith verify {} --model {} --diagnose    names \
                 the kernel that costs more than it gains",
                self.package.display(),
                self.model.display()
            ));
        }
        lines.extend(
            refused
                .iter()
                .map(|Culprit { op, why }| format!("OUTPUTS DIFFER, {op} is left out of what is exported: {why}")),
        );
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::export::{Suspect, Trial};
    use crate::report;

    fn verified(compiled_us: f64, ours_us: f64, wrong: Option<&str>) -> Verified {
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
        serde_json::from_value(verified).unwrap()
    }

    /// A model with kernels of which some are wrong alone, some only together, and some end the process.
    struct Scripted {
        kernels: Vec<&'static str>,
        wrong: Vec<&'static str>,
        crash: Vec<&'static str>,
        quarrel: bool,
        /// So many of the first processes are ended by others.
        killed: usize,
        asked: usize,
    }

    impl Trying for Scripted {
        fn package(&mut self, refused: &[Culprit]) -> anyhow::Result<Option<Plans>> {
            self.kernels.retain(|name| !refused.iter().any(|culprit| culprit.op == *name));
            if self.kernels.is_empty() {
                return Ok(None);
            }
            let file = serde_json::json!({"path": "", "sha256": ""});
            let kernel = |name: &&str| {
                serde_json::json!({
                    "name": name, "key": "", "family": "", "kind": "fusible", "inputs": [], "outputs": [], "scratch": [], "image": file,
                    "source": file, "speedup": 1.5, "against": null,
                })
            };
            let kernels: Vec<_> = self.kernels.iter().map(kernel).collect();
            let plans = serde_json::json!({
                "name": "p", "version": "1", "torch": "2.11", "device": "d", "cpu_flags": [], "threads": file, "kernels": kernels,
            });
            Ok(Some(serde_json::from_value(plans)?))
        }

        fn verify(&mut self, _: &Plans) -> Result<Verified, TorchError> {
            self.asked += 1;
            let has = |names: &[&str]| self.kernels.iter().any(|name| names.contains(name));
            if has(&self.crash) || self.asked <= self.killed {
                return Err(TorchError::Code("the process ended".into()));
            }
            let wrong = has(&self.wrong) || (self.quarrel && self.kernels.len() > 1);
            Ok(verified(100.0, 90.0, wrong.then_some("off by 1")))
        }

        fn diagnose(&mut self, _: &Plans, all: &Result<Verified, TorchError>) -> Result<Diagnosis, TorchError> {
            let suspect = |name: &&str| {
                let wrong = self.wrong.contains(name).then_some("off by 1");
                let output = verified(1.0, 1.0, wrong).outputs.remove(0);
                let ran = Trial::Ran { before_us: vec![1.0], after_us: vec![1.0], called: 1, output };
                let alone = if self.crash.contains(name) { Trial::Failed { why: "a crash".into() } } else { ran };
                Suspect { op: (*name).to_owned(), vs_user: 1.5, alone }
            };
            let fault = all.as_ref().map_or(Some("the process ended".to_owned()), |it| it.wrong().into_iter().next());
            Ok(Diagnosis::new(fault, self.kernels.iter().map(suspect).collect()))
        }
    }

    fn scripted(wrong: &[&'static str], crash: &[&'static str], quarrel: bool) -> Scripted {
        Scripted {
            kernels: vec!["a", "b", "c"],
            wrong: wrong.to_vec(),
            crash: crash.to_vec(),
            quarrel,
            killed: 0,
            asked: 0,
        }
    }

    #[test]
    fn a_process_that_others_ended_is_no_kernels_fault() {
        let once = settle(&mut Scripted { killed: 1, ..scripted(&[], &[], false) }).unwrap();
        assert!(once.refused.is_empty() && once.verified.is_some());
        assert!(settle(&mut Scripted { killed: 2, ..scripted(&[], &[], false) }).is_err());
    }

    #[test]
    fn what_the_model_does_not_agree_with_is_left_out_and_the_rest_is_tried_again() {
        let of = |mut model: Scripted| {
            let settled = settle(&mut model).unwrap();
            let refused: Vec<String> = settled.refused.iter().map(|culprit| culprit.op.clone()).collect();
            (refused.join(" "), model.kernels.join(" "), settled.verified.is_some(), model.asked)
        };
        let said = |refused: &str, left: &str, verified, asked| (refused.to_owned(), left.to_owned(), verified, asked);
        assert_eq!(of(scripted(&[], &[], false)), said("", "a b c", true, 1));
        assert_eq!(of(scripted(&["b"], &[], false)), said("b", "a c", true, 2));
        assert_eq!(of(scripted(&["b"], &["c"], false)), said("c b", "a", true, 2));
        assert_eq!(of(scripted(&["a", "b", "c"], &[], false)), said("a b c", "", false, 1));
        // Right alone and wrong together: nothing that nobody can explain is exported.
        assert_eq!(of(scripted(&[], &[], true)), said("a b c", "", false, 1));
    }

    #[test]
    fn what_is_wrong_or_slower_is_said() {
        let whole = |verified, refused| Whole {
            settled: Settled { verified, refused },
            package: "package/run_1".into(),
            model: "model".into(),
        };
        let faster = whole(Some(verified(100.0, 90.0, None)), Vec::new());
        assert!(faster.is_right() && !faster.text().contains("--diagnose"), "{}", faster.text());
        let slower = whole(Some(verified(100.0, 102.0, None)), Vec::new());
        assert!(slower.is_right(), "{}", slower.text());
        for part in ["NOT faster", "warpsmith verify package/run_1 --model model --diagnose"] {
            assert!(slower.text().contains(part), "{}", slower.text());
        }
        let mut page = report::Whole::default();
        assert_eq!(faster.settled.tell(&mut page).len(), 1);
        assert!(page.outputs.unwrap().agree && (page.measured.unwrap().ratio - 100.0 / 90.0).abs() < 1e-9);
        let wrong = whole(None, vec![Culprit { op: "mm_1".into(), why: "with it alone, off by 1".into() }]);
        assert!(!wrong.is_right());
        for part in ["OUTPUTS DIFFER", "mm_1 is left out of what is exported", "off by 1"] {
            assert!(wrong.text().contains(part), "{}", wrong.text());
        }
        let mut page = report::Whole::default();
        assert!(wrong.settled.tell(&mut page)[0].contains("does not agree with mm_1") && page.measured.is_none());
    }
}
