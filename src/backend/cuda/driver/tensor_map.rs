//! Tensor maps: what the copy engine (TMA) is told of a tensor.

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType as Type, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle as Swizzle,
};

use super::error::CudaError;
use super::gpu::Gpu;

/// What an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapElement {
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// Single precision.
    F32,
    /// 64-bit integers.
    I64,
    /// 32-bit integers.
    I32,
    /// Bytes.
    U8,
}

/// How rows of a box are shuffled in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapSwizzle {
    /// Not at all.
    None,
    /// In 32 bytes.
    B32,
    /// In 64 bytes.
    B64,
    /// In 128 bytes.
    B128,
}

impl MapElement {
    const fn raw(self) -> Type {
        match self {
            Self::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Self::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Self::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            Self::I64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
            Self::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
            Self::U8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        }
    }

    /// The driver's number for it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.raw() as u32
    }
}

impl MapSwizzle {
    const fn raw(self) -> Swizzle {
        match self {
            Self::None => Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Self::B32 => Swizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            Self::B64 => Swizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Self::B128 => Swizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        }
    }

    /// The driver's number for it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.raw() as u32
    }
}

/// A tensor and the box that is copied of it; dimensions from the innermost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MapSpec {
    /// Where it begins, a multiple of 16.
    pub address: u64,
    /// Its elements.
    pub element: MapElement,
    /// Elements in each dimension.
    pub dims: Vec<u64>,
    /// Bytes between neighbours in each dimension but the innermost.
    pub strides: Vec<u64>,
    /// Elements of the box in each dimension.
    pub extent: Vec<u32>,
    /// Steps in each dimension.
    pub steps: Vec<u32>,
    /// How the box is shuffled.
    pub swizzle: MapSwizzle,
}

/// An encoded map, as kernels take it by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct TensorMap {
    words: [u64; 16],
}

impl TensorMap {
    /// Its 128 bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

impl Gpu {
    /// Encodes a map. Outside the tensor it reads zeros.
    ///
    /// # Errors
    /// [`CudaError::Launch`] with what the copy engine cannot do, or that this device has none.
    pub fn tensor_map(&self, spec: &MapSpec) -> Result<TensorMap, CudaError> {
        self.ready()?;
        if self.facts().capability < 90 {
            return Err(CudaError::Launch("tensor maps need compute capability 9.0 or newer".into()));
        }
        let rank = spec.dims.len();
        let lengths = [spec.strides.len() + 1, spec.extent.len(), spec.steps.len()];
        if !(1..=5).contains(&rank) || lengths != [rank; 3] {
            return Err(CudaError::Launch(
                "a tensor map needs dims, strides, box and steps of one rank, 1 to 5".into(),
            ));
        }
        // A rank of one has no strides, and the driver still wants a pointer that is not null.
        let mut strides = spec.strides.clone();
        strides.push(0);
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the arrays have `rank` entries (strides one more than is read), the map lies on 64 bytes. The address is
        // written into the map, not read.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                spec.element.raw(),
                rank as u32,
                spec.address as *mut std::ffi::c_void,
                spec.dims.as_ptr(),
                strides.as_ptr(),
                spec.extent.as_ptr(),
                spec.steps.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                spec.swizzle.raw(),
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        self.check("cuTensorMapEncodeTiled", result)?;
        Ok(TensorMap { words: map.opaque })
    }
}
