//! How a run begins, whoever proposes.

mod languages;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::alone;
use super::bench::{self, TimedArgs, parse_shape, present};
use super::crew::CrewArgs;
use super::device::{self, Device};
use super::inductor;
use super::options::{DeviceArgs, LoadArgs, PassArgs};
use super::problem::WorkloadArgs;
use super::pytorch;
use crate::agent::Choice;
use crate::device::Opening;
use crate::engine::files;
use crate::engine::stop::Rules;
use crate::engine::{Options, Pool, Rival, RunState, check_names, plan, plan_compiled, several};
use crate::history::{self, Archive, History, Pending};
use crate::kernel::{KernelFile, Language, kernel_file, set_dtypes};
use crate::model::{Graph, ModelConfig};
use crate::op::{Dtype, OpSource, Shape};
use crate::torch::inductor::Gpu;
use crate::torch::model::Region;
use crate::workspace::{RunSettings, Workspace};

/// What is improved, and where.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// Directory with a Hugging Face `config.json` (Llama, Mistral, Qwen2, GPT-2 and BERT kinds), and its weights where it has
    /// any; or one with a `model.py` in PyTorch; or a kernel file, which is improved on its own; or a PyTorch problem file, or a definition in
    /// FlashInfer-Bench's JSON
    #[arg(value_name = "MODEL_DIR|KERNEL_FILE")]
    pub(super) model: PathBuf,
    #[command(flatten)]
    pub(super) workloads: WorkloadArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    pass: PassArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) crew: CrewArgs,
    /// Go on with a run (the latest where none is named), or with one from a file that `warpsmith bundle` has written
    #[arg(long, value_name = "RUN|FILE", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,
    /// Work on these operations only, however little the model can gain (may be repeated, or separated by commas)
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    only: Vec<String>,
    /// Ask kernels for these types only, of those that the file serves; the pass's own is always among them, and what is kept serves no
    /// other (may be repeated, or separated by commas)
    #[arg(long, value_enum, value_name = "DTYPE", value_delimiter = ',')]
    dtypes: Vec<Dtype>,
    /// Begin with the kernels that are written in this language; of several (`cuda,triton`), with the first one's, against which the others'
    /// are judged, and an agent may answer in any [default: cuda on a GPU, and triton too where the workspace has a kernel of its own in
    /// it; c on a processor]
    #[arg(long, value_name = "LANGUAGE", value_delimiter = ',', value_parser = languages::language_of)]
    language: Vec<Language>,
    /// Leave these operations alone
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    skip: Vec<String>,
    /// Time a kernel file at this shape instead of its primary one, such as rows=512,cols=4096 (may be repeated)
    #[arg(long, value_name = "SYMBOL=N,...", value_parser = parse_shape)]
    shape: Vec<Shape>,
    /// Where a PyTorch model's run starts from: a folder with kernel files for its regions (`warpsmith profile MODEL_DIR --write FOLDER`
    /// names them) [default: those of the workspace]
    #[arg(long, value_name = "FOLDER")]
    kernels: Option<PathBuf>,
    /// Of a PyTorch model: it is used with torch.compile(mode="max-autotune"), so that a kernel is kept only where it beats that too; each
    /// target begins some ten seconds later
    #[arg(long)]
    max_autotune: bool,
    /// Seed of everything that is drawn (secret where not given)
    #[arg(long)]
    seed: Option<u64>,
    /// The problems of a run with several, of which `model` is the folder of the kernels
    #[arg(skip)]
    pub(super) posed: Vec<Posed>,
    /// The sizes of a definition's workloads, which is timed there where no others are named
    #[arg(skip)]
    pub(super) sizes: Vec<Shape>,
}

/// A problem, and the kernel that its target starts from.
#[derive(Debug, Clone)]
pub(super) struct Posed {
    /// The kernel file.
    pub(super) kernel: PathBuf,
    /// What it is to compute.
    pub(super) source: OpSource,
}

impl RunArgs {
    /// The run that is to go on, where one is; an empty name is the latest.
    pub(super) fn resumed(&self) -> Option<&str> {
        self.resume.as_deref()
    }

    /// Whether something is given that a run keeps from its beginning.
    pub(super) const fn fixes_what_is_kept(&self) -> bool {
        let pass = self.pass.is_given() || self.seed.is_some() || !self.shape.is_empty() || !self.dtypes.is_empty();
        pass || self.max_autotune || !self.only.is_empty() || !self.skip.is_empty() || !self.language.is_empty()
    }

    /// Whether an earlier run is gone on with.
    pub(super) const fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    /// Whether a kernel file is improved, outside of any model.
    fn is_kernel(&self) -> bool {
        self.model.is_file()
    }

    /// Whether a PyTorch model is improved.
    pub(super) fn is_pytorch(&self) -> bool {
        pytorch::is_model(&self.model, &self.load)
    }

    /// Has the targets begin with kernels that serve no types but those asked for, and the one that is timed.
    fn narrow(&self, state: &mut RunState, timed: Dtype) -> anyhow::Result<()> {
        if self.dtypes.is_empty() {
            return Ok(());
        }
        for target in state.targets.iter_mut().filter(|target| !target.start_text.is_empty()) {
            let served = KernelFile::parse(&target.start_text).map(|kernel| kernel.front.dtypes).unwrap_or_default();
            let wanted = |dtype: &Dtype| *dtype == timed || self.dtypes.contains(dtype);
            let kept: Vec<Dtype> = served.iter().copied().filter(wanted).collect();
            if kept.len() < served.len() {
                target.start_text =
                    set_dtypes(&target.start_text, &kept).with_context(|| format!("--dtypes and {}", target.file))?;
            }
        }
        Ok(())
    }

    /// The type that was asked for.
    pub(super) fn dtype(&self) -> Option<Dtype> {
        self.pass.dtype()
    }

    /// Refuses what means nothing for a kernel alone, or for a model.
    fn check(&self) -> anyhow::Result<()> {
        present(&self.model)?;
        if !self.model.exists() {
            let model = self.model.display();
            bail!("{model} is not there; name a directory with a model's config.json, or a kernel file");
        }
        if self.load.function.is_some() && !self.model.is_dir() {
            bail!("--load is for a model's directory, and {} is none", self.model.display());
        }
        let of_a_model = [("--only", &self.only), ("--skip", &self.skip)];
        let named = of_a_model.iter().find(|(_, ops)| !ops.is_empty()).map(|(option, _)| *option);
        if self.is_kernel()
            && let Some(own) = self.model.to_str().and_then(Language::of_file)
            && !self.language.is_empty()
            && !self.language.contains(&own)
        {
            bail!("--language leaves out {}, in which {} is written", own.name(), self.model.display());
        }
        match named.or(self.pass.of_a_model()) {
            Some(option) if self.is_kernel() => bail!(
                "{option} is for a model, and {} is a kernel file; --shape and --dtype say where it is timed",
                self.model.display()
            ),
            Some(option) if self.is_pytorch() && option != "--only" && option != "--skip" => {
                pytorch::check_pass(Some(option), &self.model)
            }
            _ if (self.kernels.is_some() || self.max_autotune) && !self.is_pytorch() => bail!(
                "{} is for a PyTorch model (a directory with a model.py), and {} is none",
                if self.max_autotune { "--max-autotune" } else { "--kernels" },
                self.model.display()
            ),
            _ if !self.shape.is_empty() && !self.is_kernel() => bail!(
                "--shape is for a kernel file; in {} the shapes are the model's, by --batch, --seq and --phase",
                self.model.display()
            ),
            _ => Ok(()),
        }
    }
}

/// A run as it is wanted.
pub(super) struct Wanted<'a> {
    pub(super) args: &'a RunArgs,
    /// Who proposes; where nobody said, the tuner, or whoever the run that goes on had.
    pub(super) agent: Option<Choice>,
    /// Puts the rules that were given over those of the settings, or of the run that goes on.
    pub(super) override_rules: &'a dyn Fn(&mut Rules) -> anyhow::Result<()>,
    /// Says what the user should hear meanwhile.
    pub(super) tell: &'a dyn Fn(&str),
}

/// A run that can start.
pub(super) struct Ready {
    pub(super) history: History,
    pub(super) pending: Vec<Pending>,
    pub(super) state: RunState,
    pub(super) pool: Pool,
}

/// The workspace of a model directory, made where there is none, or of a kernel file; and what to say about that.
pub(super) fn workspace_for(args: &RunArgs) -> anyhow::Result<(Workspace, Vec<String>)> {
    args.check()?;
    let model = &args.model;
    if args.is_kernel() {
        return alone::workspace_of(model);
    }
    if let Some(first) = args.posed.first() {
        return alone::workspace_of(&first.kernel);
    }
    if let Some(workspace) = Workspace::find(model)? {
        let created = workspace.ensure_repository()?;
        let said = created.map(|path| format!("made a git repository in {}", path.display()));
        return Ok((workspace, said.into_iter().collect()));
    }
    // Looked at first, so that nothing is written beside a directory that is no model.
    if !args.is_pytorch() {
        ModelConfig::load(model)?;
    }
    let (workspace, made) = Workspace::make(model)?;
    Ok((workspace, made.sentences()))
}

/// Plans a new run and begins its history.
pub(super) async fn begin(
    wanted: &Wanted<'_>,
    workspace: &Workspace,
    cancel: &CancellationToken,
) -> anyhow::Result<Ready> {
    let args = wanted.args;
    let options = Options {
        run: history::next_run_id(jiff::Zoned::now().date(), &Archive::open(workspace)?.used_run_ids()?),
        model: alone::path_in(workspace, &args.model)?,
        agent: wanted.agent.clone().unwrap_or_default(),
        rules: rules(wanted, &workspace.settings().run)?,
        only: args.only.clone(),
        skip: args.skip.clone(),
        seed: args.seed.unwrap_or_else(crate::rng::secret_seed),
    };
    let (state, pool) = match args.is_kernel() {
        _ if !args.posed.is_empty() => plan_problems(wanted, workspace, options).await?,
        true => plan_kernel(wanted, workspace, options).await?,
        false if args.is_pytorch() => plan_pytorch(wanted, workspace, options).await?,
        false => plan_model(wanted, workspace, options, cancel).await?,
    };
    let history = History::begin(workspace, &state.run, serde_json::to_value(&state)?)?;
    if let Some(compiled) = state.workload.compiled() {
        pytorch::write_regions(&history.folder().join("regions"), compiled)?;
    }
    for file in history.left_out() {
        super::warn(&format!("note: {} is large and untracked; the run's branch does not have it", file.display()));
    }
    Ok(Ready { history, pending: Vec::new(), state, pool })
}

/// Looks a kernel file up, which is all there is to improve.
async fn plan_kernel(wanted: &Wanted<'_>, workspace: &Workspace, options: Options) -> anyhow::Result<(RunState, Pool)> {
    let args = wanted.args;
    let kernel = bench::Wanted::read(args.crew.device_of_lead(args.device), &args.crew.lead(), &args.model)?;
    History::could_begin(workspace, &options.run)?;
    let worker = kernel.worker(Opening::Now).await?;
    let timed = TimedArgs { shape: args.shape.clone(), dtype: args.pass.dtype(), workloads: args.sizes.clone() };
    let shapes = kernel.target(&timed, worker.limits())?;
    let words = alone::words(&kernel.source.name, &shapes, &worker);
    (wanted.tell)(&format!("improving {}: {words}", args.model.display()));
    let dtype = shapes.first().map_or(Dtype::F32, |wanted| wanted.dtype);
    let mut state = alone::begun(options, &kernel, shapes, &worker);
    args.rival(&mut state, &workspace.settings().run, wanted.tell, &|op, language| {
        files::kernel_in(Some(workspace), worker.device(), language, op, dtype)
    })?;
    args.narrow(&mut state, dtype)?;
    Ok((state, args.crew.pool(&workspace.settings().run, worker, kernel.device).await?))
}

/// Profiles the model and ranks what is in it.
async fn plan_model(
    wanted: &Wanted<'_>,
    workspace: &Workspace,
    options: Options,
    cancel: &CancellationToken,
) -> anyhow::Result<(RunState, Pool)> {
    let Wanted { args, tell, .. } = wanted;
    let config = ModelConfig::load(&args.model)?;
    let settings = workspace.settings();
    let starter = args.crew.lead().starter(&settings.run)?;
    let choice = device::choose(args.crew.device_of_lead(args.device), settings.device, &starter)?;
    // A worker elsewhere says itself what it has.
    let (backend, early) = match choice.device.backend() {
        Some(backend) => (backend, None),
        None => {
            let worker = starter.start(choice.device, Opening::Now).await?;
            (device::of(&worker)?, Some(worker))
        }
    };
    let pass = args.pass.resolve(&settings.run, backend, config.dtype);
    // Everything that can be refused is refused before minutes are spent on a profile.
    let targets = Graph::build(&config, pass)?.targets();
    let ops: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
    check_names(args.only.iter().chain(&args.skip), &ops)?;
    History::could_begin(workspace, &options.run)?;
    let mut worker = match early {
        Some(worker) => worker,
        None => starter.start(choice.device, Opening::Now).await?,
    };
    let read = files::reader(Some(workspace));
    choice.notes().iter().for_each(|note| tell(note));
    tell(&format!("profiling {} on {}", args.model.display(), worker.device().name));
    let language = args.language_on(worker.device())?;
    let kernels = files::kernels_in(Some(workspace), worker.device(), language, pass.dtype)?;
    let profile = crate::profile::measure(&mut worker, &config, pass, &kernels, &read, options.seed, cancel).await?;
    tell(&profile.table());
    let kernel = |op: &str| files::kernel_in(Some(workspace), worker.device(), language, op, pass.dtype);
    let mut state = plan(options, profile, worker.device(), worker.judge(), &kernel)?;
    args.rival(&mut state, &settings.run, *tell, &|op, language| {
        files::kernel_in(Some(workspace), worker.device(), language, op, pass.dtype)
    })?;
    args.narrow(&mut state, pass.dtype)?;
    Ok((state, args.crew.pool(&settings.run, worker, choice.device).await?))
}

/// A target for each problem, in their order.
async fn plan_problems(
    wanted: &Wanted<'_>,
    workspace: &Workspace,
    options: Options,
) -> anyhow::Result<(RunState, Pool)> {
    let args = wanted.args;
    let (device, lead) = (args.crew.device_of_lead(args.device), args.crew.lead());
    let mut kernels = Vec::new();
    for Posed { kernel, source } in &args.posed {
        let read = bench::Wanted::read_for(device, &lead, kernel, Some(source))?;
        kernels.push((alone::path_in(workspace, kernel)?, read));
    }
    let Some((_, first)) = kernels.first() else { bail!("there is no problem to work on") };
    if let Some((file, _)) = kernels.iter().find(|(_, kernel)| kernel.device != first.device) {
        bail!("{file} is for another kind of device than the files before it; a run has one");
    }
    History::could_begin(workspace, &options.run)?;
    let worker = first.worker(Opening::Now).await?;
    let timed = TimedArgs { shape: Vec::new(), dtype: args.pass.dtype(), workloads: Vec::new() };
    let mut targets = Vec::new();
    for (file, kernel) in &kernels {
        let shapes = kernel.target(&timed, worker.limits())?;
        targets.push(alone::target_of(kernel, file.clone(), shapes));
    }
    let problems = if targets.len() == 1 { "one problem".to_owned() } else { format!("{} problems", targets.len()) };
    (wanted.tell)(&format!("improving kernels for {problems} on {}", worker.device().name));
    let dtype = targets.first().and_then(|target| target.shapes.first()).map_or(Dtype::F32, |shape| shape.dtype);
    let mut state = several(options, targets, worker.device(), worker.judge());
    args.rival(&mut state, &workspace.settings().run, wanted.tell, &|op, language| {
        files::kernel_in(Some(workspace), worker.device(), language, op, dtype)
    })?;
    args.narrow(&mut state, dtype)?;
    let device = first.device;
    Ok((state, args.crew.pool(&workspace.settings().run, worker, device).await?))
}

/// Takes a PyTorch model apart and ranks its regions.
async fn plan_pytorch(
    wanted: &Wanted<'_>,
    workspace: &Workspace,
    options: Options,
) -> anyhow::Result<(RunState, Pool)> {
    let Wanted { args, tell, .. } = wanted;
    let settings = workspace.settings();
    let starter = args.crew.lead().starter(&settings.run)?;
    let choice = device::choose(args.crew.device_of_lead(args.device), settings.device, &starter)?;
    choice.notes().iter().for_each(|note| tell(note));
    let backend = choice.device.backend();
    let Some(backend) = backend else {
        bail!("a PyTorch model is taken apart on this machine; leave --worker out, or name --backend");
    };
    let own =
        args.kernels.as_deref().map(|folder| pytorch::kernels_in(folder, backend)).transpose()?.unwrap_or_default();
    History::could_begin(workspace, &options.run)?;
    let look = pytorch::Look {
        folder: &args.model,
        load: &args.load,
        name: args.model.display().to_string(),
        python: &args.crew.python,
        device: choice.device,
        dtype: args.pass.dtype(),
        seed: options.seed,
        max_autotune: args.max_autotune,
        seconds: PASS_SECONDS,
    };
    tell(&format!("taking {} apart, as torch.compile runs it", args.model.display()));
    let compiled = pytorch::look(&look, &mut |_| {})?;
    tell(&compiled.table());
    if args.max_autotune && compiled.captured.autotune_us.is_none() {
        bail!(
            "torch.compile(mode=\"max-autotune\") does not work for this model (see above); without --max-autotune kernels are held against torch.compile"
        );
    }
    pytorch::strangers(&own, &compiled).iter().for_each(|line| tell(line));
    let worker = starter.start(choice.device, Opening::Now).await?;
    let languages = args.languages_of(backend.name())?;
    let there = |region: &Region| {
        pytorch::kernel(&own, workspace, &languages, &region.name)
            .or_else(|| pytorch::shipped(workspace, worker.device(), region))
    };
    let written = match choice.device {
        Device::Cuda(number) if languages.contains(&Language::Triton) => {
            let regions = inductor::worth_asking(&compiled, (&args.only, &args.skip), &|it| there(it).is_some());
            let python = &args.crew.python;
            inductor::for_regions((&regions, &args.only, compiled.bar()), python, Gpu::Here(number), *tell)
        }
        _ => BTreeMap::new(),
    };
    let mut state = plan_compiled(options, compiled, worker.device(), worker.judge(), &there, &written)?;
    args.rival(&mut state, &settings.run, *tell, &|op, language| {
        // Whoever named a folder said where to begin.
        let named = args.language.is_empty() && own.contains_key(op);
        if named { None } else { pytorch::kernel(&BTreeMap::new(), workspace, &[language], op) }
    })?;
    for target in &mut state.targets {
        // Held against PyTorch, as whatever an agent writes there first; so that one that is refused is no more than that.
        if let Some(text) = written.get(&target.op) {
            let file = kernel_file(&target.op, Language::Triton.folder());
            target.rivals.push(Rival { file, text: text.clone() });
            target.languages.clone_from(&languages);
        }
    }
    Ok((state, args.crew.pool(&settings.run, worker, choice.device).await?))
}

/// Seconds that a PyTorch model is timed each way when a run begins.
const PASS_SECONDS: f64 = 1.0;

/// The rules: the command line first, then the settings.
fn rules(wanted: &Wanted<'_>, settings: &RunSettings) -> anyhow::Result<Rules> {
    let mut rules = Rules {
        max_reverts: Some(settings.max_reverts),
        roofline_pct: Some(settings.roofline * 100.0),
        speedup: Some(settings.speedup),
        per_kernel: Some(settings.per_kernel),
        examination: settings.examination,
        budget: settings.budget,
        until: None,
        max_tokens: None,
        max_cost: None,
    };
    (wanted.override_rules)(&mut rules)?;
    Ok(rules)
}
