//! `warpsmith completions`: what a shell needs to complete this command line.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print the completion script of a shell: commands, options and their fixed values.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith completions bash > ~/.local/share/bash-completion/completions/warpsmith\n  warpsmith completions zsh > ~/.zfunc/_warpsmith          (a folder in $fpath)\n  warpsmith completions fish > ~/.config/fish/completions/warpsmith.fish"
)]
pub(super) struct Args {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "warpsmith", &mut script);
    super::say(String::from_utf8(script)?.trim_end());
    Ok(ExitCode::SUCCESS)
}
