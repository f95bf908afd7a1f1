//! Backends: compile, allocate, launch, time.
//!
//! [`Backend`] is what the harness knows of a kind of device, [`Toolchain`] what the forward pass does. They decide what is judged and
//! timed; a backend only does it. Each runs code it does not trust: nothing a kernel can reach decides anything.

mod bounds;
mod cache;
mod call;
pub mod cpu;
pub mod cuda;
mod device;
mod fault;
mod memory;
mod oracles;
mod source;
mod step;
mod toolchain;
mod values;

pub use bounds::Place;
pub(crate) use bounds::{merge_outputs, told_apart};
pub use cache::compiled_kernels;
pub use call::{Call, Region, Span, calls_per_sample};
pub use device::{
    Arena, CaseLimits, Conditions, Device, Disturbed, Exchange, Gather, Host, Lent, Outside, Piece, Placing, Poison,
    StartError,
};
pub use fault::Fault;
pub(crate) use memory::input_plans;
pub use memory::{CaseMemory, Change, MemoryError, ScratchBuffer};
pub use oracles::Oracles;
use source::by_file;
pub use source::{Ready, Source};
pub use step::Step;
pub use toolchain::{BuildError, Image, Instrument, Look, Toolchain};

/// A kind of device, with its compilers and its oracles.
pub trait Backend: Toolchain + Oracles {}

impl<Any: Toolchain + Oracles> Backend for Any {}
