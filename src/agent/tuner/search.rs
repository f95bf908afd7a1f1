//! Where the tuner looks next.

use super::memory::{Idea, Key, Memory, Seen, Touch, key, rounded, rows};
use super::space::{Point, Space, Values, difference};
use super::split::{Cut, cuts};
use super::surrogate::Surrogate;
use crate::agent::Brief;
use crate::kernel::{KernelFile, add_variant, set_tunables};
use crate::rng::Stream;

/// Points whose promise is computed: all of a space up to this size.
const MOST_CANDIDATES: u64 = 3000;

/// Observations the surrogate is fitted to: the best and the latest would do beyond.
const MOST_OBSERVATIONS: usize = 200;

/// Variant rows in a kernel file at most: each is one more compilation and one more thing to understand.
const MOST_ROWS: usize = 4;

/// A variant row must promise this much more than the best move without one, in logarithm of time.
const ROW_PRICE: f64 = 0.005;

/// Points of a space that are all tried, whatever the surrogate says of them: it knows little after so few, and screening takes a second.
const TRIED_IN_FULL: u64 = 48;

/// How much uncertainty counts as promise, for the places of a batch in turn: from "take the best" to "go and see".
const BOLDNESS: [f64; 6] = [0.2, 1.0, 0.5, 2.0, 1.0, 0.2];

/// The technique of a move that gives tunables other values, by its identifier in `program.md`.
pub const TUNE: &str = "tune";
/// The technique of a move that adds a variant row.
pub const VARIANT: &str = "variant";

/// A change of the incumbent.
#[derive(Debug, Clone, PartialEq)]
pub struct Move {
    /// How it came about.
    pub idea: Idea,
    /// Its key.
    pub key: Key,
    /// The kernel file.
    pub text: String,
    /// The point in force on each shape.
    pub points: Vec<Point>,
    /// [`TUNE`] or [`VARIANT`].
    pub technique: &'static str,
    /// What changed.
    pub description: String,
}

/// What is believed of each shape's times; `None` where nothing is known.
pub type Beliefs = Vec<Option<Surrogate>>;

/// One proposal's view of the space.
pub struct Search<'a> {
    brief: &'a Brief,
    kernel: &'a KernelFile,
    space: Space,
    rows: Vec<(String, Values)>,
    /// Which row holds on each shape.
    row_of: Vec<Option<usize>>,
    /// Each shape's share of the objective.
    shares: Vec<f64>,
    cuts: Vec<Cut>,
    stream: Stream,
}

impl<'a> Search<'a> {
    /// Looks at the incumbent.
    pub fn new(brief: &'a Brief, kernel: &'a KernelFile) -> Self {
        let row_of = brief
            .shapes
            .iter()
            .map(|target| {
                let known = |name: &str| match name {
                    "dtype_bytes" => Some(target.dtype.bytes() as i64),
                    _ => target.shape.get(name).or_else(|| brief.device.facts.get(name).copied()),
                };
                kernel.front.variants.iter().position(|row| row.when.holds(&known).unwrap_or(false))
            })
            .collect();
        Self {
            brief,
            kernel,
            space: Space::of(kernel),
            rows: rows(&kernel.front),
            row_of,
            shares: shares(brief),
            cuts: cuts(&brief.shapes),
            stream: Stream::new(brief.seed, &format!("tuner {}", brief.experiment)),
        }
    }

    /// Takes the incumbent into the memory, and its times as the level that speedups refer to.
    pub fn settle(&self, memory: &mut Memory) {
        let key = key(&self.kernel.values(), &self.rows);
        let points: Vec<Point> = (0..self.brief.shapes.len()).map(|shape| self.in_force(shape, None)).collect();
        let known = memory.seen.get(&key).and_then(|seen| seen.times.clone());
        memory.level = known.unwrap_or_else(|| {
            // Another's work on the same code: what is believed of it is the best there is.
            let beliefs = self.beliefs(memory);
            points
                .iter()
                .enumerate()
                .map(|(shape, point)| {
                    let belief = beliefs.get(shape).and_then(Option::as_ref);
                    belief.map_or(0.0, |belief| rounded(belief.predict(&self.space.coordinates(point)).mean))
                })
                .collect()
        });
        let level = memory.level.clone();
        let idea = Idea::Base(self.space.point(&self.kernel.values()));
        let seen = memory.seen.entry(key).or_insert(Seen { idea, points, times: None, touch: Touch::Found });
        seen.times = Some(level);
    }

    /// The next settings to screen, none of which was touched before. Empty where there are none.
    pub fn batch(&self, memory: &mut Memory, beliefs: &Beliefs) -> Vec<Move> {
        let size = self.batch_size();
        if memory.touched() == 0 {
            let mut batch = Vec::new();
            for ideas in self.first_ideas() {
                if batch.len() < size {
                    batch.extend(ideas.iter().find_map(|idea| self.admit(memory, idea, &batch)));
                }
            }
            if !batch.is_empty() {
                return batch;
            }
        }
        let mut beliefs = beliefs.clone();
        let mut ideas = self.unseen(memory, &beliefs);
        let mut batch: Vec<Move> = Vec::new();
        while batch.len() < size && !ideas.is_empty() {
            let boldness = BOLDNESS[batch.len() % BOLDNESS.len()];
            let scored = ideas.iter().map(|idea| self.score(idea, &beliefs, &memory.level, boldness));
            let Some((best, _)) = scored.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            let idea = ideas.swap_remove(best);
            let Some(admitted) = self.admit(memory, &idea, &batch) else { continue };
            for (belief, point) in beliefs.iter_mut().zip(&admitted.points) {
                if let Some(belief) = belief {
                    *belief = belief.supposing(&self.space.coordinates(point));
                }
            }
            batch.push(admitted);
        }
        batch
    }

    /// The screened setting with the best expected gain (in logarithm of time) that was not yet proposed. Expected
    /// rather than measured: the best of several noisy figures is too good to be true.
    pub fn best_screened(&self, memory: &Memory, beliefs: &Beliefs) -> Option<(Key, f64)> {
        memory
            .seen
            .iter()
            .filter(|(_, seen)| seen.touch == Touch::Screened && seen.times.is_some())
            // What was screened under other rows cannot be built from here.
            .filter(|(key, seen)| self.key_of(&seen.idea) == **key)
            .map(|(key, seen)| (key.clone(), -self.expected(&seen.points, beliefs, &memory.level, 0.0)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Why there is nothing left to look for, once that is so.
    pub fn exhausted(&self, memory: &Memory, beliefs: &Beliefs) -> Option<String> {
        let (touched, size) = (memory.touched(), self.space.size());
        let unseen = self.unseen(memory, beliefs);
        if unseen.is_empty() {
            return Some(if touched as u64 + 1 >= size {
                format!("all {size} points of its space were tried")
            } else {
                format!(
                    "after {touched} settings of a space of {size} points no other can be built or would change anything"
                )
            });
        }
        // Enough to trust the surrogate: all of a very small space, a tenth of a small one, a hundred points of a hundred thousand.
        let some = (size / 10).min(40).max((size as f64).powf(0.4) as u64).max(2 * self.space.axes().len() as u64 + 2);
        if size <= TRIED_IN_FULL || (touched as u64) < some {
            return None;
        }
        let promise = unseen
            .iter()
            .map(|idea| -self.score(idea, beliefs, &memory.level, 2.0))
            .max_by(f64::total_cmp)
            .unwrap_or(0.0);
        (promise < self.brief.margin).then(|| {
            format!(
                "after {touched} settings of a space of {size} points no other promises {:.1} %",
                self.brief.margin * 100.0
            )
        })
    }

    /// The move behind a screened setting, from the incumbent as it is now.
    pub fn rebuild(&self, memory: &Memory, wanted: &Key) -> Option<Move> {
        self.write(&memory.seen.get(wanted)?.idea)
    }

    fn batch_size(&self) -> usize {
        match self.space.size() {
            0..150 => 4,
            150..1000 => 5,
            _ => 6,
        }
    }

    /// One axis at a time, by half its length away from the end that is nearer: what each axis is worth. Of each axis all other places, the
    /// nearest to that one first, since not every setting is worth trying.
    fn first_ideas(&self) -> Vec<Vec<Idea>> {
        let here = self.space.point(&self.kernel.values());
        let axes = self.space.axes();
        let mut order = self.stream.permutation(axes.len());
        // Long axes first: there is more to learn from them.
        order.sort_by_key(|axis| std::cmp::Reverse(axes[*axis].choices.len()));
        order
            .into_iter()
            .map(|axis| {
                let (at, count) = (here[axis], axes[axis].choices.len());
                let step = count.div_ceil(2).min(count - 1);
                let there =
                    if 2 * at < count - 1 || at == 0 { (at + step).min(count - 1) } else { at.saturating_sub(step) };
                let mut places: Vec<usize> = (0..count).filter(|place| *place != at).collect();
                places.sort_by_key(|place| place.abs_diff(there));
                let moved = |place: usize| {
                    let mut point = here.clone();
                    point[axis] = place;
                    Idea::Base(point)
                };
                places.into_iter().map(moved).collect()
            })
            .collect()
    }

    /// Every idea that was not touched and changes something.
    fn unseen(&self, memory: &Memory, beliefs: &Beliefs) -> Vec<Idea> {
        let mut centres = vec![self.space.point(&self.kernel.values())];
        centres.extend(self.best_points(memory, 4));
        let points = self.space.candidates(MOST_CANDIDATES, &centres, self.stream);
        let mut ideas: Vec<Idea> = Vec::new();
        if self.brief.shapes.len() > 1 {
            // On the points that are best for one side; a row for each point of the space would drown them.
            let is_row = |cut: &&Cut| self.rows.iter().any(|(when, _)| *when == cut.when);
            for cut in self.cuts.iter().filter(|cut| self.rows.len() < MOST_ROWS || is_row(cut)) {
                let mut best: Vec<(f64, &Point)> = points
                    .iter()
                    .map(|point| {
                        (self.score(&Idea::Row(cut.when.clone(), point.clone()), beliefs, &memory.level, 0.5), point)
                    })
                    .collect();
                best.sort_by(|a, b| a.0.total_cmp(&b.0));
                ideas.extend(best.into_iter().take(4).map(|(_, point)| Idea::Row(cut.when.clone(), point.clone())));
            }
        }
        ideas.extend(points.into_iter().map(Idea::Base));
        let here: Vec<Point> = (0..self.brief.shapes.len()).map(|shape| self.in_force(shape, None)).collect();
        ideas.retain(|idea| !memory.seen.contains_key(&self.key_of(idea)) && self.points_of(idea) != here);
        ideas
    }

    /// The points of the fastest settings seen.
    fn best_points(&self, memory: &Memory, count: usize) -> Vec<Point> {
        let mut best: Vec<(f64, &Seen)> = memory
            .seen
            .values()
            .filter_map(|seen| Some((seen.times.as_ref()?.iter().zip(&self.shares).map(|(t, s)| t * s).sum(), seen)))
            .collect();
        best.sort_by(|a, b| a.0.total_cmp(&b.0));
        best.into_iter().take(count).flat_map(|(_, seen)| seen.points.clone()).collect()
    }

    /// A belief for each shape.
    pub fn beliefs(&self, memory: &Memory) -> Beliefs {
        (0..self.brief.shapes.len())
            .map(|shape| {
                let mut data = memory.data(shape);
                data.sort_by(|a, b| a.1.total_cmp(&b.1));
                data.truncate(MOST_OBSERVATIONS);
                let points: Vec<Vec<f64>> = data.iter().map(|(point, _)| self.space.coordinates(point)).collect();
                let times: Vec<f64> = data.iter().map(|(_, time)| *time).collect();
                Surrogate::fit(&points, &times)
            })
            .collect()
    }

    /// The least objective an idea may turn out to have, as a logarithm against the incumbent's: lower is better.
    fn score(&self, idea: &Idea, beliefs: &Beliefs, level: &[f64], boldness: f64) -> f64 {
        let price = if matches!(idea, Idea::Row(..)) { ROW_PRICE } else { 0.0 };
        self.expected(&self.points_of(idea), beliefs, level, boldness) + price
    }

    /// `ln Σ share × time` against the incumbent's, less `boldness` standard deviations of each time.
    fn expected(&self, points: &[Point], beliefs: &Beliefs, level: &[f64], boldness: f64) -> f64 {
        let sum: f64 = points
            .iter()
            .enumerate()
            .map(|(shape, point)| {
                let change = match beliefs.get(shape) {
                    // A shape that stays as it is stays as fast as it is.
                    Some(Some(belief)) if *point != self.in_force(shape, None) => {
                        let known = belief.predict(&self.space.coordinates(point));
                        known.mean - boldness * known.sd - level.get(shape).copied().unwrap_or(0.0)
                    }
                    _ => 0.0,
                };
                self.shares.get(shape).copied().unwrap_or(0.0) * change.exp()
            })
            .sum();
        sum.ln()
    }

    /// The point in force on a shape, with the tunables' own values replaced.
    fn in_force(&self, shape: usize, base: Option<&Point>) -> Point {
        let mut values = base.map_or_else(|| self.kernel.values(), |base| self.space.values(base));
        if let Some((_, row)) = self.row_of.get(shape).copied().flatten().and_then(|row| self.rows.get(row)) {
            values.extend(row.clone());
        }
        self.space.point(&values)
    }

    fn points_of(&self, idea: &Idea) -> Vec<Point> {
        (0..self.brief.shapes.len())
            .map(|shape| match idea {
                Idea::Base(point) => self.in_force(shape, Some(point)),
                Idea::Row(when, point) if self.holds(when, shape) => point.clone(),
                Idea::Row(..) => self.in_force(shape, None),
            })
            .collect()
    }

    fn holds(&self, when: &str, shape: usize) -> bool {
        self.cuts.iter().any(|cut| cut.when == when && cut.members[shape])
    }

    fn key_of(&self, idea: &Idea) -> Key {
        match idea {
            Idea::Base(point) => key(&self.space.values(point), &self.rows),
            Idea::Row(when, point) => {
                let mut rows = vec![(when.clone(), self.space.values(point))];
                // A row replaces the one with its own condition.
                rows.extend(self.rows.iter().filter(|(other, _)| other != when).cloned());
                key(&self.kernel.values(), &rows)
            }
        }
    }

    /// The move, if it can be built and is worth trying for every shape; otherwise it is remembered as unfit, so that it is not met again.
    fn admit(&self, memory: &mut Memory, idea: &Idea, batch: &[Move]) -> Option<Move> {
        let key = self.key_of(idea);
        if memory.seen.contains_key(&key) || batch.iter().any(|other| other.key == key) {
            return None;
        }
        let written = self.write(idea);
        if written.is_none() {
            let seen = Seen { idea: idea.clone(), points: self.points_of(idea), times: None, touch: Touch::Unfit };
            memory.seen.insert(key, seen);
        }
        written
    }

    fn write(&self, idea: &Idea) -> Option<Move> {
        let (text, technique, description) = match idea {
            Idea::Base(point) => {
                let values = self.space.values(point);
                let text = set_tunables(&self.kernel.text, &values).ok()?;
                (text, TUNE, difference(&self.kernel.values(), &values))
            }
            Idea::Row(when, point) => {
                let values = self.space.values(point);
                let text = add_variant(&self.kernel.text, when, &values).ok()?;
                let shape = (0..self.brief.shapes.len()).find(|shape| self.holds(when, *shape))?;
                let before = self.space.values(&self.in_force(shape, None));
                (text, VARIANT, format!("for {when}: {}", difference(&before, &values)))
            }
        };
        let parsed = KernelFile::parse(&text).ok()?;
        let fits = |target: &crate::op::TargetShape| {
            parsed.is_worth_trying(&target.shape, target.dtype, &self.brief.device.facts)
        };
        self.brief.shapes.iter().all(fits).then(|| Move {
            idea: idea.clone(),
            key: self.key_of(idea),
            text,
            points: self.points_of(idea),
            technique,
            description,
        })
    }
}

/// Each shape's share of the objective: from the incumbent's times where they are known, else from the calls.
fn shares(brief: &Brief) -> Vec<f64> {
    let timed: Option<Vec<f64>> = brief.timing.as_ref().and_then(|timing| {
        brief
            .shapes
            .iter()
            .map(|target| {
                let found = timing.shapes.iter().find(|t| t.shape == target.shape && t.dtype == target.dtype)?;
                let time = f64::from(target.calls) * found.candidate_us;
                (time.is_finite() && time > 0.0).then_some(time)
            })
            .collect()
    });
    let weights = timed.unwrap_or_else(|| brief.shapes.iter().map(|target| f64::from(target.calls.max(1))).collect());
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}
