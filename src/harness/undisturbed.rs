//! A launch that is believed only where nothing ran on behind it.
//!
//! A core that the host took away can look the same as a thread of the candidate that ran on, and on a busy host it happens
//! again and again. Nothing of a launch that was followed by such a sight counts, so a candidate that really runs on gains
//! nothing by another try; only one that does it in every try is refused for it.

use std::time::Duration;

use crate::backend::Fault;

use super::Failure;

/// Tries that must all say the same, the first one and those in which the host took nothing: then it is the candidate's doing.
const TRIES: usize = 5;
/// Tries at the most. On a host that takes cores away all the time an honest launch gets through long before.
const TRIES_ON_A_BUSY_HOST: usize = 30;
/// Pauses before the tries after the first, the last one for all further ones: a host that is busy now may not be a while
/// later.
const PAUSES: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(50), Duration::from_millis(250), Duration::from_millis(1000)];
/// After it, time that was taken stands in the system's account: two ticks at the slowest usual rate.
const ACCOUNTED: Duration = Duration::from_millis(20);

/// The machine's host, as far as it can be seen from here.
trait Surroundings {
    fn pause(&mut self, time: Duration);
    /// What the host has taken of the machine's cores since it started, in any unit.
    fn stolen(&mut self) -> u64;
}

struct ThisMachine;

impl Surroundings for ThisMachine {
    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    /// The field `steal` of proc_stat(5); zero where the system does not tell.
    fn stolen(&mut self) -> u64 {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        text.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
    }
}

/// What `attempt` gives as soon as nothing ran on behind it; it is told whether it is a repetition, which needs a fresh
/// process.
///
/// # Errors
/// Whatever `attempt` fails with; a fault other than [`Fault::RanOn`] and [`Fault::RanOutside`] at once, those after the last try.
pub(super) fn undisturbed<T>(
    attempt: impl FnMut(bool) -> Result<Result<T, Fault>, Failure>,
) -> Result<Result<T, Fault>, Failure> {
    undisturbed_on(&mut ThisMachine, attempt)
}

fn undisturbed_on<T>(
    machine: &mut impl Surroundings,
    mut attempt: impl FnMut(bool) -> Result<Result<T, Fault>, Failure>,
) -> Result<Result<T, Fault>, Failure> {
    let mut outcome = attempt(false)?;
    let mut telling = 1;
    for tried in 1..TRIES_ON_A_BUSY_HOST {
        if !ran_on(&outcome) || telling == TRIES {
            break;
        }
        machine.pause(PAUSES[(tried - 1).min(PAUSES.len() - 1)]);
        let before = machine.stolen();
        outcome = attempt(true)?;
        if ran_on(&outcome) {
            machine.pause(ACCOUNTED);
            telling += usize::from(machine.stolen() == before);
        }
    }
    Ok(outcome)
}

const fn ran_on<T>(outcome: &Result<T, Fault>) -> bool {
    matches!(outcome, Err(Fault::RanOn { .. } | Fault::RanOutside { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose host takes something each time it is asked, or never does.
    struct Host {
        takes: bool,
        stolen: u64,
        paused: Duration,
    }

    impl Surroundings for Host {
        fn pause(&mut self, time: Duration) {
            self.paused += time;
        }

        fn stolen(&mut self) -> u64 {
            self.stolen += u64::from(self.takes);
            self.stolen
        }
    }

    /// How `undisturbed` ends where the first `disturbed` tries were, how often it tried, and for how long it paused.
    fn tries(takes: bool, disturbed: usize) -> (bool, usize, Duration) {
        let mut tried = 0;
        let mut host = Host { takes, stolen: 0, paused: Duration::ZERO };
        let outcome = undisturbed_on(&mut host, |again| {
            assert_eq!(again, tried > 0);
            tried += 1;
            Ok(if tried <= disturbed { Err(Fault::RanOn { time: Duration::from_millis(3) }) } else { Ok(()) })
        });
        (outcome.is_ok_and(|outcome| outcome.is_ok()), tried, host.paused)
    }

    #[test]
    fn a_core_that_is_away_several_times_in_a_row_is_no_fault_of_the_candidate() {
        assert_eq!(tries(false, 0), (true, 1, Duration::ZERO));
        assert_eq!(tries(false, 1), (true, 2, Duration::ZERO));
        assert_eq!(tries(false, 4), (true, 5, Duration::from_millis(1360)));
    }

    #[test]
    fn what_runs_on_in_every_try_is_refused() {
        let (fine, tried, _) = tries(false, usize::MAX);
        assert_eq!((fine, tried), (false, 5));
    }

    #[test]
    fn tries_in_which_the_host_took_cores_away_tell_nothing_but_are_not_endless() {
        let (fine, tried, _) = tries(true, 20);
        assert_eq!((fine, tried), (true, 21));
        let (fine, tried, _) = tries(true, usize::MAX);
        assert_eq!((fine, tried), (false, 30));
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

    #[test]
    fn what_a_host_takes_never_goes_back() {
        let before = ThisMachine.stolen();
        assert!(ThisMachine.stolen() >= before);
    }
}
