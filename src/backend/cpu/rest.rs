//! Whether a process that says it is done is really at rest.
//!
//! The state of each thread is exact, and so is the time a thread spent waiting for a core, which tells a thread that ran on
//! from one that was not let run. A running thread's account of CPU time is behind by a tick, milliseconds, and a sleeping
//! thread's is exact: what a thread ran between two looks is never more than the difference. It tells a thread that ran on
//! from one whose core a host took away, where the system takes that out of the account (`CONFIG_PARAVIRT_TIME_ACCOUNTING`),
//! and how much of what a thread did was done while the time was taken.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two looks.
const STEP: Duration = Duration::from_micros(100);
/// What a thread may run after the end: on a virtual machine a core may be away for a while without anyone's account
/// saying so.
const ALLOWED: Duration = Duration::from_micros(1500);
/// The same where the system does not tell who waited for a core.
const ALLOWED_BLIND: Duration = Duration::from_millis(20);
/// A thread that is not asleep by then either never will be or is on a machine that cannot time anything.
const PATIENCE: Duration = Duration::from_secs(1);

/// The threads of a process, as the system shows them.
#[derive(Debug)]
pub(super) struct Threads {
    threads: Vec<Thread>,
}

/// A thread's files. Its state is looked at after every launch, so that file stays open.
#[derive(Debug)]
struct Thread {
    stat: File,
    /// What it ran and what it waited for a core (`Documentation/scheduler/sched-stats.rst`), where the system counts it.
    account: Option<File>,
}

impl Threads {
    /// The threads process `pid` has now.
    pub(super) fn of(pid: u32) -> Self {
        let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
        let folders = entries.into_iter().flatten().flatten().map(|entry| entry.path());
        Self { threads: folders.filter_map(Thread::open).collect() }
    }

    /// How long each thread has run over its life, exact while it sleeps; zero where the system does not tell.
    pub(super) fn ran(&self) -> Vec<Duration> {
        self.threads.iter().map(|thread| thread.account().map_or(Duration::ZERO, |[ran, _]| ran)).collect()
    }

    /// How long each thread has waited for a core over its life; zero where the system does not tell.
    pub(super) fn waited(&self) -> Vec<Duration> {
        self.threads.iter().map(|thread| thread.account().map_or(Duration::ZERO, |[_, waited]| waited)).collect()
    }

    /// Waits until no thread runs any more, after they were told to stop: an interrupt's time, unless a core is away.
    pub(super) fn stand_still(&self) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && self.threads.iter().any(|thread| thread.asleep() == Some(false)) {
            std::hint::spin_loop();
        }
    }

    /// Waits until all threads sleep. A system that hides them is taken at its word: poison and immediate comparison
    /// remain.
    ///
    /// # Errors
    /// How long one ran on, where that is more than lying down takes.
    pub(super) fn rest(&self) -> Result<(), Duration> {
        let start = Instant::now();
        let mut awake: Vec<(&Thread, Option<[Duration; 2]>)> = self
            .threads
            .iter()
            .filter(|thread| thread.asleep() == Some(false))
            .map(|thread| (thread, thread.account()))
            .collect();
        // A thread ran at least until it was last seen awake; when it lay down after that is not known, since this
        // thread may have been kept from looking.
        let mut last = Duration::ZERO;
        while !awake.is_empty() {
            std::thread::sleep(STEP);
            let elapsed = start.elapsed();
            let mut worst = None;
            awake.retain(|(thread, before)| match thread.asleep() {
                Some(false) => true,
                Some(true) => {
                    worst = worst.max(ran_on(last, *before, thread.account()));
                    false
                }
                None => false,
            });
            if let Some(ran) = worst {
                return Err(ran);
            }
            if !awake.is_empty() && elapsed > PATIENCE {
                return Err(elapsed);
            }
            last = elapsed;
        }
        Ok(())
    }
}

/// How long a thread ran within `elapsed`, at the most, where that is too long; `before` and `after` are its accounts, the
/// latter while it sleeps.
fn ran_on(elapsed: Duration, before: Option<[Duration; 2]>, after: Option<[Duration; 2]>) -> Option<Duration> {
    let (ran, allowed) = match before.zip(after) {
        Some((before, after)) => {
            let [ran, waited] = [0, 1].map(|field| after[field].saturating_sub(before[field]));
            (elapsed.saturating_sub(waited).min(ran), ALLOWED)
        }
        None => (elapsed, ALLOWED_BLIND),
    };
    (ran > allowed).then_some(ran)
}

impl Thread {
    fn open(folder: PathBuf) -> Option<Self> {
        let stat = File::open(folder.join("stat")).ok()?;
        Some(Self { stat, account: File::open(folder.join("schedstat")).ok() })
    }

    /// Whether it sleeps; `None` where it is gone or hidden.
    fn asleep(&self) -> Option<bool> {
        // The name before the state is in brackets and may hold anything, in at most 64 bytes; what follows it are numbers.
        let mut text = [0; 96];
        let length = self.stat.read_at(&mut text, 0).ok()?;
        let end = text[..length].iter().rposition(|byte| *byte == b')')?;
        text[..length].get(end + 2).map(|state| *state != b'R')
    }

    /// Time on a core and time spent waiting for one: the first fields, in nanoseconds. A system that does not count them
    /// says zero everywhere.
    fn account(&self) -> Option<[Duration; 2]> {
        // Three numbers of at most 20 digits.
        let mut text = [0; 72];
        let length = self.account.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        let mut fields = text.split_whitespace().map_while(|field| field.parse().ok()).map(Duration::from_nanos);
        let both = [fields.next()?, fields.next()?];
        both.iter().any(|field| !field.is_zero()).then_some(both)
    }
}

/// Between two looks at a process that lets others wait.
pub(super) const SLICE: Duration = Duration::from_millis(100);

/// What counts of a slice of the time that a process may take, of which `elapsed` has passed on the clock: no more than the slice, because a virtual
/// machine may have been away, and not what one of its threads waited for a core.
pub(super) fn counted(elapsed: Duration, before: &[Duration], after: &[Duration]) -> Duration {
    let waited = before.iter().zip(after).map(|(before, after)| after.saturating_sub(*before)).max();
    elapsed.min(SLICE).saturating_sub(waited.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_waits_for_a_core_and_what_the_machine_was_away_count_for_nothing() {
        let ms = Duration::from_millis;
        let none = [ms(5), ms(0)];
        assert_eq!(counted(ms(30), &none, &none), ms(30));
        assert_eq!(counted(ms(30), &[], &[]), ms(30));
        assert_eq!(counted(ms(9000), &none, &none), SLICE);
        assert_eq!(counted(ms(100), &none, &[ms(65), ms(20)]), ms(40));
        assert_eq!(counted(ms(100), &none, &[ms(405), ms(0)]), ms(0));
    }

    /// An account in milliseconds.
    fn account(ran: u64, waited: u64) -> Option<[Duration; 2]> {
        Some([ran, waited].map(Duration::from_millis))
    }

    #[test]
    fn a_thread_that_was_not_let_run_is_not_one_that_ran_on() {
        let ms = Duration::from_millis;
        assert_eq!(ran_on(ms(8), account(50, 100), account(58, 108)), None);
        assert_eq!(ran_on(ms(8), account(50, 100), account(58, 103)), Some(ms(5)));
        assert_eq!(ran_on(ms(8), None, None), None);
        assert_eq!(ran_on(ms(30), account(1, 1), None), Some(ms(30)));
    }

    #[test]
    fn a_thread_whose_core_was_taken_away_is_not_one_that_ran_on() {
        let ms = Duration::from_millis;
        assert_eq!(ran_on(ms(130), account(50, 100), account(51, 100)), None);
        assert_eq!(ran_on(ms(130), account(50, 100), account(56, 110)), Some(ms(6)));
    }

    #[test]
    fn a_thread_that_runs_is_seen_and_one_that_sleeps_is_at_rest() {
        let own = std::fs::canonicalize("/proc/thread-self").ok().and_then(Thread::open);
        if let Some(own) = own {
            assert_eq!([own.asleep(), own.asleep()], [Some(false); 2]);
        }
        assert_eq!(Threads { threads: Vec::new() }.rest(), Ok(()));
    }
}
