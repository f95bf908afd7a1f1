//! fast_p and the geometric mean, as the benchmark defines them.

/// The thresholds that the benchmark reports.
pub const THRESHOLDS: [f64; 6] = [0.0, 0.5, 0.8, 1.0, 1.5, 2.0];

/// What became of one problem.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt {
    /// Whether it is right.
    pub right: bool,
    /// Its time and the baseline's, ms; `None` where one is missing, or too short to be told.
    pub times: Option<(f64, f64)>,
}

impl Attempt {
    /// How many times as fast as the baseline, of one that is right.
    #[must_use]
    pub fn speedup(&self) -> Option<f64> {
        let (time, baseline) = self.times.filter(|(time, baseline)| *time > 0.0 && *baseline > 0.0)?;
        self.right.then_some(baseline / time)
    }
}

/// A column of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Problems, those without a sample too.
    pub problems: usize,
    /// Right ones.
    pub right: usize,
    /// Right ones that have a time and a baseline.
    pub timed: usize,
    /// The share of all problems that are right and more than p times as fast, for each of [`THRESHOLDS`].
    pub fast: [f64; THRESHOLDS.len()],
    /// The geometric mean of the speedups of those that are right; `None` without any.
    pub geometric_mean: Option<f64>,
}

impl Score {
    /// Of every problem.
    #[must_use]
    pub fn of(attempts: &[Attempt]) -> Self {
        let speedups: Vec<f64> = attempts.iter().filter_map(Attempt::speedup).collect();
        // Right ones whose ratio nobody knows are not slower than standing still.
        let unknown = attempts.iter().filter(|attempt| attempt.right && attempt.times.is_none()).count();
        let share = |p: f64| {
            let faster = speedups.iter().filter(|speedup| **speedup > p).count();
            (faster + if p > 0.0 { 0 } else { unknown }) as f64 / attempts.len().max(1) as f64
        };
        let logs = speedups.iter().map(|speedup| speedup.ln()).sum::<f64>();
        Self {
            problems: attempts.len(),
            right: attempts.iter().filter(|attempt| attempt.right).count(),
            timed: speedups.len(),
            fast: THRESHOLDS.map(share),
            geometric_mean: (!speedups.is_empty()).then(|| (logs / speedups.len() as f64).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const fn attempt(right: bool, time: f64, baseline: f64) -> Attempt {
        Attempt { right, times: Some((time, baseline)) }
    }

    #[test]
    fn fast_p_counts_what_is_right_and_more_than_p_times_as_fast_among_all_problems() {
        let missing = Attempt { right: false, times: None };
        let attempts = [
            attempt(true, 1.0, 4.0),
            attempt(true, 1.0, 1.0),
            attempt(true, 2.0, 1.0),
            attempt(false, 0.1, 9.0),
            missing,
        ];
        let score = Score::of(&attempts);
        // 4, 1 and 0.5: a ratio that is exactly p is not above it.
        assert_eq!(score.fast, [0.6, 0.4, 0.4, 0.2, 0.2, 0.2]);
        assert_eq!((score.problems, score.right, score.timed), (5, 3, 3));
        assert!((score.geometric_mean.unwrap() - 2f64.powf(1.0 / 3.0)).abs() < 1e-12);
    }

    #[test]
    fn without_anything_right_there_is_no_mean() {
        let score = Score::of(&[attempt(false, 1.0, 2.0)]);
        assert_eq!((score.fast, score.geometric_mean), ([0.0; 6], None));
        assert_eq!(Score::of(&[]).fast, [0.0; 6]);
    }

    #[test]
    fn a_time_that_was_not_measured_makes_nothing_fast() {
        let never = [attempt(true, -1.0, 2.0), attempt(true, 1.0, -1.0), Attempt { right: true, times: None }];
        let score = Score::of(&never);
        assert_eq!((score.right, score.timed), (3, 0));
        // Only the last is unknown; times below zero are the benchmark's way to say that there are none.
        assert_eq!(score.fast, [1.0 / 3.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
