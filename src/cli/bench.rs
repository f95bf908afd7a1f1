//! `warpsmith bench`: the judge for one kernel file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::device::{self, Device};
use super::options::{DeviceArgs, WorkerArgs};
use super::problem::WorkloadArgs;
use super::session;
use super::starter::Starter;
use crate::backend::CaseLimits;
use crate::device::Opening;
use crate::engine::files;
use crate::evaluation::{Evaluation, Verdict};
use crate::harness::{EvaluationTask, Progress, SelfTest};
use crate::kernel::{FrontMatter, KernelFile};
use crate::op::{Dtype, OpSource, Shape, TargetShape};
use crate::torch::Problem;
use crate::worker::Client;
use crate::worker::protocol::Ask;
use crate::workspace::{BackendName, DeviceSettings, Settings, Workspace, embedded_names};

/// Judge one kernel file: five stages of correctness, then time, on this machine.
///
/// The exit code is 0 where it is correct (and, with --against, whatever the speed), 1 where it is rejected,
/// 2 where it could not be judged.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith bench kernels/cpu/rmsnorm.c                         correct? how fast, against the roofline?\n  warpsmith bench mine.c --against kernels/cpu/rmsnorm.c        and against another, in pairs, by the keep rule\n  warpsmith bench mine.c --shape rows=512,cols=4096 --dtype f16 at a shape of your own\n  warpsmith bench --self-test 100 kernels/cpu/rmsnorm.c         how often is a change that changes nothing kept?\n  warpsmith bench --compile kernels/cuda/rmsnorm.cu             does it compile? no GPU is needed\n  warpsmith bench kernels/cuda/rmsnorm.cu --device 1            on the second GPU; the file says that it is for one\n  warpsmith bench --seeds 40 --smoke mine.c                     is it right at the smallest shape, whatever the inputs?\n  warpsmith bench --speed kernels/cpu/*.c                       how long does a verdict take?\n  warpsmith bench mine.c --problem 23_Softmax.py                is it what PyTorch computes? how fast, beside PyTorch?"
)]
pub(super) struct Args {
    /// The kernel file (with --speed, one or more)
    #[arg(required = true, value_name = "KERNEL")]
    pub(super) kernels: Vec<PathBuf>,
    /// Compare with another kernel file in pairs, by the keep rule
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    timed: TimedArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) worker: WorkerArgs,
    /// The problem that the kernel is for: a PyTorch file with `Model`, `get_inputs` and `get_init_inputs`, or a definition in
    /// FlashInfer-Bench's JSON
    #[arg(long, value_name = "FILE", conflicts_with = "compile")]
    problem: Option<PathBuf>,
    #[command(flatten)]
    workloads: WorkloadArgs,
    /// Judge N copies of the kernel that differ in nothing but their addresses: the keeps are mistakes
    #[arg(long, value_name = "N", conflicts_with = "against", value_parser = clap::value_parser!(u32).range(1..))]
    self_test: Option<u32>,
    /// Stage 1 alone: does it compile, and is it right at the smallest shape? No times
    #[arg(long, conflicts_with_all = ["against", "self_test", "speed"])]
    smoke: bool,
    /// Only compile a CUDA file and its oracle, for sm_90 or the GPU that is named (`--compile=sm_80`): no GPU is needed
    #[arg(
        long, value_name = "SM", num_args = 0..=1, require_equals = true, default_missing_value = "",
        conflicts_with_all = ["against", "self_test", "speed", "smoke", "json", "shape", "dtype"]
    )]
    compile: Option<String>,
    /// Examine it as what would be kept is, for so many seconds: hostile inputs at full and larger sizes, sanitizers (on a GPU
    /// and with --smoke these alone)
    #[arg(
        long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "20",
        conflicts_with_all = ["self_test", "speed", "compile"]
    )]
    examine: Option<f64>,
    /// Measure how many seconds a verdict takes: each kernel, then N of its neighbours against it in a warm worker
    #[arg(
        long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "5",
        conflicts_with_all = ["against", "self_test"], value_parser = clap::value_parser!(u16).range(1..)
    )]
    speed: Option<u16>,
    /// Seed of inputs and orders, to repeat a verdict (drawn where not given)
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Judge it N times, under this seed and those that follow: what is right is right under each
    #[arg(
        long, value_name = "N", conflicts_with_all = ["against", "self_test", "speed", "compile"],
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    seeds: Option<u64>,
    /// Print the whole evaluation (or the table) as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Where a kernel file is timed.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TimedArgs {
    /// Time at this shape instead of the primary one, such as rows=512,cols=4096 (may be repeated)
    #[arg(long, value_name = "SYMBOL=N,...", value_parser = parse_shape)]
    pub(super) shape: Vec<Shape>,
    /// Time at this type [default: f32 on a CPU, f16 on a GPU]
    #[arg(long, value_enum)]
    pub(super) dtype: Option<Dtype>,
    /// The sizes of a definition's workloads, in the place of the primary shape
    #[arg(skip)]
    pub(super) workloads: Vec<Shape>,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    match &args.compile {
        Some(gpu) => super::compile::main(args.one()?, gpu, args.worker.python.python.as_deref()),
        None => session::block_on(bench(args)),
    }
}

impl Args {
    /// The problem that was given.
    fn given(&self) -> anyhow::Result<Option<Problem>> {
        if self.problem.is_none() && self.workloads.workloads.is_some() {
            bail!("--workloads says at which sizes the definition that --problem names is called");
        }
        let gpu = self.kernels.first().and_then(|kernel| super::problem::gpu_for(kernel, self.device));
        let read = |path: &PathBuf| super::problem::read(path, &self.workloads, &self.worker.python, gpu);
        self.problem.as_ref().map(read).transpose()
    }

    /// The one kernel file that there is.
    fn one(&self) -> anyhow::Result<&Path> {
        let [kernel] = self.kernels.as_slice() else {
            bail!("{} kernel files; one is judged at a time (only --speed takes several)", self.kernels.len());
        };
        Ok(kernel)
    }
}

async fn bench(mut args: Args) -> anyhow::Result<ExitCode> {
    let problem = args.given()?;
    if let Some(problem) = &problem {
        args.timed.workloads.clone_from(&problem.shapes);
    }
    let source = problem.as_ref().map(|problem| &problem.source);
    if let Some(candidates) = args.speed {
        return super::speed::table(&args, source, usize::from(candidates)).await;
    }
    let wanted = Wanted::read_for(args.device, &args.worker, args.one()?, source)?;
    let cancel = session::interruptible();
    let mut worker = wanted.worker(Opening::Meanwhile).await?;
    let (device, own) = (wanted.device, wanted.starter.is_own());
    let task = wanted.task(&args, worker.limits())?;
    let watch = super::spinner::Spinner::new(args.json);
    if let Some(pairs) = args.self_test {
        let ask = Ask::SelfTest { task: Box::new(task), pairs };
        let result: SelfTest = worker.ask(ask, &mut |progress| watch.show(&progress), &cancel).await?;
        drop(watch);
        return print_self_test(&result, args.json);
    }
    if args.smoke && args.examine.is_some() {
        drop(watch);
        if device == Device::Cpu {
            bail!("--smoke with --examine asks the sanitizers for GPUs; this file is for a processor");
        }
        if !own {
            bail!("--smoke with --examine asks the sanitizers of this machine; leave --worker out");
        }
        return super::watched::table(device, &task);
    }
    if let Some(count) = args.seeds {
        let asked = super::seeds::Asked { task, count, smoke: args.smoke };
        return super::seeds::table(&mut worker, asked, &watch, &cancel, args.json).await;
    }
    let task = Box::new(task);
    let ask = if args.smoke { Ask::Smoke(task) } else { Ask::Evaluate(task) };
    let evaluation: Evaluation = worker.ask(ask, &mut |progress: Progress| watch.show(&progress), &cancel).await?;
    drop(watch);
    if args.json {
        super::say(&serde_json::to_string_pretty(&evaluation)?);
    } else {
        super::say(&super::verdict::full(&evaluation));
    }
    Ok(ExitCode::from(u8::from(!is_correct(&evaluation.verdict))))
}

/// Whether nothing is wrong with it, whatever its speed.
pub(super) const fn is_correct(verdict: &Verdict) -> bool {
    verdict.advances() || matches!(verdict, Verdict::Revert { .. })
}

/// A kernel file that is to be judged.
pub(super) struct Wanted {
    /// The file's text.
    pub(super) text: String,
    /// Its operation.
    pub(super) source: OpSource,
    /// The device that the file is for.
    pub(super) device: Device,
    starter: Starter,
}

impl Wanted {
    /// Reads the file at `path`, its operation, and which device it is for.
    pub(super) fn read(device: DeviceArgs, worker: &WorkerArgs, path: &Path) -> anyhow::Result<Self> {
        Self::read_for(device, worker, path, None)
    }

    /// The same of a file whose operation may be `given`, rather than be looked up by its name.
    pub(super) fn read_for(
        device: DeviceArgs,
        worker: &WorkerArgs,
        path: &Path,
        given: Option<&OpSource>,
    ) -> anyhow::Result<Self> {
        let text = read(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let workspace = Workspace::find(folder)?;
        // A text that says nothing of itself has no operation to look up.
        let front = KernelFile::parse(&text).with_context(|| format!("{}", path.display()))?.front;
        let source = match given {
            Some(given) if given.name == front.op => given.clone(),
            Some(given) => bail!(
                "{} is a kernel for {}, and the problem is the operation {}",
                path.display(),
                front.op,
                given.name
            ),
            None => OpSource::read(&front.op, &files::reader(workspace.as_ref()))?,
        };
        let settings = workspace.as_ref().map_or_else(Settings::default, |workspace| workspace.settings().clone());
        let starter = worker.starter(&settings.run)?;
        let device = device_for(device, path, &front, settings.device, &starter)?;
        Ok(Self { text, source, device, starter })
    }

    /// Starts the worker that judges it.
    pub(super) async fn worker(&self, opening: Opening) -> anyhow::Result<Client> {
        self.starter.start(self.device, opening).await
    }

    /// What it runs on.
    pub(super) fn backend(&self) -> BackendName {
        self.device.backend().unwrap_or(BackendName::Cpu)
    }

    /// What the judge is asked about it, on a device with these limits.
    pub(super) fn task(self, args: &Args, limits: &CaseLimits) -> anyhow::Result<EvaluationTask> {
        let incumbent = args.against.as_deref().map(|path| self.rival(path)).transpose()?;
        Ok(EvaluationTask {
            target: self.target(&args.timed, limits)?,
            op: self.source,
            candidate: self.text,
            incumbent,
            baseline: None,
            seed: args.seed.unwrap_or_else(crate::rng::secret_seed),
            precision: None,
            // A self-test decides by what the start shows, and --speed measures what a run does.
            look: args.self_test.is_none() && args.speed.is_none(),
            examination_s: args.examine.unwrap_or(0.0),
            branch_over_best: None,
        })
    }

    /// The text of the kernel file that it is compared with: one for the same operation.
    fn rival(&self, path: &Path) -> anyhow::Result<String> {
        let text = read(path)?;
        let front = KernelFile::parse(&text).with_context(|| format!("{}", path.display()))?.front;
        if front.op != self.source.name {
            let (path, own) = (path.display(), &self.source.name);
            bail!("{path} is a kernel for {}, and this one is for {own}; --against takes one for {own}", front.op);
        }
        Ok(text)
    }

    /// Where it is timed, on a device with these limits.
    pub(super) fn target(&self, args: &TimedArgs, limits: &CaseLimits) -> anyhow::Result<Vec<TargetShape>> {
        let usual = match self.backend() {
            BackendName::Cpu => Dtype::F32,
            BackendName::Cuda => Dtype::F16,
        };
        // A kernel that does not serve what is usual here is timed in what it serves.
        let served = KernelFile::parse(&self.text).map(|kernel| kernel.front.dtypes).unwrap_or_default();
        let usual = if served.contains(&usual) { usual } else { served.first().copied().unwrap_or(usual) };
        let dtype = args.dtype.unwrap_or(usual);
        if args.shape.is_empty() && args.workloads.is_empty() {
            return Ok(session::primary_target(&self.source, dtype, limits)?);
        }
        let op = self.source.operation()?;
        if !args.shape.is_empty() {
            return args
                .shape
                .iter()
                .map(|shape| Ok(TargetShape { shape: op.complete(shape)?, dtype, calls: 1 }))
                .collect();
        }
        let mut targets: Vec<TargetShape> = Vec::new();
        for shape in &args.workloads {
            let (shape, _) = op.shrink_to(&op.complete(shape)?, limits.macs, limits.elements)?;
            if targets.iter().all(|target| target.shape != shape) {
                targets.push(TargetShape { shape, dtype, calls: 1 });
            }
        }
        Ok(targets)
    }
}

impl TimedArgs {
    /// The type, where it was given.
    pub(super) const fn given_dtype(&self) -> Option<Dtype> {
        self.dtype
    }
}

/// Refuses a kernel that would be there, had those that come with the program been copied.
pub(super) fn present(path: &Path) -> anyhow::Result<()> {
    if !path.exists() && embedded_names("kernels/").any(|shipped| path.ends_with(shipped)) {
        bail!("{} is not there; `warpsmith init --copy` writes the kernels that come with the program", path.display());
    }
    Ok(())
}

/// The text of a kernel file.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    present(path)?;
    std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// The device that the file is written for.
fn device_for(
    args: DeviceArgs,
    path: &Path,
    front: &FrontMatter,
    settings: DeviceSettings,
    starter: &Starter,
) -> anyhow::Result<Device> {
    let own = if front.is_cuda() { BackendName::Cuda } else { BackendName::Cpu };
    front.check_backend(args.backend.unwrap_or(own).name())?;
    let words = match own {
        BackendName::Cuda => "needs a GPU (`warpsmith bench --compile` only compiles it, without one)",
        BackendName::Cpu => "is for a processor",
    };
    device::named(own, args, settings, starter).with_context(|| format!("{} {words}", path.display()))
}

/// `rows=512,cols=4096`, or as shapes are printed: `cols=4096 rows=512`.
pub(super) fn parse_shape(text: &str) -> Result<Shape, String> {
    let mut pairs = text.split(',').flat_map(|part| match part.matches('=').count() {
        0 | 1 => vec![part],
        _ => part.split_whitespace().collect(),
    });
    pairs.try_fold(Shape::default(), |shape, pair| {
        let (symbol, value) = pair
            .split_once('=')
            .ok_or_else(|| format!("`{pair}` is not SYMBOL=N; write for example rows=512,cols=4096"))?;
        let value = value.trim().parse().map_err(|_| format!("`{value}` is not a whole number"))?;
        Ok(shape.with(symbol.trim(), value))
    })
}

fn print_self_test(result: &SelfTest, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        super::say(&serde_json::to_string_pretty(result)?);
    } else {
        let spread = result.ratios.iter().fold((f64::INFINITY, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
        super::say(&format!(
            "{} pairs that differ in nothing: {} kept by the keep rule (margin {:.1} %), {} by one sample and 1 %\n\
             apparent speedups from {:.3}x to {:.3}x",
            result.pairs,
            result.false_keeps,
            100.0 * result.margin.exp_m1(),
            result.naive_keeps,
            spread.0,
            spread.1
        ));
    }
    Ok(ExitCode::from(u8::from(result.false_keeps > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_on_the_command_line_is_symbols_and_numbers() {
        assert_eq!(parse_shape("rows=3, cols=4"), Ok(Shape::from([("rows", 3), ("cols", 4)])));
        assert!(parse_shape("rows").is_err() && parse_shape("rows=x").is_err());
        // As it is printed, it can be given again.
        let printed = Shape::from([("rows", 3), ("cols", 4)]).to_string();
        assert_eq!(parse_shape(&printed), Ok(Shape::from([("rows", 3), ("cols", 4)])), "{printed}");
        assert_eq!(parse_shape("rows = 3, cols = 4"), Ok(Shape::from([("rows", 3), ("cols", 4)])));
        for wrong in ["", "rows=3,", "rows=3 cols", "rows=3 cols=4 depth", "rows=3 cols=x"] {
            assert!(parse_shape(wrong).is_err(), "{wrong:?}");
        }
    }
}
