//! Memory of the device, and copies to and from it.

use cudarc::driver::sys::{self, CUdeviceptr};

use super::error::CudaError;
use super::gpu::Gpu;

/// Up to here the driver takes a copy of its own at once, so that uploads need not wait for what runs (pageable memory to
/// device, "API synchronization behavior" of the driver's manual).
const STAGED: usize = 64 << 10;

/// A stretch of the device's memory, freed when dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    gpu: Gpu,
    ptr: CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    /// Where it begins; a multiple of 256.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.gpu.may_release() {
            // SAFETY: allocated once, freed once, and nothing runs that could use it.
            let _ = unsafe { sys::cuMemFree_v2(self.ptr) };
        }
    }
}

impl Gpu {
    /// Allocates `bytes` (at least one).
    ///
    /// # Errors
    /// What the driver refused; [`CudaError::is_out_of_memory`] tells a full device.
    pub fn alloc(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        self.ready()?;
        let mut ptr: CUdeviceptr = 0;
        // SAFETY: a context is current; it writes one word.
        self.check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut ptr, bytes.max(1)) })?;
        Ok(DeviceMemory { gpu: self.clone(), ptr, bytes })
    }

    /// Copies `bytes` to `to`, in the stream's order.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // A large copy waits for what is before it, inside the driver and without end.
        if bytes.len() > STAGED {
            self.settle()?
        } else {
            self.ready()?
        }
        self.touched();
        // SAFETY: reads `bytes` before it returns (pageable memory). An address that is not ours is refused.
        self.check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.inner.stream)
        })
    }

    /// Copies what is at `from`, after all that is on the stream.
    ///
    /// # Errors
    /// What the driver refused, or that the device is lost.
    pub fn copy_out(&self, to: &mut [u8], from: u64) -> Result<(), CudaError> {
        self.settle()?;
        if to.is_empty() {
            return Ok(());
        }
        self.touched();
        // SAFETY: writes `to` before it returns (pageable memory), or at the latest before the next line does.
        self.check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.inner.stream)
        })?;
        self.settle()
    }

    /// Copies `bytes` from `from` to `to` on the device, in the stream's order.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        self.ready()?;
        if bytes == 0 {
            return Ok(());
        }
        self.touched();
        // SAFETY: addresses that are not ours are refused.
        self.check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.inner.stream) })
    }

    /// Fills `bytes` bytes at `at` with `value`, in the stream's order.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn memset(&self, at: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        self.ready()?;
        if bytes == 0 {
            return Ok(());
        }
        self.touched();
        // Words where they fit: a graph's node that sets bytes is many times slower.
        if at.is_multiple_of(4) && bytes.is_multiple_of(4) {
            let word = u32::from_ne_bytes([value; 4]);
            // SAFETY: addresses that are not ours are refused.
            return self
                .check("cuMemsetD32Async", unsafe { sys::cuMemsetD32Async(at, word, bytes / 4, self.inner.stream) });
        }
        // SAFETY: the same.
        self.check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(at, value, bytes, self.inner.stream) })
    }
}
