//! What hostile text and hostile code may reach: files, the network, system calls, time.
//!
//! Everything here is the operating system's own protection of a process from itself. A machine may lack some of it;
//! [`protections`] says which, and the rest still holds.

mod command;
mod confined;
mod dialect;
mod files;
mod limits;
mod lines;
mod mapped;
mod maps;
mod preprocessed;
mod protections;
mod source;
mod source_cuda;
mod syscalls;

pub use command::{Finished, Jail};
pub use confined::{confine, end_with_us};
pub use dialect::SourceError;
pub use files::{FileWall, confine_to_nothing};
pub use limits::{deny_clock, give_way, more_files, no_dumps, no_new_privileges, set_limit};
pub use mapped::MappedFile;
pub use maps::Maps;
pub use preprocessed::check_preprocessed_c;
pub use protections::{Protection, protections};
pub use source::{C_HEADERS, check_c};
pub use source_cuda::check_cuda;
pub use syscalls::{
    Origins, SyscallError, install_on_all_threads, install_on_this_thread, kernel_filter, offline_filter,
    offline_gpu_filter, single_filter,
};
