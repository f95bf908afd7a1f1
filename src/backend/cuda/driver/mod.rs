//! The CUDA driver behind a small safe layer: one device, one context, one stream, and nothing that waits for ever.

mod error;
mod event;
mod facts;
mod gpu;
mod graph;
mod launch;
mod mapping;
mod memory;
mod module;
mod tensor_map;
mod vault;

pub use error::CudaError;
pub use event::Event;
pub use facts::GpuFacts;
pub use gpu::{Gpu, device_count, device_facts, driver_version, installed_driver, retain_context};
pub use graph::Graph;
pub use launch::{Arguments, Geometry};
pub use mapping::{Access, Addresses, Mapping, Physical};
pub use memory::DeviceMemory;
pub use module::{Function, FunctionFacts, Module};
pub use tensor_map::{MapElement, MapSpec, MapSwizzle, TensorMap};
pub use vault::Vault;
