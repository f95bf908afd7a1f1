//! NVIDIA's compute-sanitizer as an instrument: a worker runs under it, is asked once, and what the tool saw is read.
//!
//! Nothing is left out by the kernels' names, which are the candidate's to choose.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Where toolkits put it, beside the folders of `PATH`.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"];

/// How long it may take to write down what it saw, once the worker has answered.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// No more of a log is read, bytes.
const LONGEST_LOG: u64 = 16 << 20;

/// What it looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// Accesses outside of memory, and misaligned ones.
    Memcheck,
    /// Threads of a block that use shared memory in no order.
    Racecheck,
    /// Device memory that is read before anything was written to it.
    Initcheck,
    /// Barriers that not all of their threads reach.
    Synccheck,
}

impl Tool {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memcheck, Self::Racecheck, Self::Initcheck, Self::Synccheck];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memcheck => "memcheck",
            Self::Racecheck => "racecheck",
            Self::Initcheck => "initcheck",
            Self::Synccheck => "synccheck",
        }
    }
}

/// Where compute-sanitizer is.
///
/// # Errors
/// A sentence: it is not installed.
pub fn sanitizer() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    let found = folders.map(|folder| folder.join("compute-sanitizer")).find(|file| file.is_file());
    found.ok_or_else(|| "compute-sanitizer is not installed (it comes with the CUDA toolkit)".to_owned())
}

/// Starts `worker` (a program and its arguments) under `tool`, sends it the line `request`, waits for its answer, and says what
/// the tool found in its launches; `None` where that is nothing.
///
/// # Errors
/// A sentence: why there is no answer, or none within `limit`.
pub fn examine(
    sanitizer: &Path,
    tool: Tool,
    (program, arguments): (&Path, &[String]),
    request: &str,
    limit: Duration,
) -> Result<Option<String>, String> {
    let name = tool.name();
    let machine = |error: std::io::Error| format!("{name}: {error}");
    let folder = tempfile::tempdir().map_err(machine)?;
    let log = folder.path().join("log");
    let mut command = Command::new(sanitizer);
    // The worker alone: what it starts compiles.
    command.args(["--tool", name, "--target-processes", "application-only", "--log-file"]).arg(&log);
    if tool == Tool::Memcheck {
        // Calls of the driver that are tried and refused are no fault of a kernel.
        command.args(["--report-api-errors", "no"]);
    }
    command.arg(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.process_group(0);
    let mut running = Running(command.spawn().map_err(machine)?);
    let answered = running.ask(request, limit);
    drop(running);
    let said = read(&log).map_err(machine)?;
    // What was found before time ran out was found.
    match (found(&said), answered) {
        (Some(what), _) => Ok(Some(format!("{name}: {what}"))),
        (None, Err(why)) => Err(format!("{name}: {why}")),
        (None, Ok(())) if said.contains("SUMMARY:") => Ok(None),
        (None, Ok(())) => Err(format!("{name}: it left no summary")),
    }
}

/// A process whose group is killed when this is dropped: the tool starts the worker by way of another process, and a worker that outlived it
/// would keep the device busy.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // One that was waited for has ended with all that it started, and its number may be another's by now.
        if let (Ok(None), Some(group)) = (self.0.try_wait(), Pid::from_raw(self.0.id() as i32)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Running {
    /// Sends a line and waits for the message that ends the request, then for the end of the process.
    fn ask(&mut self, request: &str, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        let (Some(mut input), Some(output)) = (self.0.stdin.take(), self.0.stdout.take()) else {
            return Err("the worker has no pipes".into());
        };
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        // A worker that has ended reads nothing, which shows in what it says.
        let _ = input.write_all(format!("{}\n", request.trim_end()).as_bytes());
        // Where it was when time ran out tells what to ask less of.
        let mut last = "it had not begun to answer".to_owned();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) if says(&line, "done") => break,
                Ok(line) if says(&line, "failed") => return Err(format!("the worker could not be asked: {line}")),
                Ok(line) => last = progress(&line).unwrap_or(last),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no answer within {:.0} s; {last}", limit.as_secs_f64()));
                }
                // A kernel that faults ends its worker; what the tool saw of it is in the log.
                Err(RecvTimeoutError::Disconnected) => return Err("the worker ended without an answer".into()),
            }
        }
        drop(input);
        // Where eight tools shared a device, a summary took more than five seconds to write.
        let last = end.max(Instant::now() + LAST_WORDS);
        while Instant::now() < last {
            if self.0.try_wait().map_err(|error| error.to_string())?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("it did not end".into())
    }
}

/// Whether a line is a message of this kind.
fn says(line: &str, kind: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(line).is_ok_and(|message| message["say"] == kind)
}

/// What an event says is being done.
fn progress(line: &str) -> Option<String> {
    let message = serde_json::from_str::<serde_json::Value>(line).ok()?;
    let detail = message["progress"]["detail"].as_str().filter(|detail| !detail.is_empty())?;
    Some(format!("it was at {} ({detail})", message["progress"]["stage"].as_str().unwrap_or("work")))
}

fn read(log: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    match std::fs::File::open(log) {
        Ok(file) => std::io::Read::read_to_end(&mut std::io::Read::take(file, LONGEST_LOG), &mut bytes)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first error that a log tells of, with where it is in the kernel.
fn found(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("=========")).collect();
    let begins = |line: &&str| -> bool {
        let text = line.trim_start();
        // What belongs to an error is indented further.
        line.len() - text.len() == 1
            && ["Invalid ", "Error: ", "Uninitialized ", "Barrier error", "Divergent ", "Fatal ", "Illegal "]
                .iter()
                .any(|begin| text.starts_with(begin))
    };
    let at = lines.iter().position(begins)?;
    let more = lines[at + 1..].iter().take_while(|line| line.starts_with("  ")).take(2).map(|line| line.trim());
    let words: Vec<&str> = std::iter::once(lines[at].trim()).chain(more).collect();
    Some(words.join(" "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_first_error_of_a_log_is_told_with_its_place() {
        let log = "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n\
            =========     at rmsnorm+0x1b0\n=========     by thread (31,0,0) in block (3,0,0)\n\
            =========     Access at 0x7f is out of bounds\n=========\n========= ERROR SUMMARY: 1 error\n";
        let what = "Invalid __global__ read of size 4 bytes at rmsnorm+0x1b0 by thread (31,0,0) in block (3,0,0)";
        assert_eq!(found(log).unwrap(), what);
        let race = "========= Error: Race reported between Write access at k+0x90\n\
            =========     and Read access at k+0xd0 [1020 hazards]\n=========\n\
            ========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n";
        assert!(found(race).unwrap().ends_with("and Read access at k+0xd0 [1020 hazards]"));
    }

    #[test]
    fn a_clean_log_and_a_warning_tell_of_nothing() {
        assert_eq!(found("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"), None);
        assert_eq!(found("========= Warning: Race reported between\n========= RACECHECK SUMMARY: 1 hazard\n"), None);
    }

    fn write_tool(tool: &Path, body: &str) {
        std::fs::write(tool, format!("#!/bin/sh\n{body}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(tool, mode).unwrap();
    }

    fn look(tool: &Path, limit: Duration) -> Result<Option<String>, String> {
        examine(tool, Tool::Racecheck, (Path::new("worker"), &[]), "{}", limit)
    }

    #[test]
    fn what_a_tool_has_started_does_not_outlive_it() {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("tool");
        // The worker is a process of the tool's, as compute-sanitizer's is of its launcher's.
        let began = folder.path().join("began");
        let worker = format!("sleep 300 </dev/null >/dev/null & echo $! >{}", began.display());
        write_tool(&tool, &format!("{worker}; echo '{{\"say\":\"failed\"}}'; wait"));
        assert!(look(&tool, Duration::from_secs(60)).unwrap_err().contains("could not be asked"));
        let started: u32 = std::fs::read_to_string(&began).unwrap().trim().parse().unwrap();
        // Whoever inherits it may take a while to ask how it ended.
        let runs = || std::fs::read_to_string(format!("/proc/{started}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        let deadline = Instant::now() + Duration::from_secs(30);
        while runs() {
            assert!(Instant::now() < deadline, "it lives on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_worker_that_ends_or_says_nothing_is_no_finding() {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("tool");
        let write = |body: &str| write_tool(&tool, body);
        let ask = |limit| look(&tool, limit);
        write("exit 3");
        assert!(ask(Duration::from_secs(5)).unwrap_err().contains("without an answer"));
        write("exec sleep 30");
        assert!(ask(Duration::from_millis(100)).unwrap_err().contains("no answer within"));
        // The log's name is the sixth argument.
        write("read line; echo '========= ERROR SUMMARY: 0 errors' >$6; echo '{\"say\":\"done\",\"id\":1}'");
        assert_eq!(ask(Duration::from_secs(5)), Ok(None));
        write("read line; echo '========= Invalid __shared__ write' >$6; echo '{\"say\":\"done\",\"id\":1}'");
        assert_eq!(ask(Duration::from_secs(5)), Ok(Some("racecheck: Invalid __shared__ write".into())));
    }
}
