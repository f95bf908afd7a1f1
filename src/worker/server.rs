//! The worker's side: one request at a time, events once a second, death at the end of input.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use super::Judging;
use super::protocol::{Ask, FailureKind, MAX_LINE, PROTOCOL, Reply, Request};
use crate::evaluation::Stage;
use crate::forward::ForwardError;
use crate::harness::{JudgeError, Progress, Watch};
use crate::model::ModelError;
use crate::torch::Fault;
use crate::workspace::{DeviceLock, cache_dir};

/// How often a request under way says so.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Serves requests until the input ends.
///
/// `make_judge` finds and calibrates the device; it may take seconds and runs before the first message. The device is locked
/// for the length of each request, unless whoever asks has the lock already (`within`).
///
/// Where the device cannot be had, the first message says why, and it is the only one. `judge_hash` names the judging program
/// ([`super::judge_hash`]): who asks compares it with its own.
///
/// # Errors
/// Where standard output cannot be moved away.
pub fn serve(
    judge_hash: String,
    within: bool,
    make_judge: impl FnOnce() -> anyhow::Result<Box<dyn Judging>>,
) -> anyhow::Result<()> {
    let out = Out(Arc::new(Mutex::new(std::fs::File::from(move_stdout_away()?))));
    let (requests, inbox) = channel();
    let current = Arc::new(Current::default());
    let listener = current.clone();
    let voice = out.clone();
    std::thread::Builder::new().name("requests".into()).spawn(move || listen(&requests, &listener, &voice))?;
    let mut judge = match make_judge() {
        Ok(judge) => judge,
        Err(error) => {
            let place = format!("{error:#}");
            out.say(&Reply::Failed { id: 0, kind: FailureKind::Machine, place, hint: String::new(), last: true });
            return Ok(());
        }
    };
    out.say(&Reply::Hello {
        protocol: PROTOCOL,
        judge: judge_hash,
        device: Box::new(judge.card().clone()),
        limits: judge.case_limits(),
    });
    for request in inbox {
        answer(judge.as_mut(), within, request, &current, &out);
        if judge.is_lost() {
            die();
        }
    }
    Ok(())
}

/// Ends the process without tidying up: on the usual way out the driver waits for what runs on the device, and a kernel that hangs, as
/// some do under a sanitizer, would hold the device for ever, with nobody left to notice.
fn die() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
}

/// From now on whatever prints to standard output prints to standard error: nothing can forge a message.
fn move_stdout_away() -> anyhow::Result<OwnedFd> {
    let real = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
    assert!(real.as_raw_fd() >= 3);
    Ok(real)
}

/// Standard output of the worker, shared by the request under way and its heartbeat.
#[derive(Clone)]
struct Out(Arc<Mutex<std::fs::File>>);

impl Out {
    /// Sends one message; when nobody listens any more, the process has no reason to live.
    fn say(&self, reply: &Reply) {
        let Ok(mut line) = serde_json::to_string(reply) else { return };
        line.push('\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if file.write_all(line.as_bytes()).is_err() {
            die();
        }
    }
}

/// The request under way, for those who want it cancelled.
#[derive(Default)]
struct Current {
    id: AtomicU64,
    cancelled: Arc<AtomicBool>,
    /// The request that was cancelled last, perhaps before it was begun.
    taken_back: AtomicU64,
}

impl Current {
    fn begin(&self, id: u64) {
        self.cancelled.store(false, Ordering::SeqCst);
        self.id.store(id, Ordering::SeqCst);
        if self.taken_back.load(Ordering::SeqCst) == id {
            self.cancelled.store(true, Ordering::SeqCst);
        }
    }

    /// Ends the process: nobody asks any more, and nobody waits for an answer.
    fn end(&self) {
        if self.id.load(Ordering::SeqCst) > 0 {
            die();
        }
        std::process::exit(0);
    }

    fn cancel(&self, id: u64) {
        self.taken_back.store(id, Ordering::SeqCst);
        if self.id.load(Ordering::SeqCst) == id {
            self.cancelled.store(true, Ordering::SeqCst);
        }
    }
}

/// Reads requests; a cancellation takes effect at once, the end of input ends the process at once.
fn listen(requests: &Sender<Request>, current: &Current, out: &Out) {
    let mut input = BufReader::new(std::io::stdin().lock());
    loop {
        let mut line = Vec::new();
        let read = (&mut input).take(MAX_LINE as u64).read_until(b'\n', &mut line);
        match read {
            Ok(0) | Err(_) => current.end(),
            Ok(_) => {}
        }
        if line.len() == MAX_LINE && !line.ends_with(b"\n") {
            // What is left of it is no line of its own.
            if input.skip_until(b'\n').is_err() {
                current.end();
            }
            out.say(&refused(format!("a line of more than {MAX_LINE} bytes")));
            continue;
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match serde_json::from_slice::<Request>(&line) {
            Ok(Request { id, ask: Ask::Cancel }) => current.cancel(id),
            Ok(request) => {
                if requests.send(request).is_err() {
                    return;
                }
            }
            Err(error) => out.say(&refused(format!("the request does not parse: {error}"))),
        }
    }
}

/// A line that is no request.
fn refused(place: String) -> Reply {
    let hint = format!("this worker speaks protocol {PROTOCOL}");
    Reply::Failed { id: 0, kind: FailureKind::BadRequest, place, hint, last: false }
}

fn answer(judge: &mut dyn Judging, within: bool, request: Request, current: &Current, out: &Out) {
    let id = request.id;
    current.begin(id);
    let latest = Mutex::new(Progress { stage: Stage::Compile, detail: "starting".into() });
    let progress = |progress: Progress| *latest.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    let watch = Watch { progress: &progress, cancelled: &current.cancelled };
    let (finished, ended) = channel();
    let mut reply = std::thread::scope(|scope| {
        let latest = &latest;
        scope.spawn(move || heartbeat(id, latest, &ended, out));
        let lock = if within { Ok(None) } else { take_device(judge, watch).map(Some) };
        let lock = match lock {
            Ok(lock) => lock,
            Err(error) => return reply::<()>(id, Err(error)),
        };
        let reply = match request.ask {
            Ask::Evaluate(task) => reply(id, judge.evaluate(&task, watch)),
            Ask::Smoke(task) => reply(id, judge.smoke(&task, watch)),
            Ask::Screen(task) => reply(id, judge.screen(&task, watch)),
            Ask::SelfTest { task, pairs } => reply(id, judge.self_test(&task, pairs, watch)),
            Ask::Session(task) => reply(id, judge.session(&task, watch)),
            Ask::Measure(task) => reply(id, model(judge.measure(&task, &current.cancelled))),
            Ask::Compare(task) => reply(id, model(judge.compare(&task, &current.cancelled))),
            Ask::Cancel => reply::<()>(id, Err(JudgeError::Cancelled)),
        };
        drop(lock);
        drop(finished);
        reply
    });
    current.id.store(0, Ordering::SeqCst);
    if let Reply::Done { last, .. } | Reply::Failed { last, .. } = &mut reply {
        *last = judge.is_lost();
    }
    out.say(&reply);
}

/// Waits until nobody else measures on this device: two runs, a watch and a test never time at once.
fn take_device(judge: &dyn Judging, watch: Watch<'_>) -> Result<DeviceLock, JudgeError> {
    let waiting = |holder: &str| {
        (watch.progress)(Progress {
            stage: Stage::Timing,
            detail: format!("waiting for the device, used by {holder}"),
        });
        !watch.cancelled.load(Ordering::Relaxed)
    };
    DeviceLock::take(&cache_dir(), &judge.card().key, "warpsmith worker", waiting)
        .map_err(|error| JudgeError::machine("the device's lock", error))?
        .ok_or(JudgeError::Cancelled)
}

/// Repeats the latest progress until the request has ended.
fn heartbeat(id: u64, latest: &Mutex<Progress>, ended: &Receiver<()>, out: &Out) {
    while ended.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
        let progress = latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        out.say(&Reply::Event { id, progress });
    }
}

/// What a model cannot do is no verdict about a kernel.
fn model<T>(result: Result<T, ForwardError>) -> Result<T, JudgeError> {
    result.map_err(|error| match error {
        ForwardError::Cancelled => JudgeError::Cancelled,
        ForwardError::Model(error @ ModelError::Weights { .. }) => JudgeError::Weights(error.to_string()),
        error => JudgeError::machine("running the model", error),
    })
}

fn reply<T: Serialize>(id: u64, result: Result<T, JudgeError>) -> Reply {
    let failed =
        |kind, place: String, hint: &str| Reply::Failed { id, kind, place, hint: hint.to_owned(), last: false };
    match result.map(|value| serde_json::to_value(value)) {
        Ok(Ok(result)) => Reply::Done { id, result, last: false },
        Ok(Err(error)) => failed(FailureKind::Machine, error.to_string(), "this is a fault of Warpsmith"),
        Err(JudgeError::Cancelled) => failed(FailureKind::Cancelled, "cancelled".into(), ""),
        Err(error @ JudgeError::Op(_)) => {
            failed(FailureKind::BadRequest, error.to_string(), "`warpsmith ops` lists what is known")
        }
        Err(JudgeError::Torch(error)) => {
            let kind = match error.fault() {
                Fault::File => FailureKind::BadRequest,
                Fault::Machine => FailureKind::Machine,
            };
            failed(kind, error.to_string(), error.hint())
        }
        Err(error @ JudgeError::Weights(_)) => {
            let hint = "get the file again, or move it away: weights that are in no file are drawn";
            failed(FailureKind::BadRequest, error.to_string(), hint)
        }
        Err(error @ JudgeError::Incumbent(_)) => failed(
            FailureKind::Incumbent,
            error.to_string(),
            "`warpsmith bench` on the kernel file shows the case that fails",
        ),
        Err(error @ JudgeError::Machine { .. }) => {
            failed(FailureKind::Machine, error.to_string(), "`warpsmith doctor` shows what works on this machine")
        }
    }
}
