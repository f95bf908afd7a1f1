//! A tensor map at a shape, held to what the driver takes.

use super::{KernelError, Swizzle, TensorMap};
use crate::expr::Expr;
use crate::op::ElementType;

/// The driver's limits (`cuTensorMapEncodeTiled`, "The parameters passed are bound to the following requirements").
const MAX_DIM: u64 = 1 << 32;
const STRIDES_BELOW: u64 = 1 << 40;
const MAX_BOX: i64 = 256;
const MAX_STEP: i64 = 8;
const PIECE: u64 = 16;

/// What `cuTensorMapEncodeTiled` is given, the address left out: no interleaving, zeros outside the tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlannedMap {
    /// Whose address it gets.
    pub source: MapSource,
    /// What its elements are.
    pub dtype: ElementType,
    /// Sizes in elements, the contiguous dimension first; one to five.
    pub dims: Vec<u64>,
    /// Distances in bytes between neighbours of every dimension but the first.
    pub strides_bytes: Vec<u64>,
    /// Elements of the box in each dimension.
    pub extent: Vec<u32>,
    /// Steps within the box.
    pub elem_strides: Vec<u32>,
    /// How the box lies in shared memory.
    pub swizzle: Swizzle,
}

/// Whose memory a tensor map describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MapSource {
    /// The operation's tensor of this index.
    Tensor(usize),
    /// The file's scratch buffer of this index.
    Scratch(usize),
}

impl PlannedMap {
    /// Its number of dimensions.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.dims.len() as u32
    }
}

/// The memory that a map is laid over.
pub(super) struct Ground {
    pub(super) source: MapSource,
    pub(super) dtype: ElementType,
    /// Bytes of an element.
    pub(super) size: u64,
    /// Elements there are.
    pub(super) elements: u64,
}

/// The map over `ground`, where `value` evaluates an expression of the front matter.
pub(super) fn plan_map(
    map: &TensorMap,
    ground: &Ground,
    value: &dyn Fn(&str, &Expr) -> Result<i64, KernelError>,
) -> Result<PlannedMap, KernelError> {
    let place = format!("tensor map `{}`", map.name);
    let fail = |what: String| KernelError::Launch { place: place.clone(), what };
    let values = |key: &str, list: &[Expr]| -> Result<Vec<i64>, KernelError> {
        list.iter().map(|expr| value(&format!("{place}, {key}"), expr)).collect()
    };
    let within = |key: &str, list: Vec<i64>, most: i64| -> Result<Vec<u32>, KernelError> {
        let outside = list.iter().enumerate().find(|(_, value)| !(1..=most).contains(*value));
        match outside {
            Some((at, value)) => Err(fail(format!("{key}[{at}] is {value}; it must be between 1 and {most}"))),
            None => Ok(list.into_iter().map(|value| value as u32).collect()),
        }
    };
    let dims = values("dims", &map.dims)?
        .into_iter()
        .enumerate()
        .map(|(at, dim)| {
            let size = u64::try_from(dim).ok().filter(|size| (1..=MAX_DIM).contains(size));
            size.ok_or_else(|| fail(format!("dims[{at}] is {dim}; it must be between 1 and 2^32")))
        })
        .collect::<Result<Vec<u64>, _>>()?;
    let too_far = |at: usize| fail(format!("strides[{at}] is 2^40 bytes or more"));
    let strides = if map.strides.is_empty() {
        packed(&dims).ok_or_else(|| too_far(dims.len().saturating_sub(2)))?
    } else {
        let given = values("strides", &map.strides)?;
        let negative = |at: usize, stride: i64| fail(format!("strides[{at}] is {stride} elements"));
        let sized = given.into_iter().enumerate().map(|(at, s)| u64::try_from(s).map_err(|_| negative(at, s)));
        sized.collect::<Result<Vec<u64>, _>>()?
    };
    let strides_bytes = strides
        .iter()
        .enumerate()
        .map(|(at, stride)| {
            let bytes = stride.checked_mul(ground.size).filter(|bytes| *bytes < STRIDES_BELOW);
            let bytes = bytes.ok_or_else(|| too_far(at))?;
            match bytes % PIECE {
                0 => Ok(bytes),
                _ => Err(fail(format!(
                    "strides[{at}] is {bytes} bytes ({stride} elements); it must be a multiple of 16"
                ))),
            }
        })
        .collect::<Result<Vec<u64>, _>>()?;
    // The last element, in 128 bits: no product of numbers below 2^40 leaves them.
    let last: u128 = dims
        .iter()
        .zip(std::iter::once(&1).chain(&strides))
        .map(|(dim, stride)| u128::from(dim - 1) * u128::from(*stride))
        .sum();
    if last >= u128::from(ground.elements) {
        return Err(fail(format!("it reaches element {last} of `{}`, which has {}", map.tensor, ground.elements)));
    }
    let extent = within("box", values("box", &map.extent)?, MAX_BOX)?;
    let inner = u64::from(extent[0]) * ground.size;
    if !inner.is_multiple_of(PIECE) {
        return Err(fail(format!("box[0] is {inner} bytes; it must be a multiple of 16")));
    }
    if let Some(span) = map.swizzle.span()
        && inner > u64::from(span)
    {
        return Err(fail(format!("box[0] is {inner} bytes; swizzle {span}B takes at most {span}")));
    }
    let elem_strides = match map.elem_strides.as_slice() {
        [] => vec![1; dims.len()],
        given => within("elem_strides", values("elem_strides", given)?, MAX_STEP)?,
    };
    Ok(PlannedMap {
        source: ground.source,
        dtype: ground.dtype,
        dims,
        strides_bytes,
        extent,
        elem_strides,
        swizzle: map.swizzle,
    })
}

/// The strides of every dimension but the first where nothing lies between rows.
fn packed(dims: &[u64]) -> Option<Vec<u64>> {
    let mut stride = 1u64;
    dims[..dims.len().saturating_sub(1)]
        .iter()
        .map(|dim| {
            stride = stride.checked_mul(*dim)?;
            Some(stride)
        })
        .collect()
}
