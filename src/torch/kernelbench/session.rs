//! An evaluation: one judge for all problems, one session a problem, two processes a sample.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::confine::{Cell, Wall, adopt, end_strays};
use super::files::{Mode, ProtocolResult, StrictResult};
use super::judge::{Judge, Layout};
use super::link::{Link, Silence};
use super::strict::{Examined, Measures, Refused, Right};
use super::twin::{self, Beside, STUB, Timed, Times, WARM};
use super::verdict::difference;
use crate::backend::cpu::available_memory;
use crate::rng::secret_seed;
use crate::torch::TorchError;

/// Trials of the benchmark's protocol.
const TRIALS: u32 = 5;

/// How often a sample is judged anew because somebody else used the device.
const ATTEMPTS: usize = 3;

/// Slots, so that addresses change from call to call: as many as fit into so many bytes, and two at least.
const SLOTS: usize = WARM;
const SLOT_BYTES: usize = 1 << 30;

/// How an evaluation is made.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The Python whose PyTorch is used.
    pub python: PathBuf,
    /// Which GPU; none on the processor.
    pub gpu: Option<u32>,
    /// `f32`, `f16` or `bf16`.
    pub precision: String,
    /// What the problems themselves are timed as.
    pub modes: Vec<Mode>,
    /// Ordinary calls that are timed by the strict judge.
    pub calls: usize,
    /// Calls that are timed by the benchmark's protocol.
    pub timed: u32,
    /// What a sample may take for building and for the protocol.
    pub limit: Duration,
}

/// The judge of many problems.
#[derive(Debug)]
pub struct Evaluator {
    settings: Settings,
    judge: Judge,
}

/// One problem.
#[derive(Debug)]
pub struct Session<'a> {
    evaluator: &'a mut Evaluator,
    file: String,
    source: String,
    /// Weights are drawn from it, the reference's and every sample's.
    seed: u64,
    /// What samples are judged by, or why they cannot be.
    measures: Result<Measures, String>,
    /// Its own times, by the strict clock and by the benchmark's.
    pub times: BTreeMap<Mode, Timed>,
}

fn told(silence: Silence) -> TorchError {
    match silence {
        Silence::Refused { kind, what } if kind == "torch" => TorchError::NoTorch(what),
        Silence::Refused { what, .. } => TorchError::Code(what),
        other => TorchError::Talk(other.words("the judge")),
    }
}

impl Evaluator {
    /// Starts the judge.
    ///
    /// # Errors
    /// No Python, no PyTorch, no GPU where one is wanted.
    pub fn start(settings: Settings) -> Result<Self, TorchError> {
        let failed = |why: String| TorchError::Start { python: settings.python.display().to_string(), why };
        adopt().map_err(|error| failed(error.to_string()))?;
        let judge =
            Judge::start(&settings.python, &setup(&settings, None, false)).map_err(|silence| match silence {
                Silence::Refused { .. } => told(silence),
                other => failed(format!("did not get ready: {}", other.words("it"))),
            })?;
        Ok(Self { settings, judge })
    }

    /// The GPU's name, or `cpu`.
    #[must_use]
    pub fn hardware(&self) -> &str {
        &self.judge.hello.hardware
    }

    /// PyTorch's version.
    #[must_use]
    pub fn torch(&self) -> &str {
        &self.judge.hello.torch
    }

    /// Takes up a problem: looks at it, and times it as it is.
    ///
    /// # Errors
    /// The judge's process. What is wrong with the problem is told of each sample.
    pub fn problem(&mut self, file: &str, source: &str) -> Result<Session<'_>, TorchError> {
        let (mut times, seed) = (BTreeMap::new(), secret_seed() >> 2);
        let measures = match self.measures((file, source, seed), &mut times) {
            Ok(measures) => Ok(measures),
            Err(Refused::Sample(why, _)) => Err(why),
            Err(Refused::Judge(Silence::Refused { what, .. })) => {
                Err(format!("the problem cannot be judged: {}", super::link::plain(&what)))
            }
            Err(Refused::Judge(other)) => return Err(told(other)),
        };
        end_strays(&[self.judge.id()]).map_err(|error| TorchError::Talk(error.to_string()))?;
        Ok(Session { evaluator: self, file: file.to_owned(), source: source.to_owned(), seed, measures, times })
    }

    /// What a problem takes as it is, by mode: nothing is judged. Or why it cannot be timed, in a sentence.
    ///
    /// # Errors
    /// The judge's process, which is to be started anew.
    pub fn time(&mut self, file: &str, source: &str) -> Result<Result<BTreeMap<Mode, Timed>, String>, TorchError> {
        let timed = match self.timed((file, source, secret_seed() >> 2), Beside::Nothing) {
            Ok((times, ..)) => Ok(times.modes.into_iter().collect()),
            Err(Silence::Refused { what, .. }) => Err(super::link::plain(&what)),
            Err(other) => return Err(told(other)),
        };
        end_strays(&[self.judge.id()]).map_err(|error| TorchError::Talk(error.to_string()))?;
        Ok(timed)
    }

    fn timed(
        &mut self,
        (file, source, seed): (&str, &str, u64),
        beside: Beside,
    ) -> Result<(Times, Layout, usize), Silence> {
        let Self { settings, judge } = self;
        let layout = judge.problem(file, source, seed)?;
        let slots = (SLOT_BYTES / layout.bytes.max(1)).clamp(2, SLOTS);
        let timing = (settings.modes.as_slice(), settings.calls, settings.timed);
        let found = twin::measure(
            &settings.python,
            &setup(settings, None, false),
            judge,
            (&layout, slots),
            (file, source),
            timing,
            beside,
        )?;
        Ok((found, layout, slots))
    }

    fn measures(&mut self, problem: (&str, &str, u64), times: &mut BTreeMap<Mode, Timed>) -> Result<Measures, Refused> {
        let (found, layout, slots) = self.timed(problem, Beside::Samples)?;
        times.extend(found.modes);
        Measures::new(&mut self.judge, layout, found.idle, slots)
    }
}

/// What a process is told at first; `folder` is a candidate's own.
fn setup(settings: &Settings, folder: Option<&Path>, alone: bool) -> Value {
    let device = settings.gpu.map_or_else(|| "cpu".to_owned(), |index| format!("cuda:{index}"));
    json!({
        "parent": std::process::id(), "device": device, "precision": settings.precision, "folder": folder, "alone": alone,
    })
}

impl Session<'_> {
    /// Judges a sample, in both columns.
    ///
    /// # Errors
    /// The judge's process, or no room for what a sample builds. Whatever the sample does is its result.
    pub fn sample(&mut self, number: u32, source: &str) -> Result<(ProtocolResult, StrictResult), TorchError> {
        let failed = |error: std::io::Error| TorchError::Talk(format!("a folder for a sample: {error}"));
        let folder = tempfile::Builder::new().prefix("warpsmith-sample-").tempdir().map_err(failed)?;
        let folder_path = folder.path().canonicalize().map_err(failed)?;
        let cell = Cell {
            folder: folder_path,
            paths: self.evaluator.judge.hello.paths.clone(),
            // A GPU's driver takes address space that it never uses.
            memory: self.evaluator.settings.gpu.is_none().then(|| available_memory().unwrap_or(8 << 30) / 4 * 3),
            gpu: self.evaluator.settings.gpu.is_some(),
        };
        let protocol = ProtocolResult { sample_id: number, ..self.protocol(&cell, source) };
        let strays = end_strays(&[self.evaluator.judge.id()]);
        strays.map_err(|error| TorchError::Talk(error.to_string()))?;
        let (found, calls) = if protocol.compiled {
            match self.strict(&cell, source) {
                Ok(right) => (Ok(right.net), right.calls),
                Err(Refused::Sample(why, calls)) => (Err(why), calls),
                Err(Refused::Judge(silence)) => return Err(told(silence)),
            }
        } else {
            (Err(format!("it does not load: {}", protocol.error())), 0)
        };
        end_strays(&[self.evaluator.judge.id()]).map_err(|error| TorchError::Talk(error.to_string()))?;
        let reason = found.as_ref().err().cloned();
        let runtime = found.as_ref().map_or(-1.0, |net| net.stats.typical());
        let ours = (protocol.correctness, protocol.runtime, &*protocol.error());
        // What the clock cannot tell from nothing says nothing of another clock.
        let shortest = found.as_ref().map_or(-1.0, |net| if net.unresolved { 0.0 } else { net.stats.min });
        let differs = difference(ours, (found.is_ok(), shortest, reason.as_deref()));
        let unresolved = found.as_ref().is_ok_and(|net| net.unresolved);
        let runtime_stats = found.ok().map(|net| net.stats);
        let strict = StrictResult {
            sample_id: number,
            correctness: reason.is_none(),
            reason,
            differs,
            runtime,
            runtime_stats,
            calls,
            unresolved,
        };
        Ok((protocol, strict))
    }

    fn start(&self, cell: &Cell, wall: Wall) -> Result<Link, Silence> {
        let settings = &self.evaluator.settings;
        let setup = setup(settings, Some(&cell.folder), wall == Wall::Alone);
        let mut link = Link::start(cell.command(&settings.python, STUB, wall)?, &setup)?;
        let _: Value = link.hello()?;
        Ok(link)
    }

    /// What a process is asked about a sample. What builds it is not told the seed of the weights that it will be judged with.
    fn question(&self, ask: &str, cell: &Cell, source: &str) -> Value {
        let seed = if ask == "load" { self.seed } else { 42 };
        json!({
            "ask": ask, "unit": "candidate", "way": "candidate", "problem": self.source, "file": self.file, "source": source,
            "seed": seed, "folder": cell.folder, "trials": TRIALS, "timed": self.evaluator.settings.timed,
        })
    }

    /// The benchmark's own protocol, in a process that may build what the sample needs.
    fn protocol(&self, cell: &Cell, source: &str) -> ProtocolResult {
        let limit = self.evaluator.settings.limit;
        let mut link = match self.start(cell, Wall::Building) {
            Ok(link) => link,
            Err(silence) => return ProtocolResult::failed(silence.words("it")),
        };
        let answer: Result<ProtocolResult, Silence> = link.ask(&self.question("protocol", cell, source), &[], limit);
        match answer {
            Ok(found) => {
                // The strict judge says what is wrong with it, if anything is.
                let _ = link.ask::<Value>(&self.question("build", cell, source), &[], limit);
                found
            }
            Err(silence) => ProtocolResult::failed(silence.words("it")),
        }
    }

    /// The strict judge.
    fn strict(&mut self, cell: &Cell, source: &str) -> Result<Right, Refused> {
        for _ in 0..ATTEMPTS {
            // Weights of its own: what another sample has seen, or this one before, is not what it is judged with.
            self.seed = secret_seed() >> 2;
            if self.measures.is_ok() {
                self.evaluator.judge.weights(self.seed)?;
            }
            let load = self.question("load", cell, source);
            let start = self.start(cell, Wall::Alone);
            let mut link = start.map_err(|silence| Refused::Sample(silence.words("its process"), 0))?;
            let Evaluator { settings, judge } = &mut *self.evaluator;
            let measures = self.measures.as_mut().map_err(|why| Refused::Sample(why.clone(), 0))?;
            match measures.examine(judge, &mut link, &load, (settings.calls, settings.limit))? {
                Examined::Right(right) => return Ok(right),
                Examined::Busy(busy, done) => {
                    drop(link);
                    let after = judge.quiet()?;
                    if busy.is_the_candidates(after) {
                        return Err(Refused::Sample(busy.words(after), done));
                    }
                }
            }
        }
        Err(Refused::Sample(format!("somebody else used the device, {ATTEMPTS} times"), 0))
    }
}
