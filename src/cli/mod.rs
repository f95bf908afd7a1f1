//! The command line: one file a subcommand, and the only place that prints.

mod agent;
mod alone;
mod apply;
mod begin;
mod bench;
mod bundle;
mod compile;
mod completions;
mod crew;
mod device;
mod diary;
mod doctor;
mod error;
mod export;
mod in_model;
mod inductor;
mod init;
mod kernelbench;
mod lines;
mod log;
mod mcp;
mod notify;
mod ops;
mod options;
mod problem;
mod profile;
mod progress;
mod prompt;
mod prune;
mod pytorch;
mod report;
mod resume;
mod rules;
mod run;
mod seeds;
mod session;
mod settled;
mod show;
mod speed;
mod spinner;
mod starter;
mod status;
mod story;
mod verdict;
mod verify;
mod verify_package;
mod watch;
mod watch_screen;
mod watched;
mod whole;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::backend::cpu::memory_limit;

/// Makes the kernels of a model faster overnight, keeping only what is measured to be correct and faster.
///
/// Warpsmith profiles a model directory, ranks its kernels by Amdahl's law, and improves them one by one:
/// an agent proposes, a five-stage judge checks, paired timing decides, git keeps the record.
#[derive(Debug, Parser)]
#[command(name = "warpsmith", version, propagate_version = true, arg_required_else_help = true)]
#[command(
    after_help = "Start here:\n  warpsmith run models/tiny-llama      improve a small model now, on this machine\n  warpsmith doctor                     what works here, and what is missing\n  warpsmith help run                   every knob of a run"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say on standard error what happens behind the scenes; twice for more
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Profile(profile::Args),
    Bench(bench::Args),
    Watch(watch::Args),
    Mcp(Box<mcp::Args>),
    Verify(verify::Args),
    Status(status::Args),
    Log(log::Args),
    Show(show::Args),
    Prompt(prompt::Args),
    Apply(apply::Args),
    Prune(prune::Args),
    Bundle(bundle::Args),
    Export(export::Args),
    Recheck(export::RecheckArgs),
    Report(report::Args),
    Doctor(doctor::Args),
    Ops(ops::Args),
    Init(init::Args),
    Kernelbench(kernelbench::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Worker(worker::Args),
}

/// Runs the program; the exit code is 0 for success, 1 for a "no" (rejected, differs), 2 for "could not", 130 for
/// "interrupted".
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    diary::begin(cli.verbose);
    // Taken for none it would let a judge have what others need.
    if let Err(why) = memory_limit() {
        return error::report(&anyhow::anyhow!(why));
    }
    let result = match cli.command {
        Command::Run(args) => run::main(*args),
        Command::Profile(args) => profile::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Watch(args) => watch::main(args),
        Command::Mcp(args) => mcp::main(*args),
        Command::Verify(args) => verify::main(args),
        Command::Status(args) => status::main(args),
        Command::Log(args) => log::main(args),
        Command::Show(args) => show::main(args),
        Command::Prompt(args) => prompt::main(args),
        Command::Apply(args) => apply::main(&args),
        Command::Prune(args) => prune::main(&args),
        Command::Bundle(args) => bundle::main(args),
        Command::Export(args) => export::main(&args),
        Command::Recheck(args) => export::recheck(args),
        Command::Report(args) => report::main(args),
        Command::Doctor(args) => doctor::main(args),
        Command::Ops(args) => ops::main(args),
        Command::Init(args) => init::main(&args),
        Command::Kernelbench(args) => kernelbench::main(args),
        Command::Completions(args) => completions::main(&args),
        Command::Worker(args) => worker::main(args),
    };
    result.unwrap_or_else(|error| error::report(&error))
}

/// A line for the user. A reader that has gone away (`| head`) ends the program quietly.
fn say(text: &str) {
    use std::io::Write as _;
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// A line about the work rather than of it.
fn warn(text: &str) {
    use std::io::Write as _;
    // Where standard error is gone there is nobody left to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_with_itself() {
        super::Cli::command().debug_assert();
    }
}
