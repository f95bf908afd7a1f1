//! Processes of the user's Python with Triton in them, kept warm, with nothing of the machine but Python and a folder of their own.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tempfile::TempDir;

use super::super::frame;
use super::super::process::{ProcessError, Reader};
use super::{Answer, Found, Question};
use crate::sandbox;

/// What it runs: the reader of hostile text, then the rest.
pub(super) const SOURCE: &str = concat!(include_str!("reader.py"), "\n", include_str!("helper.py"));

/// What says, before anything of a Triton file runs, why it is refused: `refusal(text)`, in Python that needs nothing else.
pub const READER: &str = include_str!("reader.py");

/// How long it may take to start: Triton is imported from a disk that may be cold, on a machine that may be busy.
const START: Duration = Duration::from_secs(60);

/// How long a kernel may take: the first of a process loads LLVM, and large tiles unroll.
const COMPILATION: Duration = Duration::from_secs(60);

/// Address space, bytes: Triton with LLVM takes one gigabyte, an honest kernel some tenths more.
const MEMORY: u64 = 8 << 30;

/// The largest file that it may write, bytes.
const FILE: u64 = 256 << 20;

/// Warm processes.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: Mutex<Vec<Process>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    /// Its own folder, which goes with it.
    _scratch: TempDir,
}

#[derive(Debug, Deserialize)]
struct Hello {
    #[serde(default)]
    error: Option<String>,
}

impl Pool {
    /// Has one kernel compiled.
    pub(super) fn ask(
        &self,
        found: &Found,
        question: &Question<'_>,
        source: &str,
        cancelled: &AtomicBool,
    ) -> Result<(Answer, Vec<u8>), ProcessError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut process = idle.map_or_else(|| Process::start(found), Ok)?;
        // Dropped, and so ended, unless it answers.
        let answer = process.ask(question, source, cancelled)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
        Ok(answer)
    }
}

impl Process {
    fn start(found: &Found) -> Result<Self, ProcessError> {
        let failed = |error: io::Error| ProcessError::Start(format!("starting the Python that compiles: {error}"));
        let scratch = tempfile::Builder::new().prefix("warpsmith-triton-").tempdir().map_err(failed)?;
        let paths = serde_json::to_string(&found.paths).map_err(|error| failed(error.into()))?;
        // Without its `site` module it reads no files but those that are imported, whatever the user's start-up files say.
        let source = format!("import json, sys\nsys.path = json.loads(sys.argv[1])\n{SOURCE}");
        let mut command = Command::new(&found.executable);
        command.args(["-I", "-S", "-B", "-c", &source, &paths]).env_clear().current_dir("/").process_group(0);
        command.env("TMPDIR", scratch.path()).env("TRITON_CACHE_DIR", scratch.path()).env("HOME", scratch.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let read: Vec<&Path> = found.read.iter().map(std::path::PathBuf::as_path).collect();
        let write = [scratch.path(), Path::new("/dev/null")];
        let mut wall =
            Some(sandbox::FileWall::new(&read, &write).map_err(|error| failed(io::Error::other(error.to_string())))?);
        let filter = sandbox::offline_filter().ok();
        let enter = move || {
            sandbox::give_way();
            sandbox::set_limit(libc::RLIMIT_CORE as _, 0)?;
            sandbox::set_limit(libc::RLIMIT_AS as _, MEMORY)?;
            sandbox::set_limit(libc::RLIMIT_FSIZE as _, FILE)?;
            sandbox::no_new_privileges()?;
            if let Some(wall) = wall.take() {
                wall.enter().map_err(|_| io::Error::from_raw_os_error(libc::EPERM))?;
            }
            // A kernel without seccomp is reported by `protections`.
            if let Some(filter) = &filter {
                let _ = sandbox::install_on_this_thread(filter);
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls only; rules and filter were made before.
        unsafe { command.pre_exec(enter) };
        let mut child = command.spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ProcessError::Start("the Python that compiles has no pipes".into()));
        };
        let mut process = Self { child, input, output, _scratch: scratch };
        let never = AtomicBool::new(false);
        let mut reader = Reader::new(&mut process.output, START, &never);
        let hello: Result<(Hello, _), _> = frame::read(&mut reader);
        match hello {
            Ok((Hello { error: None }, _)) => Ok(process),
            Ok((Hello { error: Some(why) }, _)) => {
                Err(ProcessError::Start(format!("Triton cannot be imported: {why}")))
            }
            Err(error) => {
                let status = process.status();
                Err(ProcessError::Start(format!("the Python that compiles did not start: {error}{status}")))
            }
        }
    }

    fn ask(
        &mut self,
        question: &Question<'_>,
        source: &str,
        cancelled: &AtomicBool,
    ) -> Result<(Answer, Vec<u8>), ProcessError> {
        if let Err(error) = frame::write(&mut self.input, question, &[source.as_bytes()]) {
            return Err(ProcessError::Died(format!("{error}{}", self.status())));
        }
        let mut reader = Reader::new(&mut self.output, COMPILATION, cancelled);
        let answer = frame::read(&mut reader);
        let ended = reader.ended();
        match (answer, ended) {
            (Ok(answer), _) => Ok(answer),
            (Err(_), Some(ended)) => Err(ended),
            (Err(error), None) => Err(ProcessError::Died(format!("{error}{}", self.status()))),
        }
    }

    /// How it has ended, for the end of a sentence.
    fn status(&mut self) -> String {
        // It ends on its own account; what it was ended by says more than a broken pipe.
        let deadline = Instant::now() + Duration::from_millis(50);
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return format!(", {status}"),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                _ => return String::new(),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // With the process that compiles, and the assembler that it has started. Where it has ended its number may be another's.
        let lives = matches!(self.child.try_wait(), Ok(None));
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).filter(|_| lives) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
