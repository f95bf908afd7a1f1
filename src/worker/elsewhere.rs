//! Sessions in workers of their own: where a kernel is not a process, what it left in one must not favour it in the next.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::protocol::{Ask, FailureKind, PROTOCOL, Reply, Request};
use crate::backend::cuda::{Tool, examine, sanitizer};
use crate::backend::{Instrument, Look};
use crate::harness::{Elsewhere, EvaluationTask, Failure, JudgeError, Session, SessionAnswer, SessionTask, Watch};

/// Workers that are started together, so that starting all takes hardly longer than starting one. They rest until it is
/// their turn.
const TOGETHER: usize = 4;

/// How often it is looked whether anybody still wants the answer.
const LOOK: Duration = Duration::from_millis(100);

/// A worker that says nothing for so long is taken to be dead: it speaks twice a second while it works.
const SILENCE: Duration = Duration::from_secs(60);

/// No session takes longer than this.
const LONGEST: Duration = Duration::from_secs(600);

/// Starts workers for sessions.
#[derive(Debug)]
pub struct Workers {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Workers {
    /// The program by a path that holds for whoever starts it: the descriptor it is named by here is closed in others.
    fn on_disk(&self) -> PathBuf {
        let same = |path: &PathBuf| {
            let [here, there] = [path, &self.program].map(|path| std::fs::metadata(path).ok());
            here.zip(there).is_some_and(|(here, there)| (here.dev(), here.ino()) == (there.dev(), there.ino()))
        };
        // Where it was rebuilt since, the file of that name is another program.
        std::fs::read_link(&self.program).ok().filter(same).unwrap_or_else(|| {
            let own = format!("/proc/{}/", std::process::id());
            PathBuf::from(self.program.to_string_lossy().replacen("/proc/self/", &own, 1))
        })
    }

    /// What a worker is started with that asks PyTorch at `socket`.
    fn arguments_at(&self, socket: Option<&str>) -> Vec<String> {
        let socket = socket.map(|socket| format!("--torch-at={socket}"));
        self.arguments.iter().cloned().chain(socket).collect()
    }

    /// Workers are `program` with `arguments`, which make it leave the device's lock to whoever holds it.
    #[must_use]
    pub const fn new(program: PathBuf, arguments: Vec<String>) -> Self {
        Self { program, arguments }
    }
}

impl Elsewhere for Workers {
    fn sessions(&self, tasks: &[SessionTask], socket: Option<&str>, watch: Watch<'_>) -> Result<Vec<Session>, Failure> {
        let mut sessions = Vec::with_capacity(tasks.len());
        for tasks in tasks.chunks(TOGETHER) {
            let workers = tasks.iter().map(|_| Worker::start(self, socket)).collect::<Result<Vec<_>, _>>()?;
            for worker in &workers {
                worker.greeted(watch)?;
            }
            for (task, mut worker) in tasks.iter().zip(workers) {
                sessions.push(worker.session(task, watch)?);
            }
        }
        Ok(sessions)
    }

    fn instruments(&self, task: &EvaluationTask, socket: Option<&str>) -> Vec<Instrument> {
        let request = Request { id: 1, ask: Ask::Smoke(Box::new(task.clone())) };
        let request = serde_json::to_string(&request).map_err(|error| error.to_string());
        let look = |tool: Tool| -> Result<Look, String> {
            let (sanitizer, request) = (sanitizer()?, request.clone()?);
            let (program, arguments) = (self.on_disk(), self.arguments_at(socket));
            Ok(Box::new(move |limit| examine(&sanitizer, tool, (&program, &arguments), &request, limit)))
        };
        TOOLS.into_iter().map(|tool| Instrument { name: tool.name(), look: look(tool) }).collect()
    }
}

/// What NVIDIA's sanitizer is asked for. `initcheck` sees nothing here: the judge has written to all memory before.
const TOOLS: [Tool; 3] = [Tool::Memcheck, Tool::Racecheck, Tool::Synccheck];

/// One worker; it is killed when dropped.
struct Worker {
    child: Child,
    input: ChildStdin,
    /// Its lines, until its output ends.
    lines: Receiver<String>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn machine(what: impl std::fmt::Display) -> JudgeError {
    JudgeError::machine("a session's own process", what)
}

impl Worker {
    fn start(workers: &Workers, socket: Option<&str>) -> Result<Self, JudgeError> {
        let mut child = Command::new(&workers.program)
            .args(workers.arguments_at(socket))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(machine)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(machine("it has no pipes"));
        };
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, input, lines })
    }

    fn greeted(&self, watch: Watch<'_>) -> Result<(), JudgeError> {
        match self.hear(watch)? {
            Reply::Hello { protocol: PROTOCOL, .. } => Ok(()),
            other => Err(machine(format!("it did not greet: {other:?}"))),
        }
    }

    fn session(&mut self, task: &SessionTask, watch: Watch<'_>) -> Result<Session, Failure> {
        let request = Request { id: 1, ask: Ask::Session(Box::new(task.clone())) };
        let mut line = serde_json::to_string(&request).map_err(machine)?;
        line.push('\n');
        self.input.write_all(line.as_bytes()).map_err(machine)?;
        let began = Instant::now();
        loop {
            match self.hear(watch)? {
                Reply::Done { result, .. } => {
                    return match serde_json::from_value(result).map_err(machine)? {
                        SessionAnswer::Measured(session) => Ok(session),
                        SessionAnswer::Failed(verdict) => Err(Failure::Verdict(verdict)),
                    };
                }
                Reply::Failed { kind, place, .. } => {
                    return Err(match kind {
                        FailureKind::Incumbent => JudgeError::Incumbent(place),
                        FailureKind::Cancelled => JudgeError::Cancelled,
                        FailureKind::BadRequest | FailureKind::Machine => machine(place),
                    }
                    .into());
                }
                Reply::Event { .. } if began.elapsed() < LONGEST => {}
                Reply::Event { .. } => return Err(machine("it takes too long").into()),
                Reply::Hello { .. } => return Err(machine("it greeted twice").into()),
            }
        }
    }

    /// Its next message.
    fn hear(&self, watch: Watch<'_>) -> Result<Reply, JudgeError> {
        let began = Instant::now();
        loop {
            if watch.cancelled.load(Ordering::Relaxed) {
                return Err(JudgeError::Cancelled);
            }
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return serde_json::from_str(&line).map_err(machine),
                Err(RecvTimeoutError::Timeout) if began.elapsed() < SILENCE => {}
                Err(RecvTimeoutError::Timeout) => return Err(machine("it says nothing")),
                Err(RecvTimeoutError::Disconnected) => return Err(machine("it died")),
            }
        }
    }
}
