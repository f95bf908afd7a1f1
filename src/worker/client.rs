//! The side that asks: starts a worker, speaks to it, notices its death.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde::de::DeserializeOwned;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};
use tokio_util::sync::CancellationToken;

use super::protocol::{Ask, FailureKind, MAX_LINE, PROTOCOL, Reply, Request};
use crate::backend::CaseLimits;
use crate::device::DeviceCard;
use crate::harness::Progress;

/// A worker that says nothing for so long is taken to be dead: it speaks twice a second while it works.
const SILENCE: Duration = Duration::from_secs(60);

/// No answer takes longer than this: launches and compilations have limits of their own, so the judge itself hangs.
/// A self-test is as long as it is asked to be.
const LONGEST: Duration = Duration::from_secs(3600);

/// Calibration of an unknown device happens before the first message.
const HELLO: Duration = Duration::from_secs(120);

/// A worker process and what it said of itself.
pub struct Client {
    program: PathBuf,
    arguments: Vec<String>,
    process: Process,
    greeting: Greeting,
    next_id: u64,
    /// Whether it has said that it ends.
    ended: bool,
}

/// What a worker says of itself.
struct Greeting {
    device: DeviceCard,
    limits: CaseLimits,
    judge: String,
}

struct Process {
    child: Child,
    input: FramedWrite<ChildStdin, LinesCodec>,
    output: FramedRead<ChildStdout, LinesCodec>,
}

/// What can go wrong between here and the worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// It could not be started, or did not introduce itself.
    #[error("the worker did not start: {0}")]
    Start(String),
    /// It died, or fell silent, while it was asked something.
    #[error("the worker died: {0}")]
    Died(String),
    /// It answered that it cannot.
    #[error("{place}{}", if hint.is_empty() { String::new() } else { format!("; {hint}") })]
    Failed {
        /// The kind of failure.
        kind: FailureKind,
        /// Where and what.
        place: String,
        /// What to do about it.
        hint: String,
    },
    /// It said something that makes no sense.
    #[error("the worker broke the protocol: {0}")]
    Protocol(String),
}

impl WorkerError {
    /// Whether the judge could not judge this once, so that other targets are worth trying.
    #[must_use]
    pub const fn spares_the_run(&self) -> bool {
        matches!(self, Self::Failed { kind: FailureKind::Incumbent | FailureKind::Machine, .. })
    }

    /// Whether what an operation is defined by is at fault, or it takes too long: that is found out again by whoever asks again, and says nothing
    /// of other operations.
    #[must_use]
    pub const fn is_of_the_definition(&self) -> bool {
        matches!(self, Self::Failed { kind: FailureKind::BadRequest, .. })
    }

    /// That whoever asked has taken the question back.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::Failed { kind: FailureKind::Cancelled, place: "cancelled".to_owned(), hint: String::new() }
    }

    /// That it cannot be judged here, and perhaps elsewhere.
    #[must_use]
    pub fn machine(what: &str) -> Self {
        Self::Failed { kind: FailureKind::Machine, place: what.to_owned(), hint: String::new() }
    }

    /// Whether whoever asked has taken the question back.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        matches!(self, Self::Failed { kind: FailureKind::Cancelled, .. })
    }
}

impl Client {
    /// Starts `program` with `arguments` (normally this executable and `worker`) and waits for its greeting.
    ///
    /// # Errors
    /// [`WorkerError::Start`], with its reason.
    pub async fn start(program: &Path, arguments: &[String]) -> Result<Self, WorkerError> {
        let (process, greeting) = launch(program, arguments).await?;
        let program = program.to_owned();
        Ok(Self { program, arguments: arguments.to_vec(), process, greeting, next_id: 1, ended: false })
    }

    /// The device it judges on.
    #[must_use]
    pub const fn device(&self) -> &DeviceCard {
        &self.greeting.device
    }

    /// How large its cases are.
    #[must_use]
    pub const fn limits(&self) -> &CaseLimits {
        &self.greeting.limits
    }

    /// The hash of the judging program.
    #[must_use]
    pub fn judge(&self) -> &str {
        &self.greeting.judge
    }

    /// That it died while nobody asked it anything, where it did.
    pub fn died_idle(&mut self) -> Option<WorkerError> {
        let exited = self.process.child.try_wait().ok().flatten().filter(|_| !self.ended);
        exited.map(|status| WorkerError::Died(format!("it ended while nobody asked it anything ({status})")))
    }

    /// Kills the worker and starts another.
    ///
    /// # Errors
    /// [`WorkerError::Start`].
    pub async fn restart(&mut self) -> Result<(), WorkerError> {
        // It may be dead already; either way it is gone afterwards.
        let _ = self.process.child.kill().await;
        (self.process, self.greeting) = launch(&self.program, &self.arguments).await?;
        self.ended = false;
        Ok(())
    }

    /// Asks, and waits for the answer; `watch` hears where the worker is, `cancel` takes the question back.
    ///
    /// # Errors
    /// The worker's own words, its death, or an answer that is not a `T`.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        ask: Ask,
        watch: &mut (dyn FnMut(Progress) + Send),
        cancel: &CancellationToken,
    ) -> Result<T, WorkerError> {
        // A kernel that spoilt the device for its process has had its verdict; the next question goes to another.
        if self.ended {
            self.restart().await?;
        }
        let id = self.next_id;
        self.next_id += 1;
        let limit = if matches!(ask, Ask::SelfTest { .. }) { Duration::MAX } else { LONGEST };
        let began = std::time::Instant::now();
        self.send(&Request { id, ask }).await?;
        let mut asked_to_stop = false;
        loop {
            let reply = tokio::select! {
                () = cancel.cancelled(), if !asked_to_stop => {
                    asked_to_stop = true;
                    self.send(&Request { id, ask: Ask::Cancel }).await?;
                    continue;
                }
                reply = receive(&mut self.process.output, SILENCE) => reply,
            };
            match reply? {
                Reply::Event { .. } if began.elapsed() > limit => {
                    return Err(WorkerError::Died(format!("it gave no answer within {} min", limit.as_secs() / 60)));
                }
                Reply::Event { id: of, progress } if of == id => watch(progress),
                Reply::Done { id: of, result, last } if of == id => {
                    self.ended = last;
                    return serde_json::from_value(result).map_err(|error| WorkerError::Protocol(error.to_string()));
                }
                Reply::Failed { id: of, kind, place, hint, last } if of == id || of == 0 => {
                    self.ended = last;
                    return Err(WorkerError::Failed { kind, place, hint });
                }
                // An answer to a question that was given up earlier.
                Reply::Event { .. } | Reply::Done { .. } | Reply::Failed { .. } => {}
                Reply::Hello { .. } => return Err(WorkerError::Protocol("it greeted twice".into())),
            }
        }
    }

    async fn send(&mut self, request: &Request) -> Result<(), WorkerError> {
        let line = serde_json::to_string(request).map_err(|error| WorkerError::Protocol(error.to_string()))?;
        self.process.input.send(line).await.map_err(|error| WorkerError::Died(error.to_string()))
    }
}

async fn launch(program: &Path, arguments: &[String]) -> Result<(Process, Greeting), WorkerError> {
    let start = |what: String| WorkerError::Start(what);
    tracing::info!(program = %program.display(), arguments = arguments.join(" "), "start a worker");
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A terminal's Ctrl-C goes to its whole foreground group; the worker is told by its master instead.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| start(format!("{}: {error}", program.display())))?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(start("it has no pipes".into()));
    };
    let codec = || LinesCodec::new_with_max_length(MAX_LINE);
    let mut output = FramedRead::new(output, codec());
    let input = FramedWrite::new(input, codec());
    match receive(&mut output, HELLO).await {
        Ok(Reply::Hello { protocol: PROTOCOL, judge, device, limits }) => {
            tracing::info!(process = child.id(), device = device.name, key = device.key, judge, "a worker greets");
            Ok((Process { child, input, output }, Greeting { device: *device, limits, judge }))
        }
        Ok(Reply::Hello { protocol, .. }) => {
            Err(start(format!("it speaks protocol {protocol}, this program {PROTOCOL}; use the same version for both")))
        }
        Ok(Reply::Failed { place, .. }) => Err(start(place)),
        Ok(_) => Err(start("it did not greet".into())),
        Err(error) => Err(start(error.to_string())),
    }
}

async fn receive(output: &mut FramedRead<ChildStdout, LinesCodec>, patience: Duration) -> Result<Reply, WorkerError> {
    match tokio::time::timeout(patience, output.next()).await {
        Err(_) => Err(WorkerError::Died(format!("it said nothing for {} s", patience.as_secs()))),
        Ok(None) => Err(WorkerError::Died("its output ended".into())),
        Ok(Some(Err(error))) => Err(WorkerError::Protocol(error.to_string())),
        Ok(Some(Ok(line))) => serde_json::from_str(&line).map_err(|error| WorkerError::Protocol(error.to_string())),
    }
}
