//! What most subcommands need first: files, operations, a worker.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::backend::CaseLimits;
use crate::device::DeviceCard;
use crate::kernel::{KernelFile, kernel_file, kernel_file_of_device};
use crate::op::{Dtype, OpError, OpSource, Operation, TargetShape};
use crate::workspace::{Workspace, embedded};

/// Reads files of the workspace, or the copies inside this program.
pub(super) fn reader(workspace: Option<&Workspace>) -> impl Fn(&str) -> Option<String> {
    move |path: &str| match workspace {
        Some(workspace) => workspace.file(path).ok().map(|file| file.text),
        None => embedded(path).map(str::to_owned),
    }
}

/// The names of all operations here, in alphabetical order.
pub(super) fn operation_names(workspace: Option<&Workspace>) -> anyhow::Result<Vec<String>> {
    let files = match workspace {
        Some(workspace) => workspace.names("reference")?,
        None => crate::workspace::embedded_names("reference/").map(str::to_owned).collect(),
    };
    let mut names: Vec<String> = files
        .iter()
        .filter_map(|file| Path::new(file).file_name()?.to_str()?.strip_suffix(".toml").map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

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

/// Finds an operation's kernel for a device, as a file's name and its text: the device's own, else the one for all. The device's own
/// may serve fewer types: then the one for all is taken where it serves `dtype`.
pub(super) fn kernel(
    workspace: Option<&Workspace>,
    card: &DeviceCard,
    op: &str,
    dtype: Dtype,
) -> Option<(String, String)> {
    let names = [kernel_file_of_device(op, &card.backend, &card.name), kernel_file(op, &card.backend)];
    let find = |names: &[String]| match workspace {
        Some(workspace) => workspace.first_file(names).ok().flatten().map(|(name, file)| (name, file.text)),
        None => names.iter().find_map(|name| embedded(name).map(|text| (name.clone(), text.to_owned()))),
    };
    let serves = |(_, text): &(String, String)| {
        KernelFile::parse(text).map_or(true, |kernel| kernel.front.dtypes.contains(&dtype))
    };
    let first = find(&names);
    first
        .as_ref()
        .is_none_or(serves)
        .then(|| first.clone())
        .flatten()
        .or_else(|| find(&names[1..]).filter(serves))
        .or(first)
}

/// The kernel files of every operation for a device, as far as there are any.
pub(super) fn kernels(
    workspace: Option<&Workspace>,
    card: &DeviceCard,
    dtype: Dtype,
) -> anyhow::Result<std::collections::BTreeMap<String, String>> {
    let of = |op: String| kernel(workspace, card, &op, dtype).map(|(_, text)| (op, text));
    Ok(operation_names(workspace)?.into_iter().filter_map(of).collect())
}
