//! What the driver says when it does not do what it is asked.

use std::ffi::{CStr, c_char};
use std::io;

use cudarc::driver::sys::{self, CUresult};

use super::super::Fault;

/// Why a call of the driver has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver, or none that this program can use.
    #[error("there is no CUDA driver: {0}")]
    NoDriver(String),
    /// The driver is there, the device is not.
    #[error("there is no CUDA device {ordinal}: {reason}")]
    NoDevice {
        /// The one that was asked for.
        ordinal: u32,
        /// What there is instead.
        reason: String,
    },
    /// The driver refused a call.
    #[error("{place}: {name}, {meaning}{hint}")]
    Call {
        /// The driver's function.
        place: &'static str,
        /// Its code.
        code: u32,
        /// The code's name.
        name: String,
        /// What the driver says it means.
        meaning: String,
        /// What to do about it; empty, or begins with a separator.
        hint: &'static str,
    },
    /// A launch that cannot be as it is asked for; found before the driver was asked.
    #[error("{0}")]
    Launch(String),
    /// A kernel faulted or hangs, and the context with it: only a new process gets the device back.
    #[error("the device is lost to this process: {0}")]
    Lost(String),
}

impl CudaError {
    /// The error of `place`.
    pub(super) fn of(place: &'static str, result: CUresult) -> Self {
        let (name, meaning) = words(result);
        Self::Call { place, code: result as u32, name, meaning, hint: hint(result) }
    }

    /// Whether memory of the device has run out.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Call { code, .. } if *code == CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32)
    }

    /// The error as the end of a launch: a launch that is refused is the kernel's fault, all else the machine's.
    #[must_use]
    pub fn fault(self) -> Fault {
        let launching = ["cuLaunchKernelEx", "cuFuncSetAttribute", "cuGraphLaunch", "cuTensorMapEncodeTiled"];
        match self {
            Self::Lost(what) => Fault::Crash { what, signal: None, input_offset: None },
            Self::Launch(_) => Fault::Crash { what: self.to_string(), signal: None, input_offset: None },
            Self::Call { place, .. } if launching.contains(&place) => {
                Fault::Crash { what: format!("the launch was refused: {self}"), signal: None, input_offset: None }
            }
            other => Fault::Host(io::Error::other(other)),
        }
    }
}

/// What a result does to the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sticky {
    /// Nothing: this one call failed.
    No,
    /// A kernel did something that ends the context.
    Kernel,
    /// The machine did.
    Machine,
}

/// Whether every later call in this context fails too, and whose doing that is.
pub(super) fn sticky(result: CUresult) -> Sticky {
    use CUresult as R;
    match result {
        R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_LAUNCH_TIMEOUT
        | R::CUDA_ERROR_ASSERT
        | R::CUDA_ERROR_HARDWARE_STACK_ERROR
        | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | R::CUDA_ERROR_INVALID_PC
        | R::CUDA_ERROR_LAUNCH_FAILED
        | R::CUDA_ERROR_CONTAINED
        | R::CUDA_ERROR_TENSOR_MEMORY_LEAK
        | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | R::CUDA_ERROR_UNKNOWN => Sticky::Kernel,
        R::CUDA_ERROR_ECC_UNCORRECTABLE
        | R::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | R::CUDA_ERROR_EXTERNAL_DEVICE
        | R::CUDA_ERROR_DEVICE_UNAVAILABLE
        | R::CUDA_ERROR_DEINITIALIZED => Sticky::Machine,
        _ => Sticky::No,
    }
}

/// A fault's name with what it usually is.
pub(super) fn kernel_fault(result: CUresult) -> String {
    use CUresult as R;
    let (name, meaning) = words(result);
    let usual = match result {
        // The driver does not say which; inputs are mapped so that they can only be read.
        R::CUDA_ERROR_ILLEGAL_ADDRESS => {
            "it touched memory outside its tensors and scratch, or wrote to memory that it may only read (an input?)"
        }
        R::CUDA_ERROR_MISALIGNED_ADDRESS => "a vector access at an address that is no multiple of its width",
        R::CUDA_ERROR_ILLEGAL_INSTRUCTION => "an instruction this device does not have, or a trap",
        R::CUDA_ERROR_ASSERT => "a device-side assertion failed",
        R::CUDA_ERROR_HARDWARE_STACK_ERROR => "its stack overflowed",
        R::CUDA_ERROR_INVALID_ADDRESS_SPACE => "an address of the wrong space (shared for global, say)",
        _ => return format!("{name} ({meaning})"),
    };
    format!("{name} ({usual})")
}

fn hint(result: CUresult) -> &'static str {
    use CUresult as R;
    match result {
        R::CUDA_ERROR_OUT_OF_MEMORY => "; is another program using this GPU's memory?",
        R::CUDA_ERROR_NO_BINARY_FOR_GPU => "; the kernel was compiled for another architecture",
        R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
            "; too many registers or too much shared memory for a block of that size"
        }
        R::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE => "; not all blocks fit on the device at once",
        R::CUDA_ERROR_INVALID_CLUSTER_SIZE => "; the device cannot hold a cluster of that size with these blocks",
        R::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "; the driver's library and kernel module differ: reboot after an update"
        }
        R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "; the compiler is newer than the driver",
        R::CUDA_ERROR_SYSTEM_NOT_READY => "; nvidia-fabricmanager may not be running",
        R::CUDA_ERROR_DEVICE_UNAVAILABLE => "; another process holds the GPU in exclusive mode",
        _ => "",
    }
}

/// The code's name and the driver's sentence for it.
fn words(result: CUresult) -> (String, String) {
    let mut name: *const c_char = std::ptr::null();
    let mut meaning: *const c_char = std::ptr::null();
    // SAFETY: a result exists, so the library is loaded; both write a pointer to a constant string or leave null.
    unsafe {
        let _ = sys::cuGetErrorName(result, &raw mut name);
        let _ = sys::cuGetErrorString(result, &raw mut meaning);
    }
    let text = |pointer: *const c_char, otherwise: String| {
        if pointer.is_null() {
            return otherwise;
        }
        // SAFETY: not null, and constant strings of the driver's end with a zero and live as long as it does.
        unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
    };
    (text(name, format!("error {}", result as u32)), text(meaning, "an error this driver does not know".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_device_is_a_crash_and_a_refused_copy_is_the_machines() {
        let call = |place| CudaError::Call {
            place,
            code: 1,
            name: "CUDA_ERROR_INVALID_VALUE".into(),
            meaning: "invalid argument".into(),
            hint: "",
        };
        assert!(matches!(CudaError::Lost("x".into()).fault(), Fault::Crash { .. }));
        assert!(matches!(CudaError::Launch("x".into()).fault(), Fault::Crash { .. }));
        assert!(matches!(call("cuLaunchKernelEx").fault(), Fault::Crash { .. }));
        assert!(matches!(call("cuMemcpyHtoDAsync").fault(), Fault::Host(_)));
        assert_eq!(call("cuMemAlloc").to_string(), "cuMemAlloc: CUDA_ERROR_INVALID_VALUE, invalid argument");
    }

    #[test]
    fn only_what_ends_the_context_is_sticky() {
        assert_eq!(sticky(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), Sticky::Kernel);
        assert_eq!(sticky(CUresult::CUDA_ERROR_ECC_UNCORRECTABLE), Sticky::Machine);
        assert_eq!(sticky(CUresult::CUDA_ERROR_INVALID_VALUE), Sticky::No);
        assert_eq!(sticky(CUresult::CUDA_ERROR_NOT_READY), Sticky::No);
        assert_eq!(sticky(CUresult::CUDA_ERROR_OUT_OF_MEMORY), Sticky::No);
    }
}
