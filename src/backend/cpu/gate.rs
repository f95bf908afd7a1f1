//! The one place from which a running child speaks to the system for the harness.
//!
//! The child's filter knows the address behind this one instruction (`sandbox::kernel_filter`): answers to the judge, and
//! what the harness itself needs, are accepted from here alone. A system call in a candidate's own code ends it, whatever it
//! asks for; one in the C library's code may manage memory, and nothing more.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

use libc::c_long;

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.warpsmith_gate, \"ax\", @progbits",
    ".globl warpsmith_gate",
    ".hidden warpsmith_gate",
    ".type warpsmith_gate, @function",
    "warpsmith_gate:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "syscall",
    ".globl warpsmith_gate_passed",
    ".hidden warpsmith_gate_passed",
    "warpsmith_gate_passed:",
    "ret",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.warpsmith_gate, \"ax\", @progbits",
    ".globl warpsmith_gate",
    ".hidden warpsmith_gate",
    ".type warpsmith_gate, @function",
    "warpsmith_gate:",
    "mov x8, x0",
    "mov x0, x1",
    "mov x1, x2",
    "mov x2, x3",
    "mov x3, x4",
    "svc #0",
    ".globl warpsmith_gate_passed",
    ".hidden warpsmith_gate_passed",
    "warpsmith_gate_passed:",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn warpsmith_gate(number: c_long, first: usize, second: usize, third: usize, fourth: usize) -> isize;
    fn warpsmith_gate_passed();
}

/// Where the system says that a call through the gate came from.
pub(super) fn address() -> u64 {
    warpsmith_gate_passed as *const () as u64
}

/// The next word of a pipe; `None` where there will be none.
pub(super) fn read_word(fd: RawFd) -> Option<u64> {
    let mut word = 0u64;
    loop {
        // SAFETY: reads at most eight bytes into `word`.
        match unsafe { warpsmith_gate(libc::SYS_read, fd as usize, &raw mut word as usize, size_of::<u64>(), 0) } {
            8 => return Some(word),
            error if error == -(libc::EINTR as isize) => {}
            _ => return None,
        }
    }
}

/// Sends a word. Where nobody reads any more, the leash ends this process.
pub(super) fn write_word(fd: RawFd, word: u64) {
    // SAFETY: writes eight bytes from `word`.
    unsafe { warpsmith_gate(libc::SYS_write, fd as usize, &raw const word as usize, size_of::<u64>(), 0) };
}

/// Sleeps while `word` is `value`; may return early. `shared` says that another process wakes it.
pub(super) fn sleep(word: &AtomicU32, value: u32, shared: bool) {
    let operation = libc::FUTEX_WAIT | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the word outlives the call; without a time limit no other pointer is read.
    unsafe { warpsmith_gate(libc::SYS_futex, word.as_ptr() as usize, operation as usize, value as usize, 0) };
}

/// Wakes all threads of this process that sleep on `word`.
pub(super) fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call.
    unsafe { warpsmith_gate(libc::SYS_futex, word.as_ptr() as usize, operation as usize, i32::MAX as usize, 0) };
}

/// Gives the core to somebody else, if anybody wants it.
pub(super) fn give_way() {
    // SAFETY: takes no pointer.
    unsafe { warpsmith_gate(libc::SYS_sched_yield, 0, 0, 0, 0) };
}

/// Sets what may be done with whole pages.
pub(super) fn protect(address: usize, bytes: usize, protection: libc::c_int) -> bool {
    // SAFETY: the caller's pages are tensors, which no code of this process's own holds a reference into.
    unsafe { warpsmith_gate(libc::SYS_mprotect, address, bytes, protection as usize, 0) == 0 }
}
