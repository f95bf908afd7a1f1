//! `warpsmith export` and `warpsmith recheck`: a run's kernels as a Python package, and that package judged again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};

use super::options::{DeviceArgs, PythonArgs, WorkerArgs};
use super::settled::Settled;
use super::{bench, device, pytorch, session, settled, status};
use crate::backend::{cpu, cuda};
use crate::device::{Opening, cached_card, cpu_flags, detect_cpu};
use crate::engine::{RunState, TargetState};
use crate::evaluation::Evaluation;
use crate::export::{self, Chosen, Maker, Plans, Platform, Receipt, Wanted};
use crate::harness::{EvaluationTask, Progress};
use crate::history::{Archive, JournalEntry, Order};
use crate::verify::Culprit;
use crate::worker::protocol::Ask;
use crate::workspace::{BackendName, Settings, Workspace, cache_dir};

/// Write what a run has won for a PyTorch model as a Python package that torch.compile uses by itself.
///
/// The package needs torch and nothing else: shared objects or cubins that were judged, the Python that finds their places, shapes, strides
/// and types that they were judged for, and a receipt for each. Whatever was not judged is computed the original way.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith export -o my_kernels                  the latest run's winners\n  warpsmith export 261120a -o my_kernels\n  warpsmith verify my_kernels --model MODEL_DIR   is the model the same with it, and faster?\n  warpsmith recheck my_kernels                    every kernel judged again, on this machine"
)]
pub(super) struct Args {
    /// Which run (the latest where not given)
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// The package's folder, whose name is the one that Python imports
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// Kernels that were not measured to be faster than PyTorch too (to try them out in the model)
    #[arg(long)]
    all: bool,
    /// On a GPU: other architectures to compile for too, such as sm_80,sm_90a (that of the run: other GPUs of it). Nobody has judged
    /// these: `enable(unjudged=True)` places them
    #[arg(long, value_name = "ARCH", value_delimiter = ',', value_parser = export::capability)]
    arch: Vec<u32>,
    /// Any directory of the workspace
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    #[command(flatten)]
    python: PythonArgs,
}

pub(super) fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let (workspace, archive) = status::workspace(&args.dir)?;
    let run = match &args.run {
        Some(run) => run.clone(),
        None => archive.latest_run()?.context("there is no run here yet; `warpsmith run MODEL_DIR` starts one")?,
    };
    let state: RunState = serde_json::from_value(archive.state(&run)?).with_context(|| format!("run {run}"))?;
    let seen = settled::seen(&workspace, &run)?;
    let refused = seen.as_ref().map(Settled::left_out).unwrap_or_default();
    let wanted = Winners { all: args.all, refused: &refused, arch: &args.arch, python: &args.python };
    let Some(plans) = package(&archive, &state, &args.output, &wanted)? else {
        let mut why = vec![format!(
            "run {run} has no kernel that is faster than what torch.compile runs there now; --all exports those that are right all the same"
        )];
        why.extend(refused.iter().map(|it| format!("{} is left out: {}", it.op, it.why)));
        bail!("{}", why.join("\n"));
    };
    let mut lines =
        vec![format!("wrote {} ({} kernels, version {})", args.output.display(), plans.kernels.len(), plans.version)];
    for plan in &plans.kernels {
        let against = plan.against.as_deref().unwrap_or("its first version");
        lines.push(format!("  {}  {:.2}x {against}", plan.name, plan.speedup));
        lines.extend(plan.unjudged.iter().map(|it| match &it.why_not {
            None => format!("    for {} too, never judged there", it.arch),
            Some(why) => format!("    not for {}: {why}", it.arch),
        }));
    }
    lines.extend(
        state
            .targets
            .iter()
            .filter(|it| !plans.kernels.iter().any(|plan| plan.name == it.op))
            .filter_map(|it| left_out(it, &refused)),
    );
    let name = &plans.name;
    lines.push(match seen.as_ref().and_then(Settled::gain) {
        Some(gain) if !args.all => format!("the whole    {gain}, as the run ended"),
        _ => "the whole    not measured with just these kernels; verify does that".to_owned(),
    });
    lines.push(format!("use it       import {name}; {name}.enable(); model = torch.compile(model); call it under torch.inference_mode()"));
    let model = workspace.root().join(&state.model);
    let model = model.canonicalize().unwrap_or(model);
    lines.push(format!("measure it   warpsmith verify {} --model {}", args.output.display(), model.display()));
    super::say(&lines.join("\n"));
    Ok(ExitCode::SUCCESS)
}

/// Which of a run's kernels go into a package, and for what else they are compiled.
pub(super) struct Winners<'a> {
    /// Those that were not measured to be faster than PyTorch too.
    pub(super) all: bool,
    /// Those that the whole model does not agree with, or is slower with: only with `all`.
    pub(super) refused: &'a [Culprit],
    /// Other architectures.
    pub(super) arch: &'a [u32],
    pub(super) python: &'a PythonArgs,
}

/// Writes a run's kernels as a package; none where it has none.
///
/// # Errors
/// A run on another device, or on no PyTorch model; what does not compile or cannot be written.
pub(super) fn package(
    archive: &Archive,
    state: &RunState,
    output: &Path,
    winners: &Winners<'_>,
) -> anyhow::Result<Option<Plans>> {
    let run = &state.run;
    let compiled = pytorch::of_run(state)?;
    let mut kernels = Vec::new();
    for target in &state.targets {
        if !winners.all && winners.refused.iter().any(|it| it.op == target.op) {
            continue;
        }
        if let Some(chosen) = chosen(winners.all, archive, state, target)? {
            kernels.push(chosen);
        }
    }
    if kernels.is_empty() {
        return Ok(None);
    }
    let folder = std::path::absolute(output)?;
    let wanted = |facts| Wanted {
        folder: &folder,
        run,
        compiled,
        device_key: &state.device_key,
        judge: &state.judge,
        facts,
        kernels,
    };
    let elsewhere = |what: &str| anyhow!("run {run} was on {}, {what}; export it there", state.device);
    Ok(Some(match device::backend_of(&state.backend)? {
        BackendName::Cpu if !winners.arch.is_empty() => {
            bail!("--arch is for kernels of GPUs, and run {run} was on {}", state.device)
        }
        BackendName::Cpu => {
            let (cpu, flags) = (detect_cpu(), cpu_flags());
            if cpu.key != state.device_key {
                return Err(elsewhere("another processor than this one (or with another number of cores allowed)"));
            }
            let compiler = cpu::Compiler::new(&cache_dir())?;
            export::package(&wanted(&cpu.facts), &Maker::Cpu { compiler: &compiler, flags: &flags })?
        }
        BackendName::Cuda => {
            let card = cached_card(&cache_dir(), &state.device_key);
            let card = card.ok_or_else(|| elsewhere("a GPU that this machine knows nothing of"))?;
            let capability = card.facts.get("CC").and_then(|number| u32::try_from(*number).ok());
            let capability = capability.with_context(|| format!("the capability of {} is not known", card.name))?;
            let compiler = cuda::Compiler::new(&cache_dir(), cuda::driver_version().ok(), None)?
                .with_python(winners.python.python.clone());
            export::package(
                &wanted(&card.facts),
                &Maker::Cuda { compiler: &compiler, capability, others: winners.arch },
            )?
        }
    }))
}

/// Why a target that was judged is not in the package.
fn left_out(target: &TargetState, refused: &[Culprit]) -> Option<String> {
    target.start_us?;
    if let Some(culprit) = refused.iter().find(|it| it.op == target.op) {
        return Some(format!("  {} is left out: {}", target.op, culprit.why));
    }
    let against = target.against.as_deref().unwrap_or("its first version");
    Some(format!("  {} is left out: {:.2}x {against}", target.op, target.vs_user()))
}

/// The kernel of a target as it goes into the package, where it does.
fn chosen<'a>(
    all: bool,
    archive: &Archive,
    state: &'a RunState,
    target: &TargetState,
) -> anyhow::Result<Option<Chosen<'a>>> {
    let judged = target.start_us.is_some();
    if !judged || !(all || target.vs_user() > 1.0) {
        return Ok(None);
    }
    let region = pytorch::of_run(state)?.region(&target.op);
    let (Some(region), Some(operation)) = (region, target.source.clone()) else { return Ok(None) };
    let text = archive.tip_text(&state.run, &target.file)?.unwrap_or_else(|| target.start_text.clone());
    let Some((entry, evaluation)) = verdict_on(archive, state, target, &text)? else {
        bail!("the journal of run {} has no verdict on {} as it stands on its branch", state.run, target.file);
    };
    Ok(Some(Chosen {
        region,
        operation,
        text,
        target: target.shapes.clone(),
        evaluation,
        speedup: target.vs_user(),
        commit: entry.kept.then_some(entry.commit),
    }))
}

/// The experiment in which this very text was accepted, and what the judge said.
fn verdict_on(
    archive: &Archive,
    state: &RunState,
    target: &TargetState,
    text: &str,
) -> anyhow::Result<Option<(JournalEntry, Evaluation)>> {
    for entry in archive.entries(&state.run, Order::NewestFirst)? {
        let entry = entry?;
        if entry.path != target.file || archive.text(&entry.commit, &target.file)?.as_deref() != Some(text) {
            continue;
        }
        let evaluation: Evaluation = serde_json::from_value(entry.evaluation.clone())?;
        if evaluation.verdict.advances() {
            return Ok(Some((entry, evaluation)));
        }
    }
    Ok(None)
}

/// Judge every kernel of a package again, on this machine, and say where it differs from its receipts.
///
/// The exit code is 1 where a kernel is not right here, or its files are not those that were judged.
#[derive(Debug, clap::Args)]
pub(super) struct RecheckArgs {
    /// The package's folder
    #[arg(value_name = "PACKAGE")]
    package: PathBuf,
    #[command(flatten)]
    worker: WorkerArgs,
    /// Seed of inputs and orders (drawn where not given)
    #[arg(long)]
    seed: Option<u64>,
}

pub(super) fn recheck(args: RecheckArgs) -> anyhow::Result<ExitCode> {
    session::block_on(judge_again(args))
}

async fn judge_again(args: RecheckArgs) -> anyhow::Result<ExitCode> {
    let plans = export::plans(&args.package)?;
    let receipts = export::receipts(&args.package)?;
    if receipts.len() != plans.kernels.len() {
        bail!("{} has {} kernels and {} receipts", args.package.display(), plans.kernels.len(), receipts.len());
    }
    let settings = Workspace::find(&args.package)?.map_or_else(Settings::default, |it| it.settings().clone());
    let starter = args.worker.starter(&settings.run)?;
    let backend = match plans.platform {
        Platform::Cpu { .. } => BackendName::Cpu,
        Platform::Cuda { .. } => BackendName::Cuda,
    };
    let on = device::named(backend, DeviceArgs::default(), settings.device, &starter)?;
    let cancel = session::interruptible();
    let mut worker = starter.start(on, Opening::Now).await?;
    let mut wrong = 0;
    for (plan, receipt) in plans.kernels.iter().zip(&receipts) {
        let altered = export::altered(&args.package, plan, receipt);
        let task = EvaluationTask {
            op: receipt.operation.clone(),
            candidate: receipt.kernel.clone(),
            incumbent: None,
            baseline: None,
            target: receipt.target.clone(),
            seed: args.seed.unwrap_or_else(crate::rng::secret_seed),
            precision: None,
            look: true,
            examination_s: 0.0,
            branch_over_best: None,
        };
        let watch = super::spinner::Spinner::new(false);
        let ask = Ask::Evaluate(Box::new(task));
        let now: Evaluation = worker.ask(ask, &mut |progress: Progress| watch.show(&progress), &cancel).await?;
        drop(watch);
        wrong += u32::from(!altered.is_empty() || !bench::is_correct(&now.verdict));
        super::say(&again(&plan.name, receipt, &now, &worker.device().key));
        altered.iter().for_each(|what| super::say(&format!("  {what}")));
    }
    Ok(ExitCode::from(u8::from(wrong > 0)))
}

/// A kernel's verdict here beside that of its receipt.
fn again(name: &str, receipt: &Receipt, now: &Evaluation, device_key: &str) -> String {
    let word = match bench::is_correct(&now.verdict) {
        true => "correct again".to_owned(),
        false => format!("NOT CORRECT HERE: {}", crate::engine::one_line(now.verdict.why())),
    };
    let us = |it: &Evaluation| it.timing.as_ref().map(|timing| timing.latency_us);
    let times = match (us(&receipt.evaluation), us(now)) {
        (Some(then), Some(now)) => format!("; {then:.1} us then, {now:.1} us now"),
        _ => String::new(),
    };
    let beaten = now.vs_user.map_or(String::new(), |ratio| {
        let then = receipt.evaluation.vs_user.map_or(String::new(), |then| format!(", {then:.2}x then"));
        format!("; {ratio:.2}x {}{then}", now.against.as_deref().unwrap_or("what you have"))
    });
    let other =
        if receipt.device_key == device_key { String::new() } else { format!("; judged then on {}", receipt.device) };
    format!("{name}: {word}{times}{beaten}{other}")
}
