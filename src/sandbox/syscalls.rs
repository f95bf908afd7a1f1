//! Seccomp: which system calls a process may make from now on.

use std::collections::BTreeMap;
use std::ops::Range;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
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

/// Where a running kernel's process may ask the system for something, and what it asks with.
#[derive(Debug, Clone)]
pub struct Origins {
    /// Behind the one instruction that the harness's own calls are made with.
    pub gate: u64,
    /// Code of the C library, whose allocator asks for memory.
    pub library: Range<u64>,
    /// Memory that only the harness may protect, map over or give back.
    pub guarded: Range<u64>,
    /// Bytes before `guarded` that nothing uses: no stretch that begins below them and is no longer reaches beyond.
    pub reserve: u64,
    /// Descriptors that the harness reads.
    pub read: Vec<i32>,
    /// The descriptor that the harness answers by, in words of eight bytes.
    pub answers: i32,
}

/// What a running kernel may ask of the system: memory of its own, and to wait for and wake its threads. Anything else raises
/// SIGSYS, and so does any call that is made elsewhere than [`Origins`] say: a kernel's own code makes none.
///
/// A wait with a time limit is a clock, and executable memory is code nobody checked: neither is allowed. Of advice about memory
/// only what an allocator gives is: other advice writes to the files behind shared memory, or slows down.
///
/// # Errors
/// An architecture the filter is not written for.
pub fn kernel_filter(origins: &Origins) -> Result<BpfProgram, SyscallError> {
    let gate = build(gate_rules(origins)?, SeccompAction::Trap, SeccompAction::Allow)?;
    let library = build(library_rules(origins)?, SeccompAction::Trap, SeccompAction::Allow)?;
    let mut program = by_origin(origins, library.len());
    program.extend(library);
    program.extend(gate);
    Ok(program)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn when(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(conditions)
}

fn equal(index: u8, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, Len::Dword, Op::Eq, value)
}

/// Without the bits of `mask` but those of `value`.
fn masked(index: u8, mask: i32, value: i32) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, Len::Dword, Op::MaskedEq(mask as u64), value as u64)
}

/// Waiting without a time limit, and waking.
fn futex_rules() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let private = libc::FUTEX_PRIVATE_FLAG;
    let mut rules = Vec::new();
    for flag in [0, private] {
        for operation in [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET] {
            let endless = SeccompCondition::new(3, Len::Qword, Op::Eq, 0)?;
            rules.push(when(vec![equal(1, (operation | flag) as u64)?, endless])?);
        }
        rules.push(when(vec![equal(1, (libc::FUTEX_WAKE | flag) as u64)?])?);
    }
    Ok(rules)
}

fn gate_rules(origins: &Origins) -> Result<Rules, SyscallError> {
    let mut rules = Rules::new();
    for call in [libc::SYS_sched_yield, libc::SYS_restart_syscall] {
        rules.insert(call, Vec::new());
    }
    let words = size_of::<u64>() as u64;
    let read = origins.read.iter().map(|fd| when(vec![equal(0, *fd as u64)?, equal(2, words)?]));
    rules.insert(libc::SYS_read, read.collect::<Result<_, _>>()?);
    rules.insert(libc::SYS_write, vec![when(vec![equal(0, origins.answers as u64)?, equal(2, words)?])?]);
    rules.insert(libc::SYS_futex, futex_rules()?);
    let inside = vec![
        SeccompCondition::new(0, Len::Qword, Op::Ge, origins.guarded.start)?,
        SeccompCondition::new(0, Len::Qword, Op::Lt, origins.guarded.end)?,
        masked(2, libc::PROT_EXEC, 0)?,
    ];
    rules.insert(libc::SYS_mprotect, vec![when(inside)?]);
    Ok(rules)
}

fn library_rules(origins: &Origins) -> Result<Rules, SyscallError> {
    let mut rules = Rules::new();
    for call in [
        libc::SYS_brk,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sched_getaffinity,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_restart_syscall,
    ] {
        rules.insert(call, Vec::new());
    }
    // A stretch of memory (its address and length come first) that does not touch what is guarded, with further conditions.
    let elsewhere = |more: &[SeccompCondition]| -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        let above = vec![SeccompCondition::new(0, Len::Qword, Op::Ge, origins.guarded.end)?];
        let below = vec![
            SeccompCondition::new(0, Len::Qword, Op::Lt, origins.guarded.start.saturating_sub(origins.reserve))?,
            SeccompCondition::new(1, Len::Qword, Op::Le, origins.reserve)?,
        ];
        [above, below]
            .into_iter()
            .map(|mut one| {
                when({
                    one.extend_from_slice(more);
                    one
                })
            })
            .collect()
    };
    rules.insert(libc::SYS_munmap, elsewhere(&[])?);
    rules.insert(libc::SYS_mprotect, elsewhere(&[masked(2, libc::PROT_EXEC, 0)?])?);
    let mut advice = Vec::new();
    for harmless in [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE] {
        advice.extend(elsewhere(&[equal(2, harmless as u64)?])?);
    }
    rules.insert(libc::SYS_madvise, advice);
    // Memory of its own, where the system chooses: nothing is mapped over, nothing is shared.
    let kinds = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE | libc::MAP_SHARED | libc::MAP_FIXED;
    let own = masked(3, kinds, libc::MAP_ANONYMOUS | libc::MAP_PRIVATE)?;
    rules.insert(libc::SYS_mmap, vec![when(vec![masked(2, libc::PROT_EXEC, 0)?, own])?]);
    rules.insert(libc::SYS_futex, futex_rules()?);
    // `abort()` on a damaged heap, and its words before: it may only signal itself, and only that.
    rules.insert(libc::SYS_writev, vec![when(vec![equal(0, libc::STDERR_FILENO as u64)?])?]);
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![when(vec![equal(0, own)?, equal(2, libc::SIGABRT as u64)?])?]);
    Ok(rules)
}

/// What stands before the rules: calls from the gate go to those behind the `library` instructions of the others, calls from
/// the C library go on, and all others end here.
fn by_origin(origins: &Origins, library: usize) -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const GO: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// Offsets of the halves of `instruction_pointer` in `struct seccomp_data`.
    const LOW: u32 = 8;
    const HIGH: u32 = 12;
    let one = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    let jump = |code, k, jt, jf| sock_filter { code, jt, jf, k };
    let [high, low] = [|address: u64| (address >> 32) as u32, |address: u64| address as u32];
    let pieces = halves(&origins.library);
    // Instructions from the end of a piece's own to the first rule of the library.
    let rest = |piece: usize| ((pieces.len() - 1 - piece) * 6 + 1) as u32;
    let mut program = vec![
        one(LOAD, HIGH),
        jump(EQUAL, high(origins.gate), 0, 3),
        one(LOAD, LOW),
        jump(EQUAL, low(origins.gate), 0, 1),
        one(GO, (pieces.len() * 6 + 1 + library) as u32),
    ];
    for (index, piece) in pieces.iter().enumerate() {
        program.extend([
            one(LOAD, HIGH),
            jump(EQUAL, high(piece.start), 0, 4),
            one(LOAD, LOW),
            jump(AT_LEAST, low(piece.start), 0, 2),
            // The last address of a piece can be told from those behind it, its end may not fit.
            jump((libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16, low(piece.end - 1), 1, 0),
            one(GO, rest(index)),
        ]);
    }
    program.push(one(RETURN, libc::SECCOMP_RET_TRAP));
    program
}

/// A range in pieces whose addresses have the same upper half each.
fn halves(range: &Range<u64>) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut from = range.start;
    while from < range.end {
        let next = ((from >> 32) + 1) << 32;
        pieces.push(from..next.min(range.end));
        from = next;
    }
    pieces
}

/// For a compiler: everything but the network, other processes' memory and the kernel's own machinery.
///
/// # Errors
/// An architecture the filter is not written for.
pub fn offline_filter() -> Result<BpfProgram, SyscallError> {
    let rules = OFFLINE.iter().chain(&SOCKETS).map(|call| (*call, Vec::new())).collect();
    build(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// The same for a process that uses a GPU: CUDA's driver does not start unless it can make a Unix socket and bind it, for itself. Nothing can be
/// connected to, and a socket that sends without being connected cannot be made.
///
/// # Errors
/// An architecture the filter is not written for.
pub fn offline_gpu_filter() -> Result<BpfProgram, SyscallError> {
    let other = SeccompCondition::new(0, Len::Dword, Op::Ne, libc::AF_UNIX as u64)?;
    let kind = |kind: i32| masked(1, SOCKET_KIND, kind);
    let sockets = vec![when(vec![other])?, when(vec![kind(libc::SOCK_DGRAM)?])?, when(vec![kind(libc::SOCK_RAW)?])?];
    let mut rules: Rules = OFFLINE.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, sockets);
    build(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))
}

/// What no confined process needs: the network, other processes, and what changes the system.
const OFFLINE: [libc::c_long; 13] = [
    libc::SYS_socketpair,
    libc::SYS_connect,
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
];
/// How sockets come to be.
const SOCKETS: [libc::c_long; 2] = [libc::SYS_socket, libc::SYS_bind];
/// What of a socket's type is its kind (`SOCK_TYPE_MASK` in the kernel's `net.h`); the rest are flags.
const SOCKET_KIND: i32 = 0xf;

/// For a process that stays one: it starts threads and no other process, and signals nobody. Two filters, each to be installed.
///
/// # Errors
/// An architecture the filter is not written for.
pub fn single_filter() -> Result<Vec<BpfProgram>, SyscallError> {
    let process = when(vec![masked(0, libc::CLONE_THREAD, 0)?])?;
    let mut rules: Rules = [
        libc::SYS_kill,
        libc::SYS_tkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_rt_tgsigqueueinfo,
        libc::SYS_pidfd_send_signal,
        libc::SYS_pidfd_open,
    ]
    .into_iter()
    .map(|call| (call, Vec::new()))
    .collect();
    rules.insert(libc::SYS_clone, vec![process]);
    #[cfg(target_arch = "x86_64")]
    rules.extend([(libc::SYS_fork, Vec::new()), (libc::SYS_vfork, Vec::new())]);
    let denied = build(rules, SeccompAction::Allow, SeccompAction::Errno(libc::EPERM as u32))?;
    // Its flags are in memory, which a filter cannot see; a library that is told there is no such call uses the other.
    let newer = [(libc::SYS_clone3, Vec::new())].into_iter().collect();
    let newer = build(newer, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32))?;
    Ok(vec![denied, newer])
}

fn build(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> Result<BpfProgram, SyscallError> {
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
