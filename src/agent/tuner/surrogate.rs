//! What the tuner believes about points it has not seen: additive and pairwise effects on the logarithm of time.
//!
//! Ridge regression in its kernel form (a Gaussian process, Rasmussen and Williams 2006, chapter 2), which gives an
//! uncertainty with each prediction. The kernel is `1 + Σ a_i k_i + p Σ_{i<j} √(a_i a_j) k_i k_j`, where `k_i` is a Matérn 3/2 of
//! the distance between two choices' ranks: neighbouring choices act alike, and interactions are paid for. How much
//! each axis matters, how far it reaches and how noisy the times are is taken from the data by marginal likelihood.

/// A mean and its uncertainty, in logarithm of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Expected value.
    pub mean: f64,
    /// Standard deviation of the true value (the noise of a measurement not included).
    pub sd: f64,
}

/// What the likelihood chooses.
#[derive(Debug, Clone, PartialEq)]
struct Kernel {
    /// How much each axis matters.
    relevance: Vec<f64>,
    /// How far an effect reaches, as a share of an axis.
    reach: f64,
    /// Weight of interactions.
    pairs: f64,
    /// Variance of a measurement against that of an effect.
    noise: f64,
}

/// A fitted belief.
#[derive(Debug, Clone)]
pub struct Surrogate {
    kernel: Kernel,
    points: Vec<Vec<f64>>,
    times: Vec<f64>,
    offset: f64,
    amplitude: f64,
    factor: Factor,
    weights: Vec<f64>,
}

/// Beliefs about the size of effects before any data: a standard deviation of 15 %, worth two observations.
const PRIOR_VARIANCE: f64 = 0.15 * 0.15;
const PRIOR_COUNT: f64 = 2.0;

/// A change of the kernel must explain the data better by this much (in logarithm of likelihood): with few points the
/// likelihood is nearly flat, and an axis never moved would be declared irrelevant by chance.
const LEAST_IMPROVEMENT: f64 = 0.3;

impl Surrogate {
    /// Fits points (each axis' rank in `0..=1`) and their logarithms of time. `None` where there are no points.
    #[must_use]
    pub fn fit(points: &[Vec<f64>], times: &[f64]) -> Option<Self> {
        let axes = points.first()?.len();
        let mut kernel = Kernel { relevance: vec![1.0; axes], reach: 0.8, pairs: 0.3, noise: 0.01 };
        let mut best = evidence(&kernel, points, times)?;
        let mut consider = |kernel: &mut Kernel, change: &dyn Fn(&mut Kernel)| {
            let mut other = kernel.clone();
            change(&mut other);
            if other != *kernel
                && let Some(evidence) = evidence(&other, points, times)
                && evidence > best + LEAST_IMPROVEMENT
            {
                best = evidence;
                *kernel = other;
            }
        };
        for _ in 0..2 {
            for axis in 0..axes {
                for relevance in [0.03, 0.3, 1.0, 3.0] {
                    consider(&mut kernel, &|kernel| kernel.relevance[axis] = relevance);
                }
            }
            for reach in [0.4, 0.8, 1.6] {
                consider(&mut kernel, &|kernel| kernel.reach = reach);
            }
            for pairs in [0.05, 0.3, 1.0] {
                consider(&mut kernel, &|kernel| kernel.pairs = pairs);
            }
            for noise in [0.001, 0.01, 0.1] {
                consider(&mut kernel, &|kernel| kernel.noise = noise);
            }
        }
        Self::with(kernel, points.to_vec(), times.to_vec())
    }

    fn with(kernel: Kernel, points: Vec<Vec<f64>>, times: Vec<f64>) -> Option<Self> {
        let offset = times.iter().sum::<f64>() / times.len() as f64;
        let factor = Factor::of(&gram(&kernel, &points))?;
        let centred: Vec<f64> = times.iter().map(|t| t - offset).collect();
        let weights = factor.solve(&centred);
        let amplitude = amplitude(&centred, &weights);
        Some(Self { kernel, points, times, offset, amplitude, factor, weights })
    }

    /// The belief after `point` turned out as it is expected to: what remains uncertain once it is measured.
    #[must_use]
    pub fn supposing(&self, point: &[f64]) -> Self {
        let (mut points, mut times) = (self.points.clone(), self.times.clone());
        points.push(point.to_vec());
        times.push(self.predict(point).mean);
        let mut next = Self::with(self.kernel.clone(), points, times).unwrap_or_else(|| self.clone());
        // A supposed point says nothing new about the size of effects.
        next.amplitude = self.amplitude;
        next
    }

    /// The belief at a point.
    #[must_use]
    pub fn predict(&self, point: &[f64]) -> Prediction {
        let near: Vec<f64> = self.points.iter().map(|known| self.kernel.between(known, point)).collect();
        let mean = self.offset + near.iter().zip(&self.weights).map(|(k, w)| k * w).sum::<f64>();
        let explained: f64 = self.factor.forward(&near).iter().map(|v| v * v).sum();
        let variance = self.amplitude * (self.kernel.between(point, point) - explained).max(0.0);
        Prediction { mean, sd: variance.sqrt() }
    }
}

impl Kernel {
    fn between(&self, a: &[f64], b: &[f64]) -> f64 {
        // Σ_{i<j} u_i u_j = ((Σ u_i)² − Σ u_i²) / 2 spares the double loop.
        let (mut additive, mut sum, mut squares) = (0.0, 0.0, 0.0);
        for ((a, b), relevance) in a.iter().zip(b).zip(&self.relevance) {
            let r = 3f64.sqrt() * (a - b).abs() / self.reach;
            let near = (1.0 + r) * (-r).exp();
            additive += relevance * near;
            let term = relevance.sqrt() * near;
            sum += term;
            squares += term * term;
        }
        1.0 + additive + self.pairs * 0.5 * (sum * sum - squares)
    }
}

fn gram(kernel: &Kernel, points: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut rows: Vec<Vec<f64>> =
        points.iter().enumerate().map(|(i, a)| points[..=i].iter().map(|b| kernel.between(a, b)).collect()).collect();
    for (i, row) in rows.iter_mut().enumerate() {
        row[i] += kernel.noise;
    }
    rows
}

/// The variance of effects that fits best, given the prior.
fn amplitude(centred: &[f64], weights: &[f64]) -> f64 {
    let explained: f64 = centred.iter().zip(weights).map(|(t, w)| t * w).sum();
    (explained + PRIOR_COUNT * PRIOR_VARIANCE) / (centred.len() as f64 + PRIOR_COUNT)
}

/// Logarithm of the marginal likelihood, up to a constant.
fn evidence(kernel: &Kernel, points: &[Vec<f64>], times: &[f64]) -> Option<f64> {
    let belief = Surrogate::with(kernel.clone(), points.to_vec(), times.to_vec())?;
    let n = times.len() as f64;
    Some(-0.5 * (n + PRIOR_COUNT) * belief.amplitude.ln() - belief.factor.half_log_determinant())
}

/// A lower triangular factor (Cholesky), row by row.
#[derive(Debug, Clone)]
struct Factor(Vec<Vec<f64>>);

impl Factor {
    /// `None` where the matrix is not positive definite.
    fn of(lower: &[Vec<f64>]) -> Option<Self> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(lower.len());
        for (i, row) in lower.iter().enumerate() {
            let mut factored: Vec<f64> = Vec::with_capacity(i + 1);
            for (j, value) in row.iter().enumerate() {
                let other = if j == i { &factored[..] } else { &rows[j][..j] };
                let rest = value - factored.iter().zip(other).map(|(a, b)| a * b).sum::<f64>();
                if j == i {
                    // Written so that NaN fails.
                    if !(rest > 0.0 && rest.is_finite()) {
                        return None;
                    }
                    factored.push(rest.sqrt());
                } else {
                    factored.push(rest / rows[j][j]);
                }
            }
            rows.push(factored);
        }
        Some(Self(rows))
    }

    /// Solves `L v = b`.
    fn forward(&self, b: &[f64]) -> Vec<f64> {
        let mut v: Vec<f64> = Vec::with_capacity(b.len());
        for (row, b) in self.0.iter().zip(b) {
            let known: f64 = row.iter().zip(&v).map(|(l, v)| l * v).sum();
            v.push((b - known) / row[v.len()]);
        }
        v
    }

    /// Solves `L Lᵀ x = b`.
    fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = self.forward(b);
        for i in (0..x.len()).rev() {
            x[i] /= self.0[i][i];
            let value = x[i];
            for (j, x) in x[..i].iter_mut().enumerate() {
                *x -= self.0[i][j] * value;
            }
        }
        x
    }

    fn half_log_determinant(&self) -> f64 {
        self.0.iter().enumerate().map(|(i, row)| row[i].ln()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::rng::Stream;

    fn grid(n: usize) -> Vec<Vec<f64>> {
        (0..n * n).map(|i| vec![(i / n) as f64 / (n - 1) as f64, (i % n) as f64 / (n - 1) as f64]).collect()
    }

    #[test]
    fn a_factor_solves_its_system() {
        let lower = vec![vec![4.0], vec![2.0, 5.0], vec![1.0, 3.0, 6.0]];
        let x = Factor::of(&lower).unwrap().solve(&[7.0, 10.0, 10.0]);
        for (x, want) in x.iter().zip([1.0, 1.0, 1.0]) {
            assert!((x - want).abs() < 1e-12);
        }
        assert!(Factor::of(&[vec![1.0], vec![2.0, 1.0]]).is_none());
        assert!(Factor::of(&[vec![f64::NAN]]).is_none());
    }

    #[test]
    fn additive_effects_are_learned_from_few_points() {
        let truth = |p: &[f64]| 0.4 * (p[0] - 0.7).powi(2) + 0.3 * p[1];
        let all = grid(6);
        let seen: Vec<Vec<f64>> = (0..12).map(|i| all[Stream::new(1, "seen").permutation(36)[i]].clone()).collect();
        let times: Vec<f64> = seen.iter().map(|p| truth(p)).collect();
        let belief = Surrogate::fit(&seen, &times).unwrap();
        let worst = all.iter().map(|p| (belief.predict(p).mean - truth(p)).abs()).fold(0.0, f64::max);
        assert!(worst < 0.06, "{worst}");
    }

    #[test]
    fn an_interaction_is_learned() {
        let truth = |p: &[f64]| 0.5 * (p[0] - 0.5) * (p[1] - 0.5);
        let all = grid(5);
        let seen: Vec<Vec<f64>> = all.iter().step_by(2).cloned().collect();
        let times: Vec<f64> = seen.iter().map(|p| truth(p)).collect();
        let belief = Surrogate::fit(&seen, &times).unwrap();
        let corner = belief.predict(&[0.0, 0.25]).mean - belief.predict(&[1.0, 0.25]).mean;
        assert!((corner - 0.125).abs() < 0.05, "{corner}");
    }

    #[test]
    fn what_is_far_from_all_data_is_uncertain_and_what_is_measured_is_not() {
        let seen = vec![vec![0.0, 0.0], vec![0.25, 0.0], vec![0.0, 0.25]];
        let belief = Surrogate::fit(&seen, &[0.0, 0.1, -0.1]).unwrap();
        let (near, far) = (belief.predict(&[0.0, 0.0]), belief.predict(&[1.0, 1.0]));
        assert!(near.sd < 0.3 * far.sd, "{near:?} {far:?}");
        let supposed = belief.supposing(&[1.0, 1.0]).predict(&[1.0, 1.0]);
        assert!(supposed.sd < 0.3 * far.sd && (supposed.mean - far.mean).abs() < 0.02, "{supposed:?} {far:?}");
    }

    #[test]
    fn the_same_point_twice_is_no_obstacle_and_nothing_is_no_belief() {
        let belief = Surrogate::fit(&[vec![0.5], vec![0.5]], &[0.1, 0.3]).unwrap();
        assert!((belief.predict(&[0.5]).mean - 0.2).abs() < 0.02);
        assert!(Surrogate::fit(&[], &[]).is_none());
        assert!(Surrogate::fit(&[vec![]], &[0.0]).is_some());
    }
}
