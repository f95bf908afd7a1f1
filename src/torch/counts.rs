//! Elements that are counted, of ordinary inputs: what errors in units of a row do not show.

use crate::evaluation::ErrorStats;
use crate::op::Dtype;

/// What of an output is counted, by how often it is so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Elements that are off by half of what they are: small ones beside which nothing of a row's error shows.
    pub lost: u64,
    /// Of 16 bits those that are not the number nearest to what is right.
    pub strayed: u64,
}

/// How many of each there may be; `None` where nobody counts.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Allowed {
    pub lost: Option<f64>,
    pub strayed: Option<f64>,
}

/// The share of half-precision elements that an operation which rounds once may have rounded to another number than the nearest, as the
/// shipped ones (docs/judging.md, "Tolerances"); numbers of fewer bits are further apart.
const STRAYED: f64 = 0.03;

/// PyTorch rounds once where it has no more than this part of that.
const ROUNDS_ONCE: f64 = 1.0 / 3.0;

/// How many times PyTorch's own number of lost elements there may be, and how many beside those.
const LOST: f64 = 8.0;
const LOST_BY_CHANCE: f64 = 8.0;

impl Counts {
    /// The larger of each.
    pub(super) fn worst(self, other: Self) -> Self {
        Self { lost: self.lost.max(other.lost), strayed: self.strayed.max(other.strayed) }
    }

    /// Whether PyTorch, of whose result these are, computes in single precision and rounds its `elements` once.
    pub(super) fn rounds_once(self, dtype: Dtype, elements: usize) -> bool {
        dtype != Dtype::F32 && self.strayed as f64 <= ROUNDS_ONCE * share(dtype) * elements as f64 + 1.0
    }

    /// Puts what there is of each into `stats`.
    pub(super) fn judge(self, allowed: Allowed, stats: &mut ErrorStats) {
        if let Some(most) = allowed.lost {
            (stats.lost, stats.lost_ratio) = (self.lost, self.lost as f64 / most);
        }
        if let Some(most) = allowed.strayed {
            (stats.misrounded, stats.misrounded_ratio) = (self.strayed, self.strayed as f64 / most);
        }
    }
}

impl Allowed {
    /// What an honest kernel may have where PyTorch has `eager`, of `elements` that may together be off by so much as a share of
    /// what they are: terms that cancel leave a few so small that nothing of them is right.
    pub(super) fn lost(eager: Counts, elements: usize, tensor: f64) -> f64 {
        LOST * eager.lost as f64 + LOST_BY_CHANCE + 4.0 * tensor * elements as f64
    }

    /// The same of what is not the nearest number, where PyTorch rounds once; sums of so many terms move more of them.
    pub(super) fn strayed(eager: Counts, dtype: Dtype, elements: usize, terms: usize) -> f64 {
        let sums = (terms as f64).sqrt() * Dtype::F32.roundoff() / dtype.roundoff();
        let expected = (share(dtype) + sums) * elements as f64 + 2.0 * eager.strayed as f64;
        expected + 4.0 * expected.sqrt() + 2.0
    }
}

fn share(dtype: Dtype) -> f64 {
    STRAYED * Dtype::F16.roundoff() / dtype.roundoff()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn judged(counts: Counts, allowed: Allowed) -> Option<String> {
        let mut stats = ErrorStats { elements: 1 << 20, ..ErrorStats::default() };
        counts.judge(allowed, &mut stats);
        assert_eq!(stats.within(1.0), stats.failure().is_none());
        stats.failure()
    }

    #[test]
    fn elements_of_which_nothing_is_left_are_refused_where_pytorch_has_them() {
        let allowed = Allowed { lost: Some(Allowed::lost(Counts::default(), 1 << 20, 1e-5)), strayed: None };
        let lost = |lost| judged(Counts { lost, strayed: 0 }, allowed);
        assert!(lost(1 << 19).unwrap().contains("off by half of what they are"));
        assert_eq!(lost(40), None);
        let eager = Counts { lost: 1 << 17, strayed: 0 };
        assert!(Allowed::lost(eager, 1 << 20, 1e-5) > (1 << 19) as f64, "PyTorch's own tails are lost too");
    }

    #[test]
    fn four_digits_of_sixteen_bits_are_refused_where_pytorch_rounds_once() {
        let elements = 1 << 20;
        let once = Counts { lost: 0, strayed: 1500 };
        assert!(once.rounds_once(Dtype::F16, elements) && !once.rounds_once(Dtype::F32, elements));
        let twice = Counts { lost: 0, strayed: 200_000 };
        assert!(!twice.rounds_once(Dtype::F16, elements) && !twice.rounds_once(Dtype::Bf16, elements));
        let allowed = Allowed { lost: None, strayed: Some(Allowed::strayed(once, Dtype::F16, elements, 2048)) };
        let strayed = |share: f64| judged(Counts { lost: 0, strayed: (share * elements as f64) as u64 }, allowed);
        assert!(strayed(0.07).unwrap().contains("not the nearest number"));
        assert_eq!(strayed(0.02), None);
    }

    #[test]
    fn a_few_elements_may_stray_by_chance() {
        assert!(Allowed::strayed(Counts::default(), Dtype::Bf16, 16, 1) > 2.0);
        assert!(Counts { lost: 0, strayed: 1 }.rounds_once(Dtype::Bf16, 16));
    }
}
