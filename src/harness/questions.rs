//! What the second tier asks: a pure function of the operation, the target, the device and the seed.
//!
//! The stages ask each thing by itself, at sizes that a machine judges in a fraction of a second. Here several meet: hostile
//! inputs at full sizes, at two and three large ones at once and beyond the timed ones, in an order that nobody can foresee.

use std::collections::BTreeSet;

use crate::backend::{CaseLimits, Conditions, Placing};
use crate::defence::Defence;
use crate::op::{Adversarial, Case, Dtype, OpError, Operation, Role, Shape, TargetShape};
use crate::rng::Stream;

use super::cases::{can_be_drawn, flags, leeway, sizes, with_flags_of};
use super::topic::Topic;
use super::unlisted::{FAR_LEEWAY, FAR_SUMS};
use super::ways::Ways;

/// One question: a case, and how it is put.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Question {
    pub(super) topic: Topic,
    pub(super) case: Case,
    pub(super) placing: Placing,
    pub(super) conditions: Conditions,
    /// What launches of this shape and type hold that come before that of the case with nothing between them, a copy of the tensors each.
    pub(super) before: Vec<Case>,
    /// Launches on the same input; their outputs must have the same bits unless the kernel says that they need not.
    pub(super) launches: u32,
    /// How many times its bounds an error may be.
    pub(super) leeway: f64,
    /// How many times theirs what sums in single precision lose may be, beside that.
    pub(super) sums: f64,
}

/// Drawn questions of each topic that has no end: more than any budget suffices for.
const DRAWN: u64 = 400;

/// Elements that 32-bit indices do not reach.
pub(super) const HUGE: u64 = 1 << 31;

/// Multiply-adds that such a question stays below.
const MOST_MACS: u64 = 1 << 38;

/// Terms of a result that it stays below. A product is checked against plain sums, each of one thread: of 2^28 terms they take half a minute.
const MOST_TERMS: u64 = 1 << 20;

/// How many times larger another size is made where they would be more.
const ENLARGED: [i64; 3] = [16, 64, 256];

/// Sizes beside one that is round, at the most: such a case is small and soon asked.
const ROUND_BESIDE: i64 = 70;

/// Values of floating-point arguments that are drawn beside the listed ones.
const DRAWN_ARGUMENTS: u64 = 24;

/// Threads that a kernel is asked with, at the most.
const MOST_THREADS: usize = 64;

/// Launches of a kernel on the same input.
const LAUNCHES: u32 = 24;

/// Launches that follow each other in a question about that, where there is memory for so many copies.
const IN_A_ROW: u64 = 6;

/// The questions for a target and a kernel that goes these ways, in the order in which they are asked: some of each topic, then the
/// next of each, so that whatever the budget is, everything has been asked about.
///
/// # Errors
/// A shape that does not fit the operation.
pub(super) fn questions(
    op: &Operation,
    target: &[TargetShape],
    dtypes: &[Dtype],
    limits: &CaseLimits,
    free_bytes: u64,
    seed: u64,
    ways: Ways<'_>,
) -> Result<Vec<Question>, OpError> {
    let plan = Plan { op, target, dtypes, limits, free_bytes, seed };
    let all_ways = plan.smallest_ways(ways)?;
    let topics = [
        plan.at_timed_sizes()?,
        plan.repeats()?,
        plan.in_a_row()?,
        plan.drawn(Topic::LongerSizes)?,
        plan.fences()?,
        plan.arguments()?,
        plan.each_way(&all_ways)?,
        plan.many_blocks(&all_ways, ways)?,
        plan.far()?,
        plan.drawn(Topic::DrawnShapes)?,
        plan.drawn(Topic::RoundSizes)?,
        plan.any_sizes()?,
        plan.threads()?,
        plan.drawn(Topic::SweepSizes)?,
        plan.huge()?,
    ];
    let longest = topics.iter().map(Vec::len).max().unwrap_or(0);
    let mut all: Vec<Question> = Vec::new();
    for turn in 0..longest {
        for topic in &topics {
            let at_once = topic.first().map_or(1, |question| question.topic.at_once());
            for question in topic.iter().skip(turn * at_once).take(at_once) {
                // Drawing may find the same twice.
                if question.topic.defence().stands() && !all.contains(question) {
                    all.push(question.clone());
                }
            }
        }
    }
    Ok(all)
}

/// Whether all of an output is compared, rather than rows of it.
///
/// # Errors
/// A shape that does not fit the operation.
pub(super) fn whole(op: &Operation, case: &Case, limits: &CaseLimits) -> Result<bool, OpError> {
    Ok(op.macs(&case.shape)? <= limits.macs && op.all_elements(&case.shape)? <= 4 * limits.elements)
}

/// Fenced where that is what was drawn.
pub(super) fn fenced_if(drawn: bool) -> Placing {
    if drawn && Defence::Fences.stands() { Placing::Fenced } else { Placing::Packed }
}

pub(super) struct Plan<'a> {
    pub(super) op: &'a Operation,
    pub(super) target: &'a [TargetShape],
    /// Those that the kernel serves.
    pub(super) dtypes: &'a [Dtype],
    pub(super) limits: &'a CaseLimits,
    /// Memory that is free for a case.
    free_bytes: u64,
    pub(super) seed: u64,
}

impl Plan<'_> {
    /// Every adversarial input at every timed shape, in a drawn order: first as it is, then mixed in, both in a drawn manner; then
    /// with the flags that it was made for and the operation's own arguments, and in other manners.
    fn at_timed_sizes(&self) -> Result<Vec<Question>, OpError> {
        let topic = Topic::TimedSizes;
        let stream = Stream::new(self.seed, "manners at the timed sizes");
        let mut all: [Vec<Question>; 6] = Default::default();
        let mut number = 0;
        for wanted in self.target {
            for (place, hostile) in self.op.hostile_inputs().enumerate() {
                let first = usize::from(place >= self.op.adversarial.len());
                for turn in [first, 3, 4, 5] {
                    number += 1;
                    let pick = |what: u64, count: usize| stream.below(number << 8 | what, count as u64) as usize;
                    let (shape, setting) = self.manner(&wanted.shape, hostile, pick)?;
                    // At last in types that are not timed: they may have ways of their own.
                    let dtype = if turn < 4 { wanted.dtype } else { self.dtypes[pick(66, self.dtypes.len())] };
                    all[turn].extend(self.hostile(topic, &shape, dtype, hostile, setting)?);
                }
                let shape = with_flags_of(self.op, &wanted.shape, &self.op.complete(&hostile.shape)?);
                all[2].extend(self.hostile(topic, &shape, wanted.dtype, hostile, 0)?);
            }
        }
        Ok(all.into_iter().flat_map(|all| self.shuffled(all, topic)).collect())
    }

    /// A shape with flags for an adversarial input, and a setting of the floating-point arguments: those at hand, which are the timed or
    /// drawn ones, in one case of four drawn ones, in another one those that the input was made for.
    pub(super) fn manner(
        &self,
        shape: &Shape,
        hostile: &Adversarial,
        pick: impl Fn(u64, usize) -> usize,
    ) -> Result<(Shape, u32), OpError> {
        let op = self.op;
        let made_for = with_flags_of(op, shape, &op.complete(&hostile.shape)?);
        let wanted = match pick(32, 4) {
            0 => made_for.clone(),
            1 => flags(op)
                .zip(33..)
                .fold(shape.clone(), |shape, (symbol, what)| shape.with(symbol, pick(what, 2) as i64)),
            _ => shape.clone(),
        };
        let defined = op.complete(&wanted).is_ok() && op.is_defined(hostile, &wanted)?;
        let others = Defence::OtherArguments.stands() && pick(64, 2) > 0;
        let setting = match others {
            true if hostile.listed_arguments => pick(65, 1 + op.other_settings() as usize) as u32,
            true => op.drawn_setting(pick(65, 1 << 31) as u64),
            false => 0,
        };
        Ok((if defined { wanted } else { made_for }, setting))
    }

    /// Adversarial inputs at drawn shapes: the timed ones with some sizes grown, or those of the sweep.
    fn drawn(&self, topic: Topic) -> Result<Vec<Question>, OpError> {
        let mut all = Vec::new();
        let inputs: Vec<&Adversarial> = self.op.hostile_inputs().collect();
        if inputs.is_empty() {
            return Ok(all);
        }
        let stream = Stream::new(self.seed, topic.name());
        for turn in 0..DRAWN {
            let pick = |what: u64, count: usize| stream.below(turn << 8 | what, count as u64) as usize;
            let wanted = &self.target[pick(0, self.target.len())];
            let hostile = inputs[pick(1, inputs.len())];
            let shape = match topic {
                Topic::DrawnShapes => self.op.random_shape(stream.bits(turn << 8 | 4))?,
                Topic::RoundSizes => {
                    let drawn = self.op.random_shape(stream.bits(turn << 8 | 4))?;
                    self.rounded(&drawn, |what, count| pick(8 + what, count))
                }
                Topic::SweepSizes => self.op.complete(&self.op.sweep[pick(2, self.op.sweep.len())])?,
                _ => self.grown(&wanted.shape, |what, count| pick(8 + what, count)),
            };
            // Mostly in the timed type: others may have ways of their own at sizes that they are not timed at.
            let timed = topic == Topic::LongerSizes && pick(7, 3) > 0;
            let dtype = if timed { wanted.dtype } else { self.dtypes[pick(3, self.dtypes.len())] };
            if self.op.complete(&shape).is_err() || !self.fits(&shape, dtype)? {
                continue;
            }
            let ordinary = matches!(topic, Topic::DrawnShapes | Topic::RoundSizes) && pick(5, 2) == 0;
            let question = match ordinary {
                true => Some(self.plain(topic, Case { shape, dtype, input: None, setting: 0 })),
                false => {
                    let (shape, setting) = self.manner(&shape, hostile, pick)?;
                    self.hostile(topic, &shape, dtype, hostile, setting)?
                }
            };
            let placing = fenced_if(pick(6, 2) == 0);
            all.extend(question.map(|question| Question { placing, ..question }));
        }
        Ok(all)
    }

    /// A small shape with one size, or two, that are an odd multiple of 128 or 256: round, but nothing that a power of two beyond
    /// these divides.
    fn rounded(&self, shape: &Shape, pick: impl Fn(u64, usize) -> usize) -> Shape {
        let sizes: Vec<&String> = self.op.shrink.iter().filter(|symbol| shape.get(symbol).is_some()).collect();
        let always = pick(0, sizes.len().max(1));
        let mut rounded = shape.clone();
        for (place, (symbol, number)) in sizes.into_iter().zip(0..).enumerate() {
            let size = shape.get(symbol).unwrap_or(1);
            // Of several only one is large.
            let odds = if place == always { 6 } else { 2 };
            let new = if place == always || pick(1 + 3 * number, 4) == 0 {
                [128, 256, 256][pick(2 + 3 * number, 3)] * (1 + 2 * pick(3 + 3 * number, odds) as i64)
            } else {
                size.min(ROUND_BESIDE)
            };
            rounded = rounded.with(symbol, new);
        }
        rounded
    }

    /// A shape with at least one of its sizes larger, by a factor up to four and a little that makes it odd.
    fn grown(&self, shape: &Shape, pick: impl Fn(u64, usize) -> usize) -> Shape {
        let mut grown = shape.clone();
        let sizes = &self.op.shrink;
        let always = pick(0, sizes.len().max(1));
        for (place, symbol) in sizes.iter().enumerate() {
            let Some(size) = shape.get(symbol) else { continue };
            let number = place as u64;
            if place == always || pick(1 + 3 * number, 2) == 0 {
                let eighths = 10 + pick(2 + 3 * number, 23) as i64;
                grown = grown.with(symbol, size * eighths / 8 + [0, 1, 7][pick(3 + 3 * number, 3)]);
            }
        }
        grown
    }

    /// An adversarial input at a shape, flags included, where it comes in this dtype and has a defined result.
    pub(super) fn hostile(
        &self,
        topic: Topic,
        shape: &Shape,
        dtype: Dtype,
        hostile: &Adversarial,
        setting: u32,
    ) -> Result<Option<Question>, OpError> {
        let (op, shape) = (self.op, shape.clone());
        let known = hostile.dtypes.is_empty() || hostile.dtypes.contains(&dtype);
        if !known || op.complete(&shape).is_err() || !op.is_defined(hostile, &shape)? {
            return Ok(None);
        }
        let case = Case { shape, dtype, input: Some(hostile.name.clone()), setting };
        let drawn = can_be_drawn(op, &case)?;
        Ok(drawn.then(|| Question { leeway: leeway(op, hostile), ..self.plain(topic, case) }))
    }

    /// The operation's small shapes and the timed ones, in every dtype, with fences.
    fn fences(&self) -> Result<Vec<Question>, OpError> {
        let small = [&self.op.smoke].into_iter().chain(&self.op.edges).chain(&self.op.decode);
        let mut all = Vec::new();
        for shape in small {
            let shape = self.op.complete(shape)?;
            let (shape, _) = self.op.shrink_to(&shape, self.limits.macs, self.limits.elements)?;
            for dtype in self.dtypes.iter().copied() {
                let case = Case { shape: shape.clone(), dtype, input: None, setting: 0 };
                all.push(Question { placing: Placing::Fenced, ..self.plain(Topic::Fences, case) });
            }
        }
        let all = self.shuffled(all, Topic::Fences);
        let timed =
            self.target.iter().map(|wanted| Question { placing: Placing::Fenced, ..self.timed(Topic::Fences, wanted) });
        Ok(timed.chain(all).collect())
    }

    /// Other values of floating-point arguments at the timed shapes and at the smallest: all that are listed, and some that are drawn.
    fn arguments(&self) -> Result<Vec<Question>, OpError> {
        let stream = Stream::new(self.seed, "drawn arguments");
        let drawn = (0..DRAWN_ARGUMENTS).map(|number| self.op.drawn_setting(stream.bits(number)));
        let settings: BTreeSet<u32> =
            (1..=self.op.other_settings()).chain(drawn).filter(|setting| *setting > 0).collect();
        let smoke = self.op.complete(&self.op.smoke)?;
        let mut all = Vec::new();
        for setting in settings {
            for wanted in self.target {
                let question = self.timed(Topic::Arguments, wanted);
                all.push(Question { case: Case { setting, ..question.case.clone() }, ..question });
            }
            for dtype in self.dtypes.iter().copied() {
                all.push(self.plain(Topic::Arguments, Case { shape: smoke.clone(), dtype, input: None, setting }));
            }
        }
        Ok(self.shuffled(all, Topic::Arguments))
    }

    /// One thread, an odd number, more than there are cores, each at a drawn shape and in turn at a timed one: a kernel may share its work
    /// in another way there.
    fn threads(&self) -> Result<Vec<Question>, OpError> {
        if !self.limits.threads_vary {
            return Ok(Vec::new());
        }
        let stream = Stream::new(self.seed, Topic::Threads.name());
        let question = |threads, shape, dtype| {
            let question = self.plain(Topic::Threads, Case { shape, dtype, input: None, setting: 0 });
            Question { conditions: Conditions { threads: Some(threads), ..question.conditions }, ..question }
        };
        let mut all = Vec::new();
        for (turn, number) in (0..).zip([1, 3, 2, 5, 8, 0, 0]) {
            let pick = |what: u64, count: usize| stream.below(turn << 8 | what, count as u64) as usize;
            let threads = if number > 0 { number } else { 9 + pick(0, MOST_THREADS - 8) };
            let wanted = &self.target[pick(1, self.target.len())];
            all.push(question(threads, wanted.shape.clone(), wanted.dtype));
            if !Defence::DrawnShapes.stands() {
                continue;
            }
            let drawn = self.op.random_shape(stream.bits(turn << 8 | 2))?;
            let dtypes = if number == 1 { self.dtypes } else { &[self.dtypes[pick(3, self.dtypes.len())]] };
            all.extend(dtypes.iter().map(|dtype| question(threads, drawn.clone(), *dtype)));
        }
        Ok(all)
    }

    /// The largest timed shape many times, and what follows it in size.
    fn repeats(&self) -> Result<Vec<Question>, OpError> {
        let mut by_work = Vec::new();
        for wanted in self.target {
            by_work.push((self.op.flops(&wanted.shape)?, wanted));
        }
        by_work.sort_by_key(|(flops, _)| std::cmp::Reverse(*flops));
        let question = |(_, wanted): (u64, &TargetShape)| {
            let question = self.timed(Topic::Repeats, wanted);
            let conditions = Conditions { rubbish_between: true, ..question.conditions };
            Question { launches: LAUNCHES, conditions, ..question }
        };
        Ok(by_work.into_iter().map(question).collect())
    }

    /// Every adversarial input at every timed shape with the flags that are timed, in rows of launches of which the first is ordinary.
    fn in_a_row(&self) -> Result<Vec<Question>, OpError> {
        let mut all = Vec::new();
        for wanted in self.target {
            let one = self.op.judged_bytes(&wanted.shape, wanted.dtype)?.max(1);
            let copies = (self.free_bytes / one).min(IN_A_ROW) as usize;
            let mut hostile = Vec::new();
            for input in self.op.hostile_inputs().filter(|input| copies > 1 && input.few_terms.is_none()) {
                hostile.extend(self.hostile(Topic::InARow, &wanted.shape, wanted.dtype, input, 0)?);
            }
            let ordinary = self.timed(Topic::InARow, wanted).case;
            for row in self.shuffled(hostile, Topic::InARow).chunks(copies.saturating_sub(1).max(1)) {
                let Some((last, others)) = row.split_last() else { continue };
                let before = others.iter().map(|question| question.case.clone());
                let before = std::iter::once(ordinary.clone()).chain(before).collect();
                all.push(Question { before, ..last.clone() });
            }
        }
        Ok(all)
    }

    /// A tensor of more than 2^31 elements, by growing one size of a listed shape, where memory allows: in the target's type, else in
    /// the narrowest that the kernel serves.
    fn huge(&self) -> Result<Vec<Question>, OpError> {
        let timed = self.target.first().map_or(Dtype::F16, |wanted| wanted.dtype);
        let narrowest = self.dtypes.iter().copied().min_by_key(|dtype| dtype.bytes()).unwrap_or(timed);
        let mut all = Vec::new();
        'symbols: for symbol in &self.op.shrink {
            let bases = self.huge_bases(symbol)?;
            for (size, base) in bases {
                let grown = base.with(symbol, size as i64);
                let enough = self.op.complete(&grown).is_ok() && self.largest_tensor(&grown)? > HUGE;
                // What a launch would take long for is no test of offsets.
                if !enough || self.op.macs(&grown)? >= MOST_MACS || self.mean_terms(&grown)? >= MOST_TERMS {
                    continue;
                }
                for dtype in [timed, narrowest] {
                    if self.fits(&grown, dtype)? {
                        let case = Case { shape: grown, dtype, input: None, setting: 0 };
                        let plain = self.plain(Topic::HugeTensors, case);
                        // Rows are as long as those of far sizes.
                        all.push(Question { leeway: FAR_LEEWAY, sums: FAR_SUMS / FAR_LEEWAY, ..plain });
                        continue 'symbols;
                    }
                }
            }
        }
        Ok(self.shuffled(all, Topic::HugeTensors))
    }

    /// Listed shapes, and what a size must become for the largest tensor to have more than [`HUGE`] elements. Those in which it has to grow
    /// least come first: a single row of so many columns is nobody's, and keeps a block busy for seconds. Behind them come shapes with one
    /// more size enlarged, for sums that would have too many terms otherwise.
    fn huge_bases(&self, symbol: &str) -> Result<Vec<(u64, Shape)>, OpError> {
        let grown = |base: Shape| {
            let Some(size) = base.get(symbol).filter(|size| *size > 0) else { return Ok(None) };
            // Odd, so that no vector divides it.
            let size = (size as u64).saturating_mul(HUGE / self.largest_tensor(&base)?.max(1) + 1) | 1;
            Ok::<_, OpError>(Some((size, base)))
        };
        let mut listed = Vec::new();
        for base in [&self.op.smoke].into_iter().chain(&self.op.sweep) {
            listed.extend(grown(self.op.complete(base)?)?);
        }
        listed.sort_by_key(|(size, _)| *size);
        let mut bases = listed.clone();
        for factor in ENLARGED {
            for (_, base) in &listed {
                for other in sizes(self.op).filter(|other| *other != symbol) {
                    let enlarged = base.clone().with(other, base.get(other).unwrap_or(0).saturating_mul(factor));
                    if self.op.complete(&enlarged).is_ok() {
                        bases.extend(grown(enlarged)?);
                    }
                }
            }
        }
        Ok(bases)
    }

    /// Terms of a result's sum, in the mean of all results.
    fn mean_terms(&self, shape: &Shape) -> Result<u64, OpError> {
        let results = self.op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
        let sizes = results.map(|tensor| self.op.elements(tensor, shape).map(|elements| elements as u64));
        Ok(self.op.macs(shape)? / sizes.sum::<Result<u64, _>>()?.max(1))
    }

    fn largest_tensor(&self, shape: &Shape) -> Result<u64, OpError> {
        let present = self.op.tensors.iter().filter(|tensor| tensor.role == Role::Input || tensor.draw.is_none());
        let sizes = present.map(|tensor| self.op.elements(tensor, shape).map(|elements| elements as u64));
        sizes.collect::<Result<Vec<_>, _>>().map(|sizes| sizes.into_iter().max().unwrap_or(0))
    }

    /// Whether there is memory for it.
    pub(super) fn fits(&self, shape: &Shape, dtype: Dtype) -> Result<bool, OpError> {
        let case = Case { shape: shape.clone(), dtype, input: None, setting: 0 };
        let bytes = if whole(self.op, &case, self.limits)? {
            let judged = self.op.judged_bytes(shape, dtype)?;
            judged.saturating_add(judged / 8)
        } else {
            let tensors = self.op.input_bytes(shape, dtype)?.saturating_add(self.op.write_bytes(shape, dtype)?);
            tensors.saturating_add(tensors / 4)
        };
        Ok(bytes <= self.free_bytes)
    }

    fn timed(&self, topic: Topic, wanted: &TargetShape) -> Question {
        let case = Case { shape: wanted.shape.clone(), dtype: wanted.dtype, input: None, setting: 0 };
        self.plain(topic, case)
    }

    pub(super) fn plain(&self, topic: Topic, case: Case) -> Question {
        let conditions = Conditions { dirty: true, ..Conditions::default() };
        let placing = Placing::Packed;
        Question { topic, case, placing, conditions, before: Vec::new(), launches: 1, leeway: 1.0, sums: 1.0 }
    }

    pub(super) fn shuffled(&self, all: Vec<Question>, topic: Topic) -> Vec<Question> {
        let order = Stream::new(self.seed, topic.name()).permutation(all.len());
        order.into_iter().map(|place| all[place].clone()).collect()
    }
}
