//! What a program enters between fork and exec, for those that stay and are asked.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};
use seccompiler::BpfProgram;

use super::{FileWall, install_on_this_thread, no_new_privileges, set_limit};

/// The program is ended with the thread that starts it.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
}

/// The program is ended with the thread that starts it, gains no privileges, and runs under limits (`libc::RLIMIT_…`), behind a wall and
/// under filters, for good. A kernel without seccomp is reported by [`super::protections`].
pub fn confine(command: &mut Command, wall: FileWall, filters: Vec<BpfProgram>, limits: Vec<(libc::c_int, u64)>) {
    end_with_us(command);
    let mut wall = Some(wall);
    let enter = move || {
        for (resource, value) in &limits {
            set_limit(*resource, *value)?;
        }
        no_new_privileges()?;
        if let Some(wall) = wall.take() {
            wall.enter().map_err(|_| io::Error::from_raw_os_error(libc::EPERM))?;
        }
        for filter in &filters {
            let _ = install_on_this_thread(filter);
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only; rules, filters and limits were made before.
    unsafe { command.pre_exec(enter) };
}
