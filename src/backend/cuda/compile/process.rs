//! The other side of [`super::service`]: processes that compile, started once and kept warm.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::find::Toolkit;
use super::frame::{self, Hello, Request, Response, Setup};
use crate::backend::cpu::remember_executable;

/// How long it may take to start.
const START: Duration = Duration::from_secs(30);
/// How long a compilation may take.
const COMPILATION: Duration = Duration::from_secs(30);
/// How often a wait looks whether anybody still wants the result.
const LOOK: Duration = Duration::from_millis(50);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ProcessError {
    /// It took longer than it may.
    #[error("compiling did not end within {} s", COMPILATION.as_secs())]
    Time,
    /// It died of this source.
    #[error("the compiler died of it ({0})")]
    Died(String),
    /// Nobody wants it any more.
    #[error("cancelled")]
    Cancelled,
    /// It cannot be started.
    #[error("{0}")]
    Start(String),
}

/// Warm processes.
#[derive(Debug)]
pub(super) struct Pool {
    toolkit: Toolkit,
    executable: Option<PathBuf>,
    idle: Mutex<Vec<Process>>,
    /// The most that work at once.
    pub(super) size: usize,
}

impl Pool {
    /// Of `size` processes, starts `at_once`, which get warm by themselves while a device is opened: each takes a sixth of a
    /// second, and a product kernel has more units than there are processes. `executable` is this very program where none is
    /// given.
    pub(super) fn new(
        toolkit: Toolkit,
        executable: Option<PathBuf>,
        size: usize,
        at_once: usize,
    ) -> Result<Self, ProcessError> {
        let pool = Self { toolkit, executable, idle: Mutex::new(Vec::new()), size };
        let started = (0..at_once).map(|_| pool.start()).collect::<Result<Vec<_>, _>>()?;
        pool.idle().extend(started);
        Ok(pool)
    }

    /// What the first process says of itself.
    pub(super) fn hello(&self) -> Result<Hello, ProcessError> {
        let mut process = self.take()?;
        let hello = process.hello()?;
        self.idle().push(process);
        Ok(hello)
    }

    /// Has one request answered.
    pub(super) fn ask(
        &self,
        request: &Request,
        source: &str,
        cancelled: &AtomicBool,
    ) -> Result<(Response, Vec<u8>), ProcessError> {
        let mut process = self.take()?;
        process.hello()?;
        // Dropped, and so ended, unless it answers.
        let answer = process.ask(request, source, cancelled)?;
        self.idle().push(process);
        Ok(answer)
    }

    fn take(&self) -> Result<Process, ProcessError> {
        let idle = self.idle().pop();
        idle.map_or_else(|| self.start(), Ok)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn start(&self) -> Result<Process, ProcessError> {
        let start = |error: io::Error| ProcessError::Start(format!("starting the process that compiles: {error}"));
        let program = match &self.executable {
            Some(path) => path.clone(),
            None => PathBuf::from(format!("/proc/self/fd/{}", remember_executable().map_err(start)?.as_raw_fd())),
        };
        let mut command = Command::new(program);
        command.arg0("warpsmith").arg("nvrtc").env_clear().process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProcessError::Start("the process that compiles has no pipes".into()));
        };
        let mut process = Process { child, input, output, hello: None };
        let setup = Setup {
            library: self.toolkit.library.clone(),
            builtins: self.toolkit.builtins.clone(),
            read: self.toolkit.includes.clone(),
        };
        frame::write(&mut process.input, &setup, &[]).map_err(start)?;
        Ok(process)
    }
}

#[derive(Debug)]
struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    hello: Option<Hello>,
}

impl Process {
    /// Waits until it is ready.
    fn hello(&mut self) -> Result<Hello, ProcessError> {
        if let Some(hello) = &self.hello {
            return Ok(hello.clone());
        }
        let never = AtomicBool::new(false);
        // From now on: it may have been idle for long, with its greeting unread.
        let deadline = Instant::now() + START;
        let mut reader = Reader { output: &mut self.output, deadline, cancelled: &never, ended: None };
        let hello: Hello = match frame::read(&mut reader) {
            Ok((hello, _)) => hello,
            Err(error) => {
                let status = self.child.try_wait().ok().flatten().map_or(String::new(), |status| format!(", {status}"));
                return Err(ProcessError::Start(format!("the process that compiles did not start: {error}{status}")));
            }
        };
        match &hello.error {
            Some(error) => Err(ProcessError::Start(format!("NVRTC cannot be loaded: {error}"))),
            None => {
                self.hello = Some(hello.clone());
                Ok(hello)
            }
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        source: &str,
        cancelled: &AtomicBool,
    ) -> Result<(Response, Vec<u8>), ProcessError> {
        let died = |process: &mut Self, error: &io::Error| {
            // It ends on its own account; what it was ended by says more than a broken pipe.
            std::thread::sleep(Duration::from_millis(5));
            let status = process.child.try_wait().ok().flatten();
            ProcessError::Died(status.map_or_else(|| error.to_string(), |status| status.to_string()))
        };
        if let Err(error) = frame::write(&mut self.input, request, &[source.as_bytes()]) {
            return Err(died(self, &error));
        }
        let deadline = Instant::now() + COMPILATION;
        let mut reader = Reader { output: &mut self.output, deadline, cancelled, ended: None };
        match frame::read(&mut reader) {
            Ok(answer) => Ok(answer),
            Err(error) => match reader.ended.take() {
                Some(ended) => Err(ended),
                None => Err(died(self, &error)),
            },
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has not been waited for, or the system knows that it has.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads from a process until a deadline.
pub(super) struct Reader<'a> {
    output: &'a mut ChildStdout,
    deadline: Instant,
    cancelled: &'a AtomicBool,
    ended: Option<ProcessError>,
}

impl<'a> Reader<'a> {
    /// Reads for so long.
    pub(super) fn new(output: &'a mut ChildStdout, limit: Duration, cancelled: &'a AtomicBool) -> Self {
        Self { output, deadline: Instant::now() + limit, cancelled, ended: None }
    }

    /// What ended it, where that was not the process.
    pub(super) fn ended(self) -> Option<ProcessError> {
        self.ended
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if self.cancelled.load(Ordering::Relaxed) {
                self.ended = Some(ProcessError::Cancelled);
            } else if left.is_zero() {
                self.ended = Some(ProcessError::Time);
            }
            if self.ended.is_some() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let wait = left.min(LOOK);
            let wait = Timespec { tv_sec: wait.as_secs() as _, tv_nsec: wait.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(&*self.output, PollFlags::IN)], Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return self.output.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
