//! How the calls of a pass, timed apart, add up against the pass timed as one.

/// What the times of a pass are shares of, and what is left over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Account {
    /// What shares are of, µs: the pass, or the sum of its parts where that is the longer.
    pub base_us: f64,
    /// What the parts do not explain, µs: 0 where they take longer than the pass.
    pub other_us: f64,
    /// How much longer the parts take than the pass, µs: 0 where they do not.
    pub overlap_us: f64,
}

/// The account of a pass of `whole_us` whose parts take `parts_us` together, each timed by itself.
///
/// What is timed by itself has a beginning and an end of its own, which in a pass overlap with its neighbours': parts can then
/// take longer than the whole. Shares of the larger figure never add up to more than one.
#[must_use]
pub fn account(whole_us: f64, parts_us: f64) -> Account {
    Account {
        base_us: whole_us.max(parts_us).max(f64::MIN_POSITIVE),
        other_us: (whole_us - parts_us).max(0.0),
        overlap_us: (parts_us - whole_us).max(0.0),
    }
}

/// The largest overlap, as a share of the pass, that is not worth a word.
const MOST_OVERLAP: f64 = 0.02;

impl Account {
    /// What a reader of the shares must know about the overlap of `calls` calls, if anything.
    #[must_use]
    pub fn overlap_note(&self, calls: usize) -> Option<String> {
        let whole_us = self.base_us - self.overlap_us;
        (self.overlap_us > MOST_OVERLAP * whole_us).then(|| {
            format!(
                "timed apart, calls take {:.0} % longer than in the pass, {:.1} µs each; shares are of their sum",
                100.0 * self.overlap_us / whole_us.max(f64::MIN_POSITIVE),
                self.overlap_us / calls.max(1) as f64
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: [f64; 7] = [0.0, 1e-3, 1.0, 97.0, 100.0, 103.0, 1e9];

    #[test]
    fn parts_and_what_is_left_over_make_up_the_whole() {
        for whole in TIMES {
            for parts in TIMES {
                let account = account(whole, parts);
                let again = parts + account.other_us - account.overlap_us;
                assert!((again - whole).abs() <= 1e-15 * account.base_us, "{whole} {parts}: {again}");
                assert!(account.other_us == 0.0 || account.overlap_us == 0.0);
                assert!(account.base_us > 0.0 && parts / account.base_us <= 1.0 && whole <= account.base_us);
            }
        }
    }

    #[test]
    fn an_overlap_is_said_where_it_is_more_than_noise() {
        assert_eq!(account(100.0, 90.0).overlap_note(10), None);
        assert_eq!(account(100.0, 101.9).overlap_note(10), None);
        let note = account(1000.0, 1250.0).overlap_note(100).expect("a note");
        assert!(note.contains("25 % longer") && note.contains("2.5 µs each"), "{note}");
        assert!(account(0.0, 1.0).overlap_note(0).is_some_and(|note| !note.contains("NaN")));
        assert_eq!(account(0.0, 0.0).overlap_note(0), None);
    }
}
