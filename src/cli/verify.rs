//! `warpsmith verify`: the whole model before and after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::options::{DeviceArgs, ModelArgs, WorkerArgs};
use super::{device, session, verify_package};
use crate::device::Opening;
use crate::engine::RunState;
use crate::engine::files;
use crate::history::Archive;
use crate::model::{Graph, ModelConfig};
use crate::verify::{Question, Shares};
use crate::worker::Client;
use crate::workspace::{BackendName, Workspace};

/// Run the whole model with the kernels from before a run and with those it kept: same outputs? how much faster?
///
/// What someone has committed to the run's branch since is looked at too. The exit code is 1 where the outputs differ by
/// more than the model's arithmetic explains.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith verify models/tiny-llama                 the latest run of this workspace\n  warpsmith verify models/tiny-llama --run 261120a\n  warpsmith verify models/tiny-llama --seq 256 --json\n  warpsmith verify models/tiny-llama --diagnose      which kernel is to blame, where it differs or falls short\n  warpsmith verify my_kernels --model MODEL_DIR      an exported package in its PyTorch model\n  warpsmith verify my_kernels --model MODEL_DIR --diagnose   and each of its kernels alone"
)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Where what is named is an exported package: the PyTorch model (a directory with a model.py) to try it in, in a fresh process
    #[arg(long = "model", id = "of_package", value_name = "DIR")]
    of_package: Option<PathBuf>,
    /// With --model: time torch.compile in max-autotune too
    #[arg(long, requires = "of_package")]
    max_autotune: bool,
    /// With --model: how often each way is compiled and timed anew, in turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    sessions: u32,
    /// Which run's kernels (the latest where not given)
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// Swap one kernel at a time, and all but one (with --model: place each of the package's alone), to find the one that is wrong or slow
    #[arg(long)]
    diagnose: bool,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(verify(args))
}

async fn verify(args: Args) -> anyhow::Result<ExitCode> {
    if crate::export::is_package(&args.model.model) {
        return verify_package::main(&verify_package::Wanted {
            package: &args.model.model,
            model: args.of_package.as_deref(),
            load: &args.model.load,
            python: &args.worker.python,
            dtype: args.model.pass.dtype(),
            max_autotune: args.max_autotune,
            sessions: args.sessions,
            diagnose: args.diagnose,
            json: args.json,
        });
    }
    if args.of_package.is_some() {
        bail!("--model is for an exported package, and {} is none", args.model.model.display());
    }
    if args.model.load.function.is_some() {
        bail!(
            "--load is for an exported package in its model: `warpsmith verify PACKAGE --model DIR --load PACKAGE.MODULE:FUNCTION`"
        );
    }
    let config = ModelConfig::load(&args.model.model)?;
    let workspace = Workspace::find(&args.model.model)?.with_context(|| {
        format!("{} belongs to no workspace; `warpsmith run` makes one", args.model.model.display())
    })?;
    let archive = Archive::open(&workspace)?;
    let run = match args.run {
        Some(run) => run,
        None => archive.latest_run()?.context(
            "there is no run here yet whose kernels could be compared; `warpsmith run MODEL_DIR` starts one",
        )?,
    };
    let state: RunState = serde_json::from_value(archive.state(&run)?).with_context(|| format!("run {run}"))?;
    // The run's kernels are written for its backend.
    let wanted = args.device.or(device::backend_of(&state.backend)?);
    let starter = args.worker.starter(&workspace.settings().run)?;
    let device = device::choose(wanted, workspace.settings().device, &starter)?.device;
    let pass = args.model.pass.in_phase(state.workload.pass().map(|pass| pass.phase));
    // The run has named it.
    let backend = device.backend().unwrap_or(BackendName::Cpu);
    let pass = pass.resolve(&workspace.settings().run, backend, config.dtype);
    if let Some(kernel) = state.single()
        && !Graph::build(&config, pass)?.targets().iter().any(|target| target.op == kernel.op)
    {
        bail!("run {run} is on {} alone, which this model does not call; `--run RUN` names another run", kernel.op);
    }
    let cancel = session::interruptible();
    let mut worker = starter.start(device, Opening::Now).await?;
    // A model's run had a kernel for each of its operations; what a kernel alone had around it is what stands here now.
    let mut before = match state.single() {
        Some(_) => files::kernels(Some(&workspace), worker.device(), pass.dtype)?,
        None => BTreeMap::new(),
    };
    let mut after = before.clone();
    let mut unjudged = Vec::new();
    for target in state.targets.iter().filter(|target| !target.start_text.is_empty()) {
        before.insert(target.op.clone(), target.start_text.clone());
        let kept = if target.gain() > 1.0 { archive.tip_text(&run, &target.file)? } else { None };
        let kept = kept.unwrap_or_else(|| target.start_text.clone());
        match edited(&archive, &run, &target.file)? {
            Some(text) => {
                unjudged.push(target.op.clone());
                after.insert(target.op.clone(), text);
            }
            None => {
                after.insert(target.op.clone(), kept);
            }
        }
    }
    let read = files::reader(Some(&workspace));
    let speedups = state.speedups();
    let question = Question {
        throughout: &[],
        config: &config,
        pass,
        before: &before,
        after: &after,
        speedups: &speedups,
        unjudged: &unjudged,
        // Another pass has other shares, and was never predicted; nor was what the run did not make.
        predicted: state
            .predicted()
            .filter(|_| state.workload.pass() == Some(pass) && unjudged.is_empty())
            .map(|(_, ratio)| ratio),
        seed: crate::rng::secret_seed(),
    };
    if args.diagnose {
        return diagnose(&mut worker, &question, &read, &cancel, args.json).await;
    }
    let mut report = crate::verify::verify(&mut worker, &question, &read, &cancel).await?;
    let note = |op: &String| format!("{op} was changed on the run's branch after the run; no judge has seen it");
    report.notes.extend(unjudged.iter().map(note));
    super::say(&if args.json { serde_json::to_string_pretty(&report)? } else { report.text() });
    Ok(ExitCode::from(u8::from(report.output.wrong.is_some())))
}

/// The text of a kernel file on the run's branch, where someone has changed it since the run.
fn edited(archive: &Archive, run: &str, file: &str) -> anyhow::Result<Option<String>> {
    if archive.branch_is_as_left(run)? {
        return Ok(None);
    }
    let now = archive.branch_text(run, file)?;
    Ok(if now == archive.tip_text(run, file)? { None } else { now })
}

/// Finds the kernel that is to blame.
async fn diagnose(
    worker: &mut Client,
    question: &Question<'_>,
    read: &dyn Fn(&str) -> Option<String>,
    cancel: &CancellationToken,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let Question { config, pass, before, seed, .. } = *question;
    let mut tell = |what: &str| {
        if !json {
            super::warn(what);
        }
    };
    if !question.is_changed() {
        super::say("nothing to diagnose: the run kept no kernel that is faster than what you have");
        return Ok(ExitCode::SUCCESS);
    }
    tell("measuring the model as it was");
    let profile = crate::profile::measure(worker, config, pass, before, read, seed, cancel).await?;
    let mut shares = Shares { whole_us: profile.whole_us, ..Shares::default() };
    for row in &profile.rows {
        *shares.op_us.entry(row.name().to_owned()).or_default() += row.us;
    }
    let diagnosis = crate::verify::diagnose(worker, question, &shares, read, cancel, &mut tell).await?;
    super::say(&if json { serde_json::to_string_pretty(&diagnosis)? } else { diagnosis.text() });
    Ok(ExitCode::from(u8::from(!diagnosis.is_right())))
}
