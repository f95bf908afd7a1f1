//! What ended a child process, in words.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use super::control::note;
use crate::backend::Fault;

/// What ended a child, from how it ended and what it noted (which only words the failure). `beyond` tells of an offset into
/// inputs (0) or outputs (1) how far behind a fenced buffer's end it is, where there is one.
pub(super) fn crash(
    status: ExitStatus,
    noted: u32,
    detail: i64,
    beyond: impl Fn(usize, usize) -> Option<usize>,
) -> Fault {
    let signal = status.signal();
    let mut input_offset = None;
    let behind = |region| usize::try_from(detail).ok().and_then(|offset| beyond(region, offset));
    let fence = |(region, write): (usize, bool)| {
        let (did, of) = (if write { "wrote to" } else { "read" }, ["an input", "an output or scratch"][region]);
        let at = behind(region)?;
        Some(format!("it {did} memory beyond the end of {of}, {} bytes after the last one it may touch", at + 1))
    };
    let outside = || note::OUTSIDE.iter().flatten().position(|one| *one == noted).map(|at| (at / 2, at % 2 == 1));
    let what = match (noted, signal) {
        (note::CALLS, _) => return Fault::Host(io::Error::other("the calls sent to it do not decode")),
        (_, Some(libc::SIGSEGV)) if let Some(what) = outside().and_then(fence) => what,
        (_, Some(libc::SIGSEGV)) if outside() == Some((0, true)) => {
            input_offset = usize::try_from(detail).ok();
            format!("it wrote to its inputs (byte {detail} of their memory)")
        }
        (_, Some(signal)) if outside().is_some() => {
            format!("{} at an address outside its tensors", signal_name(signal))
        }
        (note::STACK, Some(_)) => "it needs more stack than the 512 KiB that a kernel may use".into(),
        (note::SYSCALL, _) => format!("forbidden system call ({})", system_call(detail)),
        (note::CLOCK, _) => "it read the processor's clock".into(),
        (note::FAULT, Some(signal)) if (0..4096).contains(&detail) => {
            format!("{} at a null pointer", signal_name(signal))
        }
        (note::FAULT, Some(signal)) => format!("{} at an address outside its tensors", signal_name(signal)),
        (_, Some(signal)) => format!("{}{}", signal_name(signal), hint(signal)),
        (_, None) => format!("it ended its own process with status {}", status.code().unwrap_or_default()),
    };
    Fault::Crash { what, signal, input_offset }
}

fn hint(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (a damaged heap or a failed assertion)",
        libc::SIGFPE => " (a division of integers by zero)",
        libc::SIGILL => " (an instruction this processor does not have)",
        libc::SIGKILL => " (perhaps out of memory)",
        libc::SIGXCPU => " (its CPU time is used up)",
        _ => "",
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGBUS => "SIGBUS",
        libc::SIGABRT => "SIGABRT",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGKILL => "SIGKILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGSYS => "SIGSYS",
        libc::SIGXCPU => "SIGXCPU",
        other => return format!("signal {other}"),
    };
    name.into()
}

/// The calls a candidate is likeliest to try, by name.
fn system_call(number: i64) -> String {
    let known = [
        (libc::SYS_openat, "openat"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_clone3, "clone3"),
        (libc::SYS_execve, "execve"),
        (libc::SYS_socket, "socket"),
        (libc::SYS_kill, "kill"),
        (libc::SYS_ptrace, "ptrace"),
        (libc::SYS_clock_gettime, "clock_gettime"),
        (libc::SYS_nanosleep, "nanosleep"),
        (libc::SYS_clock_nanosleep, "clock_nanosleep"),
        (libc::SYS_rt_sigaction, "rt_sigaction"),
        (libc::SYS_setitimer, "setitimer"),
        (libc::SYS_timer_create, "timer_create"),
        (libc::SYS_prctl, "prctl"),
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_madvise, "madvise"),
    ];
    known.iter().find(|(n, _)| *n == number).map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_words() {
        let by = |signal| ExitStatus::from_raw(signal);
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        for (status, noted, detail, words) in [
            (by(libc::SIGSEGV), note::FAULT, 16, "SIGSEGV at a null pointer"),
            (by(libc::SIGSEGV), note::FAULT, 1 << 40, "SIGSEGV at an address outside its tensors"),
            (by(libc::SIGSEGV), note::OUTSIDE[0][1], 320, "it wrote to its inputs (byte 320 of their memory)"),
            (by(libc::SIGSEGV), note::OUTSIDE[1][0], 320, "SIGSEGV at an address outside its tensors"),
            (by(libc::SIGSEGV), note::CLOCK, 0, "it read the processor's clock"),
            (by(libc::SIGFPE), note::NONE, 0, "SIGFPE (a division of integers by zero)"),
            (exit(159), note::SYSCALL, libc::SYS_openat, "forbidden system call (openat)"),
            (exit(159), note::SYSCALL, 9999, "forbidden system call (number 9999)"),
            (exit(3), note::NONE, 0, "it ended its own process with status 3"),
        ] {
            assert_eq!(crash(status, noted, detail, |_, _| None).to_string(), words);
        }
        let fenced = crash(by(libc::SIGSEGV), note::OUTSIDE[0][0], 320, |_, offset| Some(offset - 317)).to_string();
        assert_eq!(fenced, "it read memory beyond the end of an input, 4 bytes after the last one it may touch");
    }
}
