//! The counter-based generator: the same numbers from the same seed on every backend.
//!
//! A value depends only on `(seed, stream, index)`, so a tensor can be drawn in any order, by any
//! number of threads, in C, Rust or CUDA. Normal-like values are sums of integer uniforms rather
//! than Box-Muller, whose libm differs between machines (Irwin–Hall, n = 4: mean 0, variance 1,
//! |v| <= 3.47).

/// Standard deviation of the sum of four uniform 16-bit integers: `sqrt(4 * (2^32 - 1) / 12)`.
pub const SUM4_SIGMA: f64 = 37_837.227_220_5;

/// Mixes 64 bits: the SplitMix64 finaliser (Steele, Lea, Flood 2014; constants by D. Stafford, mix 13).
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One stream of numbers: a tensor, a permutation, a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream `name` under `seed`. Different names give unrelated streams.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let named = name.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)));
        Self { key: named }
    }

    /// What its numbers are made from: `bits(i)` is `mix(key ^ mix(i))`.
    #[must_use]
    pub const fn key(self) -> u64 {
        self.key
    }

    /// 64 random bits for `index`.
    #[must_use]
    pub const fn bits(self, index: u64) -> u64 {
        mix(self.key ^ mix(index))
    }

    /// Uniform in `[0, 1)` with 24 bits, exact in `f32`.
    #[must_use]
    pub fn uniform(self, index: u64) -> f64 {
        (self.bits(index) >> 40) as f64 / f64::from(1u32 << 24)
    }

    /// Mean 0, variance 1, the sum of four 16-bit uniforms.
    #[must_use]
    pub fn normal(self, index: u64) -> f64 {
        f64::from(self.sum4(index)) / SUM4_SIGMA
    }

    /// [`Self::normal`] before it is divided by [`SUM4_SIGMA`]: an integer within ±131070.
    #[must_use]
    pub const fn sum4(self, index: u64) -> i32 {
        const EVEN: u64 = 0x0000_ffff_0000_ffff;
        let bits = self.bits(index);
        let pairs = (bits & EVEN) + ((bits >> 16) & EVEN);
        (pairs as u32 + (pairs >> 32) as u32) as i32 - 131_070
    }

    /// An integer in `0..bound` (`bound > 0`); the bias is below 2^-32 for the bounds used here.
    #[must_use]
    pub fn below(self, index: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(bound)) >> 64) as u64
    }

    /// A random order of `0..n` (Fisher–Yates).
    #[must_use]
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

/// A seed that nobody can predict, from the operating system.
///
/// # Panics
/// Where the operating system has no random source at all.
#[must_use]
pub fn secret_seed() -> u64 {
    use rand::TryRng;
    rand::rngs::SysRng.try_next_u64().expect("the operating system provides random numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_values_have_mean_zero_and_variance_one() {
        let stream = Stream::new(7, "x");
        let n = 200_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for i in 0..n {
            let v = stream.normal(i);
            sum += v;
            squares += v * v;
        }
        assert!((sum / n as f64).abs() < 0.01);
        assert!((squares / n as f64 - 1.0).abs() < 0.01);
    }

    #[test]
    fn streams_of_other_names_or_seeds_are_unrelated() {
        let (a, b, c) = (Stream::new(1, "a"), Stream::new(1, "b"), Stream::new(2, "a"));
        let agree = |p: Stream, q: Stream| (0..1000).filter(|&i| p.bits(i) == q.bits(i)).count();
        assert_eq!(agree(a, b) + agree(a, c), 0);
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = Stream::new(3, "order").permutation(97);
        order.sort_unstable();
        assert_eq!(order, (0..97).collect::<Vec<_>>());
    }
}
