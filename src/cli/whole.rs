//! A PyTorch model at the end of a run: with what was kept, and without. Each kernel was judged by itself; what it gives in its place only
//! the whole can say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::export::{Winners, package};
use super::options::PythonArgs;
use super::problem::told;
use super::settled::{Settled, folder_of};
use super::verify_package::asked;
use crate::engine::RunState;
use crate::export::{self, Asked, Diagnosis, LEAST_SESSIONS, Plans, Verified};
use crate::history::Archive;
use crate::op::Bar;
use crate::torch::{Python, TorchError};
use crate::verify::Culprit;
use crate::workspace::{DeviceLock, WHOLE_FILE, Workspace, cache_dir};

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

/// Whether the whole is slower in every session.
fn is_slower(verified: &Verified) -> bool {
    verified.whole_gain().is_some_and(|(_, _, most)| most < 1.0)
}

/// Leaves out what the model does not agree with, until it agrees with what is left, and all with it where no kernel alone is to blame. Where the
/// model is slower with what is left, kernels that alone make it slower are left out too.
fn settle(model: &mut impl Trying) -> anyhow::Result<Settled> {
    let (mut refused, mut slower): (Vec<Culprit>, Vec<Culprit>) = (Vec::new(), Vec::new());
    while let Some(plans) = model.package(&[&refused[..], &slower[..]].concat())? {
        let seen = model.verify(&plans);
        if let Ok(verified) = &seen
            && verified.wrong().is_empty()
        {
            if is_slower(verified) {
                let diagnosis = model.diagnose(&plans, &seen).map_err(told)?;
                let (wrong, slow) = (diagnosis.wrong(), diagnosis.slow());
                if !wrong.is_empty() || !slow.is_empty() {
                    refused.extend(wrong);
                    slower.extend(slow);
                    continue;
                }
            }
            return Ok(Settled { verified: seen.ok(), refused, slower });
        }
        // Its error is of the model without any kernel, or of PyTorch.
        let mut wrong = model.diagnose(&plans, &seen).map_err(told)?.wrong();
        if wrong.is_empty() {
            // A process that ended may have been ended by others.
            let verified = seen.or_else(|_| model.verify(&plans)).map_err(told)?;
            let Some(fault) = verified.wrong().into_iter().next() else {
                return Ok(Settled { verified: Some(verified), refused, slower });
            };
            let why = format!("no kernel alone is to blame, but all together: {fault}");
            wrong = plans.kernels.iter().map(|plan| Culprit { op: plan.name.clone(), why: why.clone() }).collect();
        }
        refused.extend(wrong);
    }
    Ok(Settled { verified: None, refused, slower })
}

/// Tries what a run kept in its model, as a package in the run's folder, in fresh processes; none where it kept nothing, or is on no PyTorch
/// model. What the model does not agree with, or is slower with, is written down for `export`, which leaves it out.
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
        let right = all.as_ref().is_ok_and(|verified| verified.wrong().is_empty());
        super::warn(match right {
            true => "the model is slower with what was kept: each kernel is tried alone",
            false => "the model does not agree with what was kept: each kernel is tried alone",
        });
        let asked = self.asked(plans);
        // What is slow is told from more sessions than what is wrong.
        let sessions = if right { LEAST_SESSIONS } else { asked.sessions };
        export::diagnose(&self.python(), &Asked { sessions, ..asked }, plans, all, &mut |_| {})
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
    let path = folder_of(workspace, &state.run).join(WHOLE_FILE);
    std::fs::write(&path, serde_json::to_string_pretty(&settled)?).with_context(|| path.display().to_string())?;
    Ok(Some(Whole { settled, package: output, model }))
}

impl Whole {
    /// Whether the model agrees with everything that was kept.
    pub(super) fn is_right(&self) -> bool {
        self.settled.refused.is_empty()
    }

    /// How much faster the model is with what is exported; as fast as it was where nothing is.
    pub(super) fn measured(&self) -> Option<f64> {
        match &self.settled.verified {
            Some(verified) => verified.whole_gain().map(|(ratio, ..)| ratio),
            None => Some(1.0),
        }
    }

    /// What was seen, and what to do where it is not what was hoped for.
    pub(super) fn text(&self) -> String {
        let Settled { verified, refused, slower } = &self.settled;
        let mut lines: Vec<String> = verified.iter().map(Verified::text).collect();
        if verified.as_ref().is_some_and(is_slower) {
            lines.push(format!(
                "the model is NOT faster with what was kept, and no kernel alone is clearly to blame: warpsmith verify {} --model {} --diagnose    \
                 shows what each does",
                self.package.display(),
                self.model.display()
            ));
        }
        lines.extend(slower.iter().map(|Culprit { op, why }| format!("{op} is left out of what is exported: {why}")));
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
        slow: Vec<&'static str>,
        /// Slower with all of them together, and with none alone.
        crowded: bool,
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
            let ours_us = if has(&self.slow) || self.crowded { 110.0 } else { 90.0 };
            Ok(verified(100.0, ours_us, wrong.then_some("off by 1")))
        }

        fn diagnose(&mut self, _: &Plans, all: &Result<Verified, TorchError>) -> Result<Diagnosis, TorchError> {
            let suspect = |name: &&str| {
                let wrong = self.wrong.contains(name).then_some("off by 1");
                let output = verified(1.0, 1.0, wrong).outputs.remove(0);
                let after_us = vec![if self.slow.contains(name) { 1.1 } else { 0.9 }; 3];
                let ran = Trial::Ran { before_us: vec![1.0; 3], after_us, called: 1, output };
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
            slow: Vec::new(),
            crowded: false,
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
    fn a_kernel_with_which_the_model_is_slower_is_left_out_and_no_other() {
        let of = |mut model: Scripted| {
            let settled = settle(&mut model).unwrap();
            let names = |found: &[Culprit]| found.iter().map(|it| it.op.clone()).collect::<Vec<_>>().join(" ");
            let faster = settled.verified.as_ref().map(|verified| !is_slower(verified));
            (names(&settled.refused), names(&settled.slower), model.kernels.join(" "), faster)
        };
        let said = |refused: &str, slower: &str, left: &str, faster| {
            (refused.to_owned(), slower.to_owned(), left.to_owned(), faster)
        };
        let slow = |names: &[&'static str]| Scripted { slow: names.to_vec(), ..scripted(&[], &[], false) };
        assert_eq!(of(slow(&["b"])), said("", "b", "a c", Some(true)));
        assert_eq!(of(slow(&["a", "b", "c"])), said("", "a b c", "", None));
        // What is wrong goes first; what is slow is looked for among what is right.
        assert_eq!(of(Scripted { wrong: vec!["a"], ..slow(&["b"]) }), said("a", "b", "c", Some(true)));
        // Slower together, and none alone is to blame: that is said, and nothing is left out.
        assert_eq!(of(Scripted { crowded: true, ..slow(&[]) }), said("", "", "a b c", Some(false)));
    }

    #[test]
    fn what_is_wrong_or_slower_is_said() {
        let whole = |verified, refused| Whole {
            settled: Settled { verified, refused, slower: Vec::new() },
            package: "package/run_1".into(),
            model: "model".into(),
        };
        let faster = whole(Some(verified(100.0, 90.0, None)), Vec::new());
        assert!((faster.measured().unwrap() - 100.0 / 90.0).abs() < 1e-9);
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
        assert!(!wrong.is_right() && wrong.measured() == Some(1.0), "nothing is exported");
        for part in ["OUTPUTS DIFFER", "mm_1 is left out of what is exported", "off by 1"] {
            assert!(wrong.text().contains(part), "{}", wrong.text());
        }
        let mut page = report::Whole::default();
        assert!(
            wrong.settled.tell(&mut page)[0].contains("does not agree with it: with it alone")
                && page.measured.is_none()
        );
    }
}
