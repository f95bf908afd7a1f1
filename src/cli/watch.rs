//! `warpsmith watch`: the judge beside an editor.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use tokio_util::sync::CancellationToken;

use super::bench::{TimedArgs, Wanted, present, read};
use super::in_model::InModelArgs;
use super::options::{DeviceArgs, WorkerArgs};
use super::watch_screen::{self, Screen, Seen};
use super::{alone, session};
use crate::agent::{Choice, Outside};
use crate::device::Opening;
use crate::engine::stop::{Rules, StopReason};
use crate::engine::{Edited, MakeAgent, Options, Parts, Phase, Pool, Run, RunError, RunEvent, RunState, Watcher};
use crate::history::{self, Archive, History};
use crate::op::TargetShape;
use crate::watch::{Saves, Watch};
use crate::worker::{Client, WorkerError};
use crate::workspace::Workspace;

/// Judge a kernel file on every save: correct? faster than the last one kept?
///
/// The file as it is now is where it starts; each save is then judged as a run would judge it, against the last one kept.
/// A save during the judging starts it anew. Nothing is written down, unless --keep asks for it: then what is better is
/// committed to a branch of its own (`warpsmith/<run>`), with a row in results.tsv for every save. Your files and your
/// branch are never touched. Ctrl-C ends it with a summary.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith watch kernels/cpu/rmsnorm.c                   beside an open editor\n  warpsmith watch kernels/cpu/rmsnorm.c --keep            and every gain becomes a commit\n  warpsmith watch mine.c --against kernels/cpu/rmsnorm.c  start from another file\n  warpsmith watch mine.c --shape rows=512,cols=4096\n  warpsmith watch mine.c --model models/tiny-llama        at the shapes that it has in a model"
)]
pub(super) struct Args {
    /// The kernel file
    #[arg(value_name = "KERNEL")]
    kernel: PathBuf,
    /// Start from this file rather than from the kernel as it is
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Commit what is better to a branch of its own, and keep a record of every save
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    timed: TimedArgs,
    #[command(flatten)]
    in_model: InModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    worker: WorkerArgs,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(watch(args))
}

async fn watch(args: Args) -> anyhow::Result<ExitCode> {
    let cancel = session::interruptible();
    present(&args.kernel)?;
    // Before anything else: what is saved from now on is noticed.
    let (saves, text) = Saves::of(&args.kernel)?;
    let (start, first) = match &args.against {
        Some(path) => (read(path)?, Some(text)),
        None => (text, None),
    };
    let wanted = Wanted::read(args.device, &args.worker, &args.kernel)?;
    let in_model = args.in_model.target(&wanted, args.timed.given_dtype())?;
    let place = if args.keep { Some(Place::of(&args.kernel)?) } else { None };
    let worker = wanted.worker(Opening::Now).await?;
    let shapes = in_model.map_or_else(|| wanted.target(&args.timed, worker.limits()), Ok)?;
    let screen = Arc::new(Screen::new());
    screen.line(&opening(&args, &worker, &wanted.source.name, &shapes));
    if !saves.is_notified() {
        screen.line("note: the system has no notifications to give; the file is looked at twice a second");
    }
    let watch = begin(&args, &wanted, worker, shapes, place, (screen.clone(), cancel.clone()))?;
    let mut desk = Desk { watch, saves, screen, cancel };
    let ended = desk.work(start, first).await;
    desk.screen.end();
    let closed = desk.watch.close();
    super::say(&watch_screen::closing(&args.kernel, &desk.watch, args.keep));
    ended?;
    closed?;
    Ok(ExitCode::SUCCESS)
}

/// Where a history goes: the workspace, and the kernel file in it.
struct Place {
    workspace: Arc<Workspace>,
    file: String,
}

impl Place {
    fn of(kernel: &Path) -> anyhow::Result<Self> {
        let (workspace, made) = alone::workspace_of(kernel)?;
        made.iter().for_each(|line| super::say(line));
        let file = alone::path_in(&workspace, kernel)?;
        Ok(Self { workspace: Arc::new(workspace), file })
    }
}

/// The watch, with a history where one is wanted.
fn begin(
    args: &Args,
    wanted: &Wanted,
    worker: Client,
    shapes: Vec<TargetShape>,
    place: Option<Place>,
    (screen, cancel): (Arc<Screen>, CancellationToken),
) -> anyhow::Result<Watch> {
    let file = match &place {
        Some(place) => place.file.clone(),
        None => args.kernel.display().to_string(),
    };
    let run = match &place {
        Some(place) => {
            let used = Archive::open(&place.workspace)?.used_run_ids()?;
            history::next_run_id(jiff::Zoned::now().date(), &used)
        }
        None => String::new(),
    };
    let folder = args.kernel.parent().filter(|folder| !folder.as_os_str().is_empty());
    let found = Workspace::find(folder.unwrap_or(Path::new(".")))?.map(Arc::new);
    let examination = found.as_ref().and_then(|workspace| workspace.settings().run.examination);
    let rules = Rules { examination, ..Rules::default() };
    let state = state(run, file, wanted, (shapes, rules), &worker);
    let make_agent: MakeAgent = Box::new(|_| Ok(Box::new(Outside { name: "watch".to_owned() })));
    let parts = |workspace: Option<Arc<Workspace>>| Parts {
        workspace,
        pool: Pool::of_one(worker),
        make_agent,
        watcher: Box::new(Voice(screen)),
        cancel,
    };
    Ok(Watch::new(match place {
        None => Run::unwritten(parts(found), state),
        Some(place) => {
            let history = History::begin(&place.workspace, &state.run, serde_json::to_value(&state)?)?;
            Run::new(parts(Some(place.workspace)), state, history, Vec::new())
        }
    }))
}

/// Shows where the judge is.
struct Voice(Arc<Screen>);

impl Watcher for Voice {
    fn on(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Judging { progress, .. } => self.0.progress(progress),
            RunEvent::Trouble { what } => self.0.line(&format!("warning: {what}")),
            _ => {}
        }
    }
}

/// A run of one target that nobody resumes: whatever ends a watch, it has ended.
fn state(
    run: String,
    file: String,
    wanted: &Wanted,
    (shapes, rules): (Vec<TargetShape>, Rules),
    worker: &Client,
) -> RunState {
    let options = Options {
        run,
        model: file,
        agent: Choice::Outside { name: "watch".to_owned() },
        rules,
        only: Vec::new(),
        skip: Vec::new(),
        seed: crate::rng::secret_seed(),
    };
    let mut state = alone::begun(options, wanted, shapes, worker);
    for target in &mut state.targets {
        target.phase = Phase::Done(StopReason::Watch);
    }
    RunState { ended: Some(StopReason::Watch), ..state }
}

fn opening(args: &Args, worker: &Client, op: &str, shapes: &[TargetShape]) -> String {
    format!(
        "watching {}: {}\nsave it to have it judged; Ctrl-C ends with a summary",
        args.kernel.display(),
        alone::words(op, shapes, worker)
    )
}

/// Everything a watch has at hand.
struct Desk {
    watch: Watch,
    saves: Saves,
    screen: Arc<Screen>,
    cancel: CancellationToken,
}

impl Desk {
    /// Judges the start, then `first` where there is one, then every save, until the user ends it.
    async fn work(&mut self, start: String, first: Option<String>) -> anyhow::Result<()> {
        // A save meanwhile is held against this, so it waits.
        self.judge_start(&start).await?;
        if first.is_some() && self.watch.best().is_none() && !self.cancel.is_cancelled() {
            bail!("the file to start from does not pass; `warpsmith bench` on it says more");
        }
        let mut next = first;
        while !self.cancel.is_cancelled() {
            let text = match next.take() {
                Some(text) => text,
                None => tokio::select! {
                    () = self.cancel.cancelled() => return Ok(()),
                    text = self.saves.next() => text?,
                },
            };
            if self.watch.best().as_ref() == Some(&text) {
                self.screen.seen(&Seen::Best { kept: self.watch.target().kept > 0 });
                continue;
            }
            next = self.judge_save(&text).await?;
        }
        Ok(())
    }

    async fn judge_start(&mut self, text: &str) -> anyhow::Result<()> {
        self.screen.judging(&self.watch.describe(text));
        let answer = self.watch.judge(text, &self.cancel).await;
        self.show(answer, false)
    }

    /// Judges a save; where another one comes meanwhile, that one is returned.
    async fn judge_save(&mut self, text: &str) -> anyhow::Result<Option<String>> {
        let stop = self.cancel.child_token();
        self.screen.judging(&self.watch.describe(text));
        let mut newer = None;
        let answer = {
            let judging = self.watch.judge(text, &stop);
            tokio::pin!(judging);
            loop {
                tokio::select! {
                    answer = &mut judging => break answer,
                    text = self.saves.next() => {
                        newer = Some(text?);
                        stop.cancel();
                    }
                }
            }
        };
        self.show(answer, newer.is_some())?;
        Ok(newer)
    }

    /// Shows what became of a text. What the machine could not do now it may do for the next one.
    fn show(&self, answer: Result<Result<Edited, StopReason>, RunError>, overtaken: bool) -> anyhow::Result<()> {
        match answer {
            Ok(Ok(judged)) => self.screen.seen(&Seen::Judged(&judged)),
            Ok(Err(StopReason::Interrupted)) => {
                if overtaken {
                    self.screen.seen(&Seen::Overtaken);
                }
            }
            Ok(Err(StopReason::Unjudged { why })) => self.screen.seen(&Seen::Trouble(&why)),
            Ok(Err(reason)) => self.screen.seen(&Seen::Trouble(&reason.to_string())),
            Err(RunError::Worker(error @ (WorkerError::Failed { .. } | WorkerError::Died(_)))) => {
                self.screen.seen(&Seen::Trouble(&error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}
