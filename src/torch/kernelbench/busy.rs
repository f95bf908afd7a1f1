//! Whether something works on the device while a candidate stands still, and whether that is the candidate's.

use std::time::Duration;

use serde_json::{Value, json};

use super::judge::Judge;
use super::link::{Link, Silence};

/// The device takes so many times as long for the same work when somebody else works on it.
const BUSY: f64 = 1.5;

/// What was seen of a device that was at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Busy {
    /// ms that work took which is always the same.
    took: f64,
    /// ms that it takes while nobody else works.
    quiet: f64,
}

/// ms that the judge's fixed work takes beside a process that waits for a sample, which has used a stream of its own and stands still: what such a
/// process costs the device, and a clock that has slowed down meanwhile, are no sample's doing. Zero without a GPU.
pub(super) fn quiet_beside(judge: &mut Judge, link: &mut Link, limit: Duration) -> Result<f64, Silence> {
    if !judge.on_gpu() {
        return Ok(0.0);
    }
    let _: Value = link.ask(&json!({"ask": "stir"}), &[], limit)?;
    link.stop()?;
    let quiet = judge.quiet()?;
    link.go_on()?;
    Ok(quiet)
}

impl Busy {
    /// Looks whether the device is at work; `None` where it is not, and always without a GPU.
    pub(super) fn seen(judge: &mut Judge, quiet: f64) -> Result<Option<Self>, Silence> {
        let mut least = f64::MAX;
        for _ in 0..3 {
            least = least.min(judge.idle()?);
            if least <= BUSY * quiet {
                return Ok(None);
            }
        }
        Ok(Some(Self { took: least, quiet }))
    }

    /// Whether it was the candidate's, where the same work takes `after` ms once its process has ended, and all that it had on the device with
    /// it. What goes on without it is somebody else's, or the device itself has slowed down.
    pub(super) fn is_the_candidates(self, after: f64) -> bool {
        after <= BUSY * self.quiet
    }

    /// In a sentence.
    pub(super) fn words(self, after: f64) -> String {
        let Self { took, quiet } = self;
        format!(
            "the device was at work while the candidate stood still: {took:.2} ms where {quiet:.2} were usual before it, and {after:.2} are after it"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_ends_with_the_candidate_was_its_and_work_that_goes_on_without_it_was_not() {
        let busy = Busy { took: 19.0, quiet: 9.5 };
        assert!(busy.is_the_candidates(9.6) && busy.is_the_candidates(14.0));
        assert!(!busy.is_the_candidates(19.0) && !busy.is_the_candidates(f64::MAX));
        assert!(busy.words(9.6).contains("19.00 ms where 9.50 were usual before it, and 9.60 are after it"));
    }
}
