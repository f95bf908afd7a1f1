//! A measurement that counts only where heat did not hold the device's clocks down.
//!
//! The power cap is no reason to measure again: large products run under it as a matter of course.

use std::time::Duration;

use super::Failure;

/// Pauses before the tries after the first, so that the device can cool.
pub(super) const PAUSES: [Duration; 3] = [Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// What `measure` gives as soon as the device was not `slowed` by the end of it; where it always is, the last counts, since
/// both sides of a pair are slowed alike and the device's condition is written down with them.
///
/// # Errors
/// Whatever `measure` fails with.
pub(super) fn unslowed<T>(
    slowed: impl Fn() -> bool,
    pauses: &[Duration],
    mut measure: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut measured = measure()?;
    for pause in pauses {
        if !slowed() {
            break;
        }
        std::thread::sleep(*pause);
        measured = measure()?;
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::harness::JudgeError;

    /// Which measurement counts where the device is slowed during the first `hot`, and how many there were.
    fn measured(hot: usize) -> (usize, usize) {
        let made = Cell::new(0);
        let result = unslowed(
            || made.get() <= hot,
            &[Duration::ZERO; 3],
            || {
                made.set(made.get() + 1);
                Ok(made.get())
            },
        );
        (result.ok().unwrap_or_default(), made.get())
    }

    #[test]
    fn what_heat_slowed_is_measured_again_and_in_the_end_taken_as_it_is() {
        assert_eq!(measured(0), (1, 1));
        assert_eq!(measured(2), (3, 3));
        assert_eq!(measured(9), (4, 4));
    }

    #[test]
    fn a_failure_ends_it_at_once() {
        let failed = unslowed::<()>(|| true, &[Duration::ZERO], || Err(JudgeError::Cancelled.into()));
        assert!(matches!(failed, Err(Failure::Judge(JudgeError::Cancelled))));
    }
}
