//! A package against the model that it was made for, in a fresh process of the user's Python.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Diagnosis;
use crate::stats::median;
use crate::torch::model::{LOAD, ask};
use crate::torch::{Python, TorchError};

const VERIFY: &str = include_str!("verify.py");
const DIAGNOSE: &str = include_str!("diagnose.py");

/// What is asked.
#[derive(Debug, Clone, Serialize)]
pub struct Asked<'a> {
    /// The package's folder, in full.
    pub package: &'a Path,
    /// The model's directory, in full.
    pub folder: &'a Path,
    /// `package.module:function`, where a function gives the model.
    pub load: Option<&'a str>,
    /// `cpu`.
    pub device: &'a str,
    /// PyTorch's name of the type that weights and inputs are made; their own where none is given.
    pub dtype: Option<&'a str>,
    /// Seed of weights and inputs.
    pub seed: u64,
    /// Inputs on which results are compared.
    pub draws: u32,
    /// Times that every way is compiled and timed anew, in turns.
    pub sessions: u32,
    /// Seconds that each way is timed in a session.
    pub seconds: f64,
    /// Threads that PyTorch computes with.
    pub threads: usize,
    /// Whether `torch.compile(mode="max-autotune")` is timed as well.
    pub max_autotune: bool,
    /// Kernels to be tried one by one instead of all together.
    pub alone: Option<Vec<String>>,
}

/// A result of the model, one way of running it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// The way.
    pub way: String,
    /// Which of its results.
    pub output: usize,
    /// rms of the difference over rms of the reference.
    pub error: Option<f64>,
    /// What is allowed.
    pub limit: Option<f64>,
    /// What is wrong with it.
    pub wrong: Option<String>,
}

/// Where a NaN goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nan {
    /// The way of running the model.
    pub way: String,
    /// Where one was put.
    #[serde(rename = "where")]
    pub place: String,
    /// What is wrong.
    pub wrong: Option<String>,
}

/// Another shape, and the first again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Second {
    /// What was tried.
    pub tried: String,
    /// Whether the first shape still ran on the kernels afterwards; none where the other could not be run.
    pub still: Option<bool>,
}

/// What came of it. Times are µs of a pass, one for each session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// What results were compared with.
    pub reference: String,
    /// Every result, each way.
    pub outputs: Vec<Output>,
    /// Where NaN goes, each way.
    pub nan: Vec<Nan>,
    /// Kernels of the package.
    pub kernels: usize,
    /// Those that cannot be used here, and why.
    pub unusable: BTreeMap<String, String>,
    /// Calls of each kernel while results were compared, each way.
    pub called: BTreeMap<String, BTreeMap<String, u64>>,
    /// Another shape.
    pub second_shape: Option<Second>,
    /// µs of a pass by way.
    pub us: BTreeMap<String, Vec<f64>>,
    /// PyTorch's version.
    pub torch: String,
    /// Its threads.
    pub threads: usize,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Each kernel alone, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnosis: Option<Diagnosis>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Refused { error: String },
    Given(T),
}

/// Asks a fresh process of `python`.
///
/// # Errors
/// No PyTorch, or what is wrong with the model or the package.
pub fn verify(python: &Python, asked: &Asked<'_>, tell: &mut dyn FnMut(&str)) -> Result<Verified, TorchError> {
    asked_of(python, asked, tell)
}

/// What a process of `python` says to what is asked.
pub(super) fn asked_of<T: DeserializeOwned>(
    python: &Python,
    asked: &Asked<'_>,
    tell: &mut dyn FnMut(&str),
) -> Result<T, TorchError> {
    let request = serde_json::to_value(asked).map_err(|error| TorchError::Talk(error.to_string()))?;
    let answer = ask(python, &format!("{LOAD}\n\n{DIAGNOSE}\n\n{VERIFY}"), request, tell)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Given(given)) => Ok(given),
        Ok(Answer::Refused { error }) => Err(TorchError::Code(error)),
        Err(error) => Err(TorchError::Talk(error.to_string())),
    }
}

/// The order in which ways are shown.
const WAYS: [&str; 5] = ["eager", "compiled", "max-autotune", "patched", "patched and compiled"];

/// What stands behind a way that was replayed as a CUDA graph.
const REPLAYED: &str = ", replayed";

impl Verified {
    /// What is wrong, a sentence each: results of the package's ways, and kernels that were never called.
    #[must_use]
    pub fn wrong(&self) -> Vec<String> {
        let ours = |way: &str| way.starts_with("patched");
        let outputs = self
            .outputs
            .iter()
            .filter(|it| ours(&it.way))
            .filter_map(|it| Some(format!("{}, result {}: {}", it.way, it.output, it.wrong.as_ref()?)));
        let nan = self
            .nan
            .iter()
            .filter(|it| ours(&it.way))
            .filter_map(|it| Some(format!("{}: {}", it.way, it.wrong.as_ref()?)));
        outputs.chain(nan).collect()
    }

    /// The kernels that a way never called.
    #[must_use]
    pub fn never_called(&self, way: &str) -> Vec<&str> {
        let calls = self.called.get(way).into_iter().flatten();
        calls.filter(|(_, count)| **count == 0).map(|(name, _)| name.as_str()).collect()
    }

    /// Compiled over patched and compiled, for each session; the middle, the least and the most.
    #[must_use]
    pub fn gain(&self) -> Option<(f64, f64, f64)> {
        self.ratio("compiled", "patched and compiled")
    }

    /// How much faster the whole is, in the same figures: as CUDA graphs where both can be, else as torch.compile runs it.
    #[must_use]
    pub fn whole_gain(&self) -> Option<(f64, f64, f64)> {
        self.replayed_gain().or_else(|| self.gain())
    }

    /// A pass compiled as it was, and with the package, µs, in the middle session.
    #[must_use]
    pub fn passes_us(&self) -> Option<(f64, f64)> {
        Some((median(self.us.get("compiled")?)?, median(self.us.get("patched and compiled")?)?))
    }

    /// The same of both as CUDA graphs, where they can be.
    #[must_use]
    pub fn replayed_passes_us(&self) -> Option<(f64, f64)> {
        let of = |way: &str| median(self.us.get(&format!("{way}{REPLAYED}"))?);
        Some((of("compiled")?, of("patched and compiled")?))
    }

    /// By how much results differ with the package, under torch.compile.
    #[must_use]
    pub fn in_words(&self) -> String {
        let results = self.results("patched and compiled");
        format!("results under torch.compile, beside {}: {results}", self.reference)
    }

    /// How much faster both are as CUDA graphs, where they can be.
    #[must_use]
    pub fn replayed_gain(&self) -> Option<(f64, f64, f64)> {
        self.ratio(&format!("compiled{REPLAYED}"), &format!("patched and compiled{REPLAYED}"))
    }

    fn ratio(&self, before: &str, after: &str) -> Option<(f64, f64, f64)> {
        let (before, after) = (self.us.get(before)?, self.us.get(after)?);
        let mut ratios: Vec<f64> = before.iter().zip(after).map(|(before, after)| before / after).collect();
        ratios.sort_by(f64::total_cmp);
        Some((median(&ratios)?, *ratios.first()?, *ratios.last()?))
    }

    /// In lines.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "PyTorch {} ({} threads); results are compared with {}\n\n",
            self.torch, self.threads, self.reference
        );
        text += &format!("{:<22} {:>10} {:>9}   {:<24} NaN\n", "", "ms a pass", "", "results");
        let middle = |times: &[f64]| {
            let mut sorted = times.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let of = |way: &str| self.us.get(way).map(|times| middle(times));
        let (compiled, graph) = (of("compiled"), of(&format!("compiled{REPLAYED}")));
        for way in WAYS {
            let Some(times) = self.us.get(way) else { continue };
            let beside = |base: Option<f64>, us: f64| base.map_or(String::new(), |base| format!("{:.2}x", base / us));
            let us = middle(times);
            let (ms, results, nan) = (us / 1e3, self.results(way), self.nan_words(way));
            text += &format!("{way:<22} {ms:>10.3} {:>9}   {results:<24} {nan}\n", beside(compiled, us));
            if let Some(times) = self.us.get(&format!("{way}{REPLAYED}")) {
                let us = middle(times);
                text += &format!("{:<22} {:>10.3} {:>9}\n", "  as a CUDA graph", us / 1e3, beside(graph, us));
            }
        }
        for way in ["patched", "patched and compiled"] {
            let never = self.never_called(way);
            let called = self.kernels - self.unusable.len().min(self.kernels) - never.len().min(self.kernels);
            text += &format!("\n{way}: {called} of {} kernels were called", self.kernels);
            if !never.is_empty() {
                text += &format!("; never: {}", never.join(", "));
            }
        }
        if let Some((ratio, low, high)) = self.gain() {
            let sessions = self.us.get("compiled").map_or(0, Vec::len);
            text += &format!(
                "\n\nunder torch.compile the model is {ratio:.3}x as fast with the package ({low:.3} to {high:.3} in {sessions} sessions)"
            );
        }
        if let Some((ratio, low, high)) = self.replayed_gain() {
            text += &format!("\nboth as CUDA graphs it is {ratio:.3}x as fast ({low:.3} to {high:.3})");
        }
        if let Some(Second { tried, still }) = &self.second_shape {
            text += &match still {
                Some(true) => format!("\nafter another shape ({tried}) the first still runs on the kernels"),
                Some(false) => format!("\nafter another shape ({tried}) the first runs on the kernels no more"),
                None => format!("\nno other shape could be tried: {tried}"),
            };
        }
        for (name, why) in &self.unusable {
            text += &format!("\nnot used: {name}: {why}");
        }
        for one in self.notes.iter().chain(&self.wrong()) {
            text += &format!("\n{one}");
        }
        if let Some(diagnosis) = &self.diagnosis {
            text += &format!("\n\n{}", diagnosis.text());
        }
        text
    }

    fn results(&self, way: &str) -> String {
        let of: Vec<&Output> = self.outputs.iter().filter(|it| it.way == way).collect();
        if of.is_empty() {
            return "not compared".into();
        }
        if of.iter().any(|it| it.error.is_none()) {
            return "WRONG".into();
        }
        let worst = of.iter().filter_map(|it| it.error).fold(0.0, f64::max);
        let word = if of.iter().any(|it| it.wrong.is_some()) { "WRONG" } else { "the same" };
        format!("{word} (off by {worst:.1e})")
    }

    fn nan_words(&self, way: &str) -> &'static str {
        match self.nan.iter().find(|it| it.way == way) {
            None => "",
            Some(Nan { wrong: Some(_), .. }) => "ELSEWHERE",
            Some(Nan { place, .. }) if place.is_empty() => "not looked at",
            Some(_) => "alike",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn verified() -> Verified {
        serde_json::from_value(serde_json::json!({
            "reference": "double precision", "kernels": 2, "unusable": {}, "torch": "2.11", "threads": 2, "notes": [],
            "outputs": [
                {"way": "compiled", "output": 0, "error": 1e-7, "limit": 1e-6, "wrong": "off"},
                {"way": "patched and compiled", "output": 0, "error": 1e-7, "limit": 1e-6, "wrong": null},
            ],
            "nan": [{"way": "patched and compiled", "where": "an input", "wrong": null}],
            "called": {"patched and compiled": {"a": 3, "b": 0}, "patched": {"a": 1, "b": 1}},
            "second_shape": {"tried": "half of the first dimension", "still": true},
            "us": {"compiled": [100.0, 120.0, 110.0], "patched and compiled": [80.0, 100.0, 100.0]},
        }))
        .unwrap()
    }

    #[test]
    fn only_the_packages_own_ways_can_be_its_fault() {
        assert!(verified().wrong().is_empty());
        let mut it = verified();
        it.outputs[1].wrong = Some("off by 1".into());
        it.nan[0].wrong = Some("a NaN is lost".into());
        assert_eq!(it.wrong().len(), 2);
        assert!(it.text().contains("WRONG") && it.text().contains("ELSEWHERE"));
    }

    #[test]
    fn the_gain_is_the_middle_of_sessions_and_a_kernel_that_never_ran_is_named() {
        let it = verified();
        assert_eq!(it.gain(), Some((1.2, 1.1, 1.25)));
        assert_eq!(it.never_called("patched and compiled"), ["b"]);
        let text = it.text();
        assert!(text.contains("1 of 2 kernels were called; never: b"), "{text}");
        assert!(text.contains("1.200x as fast") && text.contains("first still runs on the kernels"), "{text}");
    }
}
