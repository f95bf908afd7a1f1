//! CUDA kernels: compiled by NVRTC in a process of its own, launched through the driver as their launch plans say.
//!
//! Nothing of CUDA is needed to build or start this program: driver, NVRTC and NVML are looked for when asked for.

mod backend;
mod compile;
mod driver;
pub mod judge;
mod launch;
mod nvml;
mod opening;
mod sanitizer;

pub use backend::{Cuda, company, gpus, installed, key_of, memory_of, uuid_of};
pub use compile::{
    Compiled, Compiler, JitCode, Resources, Search, TRITON_READER, Told, Toolkit, TritonFound, Unit, candidate_source,
    nvrtc_main, prelude,
};
pub use driver::{
    Arguments, CudaError, DeviceMemory, Event, Function, FunctionFacts, Geometry, Gpu, GpuFacts, Graph, MapElement,
    MapSpec, MapSwizzle, Module, TensorMap, Vault, driver_version,
};
pub use launch::{Host, Image, KernelImage, map_spec};
pub use nvml::{Gauge, Gauged};
pub use opening::Starting;
pub use sanitizer::{Tool, examine, sanitizer};

use super::Fault;
