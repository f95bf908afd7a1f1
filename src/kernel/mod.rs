//! A kernel file: front matter (TOML in the first comment), then device code.

mod edit;
mod file;
mod resolve;

pub use edit::{add_variant, pad, set_tunables};
pub use file::{FrontMatter, KernelError, KernelFile, Scratch, ScratchInit, Tunable, Variant};
pub use resolve::{Facts, Resolution};
