//! Trials under way. Their verdicts come in any order and are taken in the order of the trials, so that what is decided, and when a
//! rule ends a target, does not depend on which worker was faster.

use std::collections::VecDeque;

use super::trial::Undecided;

/// A trial that has been put to a judge.
#[derive(Debug)]
pub(super) struct Sent<A> {
    pub(super) undecided: Undecided,
    /// The number it is shown under: the one it will have, if all before it become experiments.
    pub(super) number: u64,
    /// The text it is held against; none for a starting point, and where nothing was written before.
    pub(super) incumbent: Option<String>,
    answer: Option<A>,
}

/// Trials under way, oldest first; `A` is a judge's answer.
#[derive(Debug)]
pub(super) struct Flight<A> {
    sent: VecDeque<Sent<A>>,
}

impl<A> Flight<A> {
    pub(super) const fn new() -> Self {
        Self { sent: VecDeque::new() }
    }

    /// All of them, those that have an answer among them.
    pub(super) fn len(&self) -> usize {
        self.sent.len()
    }

    /// Those that are waited for.
    pub(super) fn waited_for(&self) -> usize {
        self.sent.iter().filter(|sent| sent.answer.is_none()).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Notes that a trial has been sent. One that is sent again keeps its place.
    pub(super) fn send(&mut self, undecided: Undecided, number: u64, incumbent: Option<String>) {
        let at = self.sent.partition_point(|other| other.undecided.trial.id <= undecided.trial.id);
        self.sent.insert(at, Sent { undecided, number, incumbent, answer: None });
    }

    /// Notes the answer on a trial. One that nobody waits for any more is dropped.
    pub(super) fn land(&mut self, id: u64, answer: A) {
        if let Some(sent) = self.sent.iter_mut().find(|sent| sent.undecided.trial.id == id) {
            sent.answer = Some(answer);
        }
    }

    /// The oldest trial with its answer, if that is there.
    pub(super) fn next(&mut self) -> Option<(Sent<A>, A)> {
        let answer = self.sent.front_mut()?.answer.take()?;
        self.sent.pop_front().map(|sent| (sent, answer))
    }

    /// Gives up all of them.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = Undecided> + use<A> {
        std::mem::take(&mut self.sent).into_iter().map(|sent| sent.undecided)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::trial::Trial;

    fn trial(id: u64) -> Undecided {
        Undecided { trial: Trial { id, ..Trial::default() }, ..Undecided::default() }
    }

    fn taken(flight: &mut Flight<&'static str>) -> Vec<(u64, &'static str)> {
        std::iter::from_fn(|| flight.next()).map(|(sent, answer)| (sent.undecided.trial.id, answer)).collect()
    }

    #[test]
    fn answers_are_taken_in_the_order_of_the_trials_whatever_order_they_came_in() {
        let mut flight = Flight::new();
        (1..=3).for_each(|id| flight.send(trial(id), id, None));
        flight.land(3, "third");
        flight.land(2, "second");
        assert_eq!(taken(&mut flight), []);
        assert_eq!(flight.len(), 3);
        flight.land(1, "first");
        assert_eq!(taken(&mut flight), [(1, "first"), (2, "second"), (3, "third")]);
        assert!(flight.is_empty());
    }

    #[test]
    fn one_that_is_sent_again_comes_before_those_that_follow_it() {
        let mut flight = Flight::new();
        (1..=2).for_each(|id| flight.send(trial(id), id, None));
        flight.land(2, "second");
        flight.land(1, "against the old incumbent");
        let (sent, _) = flight.next().unwrap_or_else(|| unreachable!("it has landed"));
        flight.send(sent.undecided, 1, Some("the new one".to_owned()));
        assert_eq!(taken(&mut flight), []);
        flight.land(1, "against the new one");
        assert_eq!(taken(&mut flight), [(1, "against the new one"), (2, "second")]);
    }

    #[test]
    fn an_answer_that_nobody_waits_for_is_dropped() {
        let mut flight = Flight::new();
        flight.send(trial(1), 1, None);
        assert_eq!(flight.clear().map(|undecided| undecided.trial.id).collect::<Vec<_>>(), [1]);
        flight.land(1, "late");
        assert_eq!(taken(&mut flight), []);
    }
}
