//! The child's last words: what it died of, noted on the page before it dies.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::control::{Header, note};

static PAGE: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
static INPUTS: AtomicUsize = AtomicUsize::new(0);
static INPUTS_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Where to note what happened.
pub(super) fn note_in(page: *mut Header) {
    PAGE.store(page, Ordering::SeqCst);
}

/// Installs the handlers; the inputs lie at `inputs`, `bytes` of them.
pub(super) fn install(inputs: usize, bytes: usize) {
    INPUTS.store(inputs, Ordering::SeqCst);
    INPUTS_BYTES.store(bytes, Ordering::SeqCst);
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS] {
        // SAFETY: a zeroed sigaction is a valid one; the handler makes no call that is not safe in a handler.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Notes what happened, then lets it happen: the handler is gone when it returns, so the fault comes again and ends the
/// process. A system call does not come again.
extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo, and the page is mapped for good.
    let (info, header) = unsafe { (&*info, &*PAGE.load(Ordering::SeqCst)) };
    // SAFETY: for these signals the field is set, to null where there is no address.
    let address = unsafe { info.si_addr() } as usize;
    let inputs = INPUTS.load(Ordering::SeqCst);
    let offset = address.wrapping_sub(inputs);
    const ACCESS_DENIED: libc::c_int = 2;
    let (noted, detail) = match signal {
        libc::SIGSYS => (note::SYSCALL, system_call(info)),
        libc::SIGSEGV if info.si_code == ACCESS_DENIED && offset < INPUTS_BYTES.load(Ordering::SeqCst) => {
            (note::INPUT_WRITE, offset as i64)
        }
        libc::SIGSEGV if clock_read(info, context) => (note::CLOCK, 0),
        _ => (note::FAULT, address as i64),
    };
    header.detail.store(detail, Ordering::SeqCst);
    header.note.store(noted, Ordering::SeqCst);
    if signal == libc::SIGSYS {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(128 + libc::SIGSYS) };
    }
}

/// The number of the refused call: after the header of `siginfo` come the call's address (a pointer) and its number.
fn system_call(info: &libc::siginfo_t) -> i64 {
    // SAFETY: for SIGSYS the kernel fills these fields (`_sigsys` in asm-generic/siginfo.h).
    let number = unsafe { (&raw const *info).cast::<u8>().add(16 + size_of::<usize>()).cast::<libc::c_int>().read() };
    i64::from(number)
}

#[cfg(target_arch = "x86_64")]
fn clock_read(info: &libc::siginfo_t, context: *mut c_void) -> bool {
    const GENERAL_PROTECTION: libc::c_int = 128;
    if info.si_code != GENERAL_PROTECTION {
        return false;
    }
    // SAFETY: the kernel passes a ucontext, and an instruction that was executed can be read.
    let code = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        std::slice::from_raw_parts(context.uc_mcontext.gregs[libc::REG_RIP as usize] as *const u8, 3)
    };
    code.starts_with(&[0x0f, 0x31]) || code == [0x0f, 0x01, 0xf9]
}

#[cfg(not(target_arch = "x86_64"))]
fn clock_read(_: &libc::siginfo_t, _: *mut c_void) -> bool {
    false
}
