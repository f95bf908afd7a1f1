//! The floating-point environment's control bits: rounding, flushing of subnormals, traps.

/// The control bits; sticky exception flags are left out, since arithmetic sets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Environment(u64);

/// Reads them, for the calling thread.
#[cfg(target_arch = "x86_64")]
pub(super) fn get() -> Environment {
    const FLAGS: u32 = 0x3f;
    let (mut vector, mut scalar) = (0u32, 0u16);
    // SAFETY: both instructions store a control register to a variable of its size.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut vector, options(nostack, preserves_flags));
        std::arch::asm!("fnstcw [{}]", in(reg) &raw mut scalar, options(nostack, preserves_flags));
    }
    Environment(u64::from(vector & !FLAGS) | u64::from(scalar) << 32)
}

/// Sets them, for the calling thread.
#[cfg(target_arch = "x86_64")]
pub(super) fn set(environment: Environment) {
    let (vector, scalar) = (environment.0 as u32, (environment.0 >> 32) as u16);
    // SAFETY: the values were read by `get`, so no reserved bit is set.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const vector, options(nostack, preserves_flags));
        std::arch::asm!("fldcw [{}]", in(reg) &raw const scalar, options(nostack, preserves_flags));
    }
}

/// Reads them, for the calling thread.
#[cfg(target_arch = "aarch64")]
pub(super) fn get() -> Environment {
    let control: u64;
    // SAFETY: reads a control register.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nostack, nomem)) };
    Environment(control)
}

/// Sets them, for the calling thread.
#[cfg(target_arch = "aarch64")]
pub(super) fn set(environment: Environment) {
    // SAFETY: the value was read by `get`.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) environment.0, options(nostack, nomem)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_does_not_change_the_environment_and_setting_it_back_does_nothing() {
        let before = get();
        assert!(std::hint::black_box(1.0f32) / std::hint::black_box(3.0f32) > 0.3);
        set(before);
        assert_eq!(get(), before);
    }
}
