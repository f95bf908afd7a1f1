//! Whether the endpoint is there, and when it is asked again while it is not: no effects, no clock of its own.

use std::time::Duration;

use super::failure::{Failure, Kind};

/// So many requests in a row that failed for good, and the tuner takes over.
pub const FAILURES_IN_A_ROW: u32 = 3;
/// The first pause until an endpoint that is away is asked again.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);
/// Tries in vain after which nobody waits any more, about 45 minutes; while the tuner has ideas it goes on being asked.
const TRIES_WORTH_WAITING: u32 = 5;

/// Whether the endpoint is there. Times are counted from any fixed moment.
#[derive(Debug, Clone, Default)]
pub struct CircuitBreaker {
    failed_in_a_row: u32,
    /// Whether the last failure was the endpoint's no fault: an answer of no use, or a prompt that fits nowhere.
    of_the_target: bool,
    away: Option<Away>,
}

#[derive(Debug, Clone)]
struct Away {
    again_at: Duration,
    pause: Duration,
    tries: u32,
    trying: bool,
    stays: bool,
}

impl CircuitBreaker {
    /// A request failed for good at `now`. The answer is how long the endpoint is left alone, where it is given up or
    /// was tried in vain just now.
    pub fn failed(&mut self, now: Duration, failure: &Failure) -> Option<Duration> {
        self.failed_in_a_row += 1;
        let asked = failure.retry_after.unwrap_or_default();
        let stays = failure.kind.stays();
        self.of_the_target = failure.kind.was_answered() || failure.kind == Kind::NoPrompt;
        match &mut self.away {
            None if self.failed_in_a_row < FAILURES_IN_A_ROW => None,
            None => {
                let pause = FIRST_PAUSE.max(asked);
                let again_at = now.saturating_add(pause);
                self.away = Some(Away { again_at, pause, tries: 0, trying: false, stays });
                Some(pause)
            }
            // One that was still in flight when the others failed says nothing new.
            Some(away) if !away.trying => None,
            Some(away) => {
                away.tries += 1;
                away.trying = false;
                away.stays = stays;
                away.pause = away.pause.saturating_mul(2).min(LONGEST_PAUSE).max(asked);
                away.again_at = now.saturating_add(away.pause);
                Some(away.pause)
            }
        }
    }

    /// A request was answered with something that can be judged: `true` where the endpoint had been away.
    pub fn answered(&mut self) -> bool {
        self.failed_in_a_row = 0;
        self.away.take().is_some()
    }

    /// Whether the tuner stands in.
    #[must_use]
    pub const fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether an endpoint that is away shall be asked at `now`, by one request; it is taken for asked from then on.
    pub fn try_now(&mut self, now: Duration) -> bool {
        match &mut self.away {
            Some(away) if !away.trying && now >= away.again_at => {
                away.trying = true;
                true
            }
            _ => false,
        }
    }

    /// The target is left, and the request that tried is no more: another one may. A model that had no useful answer
    /// for one kernel may have one for the next.
    pub fn leave(&mut self) {
        if self.of_the_target {
            *self = Self::default();
        } else if let Some(away) = &mut self.away {
            away.trying = false;
        }
    }

    /// When it will be asked again.
    #[must_use]
    pub fn again_at(&self) -> Option<Duration> {
        self.away.as_ref().filter(|away| !away.trying).map(|away| away.again_at)
    }

    /// Whether waiting for it is worth nothing any more, should there be nothing else to do.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.stays || away.tries >= TRIES_WORTH_WAITING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn failure(kind: Kind) -> Failure {
        Failure::new(kind, "")
    }

    fn gone(kind: Kind) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::default();
        for _ in 1..FAILURES_IN_A_ROW {
            assert_eq!(breaker.failed(at(0), &failure(kind.clone())), None);
        }
        assert_eq!(breaker.failed(at(0), &failure(kind)), Some(FIRST_PAUSE));
        breaker
    }

    #[test]
    fn it_is_away_after_some_failures_in_a_row_and_no_earlier() {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..10 {
            for _ in 1..FAILURES_IN_A_ROW {
                breaker.failed(at(0), &failure(Kind::Overloaded));
            }
            assert!(!breaker.answered());
        }
        assert!(gone(Kind::Overloaded).is_away());
    }

    #[test]
    fn pauses_grow_and_one_request_tries_at_a_time() {
        let mut breaker = gone(Kind::Unreachable);
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert!(!breaker.try_now(now), "not before its time");
            now = breaker.again_at().expect("a time");
            assert!(breaker.try_now(now));
            assert!(!breaker.try_now(now), "one at a time");
            pauses.push(breaker.failed(now, &failure(Kind::Unreachable)).expect("tried in vain").as_secs());
        }
        assert_eq!(pauses, [120, 240, 480, 900, 900, 900, 900]);
    }

    #[test]
    fn requests_that_were_in_flight_do_not_stretch_the_pause() {
        let mut breaker = gone(Kind::Overloaded);
        let before = breaker.again_at();
        assert_eq!(breaker.failed(at(5), &failure(Kind::Overloaded)), None);
        assert_eq!(breaker.again_at(), before);
    }

    #[test]
    fn a_try_that_was_abandoned_is_made_again() {
        let mut breaker = gone(Kind::Overloaded);
        let now = breaker.again_at().expect("a time");
        assert!(breaker.try_now(now));
        breaker.leave();
        assert!(breaker.try_now(now));
    }

    #[test]
    fn a_model_without_ideas_for_one_kernel_is_asked_about_the_next() {
        for kind in [Kind::Declined, Kind::NoChange, Kind::NoPrompt] {
            let mut breaker = gone(kind);
            breaker.leave();
            assert!(!breaker.is_away());
        }
    }

    #[test]
    fn it_comes_back() {
        let mut breaker = gone(Kind::Overloaded);
        assert!(breaker.answered());
        assert!(!breaker.is_away());
        assert_eq!(breaker.failed(at(0), &failure(Kind::Overloaded)), None, "counted anew");
    }

    #[test]
    fn waiting_ends_at_once_where_someone_must_act_and_else_after_some_tries() {
        assert!(gone(Kind::Spent).is_hopeless());
        assert!(gone(Kind::Key).is_hopeless());
        assert!(gone(Kind::Declined).is_hopeless());
        let mut breaker = gone(Kind::Unreachable);
        let mut tries = 0;
        while !breaker.is_hopeless() {
            let now = breaker.again_at().expect("a time");
            assert!(breaker.try_now(now));
            breaker.failed(now, &failure(Kind::Unreachable));
            tries += 1;
        }
        assert_eq!(tries, TRIES_WORTH_WAITING);
        assert!(breaker.is_away(), "and it is still asked");
    }

    #[test]
    fn a_server_that_asks_for_an_hour_gets_it() {
        let mut breaker = CircuitBreaker::default();
        let asked = Failure { retry_after: Some(at(3600)), ..failure(Kind::RateLimited) };
        for _ in 0..FAILURES_IN_A_ROW {
            breaker.failed(at(10), &asked);
        }
        assert_eq!(breaker.again_at(), Some(at(3610)));
    }
}
