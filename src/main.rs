//! The `warpsmith` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The process that runs kernels is started often and must not pay for a command line parser.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "host") {
        return ExitCode::from(warpsmith::backend::cpu::child::main(arguments) as u8);
    }
    warpsmith::cli::main()
}
