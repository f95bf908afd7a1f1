//! A launch that is believed only where nothing ran on behind it.
//!
//! A core that the host took away looks the same as a thread of the candidate that ran on, and on a busy host it happens
//! again and again. Nothing of a launch that was followed by such a sight counts, so a candidate that really runs on gains
//! nothing by another try; only one that does it in every try is refused for it.

use std::time::Duration;

use crate::backend::Fault;

use super::Failure;

/// Pauses before the tries after the first, in milliseconds: a host that is busy now may not be a while later.
const PAUSES_MS: [u64; 4] = [0, 50, 250, 1000];

/// What `attempt` gives as soon as nothing ran on behind it; it is told whether it is a repetition, which needs a fresh
/// process.
///
/// # Errors
/// Whatever `attempt` fails with; a fault other than [`Fault::RanOn`] and [`Fault::RanOutside`] at once, those after the last try.
pub(super) fn undisturbed<T>(
    mut attempt: impl FnMut(bool) -> Result<Result<T, Fault>, Failure>,
) -> Result<Result<T, Fault>, Failure> {
    let mut outcome = attempt(false)?;
    for pause in PAUSES_MS {
        if !matches!(outcome, Err(Fault::RanOn { .. } | Fault::RanOutside { .. })) {
            break;
        }
        std::thread::sleep(Duration::from_millis(pause));
        outcome = attempt(true)?;
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran_on() -> Fault {
        Fault::RanOn { time: Duration::from_millis(3) }
    }

    /// How `undisturbed` ends where the first `disturbed` tries were, and how often it tried.
    fn tries(disturbed: usize) -> (bool, usize) {
        let mut tried = 0;
        let outcome = undisturbed(|again| {
            assert_eq!(again, tried > 0);
            tried += 1;
            Ok(if tried <= disturbed { Err(ran_on()) } else { Ok(()) })
        });
        (outcome.is_ok_and(|outcome| outcome.is_ok()), tried)
    }

    #[test]
    fn a_core_that_is_away_several_times_in_a_row_is_no_fault_of_the_candidate() {
        assert_eq!(tries(0), (true, 1));
        assert_eq!(tries(1), (true, 2));
        assert_eq!(tries(4), (true, 5));
    }

    #[test]
    fn what_runs_on_in_every_try_is_refused() {
        assert_eq!(tries(usize::MAX), (false, 5));
    }

    #[test]
    fn any_other_fault_counts_at_once() {
        let mut tried = 0;
        let outcome = undisturbed::<()>(|_| {
            tried += 1;
            Ok(Err(Fault::Timeout { limit: Duration::from_secs(2) }))
        });
        assert!(matches!(outcome, Ok(Err(Fault::Timeout { .. }))));
        assert_eq!(tried, 1);
    }
}
