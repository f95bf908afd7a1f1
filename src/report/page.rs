//! The page: one file with its style and its charts, no script, nothing loaded from anywhere.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{self, Room};
use super::data::{Outcome, Outputs, RunReport, TargetReport};
use super::figures::{NOTHING, counted, fine_times, legal, maybe_time, maybe_times, share, shell_word, span, time};
use super::{an_hour, spell};

/// The page's file name.
pub const PAGE_FILE: &str = "index.html";

/// A target with fewer experiments has no chart of its own: the first one shows as much.
const LEAST_FOR_CHART: usize = 4;

const STYLE: &str = include_str!("page.css");

/// The page and its charts as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The page, which holds the charts too.
    pub page: String,
    /// Charts by file name, for use elsewhere.
    pub charts: Vec<(String, String)>,
}

/// A chart for both kinds of room; both or neither.
pub(super) struct Chart {
    wide: String,
    narrow: String,
}

impl Chart {
    pub(super) fn new(paint: impl Fn(Room) -> Option<String>) -> Option<Self> {
        Some(Self { wide: paint(Room::Wide)?, narrow: paint(Room::Narrow)? })
    }

    pub(super) fn figure(&self, caption: &Markup) -> Markup {
        html! {
            figure {
                div.wide { (PreEscaped(&self.wide)) }
                div.narrow { (PreEscaped(&self.narrow)) }
                figcaption { (caption) }
            }
        }
    }
}

impl RunReport {
    /// The page and its charts.
    #[must_use]
    pub fn render(&self) -> Rendered {
        let lanes: Vec<chart::Lane<'_>> =
            self.targets.iter().enumerate().map(|(at, target)| (at + 1, target)).collect();
        let title = format!("Every experiment of run {} on {}", self.run, self.model_name());
        let progress = Chart::new(|room| chart::progress(&lanes, room, &title));
        let title = format!("Time of the parts of {}, before and after", self.model_name());
        let amdahl = Chart::new(|room| chart::amdahl(&self.parts, room, &title));
        let title = format!("Roofline of {} with the targets at the start and now", self.device);
        let ceilings = self.ceilings.as_ref();
        let roofline = Chart::new(|room| chart::roofline(ceilings?, &self.targets, room, &title));
        let begun = self.targets.iter().filter(|target| !target.tries.is_empty()).count();
        // With one target its chart would be the first one again.
        let own = |lane: &chart::Lane<'_>| {
            let title = format!("Every experiment on {}", lane.1.op);
            let worthwhile = begun > 1 && lane.1.tries.len() >= LEAST_FOR_CHART;
            worthwhile.then(|| Chart::new(|room| chart::progress(&[*lane], room, &title))).flatten()
        };
        let own: Vec<Option<Chart>> = lanes.iter().map(own).collect();

        let body = html! {
            main {
                (self.head())
                (self.alerts())
                @if let Some(chart) = &progress {
                    section #experiments {
                        h2 { "Every experiment" }
                        (chart.figure(&self.progress_caption()))
                    }
                }
                @if self.whole.is_some() {
                    section #model {
                        h2 { "Where the time goes" }
                        (self.model_section(amdahl.as_ref()))
                    }
                }
                section #roofline {
                    h2 { "How near to what the hardware can do" }
                    (self.roofline_section(roofline.as_ref()))
                }
                section #targets {
                    h2 { "Targets" }
                    (self.targets_table())
                    @for (at, target) in self.targets.iter().enumerate().filter(|(_, target)| target.begun) {
                        (target.article(at + 1, own[at].as_ref(), self.whole.is_some()))
                    }
                }
                (self.troubles())
                (self.commands())
            }
        };
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.headline()) " · Warpsmith " (self.run) }
                    style { (PreEscaped(style())) }
                }
                body { (body) }
            }
        };
        let mut charts = Vec::new();
        let mut file = |name: String, chart: Option<&Chart>| {
            charts.extend(chart.map(|chart| (name, chart.wide.clone())));
        };
        file("experiments.svg".into(), progress.as_ref());
        file("model.svg".into(), amdahl.as_ref());
        file("roofline.svg".into(), roofline.as_ref());
        for (at, chart) in own.iter().enumerate() {
            file(format!("target-{}.svg", at + 1), chart.as_ref());
        }
        Rendered { page: legal(&page.into_string()), charts }
    }

    /// What came of it, in a line.
    #[must_use]
    pub fn headline(&self) -> String {
        let model = self.model_name();
        let kept = self.count(Outcome::Keep) > 0;
        let Some(whole) = &self.whole else { return self.kernel_headline() };
        let predicted = || whole.predicted.map_or_else(|| NOTHING.to_owned(), fine_times);
        match (&whole.measured, self.ended.is_some()) {
            _ if self.outputs_differ() => format!("{model}: the outputs differ"),
            (Some(measured), _) => format!("{model} is {} as fast", fine_times(measured.ratio)),
            (None, false) if kept => format!("{model}: {} predicted so far", predicted()),
            (None, true) if kept => format!("{model}: {} predicted", predicted()),
            (None, false) => format!("{model}: nothing kept so far"),
            (None, true) => format!("{model}: nothing was faster than what you have"),
        }
    }

    fn head(&self) -> Markup {
        html! {
            header {
                p.eyebrow { "Warpsmith · run " (self.run) }
                h1 { (self.headline()) }
                p.lead {
                    (self.pass) " on " (self.device) " (" (self.backend) ")"
                    @if let Some(times) = &self.span { ", " (span(times)) }
                    ". "
                    @match &self.ended {
                        Some(why) => { "Ended: " (why) "." }
                        None => { "Not finished." }
                    }
                }
                dl.tiles {
                    @match &self.whole {
                        Some(whole) => (whole.tiles(self.ended.is_some())),
                        None => (self.kernel_tiles()),
                    }
                    (tile("Experiments", &self.tries().count().to_string(), &self.pace()))
                    (tile("Time", &spell(self.spent), &format!("device busy {}", share(self.busy))))
                    @if let Some(whole) = &self.whole { (whole.outputs_tile(self.ended.is_some())) }
                }
            }
        }
    }

    /// What the model says now against what it said before, where that was looked at.
    fn outputs(&self) -> Option<&Outputs> {
        self.whole.as_ref()?.outputs.as_ref()
    }

    /// Whether the model says something else than before.
    fn outputs_differ(&self) -> bool {
        self.outputs().is_some_and(|outputs| !outputs.agree)
    }

    fn pace(&self) -> String {
        let tries = self.tries().count() as u64;
        format!("{} kept, {:.0} an hour", self.count(Outcome::Keep), an_hour(tries, self.spent))
    }

    /// What must not be overlooked.
    fn alerts(&self) -> Markup {
        let outputs = self.outputs();
        html! {
            @if let Some(outputs) = outputs {
                p.alert[!outputs.agree].note[outputs.agree] { (sentence(&outputs.words)) }
            }
            @if self.ended.is_none() {
                p.note {
                    "This run has not ended: figures may still change. Go on with "
                    code { (self.resume_command()) }
                    ", and write this page again afterwards."
                }
            }
        }
    }

    fn progress_caption(&self) -> Markup {
        let timed = self.tries().filter(|tried| tried.speedup.is_some()).count();
        html! {
            "Each mark is an experiment, at its speedup over the target’s starting point; what is slower than 0.2× stands at "
            "the lower edge. The line is the best there was; where there is room, what was kept bears its technique and its "
            "gain over the kernel before it. Numbers above are the targets’, as in the table below; a target that was never "
            "timed has no line. "
            @if timed > 0 {
                (counted(timed, "experiment was", "experiments were")) " timed against an incumbent; "
                "the others were starting points, not correct, or did not come that far."
            }
        }
    }

    fn targets_table(&self) -> Markup {
        html! {
            div.scroll {
                table.numbers {
                    thead { tr {
                        th { "target" }
                        @if self.whole.is_some() { th { "share" } }
                        th { "start" } th { "now" } th { "vs. yours" } th { "of roof" }
                        th { "kept" } th { "tried" } th.words { "stopped because" }
                    } }
                    tbody {
                        @for (at, target) in self.targets.iter().enumerate() {
                            tr {
                                th {
                                    @if target.begun {
                                        a href=(format!("#target-{}", at + 1)) { (at + 1) " " (target.op) }
                                    } @else { (at + 1) " " (target.op) }
                                }
                                @if self.whole.is_some() { td { (share(target.share)) } }
                                td { (maybe_time(target.start_us)) }
                                td { (maybe_time(target.best_us)) }
                                td { (maybe_times(target.vs_user)) }
                                td { (target.of_roof()) }
                                td { (target.count(Outcome::Keep)) }
                                td { (target.tried()) }
                                td.words { (target.why) }
                            }
                        }
                    }
                }
            }
            p.small {
                "“vs. yours” is the speed against what you have today"
                (self.against())
                @if self.whole.is_some() { "; “share” is of the model’s pass at the last ranking" }
                ". Speedups are medians of pairs; where the machine did other work, two times beside each other have another quotient."
            }
        }
    }

    /// What the user has.
    fn against(&self) -> String {
        let mut libraries: Vec<&str> = self.targets.iter().filter_map(|target| target.against.as_deref()).collect();
        libraries.sort_unstable();
        libraries.dedup();
        let begun = || self.targets.iter().filter(|target| target.begun);
        if libraries.is_empty() || begun().any(|target| target.against.is_none()) {
            libraries.push("the starting point");
        }
        format!(" ({})", libraries.join(", else "))
    }

    fn troubles(&self) -> Markup {
        html! {
            @if self.resumed > 0 || !self.troubles.is_empty() {
                section #troubles {
                    h2 { "Interruptions and trouble" }
                    @if self.resumed > 0 {
                        p { "The run was interrupted and resumed " (counted(self.resumed as usize, "time", "times"))
                            @if !self.resumed_at.is_empty() { ", " (self.resumed_where()) }
                            "; an experiment that was cut short was judged again with the same text and seed." }
                    }
                    @if !self.troubles.is_empty() {
                        ul {
                            @for (experiment, what) in &self.troubles {
                                li { span.number { "#" (experiment) } " " bdi { (what) } }
                            }
                        }
                    }
                }
            }
        }
    }

    /// `at experiment 14`, `at experiments 14, 14 and 90`.
    fn resumed_where(&self) -> String {
        let numbers: Vec<String> = self.resumed_at.iter().map(u64::to_string).collect();
        match numbers.split_last() {
            Some((last, [])) => format!("at experiment {last}"),
            Some((last, rest)) => format!("at experiments {} and {last}", rest.join(", ")),
            None => String::new(),
        }
    }

    fn resume_command(&self) -> String {
        format!("warpsmith run {} --resume {}", shell_word(&self.model), self.run)
    }

    fn commands(&self) -> Markup {
        let (run, model) = (&self.run, shell_word(&self.model));
        let kept = self.count(Outcome::Keep) > 0;
        let number = self.tries().find(|tried| tried.outcome == Outcome::Keep).or_else(|| self.tries().next());
        let number = number.map_or(1, |tried| tried.number);
        let mut rows = Vec::new();
        if self.ended.is_none() {
            rows.push((self.resume_command(), "go on"));
        }
        if kept {
            rows.push((format!("git log --stat warpsmith/{run}"), "the story of what was kept, a commit each"));
        }
        rows.push((format!("warpsmith show {number} --run {run}"), "one experiment: cases, times, why"));
        rows.push((format!("warpsmith log --wide --run {run}"), "every experiment with the times of each shape"));
        if kept && self.whole.is_some() {
            rows.push((
                format!("warpsmith verify {model} --run {run}"),
                "measure the whole model again, before and after",
            ));
        }
        if self.outputs_differ() {
            rows.push((format!("warpsmith verify {model} --run {run} --diagnose"), "which kernel is to blame"));
        } else if kept && self.ended.is_some() {
            rows.push((format!("warpsmith apply {run}"), "bring the winners into your kernels, as one commit"));
            rows.push((format!("git merge warpsmith/{run}"), "or with their whole history"));
        }
        html! {
            section #commands {
                h2 { "Look closer" }
                dl.commands {
                    @for (command, what) in &rows {
                        dt { code { (command) } }
                        dd { (what) }
                    }
                }
                footer {
                    "Written by Warpsmith " (env!("CARGO_PKG_VERSION")) " from the journal of run " (run)
                    ". Agent " (self.agent) @if let Some(used) = &self.used { " (" (used) ")" } ", seed " (self.seed) "."
                }
            }
        }
    }
}

impl TargetReport {
    /// Experiments with this outcome.
    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.tries.iter().filter(|tried| tried.outcome == outcome).count()
    }

    /// Experiments but for the starting point.
    pub(super) fn tried(&self) -> usize {
        self.tries.len() - self.count(Outcome::Base)
    }
}

pub(super) fn tile(name: &str, figure: &str, beside: &str) -> Markup {
    html! {
        div {
            dt { (name) }
            dd { strong { (figure) } span { (beside) } }
        }
    }
}

/// A sentence begins with a capital and ends with a full stop.
pub(super) fn sentence(words: &str) -> String {
    let mut chars = words.trim().chars();
    let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    let rest = chars.as_str();
    let end = if rest.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{rest}{end}")
}

/// The style sheet; the dark one is for screens only, since paper is white.
pub(super) fn style() -> String {
    format!("{STYLE}{}@media screen and (prefers-color-scheme:dark){{{}}}", chart::swatch_rules(), chart::dark_rules())
}

/// For the sections in other files.
pub(super) fn shown_time(us: f64) -> String {
    time(us)
}
