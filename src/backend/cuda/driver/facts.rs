//! What the driver says of a device.

use std::ffi::{CStr, c_char, c_int};

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult, CUuuid};

use super::error::CudaError;

/// A device as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts {
    /// The number it was opened by.
    pub ordinal: u32,
    /// Product name.
    pub name: String,
    /// `GPU-…`, as `nvidia-smi -L` writes it.
    pub uuid: String,
    /// Address on the bus, as `0000:1b:00.0`.
    pub bus_id: String,
    /// Compute capability as 80, 90, 120.
    pub capability: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of L2.
    pub l2_bytes: u64,
    /// Bytes of shared memory that a block may ask for.
    pub shared_per_block: u32,
    /// Bytes of shared memory in a multiprocessor.
    pub shared_per_multiprocessor: u32,
    /// 32-bit registers in a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Threads that a multiprocessor holds.
    pub threads_per_multiprocessor: u32,
    /// Highest clock of the multiprocessors, kHz.
    pub clock_khz: u32,
    /// Highest clock of the memory, kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory's bus, bits.
    pub bus_bits: u32,
    /// Whether memory is protected by error-correcting codes.
    pub ecc: bool,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Whether another process can map its memory by a file.
    pub shares_memory: bool,
    /// The newest CUDA the driver serves, as 12080 for 12.8.
    pub driver: u32,
}

/// Asks for everything.
pub(super) fn facts(ordinal: u32, device: CUdevice, driver: u32) -> Result<GpuFacts, CudaError> {
    let ask = |attribute: Attribute| -> Result<u32, CudaError> {
        let mut value: c_int = 0;
        // SAFETY: `device` is one the driver gave; it writes one int.
        let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        ok("cuDeviceGetAttribute", result).map(|()| u32::try_from(value).unwrap_or_default())
    };
    let mut name = [0 as c_char; 256];
    // SAFETY: the driver writes at most 255 characters and a zero.
    ok("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), 255, device) })?;
    let mut bus_id = [0 as c_char; 32];
    // SAFETY: the driver writes at most 31 characters and a zero.
    ok("cuDeviceGetPCIBusId", unsafe { sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), 31, device) })?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the driver writes 16 bytes.
    ok("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) })?;
    let mut memory_bytes = 0usize;
    // SAFETY: the driver writes one word.
    ok("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&raw mut memory_bytes, device) })?;
    Ok(GpuFacts {
        ordinal,
        name: text(&name),
        uuid: uuid_text(uuid.bytes.map(|byte| byte as u8)),
        bus_id: text(&bus_id).to_ascii_lowercase(),
        capability: 10 * ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: ask(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        shared_per_block: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        registers_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads_per_multiprocessor: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        clock_khz: ask(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: ask(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        bus_bits: ask(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        ecc: ask(Attribute::CU_DEVICE_ATTRIBUTE_ECC_ENABLED)? != 0,
        memory_bytes: memory_bytes as u64,
        // A driver that does not know the question has no such files.
        shares_memory: ask(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
            .is_ok_and(|it| it != 0),
        driver,
    })
}

/// A result of a call that cannot lose the device.
pub(super) fn ok(place: &'static str, result: CUresult) -> Result<(), CudaError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(CudaError::of(place, other)),
    }
}

/// Characters up to the first zero.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| *c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// As `GPU-8-4-4-4-12`.
fn uuid_text(bytes: [u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvidia_smi_writes_it() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    #[test]
    fn names_end_at_the_first_zero() {
        let name = b"NVIDIA H200\0rest\0".map(|byte| byte as c_char);
        assert_eq!(text(&name), "NVIDIA H200");
        assert_eq!(text(&[65, 66]), "");
    }
}
