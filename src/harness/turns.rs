//! In which order the rotated copies of a shape's buffers have their turns.
//!
//! Each copy has one turn a lap. Where kernels have memory that outlives a launch every lap has an order of its own, or a kernel would
//! know which copy comes next and could work, or read, ahead for it. Nothing moves further than a window within the lap, so that
//! between two turns of a copy there are enough others for it to be cold again. Elsewhere the order is drawn once: no launch knows
//! the one before, and recordings of launches are made once.

use crate::rng::Stream;

/// A copy's turn moves by less than this share of a lap.
const WINDOW: usize = 4;

/// The order of turns: the lap that was, the one that is, and the one that follows.
#[derive(Debug)]
pub(super) struct Turns {
    laps: [Vec<usize>; 3],
    /// Turns of the present lap that were.
    place: usize,
    /// Laps drawn so far.
    drawn: u64,
    /// What orders are drawn from; nothing where all laps are alike.
    orders: Option<Stream>,
}

impl Turns {
    /// Turns of so many copies, in an order drawn from `seed`; with `anew` each lap is drawn.
    pub(super) fn new(copies: usize, seed: u64, anew: bool) -> Self {
        let stream = Stream::new(seed, "turns");
        let first = stream.permutation(copies);
        let orders = anew.then_some(stream);
        let mut turns = Self { laps: [first.clone(), first.clone(), first], place: 0, drawn: 0, orders };
        turns.laps[2] = turns.following();
        turns
    }

    /// How many copies there are.
    pub(super) const fn copies(&self) -> usize {
        self.laps[1].len()
    }

    /// Turns from now on among which no copy is twice.
    pub(super) fn distinct(&self) -> usize {
        self.copies() - if self.orders.is_some() { self.window() - 1 } else { 0 }
    }

    /// The copy whose turn comes after `ahead` others, fewer than there are copies.
    pub(super) fn ahead(&self, ahead: usize) -> usize {
        let place = self.place + ahead;
        match place.checked_sub(self.copies()) {
            None => self.laps[1][place],
            Some(place) => self.laps[2][place],
        }
    }

    /// The copies of the next `count` turns, which have then been.
    pub(super) fn take(&mut self, count: usize) -> Vec<usize> {
        let taken = (0..count).map(|ahead| self.ahead(ahead)).collect();
        self.place += count;
        if self.place >= self.copies() {
            self.place -= self.copies();
            self.laps.rotate_left(1);
            self.laps[2] = self.following();
        }
        taken
    }

    /// The copies of the latest `count` turns, the last one first; all copies where it is as many.
    pub(super) fn latest(&self, count: usize) -> Vec<usize> {
        if count >= self.copies() {
            return (0..self.copies()).collect();
        }
        let back = |back: usize| match self.place.checked_sub(back) {
            Some(place) => self.laps[1][place],
            None => self.laps[0][self.copies() + self.place - back],
        };
        (1..=count).map(back).collect()
    }

    fn window(&self) -> usize {
        (self.copies() / WINDOW).max(1)
    }

    /// The lap after the present one.
    fn following(&mut self) -> Vec<usize> {
        let mut lap = self.laps[1].clone();
        let Some(stream) = self.orders else { return lap };
        self.drawn += 1;
        let window = self.window();
        let pick = |what: u64, count: usize| stream.below(self.drawn << 32 | what, count as u64) as usize;
        // Windows begin somewhere else each time, so that in the end every copy can be anywhere.
        let begin = pick(1 << 31, window);
        let (head, tail) = lap.split_at_mut(begin);
        let mut number = 0;
        for part in std::iter::once(head).chain(tail.chunks_mut(window)) {
            for at in (1..part.len()).rev() {
                part.swap(at, pick(number, at + 1));
                number += 1;
            }
        }
        lap
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_lap_has_every_copy_once_and_none_comes_back_before_it_is_cold() {
        for (copies, anew) in [(2, true), (3, true), (9, true), (64, true), (128, true), (128, false)] {
            let mut turns = Turns::new(copies, 7, anew);
            let distinct = turns.distinct();
            assert!(distinct > copies * 3 / 4);
            let all: Vec<usize> = (0..40).flat_map(|_| turns.take(copies)).collect();
            for lap in all.chunks(copies) {
                assert_eq!(lap.iter().collect::<BTreeSet<_>>().len(), copies);
            }
            for some in all.windows(distinct) {
                assert_eq!(some.iter().collect::<BTreeSet<_>>().len(), distinct, "{copies}");
            }
        }
    }

    #[test]
    fn what_comes_next_is_another_copy_in_another_lap_where_that_is_asked_for() {
        for (anew, different) in [(true, true), (false, false)] {
            let mut turns = Turns::new(64, 3, anew);
            let laps: BTreeSet<Vec<usize>> = (0..30).map(|_| turns.take(64)).collect();
            assert_eq!(laps.len() > 1, different);
        }
        assert_ne!(Turns::new(64, 1, false).take(64), Turns::new(64, 2, false).take(64));
    }

    #[test]
    fn what_is_ahead_comes_and_what_came_is_the_latest() {
        let mut turns = Turns::new(10, 5, true);
        for count in [1, 3, 4, 5, 2, 5, 5, 1, 4] {
            let ahead: Vec<usize> = (0..count).map(|ahead| turns.ahead(ahead)).collect();
            let mut taken = turns.take(count);
            assert_eq!(taken, ahead);
            taken.reverse();
            assert_eq!(turns.latest(count), taken);
        }
        assert_eq!(turns.latest(10), (0..10).collect::<Vec<_>>());
    }
}
