//! Which protections this machine has.

/// One protection and whether this machine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// Short name.
    pub name: &'static str,
    /// Whether it is in force for the processes started from here.
    pub available: bool,
    /// What it is for, and what its absence means.
    pub why: &'static str,
}

impl Protection {
    /// What is missing and what that means; `None` where it is there.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        (!self.available).then(|| format!("{} ({})", self.name, self.why))
    }
}

/// Every protection candidates run under, and whether this machine has it.
#[must_use]
pub fn protections() -> Vec<Protection> {
    let row = |name, available, why| Protection { name, available, why };
    vec![
        row(
            "landlock",
            has_landlock(),
            "the compiler sees only its own files, a kernel none; without it they can read yours",
        ),
        row(
            "seccomp",
            has_seccomp(),
            "a kernel makes no system calls of its own; without it it can read clocks and files",
        ),
        row(
            "clock",
            has_clock_switch(),
            "a kernel that reads the time stamp counter faults; without it it can tell timed runs",
        ),
        row(
            "sealed inputs",
            has_sealing(),
            "inputs cannot be made writable again; without it a kernel that reaches a system call can change them",
        ),
    ]
}

fn has_landlock() -> bool {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with the version flag the call takes no pointer and only returns a number.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, CREATE_RULESET_VERSION)
    };
    abi > 0
}

fn has_seccomp() -> bool {
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: asks about one action; `action` lives through the call.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    answer == 0
}

fn has_clock_switch() -> bool {
    let mut mode: libc::c_int = 0;
    // SAFETY: the kernel writes one int to `mode`.
    unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut mode, 0, 0, 0) == 0 }
}

fn has_sealing() -> bool {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    memfd_create("warpsmith-probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|fd| fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protection_says_what_it_is_for() {
        let all = protections();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|p| p.why.contains("without it")));
    }
}
