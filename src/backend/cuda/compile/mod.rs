//! From a kernel's text to a cubin, through NVRTC, or through Triton in the user's Python.
//!
//! The text is hostile: it is read first (`sandbox::check_cuda`), compiled in a process that can open nothing but CUDA's
//! headers (those of our own come along with the text), and what comes out is checked: the text of the virtual machine for clocks
//! and for memory that outlives a launch, the cubin for what it would link to.

mod admit;
mod binding;
mod cache;
mod compiler;
mod cubin;
mod facts;
mod find;
mod flow;
mod frame;
mod key;
mod leaving;
mod lexer;
mod messages;
mod names;
mod ordering;
mod prelude;
mod process;
mod ptx;
mod service;
mod shared;
mod triton;
mod waits;

pub(super) use admit::EARLY_STARTS;
pub use admit::{CompileKeys, all_wait};
pub use compiler::{Compiled, Compiler, Told, Unit};
pub use find::{Search, Toolkit};
pub use messages::Resources;
pub use prelude::{candidate_source, prelude};
pub use service::main as nvrtc_main;
pub use triton::{Found as TritonFound, JitCode, READER as TRITON_READER};
