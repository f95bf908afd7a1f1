//! What a run works on: the parts of a whole that was measured, or an operation by itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::Pass;
use crate::op::Dtype;
use crate::profile::{Compiled, Profile, RankedTarget};

use super::TargetState;

/// Where a run's targets come from, and what they are parts of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub enum Workload {
    /// A pass through a model, as it was measured at the start: targets have calls and shares of its time, the rest is rows of its own.
    Model(Box<Profile>),
    /// A PyTorch model as torch.compile runs it: targets are regions of its graphs.
    Compiled(Box<Compiled>),
    /// One operation at the shapes that were named, or several that are parts of nothing.
    Operation,
}

/// The fields of a run's state in which the journal has it.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    pass: Option<Pass>,
    before: Option<Profile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compiled: Option<Box<Compiled>>,
}

impl From<Stored> for Workload {
    fn from(stored: Stored) -> Self {
        match (stored.before, stored.compiled) {
            (Some(profile), _) => Self::Model(Box::new(profile)),
            (None, Some(compiled)) => Self::Compiled(compiled),
            (None, None) => Self::Operation,
        }
    }
}

impl From<Workload> for Stored {
    fn from(workload: Workload) -> Self {
        let (before, compiled) = match workload {
            Workload::Model(profile) => (Some(*profile), None),
            Workload::Compiled(compiled) => (None, Some(compiled)),
            Workload::Operation => (None, None),
        };
        Self { pass: before.as_ref().map(|profile| profile.pass), before, compiled }
    }
}

impl Workload {
    /// The pass through a model of known operations, as it was measured at the start.
    #[must_use]
    pub fn whole(&self) -> Option<&Profile> {
        match self {
            Self::Model(profile) => Some(profile),
            Self::Compiled(_) | Self::Operation => None,
        }
    }

    /// The PyTorch model that the targets are regions of.
    #[must_use]
    pub fn compiled(&self) -> Option<&Compiled> {
        match self {
            Self::Compiled(compiled) => Some(compiled),
            Self::Model(_) | Self::Operation => None,
        }
    }

    /// The time of the whole that the targets are parts of, as it was measured at the start, µs.
    #[must_use]
    pub fn whole_us(&self) -> Option<f64> {
        match self {
            Self::Model(profile) => Some(profile.whole_us),
            Self::Compiled(compiled) => Some(compiled.device_us()),
            Self::Operation => None,
        }
    }

    /// The same with what was `gained` installed, µs, by Amdahl's law.
    #[must_use]
    pub fn predict(&self, gained: &BTreeMap<String, f64>) -> Option<f64> {
        match self {
            Self::Model(profile) => Some(profile.predict(gained)),
            Self::Compiled(compiled) => Some(compiled.predict(gained)),
            Self::Operation => None,
        }
    }

    /// The pass in which kernels are compared in their places, where there is one.
    #[must_use]
    pub fn pass(&self) -> Option<Pass> {
        self.whole().map(|profile| profile.pass)
    }

    /// The targets in the order of what they can still do for the whole, given the speedup of each so far; none where a target is the whole.
    #[must_use]
    pub fn ranked(&self, speedups: &BTreeMap<String, f64>) -> Vec<RankedTarget> {
        match self {
            Self::Model(profile) => profile.ranked_targets(speedups),
            Self::Compiled(compiled) => compiled.ranked_targets(speedups),
            Self::Operation => Vec::new(),
        }
    }

    /// The type in which most of it is timed.
    pub(super) fn dtype(&self, targets: &[TargetState]) -> Option<Dtype> {
        match self {
            Self::Model(profile) => Some(profile.pass.dtype),
            Self::Compiled(_) | Self::Operation => Some(targets.first()?.shapes.first()?.dtype),
        }
    }

    /// What is timed, in words: the pass through the model, or the shapes.
    pub(super) fn label(&self, targets: &[TargetState]) -> String {
        match self {
            Self::Model(profile) => format!("{}, {}", profile.pass.label(), profile.pass.dtype),
            Self::Compiled(compiled) => {
                let sizes = |shape: &[i64]| shape.iter().map(i64::to_string).collect::<Vec<_>>().join("x");
                let inputs: Vec<String> = compiled.captured.inputs.iter().map(|input| sizes(&input.shape)).collect();
                format!("inputs {}, {}", inputs.join(" and "), compiled.captured.dtype)
            }
            Self::Operation => {
                let shapes = targets.iter().flat_map(|target| &target.shapes);
                shapes.map(|timed| format!("{} {}", timed.shape, timed.dtype)).collect::<Vec<_>>().join("; ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_journal_has_the_same_fields_whatever_a_run_works_on() {
        let alone = serde_json::to_value(Workload::Operation).unwrap();
        assert_eq!(alone, serde_json::json!({ "pass": null, "before": null }));
        assert_eq!(serde_json::from_value::<Workload>(alone).unwrap(), Workload::Operation);
        let compiled = Workload::Compiled(Box::new(crate::profile::compiled_sample()));
        assert_eq!(serde_json::from_value::<Workload>(serde_json::to_value(&compiled).unwrap()).unwrap(), compiled);
        let model = Workload::Model(Box::new(crate::profile::sample()));
        let stored = serde_json::to_value(&model).unwrap();
        assert_eq!(stored["pass"], stored["before"]["pass"]);
        assert_eq!(serde_json::from_value::<Workload>(stored).unwrap(), model);
    }
}
