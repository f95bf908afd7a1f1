//! What a timing session is made of: blocks, and the order of the two sides within one.
//!
//! A block is one or more rounds. A round times both sides twice on every shape, as incumbent, candidate, candidate,
//! incumbent (or the other way round, at random): what drifts in a straight line cancels within the round, and what
//! repeats with a fixed period cannot favour a side. How many rounds a block has is settled before any candidate is
//! seen, from the incumbent timed against itself. Nothing here measures; the decision is fed with [`Block`]s, however
//! they came about.

use serde::{Deserialize, Serialize};

use crate::rng::Stream;

/// Fresh processes that must confirm a gain.
pub const CONFIRM_SESSIONS: usize = 3;

/// Blocks in each of them.
pub const CONFIRM_BLOCKS: usize = 16;

/// Same-against-same sessions, each of [`CONFIRM_BLOCKS`] blocks in a fresh process, from which the machine's
/// spread is taken.
pub const SPREAD_SESSIONS: usize = 8;

/// The same where nothing is decided by them: enough for a kernel's times and a rough spread.
pub const LOOK_SESSIONS: usize = 3;

/// How many of [`SPREAD_SESSIONS`] run in processes elsewhere, where hosts are no processes (GPUs): starting one takes half a second, and the
/// others have freshly loaded code.
pub const SPREAD_AWAY: usize = 3;

/// The scatter (standard deviation of `d`) that a block should have at most: with more, eighty blocks cannot tell a
/// gain of one and a half margins from one of a single margin (see the simulation beside the decision).
pub const BLOCK_SCATTER: f64 = 0.006;

/// The most rounds in a block.
pub const MOST_ROUNDS: usize = 16;

/// Which kernel a sample is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The best so far.
    Incumbent,
    /// The one on trial.
    Candidate,
}

/// Both sides' times of one block, µs a call, for each shape of the target in its order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The incumbent's: the mean of its samples.
    pub incumbent_us: Vec<f64>,
    /// The candidate's: the same.
    pub candidate_us: Vec<f64>,
}

/// The blocks of one session in fresh processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// The blocks.
    pub blocks: Vec<Block>,
    /// How long it took from starting both kernels to the last block, in seconds.
    pub took_s: f64,
    /// CPU time a sample that the candidate took beside the time that was taken, more than the incumbent did and than is
    /// allowed, in µs; nothing where hosts have no account.
    #[serde(default)]
    pub hidden_us: f64,
    /// Samples of the candidate and of the incumbent that did not count, because a thread ran on behind them.
    #[serde(default)]
    pub taken_again: [u32; 2],
}

/// Whether so many more of the candidate's samples (the first number) than of the incumbent's did not count that chance does not
/// explain it: of 13 that fall to either side alike, 12 or more fall to a given one once in 600 times, and where a host is so busy that
/// there are as many, both sides meet it.
#[must_use]
pub const fn throws_samples_away([candidate, incumbent]: [u32; 2]) -> bool {
    candidate >= 12 && candidate > 5 * (incumbent + 1)
}

/// The order of the four samples in round number `round` (counted over the whole session, whatever its blocks) of the
/// session with `seed`: ABBA or BAAB, at random.
#[must_use]
pub fn order(seed: u64, round: u64) -> [Side; 4] {
    use Side::{Candidate, Incumbent};
    if Stream::new(seed, "order of a round").bits(round) >> 63 == 0 {
        [Incumbent, Candidate, Candidate, Incumbent]
    } else {
        [Candidate, Incumbent, Incumbent, Candidate]
    }
}

/// One round's samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Which side each of the four samples is of.
    pub order: [Side; 4],
    /// Each shape's four samples in that order, µs a call.
    pub samples_us: Vec<[f64; 4]>,
}

impl Block {
    /// The block of these rounds, which all have the same number of shapes.
    ///
    /// Means rather than medians: a kernel that is slow in one call of four is slow. A sample that is not finite, or
    /// a shape that a round lacks, makes its time NaN, which the decision refuses.
    #[must_use]
    pub fn from_rounds(rounds: &[Round]) -> Self {
        let shapes = rounds.iter().map(|round| round.samples_us.len()).max().unwrap_or(0);
        let mean_of = |side: Side, shape: usize| {
            let (mut sum, mut count) = (0.0, 0.0);
            for round in rounds {
                let samples = round.samples_us.get(shape).unwrap_or(&[f64::NAN; 4]);
                for (us, _) in samples.iter().zip(round.order).filter(|(_, of)| *of == side) {
                    sum += us;
                    count += 1.0;
                }
            }
            sum / count
        };
        let times = |side| (0..shapes).map(|shape| mean_of(side, shape)).collect();
        Self { incumbent_us: times(Side::Incumbent), candidate_us: times(Side::Candidate) }
    }
}

/// Rounds a block needs so that its scatter is [`BLOCK_SCATTER`] or less, where blocks of one round scatter by
/// `scatter` (standard deviation of `d`). Between 1 and [`MOST_ROUNDS`]; the most where the scatter is not known.
#[must_use]
pub fn rounds_for(scatter: f64) -> usize {
    let wanted = (scatter / BLOCK_SCATTER).powi(2).ceil();
    // The cast saturates, and would turn NaN into the fewest.
    if wanted.is_nan() { MOST_ROUNDS } else { (wanted as usize).clamp(1, MOST_ROUNDS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_holds_each_side_twice_and_cancels_a_straight_drift() {
        for round in 0..200 {
            let order = order(3, round);
            let places = |side| order.iter().enumerate().filter(|(_, s)| **s == side).map(|(i, _)| i).sum::<usize>();
            assert_eq!(places(Side::Incumbent), places(Side::Candidate));
        }
    }

    #[test]
    fn both_orders_come_about_equally_often_and_from_the_seed_alone() {
        let first = |seed| (0..2000).filter(|&b| order(seed, b)[0] == Side::Incumbent).count();
        assert!((900..1100).contains(&first(1)));
        assert_eq!(first(1), first(1));
        assert!((0..64).any(|b| order(1, b) != order(2, b)));
    }

    #[test]
    fn samples_go_to_their_sides() {
        use Side::{Candidate, Incumbent};
        let rounds = [
            Round {
                order: [Candidate, Incumbent, Incumbent, Candidate],
                samples_us: vec![[10.0, 1.0, 3.0, 20.0], [5.0, 7.0, 7.0, 5.0]],
            },
            Round {
                order: [Incumbent, Candidate, Candidate, Incumbent],
                samples_us: vec![[3.0, 11.0, 19.0, 1.0], [9.0, 5.0, 5.0, 9.0]],
            },
        ];
        let block = Block::from_rounds(&rounds[..1]);
        assert_eq!((block.incumbent_us, block.candidate_us), (vec![2.0, 7.0], vec![15.0, 5.0]));
        let block = Block::from_rounds(&rounds);
        assert_eq!(block.incumbent_us, [2.0, 8.0]);
        assert_eq!(block.candidate_us, [15.0, 5.0]);
    }

    #[test]
    fn a_sample_that_is_missing_or_not_a_number_is_not_averaged_away() {
        let good = Round { order: order(1, 0), samples_us: vec![[1.0; 4], [1.0; 4]] };
        let short = Round { order: order(1, 1), samples_us: vec![[1.0; 4]] };
        let block = Block::from_rounds(&[good.clone(), short]);
        assert!(block.incumbent_us[1].is_nan() && block.candidate_us[1].is_nan());
        let mut poisoned = good.clone();
        poisoned.samples_us[0][1] = f64::NAN;
        let block = Block::from_rounds(&[good, poisoned]);
        assert!(block.incumbent_us[0].is_nan() || block.candidate_us[0].is_nan());
        assert!(Block::from_rounds(&[]).incumbent_us.is_empty());
    }

    #[test]
    fn samples_thrown_away_on_both_sides_say_nothing_and_on_one_side_alone_much() {
        for fine in [[0, 0], [11, 0], [12, 2], [3, 12], [40, 30]] {
            assert!(!throws_samples_away(fine), "{fine:?}");
        }
        for not in [[12, 0], [12, 1], [40, 6]] {
            assert!(throws_samples_away(not), "{not:?}");
        }
    }

    #[test]
    fn noisier_incumbents_get_more_rounds_within_limits() {
        let rounds: Vec<usize> =
            [0.0, 0.001, 0.006, 0.0061, 0.012, 0.5, f64::INFINITY, f64::NAN].map(rounds_for).into();
        assert_eq!(rounds, [1, 1, 1, 2, 4, 16, 16, 16]);
    }
}
