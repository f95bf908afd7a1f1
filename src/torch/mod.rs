//! Operations that are written in PyTorch: what is right, how exact a result must be, what there is to beat, and problem files.
//!
//! A [`Service`] is a process of the user's Python, started once and kept warm. [`Oracle`] has it evaluate an operation in double
//! precision after a candidate ran, and the same eagerly in the candidate's types: PyTorch's own error is the bound ([`bound`]).
//! [`Problem`] is a file with `Model` and `get_inputs` as an operation, or a [`definition`] in FlashInfer-Bench's JSON. [`model`] takes a whole model apart into such operations,
//! and [`inductor`] has torch.compile's own kernels for one as a kernel file.

mod bound;
mod counts;
mod definition;
mod error;
mod files;
pub mod inductor;
mod inputs;
pub mod kernelbench;
pub mod model;
mod oracle;
#[cfg(test)]
mod plain;
mod problem;
mod process;
mod service;
mod socket;
mod ways;
mod wire;

pub use bound::{Floors, Parts, row_length};
pub use definition::definition;
pub use error::{Fault, TorchError};
pub use files::Files;
pub use oracle::{Oracle, Produced};
pub use problem::{Problem, bytes, name_of, refusal};
pub use service::{PYTHON, Python, Service};
pub use ways::{Ready, Way};
pub use wire::{Argument, Described, Figures, Given, Hello, TensorForm};
