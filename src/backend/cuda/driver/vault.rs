//! Memory of the judge's own, out of reach while a candidate runs.

use super::error::CudaError;
use super::gpu::Gpu;
use super::mapping::{Access, Mapping};

/// Device memory whose access can be taken away and given back. A kernel that touches it while sealed faults.
#[derive(Debug)]
pub struct Vault {
    gpu: Gpu,
    mapping: Mapping,
}

impl Gpu {
    /// A vault of at least `bytes`, open.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn vault(&self, bytes: usize) -> Result<Vault, CudaError> {
        let bytes = bytes.max(1).next_multiple_of(self.granularity()?);
        let mapping = self.physical(bytes)?.map(&self.addresses(bytes)?, 0)?;
        let vault = Vault { gpu: self.clone(), mapping };
        vault.open()?;
        Ok(vault)
    }
}

impl Vault {
    /// Where it begins.
    #[must_use]
    pub fn ptr(&self) -> u64 {
        self.mapping.ptr()
    }

    /// Its length in bytes: what was asked for, rounded up.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Takes access away, once nothing runs.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn seal(&self) -> Result<(), CudaError> {
        self.gpu.protect(&[&self.mapping], Access::None)
    }

    /// Leaves only reading, once nothing runs.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn only_read(&self) -> Result<(), CudaError> {
        self.gpu.protect(&[&self.mapping], Access::Read)
    }

    /// Gives access back, once nothing runs.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn open(&self) -> Result<(), CudaError> {
        self.gpu.protect(&[&self.mapping], Access::Write)
    }
}
