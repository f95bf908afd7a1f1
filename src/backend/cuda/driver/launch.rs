//! Launches.

use std::ffi::{c_int, c_void};
use std::rc::Rc;

use cudarc::driver::sys::{
    self, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};

use super::error::CudaError;
use super::gpu::Gpu;
use super::module::Function;
use super::tensor_map::TensorMap;

/// Clusters up to here are portable.
const PORTABLE_CLUSTER: u32 = 8;

/// How a kernel is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Blocks of a cluster.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be on the device at once.
    pub cooperative: bool,
    /// Whether it may start before the launch before it has ended (programmatic dependent launch).
    pub pdl: bool,
}

impl Geometry {
    /// `blocks` blocks of `threads` threads, nothing else.
    #[must_use]
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared: 0, cluster: None, cooperative: false, pdl: false }
    }
}

/// A kernel's arguments, by value.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    /// Every argument begins at a unit: tensor maps must lie on 64 bytes.
    units: Vec<Unit>,
    /// First unit and bytes of each.
    places: Vec<(usize, usize)>,
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Unit([u8; 64]);

impl Arguments {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device pointer.
    #[must_use]
    pub fn pointer(self, address: u64) -> Self {
        self.bytes(&address.to_ne_bytes())
    }

    /// Adds a 64-bit integer.
    #[must_use]
    pub fn long(self, value: i64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Adds a 32-bit integer.
    #[must_use]
    pub fn int(self, value: i32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Adds a float.
    #[must_use]
    pub fn float(self, value: f32) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Adds a double.
    #[must_use]
    pub fn double(self, value: f64) -> Self {
        self.bytes(&value.to_ne_bytes())
    }

    /// Adds a tensor map.
    #[must_use]
    pub fn map(self, map: &TensorMap) -> Self {
        self.bytes(&map.bytes())
    }

    /// Adds a structure of these bytes.
    #[must_use]
    pub fn bytes(mut self, value: &[u8]) -> Self {
        self.places.push((self.units.len(), value.len()));
        for chunk in value.chunks(64) {
            let mut unit = Unit([0; 64]);
            unit.0[..chunk.len()].copy_from_slice(chunk);
            self.units.push(unit);
        }
        self
    }

    fn sizes(&self) -> Vec<usize> {
        self.places.iter().map(|(_, bytes)| *bytes).collect()
    }
}

impl Gpu {
    /// Launches `function`, in the stream's order.
    ///
    /// # Errors
    /// [`CudaError::Launch`] where arguments or sizes cannot be, else what the driver refused.
    pub fn launch(&self, function: &Function, geometry: &Geometry, arguments: &Arguments) -> Result<(), CudaError> {
        self.ready()?;
        // The driver reads as many bytes as the kernel declares, whatever was given.
        if *function.parameters != arguments.sizes() {
            return Err(CudaError::Launch(mismatch(function.name(), &function.parameters, &arguments.sizes())));
        }
        self.allow(function, geometry)?;
        let mut attributes = attributes(geometry);
        let config = CUlaunchConfig {
            gridDimX: geometry.grid[0],
            gridDimY: geometry.grid[1],
            gridDimZ: geometry.grid[2],
            blockDimX: geometry.block[0],
            blockDimY: geometry.block[1],
            blockDimZ: geometry.block[2],
            sharedMemBytes: geometry.shared,
            hStream: self.inner.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let mut pointers: Vec<*mut c_void> = arguments
            .places
            .iter()
            .map(|(unit, _)| arguments.units.as_ptr().wrapping_add(*unit).cast_mut().cast())
            .collect();
        if let Some(modules) = &mut *self.inner.captured.borrow_mut() {
            modules.push(Rc::clone(&function.module));
        } else {
            self.touched();
        }
        // SAFETY: the function's module is loaded; there are as many arguments as it declares, each of the size it declares
        // (checked above), copied before the call returns; the attributes outlive the call.
        self.check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&raw const config, function.raw, pointers.as_mut_ptr(), std::ptr::null_mut())
        })
    }

    /// How many blocks of `function` a multiprocessor holds at once.
    ///
    /// # Errors
    /// As [`Gpu::launch`].
    pub fn occupancy(&self, function: &Function, geometry: &Geometry) -> Result<u32, CudaError> {
        self.ready()?;
        self.allow(function, geometry)?;
        let threads = geometry.block.iter().try_fold(1u32, |all, n| all.checked_mul(*n));
        let threads = threads.and_then(|n| c_int::try_from(n).ok()).unwrap_or(c_int::MAX);
        let mut blocks: c_int = 0;
        // SAFETY: the function's module is loaded; it writes one int.
        self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                function.raw,
                threads,
                geometry.shared as usize,
            )
        })?;
        Ok(u32::try_from(blocks).unwrap_or_default())
    }

    /// Lets the function have what the geometry asks for beyond the usual.
    fn allow(&self, function: &Function, geometry: &Geometry) -> Result<(), CudaError> {
        let set = |attribute, value: u32| {
            let value = c_int::try_from(value).unwrap_or(c_int::MAX);
            // SAFETY: the function's module is loaded.
            self.check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function.raw, attribute, value) })
        };
        if geometry.shared > function.dynamic.get() {
            let own = function.facts().shared_bytes;
            let most = self.facts().shared_per_block;
            if u64::from(geometry.shared) + u64::from(own) > u64::from(most) {
                return Err(CudaError::Launch(format!(
                    "`{}` asks for {} bytes of shared memory ({own} declared, {} dynamic), and a block can have {most}",
                    function.name(),
                    u64::from(geometry.shared) + u64::from(own),
                    geometry.shared,
                )));
            }
            set(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, geometry.shared)?;
            function.dynamic.set(geometry.shared);
        }
        let blocks = geometry.cluster.map_or(1, |cluster| cluster.iter().fold(1u32, |all, n| all.saturating_mul(*n)));
        if blocks > PORTABLE_CLUSTER && !function.large_clusters.get() {
            set(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
            function.large_clusters.set(true);
        }
        Ok(())
    }
}

fn attributes(geometry: &Geometry) -> Vec<CUlaunchAttribute> {
    let attribute = |id, fill: &dyn Fn(&mut CUlaunchAttributeValue)| {
        let mut value = CUlaunchAttributeValue { pad: [0; 64] };
        fill(&mut value);
        CUlaunchAttribute { id, pad: [0; 4], value }
    };
    let mut all = Vec::new();
    if let Some([x, y, z]) = geometry.cluster {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        all.push(attribute(id, &|value| {
            value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        }));
    }
    if geometry.cooperative {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        all.push(attribute(id, &|value| value.cooperative = 1));
    }
    if geometry.pdl {
        let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        all.push(attribute(id, &|value| value.programmaticStreamSerializationAllowed = 1));
    }
    all
}

/// What is wrong between what a kernel declares and what it is given.
fn mismatch(name: &str, declared: &[usize], given: &[usize]) -> String {
    if declared.len() != given.len() {
        let parameters = if declared.len() == 1 { "parameter" } else { "parameters" };
        return format!("`{name}` declares {} {parameters}, and the launch gives {}", declared.len(), given.len());
    }
    let at = declared.iter().zip(given).position(|(declared, given)| declared != given).unwrap_or_default();
    format!(
        "parameter {} of `{name}` has {} bytes, and the launch gives {} (tensors and symbols have 8, scalars 4, tensor maps 128)",
        at + 1,
        declared.get(at).copied().unwrap_or_default(),
        given.get(at).copied().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_what_does_not_fit() {
        assert_eq!(mismatch("f", &[8, 8], &[8]), "`f` declares 2 parameters, and the launch gives 1");
        let words = mismatch("f", &[8, 8, 4], &[8, 4, 4]);
        assert!(words.starts_with("parameter 2 of `f` has 8 bytes, and the launch gives 4"), "{words}");
    }

    #[test]
    fn arguments_keep_order_and_size_and_each_lies_on_64_bytes() {
        let arguments = Arguments::new().pointer(1).float(2.0).bytes(&[7; 130]).long(-1);
        assert_eq!(arguments.sizes(), [8, 4, 130, 8]);
        assert_eq!(arguments.places, [(0, 8), (1, 4), (2, 130), (5, 8)]);
        assert_eq!(arguments.units.as_ptr() as usize % 64, 0);
        assert_eq!(arguments.units[5].0[..8], (-1i64).to_ne_bytes());
    }

    #[test]
    fn only_what_is_asked_for_becomes_an_attribute() {
        let mut geometry = Geometry::linear(1, 32);
        assert!(attributes(&geometry).is_empty());
        geometry.cluster = Some([2, 1, 1]);
        geometry.pdl = true;
        assert_eq!(attributes(&geometry).len(), 2);
    }
}
