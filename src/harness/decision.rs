//! The keep rule: a pure decision over measured blocks (docs/how-timing-decides.md, "The keep rule").
//!
//! What dominates is a bias per process (address layout, clocks), not the noise of samples: more repetitions do not
//! help, margins and fresh processes do. So the rule has two stages. The first looks after 20, 40 and 80 blocks and asks
//! whether the gain exceeds a margin beyond doubt; the second repeats in fresh processes, each of which must agree, and
//! only its speedup is reported: the first stage's is selected for being high.
//!
//! `d = ln(t_incumbent / t_candidate)` of a block's objective `Σ calls × time`; gains are compared in this logarithm,
//! where 1 % faster and 1 % slower are equally far from nothing.

use serde::{Deserialize, Serialize};

use super::session::{Block, CONFIRM_BLOCKS, CONFIRM_SESSIONS};
use crate::evaluation::{Speedup, Verdict};
use crate::stats::{mean_and_sd, median, median_lower, median_upper, sign_test, signed_rank_test, spread};

/// Blocks after which a clearly slower candidate is sent away.
pub const EARLY_LOOK: usize = 6;

/// Looks of the first stage: blocks, and the level of the one-sided test there.
pub const LOOKS: [(usize, f64); 3] = [(20, 0.0005), (40, 0.0015), (80, 0.003)];

/// The least margin: a gain below 1 % is not worth a commit on any machine.
pub const LEAST_MARGIN: f64 = 0.01;

/// The largest upper bound of a loss with which a simplification is kept.
pub const SIMPLER_LOSS: f64 = 0.003;

/// How far (as a share of time) the branch may be from its best ever for a simplification to be kept.
pub const SIMPLER_SLACK: f64 = 0.01;

/// One-sided confidence of reported bounds, and its normal quantile.
const CONFIDENCE: f64 = 0.975;
const CONFIDENCE_Z: f64 = 1.96;

/// What a gain must exceed on this machine and target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Margin {
    spread: f64,
}

impl Default for Margin {
    /// Nothing known of the machine: the spread at which the least margin is three spreads.
    fn default() -> Self {
        Self { spread: LEAST_MARGIN / 3.0 }
    }
}

impl Margin {
    /// From a known spread (standard deviation) of the median `d` of same-against-same sessions. What is not a number
    /// of 0 or more counts as unknown.
    #[must_use]
    pub fn from_spread(spread: f64) -> Self {
        if spread.is_finite() && spread >= 0.0 { Self { spread } } else { Self::default() }
    }

    /// From same-against-same sessions, each in a fresh process with blocks of the final number of rounds: the root
    /// mean square of their medians about zero, which is known to be the truth, less what the scatter of a session's
    /// blocks explains (at most half: the rest is a process's own bias). Without that the noise of samples, which the
    /// tests account for, would count a second time. Fewer than three sessions, or one without a median, say nothing.
    #[must_use]
    pub fn from_sessions(decision: &Decision, sessions: &[Vec<Block>]) -> Self {
        let squares: Option<Vec<(f64, f64)>> = sessions
            .iter()
            .map(|session| {
                let d = decision.logs(session);
                let (centre, scatter) = (median(&d)?, spread(&d)?);
                // The variance of a normal sample's median is π/2 times its mean's.
                let chance = std::f64::consts::FRAC_PI_2 * scatter.powi(2) / d.len() as f64;
                Some((centre.powi(2), chance))
            })
            .collect();
        match squares {
            Some(squares) if squares.len() >= 3 => {
                let n = squares.len() as f64;
                let seen = squares.iter().map(|(seen, _)| seen).sum::<f64>() / n;
                let chance = squares.iter().map(|(_, chance)| chance).sum::<f64>() / n;
                Self::from_spread((seen - chance).max(seen / 4.0).sqrt())
            }
            _ => Self::default(),
        }
    }

    /// The margin m in `d`: `max(1 %, 3 × spread)`.
    #[must_use]
    pub fn ratio(self) -> f64 {
        LEAST_MARGIN.max(3.0 * self.spread)
    }

    /// Standard deviation of a session's median `d` when nothing differs.
    #[must_use]
    pub const fn spread(self) -> f64 {
        self.spread
    }
}

/// What the branch must look like for a simpler candidate of equal speed to be welcome.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Simplification {
    /// The branch's time over the best it ever had (1 where it is the best): small losses must not add up.
    pub branch_over_best: f64,
}

/// The keep rule for one target.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    margin: Margin,
    calls: Vec<f64>,
    simplification: bool,
}

/// The first stage's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum First {
    /// Go on measuring.
    More {
        /// How many more blocks.
        blocks: usize,
        /// In a fresh process rather than the one the last blocks came from.
        fresh: bool,
    },
    /// It is not a gain.
    GiveUp {
        /// What was seen.
        speedup: Speedup,
        /// Why, in a sentence.
        why: String,
    },
    /// Measure [`CONFIRM_SESSIONS`] fresh processes of [`CONFIRM_BLOCKS`] blocks each.
    Confirm,
}

/// The second stage's answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The branch advances.
    Keep {
        /// The confirmed gain.
        speedup: Speedup,
        /// Kept for being simpler at the same speed.
        simpler: bool,
    },
    /// It does not.
    Revert {
        /// What was seen.
        speedup: Speedup,
        /// Why, in a sentence.
        why: String,
    },
}

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Keep { speedup, simpler } => Self::Keep { speedup, simpler },
            Outcome::Revert { speedup, why } => Self::Revert { speedup, why },
        }
    }
}

impl Decision {
    /// The rule with a margin, for a target whose shapes are called `calls` times in one pass through the model.
    #[must_use]
    pub fn new(margin: Margin, calls: &[u32]) -> Self {
        Self { margin, calls: calls.iter().map(|calls| f64::from(*calls)).collect(), simplification: false }
    }

    /// The same rule for a candidate that is simpler than its incumbent ([`super::simplicity::is_simpler`]): where it
    /// is no gain, it is kept at equal speed, if the branch can afford it.
    #[must_use]
    pub fn for_simpler(mut self, simplification: Simplification) -> Self {
        self.simplification = simplification.branch_over_best <= 1.0 + SIMPLER_SLACK;
        self
    }

    /// The margin in force.
    #[must_use]
    pub const fn margin(&self) -> Margin {
        self.margin
    }

    /// The first stage: what to do after `blocks`, in the order they were measured.
    ///
    /// Looks happen at fixed counts only, whatever the caller's batches: peeking in between would spend the levels
    /// many times over.
    #[must_use]
    pub fn first(&self, blocks: &[Block]) -> First {
        let m = self.margin.ratio();
        let give_up = |d: &[f64], why: String| First::GiveUp { speedup: self.speedup(&[d]), why };
        for look in std::iter::once(EARLY_LOOK).chain(LOOKS.map(|(look, _)| look)) {
            let Some(seen) = blocks.get(..look) else {
                // A look beyond the first takes its blocks from a fresh process, so that one unlucky process does not
                // decide alone. Simulated, this lets a third as many identical pairs through the first stage and finds
                // 6 to 9 % more of the gains of one and a half margins.
                let fresh = LOOKS.iter().any(|(at, _)| *at == blocks.len());
                return First::More { blocks: look - blocks.len(), fresh };
            };
            let d = self.logs(seen);
            let Some(centre) = median(&d) else {
                return give_up(&d, "a measured time is not a positive number".into());
            };
            let Some((_, level)) = LOOKS.iter().find(|(at, _)| *at == look) else {
                let losses: Vec<f64> = d.iter().map(|d| -d).collect();
                // Five of six blocks: the median alone errs too often where single blocks are noisy.
                if centre < -m && sign_test(&losses, 0.0) < 0.11 {
                    return give_up(&d, format!("clearly slower after {look} blocks: {}", percent(centre)));
                }
                continue;
            };
            if let Some(why) = self.regression(seen, true) {
                return give_up(&d, why);
            }
            if signed_rank_test(&d, m) <= *level {
                return First::Confirm;
            }
            let hopeless = if self.simplification { -SIMPLER_LOSS } else { 0.3 * m };
            if centre < hopeless {
                let why = format!("no gain after {look} blocks: {}, margin {}", percent(centre), percent(m));
                return give_up(&d, why);
            }
        }
        let (last, _) = LOOKS[LOOKS.len() - 1];
        let d = self.logs(blocks.get(..last).unwrap_or(blocks));
        if self.simplification && self.low(&[&d]).is_some_and(|low| low > -SIMPLER_LOSS) {
            return First::Confirm;
        }
        let centre = median(&d).unwrap_or(f64::NAN);
        give_up(&d, format!("not beyond doubt after {last} blocks: {}, margin {}", percent(centre), percent(m)))
    }

    /// The second stage: the verdict over fresh processes, each a session of blocks.
    ///
    /// Each session's median must exceed half the margin and the pooled median the margin, and the gain's lower bound must be
    /// a gain: where sessions disagree by more than the margin knows of, it is none. No shape may be slower by more than the
    /// margin. Sessions that are too few or too short keep nothing.
    #[must_use]
    pub fn confirm(&self, sessions: &[Vec<Block>]) -> Outcome {
        let m = self.margin.ratio();
        let logs: Vec<Vec<f64>> = sessions.iter().map(|session| self.logs(session)).collect();
        let logs: Vec<&[f64]> = logs.iter().map(Vec::as_slice).collect();
        let speedup = self.speedup(&logs);
        let revert = |why: String| Outcome::Revert { speedup, why };
        if sessions.len() < CONFIRM_SESSIONS || sessions.iter().any(|session| session.len() < CONFIRM_BLOCKS) {
            return revert(format!("confirmation needs {CONFIRM_SESSIONS} sessions of {CONFIRM_BLOCKS} blocks"));
        }
        let medians: Option<Vec<f64>> = logs.iter().map(|d| median(d)).collect();
        let (Some(medians), Some(pooled)) = (medians, median(&logs.concat())) else {
            return revert("a measured time is not a positive number".into());
        };
        if let Some(why) = self.regression(&sessions.concat(), false) {
            return revert(why);
        }
        let weakest = medians.iter().copied().fold(f64::INFINITY, f64::min);
        let gained = weakest > 0.5 * m && pooled > m;
        if gained && speedup.low > 1.0 {
            return Outcome::Keep { speedup, simpler: false };
        }
        if self.simplification && self.low(&logs).is_some_and(|low| low > -SIMPLER_LOSS) {
            return Outcome::Keep { speedup, simpler: true };
        }
        revert(if gained {
            let strongest = medians.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            format!("not confirmed: fresh processes saw {} to {}", percent(weakest), percent(strongest))
        } else if pooled > m {
            format!(
                "not confirmed: one fresh process saw {}, half the margin is {}",
                percent(weakest),
                percent(m / 2.0)
            )
        } else {
            format!("not confirmed: fresh processes saw {}, margin {}", percent(pooled), percent(m))
        })
    }

    /// `d` of each block; NaN where a time is not a positive number or a shape is missing.
    #[must_use]
    pub fn logs(&self, blocks: &[Block]) -> Vec<f64> {
        blocks
            .iter()
            .map(|block| (self.objective(&block.incumbent_us) / self.objective(&block.candidate_us)).ln())
            .collect()
    }

    /// How much the blocks of one session scatter (robust standard deviation of `d`), for
    /// [`super::session::rounds_for`]; NaN where they have none.
    #[must_use]
    pub fn scatter(&self, session: &[Block]) -> f64 {
        spread(&self.logs(session)).unwrap_or(f64::NAN)
    }

    /// `Σ calls × time` in µs; NaN where a time is not a positive number or a shape is missing.
    #[must_use]
    pub fn objective(&self, times_us: &[f64]) -> f64 {
        if times_us.len() != self.calls.len() || times_us.iter().any(|us| !(us.is_finite() && *us > 0.0)) {
            return f64::NAN;
        }
        times_us.iter().zip(&self.calls).map(|(us, calls)| us * calls).sum()
    }

    /// Each shape's own speedup over the blocks (median of the ratios); NaN where it has none.
    #[must_use]
    pub fn shape_speedups(&self, blocks: &[Block]) -> Vec<f64> {
        (0..self.calls.len()).map(|shape| median(&shape_logs(blocks, shape)).unwrap_or(f64::NAN).exp()).collect()
    }

    /// Each session's median speedup, for the record.
    #[must_use]
    pub fn session_speedups(&self, sessions: &[Vec<Block>]) -> Vec<f64> {
        sessions.iter().map(|session| median(&self.logs(session)).unwrap_or(f64::NAN).exp()).collect()
    }

    /// The first shape that became slower by more than the margin; `proven` asks for its whole confidence interval to
    /// lie there, for use where few blocks are known.
    fn regression(&self, blocks: &[Block], proven: bool) -> Option<String> {
        let m = self.margin.ratio();
        if self.calls.len() < 2 {
            return None;
        }
        (0..self.calls.len()).find_map(|shape| {
            let d = shape_logs(blocks, shape);
            let centre = if proven { median_upper(&d, CONFIDENCE) } else { median(&d) };
            // Written so that a shape without a median counts as slower.
            let fine = centre.is_some_and(|centre| centre >= -m);
            let seen = median(&d).unwrap_or(f64::NAN);
            (!fine).then(|| format!("shape {} of the target is slower: {}", shape + 1, percent(seen)))
        })
    }

    /// Ratio and bound over sessions of `d`; zeros where nothing was measured, since JSON has no NaN.
    fn speedup(&self, sessions: &[&[f64]]) -> Speedup {
        let ratio = median(&sessions.concat()).map_or(0.0, f64::exp);
        Speedup { ratio, low: self.low(sessions).map_or(0.0, f64::exp).min(ratio) }
    }

    /// One-sided 97.5 % lower bound of the true `d`: the pooled median less two independent parts, in quadrature.
    ///
    /// The blocks' own scatter is bounded by an order statistic; the bias of a process by its spread over the root of
    /// the number of processes, where the spread is the larger of what the machine shows when nothing differs and what
    /// these sessions show among themselves.
    fn low(&self, sessions: &[&[f64]]) -> Option<f64> {
        let pooled = sessions.concat();
        let centre = median(&pooled)?;
        let scatter = centre - median_lower(&pooled, CONFIDENCE)?;
        let medians: Vec<f64> = sessions.iter().filter_map(|d| median(d)).collect();
        let seen = mean_and_sd(&medians).map_or(0.0, |(_, sd)| sd);
        let bias = CONFIDENCE_Z * self.margin.spread.max(seen) / (sessions.len() as f64).sqrt();
        Some(centre - scatter.hypot(bias))
    }
}

/// One shape's `ln(incumbent / candidate)` in each block; NaN where a time is missing or not positive.
fn shape_logs(blocks: &[Block], shape: usize) -> Vec<f64> {
    let time = |times: &[f64]| times.get(shape).copied().filter(|us| us.is_finite() && *us > 0.0).unwrap_or(f64::NAN);
    blocks.iter().map(|block| (time(&block.incumbent_us) / time(&block.candidate_us)).ln()).collect()
}

/// `d` for people: `+1.2 %`.
fn percent(d: f64) -> String {
    // Rounded first: what rounds to nothing has no sign.
    format!("{:+.1} %", (d.exp_m1() * 1000.0).round() / 10.0 + 0.0)
}

#[cfg(test)]
mod tests;
