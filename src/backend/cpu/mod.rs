//! C kernels: compiled by the system compiler, run in a supervised child process, judged against oracles in double
//! precision.

mod arena;
mod available;
mod backend;
mod calibrate;
pub mod child;
mod compare;
mod compile;
mod control;
mod elf;
mod fault;
mod gate;
mod glue;
mod heap;
mod host;
mod instruments;
mod layout;
mod oracle;
mod oracle_some;
mod oracle_source;
mod outside;
mod poison;
mod pool;
mod prelude;
mod product;
mod regions;
mod registers;
mod rest;
mod share;
mod signals;
mod values;

#[cfg(test)]
mod compile_tests;
#[cfg(test)]
mod judge_tests;
#[cfg(test)]
mod prelude_tests;
#[cfg(test)]
mod tensors_tests;

pub use arena::{Arena, ArenaError};
pub use available::{available_memory, memory_limit};
pub use backend::{CASE_LIMITS, Cpu};
pub use calibrate::{CalibrateError, calibrate, device_card};
pub use compare::{Expected, ExpectedTensor, compare};
pub use compile::{CompileError, Compiler, Image, Unit};
pub use host::{Host, HostError, Limits, remember_executable};
pub use layout::{ALIGNMENT, RED_ZONE};
pub use oracle::{ORACLE_FLAGS, Oracle, OracleError};
pub use prelude::{candidate_source, prelude};
pub use product::{ProductSizes, product};
