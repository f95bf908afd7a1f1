//! The tuner on made-up kernels, whose best points are known.
#![allow(clippy::unwrap_used)]

mod proposals;
mod searching;

use std::collections::BTreeSet;
use std::task::{Context, Poll, Waker};

use super::space::Values;
use super::*;
use crate::agent::Screened;
use crate::device::samples;
use crate::evaluation::{Speedup, Stage};
use crate::op::{Dtype, OpSource, Shape, TargetShape};
use crate::rng::{Stream, mix};

/// Runs a future that never waits.
fn ready<T>(mut future: BoxFuture<'_, T>) -> T {
    let poll = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(value) = poll else { panic!("nothing here waits") };
    value
}

/// A made-up kernel: tunables, and the logarithm of its time at each point for a shape.
struct World {
    sizes: Vec<usize>,
    seed: u64,
    shapes: Vec<TargetShape>,
    /// Noise of a screen, and of a verdict.
    noise: (f64, f64),
    broken: fn(&Values) -> bool,
    /// Size of interactions and of each point's own quirk.
    rough: (f64, f64),
    /// Depth of a basin where all axes must be right at once.
    basin: f64,
}

impl World {
    fn new(sizes: &[usize], seed: u64) -> Self {
        let shape = TargetShape { shape: Shape::from([("N", 512)]), dtype: Dtype::F32, calls: 4 };
        let noise = 0.01 + 0.01 * Stream::new(seed, "noise").uniform(0);
        Self {
            sizes: sizes.to_vec(),
            seed,
            shapes: vec![shape],
            noise: (noise, 0.004),
            broken: |_| false,
            rough: (0.3, 0.01),
            basin: 0.0,
        }
    }

    fn size(&self) -> usize {
        self.sizes.iter().product()
    }

    fn text(&self, point: &[usize]) -> String {
        let tune: String = self
            .sizes
            .iter()
            .zip(point)
            .enumerate()
            .map(|(axis, (size, index))| {
                let choices: Vec<u32> = (0..*size).map(|choice| 1 << choice).collect();
                format!("T{axis} = {{ value = {}, choices = {choices:?} }}\n", 1 << index)
            })
            .collect();
        format!("/*---\nop = \"x\"\ndtypes = [\"f32\"]\n[tune]\n{tune}---*/\nvoid x(void) {{}}\n")
    }

    /// Each axis has a best choice of its own and a curvature, pairs of axes pull each other, one axis in three is
    /// without order, every point has a quirk of its own, and too much of everything spills.
    fn log_time(&self, values: &Values, shape: usize) -> f64 {
        let world = Stream::new(mix(self.seed ^ mix(shape as u64)), "world");
        let at: Vec<f64> = values
            .values()
            .zip(&self.sizes)
            .map(|(value, size)| f64::from(value.trailing_zeros()) / (size - 1) as f64)
            .collect();
        let axes = at.len();
        let mut log = 0.0;
        for (axis, x) in at.iter().enumerate() {
            let draw = |index: u64| world.uniform(100 * axis as u64 + index);
            log += if draw(0) < 1.0 / 3.0 {
                0.25 * draw(10 + (x * 16.0) as u64)
            } else {
                (0.1 + 0.7 * draw(1)) * (x - draw(2)).powi(2)
            };
        }
        for i in 0..axes {
            for j in i + 1..axes {
                let pull = self.rough.0 * (2.0 * world.uniform(5000 + (i * axes + j) as u64) - 1.0);
                log += pull * (at[i] - 0.5) * (at[j] - 0.5);
            }
        }
        let index = values.values().fold(0u64, |index, value| index * 31 + u64::from(value.trailing_zeros()));
        let off: f64 = at.iter().enumerate().map(|(i, x)| (x - world.uniform(9000 + i as u64)).powi(2)).sum();
        log -= self.basin * (-off / 0.2).exp();
        log += self.rough.1 * world.normal(100_000 + index);
        log + if at.iter().sum::<f64>() > 0.75 * axes as f64 { 0.25 } else { 0.0 }
    }

    fn points(&self) -> Vec<Vec<usize>> {
        (0..self.size())
            .map(|mut number| {
                self.sizes
                    .iter()
                    .map(|size| {
                        let index = number % size;
                        number /= size;
                        index
                    })
                    .collect()
            })
            .collect()
    }

    fn total(&self, text: &str) -> f64 {
        self.times(text).iter().zip(&self.shapes).map(|(t, shape)| t * f64::from(shape.calls)).sum()
    }

    fn times(&self, text: &str) -> Vec<f64> {
        let kernel = KernelFile::parse(text).unwrap();
        self.shapes
            .iter()
            .enumerate()
            .map(|(index, target)| {
                let resolved = kernel.resolve(&target.shape, target.dtype, &BTreeMap::new()).unwrap();
                self.log_time(&resolved.macros, index).exp()
            })
            .collect()
    }

    /// A start from the slowest tenth of the space, and the time of the best point.
    fn detuned(&self) -> (String, f64) {
        let mut all: Vec<(f64, String)> = self
            .points()
            .iter()
            .map(|point| {
                let text = self.text(point);
                (self.total(&text), text)
            })
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let slowest = all.len() - 1 - Stream::new(self.seed, "start").below(0, (all.len() / 10) as u64) as usize;
        (all[slowest].1.clone(), all[0].0)
    }

    fn brief(&self, incumbent: &str, experiment: u64) -> Brief {
        Brief {
            op: "x".into(),
            source: OpSource { name: "x".into(), toml: String::new(), header: String::new(), python: String::new() },
            backend: "cpu".into(),
            file: "kernels/cpu/x.c".into(),
            languages: Vec::new(),
            incumbent: incumbent.to_owned(),
            unwritten: false,
            starter: incumbent.to_owned(),
            shapes: self.shapes.clone(),
            timing: None,
            resources: String::new(),
            vs_user: 1.0,
            against: None,
            share: Some(0.5),
            device: samples::card(),
            margin: 0.01,
            history: Vec::new(),
            seed: self.seed,
            experiment,
        }
    }
}

/// Screens against an incumbent, with noise, and refuses to see a text twice.
struct Bench<'a> {
    world: &'a World,
    incumbent: String,
    screened: BTreeSet<String>,
    draws: u64,
}

impl Bench<'_> {
    fn measure(&mut self, text: &str, noise: f64) -> Vec<f64> {
        let (before, after) = (self.world.times(&self.incumbent), self.world.times(text));
        let stream = Stream::new(self.world.seed, "measurements");
        before
            .iter()
            .zip(after)
            .map(|(before, after)| {
                self.draws += 1;
                before / after * (noise * stream.normal(self.draws)).exp()
            })
            .collect()
    }

    fn speedup(&self, shapes: &[f64]) -> f64 {
        let before = self.world.times(&self.incumbent);
        let weighted = |scale: &dyn Fn(usize) -> f64| -> f64 {
            before.iter().zip(&self.world.shapes).enumerate().map(|(i, (t, s))| t * f64::from(s.calls) / scale(i)).sum()
        };
        weighted(&|_| 1.0) / weighted(&|i| shapes[i])
    }
}

impl Screen for Bench<'_> {
    fn screen<'a>(&'a mut self, texts: Vec<String>) -> BoxFuture<'a, Vec<Option<Screened>>> {
        let results = texts
            .iter()
            .map(|text| {
                assert!(self.screened.insert(text.clone()), "screened twice: {text}");
                if (self.world.broken)(&KernelFile::parse(text).unwrap().values()) {
                    return None;
                }
                let shapes = self.measure(text, self.world.noise.0);
                Some(Screened { speedup: self.speedup(&shapes), shapes })
            })
            .collect();
        Box::pin(async move { results })
    }
}

/// What a run came to.
struct Course {
    /// Time of the incumbent after each experiment, with the settings touched by then.
    steps: Vec<(usize, f64)>,
    end: String,
    keeps: usize,
    incumbent: String,
}

/// Experiments until the tuner has nothing left or `most` were made, restarting from the saved state after each.
fn run(world: &World, start: &str, most: u64) -> Course {
    let mut tuner = Tuner::new();
    let mut bench = Bench { world, incumbent: start.to_owned(), screened: BTreeSet::new(), draws: 0 };
    let mut course =
        Course { steps: vec![(0, world.total(start))], end: String::new(), keeps: 0, incumbent: String::new() };
    let mut proposed = BTreeSet::new();
    for experiment in 1..=most {
        let brief = world.brief(&bench.incumbent.clone(), experiment);
        let text = match ready(tuner.propose(&brief, &mut bench)).unwrap() {
            Offer::Proposal(Proposal { text, .. }) => text,
            Offer::GivenUp { .. } => unreachable!("the tuner mends nothing"),
            Offer::Exhausted { why } => {
                course.end = why;
                break;
            }
        };
        assert!(proposed.insert(text.clone()), "proposed twice");
        let mut shapes = Vec::new();
        let verdict = if (world.broken)(&KernelFile::parse(&text).unwrap().values()) {
            Verdict::Reject { stage: Stage::Sweep, why: "wrong".into() }
        } else {
            shapes = bench.measure(&text, world.noise.1);
            let ratio = bench.speedup(&shapes);
            let speedup = Speedup { ratio, low: ratio - 0.005 };
            if ratio > 1.01 {
                Verdict::Keep { speedup, simpler: false }
            } else {
                Verdict::Revert { speedup, why: String::new() }
            }
        };
        if verdict.advances() {
            bench.incumbent.clone_from(&text);
            course.keeps += 1;
        }
        tuner.learn(&Outcome { experiment, text, verdict, shapes });
        course.steps.push((tuner.touched(), world.total(&bench.incumbent)));
        let mut restarted = Tuner::new();
        restarted.restore(&serde_json::from_str(&tuner.save().to_string()).unwrap()).unwrap();
        assert_eq!(restarted, tuner);
        tuner = restarted;
    }
    course.incumbent = bench.incumbent;
    course
}

/// Share of the gap between start and best that is closed while no more than `most` settings are touched.
fn closed(course: &Course, best: f64, most: usize) -> f64 {
    let start = course.steps[0].1;
    let reached = course.steps.iter().take_while(|(touched, _)| *touched <= most).last().map_or(start, |step| step.1);
    (start - reached) / (start - best)
}

fn bench(world: &World, incumbent: String) -> Bench<'_> {
    Bench { world, incumbent, screened: BTreeSet::new(), draws: 0 }
}

fn ask(tuner: &mut Tuner, brief: &Brief, bench: &mut Bench<'_>) -> Offer {
    ready(tuner.propose(brief, bench)).unwrap()
}
