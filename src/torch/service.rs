//! PyTorch as something that answers: started when it is first needed, started again where it has died.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::TorchError;
use super::process::{Process, Silence};
use super::socket::{Socket, connect};
use super::wire::{Ask, Described, Hello, Setup};
use crate::backend::cpu::available_memory;

/// What names the Python whose PyTorch is asked.
pub use crate::workspace::PYTHON;

/// How long it may take to answer, unless this many seconds are allowed.
const SECONDS: &str = "WARPSMITH_TORCH_SECONDS";
const LIMIT: Duration = Duration::from_secs(120);

/// So many times as long where something is compiled, which takes minutes where everything is tried: a process that is ended over one of PyTorch's
/// ways takes those that are ready with it.
const COMPILING: u32 = 5;

/// Where a machine does not say how much memory it has.
const MEMORY: u64 = 8 << 30;

/// A Python interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    program: PathBuf,
    limit: Duration,
}

impl Python {
    /// The one that is named, else that of `$WARPSMITH_PYTHON`, else the active environment's `python3`.
    #[must_use]
    pub fn chosen(named: Option<&Path>) -> Self {
        let program = crate::workspace::python(named);
        let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok());
        Self { program, limit: seconds.map_or(LIMIT, Duration::from_secs) }
    }
}

impl Python {
    /// The interpreter.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The versions of PyTorch and Python, and where that Python is, without starting PyTorch: `2.11.0 in Python 3.11.2 (python3)`.
    ///
    /// # Errors
    /// That there is no such Python, or no PyTorch in it; a sentence.
    pub fn versions(&self) -> Result<String, String> {
        const ASK: &str =
            "import importlib.metadata as m, sys; print(m.version('torch'), 'in Python', sys.version.split()[0])";
        let name = self.program.display();
        let said = std::process::Command::new(&self.program)
            .args(["-c", ASK])
            .stdin(std::process::Stdio::null())
            .output()
            .map_err(|error| format!("{name}: {error}"))?;
        match said.status.success() {
            true => Ok(format!("{} ({name})", String::from_utf8_lossy(&said.stdout).trim())),
            false => Err(format!("{name} has none")),
        }
    }

    /// The same, with so much time for an answer.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }
}

impl Default for Python {
    fn default() -> Self {
        Self::chosen(None)
    }
}

/// A process with PyTorch, or the means to have one.
#[derive(Debug)]
pub struct Service {
    python: Python,
    /// The GPU that it computes on, if any.
    gpu: Option<String>,
    process: Mutex<Option<Process>>,
    /// Whether its threads may still run on a processor that is timed: it was asked something since they were known to rest.
    restless: AtomicBool,
    /// The socket of another process of this program that shares its own, if one does.
    shared: Option<String>,
    /// Where it listens for others.
    socket: Mutex<Option<Socket>>,
}

/// User code that is asked about again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    /// Of its text.
    pub id: String,
    /// Its file's name, for sentences.
    pub file: String,
    pub source: String,
}

impl Unit {
    pub(super) fn new(file: String, source: &str) -> Self {
        let id = blake3::hash(format!("{file}\n{source}").as_bytes()).to_hex().to_string();
        Self { id, file, source: source.to_owned() }
    }
}

impl Service {
    /// Nothing is started yet.
    #[must_use]
    pub const fn new(python: Python) -> Self {
        Self {
            python,
            gpu: None,
            process: Mutex::new(None),
            restless: AtomicBool::new(false),
            shared: None,
            socket: Mutex::new(None),
        }
    }

    /// The same on a GPU, by its UUID.
    #[must_use]
    pub fn on(self, gpu: Option<String>) -> Self {
        Self { gpu, ..self }
    }

    /// The same in the process of whoever listens at this [`socket`](Self::socket); in one of its own where nobody does.
    #[must_use]
    pub fn sharing(self, socket: Option<String>) -> Self {
        Self { shared: socket, ..self }
    }

    /// The name of the socket at which processes that this one starts can ask its process; none where there can be none.
    pub fn socket(self: &Arc<Self>) -> Option<String> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if socket.is_none() {
            match Socket::listen(self) {
                Ok(open) => *socket = Some(open),
                Err(error) => tracing::warn!(%error, "PyTorch's process cannot be shared"),
            }
        }
        socket.as_ref().map(|socket| socket.name().to_owned())
    }

    /// Has the process answer on this line as well, where nothing is known of what is asked here.
    pub(super) fn join(&self, line: &UnixStream) -> Result<(), TorchError> {
        let _: serde_json::Value = self.ask(None, &Ask::Join, &[line.as_fd()])?;
        Ok(())
    }

    /// Starts it, where it is not, and does not wait until it is ready: what fails is told when it is asked.
    pub fn warm(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if process.is_none() {
            *process = self.start().ok();
        }
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// No Python, or none with PyTorch.
    pub fn hello(&self) -> Result<Hello, TorchError> {
        let mut slot = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let hello = self.ready(&mut slot).and_then(|process| process.hello(&self.python.program));
        if hello.is_err() {
            *slot = None;
        }
        hello
    }

    /// Looks at a problem file: its text, and its name for sentences. With `values` what it draws is drawn.
    ///
    /// # Errors
    /// What is wrong with the file, or with the machine.
    pub fn describe(&self, file: &str, source: &str, values: bool) -> Result<Described, TorchError> {
        self.ask(None, &Ask::Describe { file, source, values }, &[])
    }

    /// Waits until PyTorch's threads rest, where kernels are timed on the processor and it was asked anything since: they look for more work for some
    /// milliseconds (7 by libgomp on an AMD EPYC), on the cores of what runs next.
    ///
    /// # Errors
    /// What is wrong with the process.
    pub(super) fn rest(&self) -> Result<(), TorchError> {
        if !self.restless.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _: serde_json::Value = self.ask(None, &Ask::Rest, &[])?;
        self.restless.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Asks, where `unit` is what the question is about.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        unit: Option<&Unit>,
        ask: &Ask<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<T, TorchError> {
        let mut slot = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        self.restless.store(self.gpu.is_none(), Ordering::Relaxed);
        let result = self.ready(&mut slot).and_then(|process| {
            process.hello(&self.python.program)?;
            if let Some(Unit { id, file, source }) = unit
                && !process.loaded.contains(id)
            {
                let load = Ask::Load { id, file, source };
                let _: serde_json::Value = self.put(process, &load, &[])?;
                process.loaded.push(id.clone());
            }
            self.put(process, ask, files)
        });
        // What refuses lives on; what is silent is ended.
        if let Err(
            TorchError::Start { .. }
            | TorchError::NoTorch(_)
            | TorchError::Time { .. }
            | TorchError::Died { .. }
            | TorchError::Lost(_)
            | TorchError::Talk(_),
        ) = &result
        {
            *slot = None;
        }
        result
    }

    fn put<T: DeserializeOwned>(
        &self,
        process: &mut Process,
        ask: &Ask<'_>,
        files: &[BorrowedFd<'_>],
    ) -> Result<T, TorchError> {
        let text = serde_json::to_string(ask).map_err(|error| TorchError::Talk(error.to_string()))?;
        let (file, doing) = (ask.file().to_owned(), ask.doing());
        let began = Instant::now();
        let limit = self.python.limit * if matches!(ask, Ask::Prepare { .. }) { COMPILING } else { 1 };
        let reply = process.send(&text, files).and_then(|()| process.receive(limit));
        tracing::debug!(doing, took_s = began.elapsed().as_secs_f64(), "PyTorch answers");
        let reply = reply.map_err(|silence| match silence {
            Silence::Time => TorchError::Time { file, doing, seconds: limit.as_secs() },
            Silence::Died(how) => TorchError::Died { file, doing, how },
            Silence::Talk(what) => TorchError::Talk(what),
        })?;
        match reply.error {
            Some(refusal) if refusal.kind == "random" || refusal.kind == "dtype" => {
                Err(TorchError::Target(refusal.what))
            }
            Some(refusal) if refusal.kind == "lost" => Err(TorchError::Lost(refusal.what)),
            Some(refusal) => Err(TorchError::Code(refusal.what)),
            None => serde_json::from_value(reply.rest).map_err(|error| TorchError::Talk(error.to_string())),
        }
    }

    fn ready<'a>(&self, slot: &'a mut Option<Process>) -> Result<&'a mut Process, TorchError> {
        match slot {
            Some(process) => Ok(process),
            None => Ok(slot.insert(self.start()?)),
        }
    }

    fn start(&self) -> Result<Process, TorchError> {
        if let Some(mut process) = self.shared.as_ref().and_then(|socket| connect(socket).ok()).map(Process::joined) {
            match process.hello(&self.python.program) {
                Ok(_) => return Ok(process),
                Err(error) => tracing::warn!(%error, "PyTorch's process is not shared"),
            }
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = available_memory().unwrap_or(MEMORY) / 4 * 3;
        Process::start(
            &self.python.program,
            &Setup { parent: std::process::id(), threads, memory, gpu: self.gpu.clone() },
        )
    }
}
