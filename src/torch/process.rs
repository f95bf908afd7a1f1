//! The process itself: started, spoken to, ended.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process_group};

use super::TorchError;
use super::wire::{Hello, Reply, Setup};

/// The parts of the program that it runs; the last one starts it.
const SOURCE: &str = concat!(
    include_str!("describe.py"),
    include_str!("memory.py"),
    include_str!("fused.py"),
    include_str!("measure.py"),
    include_str!("model/lowerings.py"),
    include_str!("unit.py"),
    include_str!("timed.py"),
    include_str!("helper.py")
);

/// Importing PyTorch takes two seconds, from a cold disk six; a busy machine takes longer.
const START: Duration = Duration::from_secs(120);

/// So much is kept of what it says before it dies.
const LAST_WORDS: usize = 4096;

/// An answer that is longer is none.
const LONGEST: usize = 64 << 20;

/// Files that travel with a question, at most: a system lets 253 travel at once.
const MOST_FILES: usize = 200;

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    /// None where it is another's, who lets us in.
    child: Option<Child>,
    line: UnixStream,
    /// What came after the last line.
    rest: Vec<u8>,
    /// The end of what it wrote to standard error.
    said: Arc<Mutex<Vec<u8>>>,
    /// What it says of itself, once it has.
    hello: Option<Hello>,
    /// Ids of what it has loaded.
    pub(super) loaded: Vec<String>,
    /// Dropped with it: the thread that started it ends then.
    _leash: Option<Sender<()>>,
}

/// Starts a process from a thread of its own, which stays until `held` says that it is wanted no more: the system ends a process with
/// the *thread* that started it. That thread listens to what it says of itself.
fn keep(mut command: Command, said: Arc<Mutex<Vec<u8>>>, held: Receiver<()>) -> io::Result<Child> {
    let (started, child) = channel();
    std::thread::Builder::new().name("pytorch".into()).spawn(move || {
        let mut spawned = command.spawn();
        // It has our end of its socket, which must close when it ends.
        drop(command);
        let pipe = spawned.as_mut().ok().and_then(|child| child.stderr.take());
        if started.send(spawned).is_err() {
            return;
        }
        let mut part = [0; 1024];
        if let Some(mut pipe) = pipe {
            while let Ok(count @ 1..) = pipe.read(&mut part) {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend_from_slice(&part[..count]);
                let over = said.len().saturating_sub(LAST_WORDS);
                said.drain(..over);
            }
        }
        // Nothing is ever sent: it ends with the other side.
        let _ = held.recv();
    })?;
    child.recv().map_err(io::Error::other)?
}

/// Why there is no answer, as the process sees it.
#[derive(Debug)]
pub(super) enum Silence {
    /// The time is over.
    Time,
    /// It has ended, of this.
    Died(String),
    /// Anything else.
    Talk(String),
}

impl Process {
    /// Another's, at the other end of a line.
    pub(super) fn joined(line: UnixStream) -> Self {
        Self {
            child: None,
            line,
            rest: Vec::new(),
            said: Arc::default(),
            hello: None,
            loaded: Vec::new(),
            _leash: None,
        }
    }

    /// Starts it; it gets ready by itself.
    pub(super) fn start(python: &Path, setup: &Setup) -> Result<Self, TorchError> {
        let name = || python.display().to_string();
        let failed = |why: String| TorchError::Start { python: name(), why };
        let (ours, theirs) = UnixStream::pair().map_err(|error| failed(error.to_string()))?;
        let mut command = Command::new(python);
        command.args(["-u", "-c", SOURCE]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
        // A terminal's Ctrl-C is for those who ask it.
        command.process_group(0);
        let said = Arc::new(Mutex::new(Vec::new()));
        let (leash, held) = channel::<()>();
        let child = keep(command, said.clone(), held).map_err(|error| failed(format!("cannot be started: {error}")))?;
        let mut process = Self::joined(ours);
        (process.child, process.said, process._leash) = (Some(child), said, Some(leash));
        let text = serde_json::to_string(setup).map_err(|error| TorchError::Talk(error.to_string()))?;
        process.send(&text, &[]).map_err(|silence| failed(not_ready(silence)))?;
        Ok(process)
    }

    /// Waits until it is ready.
    pub(super) fn hello(&mut self, python: &Path) -> Result<Hello, TorchError> {
        if let Some(hello) = &self.hello {
            return Ok(hello.clone());
        }
        let reply = self
            .receive(START)
            .map_err(|silence| TorchError::Start { python: python.display().to_string(), why: not_ready(silence) })?;
        if let Some(refusal) = reply.error {
            return Err(TorchError::NoTorch(refusal.what));
        }
        let hello: Hello = serde_json::from_value(reply.rest).map_err(|error| TorchError::Talk(error.to_string()))?;
        self.hello = Some(hello.clone());
        Ok(hello)
    }

    /// Sends a line, with files.
    pub(super) fn send(&mut self, text: &str, files: &[BorrowedFd<'_>]) -> Result<(), Silence> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if files.len() > MOST_FILES || !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Silence::Talk("too many files".into()));
        }
        let line = format!("{text}\n");
        let sent = sendmsg(&self.line, &[IoSlice::new(line.as_bytes())], &mut beside, SendFlags::NOSIGNAL);
        let all = sent.map_err(io::Error::from).and_then(|sent| self.line.write_all(&line.as_bytes()[sent..]));
        all.map_err(|error| self.silence(&error))
    }

    /// The next line it says, within a time.
    pub(super) fn receive(&mut self, limit: Duration) -> Result<Reply, Silence> {
        let deadline = Instant::now() + limit;
        let mut part = vec![0; 1 << 16];
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| Silence::Talk(error.to_string()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.rest.len() > LONGEST {
                return Err(Silence::Time);
            }
            let read = self.line.set_read_timeout(Some(left)).and_then(|()| self.line.read(&mut part));
            match read {
                Ok(0) => return Err(self.silence(&io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.rest.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(Silence::Time),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.silence(&error)),
            }
        }
    }

    /// What ended it, as far as it is known.
    fn silence(&mut self, error: &io::Error) -> Silence {
        let Some(child) = &mut self.child else { return Silence::Talk(format!("the process is shared: {error}")) };
        for _ in 0..100 {
            match child.try_wait() {
                Ok(Some(status)) => {
                    // The thread that reads its last words may be a moment behind.
                    std::thread::sleep(Duration::from_millis(20));
                    return Silence::Died(self.last_words(status.signal(), status.code()));
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Silence::Talk(error.to_string())
    }

    fn last_words(&self, signal: Option<i32>, code: Option<i32>) -> String {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).map(str::trim);
        let said =
            last.map_or(String::new(), |last| format!("; it said: {}", last.chars().take(200).collect::<String>()));
        let how = match signal {
            Some(libc::SIGILL) => {
                "an illegal instruction: the processor lists what it cannot do (ONEDNN_MAX_CPU_ISA=AVX2 avoids more)"
                    .to_owned()
            }
            Some(libc::SIGSEGV) => "a segmentation fault".to_owned(),
            Some(libc::SIGKILL) => "it was killed, as the system does where memory runs out".to_owned(),
            Some(signal) => format!("signal {signal}"),
            None => format!("exit code {}", code.unwrap_or(-1)),
        };
        how + &said
    }
}

/// What is said of one that never answered.
fn not_ready(silence: Silence) -> String {
    let why = match silence {
        Silence::Time => format!("it said nothing for {} s", START.as_secs()),
        Silence::Died(how) => format!("it ended ({how})"),
        Silence::Talk(what) => what,
    };
    format!("did not get ready: {why}")
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // With whatever it has started, such as the compilers of torch.compile. Where it has ended already its number may be another's.
        let lives = matches!(child.try_wait(), Ok(None));
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw).filter(|_| lives) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A thread that computes for some milliseconds, as those of PyTorch look for work, and one that sleeps.
    const BUSY: &str = r"
import hashlib, threading
DEVICE, MOST_RESTLESS_S, done = 'cpu', 600.0, []
begun, never = threading.Event(), threading.Event()
def computes():
    begun.set()
    for _ in range(20):
        hashlib.pbkdf2_hmac('sha256', b'some', b'more', 20000)
    done.append(True)
threading.Thread(target=never.wait, daemon=True).start()
threading.Thread(target=computes).start()
begun.wait()
at_rest()
print(bool(done))
";

    #[test]
    fn pytorch_rests_when_none_of_its_threads_runs_any_more() {
        let text = format!("{}\n{BUSY}", SOURCE.replace("\nserve()", ""));
        let Ok(out) = Command::new(crate::workspace::python(None)).args(["-c", &text]).output() else {
            let _ = writeln!(io::stderr(), "skipped: no Python");
            return;
        };
        assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), "True", "{}", String::from_utf8_lossy(&out.stderr));
    }

    /// A GPU whose memory is short: the first try finds none, the second one less than is wanted at once.
    const SHORT: &str = r"
import torch
DEVICE, TYPES = 'cuda:0', {'f32': torch.float32}
judge, tried = Judge(), []
def work(tensors):
    tried.append((judge.short, tensors[0][1].tolist()))
    if len(tried) < LATER:
        raise torch.OutOfMemoryError
    results = [torch.ones(2)]
    with judge.aside(results):
        pass
    return results[0].tolist()
answer = judge.where_it_fits([('x', torch.zeros(1)), ('absent', None)], work)
halves = in_two_parts(torch.tensor([1.0, 1 / 3, -1e-30, float('nan'), float('inf')]))
whole = in_two_parts(torch.tensor([7]))
print(json.dumps([answer, tried, halves[:3].tolist(), halves.isnan().tolist(), whole.tolist()]))
";

    #[test]
    fn what_does_not_fit_is_tried_with_results_put_aside_and_then_on_the_processor() {
        let Some(python) = std::env::var_os(crate::torch::service::PYTHON) else { return };
        for later in [1, 2, 3] {
            let source = SOURCE.strip_suffix("\nserve()\n").unwrap();
            let program = format!("{source}\nLATER = {later}\n{SHORT}");
            let said = Command::new(&python).args(["-c", &program]).output().unwrap();
            let (text, errors) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
            if errors.contains("No module named 'torch'") {
                let _ = writeln!(io::stderr(), "skipped: no PyTorch");
                return;
            }
            let said: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{errors}"));
            let tries = [false, true, true].map(|short| serde_json::json!([short, [0.0]]));
            assert_eq!(said[1], serde_json::json!(tries[..later]), "{said}");
            assert_eq!(said[0], serde_json::json!([1.0, 1.0]), "{said}");
            // Sixteen bits of 1 / 3, and what is tiny keeps its own.
            let halves: Vec<f64> = serde_json::from_value(said[2].clone()).unwrap();
            assert!(halves[0] == 1.0 && (halves[1] * 3.0 - 1.0).abs() < 3e-5 && halves[1] != 1.0 / 3.0, "{halves:?}");
            assert!((halves[2] / -1e-30 - 1.0).abs() < 1e-4, "{halves:?}");
            assert_eq!(said[4], serde_json::json!([7]));
        }
    }
}
