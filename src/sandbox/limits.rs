//! Limits and switches of the calling process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets both the soft and the hard limit of `resource` (`libc::RLIMIT_…`).
///
/// # Errors
/// The system's refusal.
pub fn set_limit(resource: libc::c_int, value: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` lives through the call, which only reads it.
    check(unsafe { libc::setrlimit(resource as _, &raw const limit) })
}

/// This process may open as many files as it could be allowed to: a judge holds two for every thread of every candidate.
///
/// # Errors
/// The system's refusal.
pub fn more_files() -> io::Result<()> {
    let most = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?)
}

/// Nothing this process executes from now on gains privileges.
///
/// # Errors
/// The system's refusal.
pub fn no_new_privileges() -> io::Result<()> {
    // SAFETY: changes a flag of the process; no memory is touched.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

/// No core dumps, and no other process of the user may trace this one.
///
/// # Errors
/// The system's refusal.
pub fn no_dumps() -> io::Result<()> {
    set_limit(libc::RLIMIT_CORE as _, 0)?;
    // SAFETY: changes a flag of the process; no memory is touched.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// Where all cores are busy this process leaves them to others: a compiler to a judge that asks meanwhile.
pub fn give_way() {
    // Without it everything works as well, only slower.
    let _ = rustix::process::nice(10);
}

/// Reading the time stamp counter is a fault from now on, for the calling thread and the threads it starts.
///
/// # Errors
/// Machines without such a switch (anything but x86).
pub fn deny_clock() -> io::Result<()> {
    // SAFETY: changes a flag of the thread; no memory is touched.
    check(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV, 0, 0, 0) })
}
