//! Compiled code on the device: loaded, launched as its plan says, timed.

mod glue;
mod host;
mod image;

pub use glue::glue;
pub use host::{Host, map_spec};
pub use image::{Image, KernelImage};
