//! Questions about sizes that no listed shape has: whatever a file lists, a kernel can be right there alone.

use crate::defence::Defence;
use crate::op::{Adversarial, Case, Dtype, OpError, Shape, TargetShape};
use crate::rng::Stream;

use super::cases::{flags, is_size, sizes};
use super::questions::{Plan, Question, fenced_if};
use super::topic::Topic;

/// Questions about each size far beyond the listed ones.
const FAR_EACH: u64 = 8;

/// How many times the largest listed value a size may be that is far beyond them, at the most.
const FAR: f64 = 16.0;

/// In half of the questions a size that is listed small only reaches this: contexts of 128 K, hundreds of heads or of matrices in a batch.
const FAR_LEAST: f64 = 200_000.0;

/// How many times its bounds what is lost in sums may be there: a plain sum of 200000 positive terms in single precision loses three
/// digits more than the bounds allow, which were measured at other lengths. Rounding to 16 bits is what it is elsewhere.
pub(super) const FAR_SUMS: f64 = 64.0;

/// How many times all of its bounds an error may be there, as of rows that are looked at in part.
pub(super) const FAR_LEEWAY: f64 = 2.0;

/// Questions about sizes of any mixture: more than any budget suffices for.
const MIXED: u64 = 600;

/// Draws for one of them: most are too large, or no shape of the operation.
const TRIES: u64 = 60;

/// A size reaches this there, however small it is in all listed shapes: 200 matrices in a batch, heads of 256 elements. None is smaller than
/// those that the operation draws: heads of 4 elements and a hidden row of one are no model's, and rounding does not average out in them.
const MIXED_LEAST: u64 = 1024;

/// Parts of the scale of a size's values, of which each is asked about before one is again.
const PARTS: u64 = 8;

/// What sizes have to do with each other, at the most: twelve heads of queries for each of keys, a layer that is four times as wide.
const MULTIPLES: u64 = 16;

/// What [`FAR_SUMS`] is there: a plain sum of 1000 terms of one sign behind one that is a thousand times as large loses half a unit of its last
/// place with each of them, 9 times a bound of layernorm.
const MIXED_SUMS: f64 = 16.0;

/// Elements and multiplications of such a case, at the most: there are many, and few of them meet anything.
const MIXED_ELEMENTS: u64 = 1 << 23;
const MIXED_MACS: u64 = 1 << 30;

/// How one mixture of sizes is drawn.
struct Mixture<'a> {
    timed: &'a TargetShape,
    /// The size that is as in `timed`.
    held: Option<&'a String>,
    /// The size that is any of its values, in this part of its scale.
    chosen: Option<&'a String>,
    part: u64,
    /// How many draws were no shape, or too large.
    tries: u64,
}

impl Plan<'_> {
    /// Every size for itself one that is timed, one that is listed, a multiple or a part of another, or any, and every flag: what each shape of
    /// a file has or lacks together (heads of 128 where there are few queries, five heads of queries for each of keys) tells nothing. In
    /// turn one of the sizes is any of all its values, small and large ones, and the others give way to it. In half of the questions
    /// another is as it is timed, and the type is: the code is mostly that which is timed then, and nothing has to be compiled.
    pub(super) fn any_sizes(&self) -> Result<Vec<Question>, OpError> {
        let op = self.op;
        let stream = Stream::new(self.seed, Topic::AnySizes.name());
        let inputs: Vec<&Adversarial> = op.hostile_inputs().collect();
        let files = [&op.smoke].into_iter().chain(&op.sweep).chain(&op.edges).chain(&op.decode);
        let listed: Vec<Shape> = files.map(|shape| op.complete(shape)).collect::<Result<_, _>>()?;
        let sizes: Vec<&String> = sizes(op).collect();
        let count = sizes.len().max(1) as u64;
        let order = |what: &str, count: usize| Stream::new(self.seed, what).permutation(count);
        let (in_turn, parts) = (order("chosen size", sizes.len()), order("part of its scale", PARTS as usize));
        let mut all = Vec::new();
        // A problem's shape may be the only one.
        let turns = if op.symbols.is_empty() { 0 } else { MIXED };
        for turn in 0..turns {
            let pick = |what: u64, count: usize| stream.below(turn << 20 | 0xfe << 12 | what, count as u64) as usize;
            let chosen = in_turn.get((turn % count) as usize).map(|place| sizes[*place]);
            let others: Vec<&String> = sizes.iter().copied().filter(|size| Some(*size) != chosen).collect();
            let is_held = !others.is_empty() && pick(0, 2) == 0;
            let held = is_held.then(|| others[pick(1, others.len())]);
            let timed = &self.target[pick(2, self.target.len())];
            let part = parts[(turn / count % PARTS) as usize] as u64;
            let drawn = |tries: u64| {
                let pick = |what: u64, count: u64| stream.below(turn << 20 | tries << 12 | what, count);
                self.mixture(&listed, &Mixture { timed, held, chosen, part, tries }, pick)
            };
            let Some(shape) = (0..TRIES).find_map(|tries| self.soon_asked(&drawn(tries))) else { continue };
            let pick = |what: u64, count: u64| stream.below(turn << 20 | 0xff << 12 | what, count);
            let any = self.dtypes[pick(0, self.dtypes.len() as u64) as usize];
            let dtype = if is_held { timed.dtype } else { any };
            let question = match inputs.get(pick(1, 2 * inputs.len().max(1) as u64) as usize) {
                Some(hostile) => {
                    let (shape, setting) =
                        self.manner(&shape, hostile, |what, count| pick(what, count as u64) as usize)?;
                    self.hostile(Topic::AnySizes, &shape, dtype, hostile, setting)?
                }
                None => {
                    let bits = pick(2, 1 << 31);
                    let setting = if Defence::OtherArguments.stands() { op.drawn_setting(bits) } else { 0 };
                    Some(self.plain(Topic::AnySizes, Case { shape, dtype, input: None, setting }))
                }
            };
            let placing = fenced_if(pick(3, 2) == 0);
            // Bounds were measured at listed shapes.
            all.extend(question.map(|question| {
                let leeway = question.leeway.max(FAR_LEEWAY);
                // A result of 16 bits is rounded as elsewhere.
                let sums = if dtype == Dtype::F32 { MIXED_SUMS / leeway } else { question.sums };
                Question { leeway, sums, placing, ..question }
            }));
        }
        Ok(all)
    }

    /// A shape of which each size is drawn for itself; it may be none of the operation. The more draws were none, the smaller it is.
    fn mixture(&self, listed: &[Shape], how: &Mixture<'_>, pick: impl Fn(u64, u64) -> u64) -> Shape {
        let (op, timed) = (self.op, &how.timed.shape);
        let (mut shape, mut before) = (Shape::default(), Vec::new());
        for (symbol, number) in op.symbols.iter().zip(1u64..) {
            let pick = |what: u64, count: u64| pick(number << 4 | what, count);
            let least = op.random.get(symbol).map_or(1, |(low, _)| *low);
            let values = listed.iter().filter_map(|shape| shape.get(symbol));
            let others: Vec<i64> = values.filter(|value| *value >= least || !is_size(op, symbol)).collect();
            let any_listed = |at: u64| others.get(at as usize).copied().unwrap_or(least);
            // Evenly on a scale of factors, and as often like sizes of models: a multiple of eight, or a power of two, once or three times.
            let anywhere = |place: f64, like: u64| {
                let most = self.largest_listed(symbol).max(MIXED_LEAST) as f64;
                let size = (least.max(1) as f64 * (most / least.max(1) as f64).powf(place)) as i64;
                match like {
                    0 => size,
                    1 => (size + 7) / 8 * 8,
                    _ => of_two_bits(size).max(least),
                }
            };
            let fraction = pick(3, 1 << 20) as f64 / f64::from(1 << 20);
            let value = if flags(op).any(|flag| flag == symbol) {
                pick(0, 2) as i64
            } else if !is_size(op, symbol) {
                any_listed(pick(1, others.len().max(1) as u64))
            } else if let Some(size) = timed.get(symbol).filter(|_| how.held == Some(symbol)) {
                size
            } else if how.chosen == Some(symbol) {
                anywhere((how.part as f64 + fraction) / PARTS as f64, pick(2, 3))
            } else {
                match (pick(2, 6), timed.get(symbol)) {
                    (0, Some(size)) => size,
                    (1, _) => any_listed(pick(1, others.len().max(1) as u64)),
                    (2, _) if !before.is_empty() => {
                        let other: i64 = before[pick(4, before.len() as u64) as usize];
                        let times = 1 + pick(5, MULTIPLES) as i64;
                        let is_part = other % times == 0 && pick(6, 2) == 0;
                        (if is_part { other / times } else { other * times }).max(least)
                    }
                    (kind, _) => anywhere(fraction.powf(1.0 + how.tries as f64 / 10.0), kind % 3),
                }
            };
            if sizes(op).any(|size| size == symbol) {
                before.push(value);
            }
            shape = shape.with(symbol, value);
        }
        shape
    }

    /// A shape, complete, where it is one of the operation and small. One whose sizes no number holds is neither.
    fn soon_asked(&self, shape: &Shape) -> Option<Shape> {
        let shape = self.op.complete(shape).ok()?;
        let elements = self.op.all_elements(&shape).ok()? <= self.limits.elements.min(MIXED_ELEMENTS);
        let macs = self.op.macs(&shape).ok()? <= self.limits.macs.min(MIXED_MACS);
        (elements && macs).then_some(shape)
    }

    /// One size at a time far beyond every listed one, at the smallest of the others: the way that no listed size takes.
    pub(super) fn far(&self) -> Result<Vec<Question>, OpError> {
        let (op, limits) = (self.op, self.limits);
        let stream = Stream::new(self.seed, Topic::FarSizes.name());
        let inputs: Vec<&Adversarial> = op.hostile_inputs().collect();
        let mut rounds: Vec<Vec<Question>> = vec![Vec::new(); FAR_EACH as usize];
        for (number, symbol) in sizes(op).enumerate() {
            let listed = self.largest_listed(symbol);
            // Where the others are smallest this one can be largest.
            let elements = |shape: &&Shape| {
                let grown = op.complete(&(*shape).clone().with(symbol, listed as i64));
                grown.and_then(|shape| op.all_elements(&shape)).unwrap_or(u64::MAX)
            };
            let thinnest = op.edges.iter().chain(&op.sweep).min_by_key(elements).unwrap_or(&op.smoke);
            for turn in 0..FAR_EACH {
                let pick = |what: u64, count: u64| stream.below((number as u64) << 16 | turn << 8 | what, count);
                let most = if turn % 2 == 0 { FAR.max(FAR_LEAST / listed as f64) } else { FAR };
                // What is wrong from some size on is wrong at the largest. A little more is another way through a kernel as well: evenly on
                // a scale of factors.
                let part = if turn / 4 % 2 == 0 { 1.0 } else { (1 + pick(0, 32)) as f64 / 32.0 };
                let factor = most.powf(part);
                let mut size = (listed as f64 * factor) as u64 + [0, 1, 7][pick(1, 3) as usize];
                let base = if turn / 2 % 2 == 0 { &op.smoke } else { thinnest };
                let at = |size: u64| op.complete(&base.clone().with(symbol, size as i64));
                let small = |shape: &Shape| -> Result<bool, OpError> {
                    Ok(op.all_elements(shape)? <= limits.elements && op.macs(shape)? <= limits.macs)
                };
                while size > listed && !at(size).is_ok_and(|shape| small(&shape).unwrap_or(false)) {
                    size = (size / 2 + 1).min(size - 1);
                }
                let Ok(shape) = at(size) else { continue };
                if size <= listed {
                    continue;
                }
                // First as it is timed: what is left out for speed is left out there.
                let dtype = match turn {
                    0 | 1 => self.target[pick(5, self.target.len() as u64) as usize].dtype,
                    _ => self.dtypes[pick(2, self.dtypes.len() as u64) as usize],
                };
                // Ordinary at first: of an input that has no number in any result nothing is seen.
                let drawn = pick(3, 2 * inputs.len() as u64) as usize;
                let question = match inputs.get(drawn).filter(|_| turn > 0) {
                    Some(hostile) => {
                        let (shape, setting) =
                            self.manner(&shape, hostile, |what, count| pick(what, count as u64) as usize)?;
                        self.hostile(Topic::FarSizes, &shape, dtype, hostile, setting)?
                    }
                    None => Some(self.plain(Topic::FarSizes, Case { shape, dtype, input: None, setting: 0 })),
                };
                let placing = fenced_if(pick(4, 2) == 0);
                rounds[turn as usize].extend(question.map(|question| {
                    let leeway = question.leeway.max(FAR_LEEWAY);
                    Question { leeway, sums: FAR_SUMS / leeway, placing, ..question }
                }));
            }
        }
        // Each size once, then each again. The largest come first: many kernels are examined for a second or two. In the first round those
        // that are soon answered come before the others, whose tensors have gigabytes: else two of them take all the time that there is.
        let mut rounds = rounds.into_iter();
        let mut all = rounds.next().unwrap_or_default();
        all.sort_by_key(|question| op.all_elements(&question.case.shape).unwrap_or(u64::MAX));
        all.extend(rounds.flat_map(|round| self.shuffled(round, Topic::FarSizes)));
        Ok(all)
    }

    /// The largest value of a symbol in the operation's file and the target.
    fn largest_listed(&self, symbol: &str) -> u64 {
        let op = self.op;
        let files = [&op.smoke].into_iter().chain(&op.sweep).chain(&op.edges).chain(&op.decode);
        let hostile = op.adversarial.iter().map(|hostile| &hostile.shape);
        let shapes = files.chain(hostile).chain(self.target.iter().map(|wanted| &wanted.shape));
        let drawn = op.random.get(symbol).map(|(_, high)| *high);
        shapes.filter_map(|shape| shape.get(symbol)).chain(drawn).max().unwrap_or(1).max(1) as u64
    }
}

/// The largest power of two, or three times one, that is not above a size.
fn of_two_bits(size: i64) -> i64 {
    let power = 1 << size.max(1).ilog2();
    if size >= power * 3 / 2 { power * 3 / 2 } else { power }
}

#[cfg(test)]
mod tests {
    use super::of_two_bits;

    #[test]
    fn a_size_of_two_bits_is_the_largest_below() {
        let found: Vec<i64> = [0, 1, 2, 3, 4, 5, 6, 7, 8, 95, 96, 127, 128, 191, 192, 255, 256].map(of_two_bits).into();
        assert_eq!(found, [1, 1, 2, 3, 4, 4, 6, 6, 8, 64, 96, 96, 128, 128, 192, 192, 256]);
    }
}
