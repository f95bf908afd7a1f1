//! `warpsmith show N`: one experiment in full.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::status::open;
use crate::evaluation::Evaluation;
use crate::history::Order;

/// Show one experiment: what it changed, every case, its times, and why it was or was not kept.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith show 14\n  warpsmith show 14 --cases       with the error of every case\n  warpsmith show 14 --kernel > mine.c"
)]
pub(super) struct Args {
    /// The experiment's number in the run
    number: u64,
    /// Which run (the latest where not given)
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// List every case with its error
    #[arg(long)]
    cases: bool,
    /// Print the candidate's kernel file and nothing else
    #[arg(long, conflicts_with_all = ["cases", "json"])]
    kernel: bool,
    /// Print the evaluation as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let (archive, run) = open(&args.dir, args.run)?;
    let entry = archive
        .entries(&run, Order::OldestFirst)?
        .find(|entry| entry.as_ref().map_or(true, |entry| entry.number == args.number))
        .transpose()?
        .with_context(|| format!("run {run} has no experiment {}; `warpsmith log` lists them", args.number))?;
    if args.kernel {
        let text = archive.text(&entry.commit, &entry.path)?.context("the candidate's file is not in its commit")?;
        super::say(text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        super::say(&serde_json::to_string_pretty(&entry.evaluation)?);
        return Ok(ExitCode::SUCCESS);
    }
    let story = super::story::lines(&entry.trial, &entry.evaluation);
    let evaluation: Evaluation = serde_json::from_value(entry.evaluation)?;
    super::say(&format!("run {run}, experiment {}: {}\n", args.number, entry.subject));
    super::say(&super::verdict::of_a_run(&evaluation));
    story.iter().for_each(|line| super::say(&format!("  {line}")));
    if args.cases {
        for case in &evaluation.cases {
            let outcome = case.failure.as_deref().unwrap_or("ok");
            let input = case.case.input.as_deref().unwrap_or("ordinary");
            super::say(&format!(
                "  {:<12} {} {} {input}: {:.3} of its bound, rms {:.2e}; {outcome}",
                case.stage, case.case.shape, case.case.dtype, case.errors.worst, case.errors.relative_rms
            ));
        }
    }
    super::say(&format!("\nwhat it changed   git show {}", entry.commit));
    Ok(ExitCode::SUCCESS)
}
