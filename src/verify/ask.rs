//! A comparison of two models by way of the worker.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use super::{Change, Report, Speedup, choose};
use crate::forward::{CompareTask, Comparison, Depth, ModelTask, OutputCheck};
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
    /// Operations whose text after no judge has seen, such as one edited by hand: installed, and predicted to gain nothing.
    pub unjudged: &'a [String],
    /// Operations whose kernel after is there before as well, where it goes in: what the others do beside them is compared.
    pub throughout: &'a [String],
    /// The speedup of the whole that a run predicted, where there was one for this pass.
    pub predicted: Option<f64>,
    /// Seed of weights and tokens.
    pub seed: u64,
}

impl Question<'_> {
    /// Whether any kernel goes in.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        !installed(self).is_empty()
    }
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
    let changes = installed(question);
    let (graph, comparison) = compare(worker, question, &changes, Depth::Full, read, cancel).await?;
    let mut report = Report::new(&graph, &comparison, &changes, &worker.device().name);
    report.predicted = question.predicted.unwrap_or(report.predicted);
    Ok(report)
}

/// How much faster the whole pass is with what goes in, from fewer passes than [`verify`] takes and without a look at the outputs.
///
/// # Errors
/// [`VerifyError`].
pub async fn speedup(
    worker: &mut Client,
    question: &Question<'_>,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
) -> Result<Speedup, VerifyError> {
    let (_, comparison) = compare(worker, question, &installed(question), Depth::Times, read, cancel).await?;
    Ok(Speedup::of(&comparison.sessions))
}

/// Whether the model with the kernels says what it says without, and nothing about times; the seed draws its tokens.
///
/// # Errors
/// [`VerifyError`].
pub async fn outputs(
    worker: &mut Client,
    question: &Question<'_>,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
) -> Result<OutputCheck, VerifyError> {
    let (_, comparison) = compare(worker, question, &installed(question), Depth::Outputs, read, cancel).await?;
    Ok(comparison.output)
}

/// The kernels that go in: what beats the user's, and what nobody has judged.
pub(super) fn installed(question: &Question<'_>) -> Vec<Change> {
    let judged = question.speedups.iter().filter(|(op, _)| !question.unjudged.contains(op));
    let judged: Vec<Change> = judged.map(|(op, vs_user)| Change { op: op.clone(), vs_user: *vs_user }).collect();
    let unjudged = question.unjudged.iter().map(|op| Change { op: op.clone(), vs_user: 1.0 });
    choose(&judged).installed.into_iter().chain(unjudged).collect()
}

/// The model as it was against the model with these `changes`.
pub(super) async fn compare(
    worker: &mut Client,
    question: &Question<'_>,
    changes: &[Change],
    depth: Depth,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
) -> Result<(Graph, Comparison), VerifyError> {
    let graph = Graph::build(question.config, question.pass)?;
    let text = |change: &Change| Some((change.op.clone(), question.after.get(&change.op)?.clone()));
    let (throughout, after) =
        changes.iter().filter_map(text).partition(|(op, _): &(String, String)| question.throughout.contains(op));
    let mut ops = Vec::new();
    for target in graph.targets() {
        ops.push(OpSource::read(&target.op, read)?);
    }
    let model = ModelTask { config: question.config.clone(), pass: question.pass, ops, seed: question.seed };
    let task = CompareTask { model, before: question.before.clone(), throughout, after, depth };
    let comparison = worker.ask(Ask::Compare(Box::new(task)), &mut |_| {}, cancel).await?;
    Ok((graph, comparison))
}
