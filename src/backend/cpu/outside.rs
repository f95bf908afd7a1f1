//! What a child's threads ran while no time was taken.
//!
//! A candidate that works before it is told to go, or behind the end, shows nowhere but in the system's own account of CPU time.
//! For a single launch that account is coarse: on a virtual machine what the host takes of a core stands in it like work. Over
//! a session it is not, compared with the account of another kernel in the same turns.

use std::time::Duration;

use crate::backend::Outside;

/// What a thread may run beside the time that was taken for one batch: the watches for work and for the end of it, on a virtual
/// machine with what its host took meanwhile.
const ALLOWED: Duration = Duration::from_millis(20);

/// Batches that a summary is made of at the most, the latest.
const KEPT: usize = 4096;

/// The account of one child.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// What each thread had run when it was last looked at.
    seen: Vec<Duration>,
    /// The time that was taken since then.
    taken: Duration,
    /// What all threads together ran beside that, for each batch.
    outside: Vec<Duration>,
    batches: usize,
    /// What the thread that ran longest beside the time taken for the latest batch ran there.
    longest: Duration,
    /// The latest batch was looked at while the child was stopped; what being stopped and going on costs is not its doing.
    stopped: bool,
}

impl Account {
    /// Begins with what each thread has `ran` so far.
    pub(super) fn new(ran: Vec<Duration>) -> Self {
        Self { seen: ran, ..Self::default() }
    }

    /// A batch was timed.
    pub(super) fn take(&mut self, taken: Duration) {
        self.taken += taken;
    }

    /// Looks at what each thread has `ran`, while none does.
    ///
    /// # Errors
    /// How long the thread that did so longest ran beside the time taken, where that is beyond all doubt.
    pub(super) fn look(&mut self, ran: Vec<Duration>) -> Result<(), Duration> {
        let beside = |(ran, seen): (&Duration, &Duration)| ran.saturating_sub(*seen).saturating_sub(self.taken);
        let beside: Vec<Duration> = ran.iter().zip(&self.seen).map(beside).collect();
        let longest = beside.iter().copied().max().unwrap_or_default();
        if !std::mem::take(&mut self.stopped) {
            self.longest = longest;
            let all = beside.iter().sum();
            match self.outside.get_mut(self.batches % KEPT) {
                Some(oldest) => *oldest = all,
                None => self.outside.push(all),
            }
            self.batches += 1;
        }
        (self.seen, self.taken) = (ran, Duration::ZERO);
        if longest > ALLOWED { Err(longest) } else { Ok(()) }
    }

    /// Looks at what each thread has `ran` while the child is stopped.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub(super) fn look_while_stopped(&mut self, ran: Vec<Duration>) -> Result<(), Duration> {
        if self.stopped {
            return Ok(());
        }
        let looked = self.look(ran);
        self.stopped = true;
        looked
    }

    /// What the thread that ran longest beside the time taken for the latest batch ran there.
    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    /// The account so far; `None` before the first batch.
    pub(super) fn summary(&self) -> Option<Outside> {
        let mut sorted = self.outside.clone();
        sorted.sort_unstable();
        let median = *sorted.get(sorted.len() / 2)?;
        // What a host takes of a core shows in few batches, and much there.
        let most = &sorted[..(sorted.len() - sorted.len() / 10).max(1)];
        let typical = most.iter().sum::<Duration>() / most.len() as u32;
        Some(Outside { batches: self.batches, typical, median })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn what_runs_beside_the_time_that_is_taken_adds_up_over_threads() {
        let mut account = Account::new(vec![us(1000), us(500)]);
        assert_eq!(account.summary(), None);
        for batch in 1..=10 {
            account.take(us(300));
            // The first thread runs 40 µs more than that, the second less.
            account.look(vec![us(1000 + batch * 340), us(500 + batch * 100)]).unwrap();
        }
        assert_eq!(account.summary(), Some(Outside { batches: 10, typical: us(40), median: us(40) }));
        assert_eq!(account.longest(), us(40));
    }

    #[test]
    fn a_core_that_is_away_now_and_then_does_not_show_and_work_in_most_batches_does() {
        let mut account = Account::new(vec![us(0)]);
        let mut ran = 0;
        for batch in 0..100 {
            account.take(us(100));
            ran += 100 + if batch % 20 == 7 { 9000 } else { 20 };
            account.look(vec![us(ran)]).unwrap();
        }
        assert_eq!(account.summary(), Some(Outside { batches: 100, typical: us(20), median: us(20) }));
        for batch in 0..100 {
            account.take(us(100));
            ran += 100 + if batch % 2 == 0 { 900 } else { 20 };
            account.look(vec![us(ran)]).unwrap();
        }
        let typical = account.summary().unwrap().typical;
        assert!(typical > us(150), "{typical:?}");
    }

    #[test]
    fn work_between_two_batches_counts_and_being_stopped_does_not() {
        let mut account = Account::new(vec![us(0)]);
        account.take(us(100));
        account.look_while_stopped(vec![us(120)]).unwrap();
        account.look(vec![us(190)]).unwrap();
        assert_eq!(account.longest(), us(20));
        account.take(us(100));
        account.look(vec![us(190 + 100 + 55)]).unwrap();
        assert_eq!(account.summary(), Some(Outside { batches: 2, typical: us(75) / 2, median: us(55) }));
    }

    #[test]
    fn far_too_much_is_told_at_once() {
        let mut account = Account::new(vec![us(0)]);
        account.take(us(100));
        assert_eq!(account.look(vec![us(30_100)]), Err(us(30_000)));
    }
}
