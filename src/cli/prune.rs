//! `warpsmith prune`: takes away what finished runs left behind.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;

use super::status;
use crate::backend::compiled_kernels;
use crate::history::{BranchFate, Prune, Pruned, Pruner};
use crate::workspace::{DeviceLock, cache_dir, remove_if_there};

/// Remove what finished runs left behind.
///
/// Of each run: its folder `.warpsmith/<run>` (reports written there with it), and its branch where that is merged or
/// applied. Both can be had again as long as the journal is there, which goes only with --journal, and with it every
/// experiment that was not kept; as long as it is there, so is what the whole of a PyTorch model said of the kernels
/// (`whole.json`). Rows of results.tsv stay. A run that can still be resumed is left alone.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("which").args(["run", "all", "cache"]).required(true).multiple(true),
    after_help = "Examples:\n  warpsmith prune --all --dry-run    what could go, and how much it is\n  warpsmith prune --all\n  warpsmith prune 261120a --branches --journal   all of it but its rows in results.tsv\n  warpsmith prune --cache            compiled kernels of every run and workspace of this user"
)]
pub(super) struct Args {
    /// Which run
    #[arg(value_name = "RUN", conflicts_with = "all")]
    run: Option<String>,
    /// Every run that has ended
    #[arg(long)]
    all: bool,
    /// Remove branches that are neither merged nor applied too (the journal still has their commits)
    #[arg(long)]
    branches: bool,
    /// Remove the journal too: nothing brings back what it alone has
    #[arg(long)]
    journal: bool,
    /// Remove the compiled kernels in this user's cache; they are compiled again when needed
    #[arg(long)]
    cache: bool,
    /// Remove RUN though it could be resumed
    #[arg(long, requires = "run", conflicts_with = "all")]
    force: bool,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if args.run.is_some() || args.all {
        runs(args)?;
    }
    if args.cache {
        cache(&cache_dir(), args.dry_run)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a run's state, of whatever version, says that it has ended.
pub(super) fn has_ended(state: &Value) -> bool {
    state.get("ended").is_some_and(|ended| !ended.is_null())
}

fn runs(args: &Args) -> anyhow::Result<()> {
    let (_, archive) = status::workspace(&args.dir)?;
    let pruner = archive.pruner()?;
    let there = pruner.runs()?;
    // Without a journal there is nothing to resume from.
    let open = |run: &str| archive.state(run).is_ok_and(|state| !has_ended(&state));
    let chosen: Vec<&String> = match &args.run {
        Some(run) => {
            let found = there.iter().find(|known| *known == run);
            let found = found.with_context(|| format!("there is nothing left of a run {run} here"))?;
            if open(run) && !args.force {
                let state = archive.state(run)?;
                let model = state["model"].as_str().unwrap_or("MODEL_DIR");
                bail!(
                    "run {run} can still be resumed (`warpsmith run {model} --resume {run}`); --force removes what it left all the same"
                );
            }
            vec![found]
        }
        None => there.iter().filter(|run| !open(run)).collect(),
    };
    let what = Prune { branches: args.branches, journal: args.journal, dry: args.dry_run };
    let mut freed = 0;
    for run in &chosen {
        freed += one(&pruner, run, what)?;
    }
    let resumable: Vec<&str> = there.iter().filter(|run| !chosen.contains(run)).map(String::as_str).collect();
    if args.all && !resumable.is_empty() {
        super::say(&format!("left alone: {}, which can be resumed", resumable.join(", ")));
    }
    let verb = if args.dry_run { "would be" } else { "were" };
    super::say(&format!("{} {verb} freed in .warpsmith", size(freed)));
    if args.journal && !args.dry_run && !chosen.is_empty() {
        super::say("what the journals held goes when git next tidies up; `git gc --prune=now` does it at once");
    }
    Ok(())
}

/// One run: the bytes of its folder.
fn one(pruner: &Pruner<'_>, run: &str, what: Prune) -> anyhow::Result<u64> {
    let pruned = pruner.prune(run, what)?;
    for line in sentences(&pruned, what.dry) {
        super::say(&line);
    }
    Ok(pruned.folder.unwrap_or(0))
}

/// What was removed and what was not, a line each.
fn sentences(pruned: &Pruned, dry: bool) -> Vec<String> {
    let run = &pruned.run;
    let verb = if dry { "would remove" } else { "removed" };
    let mut lines = Vec::new();
    if let Some(bytes) = pruned.folder {
        lines.push(format!("{run}: {verb} .warpsmith/{run} ({})", size(bytes)));
    }
    match &pruned.branch {
        Some(BranchFate::Removed { tip, why }) => {
            let back = if pruned.journal.is_some() {
                String::new()
            } else {
                format!("; `git branch warpsmith/{run} {}` brings it back", &tip[..10])
            };
            lines.push(format!("{run}: {verb} the branch warpsmith/{run} ({why}){back}"));
        }
        Some(BranchFate::Left { why }) => lines.push(format!("{run}: left the branch warpsmith/{run}: {why}")),
        None => {}
    }
    if let Some(experiments) = pruned.journal {
        lines.push(format!("{run}: {verb} the journal of {experiments} experiments"));
    }
    if lines.is_empty() {
        lines.push(format!("{run}: nothing to remove but its journal; --journal does that"));
    }
    lines
}

/// Removes compiled kernels, while nothing can be running any.
fn cache(folder: &Path, dry: bool) -> anyhow::Result<()> {
    let mut locks = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(key) = name.to_str().and_then(|name| name.strip_prefix("lock-")) else { continue };
        match DeviceLock::try_take(folder, key, "warpsmith prune").with_context(|| folder.display().to_string())? {
            Ok(lock) => locks.push(lock),
            Err(holder) => bail!("{holder} is at work with the cache in {}; wait until it ends", folder.display()),
        }
    }
    let (files, bytes) = compiled_kernels(folder);
    if !dry {
        for file in &files {
            remove_if_there(file).with_context(|| file.display().to_string())?;
        }
    }
    let verb = if dry { "would remove" } else { "removed" };
    super::say(&format!("{verb} {} files of compiled kernels in {} ({})", files.len(), folder.display(), size(bytes)));
    Ok(())
}

/// Bytes for people: `712 B`, `3.1 KiB`, `48.0 MiB`.
pub(super) fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for larger in ["KiB", "MiB", "GiB"] {
        if value >= 1024.0 {
            (value, unit) = (value / 1024.0, larger);
        }
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(
            [0, 712, 3200, 50_331_648, 5 << 40].map(size),
            ["0 B", "712 B", "3.1 KiB", "48.0 MiB", "5120.0 GiB"]
        );
    }

    #[test]
    fn a_run_has_ended_when_its_state_says_why() {
        let ended = |text: &str| serde_json::from_str(text).map(|state| has_ended(&state)).unwrap_or(false);
        assert!(ended(r#"{"ended": {"rule": "no_targets"}}"#));
        assert!(!ended(r#"{"ended": null}"#) && !ended("{}"));
    }
}
