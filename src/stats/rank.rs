//! One-sided tests of a paired sample's location, exact at the small counts they are used for.

use super::bounds::{binomial_at_most, normal_above};

/// Above this count the signed-rank sum is close enough to normal at every level used here.
const EXACT_UP_TO: usize = 160;

/// p-value of Wilcoxon's signed-rank test of "the differences are centred at `shift` or below" against "above".
///
/// Exact by counting all `2^n` assignments of signs given the ranks (ties share their mean rank) up to 160 values,
/// normal with tie correction and continuity correction beyond. Values equal to `shift` are dropped, as Wilcoxon did.
/// An empty sample, or one with a NaN, proves nothing: 1.
#[must_use]
pub fn signed_rank_test(values: &[f64], shift: f64) -> f64 {
    let mut distances: Vec<f64> = values.iter().map(|v| v - shift).collect();
    if distances.iter().any(|d| d.is_nan()) {
        return 1.0;
    }
    distances.retain(|d| *d != 0.0);
    distances.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
    let n = distances.len();
    if n == 0 {
        return 1.0;
    }
    let ranks = doubled_ranks(&distances);
    let positive: usize = distances.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, rank)| rank).sum();
    if n <= EXACT_UP_TO {
        return sums_at_least(&ranks, positive);
    }
    let total: usize = ranks.iter().sum();
    // Each rank counts with probability one half, so the variance is the sum of squares over four.
    let variance = ranks.iter().map(|rank| (*rank as f64).powi(2)).sum::<f64>() / 4.0;
    let mean = total as f64 / 2.0;
    normal_above((positive as f64 - 1.0 - mean) / variance.sqrt())
}

/// Twice the rank of each value's size, ties sharing their mean: whole numbers, so that sums can be counted.
fn doubled_ranks(by_size: &[f64]) -> Vec<usize> {
    let mut ranks = Vec::with_capacity(by_size.len());
    while ranks.len() < by_size.len() {
        let first = ranks.len();
        let size = by_size[first].abs();
        let ties = by_size[first..].iter().take_while(|d| d.abs() == size).count();
        ranks.extend(std::iter::repeat_n(2 * first + ties + 1, ties));
    }
    ranks
}

/// The chance that ranks taken with probability one half each sum to at least `least`.
fn sums_at_least(ranks: &[usize], least: usize) -> f64 {
    let total: usize = ranks.iter().sum();
    // What is not taken is distributed as what is: of both tails the shorter one is counted.
    match (total - least, least.checked_sub(1)) {
        (rest, Some(below)) if below < rest => 1.0 - sums_at_most(ranks, below),
        (rest, _) => sums_at_most(ranks, rest).min(1.0),
    }
}

/// The chance that they sum to at most `most`.
fn sums_at_most(ranks: &[usize], most: usize) -> f64 {
    // Without ties twice a rank is even, and half as many sums can come about.
    let step = if ranks.iter().all(|rank| rank.is_multiple_of(2)) { 2 } else { 1 };
    let mut chance = vec![0.0; most / step + 1];
    chance[0] = 1.0;
    let mut taken = Vec::with_capacity(chance.len());
    let mut reach = 0;
    for rank in ranks.iter().map(|rank| rank / step) {
        reach = (reach + rank).min(chance.len() - 1);
        let (known, reached) = (chance.len().saturating_sub(rank), &mut chance[..=reach]);
        taken.clear();
        taken.extend_from_slice(&reached[..known.min(reached.len())]);
        reached.iter_mut().for_each(|chance| *chance *= 0.5);
        reached.iter_mut().skip(rank).zip(&taken).for_each(|(chance, taken)| *chance += 0.5 * taken);
    }
    chance.iter().sum()
}

/// p-value of the sign test of "the median is `shift` or below" against "above". Values equal to `shift` are dropped.
///
/// An empty sample, or one with a NaN, proves nothing: 1.
#[must_use]
pub fn sign_test(values: &[f64], shift: f64) -> f64 {
    if values.iter().any(|v| v.is_nan()) || shift.is_nan() {
        return 1.0;
    }
    let above = values.iter().filter(|v| **v > shift).count();
    let below = values.iter().filter(|v| **v < shift).count();
    // By symmetry "at least `above` heads" is "at most `below` tails".
    if above + below == 0 { 1.0 } else { binomial_at_most(above + below, below) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn small_samples_give_the_tabled_probabilities() {
        // All of n values above: 2^-n. One against, the smallest: two assignments at least as extreme.
        assert_eq!(signed_rank_test(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.0), 1.0 / 32.0);
        assert_eq!(signed_rank_test(&[-1.0, 2.0, 3.0, 4.0, 5.0], 0.0), 2.0 / 32.0);
        assert_eq!(signed_rank_test(&[-1.0, -2.0, -3.0], 0.0), 1.0);
        assert_eq!(sign_test(&[1.0, 2.0, 3.0, -9.0], 0.0), 5.0 / 16.0);
        // Wilcoxon's table: n = 20, W- = 60 has one-sided p just under 0.05.
        let values: Vec<f64> = (1..=20)
            .map(|rank| if [19, 18, 17, 6].contains(&rank) { -f64::from(rank) } else { f64::from(rank) })
            .collect();
        let p = signed_rank_test(&values, 0.0);
        assert!((0.045..0.05).contains(&p), "{p}");
    }

    #[test]
    fn ties_share_their_mean_rank() {
        assert_eq!(doubled_ranks(&[1.0, -1.0, 2.0]), [3, 3, 6]);
        // Of the eight assignments of +-1, +-1, +-2 those with W+ >= 4.5 of 6 are +,+,+ and two with one small minus.
        assert_eq!(signed_rank_test(&[1.0, -1.0, 2.0], 0.0), 3.0 / 8.0);
    }

    #[test]
    fn chances_are_those_of_counting_every_assignment() {
        for n in 1..=12 {
            let stream = Stream::new(n, "sizes");
            // Few different sizes tie.
            let different = if n % 2 == 0 { 5 } else { 1 << 40 };
            let mut sizes: Vec<f64> = (0..n).map(|draw| 1.0 + stream.below(draw, different) as f64).collect();
            sizes.sort_unstable_by(f64::total_cmp);
            let ranks = doubled_ranks(&sizes);
            let sums: Vec<usize> = (0..1u32 << n)
                .map(|signs| (0..ranks.len()).filter(|bit| signs >> bit & 1 == 1).map(|bit| ranks[bit]).sum())
                .collect();
            for least in 0..=ranks.iter().sum() {
                let counted = sums.iter().filter(|sum| **sum >= least).count() as f64 / sums.len() as f64;
                let p = sums_at_least(&ranks, least);
                assert!((p - counted).abs() < 1e-12, "{ranks:?} at least {least}: {p} for {counted}");
            }
        }
    }

    #[test]
    fn nan_and_nothing_prove_nothing() {
        assert_eq!(signed_rank_test(&[], 0.0), 1.0);
        assert_eq!(signed_rank_test(&[f64::NAN; 40], 0.0), 1.0);
        assert_eq!(signed_rank_test(&[5.0; 40], f64::NAN), 1.0);
        assert_eq!(signed_rank_test(&[2.0; 40], 2.0), 1.0);
        assert_eq!(sign_test(&[f64::NAN, 1.0], 0.0), 1.0);
        assert_eq!(sign_test(&[], 0.0), 1.0);
    }

    #[test]
    fn the_normal_tail_continues_the_exact_one() {
        let stream = Stream::new(5, "tail");
        let values: Vec<f64> = (0..EXACT_UP_TO as u64).map(|i| 0.15 + stream.normal(i)).collect();
        let exact = signed_rank_test(&values, 0.0);
        let ranks = doubled_ranks(&{
            let mut sorted = values.clone();
            sorted.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
            sorted
        });
        let total: usize = ranks.iter().sum();
        let mut by_size = values;
        by_size.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
        let positive: usize = by_size.iter().zip(&ranks).filter(|(d, _)| **d > 0.0).map(|(_, r)| r).sum();
        let variance = ranks.iter().map(|r| (*r as f64).powi(2)).sum::<f64>() / 4.0;
        let normal = normal_above((positive as f64 - 1.0 - total as f64 / 2.0) / variance.sqrt());
        assert!((exact / normal - 1.0).abs() < 0.05, "{exact} {normal}");
    }

    #[test]
    fn the_level_is_kept_when_nothing_differs() {
        let trials = 4000;
        let rejected = (0..trials)
            .filter(|&trial| {
                let stream = Stream::new(trial, "null");
                let values: Vec<f64> = (0..20).map(|i| stream.normal(i)).collect();
                signed_rank_test(&values, 0.0) < 0.05
            })
            .count();
        let share = rejected as f64 / trials as f64;
        assert!((0.035..0.06).contains(&share), "{share}");
    }
}
