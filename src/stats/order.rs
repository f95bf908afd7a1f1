//! Order statistics.

/// From the median absolute deviation to the standard deviation of a normal sample: `1 / Φ⁻¹(3/4)`.
const MAD_TO_SIGMA: f64 = 1.482_602_218_505_602;

/// The sample in order, or `None` where it is empty or holds a NaN.
pub(super) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|v| v.is_nan()) {
        return None;
    }
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    Some(values)
}

/// The median; the mean of the middle two for an even count. `None` for an empty sample or one with a NaN.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// The quantile at `q` in `0..=1`, interpolated linearly between neighbours (Hyndman and Fan, type 7).
///
/// `None` for an empty sample, one with a NaN, or a `q` outside its range.
#[must_use]
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    if !(0.0..=1.0).contains(&q) {
        return None;
    }
    let sorted = sorted(values)?;
    let place = q * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    // Equal neighbours first: the difference of two infinities is a NaN.
    Some(if low == high { low } else { low + (high - low) * place.fract() })
}

/// Median absolute deviation from the median. `None` as for [`median`].
#[must_use]
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    let distances: Vec<f64> = values.iter().map(|v| (v - centre).abs()).collect();
    median(&distances)
}

/// The standard deviation as the median absolute deviation sees it, so that outliers do not count.
#[must_use]
pub fn spread(values: &[f64]) -> Option<f64> {
    mad(values).map(|mad| mad * MAD_TO_SIGMA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
    }

    #[test]
    fn a_sample_with_nan_has_no_statistics() {
        let poisoned = [1.0, f64::NAN, 3.0];
        assert_eq!(median(&poisoned), None);
        assert_eq!(mad(&poisoned), None);
        assert_eq!(spread(&poisoned), None);
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn infinities_are_ordered_and_do_not_turn_into_nan() {
        assert_eq!(median(&[f64::INFINITY, f64::INFINITY]), Some(f64::INFINITY));
        assert_eq!(median(&[f64::NEG_INFINITY, 1.0, f64::INFINITY]), Some(1.0));
    }

    #[test]
    fn quantiles_interpolate_and_refuse_what_is_outside_their_range() {
        let values = [10.0, 20.0, 30.0, 40.0, 50.0];
        assert_eq!(quantile(&values, 0.0), Some(10.0));
        assert_eq!(quantile(&values, 1.0), Some(50.0));
        assert_eq!(quantile(&values, 0.375), Some(25.0));
        assert_eq!(quantile(&values, 1.5), None);
        assert_eq!(quantile(&values, f64::NAN), None);
    }

    #[test]
    fn the_spread_of_normal_values_is_their_standard_deviation_despite_outliers() {
        let stream = crate::rng::Stream::new(11, "spread");
        let mut values: Vec<f64> = (0..20_001).map(|i| 3.0 + 0.5 * stream.normal(i)).collect();
        values.extend([1e6; 200]);
        let found = spread(&values).unwrap_or(f64::NAN);
        // Sums of four uniforms have a wider middle than a normal law, and outliers shift the quartiles a little.
        assert!((found - 0.5).abs() < 0.03, "{found}");
    }
}
