//! What came of a run in a few figures: of a model, or of a kernel alone.

use maud::{Markup, html};

use super::data::{Measured, Outcome, RunReport, TargetReport, Whole, sound};
use super::figures::{NOTHING, fine_times, maybe_time, maybe_times, time};
use super::page::tile;
use super::summary::places;
use super::trail::trail;

impl Whole {
    /// The speedup, measured and predicted, and the time of a pass.
    pub(super) fn tiles(&self, ended: bool) -> Markup {
        let predicted = self.predicted.map_or_else(|| NOTHING.to_owned(), fine_times);
        html! {
            @match &self.measured {
                Some(measured) => (tile("Measured", &fine_times(measured.ratio), &interval(measured))),
                None => (tile("Measured", NOTHING, waiting(ended))),
            }
            (tile("Predicted", &predicted, "by Amdahl’s law, from the targets"))
            (tile("One pass", &self.pass_now(), &self.pass_beside()))
        }
    }

    /// Whether the model says the same as before.
    pub(super) fn outputs_tile(&self, ended: bool) -> Markup {
        match &self.outputs {
            Some(outputs) => tile("Outputs", if outputs.agree { "agree" } else { "differ" }, "before against after"),
            None => tile("Outputs", NOTHING, waiting(ended)),
        }
    }

    /// A pass before: as it was timed beside the one after, where it was.
    fn pass_before(&self) -> Option<f64> {
        self.measured.map(|measured| measured.passes_us.0).or(self.before_us)
    }

    /// A pass now, measured or predicted.
    fn pass_now(&self) -> String {
        let predicted = || Some(self.before_us? / self.predicted?);
        maybe_time(self.measured.map(|measured| measured.passes_us.1).or_else(predicted))
    }

    /// What a pass was, and which of the two ways to time it both figures are of.
    fn pass_beside(&self) -> String {
        let Some(before) = self.pass_before() else { return "it was not profiled".to_owned() };
        let was = time(before);
        match (&self.measured, self.predicted) {
            (Some(_), _) => format!("was {was}, both in fresh processes"),
            (None, Some(_)) => format!("predicted; was {was} in the profile"),
            (None, None) => format!("was {was} in the profile"),
        }
    }
}

const fn waiting(ended: bool) -> &'static str {
    if ended { "nothing to compare" } else { "when the run ends" }
}

/// The 95 % interval of the ratio, with as many digits as that has, in words.
pub(super) fn interval(measured: &Measured) -> String {
    let digits = places(measured.ratio);
    match measured.interval {
        Some((low, high)) if sound(low).and(sound(high)).is_some() => {
            format!("{low:.digits$}× to {high:.digits$}× (95 %)")
        }
        Some(_) => format!("{NOTHING} (95 %)"),
        None => "too few passes for an interval".to_owned(),
    }
}

impl RunReport {
    /// What came of a kernel alone, in a line.
    pub(super) fn kernel_headline(&self) -> String {
        let name = self.model_name();
        let gained = self.targets.first().and_then(TargetReport::over_start);
        match (gained, self.ended.is_some()) {
            (Some(ratio), true) => format!("{name} is {} as fast", fine_times(ratio)),
            (Some(ratio), false) => format!("{name} is {} as fast so far", fine_times(ratio)),
            (None, true) => format!("{name}: nothing was faster than what you have"),
            (None, false) => format!("{name}: nothing kept so far"),
        }
    }

    /// The speedup of a kernel alone, its time, and how near it is to its roofline.
    pub(super) fn kernel_tiles(&self) -> Markup {
        let Some(kernel) = self.targets.first() else { return html! {} };
        let gained = kernel.over_start().map_or_else(|| NOTHING.to_owned(), fine_times);
        let was = kernel
            .start_us
            .and_then(sound)
            .map_or_else(|| "it was not timed".to_owned(), |us| format!("was {}", time(us)));
        html! {
            (tile("Measured", &gained, "over the starting point"))
            @if let Some(library) = &kernel.against {
                (tile("vs. yours", &maybe_times(kernel.vs_user), &format!("against {library}")))
            }
            (tile("Now", &maybe_time(kernel.best_us), &was))
            (tile("Of its roofline", &kernel.of_roof(), "by this device’s measured ceilings"))
        }
    }
}

impl TargetReport {
    /// The speedup over the starting point, where anything was kept.
    fn over_start(&self) -> Option<f64> {
        let kept = self.count(Outcome::Keep) > 0;
        trail(&self.tries).last().filter(|_| kept).and_then(|step| sound(step.best))
    }
}
