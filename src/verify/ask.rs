//! A comparison of two models by way of the worker.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use super::{Change, Report, Speedup, choose};
use crate::forward::{CompareTask, Comparison, Depth, ModelTask};
use crate::model::{Graph, ModelConfig, ModelError, Pass};
use crate::op::{OpError, OpSource};
use crate::worker::protocol::Ask;
use crate::worker::{Client, WorkerError};

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The model directory.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An operation's files.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// What to compare.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// The pass.
    pub pass: Pass,
    /// Kernel files by operation, as the user has them.
    pub before: &'a BTreeMap<String, String>,
    /// Kernel files by operation, as the run left them.
    pub after: &'a BTreeMap<String, String>,
    /// What the judge says each operation gained (`vs_user`).
    pub speedups: &'a BTreeMap<String, f64>,
    /// The speedup of the whole that a run predicted, where there was one for this pass.
    pub predicted: Option<f64>,
    /// Seed of weights and tokens.
    pub seed: u64,
}

/// Runs the model before and after with the same weights and tokens.
///
/// A kernel that does not beat what the user has is not installed: its text before is used on both sides.
///
/// # Errors
/// [`VerifyError`].
pub async fn verify(
    worker: &mut Client,
    question: &Question<'_>,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
) -> Result<Report, VerifyError> {
    let asked = ask(worker, question, Depth::Full, read, cancel).await?;
    let mut report = Report::new(&asked.graph, &asked.comparison, &asked.installed, &worker.device().name);
    report.predicted = question.predicted.unwrap_or(report.predicted);
    Ok(report)
}

/// How much faster the whole pass is, from fewer passes than [`verify`] takes and without a look at the outputs.
///
/// # Errors
/// [`VerifyError`].
pub async fn speedup(
    worker: &mut Client,
    question: &Question<'_>,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
) -> Result<f64, VerifyError> {
    let asked = ask(worker, question, Depth::Times, read, cancel).await?;
    Ok(Speedup::of(&asked.comparison.sessions).median)
}

/// A comparison with what is needed to read it.
struct Asked {
    graph: Graph,
    comparison: Comparison,
    installed: Vec<Change>,
}

async fn ask(
    worker: &mut Client,
    question: &Question<'_>,
    depth: Depth,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
) -> Result<Asked, VerifyError> {
    let graph = Graph::build(question.config, question.pass)?;
    let changes: Vec<Change> =
        question.speedups.iter().map(|(op, vs_user)| Change { op: op.clone(), vs_user: *vs_user }).collect();
    let installed = choose(&changes).installed;
    let text = |change: &Change| Some((change.op.clone(), question.after.get(&change.op)?.clone()));
    let after: BTreeMap<String, String> = installed.iter().filter_map(text).collect();
    let mut ops = Vec::new();
    for target in graph.targets() {
        ops.push(OpSource::read(&target.op, read)?);
    }
    let model = ModelTask { config: question.config.clone(), pass: question.pass, ops, seed: question.seed };
    let task = CompareTask { model, before: question.before.clone(), after, depth };
    let comparison = worker.ask(Ask::Compare(Box::new(task)), &mut |_| {}, cancel).await?;
    Ok(Asked { graph, comparison, installed })
}
