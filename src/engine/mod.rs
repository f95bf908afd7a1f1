//! A run: targets in Amdahl order, and for each of them trial after trial until a rule fires; then what came of it.
//!
//! A [`Trial`] is one candidate with all that was said of it. It is made of an agent's proposal (`experiment`), sent to one of the
//! run's workers (`judging`, `pool`), and decided when its turn comes (`flight`: the order of the trials, not of the answers): a keep moves
//! the branch, whatever else is only written down (`record`). Only the run moves the branch, however many workers there are.

mod brief;
mod describe;
mod events;
mod experiment;
pub mod files;
mod flight;
mod judging;
mod last_word;
mod mending;
mod plan;
mod pool;
mod proposing;
mod record;
mod report;
mod screen;
mod state;
mod step;
pub mod stop;
mod summary;
mod target;
mod trial;
mod whole;
mod winners;
mod workload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agent::transcript::Transcript;
use crate::agent::{Agent, AgentError};
use crate::history::{History, HistoryError, Pending};
use crate::model::{ModelConfig, ModelError};
use crate::op::OpError;
use crate::verify::{Speedup, VerifyError};
use crate::worker::WorkerError;
use crate::workspace::{WORKERS_FILE, Workspace, WorkspaceError, embedded};

use flight::Flight;
use judging::{Answer, Note, Notes};
use record::{Record, Unwritten};

pub use brief::brief;
pub use describe::one_line;
pub use events::{RunEvent, Watcher, is_keep};
pub use plan::{Options, alone, check_names, plan, plan_compiled, several};
pub use pool::{Doing, Pool, WorkerStatus};
pub use report::CostOf;
pub use state::{InModel, MOST_TROUBLES, Phase, Rival, RunState, TargetState, Trouble, VERSION};
pub use step::Edited;
use stop::{Ahead, Moment, RunProgress, StopReason};
pub use trial::{Judged, Trial};
pub use workload::Workload;

/// Why a run cannot go on. What it has done so far is in the journal either way.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The branch has lost what was kept, or never was of this workspace.
    #[error(
        "the branch of run {run} has no {file}, which the run would go on from; was it begun in another workspace?"
    )]
    NoKernel {
        /// The run.
        run: String,
        /// The kernel file.
        file: String,
    },
    /// The workspace or its files.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Git.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The model directory.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// An operation's files.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The worker.
    #[error(transparent)]
    Worker(#[from] WorkerError),
    /// The comparison of the whole model.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// The agent.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The run's own records.
    #[error("the run's state cannot be read: {0}; it was written by another version of Warpsmith")]
    State(String),
    /// Nothing to do.
    #[error("{0}")]
    Nothing(String),
}

/// Makes the agent for a target, which says what it does in the run's transcript.
pub type MakeAgent = Box<dyn Fn(&Seat) -> Result<Box<dyn Agent>, AgentError> + Send + Sync>;

/// Where an agent works.
#[derive(Debug, Clone)]
pub struct Seat {
    /// What is said is written down here.
    pub transcript: Transcript,
    /// The run's folder: an agent may write here and nowhere else.
    pub folder: PathBuf,
    /// Where a text editor finds the candidate.
    pub candidate: PathBuf,
}

/// A run with everything it works on.
pub struct Run {
    workspace: Option<Arc<Workspace>>,
    model_dir: PathBuf,
    /// What the model is, once it was read.
    config: Option<ModelConfig>,
    pool: Pool,
    record: Box<dyn Record>,
    /// What an interruption left undecided.
    pending: Vec<Pending>,
    state: RunState,
    make_agent: MakeAgent,
    watcher: Box<dyn Watcher>,
    cancel: CancellationToken,
    /// Trials that have no decision yet; all are of one target.
    flight: Flight<Answer>,
    /// Takes those back.
    flight_stop: CancellationToken,
    /// What comes before another target can begin, by the last time.
    ahead: Ahead,
    /// When the last trial was decided, or the target began, in the run's time.
    decided_s: f64,
    /// What the workers have to tell, and where they tell it.
    inbox: mpsc::UnboundedReceiver<Note>,
    notes: Notes,
    /// When this session's clock was last added to the state.
    clock: Instant,
    transcript: Transcript,
}

/// What a run is made of, beside its state.
pub struct Parts {
    /// Files; without one, those inside this program.
    pub workspace: Option<Arc<Workspace>>,
    /// Who judges.
    pub pool: Pool,
    /// Who proposes.
    pub make_agent: MakeAgent,
    /// Who is told.
    pub watcher: Box<dyn Watcher>,
    /// Interrupts it.
    pub cancel: CancellationToken,
}

impl Run {
    /// A run at `state`, new or resumed, with what an interruption left `pending`; nothing is done yet.
    #[must_use]
    pub fn new(parts: Parts, state: RunState, history: History, pending: Vec<Pending>) -> Self {
        // Without a transcript a run is as good; the journal has every candidate.
        let transcript = Transcript::open(history.folder()).unwrap_or_default();
        Self { pending, transcript, ..Self::of(parts, state, Box::new(history)) }
    }

    /// A run of which nothing is written down.
    #[must_use]
    pub fn unwritten(parts: Parts, state: RunState) -> Self {
        Self::of(parts, state, Box::new(Unwritten::default()))
    }

    fn of(parts: Parts, state: RunState, record: Box<dyn Record>) -> Self {
        let Parts { workspace, pool, make_agent, watcher, cancel } = parts;
        let (notes, inbox) = mpsc::unbounded_channel();
        let model_dir = workspace.as_ref().map_or_else(PathBuf::new, |workspace| workspace.root().join(&state.model));
        Self {
            // Read now, since its user may edit it while the run goes on; what cannot be read now is read when it is needed.
            config: state.workload.pass().and_then(|_| ModelConfig::load(&model_dir).ok()),
            model_dir,
            workspace,
            pool,
            record,
            pending: Vec::new(),
            state,
            make_agent,
            watcher,
            flight: Flight::new(),
            flight_stop: cancel.child_token(),
            ahead: Ahead::default(),
            decided_s: 0.0,
            cancel,
            inbox,
            notes,
            clock: Instant::now(),
            transcript: Transcript::default(),
        }
    }

    /// Runs until a rule fires, and returns the state it ended in.
    ///
    /// # Errors
    /// What the run cannot survive; it can be resumed once that is mended.
    pub async fn go(mut self) -> Result<RunState, RunError> {
        let resumed = self.state.resumed > 0;
        self.watcher.on(&RunEvent::Started { state: &self.state, resumed });
        self.watcher.on(&RunEvent::Ranked { state: &self.state });
        let reason = loop {
            self.look_again();
            if let Some(reason) = self.over() {
                break reason;
            }
            let Some(index) = self.next_target() else { break StopReason::NoTargets };
            let reason = self.work_on(index).await?;
            self.leave(index, &reason);
            if reason == StopReason::Interrupted {
                break reason;
            }
            self.tick();
            let left_s = self.state.elapsed_s;
            self.last_word(index).await?;
            self.rank_again(index).await?;
            self.tick();
            self.ahead.leaving = Duration::from_secs_f64((self.state.elapsed_s - left_s).max(0.0));
            if reason.ends_run() {
                break reason;
            }
        };
        self.close(reason).await?;
        Ok(self.state)
    }

    /// Where nothing else is left and a run has time, goes on with what was left because it is fast enough: twice as fast is not yet as fast as
    /// it gets.
    fn look_again(&mut self) {
        let is_open = |target: &TargetState| matches!(target.phase, Phase::Waiting | Phase::Active);
        if !self.state.rules.is_timed() || self.state.targets.iter().any(is_open) {
            return;
        }
        let ranked = self.state.workload.ranked(&self.state.speedups());
        let is_small = |op: &str| ranked.iter().any(|known| known.op == op && known.skipped);
        let mut found = false;
        for target in &mut self.state.targets {
            let fast_enough = matches!(target.phase, Phase::Done(StopReason::Speedup { .. }));
            if fast_enough && !target.progress.beyond && (target.named || !is_small(&target.op)) {
                target.progress.beyond = true;
                target.phase = Phase::Waiting;
                found = true;
            }
        }
        if found {
            self.rank_waiting();
        }
    }

    /// The rule that ends the whole run, if one does now.
    fn over(&mut self) -> Option<StopReason> {
        self.tick();
        let unfinished = |target: &&TargetState| matches!(target.phase, Phase::Waiting | Phase::Active);
        self.state.rules.run(&RunProgress {
            spent: Duration::from_secs_f64(self.state.elapsed_s),
            now: Moment(jiff::Timestamp::now()),
            targets_left: self.state.targets.iter().filter(unfinished).count(),
            interrupted: self.cancel.is_cancelled(),
            tokens: self.state.usage.tokens(),
            cost_usd: self.state.usage.cost_usd,
        })
    }

    /// The target to work on: the one that an interruption left, else the first in Amdahl order.
    fn next_target(&self) -> Option<usize> {
        let find = |phase: &Phase| self.state.targets.iter().position(|target| target.phase == *phase);
        find(&Phase::Active).or_else(|| find(&Phase::Waiting))
    }

    /// Notes why a target was left. An interrupted one stays active, so that a resumed run goes on with it.
    fn leave(&mut self, index: usize, reason: &StopReason) {
        if *reason == StopReason::Interrupted {
            return;
        }
        let target = &mut self.state.targets[index];
        tracing::info!(op = target.op, %reason, "a target is left");
        target.phase = Phase::Done(reason.clone());
        self.watcher.on(&RunEvent::TargetDone { target, reason });
    }

    /// Measures what was kept so far in the whole model, and puts the waiting targets in the order of what
    /// they can still do for it.
    async fn rank_again(&mut self, index: usize) -> Result<(), RunError> {
        let Some(pass) = self.state.workload.pass() else {
            // A PyTorch model is measured when its package is verified; until then what is left is ranked by the judge's figures.
            if self.state.workload.compiled().is_some() {
                self.rank_waiting();
            }
            return Ok(());
        };
        let target = &self.state.targets[index];
        if target.gain() > 1.0 && target.share >= LEAST_VISIBLE_SHARE {
            match self.measure_in_model(pass, &[]).await {
                Ok(Speedup { median: ratio, .. }) => {
                    self.state.in_model = Some(InModel { ratio, speedups: self.state.speedups() });
                }
                Err(_) if self.cancel.is_cancelled() => {}
                // The judge's own figure ranks as well, only less finely.
                Err(error) => {
                    let what = format!("what was gained could not be measured in the model: {error}");
                    self.trouble(what);
                }
            }
            self.tick();
        }
        self.rank_waiting();
        Ok(())
    }

    fn rank_waiting(&mut self) {
        let ranked = self.state.workload.ranked(&self.state.speedups());
        plan::rank(&mut self.state.targets, &ranked);
        self.watcher.on(&RunEvent::Ranked { state: &self.state });
    }

    /// Tells of trouble that the run survives, and keeps it for the report.
    fn trouble(&mut self, what: String) {
        tracing::warn!(what, "trouble");
        self.watcher.on(&RunEvent::Trouble { what: &what });
        self.state.note(what);
    }

    /// Compares the whole model, where there is one, before and after, and writes down how the run ended.
    async fn close(&mut self, reason: StopReason) -> Result<(), RunError> {
        self.tick();
        if reason != StopReason::Interrupted {
            self.state.closing = true;
            // What was under way when it was interrupted, and is not gone on with.
            self.withdraw_pending()?;
            self.give_up_all_mending()?;
            for index in 0..self.state.targets.len() {
                self.last_word(index).await?;
            }
            // Also what beat the library from the start is in the model.
            let changed = self.state.targets.iter().any(|target| target.kept > 0 || target.gain() > 1.0);
            if let Some(pass) = self.state.workload.pass().filter(|_| changed) {
                self.watcher.on(&RunEvent::Verifying);
                self.leave_out_slower(pass).await?;
                match self.verify(pass).await {
                    Ok(report) => {
                        self.watcher.on(&RunEvent::Verified { report: &report });
                        self.state.verified = Some(report);
                    }
                    // A resumed run comes back to this comparison at once.
                    Err(_) if self.cancel.is_cancelled() => return self.checkpoint(),
                    Err(error) => {
                        self.trouble(format!("the whole model could not be compared, before and after: {error}"));
                        self.checkpoint()?;
                        return Err(error);
                    }
                }
            }
            self.tick();
            self.state.ended = Some(reason);
        }
        self.checkpoint()
    }

    /// A file of the workspace, or the copy inside this program.
    fn file(&self, path: &str) -> Option<String> {
        match &self.workspace {
            Some(workspace) => workspace.file(path).ok().map(|file| file.text),
            None => embedded(path).map(str::to_owned),
        }
    }

    /// Writes the state down where it belongs to no experiment.
    fn checkpoint(&mut self) -> Result<(), RunError> {
        let state = serde_json::to_value(&self.state).map_err(|error| RunError::State(error.to_string()))?;
        Ok(self.record.checkpoint(state)?)
    }

    /// Takes back what an interruption left undecided.
    fn withdraw_pending(&mut self) -> Result<(), RunError> {
        for pending in std::mem::take(&mut self.pending) {
            self.record.withdraw(pending.trial, &pending.path)?;
        }
        Ok(())
    }

    /// Waits until a worker has something to tell, and takes in all there is.
    async fn listen(&mut self) {
        // The run holds a sender of its own, so there is always one more to come.
        let mut next = self.inbox.recv().await;
        while let Some(note) = next {
            self.hear(note);
            next = self.inbox.try_recv().ok();
        }
    }

    fn hear(&mut self, note: Note) {
        match note {
            Note::Judging { number, progress } => {
                self.watcher.on(&RunEvent::Judging { number, progress: &progress });
            }
            Note::Trouble(what) => self.trouble(what),
            Note::Waits(what) => self.watcher.on(&RunEvent::Trouble { what: &what }),
            Note::Answer { trial, answer, took } => {
                let said = answer
                    .as_ref()
                    .as_ref()
                    .map_or_else(ToString::to_string, |found| found.verdict.status().to_owned());
                let why = answer.as_ref().as_ref().map_or("", |found| found.verdict.why());
                tracing::info!(trial, took_s = took.as_secs_f64(), said, why, "a judge answers");
                self.state.busy_s += took.as_secs_f64() / self.pool.len().max(1) as f64;
                self.flight.land(trial, *answer);
            }
        }
    }

    /// Leaves word of the workers where `status` finds it. That this fails is no trouble: nothing depends on it.
    fn show_workers(&self) {
        if self.pool.len() > 1 {
            let text = serde_json::to_vec_pretty(&self.pool.status()).unwrap_or_default();
            drop(std::fs::write(self.record.folder().join(WORKERS_FILE), text));
        }
    }

    /// Adds the time since the last call to the run and its active target.
    fn tick(&mut self) {
        let passed = self.clock.elapsed();
        self.clock = Instant::now();
        self.state.elapsed_s += passed.as_secs_f64();
        if let Some(target) = self.state.targets.iter_mut().find(|target| target.phase == Phase::Active) {
            target.progress.spent += passed;
        }
    }
}

/// An operation with less of the pass is lost in the noise of whole passes; the judge's figure predicts it well enough.
const LEAST_VISIBLE_SHARE: f64 = 0.03;
