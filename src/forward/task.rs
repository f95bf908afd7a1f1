//! What a worker is asked about a whole model, by value.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::contest::compare;
use super::{Comparison, Effort, Forward, ForwardError, Recipe, Rounds, Sessions, rounds};
use crate::backend::cpu::{Compiler, Limits};
use crate::device::DeviceCard;
use crate::kernel::KernelFile;
use crate::model::{Graph, ModelConfig, Pass};
use crate::op::{OpSource, Operation};

/// How long each process of a swap measures: it happens once a target.
const SWAP: Duration = Duration::from_secs(1);

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
    /// Kernel files by operation.
    pub kernels: BTreeMap<String, String>,
}

/// A model with two sets of kernels: answers a [`Comparison`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompareTask {
    /// The model.
    pub model: ModelTask,
    /// Kernel files by operation, as the user has them.
    pub before: BTreeMap<String, String>,
    /// Kernel files by operation, as the run left them.
    pub after: BTreeMap<String, String>,
    /// How much is measured.
    pub depth: Depth,
}

/// How much of a comparison is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Depth {
    /// Whole passes, few of them: what one exchanged kernel does for the model.
    Swap,
    /// Parts and whole passes, as a final comparison wants them.
    Full,
}

impl ModelTask {
    fn graph(&self) -> Result<Graph, ForwardError> {
        Ok(Graph::build(&self.config, self.pass)?)
    }

    fn operations(&self) -> Result<BTreeMap<String, Operation>, ForwardError> {
        let read = |source: &OpSource| {
            let failed = |error| ForwardError::Operation { site: source.name.clone(), source: Box::new(error) };
            source.operation().map(|op| (op.name.clone(), op)).map_err(failed)
        };
        self.ops.iter().map(read).collect()
    }

    fn prepare(
        &self,
        graph: &Graph,
        sets: &[&BTreeMap<String, String>],
        compiler: &Compiler,
        card: &DeviceCard,
    ) -> Result<Forward, ForwardError> {
        let ops = self.operations()?;
        let limits = Limits::default();
        let sets = sets.iter().map(|texts| parse(texts)).collect::<Result<Vec<_>, _>>()?;
        let recipe = Recipe { graph, ops: &ops, facts: &card.facts, seed: self.seed, limits: &limits };
        Forward::prepare(&recipe, &sets.iter().collect::<Vec<_>>(), compiler)
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
pub fn measure(
    compiler: &Compiler,
    card: &DeviceCard,
    task: &MeasureTask,
    cancelled: &AtomicBool,
) -> Result<Rounds, ForwardError> {
    let graph = task.model.graph()?;
    let mut forward = task.model.prepare(&graph, &[&task.kernels], compiler, card)?;
    rounds(&mut forward, &Effort::default(), cancelled)
}

/// Runs the model with both sets of kernels on the same weights and tokens.
///
/// # Errors
/// As [`measure`].
pub fn contest(
    compiler: &Compiler,
    card: &DeviceCard,
    task: &CompareTask,
    cancelled: &AtomicBool,
) -> Result<Comparison, ForwardError> {
    let graph = task.model.graph()?;
    let mut forward = task.model.prepare(&graph, &[&task.before, &task.after], compiler, card)?;
    let (sessions, effort) = match task.depth {
        Depth::Full => (Sessions::default(), Effort::default()),
        Depth::Swap => (
            Sessions { count: 3, budget: SWAP, ..Sessions::default() },
            Effort { budget: Duration::ZERO, least: 1, most: 1 },
        ),
    };
    compare(&mut forward, &graph, &sessions, &effort, task.model.seed, cancelled)
}
