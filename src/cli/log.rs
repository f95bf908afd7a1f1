//! `warpsmith log`: every experiment of a run, kept or not.

use std::path::PathBuf;
use std::process::ExitCode;

use super::status::open;
use crate::history::{Order, ledger_header};

/// List every experiment of a run, kept or not, oldest first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith log                  as in results.tsv\n  warpsmith log --wide           with times of every shape, seeds and margins\n  warpsmith log --json           one JSON object a line, everything the judge found out"
)]
pub(super) struct Args {
    /// Which run (the latest where not given)
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Add a line for each timed shape, the margin and the seed
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    /// Print whole evaluations, one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    let (archive, run) = open(&args.dir, args.run)?;
    let entries = archive.entries(&run, Order::OldestFirst)?;
    if !args.json {
        super::say(ledger_header().trim_end());
    }
    for entry in entries {
        let entry = entry?;
        if args.json {
            let line = serde_json::json!({
                "run": run,
                "experiment": entry.number,
                "kept": entry.kept,
                "subject": entry.subject,
                "commit": entry.commit,
                "trial": entry.trial,
                "evaluation": entry.evaluation,
            });
            super::say(&line.to_string());
            continue;
        }
        super::say(entry.row.trim_end());
        if args.wide {
            wide(&entry.evaluation)?;
            super::story::lines(&entry.trial, &entry.evaluation)
                .iter()
                .for_each(|line| super::say(&format!("      {line}")));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn wide(evaluation: &serde_json::Value) -> anyhow::Result<()> {
    let evaluation: crate::evaluation::Evaluation = serde_json::from_value(evaluation.clone())?;
    for shape in evaluation.timing.iter().flat_map(|timing| &timing.shapes) {
        super::say(&format!(
            "      {} {} x{}: {:.1} µs against {:.1} µs, {:.0} % of the roofline, {} bound",
            shape.shape,
            shape.dtype,
            shape.calls,
            shape.candidate_us,
            shape.incumbent_us,
            100.0 * shape.roofline_us / shape.candidate_us,
            shape.bound
        ));
    }
    let margin = evaluation.timing.map_or(String::new(), |timing| {
        let confirmed: String = timing.confirmations.iter().map(|ratio| format!(" {ratio:.3}x")).collect();
        let confirmed = if confirmed.is_empty() { confirmed } else { format!(", confirmed{confirmed}") };
        format!(", margin {:.1} %, {} blocks{confirmed}", timing.margin_pct(), timing.blocks)
    });
    super::say(&format!(
        "      {} cases, seed {}, judged in {:.1} s{margin}",
        evaluation.cases.len(),
        evaluation.seed,
        evaluation.wall_s
    ));
    Ok(())
}
