//! The second tier: what would be kept is asked harder questions, within a budget of seconds and without a clock.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::backend::{Arena, Backend, CaseLimits, CaseMemory, Host, Instrument};
use crate::defence::Defence;
use crate::evaluation::{CLEAN, COULD_NOT_LOOK, CaseResult, ErrorStats, Examination, Stage};
use crate::kernel::KernelFile;
use crate::op::{Case, Dtype, OpError, Operation, Shape, TargetShape};
use crate::rng::Stream;

use super::Failure;
use super::bench::{Bench, Taken, Trial};
use super::build::{Build, MAX_SCRATCH, scratch_bytes};
use super::check::{self, compare_with_oracle, damage, describe};
use super::questions::{Question, questions, whole};
use super::task::{EvaluationTask, JudgeError};
use super::timing::SAMPLE_LEEWAY;
use super::topic::Topic;
use super::undisturbed::undisturbed;

/// Questions whose code is compiled together, at first and at the most: all cores compile, and wait for the last of them.
const BATCH: usize = 12;
const LARGEST_BATCH: usize = 48;

/// A batch is twice as large as the one before where that one's code took less than this share of the time left.
const COMPILING: u32 = 8;

/// Where comparing all of an output would take too long, so many rows of it are compared.
const ROWS: u64 = 24;

/// No further row is begun after that.
const ROWS_TAKE: Duration = Duration::from_secs(1);

/// Time that a case of the full limits takes, in seconds, and one of their elements alone: the upper end of what was seen.
const CASE_S: f64 = 0.7;

/// A kernel's launches may prolong its examination by so many times its budget: what is slow at other sizes than the timed ones would
/// else be asked little.
const PROLONGED: u32 = 2;

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
    let mut instruments = bench.backend.instruments(&bench.known.source, kernel, target, bench.seed);
    instruments.extend(
        bench.elsewhere.into_iter().flat_map(|elsewhere| elsewhere.instruments(task, bench.torch_socket().as_deref())),
    );
    if !Defence::Instruments.stands() {
        instruments.clear();
    }
    if limit < FOR_INSTRUMENTS {
        // Starting one would take longer, and the cores that the questions need.
        for instrument in &mut instruments {
            instrument.look = Err(format!("{:.0} s are too little for it", limit.as_secs_f64()));
        }
    }
    let outcome =
        beside(instruments, limit, found, |found| ask_all(bench, kernel, (target, build), began + limit, found));
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

/// Lets instruments look, in threads of their own, while `ask` runs.
fn beside(
    instruments: Vec<Instrument>,
    limit: Duration,
    found: &mut Examination,
    ask: impl FnOnce(&mut Examination) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    std::thread::scope(|scope| {
        let (said, heard) = channel();
        for Instrument { name, look } in instruments {
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
    let all = questions(op, target, &kernel.front.dtypes, &limits, free, seed).map_err(JudgeError::from)?;
    // Where its own plan says no (its domain, too large a grid, too much scratch) a kernel is not asked: nothing wrong comes of it.
    let all = all.into_iter().filter(|question| is_served(bench, kernel, &question.case));
    let mut asking = Asking {
        bench,
        limits,
        seed,
        end,
        most: PROLONGED * end.saturating_duration_since(Instant::now()),
        launched: Duration::ZERO,
        build,
        open: all.map(Some).collect(),
        looked: 0,
        found,
    };
    let (mut next, mut size) = (0, BATCH);
    while next < asking.open.len() && !asking.left().is_zero() {
        let places = next..asking.open.len().min(next + size);
        next = places.end;
        let mut shapes: BTreeSet<(Shape, Dtype)> = BTreeSet::new();
        for Question { case, .. } in asking.open[places.clone()].iter().flatten() {
            if !asking.build.serve(bench.backend, op, &case.shape, case.dtype) {
                shapes.insert((case.shape.clone(), case.dtype));
            }
        }
        let compiling = Instant::now();
        if !shapes.is_empty() {
            let mut meanwhile = Ok(());
            let build = bench.build_as_fits(kernel.clone(), &shapes, &mut || {
                if meanwhile.is_ok() {
                    meanwhile = asking.ask_what_is_compiled();
                }
            });
            meanwhile?;
            asking.build.take_in(build?);
            asking.looked = 0;
        }
        if compiling.elapsed() < asking.left() / COMPILING {
            size = (2 * size).min(LARGEST_BATCH);
        }
        for place in places {
            asking.ask(place)?;
        }
    }
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
    /// By how much launches may prolong it, and how long they took.
    most: Duration,
    launched: Duration,
    /// All that is compiled by now.
    build: Build<B>,
    /// The questions that are not asked yet, in their order.
    open: Vec<Option<Question>>,
    /// How many of them were looked at for such as need no further compilation.
    looked: usize,
    found: &'a mut Examination,
}

impl<B: Backend> Asking<'_, B> {
    fn left(&self) -> Duration {
        (self.end + self.launched.min(self.most)).saturating_duration_since(Instant::now())
    }

    /// Puts the next question that is soon answered and needs nothing to be compiled: most of an examination on a GPU is compiling, and the
    /// same code serves many sizes.
    fn ask_what_is_compiled(&mut self) -> Result<(), Failure> {
        let (op, backend) = (self.bench.op(), self.bench.backend);
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
        if !self.build.serves(shape, *dtype) || takes > self.left().as_secs_f64() {
            return Ok(());
        }
        let topic = question.topic.name().to_owned();
        bench.at(Stage::Examination, format!("{topic}: {}", describe(op, &question.case)));
        let seed = Stream::new(self.seed, "question").bits(place as u64);
        let asked = Instant::now();
        let answered = ask(bench, &self.build.only(shape, *dtype)?, &question, seed);
        *self.found.asked_s.entry(topic.clone()).or_default() += asked.elapsed().as_secs_f64();
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
fn is_served<B: Backend>(bench: &Bench<'_, B>, kernel: &KernelFile, case: &Case) -> bool {
    let (op, facts) = (bench.op(), &bench.card().facts);
    let Ok(resolution) = kernel.resolve(&case.shape, case.dtype, facts) else { return false };
    let fits = scratch_bytes(kernel, &resolution).is_some_and(|bytes| bytes <= MAX_SCRATCH);
    let planned = || {
        let ints = op.ints(&case.shape).ok()?;
        kernel.launches(op, &ints, &resolution, facts).ok()
    };
    fits && (kernel.front.launches.is_empty() || planned().is_some())
}

/// Seconds that a question takes, roughly.
fn estimate(op: &Operation, question: &Question, limits: &CaseLimits) -> Result<f64, OpError> {
    let shape = &question.case.shape;
    let share = |of: u64, most: u64| of as f64 / most.max(1) as f64;
    let elements = share(op.all_elements(shape)?, limits.elements);
    let macs = if whole(op, &question.case, limits)? { share(op.macs(shape)?, limits.macs) } else { 0.0 };
    Ok(CASE_S * (1 + question.before.len()) as f64 * (macs + elements * f64::from(question.launches).sqrt()))
}

/// Puts one question, and tells how long the kernel's launches took.
fn ask<B: Backend>(
    bench: &Bench<'_, B>,
    build: &Build<B>,
    question: &Question,
    seed: u64,
) -> Result<Duration, Failure> {
    let (op, case) = (bench.op(), &question.case);
    let (_, scratch) = build.image(&case.shape, case.dtype)?;
    let sizes = CaseMemory::footprint::<B::Arena>(op, case, scratch, 1 + question.before.len(), question.placing)
        .map_err(JudgeError::from)?;
    let arena = bench.arena([sizes], question.placing)?;
    let mut cases: Vec<CaseResult> = Vec::new();
    let conditions = question.conditions;
    let mut trial = Trial { bench, build, arena, conditions, cases: &mut cases, occupancy: Vec::new() };
    let mut host = trial.host()?;
    let mut launched = Duration::ZERO;
    let wrong = undisturbed(|again| {
        if again {
            host = trial.host()?;
        }
        answer(&mut trial, &mut host, question, (seed, &mut launched))
    })?;
    // Of a row of launches the one that is wrong is named by the answer; the first is what all of them have in common.
    let label = format!("{} ({})", describe(op, question.before.first().unwrap_or(case)), question.topic.name());
    match wrong.map_err(|fault| Failure::fault(fault, Stage::Examination, &label))? {
        Some(why) => Err(Failure::reject(Stage::Examination, format!("{label}: {why}"))),
        None => Ok(launched),
    }
}

/// Puts the question, and looks at what came out: what is wrong with it, if anything.
fn answer<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    question: &Question,
    (seed, launched): (u64, &mut Duration),
) -> Result<Result<Option<String>, crate::backend::Fault>, Failure> {
    let (bench, case) = (trial.bench, &question.case);
    let (_, scratch) = trial.build.image(&case.shape, case.dtype)?;
    trial.arena.reset();
    let memory = CaseMemory::place(&mut trial.arena, bench.op(), case, scratch, 1 + question.before.len())?;
    let memory = memory.with_sums(question.sums);
    match question.before.is_empty() {
        true => again_and_again(trial, host, question, memory, (seed, launched)),
        false => in_a_row(trial, host, question, &memory, (seed, launched)),
    }
}

/// Launches on the same input as often as the question says.
fn again_and_again<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    question: &Question,
    mut memory: CaseMemory,
    (seed, launched): (u64, &mut Duration),
) -> Result<Result<Option<String>, crate::backend::Fault>, Failure> {
    let (bench, case) = (trial.bench, &question.case);
    let (image, _) = trial.build.image(&case.shape, case.dtype)?;
    bench.draw(&memory, &mut trial.arena, 0, seed)?;
    let mut first = None;
    for launch in 0..question.launches {
        bench.check_cancelled()?;
        let seed = seed.wrapping_add(u64::from(launch));
        memory.poison(&mut trial.arena, 0, seed);
        let (outputs, took) = match check::launch(trial, host, &memory, image)? {
            Ok(launched) => launched,
            Err(fault) => return Ok(Err(fault)),
        };
        *launched += took;
        let same_as_first = first.as_ref().map(|first| *first == outputs);
        let wrong = match same_as_first.is_none() || trial.build.order_free() {
            true => wrong_outputs(trial, &memory, 0, &outputs, (question.leeway, seed))?,
            false => damage(&memory, &mut trial.arena, 0),
        };
        let differs = same_as_first == Some(false) && !trial.build.order_free();
        let wrong = wrong.or_else(|| {
            differs.then(|| {
                format!("launch {} on the same input gave other bits; a race, or an uninitialised value", launch + 1)
            })
        });
        if wrong.is_some() {
            return Ok(Ok(wrong));
        }
        first.get_or_insert(outputs);
    }
    if question.launches > 1 || !Defence::UsedBuffers.stands() || Stream::new(seed, "used buffers").below(0, 2) > 0 {
        return Ok(Ok(None));
    }
    // Once more as in a model: other inputs, and what the launch before has left in outputs and scratch.
    let seed = seed.wrapping_add(1);
    bench.draw(&memory, &mut trial.arena, 0, seed)?;
    let (outputs, took) = match check::launch(trial, host, &memory, image)? {
        Ok(launched) => launched,
        Err(fault) => return Ok(Err(fault)),
    };
    *launched += took;
    let wrong = wrong_outputs(trial, &memory, 0, &outputs, (question.leeway, seed))?;
    Ok(Ok(wrong.map(|why| format!("launched again on the same buffers, with other inputs: {why}"))))
}

/// Launches on several copies, one after the other with nothing between them, as those of a timed sample follow each other, each with
/// other inputs. What a launch leaves behind for the next, in shared memory or anywhere, meets values there that it was not made for.
fn in_a_row<B: Backend>(
    trial: &mut Trial<'_, B>,
    host: &mut B::Host,
    question: &Question,
    memory: &CaseMemory,
    (seed, launched): (u64, &mut Duration),
) -> Result<Result<Option<String>, crate::backend::Fault>, Failure> {
    let (bench, case) = (trial.bench, &question.case);
    let (image, _) = trial.build.image(&case.shape, case.dtype)?;
    let stream = Stream::new(seed, "in a row");
    let cases: Vec<&Case> = question.before.iter().chain([case]).collect();
    let copies = cases.len();
    let mut row = Vec::with_capacity(copies);
    for (case, copy) in cases.into_iter().zip(stream.permutation(copies)) {
        let mut holds = memory.with_case(case).map_err(JudgeError::from)?;
        let seed = stream.bits((copies + copy) as u64);
        bench.draw(&holds, &mut trial.arena, copy, seed)?;
        holds.poison(&mut trial.arena, copy, seed);
        row.push((holds, copy, seed));
    }
    let calls: Vec<_> = row.iter().map(|(holds, copy, _)| holds.call(image, *copy)).collect();
    let limit = bench.launch_limit(case).map_err(JudgeError::from)?;
    match host.run(&calls, limit * copies as u32) {
        Ok(took) => *launched += took,
        Err(fault) => return Ok(Err(fault)),
    }
    let taken: Vec<_> = row.iter().map(|(holds, copy, _)| host.take(holds, &mut trial.arena, *copy)).collect();
    if let Err(fault) = host.idle_check() {
        return Ok(Err(fault));
    }
    for (place, ((holds, copy, seed), outputs)) in row.iter().zip(&taken).enumerate() {
        if let Some(why) = wrong_outputs(trial, holds, *copy, outputs, (question.leeway, *seed))? {
            let label = describe(bench.op(), holds.case());
            return Ok(Ok(Some(format!("launch {} of {copies} in a row, {label}: {why}", place + 1))));
        }
    }
    Ok(Ok(None))
}

/// What is wrong with a copy's buffers and with its outputs, all of them or rows that `seed` chooses.
fn wrong_outputs<B: Backend>(
    trial: &mut Trial<'_, B>,
    memory: &CaseMemory,
    copy: usize,
    outputs: &Taken<B>,
    (leeway, seed): (f64, u64),
) -> Result<Option<String>, Failure> {
    let (bench, limits) = (trial.bench, trial.bench.backend.case_limits());
    if let Some(why) = damage(memory, &mut trial.arena, copy) {
        return Ok(Some(why));
    }
    // Where the oracle knows nothing less, all is compared, whatever it takes.
    if bench.op().knows_only_wholes() || whole(bench.op(), memory.case(), &limits).map_err(JudgeError::from)? {
        let (errors, why) = compare_with_oracle(bench, memory, &mut trial.arena, copy, outputs)?;
        return Ok(why.filter(|_| !errors.within(leeway)));
    }
    rows(trial, memory, copy, (leeway, seed))
}

/// Compares rows that `seed` chooses.
fn rows<B: Backend>(
    trial: &mut Trial<'_, B>,
    memory: &CaseMemory,
    copy: usize,
    (leeway, seed): (f64, u64),
) -> Result<Option<String>, Failure> {
    let (op, began) = (trial.bench.op(), Instant::now());
    let stream = Stream::new(seed, "rows");
    let most = trial.bench.backend.case_limits().macs / ROWS;
    for row in 0..ROWS {
        let sample = op.sample(&memory.case().shape, stream.bits(row), most).map_err(JudgeError::from)?;
        // One row of 2^31 columns keeps a warp busy for a second: then a few say as much.
        if sample.is_empty() || began.elapsed() > ROWS_TAKE {
            break;
        }
        let errors: ErrorStats = trial.bench.compare_some(memory, &mut trial.arena, copy, &sample)?;
        if let Some(why) = errors.failure().filter(|_| !errors.within(leeway.max(SAMPLE_LEEWAY))) {
            return Ok(Some(why));
        }
    }
    Ok(None)
}
