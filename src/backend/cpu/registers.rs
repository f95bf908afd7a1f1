//! What a launch may leave in a thread's registers: control bits as they were, and nothing that the next launch could find there.

/// Control bits of arithmetic (rounding, flushing of subnormals, traps; sticky exception flags are left out, since arithmetic sets them), and
/// on x86-64 what else stays from one launch to the next and belongs to no kernel: whether the x87 stack is in use, as MMX leaves it,
/// segments, and the rights of memory keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registers {
    control: u64,
    #[cfg(target_arch = "x86_64")]
    others: x86::Others,
}

impl Registers {
    /// Of the calling thread.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn read() -> Self {
        const FLAGS: u32 = 0x3f;
        let (mut vector, mut scalar) = (0u32, 0u16);
        // SAFETY: both instructions store a control register to a variable of its size.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut vector, options(nostack, preserves_flags));
            std::arch::asm!("fnstcw [{}]", in(reg) &raw mut scalar, options(nostack, preserves_flags));
        }
        Self { control: u64::from(vector & !FLAGS) | u64::from(scalar) << 32, others: x86::Others::read() }
    }

    /// Sets the calling thread's, and leaves nothing in registers of numbers. Segments stay as they are: a thread's own variables hang on one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn restore(self) {
        self.others.restore();
        self.clear();
    }

    /// Leaves nothing in registers of numbers: a kernel could count its launches in one that nobody else uses.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn clear(self) {
        let (vector, scalar) = (self.control as u32, (self.control >> 32) as u16);
        x86::clear();
        // SAFETY: the values were read by `read`, so no reserved bit is set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const vector, options(nostack, preserves_flags));
            std::arch::asm!("fldcw [{}]", in(reg) &raw const scalar, options(nostack, preserves_flags));
        }
    }

    /// Of the calling thread.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn read() -> Self {
        let control: u64;
        // SAFETY: reads a control register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nostack, nomem)) };
        Self { control }
    }

    /// Sets the calling thread's.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn restore(self) {
        // SAFETY: the value was read by `read`.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) self.control, options(nostack, nomem)) };
    }

    /// Not done there: what a kernel leaves in the upper halves of vectors stays.
    #[cfg(target_arch = "aarch64")]
    pub(super) fn clear(self) {}
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;

    use crate::defence::Defence;

    /// x87, SSE, AVX, the masks and vectors of AVX-512, and the general registers of APX (Intel SDM volume 1, 13.1). Tiles need a permission
    /// that a kernel has not.
    const NUMBERS: u64 = 0x8_00e7;
    /// The rights of memory keys.
    const KEYS: u64 = 1 << 9;

    /// What this processor has, of which the system lets programs use it.
    struct Has {
        /// Registers of numbers that `xrstor` knows, as a mask.
        numbers: u64,
        keys: bool,
        /// Bases of segments by instructions.
        bases: bool,
    }

    fn has() -> &'static Has {
        static HAS: OnceLock<Has> = OnceLock::new();
        HAS.get_or_init(|| {
            const OSXSAVE: u32 = 1 << 27;
            const OSPKE: u32 = 1 << 4;
            const FSGSBASE: u64 = 2;
            if !Defence::Registers.stands() {
                return Has { numbers: 0, keys: false, bases: false };
            }
            let enabled = if __cpuid(1).ecx & OSXSAVE == 0 {
                0
            } else {
                let (low, high): (u32, u32);
                // SAFETY: there is such a register where OSXSAVE says so.
                unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
                u64::from(low) | u64::from(high) << 32
            };
            // SAFETY: reads a number of this process's own.
            let hardware = unsafe { libc::getauxval(libc::AT_HWCAP2) };
            // What an image of all that is enabled takes (leaf 13 exists where XSAVE does).
            let fits = enabled != 0 && __cpuid_count(13, 0).ebx as usize <= IMAGE;
            Has {
                numbers: if fits { enabled & NUMBERS } else { 0 },
                keys: enabled & KEYS != 0 && __cpuid_count(7, 0).ecx & OSPKE != 0,
                bases: hardware & FSGSBASE != 0,
            }
        })
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct Others {
        stack_in_use: bool,
        /// ds, es, fs, gs: those that select nothing have two bits that nobody looks at.
        segments: [u16; 4],
        /// Where gs begins; nobody uses it.
        base: u64,
        keys: u32,
    }

    impl Others {
        pub(super) fn read() -> Self {
            // Of the word of status: the class of the top of the stack, which is empty here, and which register is the top.
            const CLASS: u16 = 0x4500;
            const EMPTY: u16 = 0x4100;
            const TOP: u16 = 0x3800;
            let (has, mut base, mut keys) = (has(), 0, 0);
            if has.numbers == 0 {
                return Self { stack_in_use: false, segments: [0; 4], base, keys };
            }
            let status: u16;
            let segments: [u16; 4];
            // SAFETY: all of these read registers; the class goes to bits of the word of status that no other instruction of ours reads.
            unsafe {
                asm!("fxam", "fnstsw ax", out("ax") status, options(nomem, nostack));
                let (ds, es, fs, gs): (u16, u16, u16, u16);
                asm!("mov {:x}, ds", "mov {:x}, es", out(reg) ds, out(reg) es, options(nomem, nostack, preserves_flags));
                asm!("mov {:x}, fs", "mov {:x}, gs", out(reg) fs, out(reg) gs, options(nomem, nostack, preserves_flags));
                segments = [ds, es, fs, gs];
                if has.bases {
                    asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags));
                }
                if has.keys {
                    asm!("rdpkru", in("ecx") 0, out("eax") keys, out("edx") _, options(nomem, nostack, preserves_flags));
                }
            }
            Self { stack_in_use: status & CLASS != EMPTY || status & TOP != 0, segments, base, keys }
        }

        pub(super) fn restore(self) {
            // SAFETY: values that were read on this thread; nobody's memory is addressed by gs or has a key.
            unsafe {
                if has().bases {
                    asm!("wrgsbase {}", in(reg) self.base, options(nomem, nostack, preserves_flags));
                }
                if has().keys {
                    asm!("wrpkru", in("eax") self.keys, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags));
                }
            }
        }
    }

    /// An image of registers as `xrstor` reads it, in which all are as they are when a program starts. Those that the header does not name are not
    /// read, and still the processor wants the whole of the image to be memory.
    #[repr(C, align(64))]
    struct Image {
        scalar: [u32; 6],
        vector_control: u32,
        rest: [u32; IMAGE / 4 - 7],
    }

    /// Bytes of an image: with the tiles of AMX it takes 11 KiB.
    const IMAGE: usize = 16 << 10;

    static IMAGE_AT_START: Image = Image { scalar: [0; 6], vector_control: 0x1f80, rest: [0; IMAGE / 4 - 7] };

    pub(super) fn clear() {
        let mask = has().numbers;
        if mask == 0 {
            return;
        }
        // SAFETY: the image is aligned and as large as this processor's are; all registers that change are the caller's to change, by the
        // calling convention.
        unsafe {
            asm!(
                "xrstor64 [{}]",
                in(reg) &raw const IMAGE_AT_START,
                in("eax") mask as u32,
                in("edx") (mask >> 32) as u32,
                clobber_abi("sysv64"),
                options(nostack, readonly),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_does_not_change_what_is_looked_at_and_setting_it_back_does_nothing() {
        let before = Registers::read();
        assert!(std::hint::black_box(1.0f32) / std::hint::black_box(3.0f32) > 0.3);
        assert_eq!(Registers::read(), before);
        before.restore();
        assert_eq!(Registers::read(), before);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_number_in_a_vector_is_gone_and_a_full_x87_stack_is_seen() {
        let before = Registers::read();
        let (kept, after): (u64, u64);
        // SAFETY: moves numbers through registers that are the caller's to change, one of them behind the compiler's back in between.
        unsafe {
            std::arch::asm!("movq xmm15, {}", in(reg) 41u64, out("xmm15") _, options(nomem, nostack));
            std::arch::asm!("movq {}, xmm15", out(reg) kept, options(nomem, nostack));
        }
        before.clear();
        // SAFETY: as above.
        unsafe { std::arch::asm!("movq {}, xmm15", out(reg) after, options(nomem, nostack)) };
        assert_eq!((kept, after), (41, 0));
        // SAFETY: nothing between here and `restore` uses the x87 stack.
        unsafe { std::arch::asm!("movd mm0, {:e}", in(reg) 1, options(nomem, nostack)) };
        let left = Registers::read();
        before.restore();
        assert_ne!(left, before);
        assert_eq!(Registers::read(), before);
    }
}
