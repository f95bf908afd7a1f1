//! Measuring two kernels beside each other: rotated cold buffers, ABBA blocks, the parent's clock, timed outputs verified.

use std::time::Duration;

use crate::backend::cpu::{Arena, Call, CaseMemory, Fault, Host, ScratchBuffer};
use crate::device::{Roofline, roofline};
use crate::evaluation::Stage;
use crate::kernel::KernelFile;
use crate::op::{Case, Operation, TargetShape};
use crate::rng::Stream;

use super::Failure;
use super::build::Build;
use super::check::{arena_for, compare_with_oracle, describe, launch_limit, memory_error, taken};
use super::duel::{MatchUp, timed_case};
use super::judge::Bench;
use super::session::{Block, Round, Side, calls_per_sample, order};
use super::task::JudgeError;

/// A sample lasts at least this long where one launch is shorter: launches over rotated buffers, back to back, so that
/// the hand-shake (some µs) stays below the margin.
const SAMPLE_US: f64 = 500.0;

/// Running time before anything is measured, per kernel and session (`do_bench` warms up as long).
const WARM_UP: Duration = Duration::from_millis(25);

/// Rotated copies of a shape's buffers at the most.
const MAX_COPIES: usize = 128;

/// Bytes of rotated buffers of all shapes together, at the most.
const MAX_BYTES: u64 = 1 << 30;

/// Launches of a process that was started in the middle of a session before one counts again.
const UNMEASURED: usize = 3;

/// One timed shape with its rotated buffers.
struct TimedShape {
    case: Case,
    memory: CaseMemory,
    /// Scratch buffers of the incumbent, before those of the candidate.
    split: usize,
    copies: usize,
    next: usize,
    batch: usize,
    limit: Duration,
    roofline: Roofline,
}

/// The buffers of a timing session; processes come and go around them.
pub(super) struct Rig {
    arena: Arena,
    shapes: Vec<TimedShape>,
    seed: u64,
    /// Rounds measured so far: no two have the same order by construction.
    rounds: u64,
}

/// What one timing gave.
struct Sample {
    /// µs a launch.
    us: f64,
    /// Each output of the last launch, where it was asked for.
    outputs: Vec<Vec<u8>>,
}

/// A kernel in a process of its own.
pub(super) struct Runner<'b> {
    build: &'b Build,
    host: Host,
}

/// Incumbent and candidate, each in a fresh process.
pub(super) struct Pair<'b> {
    incumbent: Runner<'b>,
    candidate: Runner<'b>,
}

impl Rig {
    /// Draws and poisons the rotated buffers of every target shape, with scratch for the incumbent and the candidate.
    pub(super) fn new(
        bench: &Bench<'_>,
        target: &[TargetShape],
        kernels: [&KernelFile; 2],
        seed: u64,
    ) -> Result<Self, Failure> {
        let op = &bench.known.op;
        let mut wanted = Vec::new();
        for shape in target {
            let case = timed_case(shape);
            let (scratch, split) = both_scratch(bench, kernels, &case)?;
            let one = CaseMemory::footprint(op, &case, &scratch, 1).map_err(memory_error)?;
            let bytes = (one.0 + one.1) as u64;
            let enough = bench.card.cold_bytes.div_ceil(bytes.max(1)) as usize;
            let affordable = (MAX_BYTES / target.len() as u64 / bytes.max(1)) as usize;
            // Two are needed for the two sides of a pair not to share one.
            wanted.push((case, scratch, split, enough.clamp(2, MAX_COPIES).min(affordable.max(2))));
        }
        let (mut inputs, mut outputs) = (0, 0);
        for (case, scratch, _, copies) in &wanted {
            let bytes = CaseMemory::footprint(op, case, scratch, *copies).map_err(memory_error)?;
            inputs += bytes.0;
            outputs += bytes.1;
        }
        let mut arena = arena_for(std::iter::once((inputs, outputs)))?;
        let mut shapes = Vec::new();
        for (case, scratch, split, copies) in wanted {
            let mut memory = CaseMemory::place(&mut arena, op, &case, &scratch, copies).map_err(memory_error)?;
            for copy in 0..copies {
                memory.draw(&mut arena, copy, seed.wrapping_add(copy as u64)).map_err(memory_error)?;
                memory.poison(&mut arena, copy, seed.wrapping_add(copy as u64));
            }
            let limit = launch_limit(op, &case).map_err(JudgeError::from)?;
            let roofline = case_roofline(bench, op, &case)?;
            shapes.push(TimedShape { case, memory, split, copies, next: 0, batch: 1, limit, roofline });
        }
        Ok(Self { arena, shapes, seed, rounds: 0 })
    }

    /// Starts both kernels in fresh processes and warms them up.
    pub(super) fn start<'b>(&mut self, bench: &Bench<'_>, match_up: MatchUp<'b>) -> Result<Pair<'b>, Failure> {
        let (incumbent, candidate) = (match_up.incumbent.build, match_up.candidate.build);
        let mut pair = Pair {
            incumbent: Runner { build: incumbent, host: bench.host(&incumbent.images(), &self.arena)? },
            candidate: Runner { build: candidate, host: bench.host(&candidate.images(), &self.arena)? },
        };
        for index in 0..self.shapes.len() {
            for side in [Side::Incumbent, Side::Candidate] {
                let share = WARM_UP / self.shapes.len() as u32;
                let mut spent = Duration::ZERO;
                let mut fastest = f64::INFINITY;
                while spent < share {
                    let took = self.sample(bench, &mut pair, index, (side, 1), false)?.us;
                    fastest = fastest.min(took);
                    spent += Duration::from_secs_f64(took / 1e6);
                }
                // From the incumbent alone, so that a candidate has no say in how it is measured (JUDGE, row 54).
                if side == Side::Incumbent {
                    let shape = &mut self.shapes[index];
                    shape.batch = calls_per_sample(fastest, SAMPLE_US, (shape.copies / 2) as u32) as usize;
                }
            }
        }
        Ok(pair)
    }

    /// Measures one block of `rounds` rounds over every shape. With `verify`, one output of the candidate is checked
    /// under timed conditions for each shape.
    pub(super) fn block(
        &mut self,
        bench: &Bench<'_>,
        pair: &mut Pair<'_>,
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
                    let check = verify && mine && turn == checked;
                    turn += u64::from(mine);
                    let batch = self.shapes[index].batch;
                    let sample = self.sample(bench, pair, index, (side, batch), check)?;
                    times[place] = sample.us;
                    if check {
                        self.verify_last(bench, index, &sample.outputs)?;
                    }
                    self.refresh(index, batch);
                }
                samples_us.push(times);
            }
            measured.push(Round { order, samples_us });
        }
        Ok(Block::from_rounds(&measured))
    }

    /// Runs the candidate once over every rotated copy and checks each output.
    pub(super) fn verify_all(&mut self, bench: &Bench<'_>, pair: &mut Pair<'_>) -> Result<(), Failure> {
        for index in 0..self.shapes.len() {
            for _ in 0..self.shapes[index].copies {
                bench.check_cancelled()?;
                let sample = self.sample(bench, pair, index, (Side::Candidate, 1), true)?;
                self.verify_last(bench, index, &sample.outputs)?;
                self.refresh(index, 1);
            }
        }
        Ok(())
    }

    /// Times one side over the next `batch` copies. With `change`, one input element of the last copy is changed first,
    /// and its output taken at once.
    fn sample(
        &mut self,
        bench: &Bench<'_>,
        pair: &mut Pair<'_>,
        index: usize,
        (side, batch): (Side, usize),
        change: bool,
    ) -> Result<Sample, Failure> {
        let runner = match side {
            Side::Incumbent => &mut pair.incumbent,
            Side::Candidate => &mut pair.candidate,
        };
        let blame = |fault: Fault| match side {
            Side::Candidate => Failure::fault(fault, Stage::Timing, "a timed launch"),
            Side::Incumbent => JudgeError::Incumbent(format!("{fault} in a timed launch")).into(),
        };
        match self.attempt(runner, index, (side, batch), change)? {
            Err(Fault::RanOn { .. }) => {}
            other => return other.map_err(blame),
        }
        // A core that was away looks the same as a thread that ran on: only a fresh process that repeats it is believed.
        // Its first launches, cold, are not what is measured.
        runner.host = bench.host(&runner.build.images(), &self.arena)?;
        for _ in 0..UNMEASURED {
            self.refresh(index, batch);
            self.attempt(runner, index, (side, batch), change)?.map_err(blame)?;
        }
        self.refresh(index, batch);
        self.attempt(runner, index, (side, batch), change)?.map_err(blame)
    }

    fn attempt(
        &mut self,
        runner: &mut Runner<'_>,
        index: usize,
        (side, batch): (Side, usize),
        change: bool,
    ) -> Result<Result<Sample, Fault>, Failure> {
        let shape = &mut self.shapes[index];
        let (image, _) = runner.build.image(&shape.case.shape, shape.case.dtype)?;
        let first = shape.next;
        let calls: Vec<Call> = (0..batch).map(|i| shape.call(side, image, (first + i) % shape.copies)).collect();
        let last = (first + batch - 1) % shape.copies;
        shape.next = (first + batch) % shape.copies;
        if change {
            let seed = Stream::new(self.seed, "change").bits(first as u64);
            shape.memory.change_one(&mut self.arena, last, seed);
        }
        let took = match runner.host.run(&calls, shape.limit * batch as u32) {
            Ok(took) => took,
            Err(fault) => return Ok(Err(fault)),
        };
        let outputs = if change { taken(&runner.host, &shape.memory, &self.arena, last) } else { Vec::new() };
        let us = took.as_secs_f64() * 1e6 / batch as f64;
        Ok(runner.host.idle_check().map(|()| Sample { us, outputs }))
    }

    /// Checks the output that the latest sample wrote last, as it was taken then.
    fn verify_last(&self, bench: &Bench<'_>, index: usize, outputs: &[Vec<u8>]) -> Result<(), Failure> {
        let op = &bench.known.op;
        let shape = &self.shapes[index];
        let last = (shape.next + shape.copies - 1) % shape.copies;
        let label = describe(op, &shape.case);
        shape
            .memory
            .check_zones(&self.arena, last)
            .map_err(|why| Failure::reject(Stage::Timing, format!("{why} in a timed launch of {label}")))?;
        let (_, failure) = compare_with_oracle(bench, &shape.memory, &self.arena, &shape.case, last, outputs)?;
        match failure {
            Some(why) => Err(Failure::reject(Stage::Timing, format!("a timed output is wrong: {why}"))),
            None => Ok(()),
        }
    }

    /// Poisons the copies just used, long before their next turn, so that they are cold again by then.
    fn refresh(&mut self, index: usize, batch: usize) {
        let shape = &mut self.shapes[index];
        for back in 1..=batch {
            let copy = (shape.next + shape.copies * batch - back) % shape.copies;
            let seed = Stream::new(self.seed, "refresh").bits(self.rounds << 8 | copy as u64);
            shape.memory.poison(&mut self.arena, copy, seed);
        }
    }

    /// Each shape's roofline.
    pub(super) fn rooflines(&self) -> Vec<Roofline> {
        self.shapes.iter().map(|shape| shape.roofline).collect()
    }
}

/// The roofline of `case` on the bench's device.
pub(super) fn case_roofline(bench: &Bench<'_>, op: &Operation, case: &Case) -> Result<Roofline, Failure> {
    let number = |value: Result<u64, crate::op::OpError>| value.map(|v| v as f64).map_err(JudgeError::from);
    Ok(roofline(
        &bench.card.back_to_back(),
        number(op.read_bytes(&case.shape, case.dtype))?,
        number(op.write_bytes(&case.shape, case.dtype))?,
        number(op.flops(&case.shape))?,
        case.dtype,
    ))
}

/// Scratch of the incumbent, then of the candidate, and how many are the incumbent's: neither sees the other's.
fn both_scratch(
    bench: &Bench<'_>,
    kernels: [&KernelFile; 2],
    case: &Case,
) -> Result<(Vec<ScratchBuffer>, usize), Failure> {
    let of = |kernel: &KernelFile| {
        kernel
            .resolve(&case.shape, case.dtype, &bench.card.facts)
            .map(|resolution| ScratchBuffer::of(kernel, &resolution))
            .map_err(|error| JudgeError::machine("front matter", error))
    };
    let mut scratch = of(kernels[0])?;
    let split = scratch.len();
    scratch.extend(of(kernels[1])?);
    Ok((scratch, split))
}

impl TimedShape {
    /// A launch of one side, with that side's scratch only.
    fn call(&self, side: Side, image: usize, copy: usize) -> Call {
        let mut call = self.memory.call(image, copy);
        let tensors = call.pointers.len() - self.memory.scratch_count();
        match side {
            Side::Incumbent => call.pointers.truncate(tensors + self.split),
            Side::Candidate => drop(call.pointers.drain(tensors..tensors + self.split)),
        }
        call.zeroed.retain(|span| call.pointers.contains(&Some(*span)));
        call
    }
}
