//! Running a program on hostile input: no secrets in its environment, a wall around its files, an end to its time.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{FileWall, install_on_this_thread, no_new_privileges, offline_filter, set_limit};

/// What a program may have.
#[derive(Debug, Clone)]
pub struct Jail {
    /// Files and folders it may read and execute.
    pub read: Vec<PathBuf>,
    /// Files and folders it may write.
    pub write: Vec<PathBuf>,
    /// Wall-clock limit; its CPU time has the same.
    pub time: Duration,
    /// Address space, bytes.
    pub memory: u64,
    /// Largest file it may write, bytes.
    pub file: u64,
    /// Output kept, bytes; four times as much ends it.
    pub output: usize,
}

/// How it ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit status; a signal where it was ended.
    pub status: ExitStatus,
    /// Its output and errors together, as it came, cut at [`Jail::output`].
    pub output: String,
    /// What limit ended it, in words.
    pub limit: Option<String>,
}

impl Jail {
    /// Runs `command` (its environment is cleared but for what the caller sets afterwards through `env`) to its end.
    ///
    /// # Errors
    /// It could not be started, or the system failed while it ran.
    pub fn run(&self, mut command: Command, env: &[(&str, &str)]) -> io::Result<Finished> {
        let (reader, writer) = io::pipe()?;
        command.env_clear().envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        let read: Vec<_> = self.read.iter().map(PathBuf::as_path).collect();
        let write: Vec<_> = self.write.iter().map(PathBuf::as_path).collect();
        let mut wall = Some(FileWall::new(&read, &write).map_err(io::Error::other)?);
        let filter = offline_filter().ok();
        let (memory, file, seconds) = (self.memory, self.file, self.time.as_secs().max(1));
        let enter = move || {
            set_limit(libc::RLIMIT_CORE as _, 0)?;
            set_limit(libc::RLIMIT_AS as _, memory)?;
            set_limit(libc::RLIMIT_FSIZE as _, file)?;
            set_limit(libc::RLIMIT_CPU as _, seconds)?;
            no_new_privileges()?;
            if let Some(wall) = wall.take() {
                wall.enter().map_err(|_| io::Error::from_raw_os_error(libc::EPERM))?;
            }
            // A kernel without seccomp is reported by `protections`.
            if let Some(filter) = &filter {
                let _ = install_on_this_thread(filter);
            }
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes system calls only; rules and filter were made before.
        unsafe { command.pre_exec(enter) };
        let mut child = command.spawn()?;
        drop(command);
        let finished = self.supervise(&child, &reader);
        end_group(&child);
        let (output, limit) = match finished {
            Ok(finished) => finished,
            Err(error) => {
                let _ = child.wait();
                return Err(error);
            }
        };
        let status = child.wait()?;
        Ok(Finished { status, output, limit })
    }

    fn supervise(&self, child: &Child, reader: &io::PipeReader) -> io::Result<(String, Option<String>)> {
        let deadline = Instant::now() + self.time;
        let mut kept = Vec::new();
        let mut seen = 0usize;
        let mut buffer = [0u8; 8192];
        let mut open = true;
        let over_time = || Some(format!("it did not finish within {} s", self.time.as_secs_f64()));
        loop {
            if !open && has_ended(child)? {
                return Ok((text(&kept), None));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok((text(&kept), over_time()));
            }
            if !open {
                std::thread::sleep(left.min(Duration::from_millis(1)));
                continue;
            }
            let wait = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let ready = match poll(&mut [PollFd::new(reader, PollFlags::IN)], Some(&wait)) {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if ready == 0 {
                return Ok((text(&kept), over_time()));
            }
            let n = rustix::io::read(reader, &mut buffer)?;
            open = n > 0;
            seen += n;
            kept.extend_from_slice(&buffer[..n.min(self.output.saturating_sub(kept.len()))]);
            if seen > self.output.saturating_mul(4) {
                return Ok((text(&kept), Some("it wrote more than a reader could want".into())));
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether it has ended, without reaping it: its number stays its own until the group is ended.
fn has_ended(child: &Child) -> io::Result<bool> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(child.id() as i32) else { return Ok(true) };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(waitid(WaitId::Pid(pid), options)?.is_some())
}

/// Ends the group of a child that has not been waited for, so that the number is still its own.
fn end_group(child: &Child) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    fn jail(write: &Path) -> Jail {
        let read = ["/bin", "/usr", "/lib", "/lib64", "/etc/ld.so.cache"].map(PathBuf::from).to_vec();
        Jail {
            read,
            write: vec![write.to_owned()],
            time: Duration::from_secs(20),
            memory: 1 << 32,
            file: 1 << 16,
            output: 1000,
        }
    }

    fn shell(jail: &Jail, script: &str) -> Finished {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).current_dir(&jail.write[0]);
        jail.run(command, &[("PATH", "/usr/bin:/bin")]).unwrap()
    }

    #[test]
    fn a_jailed_program_sees_its_own_folder_and_no_other_file() {
        if !super::super::protections()[0].available {
            return;
        }
        let secret = tempfile::tempdir().unwrap();
        std::fs::write(secret.path().join("key"), "hush").unwrap();
        let own = tempfile::tempdir().unwrap();
        let finished = shell(&jail(own.path()), &format!("echo x > y; cat y; cat {}/key", secret.path().display()));
        assert!(finished.output.starts_with("x\n") && !finished.output.contains("hush"), "{finished:?}");
        assert!(!finished.status.success());
    }

    #[test]
    fn a_jailed_program_has_no_environment_but_what_it_is_given() {
        let own = tempfile::tempdir().unwrap();
        let finished = shell(&jail(own.path()), "/usr/bin/env");
        assert!(finished.output.contains("PATH=") && !finished.output.contains("HOME="), "{finished:?}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_with_its_children() {
        let own = tempfile::tempdir().unwrap();
        let jail = Jail { time: Duration::from_millis(300), ..jail(own.path()) };
        let finished = shell(&jail, "sleep 100 & sleep 100");
        assert!(finished.limit.unwrap().contains("within"));
    }

    #[test]
    fn a_flood_of_output_is_cut() {
        let own = tempfile::tempdir().unwrap();
        let finished = shell(&jail(own.path()), "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done");
        assert!(finished.limit.is_some() && finished.output.len() <= 1000, "{finished:?}");
    }
}
