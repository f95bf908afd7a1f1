//! Seccomp: which system calls a process may make from now on.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Why a filter could not be made or installed.
#[derive(Debug, thiserror::Error)]
#[error("system call filter: {0}")]
pub struct SyscallError(String);

impl<E: Into<seccompiler::Error>> From<E> for SyscallError {
    fn from(error: E) -> Self {
        Self(error.into().to_string())
    }
}

/// What a running kernel may ask of the system: memory of its own, and to wait for and wake its threads. It reads from
/// descriptors in `read` and writes to those in `write`; anything else raises SIGSYS.
///
/// A wait with a time limit is a clock, and executable memory is code nobody checked: neither is allowed.
///
/// # Errors
/// An architecture the filter is not written for.
pub fn kernel_filter(read: &[i32], write: &[i32]) -> Result<BpfProgram, SyscallError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in [
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_restart_syscall,
    ] {
        rules.insert(call, Vec::new());
    }
    let when = |conditions: Vec<SeccompCondition>| SeccompRule::new(conditions);
    let equal = |index: u8, value: u64| SeccompCondition::new(index, Len::Dword, Op::Eq, value);
    let not_executable = SeccompCondition::new(2, Len::Dword, Op::MaskedEq(libc::PROT_EXEC as u64), 0)?;
    rules.insert(libc::SYS_mprotect, vec![when(vec![not_executable.clone()])?]);
    let anonymous =
        SeccompCondition::new(3, Len::Dword, Op::MaskedEq(libc::MAP_ANONYMOUS as u64), libc::MAP_ANONYMOUS as u64)?;
    rules.insert(libc::SYS_mmap, vec![when(vec![not_executable, anonymous])?]);
    let to = |fds: &[i32]| fds.iter().map(|fd| when(vec![equal(0, *fd as u64)?])).collect::<Result<Vec<_>, _>>();
    rules.insert(libc::SYS_read, to(read)?);
    rules.insert(libc::SYS_write, to(write)?);
    rules.insert(libc::SYS_writev, to(write)?);
    let private = libc::FUTEX_PRIVATE_FLAG;
    let mut futex = Vec::new();
    for operation in [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET] {
        for flag in [0, private] {
            futex.push(when(vec![
                equal(1, (operation | flag) as u64)?,
                SeccompCondition::new(3, Len::Qword, Op::Eq, 0)?,
            ])?);
        }
    }
    for flag in [0, private] {
        futex.push(when(vec![equal(1, (libc::FUTEX_WAKE | flag) as u64)?])?);
    }
    rules.insert(libc::SYS_futex, futex);
    // `abort()` on a damaged heap: it may only signal itself.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![when(vec![equal(0, own)?])?]);
    build(rules, SeccompAction::Trap, SeccompAction::Allow)
}

/// For a compiler: everything but the network, other processes' memory and the kernel's own machinery.
///
/// # Errors
/// An architecture the filter is not written for.
pub fn offline_filter() -> Result<BpfProgram, SyscallError> {
    let rules = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_io_uring_setup,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_keyctl,
        libc::SYS_mount,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_pidfd_getfd,
    ]
    .into_iter()
    .map(|call| (call, Vec::new()))
    .collect();
    build(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

fn build(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matching: SeccompAction,
) -> Result<BpfProgram, SyscallError> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matching, arch)?.try_into()?)
}

/// Installs a filter for every thread of the process, for good.
///
/// # Errors
/// The kernel refuses.
pub fn install_on_all_threads(filter: &BpfProgram) -> Result<(), SyscallError> {
    Ok(seccompiler::apply_filter_all_threads(filter)?)
}

/// Installs a filter for the calling thread and what it starts, for good.
///
/// # Errors
/// The kernel refuses.
pub fn install_on_this_thread(filter: &BpfProgram) -> Result<(), SyscallError> {
    Ok(seccompiler::apply_filter(filter)?)
}
