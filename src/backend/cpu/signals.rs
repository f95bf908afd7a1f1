//! The child's last words: what it died of, noted on the page before it dies.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::control::{Header, note};

static PAGE: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
/// Where inputs and outputs begin, and their bytes.
static BASES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static SIZES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Where to note what happened.
pub(super) fn note_in(page: *mut Header) {
    PAGE.store(page, Ordering::SeqCst);
}

/// Installs the handlers; inputs and outputs lie at `bases`, `sizes` bytes of them.
pub(super) fn install(bases: [usize; 2], sizes: [usize; 2]) {
    for region in [0, 1] {
        BASES[region].store(bases[region], Ordering::SeqCst);
        SIZES[region].store(sizes[region], Ordering::SeqCst);
    }
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
    const ACCESS_DENIED: libc::c_int = 2;
    let offsets = [0, 1].map(|region: usize| address.wrapping_sub(BASES[region].load(Ordering::SeqCst)));
    let region = [0, 1].into_iter().find(|region| offsets[*region] < SIZES[*region].load(Ordering::SeqCst));
    let (noted, detail) = match (signal, region) {
        (libc::SIGSYS, _) => (note::SYSCALL, system_call(info)),
        // The judge knows what is there: an input, or nothing that may be touched.
        (libc::SIGSEGV, Some(region)) if info.si_code == ACCESS_DENIED => {
            (note::OUTSIDE[region][usize::from(is_write(context))], offsets[region] as i64)
        }
        (libc::SIGSEGV, _) if clock_read(info, context) => (note::CLOCK, 0),
        (libc::SIGSEGV, None) if is_of_the_stack(address, context) => (note::STACK, 0),
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

/// Whether an address lies above the stack pointer, and not far: what has been pushed lies there, where there is a stack.
fn is_of_the_stack(address: usize, context: *mut c_void) -> bool {
    /// Beyond that it is somebody else's; below the pointer functions that call none may keep 128 bytes.
    const FAR: usize = 16 << 20;
    const RED_ZONE: usize = 128;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel passes a ucontext.
    let pointer = unsafe { (&*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RSP as usize] } as usize;
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel passes a ucontext.
    let pointer = unsafe { (&*context.cast::<libc::ucontext_t>()).uc_mcontext.sp } as usize;
    (pointer.saturating_sub(RED_ZONE)..pointer.saturating_add(FAR)).contains(&address)
}

/// Whether what was refused was a write; a system that does not tell so tells of writes only.
#[cfg(target_arch = "x86_64")]
fn is_write(context: *mut c_void) -> bool {
    /// In the processor's own word about a page fault.
    const WRITE: i64 = 2;
    // SAFETY: the kernel passes a ucontext.
    unsafe { (&*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn is_write(_: *mut c_void) -> bool {
    true
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
