//! Amdahl's law (1967): what a part can do for the whole.

/// How much faster the whole gets when a part that takes `share` of its time gets `speedup` times as fast:
/// `1 / (1 - s + s / k)`.
///
/// A speedup below 1 counts as 1, since a slower kernel is not installed; infinity asks what would remain without
/// the part.
#[must_use]
pub fn gain(share: f64, speedup: f64) -> f64 {
    gain_of_parts(&[(share, speedup)])
}

/// The same for several parts at once: `1 / (1 - Σ s (1 - 1 / k))`, shares and speedups in pairs.
#[must_use]
pub fn gain_of_parts(parts: &[(f64, f64)]) -> f64 {
    let saved: f64 = parts.iter().map(|(share, speedup)| saving(*share, *speedup)).sum();
    1.0 / (1.0 - saved.min(1.0))
}

/// A gain as tables have it: what is nearly all of the whole has no figure worth reading.
#[must_use]
pub fn in_words(gain: f64) -> String {
    if gain > 99.0 { ">99x".to_owned() } else { format!("{gain:.2}x") }
}

/// The part of the whole's time that is saved; what was not measured (a NaN) saves nothing.
fn saving(share: f64, speedup: f64) -> f64 {
    if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) * (1.0 - 1.0 / speedup.max(1.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: [f64; 9] = [0.0, 1e-9, 0.01, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0];
    const SPEEDUPS: [f64; 9] = [1.0, 1.01, 1.1, 1.5, 2.0, 3.0, 10.0, 1e6, f64::INFINITY];

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
    }

    #[test]
    fn the_textbook_cases_hold() {
        assert!(close(gain(0.5, 2.0), 4.0 / 3.0));
        assert!(close(gain(0.95, f64::INFINITY), 20.0));
        assert!(close(gain(0.3, 1.5), 1.0 / 0.9));
        assert!(close(gain(1.0, 7.0), 7.0));
        assert_eq!(gain(1.0, f64::INFINITY), f64::INFINITY);
    }

    #[test]
    fn nothing_gains_from_no_share_or_no_speedup() {
        for value in SHARES {
            assert_eq!(gain(value, 1.0), 1.0);
        }
        for value in SPEEDUPS {
            assert_eq!(gain(0.0, value), 1.0);
        }
    }

    #[test]
    fn the_gain_grows_with_both_and_never_passes_either_limit() {
        for (i, &share) in SHARES.iter().enumerate() {
            for (j, &speedup) in SPEEDUPS.iter().enumerate() {
                let here = gain(share, speedup);
                assert!(here >= 1.0 && here <= speedup * (1.0 + 1e-12), "{share} {speedup}: {here}");
                assert!(here <= 1.0 / (1.0 - share) * (1.0 + 1e-12), "{share} {speedup}: {here}");
                assert!(i == 0 || here >= gain(SHARES[i - 1], speedup));
                assert!(j == 0 || here >= gain(share, SPEEDUPS[j - 1]));
            }
        }
    }

    #[test]
    fn a_part_split_in_two_gains_the_same() {
        for share in SHARES {
            for speedup in SPEEDUPS.into_iter().filter(|k| k.is_finite()) {
                let halves = gain_of_parts(&[(share / 2.0, speedup), (share / 2.0, speedup)]);
                assert!(close(halves, gain(share, speedup)));
            }
        }
    }

    #[test]
    fn gains_of_parts_taken_one_after_the_other_multiply_on_the_shares_that_remain() {
        for (a, b) in [(0.3, 0.4), (0.01, 0.9), (0.5, 0.5)] {
            for (k, l) in [(1.5, 2.0), (3.0, 1.01)] {
                let first = gain(a, k);
                let second = gain(b * first, l);
                assert!(close(first * second, gain_of_parts(&[(a, k), (b, l)])), "{a} {b} {k} {l}");
            }
        }
    }

    #[test]
    fn a_slower_kernel_and_what_was_not_measured_count_as_no_gain() {
        for speedup in [0.5, 0.0, -1.0, f64::NAN] {
            assert_eq!(gain(0.5, speedup), 1.0);
        }
        assert_eq!(gain(f64::NAN, 2.0), 1.0);
        assert_eq!(gain(-0.1, 2.0), 1.0);
        assert_eq!(gain(1.5, 2.0), 2.0);
        assert_eq!(gain_of_parts(&[]), 1.0);
    }
}
