//! `warpsmith apply`: a run's winners on your own branch.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::{settled, status};
use crate::engine::{RunState, TargetState};
use crate::history::{Applied, Archive, Winner};
use crate::kernel::{KernelFile, Language, kernel_file_of_device};
use crate::verify::Culprit;
use crate::workspace::Workspace;

/// Bring a run's winners into your branch, as one commit that holds nothing but their kernel files.
///
/// Only kernels that beat what you have are taken, and only where your files are as the run found them: in your last
/// commit, staged and on disk. Whatever else you have changed or staged stays as it is. The commit runs no hooks and is
/// not signed; `git commit --amend --no-edit` does both as you are used to. Interrupted at any moment, there is the
/// commit or there is nothing; give the command again to finish.
///
/// The next run starts from the winners. A kernel that is fast on one device need not be on another: with --per-device
/// the winners go into a folder named after the device, where only runs on such a device look, and look first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith apply                     the winners of the latest run that has ended\n  warpsmith apply 261120a --dry-run   what would be committed, and with which message\n  warpsmith apply --per-device        into kernels/cuda/nvidia-h200/, for runs on such a device only\n  git merge warpsmith/261120a         every step that was kept, with its own commit, winner or not"
)]
pub(super) struct Args {
    /// Which run (the latest that has ended where not given)
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// Show the commit and make none
    #[arg(long)]
    dry_run: bool,
    /// Keep the winners apart from those of other devices
    #[arg(long)]
    per_device: bool,
    /// Take winners that serve fewer types than the files they replace
    #[arg(long)]
    narrow: bool,
    /// Take what a run has kept so far, though it can still be resumed
    #[arg(long)]
    unfinished: bool,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let (workspace, archive) = status::workspace(&args.dir)?;
    let run = match &args.run {
        Some(run) => run.clone(),
        None => latest_ended(&archive, args.unfinished)?,
    };
    let state = archive.state(&run)?;
    if super::prune::has_ended(&state) || args.unfinished {
        // As it was found.
    } else {
        let model = state["model"].as_str().unwrap_or("MODEL_DIR");
        bail!(
            "run {run} has not ended; go on with `warpsmith run {model} --resume {run}`, or take what it has kept so far with --unfinished"
        );
    }
    let state: RunState = serde_json::from_value(state).with_context(|| format!("run {run}"))?;
    let refused = settled::seen(&workspace, &run)?.map(|seen| seen.left_out()).unwrap_or_default();
    let left = left_out(&state, &refused);
    let winners = winners(args, &archive, &state, (&refused, &left))?;
    if !archive.branch_is_as_left(&run)? {
        super::warn(&format!(
            "note: warpsmith/{run} has been moved since; what the run itself kept and measured is taken"
        ));
    }
    if !args.narrow && !args.per_device {
        refuse_narrower(&workspace, &winners)?;
    }
    let files: Vec<String> = winners.iter().map(|winner| winner.path.clone()).collect();
    let message = state.winners_message(&files);
    let applied = archive.apply(&workspace, &run, &winners, &message, args.dry_run)?;
    super::say(&words(args, &state, &applied, (&message, left)));
    Ok(ExitCode::SUCCESS)
}

/// The latest run that has ended, or (with `unfinished`) the latest.
fn latest_ended(archive: &Archive, unfinished: bool) -> anyhow::Result<String> {
    let last = archive.latest_run()?.context("there is no run here yet; `warpsmith run MODEL_DIR` starts one")?;
    for run in archive.runs()?.iter().rev() {
        if !archive.is_here(run)? {
            continue;
        }
        if unfinished || super::prune::has_ended(&archive.state(run)?) {
            return Ok(run.clone());
        }
    }
    bail!("no run has ended here yet; go on with `--resume {last}`, or take what it has kept so far with --unfinished")
}

/// The winners' texts and where they go, without those that the whole model `refused`; `left` says why there is none.
fn winners(
    args: &Args,
    archive: &Archive,
    state: &RunState,
    (refused, left): (&[Culprit], &[String]),
) -> anyhow::Result<Vec<Winner>> {
    let place = |target: &TargetState| match args.per_device {
        true => {
            let folder = Language::of_file(&target.file).map_or(state.backend.as_str(), |language| language.folder());
            kernel_file_of_device(&target.op, folder, &state.device)
        }
        false => target.file.clone(),
    };
    let mut winners = Vec::new();
    for target in state.winners().filter(|target| refused.iter().all(|it| it.op != target.op)) {
        let text = archive.tip_text(&state.run, &target.file)?;
        let text = text.with_context(|| format!("{} is not on the run's branch", target.file))?;
        winners.push(Winner { path: place(target), text });
    }
    if winners.is_empty() {
        match left.is_empty() {
            true => bail!(
                "run {} kept nothing, so there is nothing to apply; `warpsmith log --run {0}` says what was tried",
                state.run
            ),
            false => bail!("nothing to apply: {}", left.join("; ")),
        }
    }
    Ok(winners)
}

/// Refuses winners that serve fewer types than what stands where they go: a model in another type would have no kernel any more.
fn refuse_narrower(workspace: &Workspace, winners: &[Winner]) -> anyhow::Result<()> {
    let served = |text: &str| KernelFile::parse(text).map(|kernel| kernel.front.dtypes).unwrap_or_default();
    for winner in winners {
        let here = workspace.file(&winner.path).map(|file| served(&file.text)).unwrap_or_default();
        let now = served(&winner.text);
        let lost: Vec<String> = here.iter().filter(|dtype| !now.contains(dtype)).map(ToString::to_string).collect();
        if !lost.is_empty() {
            bail!(
                "{} serves {} and the winner does not; `--per-device` puts it beside the file, for this device alone, and `--narrow` replaces it",
                winner.path,
                lost.join(" and ")
            );
        }
    }
    Ok(())
}

/// What was improved and is left out, a sentence each: it gains nothing on what there was, or the whole model `refused` it.
fn left_out(state: &RunState, refused: &[Culprit]) -> Vec<String> {
    let sentence = |target: &TargetState| {
        let in_model =
            target.slower_in_model.map_or(String::new(), |ratio| format!(", and the model is {ratio:.3}x with it"));
        format!(
            "{} is left out: it is {:.2}x what you have{in_model}; `git merge warpsmith/{}` takes it all the same",
            target.op,
            target.vs_user(),
            state.run
        )
    };
    let refused = refused.iter().map(|it| format!("{} is left out: {}", it.op, it.why));
    state.not_installed().map(sentence).chain(refused).collect()
}

fn words(args: &Args, state: &RunState, applied: &Applied, (message, left): (&str, Vec<String>)) -> String {
    let mut lines = Vec::new();
    let branch = &applied.branch;
    match &applied.commit {
        Some(commit) => {
            lines.push(format!("{branch} {}: {}", &commit[..10], message.lines().next().unwrap_or_default()))
        }
        None if !applied.diffstat.is_empty() => {
            lines.push(format!("this would be committed to {branch}, and nothing has been done:\n"));
            lines.extend(message.lines().map(|line| format!("    {line}").trim_end().to_owned()));
            lines.push(String::new());
        }
        None if applied.finished.is_empty() => {
            lines.push(format!("{branch} has the winners of run {} already", state.run))
        }
        None => {}
    }
    if !applied.diffstat.is_empty() {
        lines.push(applied.diffstat.clone());
    }
    if !applied.finished.is_empty() {
        let verb = if args.dry_run { "would now follow" } else { "now follows" };
        lines.push(format!(
            "{branch} had the commit already, and what was behind {verb} it: {}",
            applied.finished.join(", ")
        ));
    }
    lines.extend(left);
    if let Some(commit) = &applied.commit {
        if applied.unsigned {
            lines.push("it is not signed; `git commit --amend --no-edit -S` signs it".to_owned());
        }
        lines.push(format!("the next run starts from it; `git revert {}` takes it back", &commit[..10]));
    }
    lines.join("\n")
}
