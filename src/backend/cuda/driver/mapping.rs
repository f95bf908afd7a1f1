//! Physical memory, ranges of addresses, and who may do what where the one is mapped to the other.

use std::cell::{Cell, OnceCell};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use cudarc::driver::sys::{
    self, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::error::CudaError;
use super::facts::GpuFacts;
use super::gpu::Gpu;

/// What kernels may do with memory; what they may not faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Nothing.
    None,
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

/// Memory that no address leads to until it is mapped, given back when dropped.
#[derive(Debug)]
pub struct Physical {
    gpu: Gpu,
    handle: CUmemGenericAllocationHandle,
    bytes: usize,
    /// What another process maps it by, once it was asked for.
    file: OnceCell<OwnedFd>,
}

/// Addresses that nothing else gets; memory must be mapped there first.
#[derive(Debug)]
pub struct Addresses {
    gpu: Gpu,
    ptr: CUdeviceptr,
    bytes: usize,
}

/// Physical memory at an address, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    /// Kept as long as anything is mapped in it.
    range: Rc<Addresses>,
    at: CUdeviceptr,
    /// Taken out by [`Mapping::unmap`].
    physical: Option<Physical>,
    access: Cell<Access>,
}

impl Gpu {
    /// What sizes and places of mapped memory are multiples of, bytes.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn granularity(&self) -> Result<usize, CudaError> {
        self.ready()?;
        let prop = properties(self.facts());
        let mut granularity = 0usize;
        // SAFETY: `prop` is a whole description; it writes one word.
        self.check("cuMemGetAllocationGranularity", unsafe {
            sys::cuMemGetAllocationGranularity(
                &raw mut granularity,
                &raw const prop,
                CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        })?;
        Ok(granularity.max(1))
    }

    /// Memory of `bytes`, a multiple of [`Gpu::granularity`].
    ///
    /// # Errors
    /// What the driver refused; [`CudaError::is_out_of_memory`] tells a full device.
    pub fn physical(&self, bytes: usize) -> Result<Physical, CudaError> {
        self.ready()?;
        let prop = properties(self.facts());
        let mut handle: CUmemGenericAllocationHandle = 0;
        // SAFETY: `prop` is a whole description; it writes one word.
        self.check("cuMemCreate", unsafe { sys::cuMemCreate(&raw mut handle, bytes, &raw const prop, 0) })?;
        Ok(Physical { gpu: self.clone(), handle, bytes, file: OnceCell::new() })
    }

    /// A range of `bytes` addresses, a multiple of [`Gpu::granularity`].
    ///
    /// # Errors
    /// What the driver refused.
    pub fn addresses(&self, bytes: usize) -> Result<Rc<Addresses>, CudaError> {
        self.ready()?;
        let mut ptr: CUdeviceptr = 0;
        // SAFETY: asks for any range of that size; it writes one word.
        self.check("cuMemAddressReserve", unsafe { sys::cuMemAddressReserve(&raw mut ptr, bytes, 0, 0, 0) })?;
        Ok(Rc::new(Addresses { gpu: self.clone(), ptr, bytes }))
    }

    /// Lets kernels do with neighbouring mappings what `access` says, once nothing runs.
    ///
    /// # Errors
    /// What the driver refused: the mappings are then as they were.
    pub fn protect(&self, neighbours: &[&Mapping], access: Access) -> Result<(), CudaError> {
        let (Some(first), Some(last)) = (neighbours.first(), neighbours.last()) else { return Ok(()) };
        if neighbours.iter().all(|mapping| mapping.access.get() == access) {
            return self.ready();
        }
        assert!(neighbours.windows(2).all(|two| two[0].end() == two[1].at), "they lie side by side");
        self.settle()?;
        let flags = match access {
            Access::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Access::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Access::Write => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let desc = CUmemAccessDesc { location: location(self.facts().ordinal), flags };
        let bytes = (last.end() - first.at) as usize;
        // SAFETY: whole mappings that lie side by side, one description.
        self.check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(first.at, bytes, &raw const desc, 1) })?;
        neighbours.iter().for_each(|mapping| mapping.access.set(access));
        Ok(())
    }
}

impl Physical {
    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A file by which another process can map it. It keeps the memory as long as it is open.
    ///
    /// # Errors
    /// What the driver refused: this device's memory cannot be shared, or no more files may be open.
    pub fn file(&self) -> Result<OwnedFd, CudaError> {
        let copy =
            |file: &OwnedFd| file.try_clone().map_err(|error| CudaError::Launch(format!("sharing memory: {error}")));
        if let Some(file) = self.file.get() {
            return copy(file);
        }
        if !self.gpu.facts().shares_memory {
            return Err(CudaError::Launch("this device's memory cannot be shared with another process".into()));
        }
        self.gpu.ready()?;
        let mut file: RawFd = -1;
        let posix = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: memory that was created with this type of handle; the driver writes one descriptor.
        let result = unsafe { sys::cuMemExportToShareableHandle((&raw mut file).cast(), self.handle, posix, 0) };
        self.gpu.check("cuMemExportToShareableHandle", result)?;
        // SAFETY: the driver opened it for us.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // Compilers that are started later have no business with it.
        let _ = rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::CLOEXEC);
        copy(self.file.get_or_init(|| file))
    }

    /// Maps it `offset` bytes into a range, where nothing may touch it yet.
    ///
    /// # Errors
    /// What the driver refused: it does not fit there, or something else is there.
    pub fn map(self, range: &Rc<Addresses>, offset: usize) -> Result<Mapping, CudaError> {
        if offset.checked_add(self.bytes).is_none_or(|end| end > range.bytes) {
            return Err(CudaError::Launch("a mapping that leaves its range of addresses".into()));
        }
        let at = range.ptr + offset as u64;
        self.gpu.ready()?;
        // SAFETY: inside a reserved range; where something is mapped already, the driver refuses.
        self.gpu.check("cuMemMap", unsafe { sys::cuMemMap(at, self.bytes, 0, self.handle, 0) })?;
        Ok(Mapping { range: Rc::clone(range), at, physical: Some(self), access: Cell::new(Access::None) })
    }
}

impl Addresses {
    /// The first address.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// How many there are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Mapping {
    /// Where it begins.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.at
    }

    /// One more than its last address.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.at + self.bytes() as u64
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.physical.as_ref().map_or(0, Physical::bytes)
    }

    /// A file by which another process can map the memory.
    ///
    /// # Errors
    /// As [`Physical::file`].
    pub fn file(&self) -> Result<OwnedFd, CudaError> {
        let physical = self.physical.as_ref();
        physical.ok_or_else(|| CudaError::Launch("memory that was taken away".into()))?.file()
    }

    /// What kernels may do with it now.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access.get()
    }

    /// Takes the memory away from its address; `None` where something that hangs may still use it.
    #[must_use]
    pub fn unmap(mut self) -> Option<Physical> {
        if self.take_away() { self.physical.take() } else { None }
    }

    fn take_away(&self) -> bool {
        let Some(physical) = &self.physical else { return false };
        if !self.range.gpu.may_release() {
            return false;
        }
        // SAFETY: a whole mapping, and nothing runs that could use it.
        let result = unsafe { sys::cuMemUnmap(self.at, physical.bytes) };
        self.range.gpu.check("cuMemUnmap", result).is_ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let _ = self.take_away();
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if self.gpu.may_release() {
            // SAFETY: created once, released once; where it is still mapped, the memory stays until that ends.
            let _ = unsafe { sys::cuMemRelease(self.handle) };
        }
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if self.gpu.may_release() {
            // SAFETY: reserved once, given back once; mappings keep their range, so nothing is mapped there.
            let _ = unsafe { sys::cuMemAddressFree(self.ptr, self.bytes) };
        }
    }
}

fn location(ordinal: u32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal as i32 }
}

fn properties(facts: &GpuFacts) -> CUmemAllocationProp {
    use sys::CUmemAllocationHandleType as Handle;
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        // Nobody else has a way to it but by a file that this process makes and sends.
        requestedHandleTypes: match facts.shares_memory {
            true => Handle::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            false => Handle::CU_MEM_HANDLE_TYPE_NONE,
        },
        location: location(facts.ordinal),
        win32HandleMetaData: std::ptr::null_mut(),
        // SAFETY: plain numbers, for which zero means nothing special.
        allocFlags: unsafe { std::mem::zeroed() },
    }
}
