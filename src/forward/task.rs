//! What a worker is asked about a whole model, by value.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::contest::compare;
use super::{Comparison, Effort, Forward, ForwardError, KernelSet, Recipe, Rounds, Sessions, rounds};
use crate::backend::Toolchain;
use crate::kernel::KernelFile;
use crate::model::{Graph, ModelConfig, Pass};
use crate::op::{OpSource, Operation};

/// How long each pair of processes measures, and how often at least: it happens once a target.
const TIMES_SESSION: Duration = Duration::from_secs(1);
const TIMES_LEAST: usize = 2;

/// A model, a pass through it, and the operations it calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelTask {
    /// The model.
    pub config: ModelConfig,
    /// The pass.
    pub pass: Pass,
    /// The operations' files.
    pub ops: Vec<OpSource>,
    /// Seed of weights and tokens.
    pub seed: u64,
}

/// Where a model spends its time: answers [`Rounds`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasureTask {
    /// The model.
    pub model: ModelTask,
    /// Kernel files by operation, as the user has them; where the device has a library for an operation, that is measured.
    pub kernels: BTreeMap<String, String>,
}

/// A model with two sets of kernels: answers a [`Comparison`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareTask {
    /// The model.
    pub model: ModelTask,
    /// Kernel files by operation, as the user has them; where the device has a library for an operation, that comes before.
    pub before: BTreeMap<String, String>,
    /// Kernel files by operation that take the place of either, before and after.
    #[serde(default)]
    pub throughout: BTreeMap<String, String>,
    /// The same, after alone.
    pub after: BTreeMap<String, String>,
    /// How much is measured.
    pub depth: Depth,
}

/// How much of a comparison is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// What both say, and no times to speak of.
    Outputs,
    /// Whole passes, few of them: what the kernels kept so far do for the model.
    Times,
    /// Parts and whole passes, as a final comparison wants them.
    Full,
}

impl ModelTask {
    fn graph(&self) -> Result<Graph, ForwardError> {
        Ok(Graph::build(&self.config, self.pass)?)
    }

    fn recipe<'a>(&'a self, graph: &'a Graph, ops: &'a BTreeMap<String, Operation>) -> Recipe<'a> {
        let weights = self.config.weights.as_deref().map(|dir| (dir, &self.config.kind));
        Recipe { graph, ops, weights, seed: self.seed }
    }

    fn operations(&self) -> Result<BTreeMap<String, Operation>, ForwardError> {
        let read = |source: &OpSource| {
            let failed = |error| ForwardError::Operation { site: source.name.clone(), source: Box::new(error) };
            source.operation().map(|op| (op.name.clone(), op)).map_err(failed)
        };
        self.ops.iter().map(read).collect()
    }
}

fn parse(texts: &BTreeMap<String, String>) -> Result<BTreeMap<String, KernelFile>, ForwardError> {
    let read = |(op, text): (&String, &String)| {
        let failed = |error| ForwardError::Kernel { site: op.clone(), source: Box::new(error) };
        KernelFile::parse(text).map(|kernel| (op.clone(), kernel)).map_err(failed)
    };
    texts.iter().map(read).collect()
}

/// Times whole passes and their parts.
///
/// # Errors
/// A model that cannot be prepared or run; [`ForwardError::Cancelled`].
pub fn measure<B: Toolchain>(backend: &B, task: &MeasureTask, cancelled: &AtomicBool) -> Result<Rounds, ForwardError> {
    let (graph, ops) = (task.model.graph()?, task.model.operations()?);
    let kernels = parse(&task.kernels)?;
    let recipe = task.model.recipe(&graph, &ops);
    let mut forward = Forward::prepare(backend, &recipe, &[KernelSet::today(&kernels)], cancelled)?;
    let rounds = rounds(&mut forward, &Effort::default(), cancelled)?;
    Ok(Rounds { notes: forward.notes().to_vec(), ..rounds })
}

/// Runs the model with both sets of kernels on the same weights and tokens.
///
/// # Errors
/// As [`measure`].
pub fn contest<B: Toolchain>(
    backend: &B,
    task: &CompareTask,
    cancelled: &AtomicBool,
) -> Result<Comparison, ForwardError> {
    let (graph, ops) = (task.model.graph()?, task.model.operations()?);
    let (today, throughout, mut after) = (parse(&task.before)?, parse(&task.throughout)?, parse(&task.after)?);
    for (op, kernel) in &throughout {
        after.entry(op.clone()).or_insert_with(|| kernel.clone());
    }
    let recipe = task.model.recipe(&graph, &ops);
    let sets = [&throughout, &after].map(|instead| KernelSet { today: &today, instead: Some(instead) });
    let mut forward = Forward::prepare(backend, &recipe, &sets, cancelled)?;
    let (sessions, parts) = match task.depth {
        Depth::Full => (Sessions::default(), Some(Effort::default())),
        Depth::Times => (Sessions { least: TIMES_LEAST, budget: TIMES_SESSION, ..Sessions::default() }, None),
        Depth::Outputs => (Sessions { count: 0, ..Sessions::default() }, None),
    };
    let mut comparison = compare(&mut forward, &graph, &sessions, parts.as_ref(), task.model.seed, cancelled)?;
    comparison.before.notes = forward.notes().to_vec();
    Ok(comparison)
}
