//! A target's part of the page: how it stands, how well that is known, and what was tried.

use maud::{Markup, html};

use super::data::{Outcome, TargetReport, TimingReport, Try, sound};
use super::figures::{NOTHING, counted, maybe_time, maybe_times, percent, share, times};
use super::page::{Chart, sentence, shown_time};
use super::spell;

/// A target with more experiments shows them on demand.
const MOST_OPEN: usize = 40;

/// Two-sided 95 % of a normal distribution.
const Z: f64 = 1.96;

/// The experiments with one technique, in order.
struct Group<'a> {
    technique: &'a str,
    tries: Vec<&'a Try>,
}

/// By technique, in the order in which they were first tried.
fn groups(tries: &[Try]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for tried in tries {
        match groups.iter_mut().find(|group| group.technique == tried.technique) {
            Some(group) => group.tries.push(tried),
            None => groups.push(Group { technique: &tried.technique, tries: vec![tried] }),
        }
    }
    groups
}

impl Group<'_> {
    /// `14 tries, 3 kept, together 1.42×`.
    fn words(&self) -> String {
        let kept: Vec<f64> = self
            .tries
            .iter()
            .filter(|tried| tried.outcome == Outcome::Keep)
            .map(|tried| tried.speedup.map_or(1.0, |(ratio, _)| ratio))
            .collect();
        let mut words = counted(self.tries.len(), "try", "tries");
        if !kept.is_empty() {
            words += &format!(", {} kept, together {}", kept.len(), times(kept.iter().product()));
        }
        words
    }
}

impl TargetReport {
    /// The target's article, its number on the page being `place`; `of_model` where it is one of a model's.
    pub(super) fn article(&self, place: usize, chart: Option<&Chart>, of_model: bool) -> Markup {
        html! {
            article id=(format!("target-{place}")) {
                h3 { span.place { (place) } " " (self.op) }
                p.lead {
                    @match (self.start_us.and_then(sound), self.best_us.and_then(sound)) {
                        (Some(_), Some(_)) => {
                            (maybe_time(self.start_us)) " → " strong { (maybe_time(self.best_us)) }
                            ", " (maybe_times(self.vs_user)) " against "
                            (self.against.as_deref().unwrap_or("the starting point"))
                            ". "
                            @if let Some(score) = self.sol_score.and_then(sound) { "SOL score " (format!("{score:.2}")) ". " }
                        }
                        _ => "It was not timed. ",
                    }
                    @if of_model { (share(self.share)) " of the model; " }
                    (spell(self.spent)) " spent. "
                    @if self.left { "Stopped: " (self.why) "." } @else { (sentence(&self.why)) }
                }
                @if let Some(chart) = chart {
                    (chart.figure(&html! { (self.op) ": every experiment, at its speedup over the starting point." }))
                }
                @if let Some(timing) = &self.timing { (timing.section(of_model)) }
                (self.experiments())
                p.small { "Kernel file " code { (self.file) } "." }
            }
        }
    }

    fn experiments(&self) -> Markup {
        let rejected = self.tried() - self.count(Outcome::Keep) - self.count(Outcome::Revert);
        html! {
            details open=[(self.tries.len() <= MOST_OPEN).then_some("open")] {
                summary {
                    "What was tried: " (counted(self.tried(), "experiment", "experiments"))
                    ", " (self.count(Outcome::Keep)) " kept, " (self.count(Outcome::Revert)) " reverted, " (rejected) " rejected"
                }
                @if let Some(words) = self.foresight() { p.small { (words) } }
                table.tries {
                    thead { tr {
                        th { "#" } th { "what was changed" } th.figure { "predicted" } th.figure { "measured" } th { "outcome" }
                    } }
                    @for group in groups(&self.tries) {
                        tbody {
                            tr.group { th colspan="5" { bdi { (group.technique) } span { (group.words()) } } }
                            @for tried in &group.tries { (row(tried)) }
                        }
                    }
                }
            }
        }
    }

    /// How well gains were foreseen, over all experiments that were both predicted and measured.
    fn foresight(&self) -> Option<String> {
        let both: Vec<(f64, f64)> =
            self.tries.iter().filter_map(|tried| Some((sound(tried.predicted?)?, sound(tried.speedup?.0)?))).collect();
        let mean = |pick: &dyn Fn(&(f64, f64)) -> f64| {
            (both.iter().map(|pair| pick(pair).ln()).sum::<f64>() / both.len() as f64).exp()
        };
        (!both.is_empty()).then(|| {
            format!(
                "Over the {} with both, the agent expected {} and {} was measured (geometric means).",
                counted(both.len(), "experiment", "experiments"),
                times(mean(&|pair| pair.0)),
                times(mean(&|pair| pair.1))
            )
        })
    }
}

/// One experiment.
fn row(tried: &Try) -> Markup {
    let measured = match tried.speedup {
        Some((ratio, low)) if tried.outcome == Outcome::Keep => {
            html! { (times(ratio)) span.small { " ≥ " (times(low)) } }
        }
        Some((ratio, _)) => html! { (times(ratio)) },
        None => html! { (NOTHING) },
    };
    let stage = match tried.outcome {
        Outcome::Reject | Outcome::Crash | Outcome::Timeout => format!(" at {}", tried.stage),
        Outcome::Base | Outcome::Keep | Outcome::Revert | Outcome::Error | Outcome::Withdrawn => String::new(),
    };
    html! {
        tr.(tried.outcome.status()) {
            td.number { (tried.number) }
            td.what {
                bdi { (tried.description) }
                @if !tried.why.is_empty() { p.small { bdi { (tried.why) } } }
            }
            td.figure.none[tried.predicted.and_then(sound).is_none()] data-name="predicted" { (maybe_times(tried.predicted)) }
            td.figure.none[tried.speedup.is_none()] data-name="measured" { (measured) }
            td.outcome {
                span.verdict { (tried.outcome.word()) } (stage)
                @if tried.outcome == Outcome::Keep && !tried.commit.is_empty() { " " code { (tried.commit) } }
            }
        }
    }
}

impl TimingReport {
    /// The 95 % interval of the incumbent's latency, µs: how far a session's median strays when nothing differs.
    fn latency_interval(&self) -> Option<(f64, f64)> {
        let half = Z * self.spread;
        (half.is_finite() && (0.0..1.0).contains(&half))
            .then(|| (self.latency_us / (1.0 + half), self.latency_us * (1.0 + half)))
    }

    fn section(&self, of_model: bool) -> Markup {
        let confirmed: Vec<String> = self.confirmations.iter().map(|ratio| times(*ratio)).collect();
        html! {
            p {
                "The incumbent takes " strong { (shown_time(self.latency_us)) }
                @if of_model { " a pass" }
                @if let Some((low, high)) = self.latency_interval() {
                    " (95 % of sessions within " (shown_time(low)) " to " (shown_time(high)) ")"
                }
                ", " (percent(self.roofline_pct)) " of its roofline. A gain had to exceed " (percent(100.0 * self.margin.exp_m1())) "."
                @if !confirmed.is_empty() {
                    " The last one was confirmed in fresh processes: " (confirmed.join(", ")) "."
                }
                @if let Some(condition) = &self.condition { " Device afterwards: " (sentence(condition)) }
            }
            @if !self.shapes.is_empty() {
                div.scroll {
                    table.numbers {
                        thead { tr { th { "shape" } th { "calls" } th { "a call" } th { "all calls" } th { "of roof" } th { "bound by" } } }
                        tbody {
                            @for shape in &self.shapes {
                                tr {
                                    th { (shape.label) }
                                    td { (shape.calls) }
                                    td { (shown_time(shape.us)) }
                                    td { (shown_time(shape.us * f64::from(shape.calls))) }
                                    td { (percent(100.0 * shape.roofline_us / shape.us)) }
                                    td { (shape.bound) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::{target, tried};

    #[test]
    fn experiments_are_grouped_by_technique_in_order() {
        let named = |number, technique: &str, outcome, ratio| Try {
            technique: technique.into(),
            speedup: Some((ratio, ratio)),
            ..tried(number, outcome)
        };
        let tries = [
            named(1, "tune", Outcome::Keep, 1.5),
            named(2, "split-k", Outcome::Revert, 0.9),
            named(3, "tune", Outcome::Keep, 1.2),
        ];
        let words: Vec<_> =
            groups(&tries).iter().map(|group| format!("{}: {}", group.technique, group.words())).collect();
        assert_eq!(words, ["tune: 2 tries, 2 kept, together 1.80×", "split-k: 1 try"]);
    }

    #[test]
    fn foresight_is_the_ratio_of_what_was_predicted_and_measured() {
        let pair = |predicted, ratio| Try { predicted, speedup: Some((ratio, ratio)), ..tried(1, Outcome::Revert) };
        let report = target("a", vec![pair(Some(1.2), 1.1), pair(None, 9.0), pair(Some(f64::NAN), 9.0)]);
        let words = report.foresight().expect("one pair");
        assert!(words.contains("1 experiment") && words.contains("1.20×") && words.contains("1.10×"), "{words}");
        assert_eq!(target("a", vec![tried(1, Outcome::Base)]).foresight(), None);
    }

    #[test]
    fn the_interval_is_that_of_a_session_that_compares_nothing() {
        let timing = |spread| TimingReport {
            latency_us: 100.0,
            spread,
            margin: 0.01,
            roofline_pct: 50.0,
            confirmations: Vec::new(),
            condition: None,
            shapes: Vec::new(),
        };
        let (low, high) = timing(0.01).latency_interval().expect("an interval");
        assert!((low - 98.077).abs() < 0.01 && (high - 101.96).abs() < 0.01, "{low} {high}");
        assert_eq!(timing(f64::NAN).latency_interval(), None);
        assert!(!timing(f64::NAN).section(true).into_string().contains("NaN"));
    }
}
