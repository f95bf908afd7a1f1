//! When a burst of changes to a file is a save: a pure function of when they came.

use std::time::Duration;

/// So long nothing must happen: editors write a file in several steps, milliseconds apart.
const QUIET: Duration = Duration::from_millis(80);

/// A file that changes all the time is looked at so often.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// Changes that have been seen and not yet been looked at. Times are since any fixed moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Debounce {
    /// The first and the last change of the burst.
    burst: Option<(Duration, Duration)>,
}

impl Debounce {
    /// Something changed.
    pub fn change(&mut self, at: Duration) {
        let first = self.burst.map_or(at, |(first, _)| first);
        self.burst = Some((first, at));
    }

    /// When the file is to be looked at; `None` where nothing has changed.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        self.burst.map(|(first, last)| (last + QUIET).min(first + LONGEST))
    }

    /// The file has been looked at.
    pub fn looked(&mut self) {
        self.burst = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    /// When a file is looked at whose changes come at these times.
    fn looks(changes: &[Duration]) -> Vec<Duration> {
        let mut debounce = Debounce::default();
        let mut looks = Vec::new();
        for at in changes {
            if let Some(due) = debounce.due().filter(|due| due <= at) {
                debounce.looked();
                looks.push(due);
            }
            debounce.change(*at);
        }
        looks.extend(debounce.due());
        looks
    }

    #[test]
    fn a_save_in_several_writes_is_looked_at_once_when_it_is_over() {
        assert_eq!(looks(&[ms(5)]), [ms(85)]);
        assert_eq!(looks(&[ms(0), ms(1), ms(3), ms(40)]), [ms(120)]);
    }

    #[test]
    fn two_saves_are_looked_at_twice() {
        assert_eq!(looks(&[ms(0), ms(2), ms(500), ms(501)]), [ms(82), ms(581)]);
        // A change at the very moment of a look belongs to the next save.
        assert_eq!(looks(&[ms(0), ms(80)]), [ms(80), ms(160)]);
    }

    #[test]
    fn a_file_that_never_rests_is_looked_at_every_second() {
        let changes: Vec<Duration> = (0..60).map(|step| ms(50 * step)).collect();
        assert_eq!(looks(&changes), [ms(1000), ms(2000), ms(3000)]);
    }

    #[test]
    fn nothing_is_due_where_nothing_changed() {
        let mut debounce = Debounce::default();
        assert_eq!(debounce.due(), None);
        debounce.change(ms(1));
        debounce.looked();
        assert_eq!(debounce.due(), None);
    }
}
