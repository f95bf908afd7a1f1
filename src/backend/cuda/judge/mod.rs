//! The judge on the device: inputs are drawn, guarded, digested and compared where they are, and the oracle runs there too.
//!
//! Everything works on the stream in order and waits only where an answer is needed. What the judge knows lies in memory of
//! its own that is out of reach while a candidate runs ([`Desk::seal`]).

mod arena;
mod calibrate;
mod compare;
mod cublas;
mod desk;
mod digests;
mod folders;
mod ground;
mod library;
mod limits;
mod oracle;
mod oracle_some;
mod oracle_source;
mod pool;
mod product;
mod words;

pub use arena::{ALIGNMENT, Arena, RED_ZONE};
pub use calibrate::{calibrate, device_card, front_matter_facts, key};
pub use compare::compare;
pub use cublas::{Cublas, Gemms, Precision, Side};
pub use desk::{Build, Desk, device_sources};
pub use folders::library_folders;
pub(super) use ground::Ground;
pub use library::{Library, NAME as LIBRARY_NAME};
pub use limits::case_limits;
pub use oracle::Oracle;
pub use oracle_some::compare_some;
pub use oracle_source::source as oracle_source;
