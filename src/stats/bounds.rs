//! Confidence bounds of a median, and the distributions behind them.

use super::order::sorted;

/// Chance of at most `k` heads among `n` fair coins.
#[must_use]
pub fn binomial_at_most(n: usize, k: usize) -> f64 {
    if k >= n {
        return 1.0;
    }
    // In logarithms: 2^-n underflows beyond n = 1074.
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut sum = term.exp();
    for i in 0..k {
        term += ((n - i) as f64 / (i + 1) as f64).ln();
        sum += term.exp();
    }
    sum.min(1.0)
}

/// Chance that a standard normal value exceeds `z` (Abramowitz and Stegun 26.2.17, error below 7.5e-8).
pub(super) fn normal_above(z: f64) -> f64 {
    if z < 0.0 {
        return 1.0 - normal_above(-z);
    }
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let poly =
        t * (0.319_381_530 + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    poly * (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The order statistic that lies below the true median with at least `confidence` (0.975: one-sided 97.5 %).
///
/// `None` where the sample is too small for that confidence (below 6 values at 0.975), is empty or holds a NaN.
#[must_use]
pub fn median_lower(values: &[f64], confidence: f64) -> Option<f64> {
    let sorted = sorted(values)?;
    let n = sorted.len();
    // The k-th smallest (from 0) exceeds the median only if at most k values fall below it.
    (0..n).take_while(|&k| binomial_at_most(n, k) <= 1.0 - confidence).last().map(|k| sorted[k])
}

/// The order statistic that lies above the true median with at least `confidence`; `None` as for [`median_lower`].
#[must_use]
pub fn median_upper(values: &[f64], confidence: f64) -> Option<f64> {
    let mirrored: Vec<f64> = values.iter().map(|v| -v).collect();
    median_lower(&mirrored, confidence).map(|bound| -bound)
}

/// Mean and standard deviation (over `n - 1`); `None` below two values or with one that is not finite.
#[must_use]
pub fn mean_and_sd(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 || values.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((mean, (squares / (n - 1.0)).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn binomial_sums_match_pascals_triangle() {
        assert!((binomial_at_most(4, 1) - 5.0 / 16.0).abs() < 1e-12);
        assert!((binomial_at_most(10, 2) - 56.0 / 1024.0).abs() < 1e-12);
        assert_eq!(binomial_at_most(3, 3), 1.0);
        assert!((binomial_at_most(3001, 1500) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_normal_tail_has_its_known_values() {
        for (z, p) in [(0.0, 0.5), (1.959_964, 0.025), (3.290_527, 0.0005), (-1.644_854, 0.95)] {
            assert!((normal_above(z) - p).abs() < 1e-6, "{z}");
        }
    }

    #[test]
    fn six_values_are_the_fewest_with_a_bound_at_this_confidence() {
        assert_eq!(median_lower(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.975), None);
        assert_eq!(median_lower(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.975), Some(1.0));
        assert_eq!(median_upper(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.975), Some(6.0));
        assert_eq!(median_lower(&[f64::NAN; 20], 0.975), None);
    }

    #[test]
    fn bounds_hold_as_often_as_they_say() {
        let trials = 2000;
        let held = (0..trials)
            .filter(|&trial| {
                let stream = Stream::new(trial, "coverage");
                let values: Vec<f64> = (0..48).map(|i| stream.normal(i).powi(3)).collect();
                median_lower(&values, 0.975).is_some_and(|low| low <= 0.0)
            })
            .count();
        let share = held as f64 / trials as f64;
        assert!((0.97..=0.995).contains(&share), "{share}");
    }

    #[test]
    fn a_standard_deviation_needs_two_finite_values() {
        assert_eq!(mean_and_sd(&[1.0]), None);
        assert_eq!(mean_and_sd(&[1.0, f64::INFINITY]), None);
        assert_eq!(mean_and_sd(&[1.0, 3.0]), Some((2.0, 2f64.sqrt())));
    }
}
