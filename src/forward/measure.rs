//! Timing whole passes and their parts by turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::ForwardError;

/// A model that can be timed: the seam between deciding what to measure and measuring it.
pub trait Timed {
    /// One pass, all calls back to back.
    ///
    /// # Errors
    /// A call that failed, by its site.
    fn whole(&mut self) -> Result<Duration, ForwardError>;
    /// One pass in parts, which together are every node once.
    ///
    /// # Errors
    /// A call that failed, by its site.
    fn parts(&mut self) -> Result<Vec<Stretch>, ForwardError>;
    /// One call that does nothing: what starting one costs, and a row of them.
    ///
    /// # Errors
    /// A process that is gone.
    fn nothing(&mut self) -> Result<Duration, ForwardError>;
}

/// Calls that were timed together, one start included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// The graph's nodes, which do the same at the same sizes where they are several.
    pub nodes: Vec<usize>,
    /// The time from the first to the end of the last.
    pub took: Duration,
}

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Rounds are added until this much time is spent.
    pub budget: Duration,
    /// Rounds made even when the budget is spent.
    pub least: usize,
    /// Rounds after which more would not tell more.
    pub most: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { budget: Duration::from_secs(3), least: 5, most: 60 }
    }
}

/// What was measured, in µs, free of the cost of starting a call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rounds {
    /// A whole pass, by round.
    pub whole_us: Vec<f64>,
    /// The calls of a pass, by round and node.
    pub node_us: Vec<Vec<f64>>,
    /// The median cost of starting a call, subtracted from all of the above.
    pub launch_us: f64,
    /// Where the weights come from, a sentence each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Calls of nothing before each round: enough for a median that follows the machine's mood.
const EMPTY_CALLS: usize = 8;

/// Two passes to warm up, then rounds of one whole pass and one pass by parts, whichever first by turns, so that a
/// drift of the machine touches both alike.
///
/// # Errors
/// The first call that fails, or [`ForwardError::Cancelled`].
pub fn rounds(model: &mut dyn Timed, effort: &Effort, cancelled: &AtomicBool) -> Result<Rounds, ForwardError> {
    model.whole()?;
    model.parts()?;
    let start = Instant::now();
    let (mut whole, mut parts, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    while whole.len() < effort.least.max(1) || (whole.len() < effort.most && start.elapsed() < effort.budget) {
        go_on(cancelled)?;
        for _ in 0..EMPTY_CALLS {
            empty.push(micros(model.nothing()?));
        }
        let whole_first = whole.len().is_multiple_of(2);
        if whole_first {
            whole.push(micros(model.whole()?));
        }
        parts.push(model.parts()?);
        if !whole_first {
            whole.push(micros(model.whole()?));
        }
    }
    let launch_us = crate::stats::median(&empty).unwrap_or_default();
    let without = |us: f64| (us - launch_us).max(0.0);
    let by_node = |stretches: Vec<Stretch>| {
        let mut node_us = vec![0.0; stretches.iter().map(|stretch| stretch.nodes.len()).sum()];
        for Stretch { nodes, took } in stretches {
            let each = without(micros(took)) / nodes.len().max(1) as f64;
            nodes.into_iter().for_each(|node| node_us[node] = each);
        }
        node_us
    };
    Ok(Rounds {
        whole_us: whole.into_iter().map(without).collect(),
        node_us: parts.into_iter().map(by_node).collect(),
        launch_us,
        notes: Vec::new(),
    })
}

impl Rounds {
    /// Adds the rounds of a later measurement of the same model.
    pub fn extend(&mut self, later: Self) {
        let (own, other) = (self.whole_us.len() as f64, later.whole_us.len() as f64);
        self.launch_us = (self.launch_us * own + later.launch_us * other) / (own + other).max(1.0);
        self.whole_us.extend(later.whole_us);
        self.node_us.extend(later.node_us);
    }

    /// The typical whole pass, µs (0 where nothing was measured): the mean over the middle half of the rounds.
    #[must_use]
    pub fn whole(&self) -> f64 {
        let middle = middle_half(&self.whole_us);
        mean(middle.iter().map(|round| self.whole_us[*round]))
    }

    /// The typical time of `nodes` together, µs: the mean over the middle half of the rounds, by their whole time.
    ///
    /// Means over the same rounds add up, as medians of each part do not: where a machine is disturbed now and then,
    /// these would leave the disturbance of every part unexplained.
    #[must_use]
    pub fn sum(&self, nodes: &[usize]) -> f64 {
        let totals: Vec<f64> = self.node_us.iter().map(|round| round.iter().sum()).collect();
        let of_round = |round: usize| nodes.iter().filter_map(|&node| self.node_us[round].get(node)).sum();
        mean(middle_half(&totals).into_iter().map(of_round))
    }
}

/// The places of the values that are left when the least and the greatest quarter are taken away.
fn middle_half(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let quarter = values.len().div_ceil(4).min(values.len().saturating_sub(1) / 2);
    order[quarter..values.len() - quarter].to_vec()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1);
    values.sum::<f64>() / count as f64
}

/// Whether nobody has asked to stop.
pub(super) fn go_on(cancelled: &AtomicBool) -> Result<(), ForwardError> {
    if cancelled.load(Ordering::Relaxed) { Err(ForwardError::Cancelled) } else { Ok(()) }
}

pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    static GO: AtomicBool = AtomicBool::new(false);

    /// Answers in a fixed pattern and writes down what it was asked.
    #[derive(Default)]
    struct Fake {
        asked: String,
        fail_at: Option<usize>,
    }

    impl Fake {
        fn say(&mut self, what: char, time: u64) -> Result<Duration, ForwardError> {
            if Some(self.asked.len()) == self.fail_at {
                return Err(ForwardError::Cancelled);
            }
            self.asked.push(what);
            Ok(Duration::from_micros(time))
        }
    }

    impl Timed for Fake {
        fn whole(&mut self) -> Result<Duration, ForwardError> {
            self.say('w', 105)
        }
        fn parts(&mut self) -> Result<Vec<Stretch>, ForwardError> {
            self.say('p', 0)?;
            let stretch = |nodes: &[usize], us| Stretch { nodes: nodes.to_vec(), took: Duration::from_micros(us) };
            Ok(vec![stretch(&[0], 35), stretch(&[1, 3], 75), stretch(&[2], 2)])
        }
        fn nothing(&mut self) -> Result<Duration, ForwardError> {
            self.say('.', 5)
        }
    }

    #[test]
    fn whole_and_parts_take_turns_after_a_warm_up() {
        let mut fake = Fake::default();
        rounds(&mut fake, &Effort { budget: Duration::ZERO, least: 3, most: 9 }, &GO).unwrap();
        assert_eq!(fake.asked.replace('.', ""), "wpwppwwp");
        assert_eq!(fake.asked.matches('.').count(), 3 * EMPTY_CALLS);
    }

    #[test]
    fn the_cost_of_a_start_is_taken_off_once_for_a_pass_and_once_for_each_stretch_of_calls() {
        let rounds = rounds(&mut Fake::default(), &Effort { budget: Duration::ZERO, least: 2, most: 2 }, &GO).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(rounds.launch_us, 5.0) && near(rounds.whole(), 100.0));
        assert!(near(rounds.sum(&[0]), 30.0) && near(rounds.sum(&[0, 1, 3]), 100.0));
        // Calls that were timed together share their time.
        assert!(near(rounds.sum(&[1]), 35.0) && near(rounds.sum(&[3]), 35.0));
        // What is shorter than a start reads as nothing, not as less.
        assert_eq!(rounds.sum(&[2]), 0.0);
    }

    #[test]
    fn the_budget_adds_rounds_up_to_the_most() {
        let mut fake = Fake::default();
        let effort = Effort { budget: Duration::from_secs(3600), least: 1, most: 7 };
        assert_eq!(rounds(&mut fake, &effort, &GO).unwrap().whole_us.len(), 7);
        let none = Effort { budget: Duration::ZERO, least: 0, most: 0 };
        assert_eq!(rounds(&mut fake, &none, &GO).unwrap().whole_us.len(), 1);
    }

    #[test]
    fn a_failure_at_any_step_ends_the_measurement() {
        let effort = Effort { budget: Duration::ZERO, least: 2, most: 2 };
        let steps = 2 + 2 * (EMPTY_CALLS + 2);
        for at in 0..steps {
            assert!(rounds(&mut Fake { fail_at: Some(at), ..Fake::default() }, &effort, &GO).is_err(), "step {at}");
        }
        assert!(rounds(&mut Fake { fail_at: Some(steps), ..Fake::default() }, &effort, &GO).is_ok());
    }

    #[test]
    fn parts_add_up_however_disturbed_the_rounds_are() {
        let node_us: Vec<Vec<f64>> =
            (0..12).map(|r| (0..5).map(|n| f64::from((r * 7 + n * 5) % 11)).collect()).collect();
        let rounds = Rounds { whole_us: vec![1.0], node_us, launch_us: 0.0, notes: vec![] };
        let each: f64 = (0..5).map(|node| rounds.sum(&[node])).sum();
        assert!((each - rounds.sum(&[0, 1, 2, 3, 4])).abs() < 1e-9);
        assert_eq!((rounds.sum(&[]), Rounds::default().whole(), Rounds::default().sum(&[0])), (0.0, 0.0, 0.0));
    }

    #[test]
    fn later_rounds_are_added_with_their_weight() {
        let mut rounds = Rounds { whole_us: vec![1.0; 3], node_us: vec![vec![1.0]; 3], launch_us: 4.0, notes: vec![] };
        rounds.extend(Rounds { whole_us: vec![2.0], node_us: vec![vec![2.0]], launch_us: 8.0, notes: vec![] });
        assert_eq!((rounds.whole_us.len(), rounds.node_us.len(), rounds.launch_us), (4, 4, 5.0));
        let mut nothing = Rounds::default();
        nothing.extend(Rounds::default());
        assert_eq!(nothing, Rounds::default());
    }

    #[test]
    fn the_middle_half_leaves_disturbed_rounds_out() {
        for (n, kept) in [(0, 0), (1, 1), (2, 2), (3, 1), (4, 2), (5, 1), (6, 2), (8, 4), (40, 20)] {
            let values: Vec<f64> = (0..n).map(f64::from).rev().collect();
            let middle = middle_half(&values);
            assert_eq!(middle.len(), kept, "{n}");
            let left: Vec<f64> = middle.iter().map(|at| values[*at]).collect();
            assert!(left.is_sorted() && (n < 3 || left.iter().all(|v| *v > 0.0 && *v < f64::from(n - 1))));
        }
        let disturbed = Rounds { whole_us: vec![10.0, 900.0, 11.0, 12.0, 9.0], ..Rounds::default() };
        assert_eq!(disturbed.whole(), 11.0);
    }

    #[test]
    fn a_cancelled_measurement_stops_before_the_next_round() {
        let mut fake = Fake::default();
        let effort = Effort { budget: Duration::from_secs(3600), least: 5, most: 9 };
        let stopped = rounds(&mut fake, &effort, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(ForwardError::Cancelled)));
        assert_eq!(fake.asked, "wp");
    }
}
