//! A profile by way of the worker.

use std::collections::BTreeMap;

use tokio_util::sync::CancellationToken;

use super::{CallCost, Profile, aggregate};
use crate::forward::{MeasureTask, ModelTask, Rounds};
use crate::model::{Graph, ModelConfig, Pass};
use crate::op::{OpError, OpSource};
use crate::worker::protocol::Ask;
use crate::worker::{Client, WorkerError};

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The model directory.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
    /// An operation's files.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// Profiles a pass of the model with `kernels` (texts by operation); `read` gives the text of a workspace's file.
///
/// # Errors
/// [`ProfileError`].
pub async fn measure(
    worker: &mut Client,
    config: &ModelConfig,
    pass: Pass,
    kernels: &BTreeMap<String, String>,
    read: &dyn Fn(&str) -> Option<String>,
    seed: u64,
    cancel: &CancellationToken,
) -> Result<Profile, ProfileError> {
    let graph = Graph::build(config, pass)?;
    let model = ModelTask { config: config.clone(), pass, ops: operations(&graph, read)?, seed };
    let ops = model.ops.iter().map(|source| Ok((source.name.clone(), source.operation()?)));
    let ops: BTreeMap<_, _> = ops.collect::<Result<_, OpError>>()?;
    let task = MeasureTask { model, kernels: kernels.clone() };
    let rounds: Rounds = worker.ask(Ask::Measure(Box::new(task)), &mut |_| {}, cancel).await?;
    let profile = aggregate(&graph, &rounds, worker.device(), &|name, shape| {
        let op = ops.get(name).ok_or_else(|| OpError::Unknown { name: name.to_owned() })?;
        CallCost::of(op, shape, pass.dtype)
    });
    Ok(profile?)
}

/// The files of every operation that the graph calls.
///
/// # Errors
/// An operation without files.
fn operations(graph: &Graph, read: &dyn Fn(&str) -> Option<String>) -> Result<Vec<OpSource>, OpError> {
    graph.targets().iter().map(|target| OpSource::read(&target.op, read)).collect()
}
