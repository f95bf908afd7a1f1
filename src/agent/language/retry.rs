//! How long to wait before a request is made again, and when to give up: no effects, no clock.

use std::time::Duration;

use super::failure::Kind;

/// The pause after the first failure, before jitter.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LONGEST: Duration = Duration::from_secs(60);
/// Pauses before a model's reply is asked for again that came, and was of no use.
const ODD_PAUSE: Duration = Duration::from_secs(2);

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step {
    /// Wait so long, then ask again.
    Wait(Duration),
    /// The request has failed for good.
    GiveUp,
}

/// What happened so far.
#[derive(Debug, Clone, Copy)]
pub struct Attempts {
    /// Attempts that failed, this one included; from 1.
    pub failed: u32,
    /// Attempts that failed in this one's way, this one included; from 1.
    pub alike: u32,
    /// Time since the first attempt began.
    pub elapsed: Duration,
    /// What the server asked for.
    pub retry_after: Option<Duration>,
}

/// How often a kind of failure is tried again, whatever the time: a reply that came costs tokens.
const fn most_retries(kind: &Kind) -> u32 {
    match kind {
        Kind::Unreachable | Kind::Silent | Kind::Dropped | Kind::RateLimited | Kind::Overloaded => u32::MAX,
        Kind::Empty | Kind::Odd => 2,
        Kind::Refused | Kind::Filtered => 1,
        Kind::Spent
        | Kind::Key
        | Kind::NoModel
        | Kind::NoPlace
        | Kind::Parameter(_)
        | Kind::TooLong(_)
        | Kind::BadRequest
        | Kind::CutShort
        | Kind::NoChange
        | Kind::Declined
        | Kind::NoPrompt => 0,
    }
}

/// The next step. `jitter` is uniform in `[0, 1)`: requests that failed together do not come back together.
///
/// Pauses double from [`FIRST`] to [`LONGEST`] and are shortened by up to a half. A server's `Retry-After` is never
/// undercut, and stretched by up to a tenth; where it does not fit into `patience`, the request is given up at once, so
/// that something else can be done meanwhile.
#[must_use]
pub fn next(kind: &Kind, attempts: Attempts, patience: Duration, jitter: f64) -> Step {
    if attempts.alike > most_retries(kind) {
        return Step::GiveUp;
    }
    let jitter = jitter.clamp(0.0, 1.0);
    let pause = match (attempts.retry_after, kind) {
        (Some(asked), _) => asked.mul_f64(1.0 + 0.1 * jitter),
        (None, Kind::Empty | Kind::Odd | Kind::Refused | Kind::Filtered) => ODD_PAUSE.mul_f64(1.0 - 0.5 * jitter),
        (None, _) => {
            let doublings = attempts.failed.saturating_sub(1).min(16);
            FIRST.saturating_mul(1 << doublings).min(LONGEST).mul_f64(1.0 - 0.5 * jitter)
        }
    };
    if attempts.elapsed.saturating_add(pause) > patience { Step::GiveUp } else { Step::Wait(pause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(180);

    fn after(failed: u32, elapsed_s: u64, retry_after_s: Option<u64>) -> Attempts {
        let elapsed = Duration::from_secs(elapsed_s);
        Attempts { failed, alike: failed, elapsed, retry_after: retry_after_s.map(Duration::from_secs) }
    }

    fn all_kinds() -> Vec<Kind> {
        vec![
            Kind::Unreachable,
            Kind::Silent,
            Kind::Dropped,
            Kind::RateLimited,
            Kind::Overloaded,
            Kind::Empty,
            Kind::Odd,
            Kind::Refused,
            Kind::Filtered,
            Kind::Spent,
            Kind::Key,
            Kind::NoModel,
            Kind::NoPlace,
            Kind::Parameter("stream_options".into()),
            Kind::TooLong(Some(8192)),
            Kind::BadRequest,
            Kind::CutShort,
            Kind::NoChange,
            Kind::Declined,
            Kind::NoPrompt,
        ]
    }

    /// Plays a request that always fails in one way; pauses taken, in seconds.
    fn pauses(kind: &Kind, jitter: f64) -> Vec<f64> {
        let mut taken = Vec::new();
        let mut elapsed = Duration::ZERO;
        for failed in 1..10_000 {
            let attempts = Attempts { failed, alike: failed, elapsed, retry_after: None };
            match next(kind, attempts, PATIENCE, jitter) {
                Step::GiveUp => return taken,
                Step::Wait(pause) => {
                    taken.push(pause.as_secs_f64());
                    elapsed += pause;
                }
            }
        }
        panic!("{kind:?} is retried for ever");
    }

    #[test]
    fn every_kind_ends_within_its_patience() {
        for kind in all_kinds() {
            for jitter in [0.0, 0.3, 0.999] {
                assert!(pauses(&kind, jitter).iter().sum::<f64>() <= PATIENCE.as_secs_f64(), "{kind:?}");
            }
        }
    }

    #[test]
    fn what_passes_is_retried_for_minutes_with_growing_pauses() {
        for kind in [Kind::Unreachable, Kind::Silent, Kind::Dropped, Kind::RateLimited, Kind::Overloaded] {
            let taken = pauses(&kind, 0.0);
            assert_eq!(taken, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0], "{kind:?}");
            assert!(pauses(&kind, 0.9).iter().sum::<f64>() > 60.0, "{kind:?}");
        }
    }

    #[test]
    fn what_stays_is_not_retried() {
        for kind in [Kind::Spent, Kind::Key, Kind::NoModel, Kind::NoPlace, Kind::BadRequest] {
            for retry_after in [None, Some(1)] {
                assert_eq!(next(&kind, after(1, 0, retry_after), PATIENCE, 0.0), Step::GiveUp, "{kind:?}");
            }
        }
    }

    #[test]
    fn a_reply_of_no_use_is_asked_for_again_a_few_times() {
        assert_eq!(pauses(&Kind::Empty, 0.0).len(), 2);
        assert_eq!(pauses(&Kind::Odd, 0.0).len(), 2);
        assert_eq!(pauses(&Kind::Refused, 0.0).len(), 1);
        let mixed = Attempts { failed: 9, alike: 1, elapsed: Duration::ZERO, retry_after: None };
        assert!(matches!(next(&Kind::Empty, mixed, PATIENCE, 0.0), Step::Wait(_)), "others do not count");
    }

    #[test]
    fn retry_after_is_never_undercut() {
        for jitter in [0.0, 0.5, 0.999] {
            let Step::Wait(pause) = next(&Kind::RateLimited, after(1, 0, Some(20)), PATIENCE, jitter) else {
                panic!("20 s fit into 180 s")
            };
            assert!((20.0..=22.0).contains(&pause.as_secs_f64()), "{pause:?}");
        }
        assert_eq!(next(&Kind::RateLimited, after(1, 0, Some(0)), PATIENCE, 0.5), Step::Wait(Duration::ZERO));
    }

    #[test]
    fn a_retry_after_beyond_patience_gives_up_at_once() {
        assert_eq!(next(&Kind::RateLimited, after(1, 0, Some(181)), PATIENCE, 0.0), Step::GiveUp);
        assert_eq!(next(&Kind::RateLimited, after(1, 170, Some(20)), PATIENCE, 0.0), Step::GiveUp);
        assert_eq!(next(&Kind::Overloaded, after(1, 0, Some(u64::MAX / 4)), PATIENCE, 1.0), Step::GiveUp);
    }

    #[test]
    fn jitter_only_shortens_and_by_half_at_the_most() {
        for failed in 1..=8 {
            let full = next(&Kind::Overloaded, after(failed, 0, None), PATIENCE, 0.0);
            let short = next(&Kind::Overloaded, after(failed, 0, None), PATIENCE, 0.999);
            let (Step::Wait(full), Step::Wait(short)) = (full, short) else { panic!("there is time") };
            assert!(short < full && short.as_secs_f64() >= 0.5 * full.as_secs_f64());
        }
    }
}
