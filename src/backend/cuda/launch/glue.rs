//! Code of the forward pass itself, compiled like a kernel.

use std::collections::BTreeMap;

use super::super::compile::{Compiler, EARLY_STARTS, Unit, prelude};
use super::super::driver::{Arguments, CudaError, Function, Geometry, Gpu};
use super::Image;
use crate::backend::{BuildError, Step};
use crate::op::Dtype;

const SOURCE: &str = include_str!("glue.cu");

/// Threads of a block.
const THREADS: u32 = 256;

/// The image of a step, for a device of this compute capability.
///
/// # Errors
/// The compiler's.
pub fn glue(compiler: &Compiler, step: Step, dtype: Dtype, capability: u32) -> Result<Image, BuildError> {
    let unit = Unit {
        name: "glue.cu".to_owned(),
        source: format!("{}#line 1 \"glue.cu\"\n{SOURCE}", prelude(dtype, capability)),
        arch: format!("sm_{capability}"),
        options: Vec::new(),
        names: Vec::new(),
        numbers: BTreeMap::new(),
    };
    let compiled = compiler.trusted(&[unit])?;
    let cubin = compiled.first().ok_or_else(|| BuildError::Machine("nothing was compiled".into()))?;
    Ok(Image::Glue(step, cubin.cubin.to_vec().into()))
}

/// Puts a step on the stream. All of them wait for what is in front of them, so one that `follows` another launch may begin early.
pub(super) fn launch(
    gpu: &Gpu,
    function: &Function,
    step: Step,
    pointers: &[Option<u64>],
    ints: &[i64],
    follows: bool,
) -> Result<(), CudaError> {
    let arguments = pointers.iter().fold(Arguments::new(), |all, pointer| all.pointer(pointer.unwrap_or(0)));
    let arguments = ints.iter().fold(arguments, |all, int| all.long(*int));
    let most = i64::from(gpu.facts().multiprocessors) * 16;
    let blocks = match step {
        Step::Embedding | Step::AddedEmbedding | Step::Split => ints.first().copied().unwrap_or(1),
        Step::Add | Step::Gelu | Step::GeluTanh | Step::Tanh => blocks_of(ints.first().copied().unwrap_or(1)),
        // Rows and their width.
        Step::CopyRows => blocks_of(ints.iter().take(2).product()),
        Step::Nothing => 1,
    };
    let pdl = follows && gpu.facts().capability >= EARLY_STARTS;
    gpu.launch(function, &Geometry { pdl, ..Geometry::linear(blocks.clamp(1, most) as u32, THREADS) }, &arguments)
}

/// Blocks for so many elements, of which each thread takes 16 bytes at a time.
fn blocks_of(elements: i64) -> i64 {
    elements / i64::from(THREADS) / 8 + 1
}
