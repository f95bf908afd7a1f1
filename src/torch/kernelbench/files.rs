//! The benchmark's files: results of samples, and times of the problems themselves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Times of calls in ms, as the benchmark writes them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TimeStats {
    /// The mean.
    pub mean: f64,
    /// The middle one, where it is known: the mean of a few calls says what disturbed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// The standard deviation.
    #[serde(default)]
    pub std: f64,
    /// The shortest.
    #[serde(default)]
    pub min: f64,
    /// The longest.
    #[serde(default)]
    pub max: f64,
    /// Of so many.
    #[serde(default)]
    pub num_trials: u64,
    /// The GPU's name.
    #[serde(default)]
    pub hardware: String,
    /// PyTorch's name of it.
    #[serde(default)]
    pub device: String,
}

impl TimeStats {
    /// Of times in ms.
    pub(super) fn of(times: &[f64], hardware: &str) -> Self {
        let short = |value: f64| format!("{value:.3e}").parse().unwrap_or(value);
        let (mean, std) = crate::stats::mean_and_sd(times).unwrap_or_default();
        Self {
            mean: short(mean),
            median: crate::stats::median(times).map(short),
            std: short(std),
            min: short(times.iter().copied().fold(f64::INFINITY, f64::min)),
            max: short(times.iter().copied().fold(0.0, f64::max)),
            num_trials: times.len() as u64,
            hardware: hardware.to_owned(),
            device: if hardware == "cpu" { "cpu".to_owned() } else { "cuda:0".to_owned() },
        }
    }

    /// The time that stands for all, ms.
    #[must_use]
    pub fn typical(&self) -> f64 {
        self.median.unwrap_or(self.mean)
    }
}

/// A sample by the benchmark's own protocol: an entry of `eval_results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProtocolResult {
    /// Which sample of the problem.
    #[serde(default)]
    pub sample_id: u32,
    /// Whether it loads.
    pub compiled: bool,
    /// Whether all trials pass.
    pub correctness: bool,
    /// Errors and differences, in the protocol's words.
    #[serde(default)]
    pub metadata: serde_json::Map<String, Value>,
    /// The mean in ms; -1 where it was not timed.
    pub runtime: f64,
    /// What the mean is of; empty where it was not timed.
    #[serde(default)]
    pub runtime_stats: Value,
}

impl ProtocolResult {
    /// One that never got an answer.
    pub(super) fn failed(why: String) -> Self {
        let metadata = [("other_error".to_owned(), Value::String(why))].into_iter().collect();
        let runtime_stats = Value::Object(serde_json::Map::new());
        Self { sample_id: 0, compiled: false, correctness: false, metadata, runtime: -1.0, runtime_stats }
    }

    /// What the protocol has against it.
    #[must_use]
    pub fn error(&self) -> String {
        let known = ["compilation_error", "runtime_error", "correctness_issue", "other_error"];
        let found = known.iter().find_map(|name| self.metadata.get(*name)?.as_str());
        let trials = self.metadata.get("correctness_trials").and_then(Value::as_str);
        match (found, trials) {
            (Some(found), Some(trials)) => super::link::plain(&format!("{found}, trials {trials}")),
            (Some(found), None) => super::link::plain(found),
            (None, _) => "no reason is given".to_owned(),
        }
    }
}

/// A sample by the strict judge: an entry of `strict_results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StrictResult {
    /// Which sample of the problem.
    pub sample_id: u32,
    /// Whether every call gave what is right.
    pub correctness: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Why this and the benchmark's own protocol differ, where they do.
    pub differs: Option<String>,
    /// The typical time in ms; -1 where it is not right.
    pub runtime: f64,
    /// What that is of.
    pub runtime_stats: Option<TimeStats>,
    /// Calls that were compared in full.
    pub calls: u32,
    /// Whether a call is shorter than what the clock can tell from nothing: the time is then that limit, and the ratios too small.
    #[serde(default)]
    pub unresolved: bool,
}

/// Results by problem: `eval_results.json` and `strict_results.json`.
pub type Results<T> = BTreeMap<u32, Vec<T>>;

/// Times of a way to run the problems themselves, by `level1` and file name. What could not be timed is null.
pub type Baselines = BTreeMap<String, BTreeMap<String, Option<TimeStats>>>;

/// Ways to run a problem as it is, by their files' names in the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Mode {
    /// Plain PyTorch.
    Eager,
    /// `torch.compile`.
    Compile,
    /// `torch.compile(mode="max-autotune")`.
    MaxAutotune,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Eager, Self::Compile, Self::MaxAutotune];

    /// In tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Compile => "torch.compile",
            Self::MaxAutotune => "max-autotune",
        }
    }

    /// As the stub knows it.
    pub(super) const fn way(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Compile => "default",
            Self::MaxAutotune => "max-autotune",
        }
    }

    /// The benchmark's name of its file of times.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Eager => "baseline_time_torch.json",
            Self::Compile => "baseline_time_torch_compile_inductor_default.json",
            Self::MaxAutotune => "baseline_time_torch_compile_inductor_max-autotune.json",
        }
    }
}

/// A sample's file: `level_1_problem_23_sample_0_kernel.py`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SampleName {
    /// The level.
    pub level: u32,
    /// The problem's number in it.
    pub problem: u32,
    /// The sample's.
    pub sample: u32,
}

impl SampleName {
    /// Reads a file name; `None` where it is another file.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("level_")?.strip_suffix("_kernel.py")?;
        let (level, rest) = rest.split_once("_problem_")?;
        let (problem, sample) = rest.split_once("_sample_")?;
        Some(Self { level: level.parse().ok()?, problem: problem.parse().ok()?, sample: sample.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_benchmarks_own_files_are_read_and_written_in_its_form() {
        let text = r#"{"level1": {"19_ReLU.py": {"mean": 4.27, "std": 0.00845, "min": 4.26, "max": 4.35, "num_trials": 100,
            "hardware": "NVIDIA H100 80GB HBM3", "device": "cuda:0"}, "20_LeakyReLU.py": null}}"#;
        let read: Baselines = serde_json::from_str(text).unwrap();
        let relu = read["level1"]["19_ReLU.py"].as_ref().unwrap();
        assert!((relu.typical() - 4.27).abs() < 1e-12 && read["level1"]["20_LeakyReLU.py"].is_none());
        let written: Value = serde_json::to_value(&read).unwrap();
        assert_eq!(written, serde_json::from_str::<Value>(text).unwrap());
        let text = r#"{"7": [{"sample_id": 0, "compiled": true, "correctness": false, "metadata": {"hardware": "x",
            "correctness_issue": "Output mismatch", "correctness_trials": "(2 / 5)"}, "runtime": -1.0, "runtime_stats": {}}]}"#;
        let read: Results<ProtocolResult> = serde_json::from_str(text).unwrap();
        assert_eq!(read[&7][0].error(), "Output mismatch, trials (2 / 5)");
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_samples_name_says_what_it_is_of_and_other_files_are_none() {
        let name = SampleName::parse("level_1_problem_23_sample_4_kernel.py").unwrap();
        assert_eq!((name.level, name.problem, name.sample), (1, 23, 4));
        for other in [
            "level_1_problem_2_kernel.py",
            "eval_results.json",
            "level_x_problem_1_sample_0_kernel.py",
            "level_1_problem_1_sample_0_kernel.cu",
        ] {
            assert_eq!(SampleName::parse(other), None);
        }
    }
}
