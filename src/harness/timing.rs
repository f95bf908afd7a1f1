//! Measuring two kernels beside each other: rotated cold buffers, ABBA blocks, the parent's clock, timed outputs verified.

use std::time::{Duration, Instant};

use crate::backend::{Arena, Backend, Call, CaseMemory, Fault, Host, Placing};
use crate::defence::Defence;
use crate::device::{Roofline, roofline};
use crate::evaluation::Stage;
use crate::op::{Case, TargetShape};
use crate::rng::Stream;
use crate::torch::{self, Files};

use super::Failure;
use super::bench::{Bench, Taken, draw_inputs};
use super::build::Build;
use super::check::{compare_with_oracle, damage, describe};
use super::pair::{Pair, Runner};
use super::session::{Block, Round, Side, order};
use super::spots::{RAREST, Spots, looking};
use super::task::JudgeError;
use super::timed_shape::{TimedShape, both_scratch, timed_case};
use super::turns::Turns;
use super::undisturbed::undisturbed;
use super::unslowed::{PAUSES, unslowed};

/// Running time before anything is measured, per kernel and session (`do_bench` warms up as long).
const WARM_UP: Duration = Duration::from_millis(25);

/// The same where an earlier session has just warmed the device, and new code is all that is cold.
const WARM_UP_AGAIN: Duration = Duration::from_millis(5);

/// Rotated copies of a shape's buffers at the most.
const MAX_COPIES: usize = 128;

/// Launches of a process that was started in the middle of a session before one counts again.
const UNMEASURED: usize = 3;

/// Launches of each of the candidate's samples of which some elements are compared with the oracle.
const LOOKED_AT: u64 = 2;

/// How many times its bound an error may be there: the rms that a bound may have is taken from the few elements alone.
pub(super) const SAMPLE_LEEWAY: f64 = 2.0;

/// The two that are timed against each other, and how many rounds a block of theirs has.
pub(super) struct MatchUp<'a, B: Backend> {
    pub(super) incumbent: &'a Build<B>,
    pub(super) candidate: &'a Build<B>,
    pub(super) rounds: usize,
}

impl<B: Backend> Clone for MatchUp<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for MatchUp<'_, B> {}

/// The buffers of a timing session; processes come and go around them.
pub(super) struct Rig<B: Backend> {
    pub(super) arena: B::Arena,
    pub(super) shapes: Vec<TimedShape>,
    pub(super) seed: u64,
    /// What draws inputs as a problem file does, where there is one.
    pub(super) files: Option<Files>,
    warm_up: Duration,
    /// Rounds measured so far: no two have the same order by construction.
    rounds: u64,
    /// Times that copies were renewed: no two are given the same contents.
    renewals: u64,
    /// Samples looked at so far: no two are looked at in the same places.
    looks: u64,
    /// Whether kernels have memory that outlives a launch, as a process has: their inputs are then new for every launch.
    renews: bool,
    /// Whether some copies get hostile inputs, and are asked about between samples ([`super::beside`]).
    pub(super) asks: bool,
    /// Times that a question was considered so far: no two are the same by construction.
    pub(super) asked: u64,
}

/// What is taken of a sample's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    Nothing,
    /// Those of the last launch and of another one.
    Outputs,
}

/// What one timing gave.
pub(super) struct Sample<B: Backend> {
    /// µs a launch.
    us: f64,
    /// Outputs, with their copies.
    taken: Vec<(usize, Taken<B>)>,
}

impl<B: Backend> Sample<B> {
    /// µs a launch.
    pub(super) const fn us(&self) -> f64 {
        self.us
    }
}

impl<B: Backend> Rig<B> {
    /// Draws and poisons the rotated buffers of every target shape, with scratch for the incumbent and the candidate.
    pub(super) fn new(
        bench: &Bench<'_, B>,
        target: &[TargetShape],
        builds: [&Build<B>; 2],
        seed: u64,
    ) -> Result<Self, Failure> {
        let (op, renews) = (bench.op(), bench.backend.hosts_are_processes());
        let most = bench.backend.case_limits().timed_bytes / target.len() as u64;
        let mut wanted = Vec::new();
        let (mut inputs, mut outputs) = (0, 0);
        for shape in target {
            let case = timed_case(shape);
            let (scratch, split) = both_scratch(builds, &case)?;
            let footprint = |copies| CaseMemory::footprint::<B::Arena>(op, &case, &scratch, copies, Placing::Packed);
            let one = footprint(1).map_err(JudgeError::from)?;
            let bytes = ((one.0 + one.1) as u64).max(1);
            let enough = bench.card().cold_bytes.div_ceil(bytes) as usize;
            let affordable = (most / bytes) as usize;
            // Two are needed for the two sides of a pair not to share one.
            let copies = enough.clamp(2, MAX_COPIES).min(affordable.max(2));
            let all = footprint(copies).map_err(JudgeError::from)?;
            (inputs, outputs) = (inputs + all.0, outputs + all.1);
            wanted.push((case, scratch, split, copies));
        }
        let mut arena = bench.arena([(inputs, outputs)], Placing::Packed)?;
        let mut shapes = Vec::new();
        for (case, scratch, split, copies) in wanted {
            let mut memory = CaseMemory::place(&mut arena, op, &case, &scratch, copies)?;
            for copy in 0..copies {
                bench.draw(&memory, &mut arena, copy, seed.wrapping_add(copy as u64))?;
            }
            let seeds: Vec<(usize, u64)> = (0..copies).map(|copy| (copy, seed.wrapping_add(copy as u64))).collect();
            memory.poison_all(&mut arena, &seeds);
            let limit = bench.launch_limit(&case).map_err(JudgeError::from)?;
            let spots = (0..copies).map(|_| None).collect();
            shapes.push(TimedShape {
                case,
                memory,
                split,
                copies,
                turns: Turns::new(copies, seed, renews),
                batch: 1,
                limit,
                spots,
                hostile: Vec::new(),
            });
        }
        Ok(Self {
            arena,
            shapes,
            files: bench.torch().map(|oracle| oracle.files().clone()),
            seed,
            warm_up: WARM_UP,
            rounds: 0,
            renewals: 0,
            looks: 0,
            renews,
            asks: false,
            asked: 0,
        })
    }

    /// Goes on as if earlier sessions of this seed had been measured here.
    pub(super) const fn skip_to(&mut self, session: u32) {
        self.rounds = (session as u64) << 32;
        self.renewals = self.rounds;
        self.looks = self.rounds;
        self.asked = self.rounds;
    }

    /// Says that the device itself is warm: what sessions here start with from now on is no process, which would be cold.
    pub(super) const fn warmed_up(&mut self) {
        if !self.renews {
            self.warm_up = WARM_UP_AGAIN;
        }
    }

    /// Starts both kernels in fresh processes and warms them up.
    pub(super) fn start<'b>(&mut self, bench: &Bench<'_, B>, match_up: MatchUp<'b, B>) -> Result<Pair<'b, B>, Failure> {
        let MatchUp { incumbent, candidate, .. } = match_up;
        let mut pair = Pair {
            incumbent: Runner::new(incumbent, bench.host(incumbent, &self.arena)?),
            candidate: Runner::new(candidate, bench.host(candidate, &self.arena)?),
        };
        for index in 0..self.shapes.len() {
            for side in [Side::Incumbent, Side::Candidate] {
                let share = self.warm_up / self.shapes.len() as u32;
                let mut spent = Duration::ZERO;
                let mut fastest = f64::INFINITY;
                let began = Instant::now();
                // Where starting a launch takes longer than the launch, a while of both is enough.
                while spent < share && began.elapsed() < 2 * share {
                    let took = self.sample(bench, &mut pair, index, (side, 1), Take::Nothing)?.us;
                    fastest = fastest.min(took);
                    spent += Duration::from_secs_f64(took / 1e6);
                }
                // From the incumbent alone, so that a candidate has no say in how it is measured.
                if side == Side::Incumbent {
                    let shape = &mut self.shapes[index];
                    let batch = bench.backend.calls_per_sample(fastest, shape.copies);
                    shape.batch = batch.clamp(1, shape.copies);
                }
            }
            // Nothing that was met while warming up is met again, and all copies are ready to be looked at.
            self.refresh(index, self.shapes[index].copies)?;
        }
        Ok(pair)
    }

    /// Measures one block of `rounds` rounds over every shape. Every sample of the candidate is looked at; with `verify`, all
    /// of two outputs of one sample is compared with the oracle for each shape: of its last launch and of another one.
    pub(super) fn block(
        &mut self,
        bench: &Bench<'_, B>,
        pair: &mut Pair<'_, B>,
        rounds: usize,
        verify: bool,
    ) -> Result<Block, Failure> {
        unslowed(|| bench.backend.is_slowed(), &PAUSES, || self.measure(bench, pair, rounds, verify))
    }

    fn measure(
        &mut self,
        bench: &Bench<'_, B>,
        pair: &mut Pair<'_, B>,
        rounds: usize,
        verify: bool,
    ) -> Result<Block, Failure> {
        let mut measured = Vec::with_capacity(rounds);
        // Which of the candidate's samples is checked is not for the candidate to know.
        let checked = Stream::new(self.seed, "checked").below(self.rounds, 2 * rounds as u64);
        for round in 0..rounds as u64 {
            let order = order(self.seed, self.rounds);
            self.rounds += 1;
            let mut samples_us = Vec::with_capacity(self.shapes.len());
            for index in 0..self.shapes.len() {
                bench.check_cancelled()?;
                let mut times = [0.0; 4];
                let mut turn = 2 * round;
                for (place, side) in order.into_iter().enumerate() {
                    let mine = side == Side::Candidate;
                    if mine {
                        self.ask_for_less(bench, pair, index)?;
                    }
                    while self.shapes[index].hostile_is_next() {
                        self.ask(bench, pair, index)?;
                    }
                    let check = verify && mine && turn == checked;
                    turn += u64::from(mine);
                    let batch = self.shapes[index].batch;
                    let take = if check { Take::Outputs } else { Take::Nothing };
                    let sample = self.sample(bench, pair, index, (side, batch), take)?;
                    times[place] = pair.cost_us(side, sample.us * batch as f64) / batch as f64;
                    if check {
                        self.verify(bench, index, &sample.taken)?;
                    }
                    if mine {
                        self.look(bench, index, batch)?;
                    }
                    self.refresh(index, batch)?;
                }
                samples_us.push(times);
            }
            measured.push(Round { order, samples_us });
        }
        Ok(Block::from_rounds(&measured))
    }

    /// The number of a round that is measured elsewhere, beside something that is no kernel.
    pub(super) const fn next_round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds - 1
    }

    /// Rounds measured so far.
    pub(super) const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Whether all of some outputs of the next block is to be compared: in one block of `one_in`, at random.
    pub(super) fn is_compared(&self, one_in: u64) -> bool {
        Stream::new(self.seed, "compared").below(self.rounds, one_in) == 0
    }

    /// Runs the candidate once over every rotated copy and checks each output.
    pub(super) fn verify_all(&mut self, bench: &Bench<'_, B>, pair: &mut Pair<'_, B>) -> Result<(), Failure> {
        for index in 0..self.shapes.len() {
            for _ in 0..self.shapes[index].copies {
                bench.check_cancelled()?;
                let sample = self.sample(bench, pair, index, (Side::Candidate, 1), Take::Outputs)?;
                self.verify(bench, index, &sample.taken)?;
                self.refresh(index, 1)?;
            }
        }
        Ok(())
    }

    /// Times one side over the next `batch` copies. Nothing in a launch tells whether its output is taken.
    pub(super) fn sample(
        &mut self,
        bench: &Bench<'_, B>,
        pair: &mut Pair<'_, B>,
        index: usize,
        (side, batch): (Side, usize),
        take: Take,
    ) -> Result<Sample<B>, Failure> {
        let runner = match side {
            Side::Incumbent => &mut pair.incumbent,
            Side::Candidate => &mut pair.candidate,
        };
        let library = runner.build.kernel().is_none();
        let blame = |fault: Fault| match side {
            Side::Candidate => Failure::fault(fault, Stage::Timing, "a timed launch"),
            Side::Incumbent if library => JudgeError::machine("the library in a timed launch", fault).into(),
            Side::Incumbent => JudgeError::Incumbent(format!("{fault} in a timed launch")).into(),
        };
        let sample = undisturbed(|again| {
            if again {
                runner.taken_again += 1;
                runner.host = bench.host(runner.build, &self.arena)?;
                // Nothing that the one before left anywhere is there for it.
                self.refresh(index, self.shapes[index].copies)?;
                // Its first launches, cold, are not what is measured.
                for _ in 0..UNMEASURED {
                    self.refresh(index, batch)?;
                    if let Err(fault) = self.attempt(runner, index, (side, batch), Take::Nothing)? {
                        return Ok(Err(fault));
                    }
                }
                self.refresh(index, batch)?;
            }
            // Its threads would share the cores of what is timed.
            bench.torch().map_or(Ok(()), torch::Oracle::rest).map_err(JudgeError::from)?;
            self.attempt(runner, index, (side, batch), take)
        })?;
        sample.map_err(blame)
    }

    fn attempt(
        &mut self,
        runner: &mut Runner<'_, B>,
        index: usize,
        (side, batch): (Side, usize),
        take: Take,
    ) -> Result<Result<Sample<B>, Fault>, Failure> {
        let shape = &mut self.shapes[index];
        let (image, _) = runner.build.image(&shape.case.shape, shape.case.dtype)?;
        let copies = shape.turns.take(batch);
        let calls: Vec<Call> = copies.iter().map(|copy| shape.call(side, image, *copy)).collect();
        let took = match runner.host.run(&calls, shape.limit * batch as u32) {
            Ok(took) => took,
            Err(fault) => return Ok(Err(fault)),
        };
        let checked = match take {
            Take::Nothing => Vec::new(),
            Take::Outputs => TimedShape::checked(self.seed, self.rounds, &copies),
        };
        let taken = checked.into_iter().map(|copy| (copy, runner.host.take(&shape.memory, &mut self.arena, copy)));
        let taken = taken.collect();
        let us = took.as_secs_f64() * 1e6 / batch as f64;
        Ok(runner.host.idle_check().map(|()| Sample { us, taken }))
    }

    /// Checks outputs of the latest sample, as they were taken then.
    fn verify(&mut self, bench: &Bench<'_, B>, index: usize, taken: &[(usize, Taken<B>)]) -> Result<(), Failure> {
        let memory = &self.shapes[index].memory;
        let label = describe(bench.op(), memory.case());
        for (copy, outputs) in taken.iter().filter(|_| Defence::WholeOutputs.stands()) {
            if let Some(why) = damage(memory, &mut self.arena, *copy) {
                return Err(Failure::reject(Stage::Timing, format!("{why} in a timed launch of {label}")));
            }
            if let (_, Some(why)) = compare_with_oracle(bench, memory, &mut self.arena, *copy, outputs)? {
                return Err(Failure::reject(Stage::Timing, format!("a timed output is wrong: {why}")));
            }
        }
        Ok(())
    }

    /// Looks at what the latest sample of the candidate wrote, in places that nobody can foresee: of every launch whether it
    /// wrote there at all, of some whether that is what the oracle has. Every sample is looked at in the same way, because a
    /// launch that does less would slip through the few that are compared in full.
    pub(super) fn look(&mut self, bench: &Bench<'_, B>, index: usize, batch: usize) -> Result<(), Failure> {
        let shape = &self.shapes[index];
        let op = bench.op();
        let wrong = |what: String| {
            Failure::reject(Stage::Timing, format!("a timed output is wrong: {}: {what}", describe(op, &shape.case)))
        };
        let used = shape.used(batch);
        let spots: Vec<&Spots> = used.iter().filter_map(|copy| shape.spots[*copy].as_ref()).collect();
        if Defence::Poison.stands() && Spots::untouched(&spots, &mut self.arena) {
            return Err(wrong("a part of it was not written".into()));
        }
        let stream = Stream::new(self.seed, "look");
        self.looks += 1;
        // What is too dear to be looked at every time is looked at as much more rarely, and nobody can foresee when.
        let rarely = stream.bits(self.looks << 8 | 0xff).trailing_zeros().min(RAREST);
        let (most, leeway) = looking(op, bench.backend.case_limits().sample_macs, rarely);
        let looked_at = if Defence::Samples.stands() { LOOKED_AT.min(batch as u64) } else { 0 };
        for turn in 0..looked_at {
            let copy = used[stream.below(self.looks << 8 | turn, batch as u64) as usize];
            let seed = stream.bits(self.looks << 8 | turn | 1 << 63);
            let sample = op.sample(&shape.case.shape, seed, most).map_err(JudgeError::from)?;
            if sample.is_empty() {
                break;
            }
            let errors = bench.compare_some(&shape.memory, &mut self.arena, copy, &sample)?;
            if let Some(why) = errors.failure().filter(|_| !errors.within(leeway)) {
                return Err(wrong(why));
            }
        }
        Ok(())
    }

    /// Renews the copies just used, long before their next turn, so that they are cold again by then: poison where results
    /// go and inputs that are not what they were. Where a kernel could remember, they are drawn anew; else every other copy,
    /// at random, has one element changed to another's value, whether it is going to be looked at or not.
    pub(super) fn refresh(&mut self, index: usize, batch: usize) -> Result<(), Failure> {
        let shape = &mut self.shapes[index];
        let [poison, inputs, places, stirred] =
            ["refresh", "renew", "spots", "stir"].map(|name| Stream::new(self.seed, name));
        let copies = shape.used(batch);
        let seeds: Vec<(usize, u64)> =
            copies.iter().map(|copy| (*copy, poison.bits(self.rounds << 8 | *copy as u64))).collect();
        shape.memory.poison_all(&mut self.arena, &seeds);
        let mut renewed = Vec::with_capacity(copies.len());
        let mut changes = Vec::new();
        for copy in copies {
            self.renewals += 1;
            renewed.push((copy, places.bits(self.renewals)));
            let was_hostile = shape.hostile.iter().position(|(hostile, _)| *hostile == copy);
            let was_hostile = was_hostile.map(|at| shape.hostile.swap_remove(at)).is_some();
            if !(was_hostile || Defence::FreshInputs.stands()) {
                continue;
            }
            if self.renews || was_hostile || !shape.memory.stirs() {
                draw_inputs(self.files.as_ref(), &shape.memory, &mut self.arena, copy, inputs.bits(self.renewals))?;
            } else if stirred.bits(2 * self.renewals) >> 63 == 0 {
                changes.extend(shape.memory.stir(copy, stirred.bits(2 * self.renewals + 1)));
            }
        }
        if self.renews && Defence::FreshInputs.stands() {
            changes.extend(shape.stirred(stirred.bits(2 * self.renewals + 1)));
        }
        self.arena.exchange(&changes);
        for ((copy, _), spots) in renewed.iter().zip(Spots::of(&shape.memory, &mut self.arena, &renewed)) {
            shape.spots[*copy] = Some(spots);
        }
        self.prepare_question(index)
    }
}

/// The rooflines of a target's shapes.
pub(super) fn rooflines<B: Backend>(bench: &Bench<'_, B>, target: &[TargetShape]) -> Result<Vec<Roofline>, Failure> {
    target.iter().map(|shape| case_roofline(bench, &timed_case(shape))).collect()
}

/// The roofline of `case` on the bench's device.
fn case_roofline<B: Backend>(bench: &Bench<'_, B>, case: &Case) -> Result<Roofline, Failure> {
    let number = |value: Result<u64, crate::op::OpError>| value.map(|v| v as f64).map_err(JudgeError::from);
    let op = bench.op();
    Ok(roofline(
        &bench.card().back_to_back(),
        number(op.read_bytes(&case.shape, case.dtype))?,
        number(op.write_bytes(&case.shape, case.dtype))?,
        number(op.flops(&case.shape))?,
        case.dtype,
    ))
}
