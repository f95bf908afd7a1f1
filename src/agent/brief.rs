//! What an agent is told about the task.

use serde::{Deserialize, Serialize};

use crate::device::DeviceCard;
use crate::evaluation::{Timing, Verdict};
use crate::kernel::{KernelFile, Language};
use crate::op::{OpSource, TargetShape};

/// What an agent is told about the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Brief {
    /// The operation's name.
    pub op: String,
    /// The operation's files: what must be computed.
    pub source: OpSource,
    /// The backend's name.
    pub backend: String,
    /// The kernel file below the workspace.
    pub file: String,
    /// The languages that the kernel may be in; where none is named, the incumbent's own.
    #[serde(default)]
    pub languages: Vec<Language>,
    /// The kernel file's text to improve: the branch's tip.
    pub incumbent: String,
    /// Whether there is no kernel yet: the incumbent is a file with an empty body, and what there is to beat is PyTorch.
    #[serde(default)]
    pub unwritten: bool,
    /// The kernel file the run started from.
    pub starter: String,
    /// The shapes that count, with their calls.
    pub shapes: Vec<TargetShape>,
    /// The incumbent's times, where they are known.
    pub timing: Option<Timing>,
    /// What the compiler said of the incumbent: registers, spills, occupancy; empty where it said nothing.
    pub resources: String,
    /// What the user has today over the incumbent.
    pub vs_user: f64,
    /// The library that `vs_user` is measured against; `None` is the starter.
    pub against: Option<String>,
    /// The operation's share of the model's time (0 to 1); `None` for a kernel outside of any model.
    pub share: Option<f64>,
    /// The machine.
    pub device: DeviceCard,
    /// What a gain must exceed to be kept (0.01 for 1 %).
    pub margin: f64,
    /// What was tried on this target before, oldest first.
    pub history: Vec<Attempt>,
    /// The run's seed for this target: the same brief and state give the same proposal.
    pub seed: u64,
    /// The experiment's number in the run, from 1.
    pub experiment: u64,
}

/// An earlier experiment on the same target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number in the run.
    pub experiment: u64,
    /// The technique's identifier.
    pub technique: String,
    /// What was tried, in a few words.
    pub description: String,
    /// Why it should have been faster; empty where nobody said.
    #[serde(default)]
    pub hypothesis: String,
    /// The speedup that whoever proposed it expected, where it named one.
    #[serde(default)]
    pub predicted: Option<f64>,
    /// What the judge said.
    pub verdict: Verdict,
}

impl Brief {
    /// What the incumbent is written in; where it is no kernel file, what is usual for the device.
    #[must_use]
    pub fn language(&self) -> Language {
        let usual = || Language::of_backend(&self.backend).first().copied().unwrap_or(Language::C);
        KernelFile::parse(&self.incumbent).map_or_else(|_| usual(), |kernel| kernel.language)
    }
}
