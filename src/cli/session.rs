//! What most subcommands need first: a runtime, an end by Ctrl-C, a target.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::CaseLimits;
use crate::op::{Dtype, OpError, OpSource, Operation, TargetShape};

/// Runs a future on a runtime of its own.
pub(super) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?.block_on(future)
}

/// The same for what reads standard input: a reading that is under way is not waited for.
pub(super) fn block_on_beside_input<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

/// Whether [`interruptible`] was interrupted.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Whether the user has asked the program to end.
pub(super) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// After this time the user is told that Ctrl-C was heard.
const PATIENCE: Duration = Duration::from_secs(2);

/// A token that Ctrl-C cancels; a second Ctrl-C ends the program at once.
pub(super) fn interruptible() -> tokio_util::sync::CancellationToken {
    let token = tokio_util::sync::CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
        for press in 0..2 {
            let terminated = async {
                match terminate.as_mut() {
                    Some(signal) => signal.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated => {}
            }
            if press == 0 {
                INTERRUPTED.store(true, Ordering::Relaxed);
                cancelled.cancel();
                tokio::spawn(say_that_it_ends());
            }
        }
        std::process::exit(130);
    });
    token
}

/// Who has pressed Ctrl-C wants to know that it was heard, where what is under way takes a while.
async fn say_that_it_ends() {
    tokio::time::sleep(PATIENCE).await;
    super::warn("ending after what is under way; Ctrl-C again ends at once");
}

/// The primary shape of an operation as the only target, small enough for the device.
pub(super) fn primary_target(
    source: &OpSource,
    dtype: Dtype,
    limits: &CaseLimits,
) -> Result<Vec<TargetShape>, OpError> {
    let op: Operation = source.operation()?;
    let (shape, _) = op.shrink_to(&op.primary_shape()?, limits.macs, limits.elements)?;
    Ok(vec![TargetShape { shape, dtype, calls: 1 }])
}
