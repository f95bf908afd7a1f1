//! The keep rule under noise as it was measured (docs/how-timing-decides.md, "How often it errs"), with the production code for orders, blocks and decisions.
//!
//! A machine has a lognormal noise of samples (0.5 to 3 %), outliers with a heavy tail (one sample in fifty, up to
//! several times the time), a drift that both sides share (AR(1), 1 %), and what dominates: a bias of `d` per process
//! (0.2 to 0.6 % sd, twice that in one process of ten), drawn anew for each fresh process. The margin is measured as
//! in production, from a few same-against-same sessions, so its own error is part of the simulation.

use super::decision::{Decision, First, Margin, Outcome};
use super::session::{Block, CONFIRM_BLOCKS, CONFIRM_SESSIONS, Round, SPREAD_SESSIONS, Side, order, rounds_for};
use crate::rng::{Stream, mix};
use crate::stats::signed_rank_test;

/// A sequence of draws from a stream.
struct Draws {
    stream: Stream,
    next: u64,
}

impl Draws {
    fn new(seed: u64, name: &str) -> Self {
        Self { stream: Stream::new(seed, name), next: 0 }
    }

    fn uniform(&mut self) -> f64 {
        self.next += 1;
        self.stream.uniform(self.next)
    }

    fn normal(&mut self) -> f64 {
        self.next += 1;
        self.stream.normal(self.next)
    }
}

#[derive(Clone, Copy)]
struct Machine {
    sample_sd: f64,
    bias_sd: f64,
}

impl Machine {
    /// Any machine whose processes differ by `least..most` (sd of `d`).
    fn draw(seed: u64, least: f64, most: f64) -> Self {
        let mut draws = Draws::new(seed, "machine");
        let sample_sd = 0.005 * 6f64.powf(draws.uniform());
        Self { sample_sd, bias_sd: least + (most - least) * draws.uniform() }
    }

    /// A fresh process that times a candidate with a true `d` of `gain`.
    fn process(self, seed: u64, gain: f64) -> Process {
        let mut draws = Draws::new(seed, "process");
        let scale = if draws.uniform() < 0.1 { 2.0 } else { 1.0 };
        let bias = scale * self.bias_sd * draws.normal();
        Process { machine: self, seed, draws, d: gain + bias, drift: 0.0, rounds: 0 }
    }
}

struct Process {
    machine: Machine,
    seed: u64,
    draws: Draws,
    d: f64,
    drift: f64,
    rounds: u64,
}

impl Process {
    fn sample(&mut self, is_candidate: bool) -> f64 {
        const PHI: f64 = 0.98;
        self.drift = PHI * self.drift + 0.01 * (1.0 - PHI * PHI).sqrt() * self.draws.normal();
        let mut log = self.drift + self.machine.sample_sd * self.draws.normal();
        if self.draws.uniform() < 0.02 {
            // Pareto with exponent 2: rarely a tenth more, sometimes several times the time.
            log += 0.05 / (1.0 - self.draws.uniform()).sqrt();
        }
        100.0 * (if is_candidate { log - self.d } else { log }).exp()
    }

    fn round(&mut self) -> Round {
        let order = order(self.seed, self.rounds);
        self.rounds += 1;
        Round { order, samples_us: vec![order.map(|side| self.sample(side == Side::Candidate))] }
    }

    fn measure(&mut self, blocks: usize, rounds: usize) -> Vec<Block> {
        (0..blocks)
            .map(|_| {
                let rounds: Vec<Round> = (0..rounds).map(|_| self.round()).collect();
                Block::from_rounds(&rounds)
            })
            .collect()
    }
}

/// The harness on a machine: the rule with its measured margin, and the rounds of a block.
struct Bench {
    machine: Machine,
    decision: Decision,
    rounds: usize,
}

impl Bench {
    /// Calibrates as in production: one session settles the rounds, further ones the margin.
    fn calibrate(machine: Machine, seed: u64) -> Self {
        let plain = Decision::new(Margin::default(), &[1]);
        let session = |index: u64, rounds: usize| {
            machine.process(mix(seed ^ mix(100 + index)), 0.0).measure(CONFIRM_BLOCKS, rounds)
        };
        let rounds = rounds_for(plain.scatter(&session(0, 1)));
        let sessions: Vec<Vec<Block>> = (1..=SPREAD_SESSIONS as u64).map(|index| session(index, rounds)).collect();
        Self { machine, decision: Decision::new(Margin::from_sessions(&plain, &sessions), &[1]), rounds }
    }

    /// The first stage in one process, and the number of blocks it took.
    fn first(&self, seed: u64, gain: f64) -> (First, usize) {
        let mut process = self.machine.process(mix(seed), gain);
        let mut seen = Vec::new();
        loop {
            match self.decision.first(&seen) {
                First::More { blocks, fresh } => {
                    if fresh {
                        process = self.machine.process(mix(seed ^ mix(300 + seen.len() as u64)), gain);
                    }
                    seen.extend(process.measure(blocks, self.rounds));
                }
                end => return (end, seen.len()),
            }
        }
    }

    fn second(&self, seed: u64, gain: f64) -> Outcome {
        let sessions: Vec<Vec<Block>> = (0..CONFIRM_SESSIONS as u64)
            .map(|index| self.machine.process(mix(seed ^ mix(200 + index)), gain).measure(CONFIRM_BLOCKS, self.rounds))
            .collect();
        self.decision.confirm(&sessions)
    }
}

/// How `pairs` candidates with a true gain (a ratio less one, or a number of margins) fare.
#[derive(Debug, Default)]
struct Tally {
    pairs: usize,
    confirms: usize,
    blocks: usize,
    keeps: usize,
    /// Keeps whose lower bound lies above the truth.
    overstated: usize,
}

impl Tally {
    fn share(&self, of: usize) -> f64 {
        of as f64 / self.pairs as f64
    }
}

enum Gain {
    Ratio(f64),
    Margins(f64),
}

/// Calibrates `machines` with a bias between the two and lets each judge some pairs.
fn tally(machines: u64, pairs: u64, bias: (f64, f64), gain: &Gain) -> Tally {
    let mut tally = Tally::default();
    for number in 0..machines {
        let seed = mix(number ^ 0x7461_6c6c);
        let bench = Bench::calibrate(Machine::draw(seed, bias.0, bias.1), seed);
        let d = match gain {
            Gain::Ratio(gain) => gain.ln_1p(),
            Gain::Margins(margins) => margins * bench.decision.margin().ratio(),
        };
        for pair in 0..pairs {
            let seed = mix(seed ^ mix(pair));
            let (first, blocks) = bench.first(seed, d);
            tally.pairs += 1;
            tally.blocks += blocks;
            if first == First::Confirm {
                tally.confirms += 1;
                if let Outcome::Keep { speedup, .. } = bench.second(seed, d) {
                    tally.keeps += 1;
                    tally.overstated += usize::from(speedup.low > d.exp());
                }
            }
        }
    }
    tally
}

const QUIET: (f64, f64) = (0.002, 0.002);
const ANY: (f64, f64) = (0.002, 0.006);

#[test]
fn identical_kernels_are_never_kept() {
    // 3 in 30 000 is the 95 % upper bound where none is seen, so: below 1 in 10 000.
    let tally = tally(3000, 10, ANY, &Gain::Ratio(0.0));
    assert_eq!((tally.pairs, tally.keeps), (30_000, 0), "{tally:?}");
    // The first stage alone errs now and then; that is what the second is for. Most pairs end at the first look.
    assert!(tally.share(tally.confirms) < 0.004, "{tally:?}");
    assert!(tally.share(tally.blocks) < 32.0, "{tally:?}");
}

#[test]
fn small_losses_are_never_kept() {
    assert_eq!(tally(200, 5, ANY, &Gain::Ratio(-0.01)).keeps, 0);
}

#[test]
fn gains_are_found_with_the_published_power_where_processes_differ_little() {
    // docs/how-timing-decides.md: 1.5 % found 82 %, 2 % 98 %, 3 % 100 % of the time.
    for (gain, least) in [(0.015, 0.82), (0.02, 0.98), (0.03, 0.999)] {
        let tally = tally(250, 4, QUIET, &Gain::Ratio(gain));
        assert!(tally.share(tally.keeps) >= least, "{gain}: {tally:?}");
    }
}

#[test]
fn on_rough_machines_the_same_power_holds_in_margins() {
    for (margins, least) in [(1.5, 0.82), (2.0, 0.97), (3.0, 0.995)] {
        let tally = tally(250, 4, ANY, &Gain::Margins(margins));
        assert!(tally.share(tally.keeps) >= least, "{margins}: {tally:?}");
    }
}

#[test]
fn the_reported_lower_bound_lies_below_the_truth() {
    let tally = tally(500, 4, ANY, &Gain::Ratio(0.05));
    assert!(tally.keeps > 1900, "{tally:?}");
    // 2.5 % by construction, half a percent for chance.
    assert!(tally.overstated as f64 / tally.keeps as f64 <= 0.03, "{tally:?}");
}

/// Share of identical pairs on any machine that `rule` takes for a gain.
fn naive(rule: impl Fn(&mut Process) -> bool) -> f64 {
    let pairs = 2000;
    let fooled = (0..pairs)
        .filter(|number| {
            let seed = mix(number ^ 0x6e61_6976);
            rule(&mut Machine::draw(seed, ANY.0, ANY.1).process(mix(seed), 0.0))
        })
        .count();
    fooled as f64 / pairs as f64
}

#[test]
fn rules_without_margin_or_fresh_processes_keep_noise() {
    let plain = Decision::new(Margin::default(), &[1]);
    let one_sample = naive(|process| process.sample(false) / process.sample(true) > 1.01);
    assert!(one_sample > 0.2, "{one_sample}");
    let wilcoxon = naive(|process| signed_rank_test(&plain.logs(&process.measure(40, 4)), 0.0) < 0.05);
    assert!(wilcoxon > 0.2, "{wilcoxon}");
    let looking_repeatedly = naive(|process| {
        let blocks = process.measure(80, 4);
        let d = plain.logs(&blocks);
        (1..=8).any(|look| signed_rank_test(&d[..10 * look], 0.0) < 0.05)
    });
    assert!(looking_repeatedly > wilcoxon, "{looking_repeatedly} {wilcoxon}");
}
