//! Memory of the judge's own, out of reach while a candidate runs.

use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::error::CudaError;
use super::gpu::Gpu;

/// Device memory whose access can be taken away and given back. A kernel that touches it while sealed faults.
#[derive(Debug)]
pub struct Vault {
    gpu: Gpu,
    ptr: CUdeviceptr,
    bytes: usize,
    handle: CUmemGenericAllocationHandle,
    open: bool,
}

impl Gpu {
    /// A vault of at least `bytes`, open.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn vault(&self, bytes: usize) -> Result<Vault, CudaError> {
        self.ready()?;
        let prop = properties(self.facts().ordinal);
        let mut granularity = 0usize;
        // SAFETY: `prop` is a whole description; it writes one word.
        self.check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(
                &raw mut granularity,
                &raw const prop,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        })?;
        let bytes = bytes.max(1).next_multiple_of(granularity.max(1));
        let mut handle: CUmemGenericAllocationHandle = 0;
        // SAFETY: the size is a multiple of the granularity; it writes one word.
        self.check("cuMemCreate", unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const prop, 0) })?;
        let release = |error| {
            // SAFETY: created above, mapped nowhere.
            let _ = unsafe { sys::cuMemRelease(handle) };
            error
        };
        let mut ptr: CUdeviceptr = 0;
        // SAFETY: asks for any range of that size; it writes one word.
        self.check("cuMemAddressReserve", unsafe { sys::cuMemAddressReserve(&raw mut ptr, bytes, 0, 0, 0) })
            .map_err(release)?;
        // SAFETY: range and allocation have this size, and nothing is mapped there.
        if let Err(error) = self.check("cuMemMap", unsafe { sys::cuMemMap(ptr, bytes, 0, handle, 0) }) {
            // SAFETY: reserved above, nothing mapped.
            let _ = unsafe { sys::cuMemAddressFree(ptr, bytes) };
            return Err(release(error));
        }
        let mut vault = Vault { gpu: self.clone(), ptr, bytes, handle, open: false };
        vault.open()?;
        Ok(vault)
    }
}

impl Vault {
    /// Where it begins.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Its length in bytes: what was asked for, rounded up.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes access away, once nothing runs.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn seal(&mut self) -> Result<(), CudaError> {
        self.access(false)
    }

    /// Gives access back, once nothing runs.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn open(&mut self) -> Result<(), CudaError> {
        self.access(true)
    }

    fn access(&mut self, open: bool) -> Result<(), CudaError> {
        self.gpu.ready()?;
        if self.open == open {
            return Ok(());
        }
        self.gpu.settle()?;
        let flags = if open {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE
        };
        let access = CUmemAccessDesc { location: location(self.gpu.facts().ordinal), flags };
        // SAFETY: the whole of a mapped range, one description.
        self.gpu.check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(self.ptr, self.bytes, &raw const access, 1) })?;
        self.open = open;
        Ok(())
    }
}

impl Drop for Vault {
    fn drop(&mut self) {
        if self.gpu.may_release() {
            // SAFETY: mapped, reserved and created once by `vault`, and nothing runs that could use it.
            unsafe {
                let _ = sys::cuMemUnmap(self.ptr, self.bytes);
                let _ = sys::cuMemAddressFree(self.ptr, self.bytes);
                let _ = sys::cuMemRelease(self.handle);
            }
        }
    }
}

fn location(ordinal: u32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as i32 }
}

fn properties(ordinal: u32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: location(ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        // SAFETY: plain numbers, for which zero means nothing special.
        allocFlags: unsafe { std::mem::zeroed() },
    }
}
