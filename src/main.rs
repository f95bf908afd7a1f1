//! The `warpsmith` program.

use std::process::ExitCode;

use warpsmith::backend::{cpu, cuda};

fn main() -> ExitCode {
    // The processes that run and compile kernels are started often and must not pay for a command line parser.
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(first) if first == "host" => return ExitCode::from(cpu::child::main() as u8),
        Some(first) if first == "nvrtc" => return ExitCode::from(cuda::nvrtc_main()),
        _ => {}
    }
    warpsmith::cli::main()
}
