//! The second tier: what would be kept is asked harder questions, within a budget of seconds and without a clock.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::backend::{Backend, CaseLimits, Instrument};
use crate::defence::Defence;
use crate::evaluation::{CLEAN, COULD_NOT_LOOK, Examination, Stage};
use crate::kernel::KernelFile;
use crate::op::{Case, Dtype, OpError, Operation, Shape, TargetShape};
use crate::rng::Stream;

use super::Failure;
use super::answer::ask;
use super::bench::Bench;
use super::build::{Build, MAX_SCRATCH, scratch_bytes};
use super::check::describe;
use super::questions::{Question, questions, whole};
use super::task::{EvaluationTask, JudgeError};
use super::topic::Topic;
use super::ways::way_at;

/// New texts that are compiled together, at first and at the most: all cores compile, and wait for the last of them.
const BATCH: usize = 12;
const LARGEST_BATCH: usize = 48;

/// A batch is twice as large as the one before where that one's code took less than this share of the time left.
const COMPILING: u32 = 8;

/// Time that a case of the full limits takes, in seconds, and one of their elements alone: the upper end of what was seen.
const CASE_S: f64 = 0.7;

/// A kernel's launches may prolong its examination by so many times its budget: what is slow at other sizes than the timed ones would
/// else be asked little.
const PROLONGED: u32 = 2;

/// On an H200 that nobody else uses 40 questions (attention, MLP) to 250 (norms) are put in a second, and 6 to 20 where something else keeps
/// the device busy. Where fewer than so many were, it goes on for as long again: what is met by chance alone would be kept there else.
const LEAST_A_SECOND: f64 = 20.0;

/// A sanitizer has this share of the budget, and no less than so long: it shares the device with the questions, which then take ten times as
/// long, and most are done after 1 to 4 s. Some kernels that wait for each other hang under `racecheck`.
const INSTRUMENT_SHARE: u32 = 3;
const INSTRUMENT_LEAST: Duration = Duration::from_secs(6);

/// A kernel that asks for so many times what the tensors have, and for more than there is, refuses sizes without saying so.
const MOST_SCRATCH: u64 = 16;

/// An examination that is shorter has no time for a sanitizer, which compiles or starts anew.
const FOR_INSTRUMENTS: Duration = Duration::from_secs(3);

/// Examines a kernel that is right and fast, of which `build` is compiled. What was asked stands in `found`, whatever comes of it.
///
/// # Errors
/// A rejection at the examination, or the machine's failure.
pub(super) fn examine<B: Backend>(
    bench: &Bench<'_, B>,
    task: &EvaluationTask,
    (target, build): (&[TargetShape], Build<B>),
    found: &mut Examination,
) -> Result<(), Failure> {
    let began = Instant::now();
    let limit = Duration::from_secs_f64(task.examination_s);
    bench.at(Stage::Examination, "what it has not been asked yet");
    let kernel = &bench.read(&task.candidate)?;
    let own = bench.backend.instruments(&bench.known.source, kernel, target, bench.seed);
    let share = (limit / INSTRUMENT_SHARE).max(INSTRUMENT_LEAST).min(limit);
    let of_device =
        bench.elsewhere.into_iter().flat_map(|elsewhere| elsewhere.instruments(task, bench.torch_socket().as_deref()));
    let mut instruments: Vec<_> =
        own.into_iter().map(|own| (own, limit)).chain(of_device.map(|other| (other, share))).collect();
    if !Defence::Instruments.stands() {
        instruments.clear();
    }
    if limit < FOR_INSTRUMENTS {
        // Starting one would take longer, and the cores that the questions need.
        for (instrument, _) in &mut instruments {
            instrument.look = Err(format!("{:.0} s are too little for it", limit.as_secs_f64()));
        }
    }
    let outcome = beside(instruments, found, |found| ask_all(bench, kernel, (target, build), began + limit, found));
    found.took_s = began.elapsed().as_secs_f64();
    let (asked, seen) = outcome?;
    asked?;
    match seen {
        Some(why) => Err(Failure::reject(Stage::Examination, why)),
        None => Ok(()),
    }
}

/// What the questions ended with, and what an instrument saw.
type Outcome = (Result<(), Failure>, Option<String>);

/// Lets instruments look, each for so long at the most and in a thread of its own, while `ask` runs.
fn beside(
    instruments: Vec<(Instrument, Duration)>,
    found: &mut Examination,
    ask: impl FnOnce(&mut Examination) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    std::thread::scope(|scope| {
        let (said, heard) = channel();
        for (Instrument { name, look }, limit) in instruments {
            let said = said.clone();
            scope.spawn(move || {
                let began = Instant::now();
                let word = look.and_then(|look| look(limit));
                // Whoever listens ends after everyone who speaks.
                let _ = said.send((name, word, began.elapsed().as_secs_f64()));
            });
        }
        drop(said);
        let asked = ask(found);
        let mut seen = None;
        for (name, word, took_s) in heard {
            let words = match word {
                Ok(None) => format!("{CLEAN}, {took_s:.1} s"),
                Ok(Some(what)) => {
                    seen.get_or_insert_with(|| format!("{name}: {what}"));
                    what
                }
                Err(why) => format!("{COULD_NOT_LOOK}: {why}"),
            };
            found.instruments.insert(name.to_owned(), words);
        }
        Ok((asked, seen))
    })
}

fn ask_all<B: Backend>(
    bench: &Bench<'_, B>,
    kernel: &KernelFile,
    (target, build): (&[TargetShape], Build<B>),
    end: Instant,
    found: &mut Examination,
) -> Result<(), Failure> {
    let op = bench.op();
    let limits = bench.backend.case_limits();
    // Not all of it: others may want some, and what is kept for later cases counts as taken.
    let free = bench.backend.free_memory().unwrap_or(1 << 32) / 4 * 3;
    let seed = Stream::new(bench.seed, "examination").bits(0);
    let ways = |shape: &Shape, dtype: Dtype| way_at(op, kernel, &bench.card().facts, shape, dtype);
    let all = questions(op, target, &kernel.front.dtypes, &limits, free, seed, &ways).map_err(JudgeError::from)?;
    // Where its own plan says no (its domain, too large a grid, too much scratch) a kernel is not asked: nothing wrong comes of it.
    let mut served = Vec::new();
    for question in all {
        if is_served(bench, kernel, &question.case)? {
            served.push(Some(question));
        }
    }
    let budget = end.saturating_duration_since(Instant::now());
    let mut asking = Asking {
        bench,
        limits,
        seed,
        end,
        budget,
        most: PROLONGED * budget,
        launched: Duration::ZERO,
        build,
        open: served,
        asked: 0,
        compiled: 0,
        looked: 0,
        meanwhile: false,
        found,
    };
    let mut size = BATCH;
    while asking.compiled < asking.open.len() && !asking.left().is_zero() {
        let before = asking.compiled;
        let shapes = asking.begin_window(size);
        let compiling = Instant::now();
        if !shapes.is_empty() {
            let mut meanwhile = Ok(());
            let build = bench.build_as_fits(kernel.clone(), &shapes, &mut || {
                if meanwhile.is_ok() {
                    meanwhile = asking.ask_meanwhile();
                }
            });
            meanwhile?;
            asking.build.take_in(build?);
            asking.looked = 0;
        }
        if compiling.elapsed() < asking.left() / COMPILING {
            size = (2 * size).min(LARGEST_BATCH);
        }
        // Where questions are asked while others' code is compiled, those whose code is new wait for that.
        asking.ask_until(if asking.meanwhile { before } else { asking.compiled })?;
    }
    asking.ask_until(asking.open.len())?;
    // Those whose topic had had its share.
    for place in 0..asking.open.len() {
        if asking.left().is_zero() {
            break;
        }
        asking.put(place)?;
    }
    Ok(())
}

/// An examination that is under way.
struct Asking<'a, B: Backend> {
    bench: &'a Bench<'a, B>,
    limits: CaseLimits,
    seed: u64,
    end: Instant,
    /// From its begin to its end.
    budget: Duration,
    /// By how much launches may prolong it, and how long they took.
    most: Duration,
    launched: Duration,
    /// All that is compiled by now.
    build: Build<B>,
    /// The questions that are not asked yet, in their order.
    open: Vec<Option<Question>>,
    /// So many of them, the first, have had their turn.
    asked: usize,
    /// So many of them, the first, need no further compilation.
    compiled: usize,
    /// So many of them were looked at for others that need none.
    looked: usize,
    /// Whether questions are asked while code is compiled.
    meanwhile: bool,
    found: &'a mut Examination,
}

impl<B: Backend> Asking<'_, B> {
    fn left(&self) -> Duration {
        let put: u32 = self.found.asked.values().sum();
        let starved = self.meanwhile && f64::from(put) < LEAST_A_SECOND * self.budget.as_secs_f64();
        let more = if starved { self.budget } else { Duration::ZERO };
        (self.end + self.launched.min(self.most) + more).saturating_duration_since(Instant::now())
    }

    /// Takes in the questions that follow, as far as their code is compiled or among `size` new texts: a shape for each of these.
    fn begin_window(&mut self, size: usize) -> BTreeSet<(Shape, Dtype)> {
        let (op, backend) = (self.bench.op(), self.bench.backend);
        let (mut shapes, mut texts) = (BTreeSet::new(), BTreeSet::new());
        while self.compiled < self.open.len() {
            if let Some(Question { case, .. }) = &self.open[self.compiled] {
                let lacks = self.build.lacks(backend, op, &case.shape, case.dtype);
                if let Some(text) = lacks.filter(|text| !texts.contains(text)) {
                    if texts.len() == size {
                        break;
                    }
                    texts.insert(text);
                    shapes.insert((case.shape.clone(), case.dtype));
                }
            }
            self.compiled += 1;
        }
        shapes
    }

    /// Puts questions in their order, up to a place.
    fn ask_until(&mut self, end: usize) -> Result<(), Failure> {
        while self.asked < end && !self.left().is_zero() {
            self.asked += 1;
            self.ask(self.asked - 1)?;
        }
        Ok(())
    }

    /// Puts one question while code for others is being compiled, as on a GPU most of the time: the next one whose code is there, else one
    /// that is soon answered.
    fn ask_meanwhile(&mut self) -> Result<(), Failure> {
        let (op, backend) = (self.bench.op(), self.bench.backend);
        self.meanwhile = true;
        while self.asked < self.compiled && !self.left().is_zero() {
            let place = self.asked;
            if let Some(Question { case, .. }) = &self.open[place] {
                if !self.build.serve(backend, op, &case.shape, case.dtype) {
                    // Its code is among what is being compiled.
                    break;
                }
                self.asked += 1;
                return self.ask(place);
            }
            self.asked += 1;
        }
        while self.looked < self.open.len() && !self.left().is_zero() {
            let place = self.looked;
            self.looked += 1;
            let Some(Question { topic, case, .. }) = &self.open[place] else { continue };
            if topic.is_soon_answered() && self.build.serve(backend, op, &case.shape, case.dtype) {
                return self.ask(place);
            }
        }
        Ok(())
    }

    /// The question that is put where `place` is reached: where its topic has had its share of the time none, later the first that was left.
    fn due(&self, place: usize) -> Option<usize> {
        let topic = self.open[place].as_ref()?.topic;
        if topic.share() >= 1.0 {
            return Some(place);
        }
        let took = self.found.asked_s.get(topic.name()).copied().unwrap_or_default();
        let is_due = took <= topic.share() * self.found.asked_s.values().sum::<f64>();
        let mut left = self.open[..=place].iter();
        left.position(|question| question.as_ref().is_some_and(|question| question.topic == topic)).filter(|_| is_due)
    }

    /// Puts the question that is due at `place`.
    fn ask(&mut self, place: usize) -> Result<(), Failure> {
        self.due(place).map_or(Ok(()), |place| self.put(place))
    }

    /// Puts a question, where it was not put before, the kernel serves it and there is time for it.
    fn put(&mut self, place: usize) -> Result<(), Failure> {
        let Self { bench, limits, .. } = *self;
        let Some(question) = self.open[place].take() else { return Ok(()) };
        let (op, Case { shape, dtype, .. }) = (bench.op(), &question.case);
        bench.check_cancelled()?;
        let takes = estimate(op, &question, &limits).map_err(JudgeError::from)?;
        if !self.build.serve(bench.backend, op, shape, *dtype) || takes > self.left().as_secs_f64() {
            return Ok(());
        }
        let topic = question.topic.name().to_owned();
        bench.at(Stage::Examination, format!("{topic}: {}", describe(op, &question.case)));
        let seed = Stream::new(self.seed, "question").bits(place as u64);
        let asked = Instant::now();
        let answered = ask(bench, &self.build.only(shape, *dtype)?, &question, seed);
        let took_s = asked.elapsed().as_secs_f64();
        tracing::debug!(topic, case = describe(op, &question.case), took_s, "a question is answered");
        *self.found.asked_s.entry(topic.clone()).or_default() += took_s;
        *self.found.asked.entry(topic.clone()).or_default() += 1;
        match answered {
            Ok(took) => self.launched += took,
            // Others may have taken the memory that was free before.
            Err(Failure::Judge(JudgeError::Machine { what, .. })) if question.topic == Topic::HugeTensors => {
                self.found.left_out.insert(topic, what);
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
}

/// Whether a kernel has a plan for a case, which it may refuse for sizes that nobody listed.
///
/// # Errors
/// Rejected where it refuses by asking for more scratch than any kernel would need there, and not by its `domain`, which `apply` and users read.
fn is_served<B: Backend>(bench: &Bench<'_, B>, kernel: &KernelFile, case: &Case) -> Result<bool, Failure> {
    let (op, facts) = (bench.op(), &bench.card().facts);
    let Ok(resolution) = kernel.resolve(&case.shape, case.dtype, facts) else { return Ok(false) };
    let scratch = scratch_bytes(kernel, &resolution).unwrap_or(usize::MAX);
    if scratch > MAX_SCRATCH {
        let tensors = |bytes: Result<u64, OpError>| bytes.map_err(|error| Failure::from(JudgeError::from(error)));
        let read = tensors(op.input_bytes(&case.shape, case.dtype))?;
        let bytes = read.saturating_add(tensors(op.write_bytes(&case.shape, case.dtype))?);
        if scratch as u64 / MOST_SCRATCH <= bytes || !Defence::Domains.stands() {
            return Ok(false);
        }
        let why = format!(
            "{}: its scratch would have {} MiB, more than {MOST_SCRATCH} times what the tensors have; sizes that a kernel does not serve stand in its `domain`",
            describe(op, case),
            scratch >> 20
        );
        return Err(Failure::reject(Stage::Examination, why));
    }
    let planned = || {
        let ints = op.ints(&case.shape).ok()?;
        kernel.launches(op, &ints, &resolution, facts).ok()
    };
    Ok(kernel.front.launches.is_empty() || planned().is_some())
}

/// Seconds that a question takes, roughly.
fn estimate(op: &Operation, question: &Question, limits: &CaseLimits) -> Result<f64, OpError> {
    let shape = &question.case.shape;
    let share = |of: u64, most: u64| of as f64 / most.max(1) as f64;
    let elements = share(op.all_elements(shape)?, limits.elements);
    let macs = if whole(op, &question.case, limits)? { share(op.macs(shape)?, limits.macs) } else { 0.0 };
    Ok(CASE_S * (1 + question.before.len()) as f64 * (macs + elements * f64::from(question.launches).sqrt()))
}
