//! A kernel file: front matter (TOML in the first comment, or in the docstring), then device code.

mod adopted;
#[cfg(test)]
mod adopted_tests;
mod against;
mod arch;
mod dependent;
mod edit;
mod file;
mod headers;
mod jit;
mod language;
mod launch;
mod names;
mod plan;
#[cfg(test)]
mod plan_tests;
mod resolve;
#[cfg(test)]
pub(crate) mod samples;
mod skeleton;
mod tensor_map;

pub use adopted::{Call, adopted};
pub use against::CUDA_FACTS;
pub use arch::{TritonOptions, fits_arch, nvrtc_options, target_arch, triton_options};
pub use dependent::MustWait;
pub use edit::{add_variant, pad, set_dtypes, set_tunables};
pub use file::{
    FrontMatter, KernelError, KernelFile, Scratch, ScratchInit, Tunable, Variant, kernel_file, kernel_file_of_device,
};
pub use headers::{Header, headers, headers_named};
pub use jit::{JitArgument, JitLaunch};
pub use language::Language;
pub use launch::{Launch, Swizzle, TensorMap};
pub use plan::{Argument, PlannedLaunch};
pub use resolve::{Facts, Resolution};
pub use skeleton::{is_unwritten, skeleton};
pub use tensor_map::{MapSource, PlannedMap};
