//! How far a target got with each experiment: speedups over its starting point.

use super::data::{Outcome, Try, sound};

/// An experiment on the way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step<'a> {
    /// The experiment.
    pub(super) tried: &'a Try,
    /// Its speedup over the starting point, where it was timed.
    pub(super) over_start: Option<f64>,
    /// The best there was after it.
    pub(super) best: f64,
}

/// The steps of a target.
///
/// What is kept has its speedup over the start from `vs_user` (paired with what the user has, as the start's was);
/// where that is missing, and for what was reverted, the measured gain is put on what stood before. A withdrawal goes back to the
/// speedup of the kernel that stands again.
pub(super) fn trail(tries: &[Try]) -> Vec<Step<'_>> {
    let at_start = tries.iter().find(|tried| tried.outcome == Outcome::Base).and_then(|tried| tried.vs_user);
    let mut best = 1.0;
    let mut steps = Vec::with_capacity(tries.len());
    for tried in tries {
        let gained = tried.speedup.and_then(|(ratio, _)| sound(best * ratio));
        let over_start = match tried.outcome {
            Outcome::Base => Some(1.0),
            Outcome::Keep | Outcome::Withdrawn => {
                let against_user = tried.vs_user.zip(at_start).and_then(|(now, start)| sound(now / start));
                against_user.or(gained).or(Some(best))
            }
            Outcome::Revert => gained,
            Outcome::Reject | Outcome::Crash | Outcome::Timeout | Outcome::Error => None,
        };
        if let (Outcome::Keep | Outcome::Withdrawn, Some(now)) = (tried.outcome, over_start) {
            best = now;
        }
        steps.push(Step { tried, over_start, best });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::tried;

    #[test]
    fn kept_ones_move_the_best_and_others_are_measured_from_it() {
        let tries = [
            Try { vs_user: Some(0.5), ..tried(1, Outcome::Base) },
            Try { speedup: Some((1.5, 1.4)), vs_user: Some(0.8), ..tried(2, Outcome::Keep) },
            Try { speedup: Some((0.5, 0.4)), ..tried(3, Outcome::Revert) },
            tried(4, Outcome::Crash),
            Try { speedup: Some((1.25, 1.2)), vs_user: None, ..tried(5, Outcome::Keep) },
        ];
        let steps: Vec<_> = trail(&tries).iter().map(|step| (step.over_start, step.best)).collect();
        assert_eq!(steps, [(Some(1.0), 1.0), (Some(1.6), 1.6), (Some(0.8), 1.6), (None, 1.6), (Some(2.0), 2.0)]);
    }

    #[test]
    fn what_is_no_number_moves_nothing() {
        for ratio in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            let tries = [
                Try { vs_user: Some(ratio), ..tried(1, Outcome::Base) },
                Try { speedup: Some((ratio, ratio)), vs_user: Some(ratio), ..tried(2, Outcome::Keep) },
                Try { speedup: Some((ratio, ratio)), ..tried(3, Outcome::Revert) },
            ];
            let steps: Vec<_> = trail(&tries).iter().map(|step| (step.over_start, step.best)).collect();
            assert_eq!(steps[1..], [(Some(1.0), 1.0), (None, 1.0)], "{ratio}");
        }
        assert!(trail(&[]).is_empty());
    }
}
