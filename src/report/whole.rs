//! The sections about the model as a whole: the Amdahl table and the roofline.

use maud::{Markup, html};

use super::chart::{is_placed, part_ink};
use super::data::{PartKind, PartReport, RunReport, TargetReport, sound};
use super::figures::{NOTHING, fine_times, maybe_times, percent, rate, share, time};
use super::page::{Chart, sentence};

impl RunReport {
    /// The bars, the Amdahl table and what a reader should know about it.
    pub(super) fn model_section(&self, chart: Option<&Chart>) -> Markup {
        let total = |us: &dyn Fn(&PartReport) -> f64| self.parts.iter().filter_map(|part| sound(us(part))).sum::<f64>();
        let (before, after) = (total(&|part| part.before_us), total(&|part| part.after_us));
        // What the whole pass comes to where each part gains what it gained by itself, against what was measured of it.
        let whole = self.whole.as_ref().and_then(|whole| sound(whole.measured.as_ref()?.ratio));
        let measured = whole.map(|ratio| (before / ratio, ratio));
        let mut ops = 0;
        let inks: Vec<String> = self
            .parts
            .iter()
            .map(|part| {
                let ink = part_ink(part.kind, ops);
                ops += usize::from(part.kind == PartKind::Op);
                ink.class()
            })
            .collect();
        html! {
            @if self.parts.is_empty() {
                p { "The model was not profiled." }
            } @else {
                @if let Some(chart) = chart {
                    (chart.figure(&html! { "The parts of one pass as the profile timed them, and as they are after, on one scale." }))
                }
                div.scroll {
                    table.numbers {
                        thead { tr {
                            th { "part" } th { "calls" } th { "before" } th { "share" } th { "after" } th { "share" }
                            th { "vs. yours" } th { "in place" } th { "of roof before" }
                        } }
                        tbody {
                            @for (part, ink) in self.parts.iter().zip(&inks) {
                                tr.quiet[part.kind != PartKind::Op] {
                                    th { span.swatch.(ink) {} (part.name) }
                                    td { @if part.calls > 0 { (part.calls) } @else { (NOTHING) } }
                                    td { (time(part.before_us)) }
                                    td { (share(part.before_us / before)) }
                                    td { (time(part.after_us)) }
                                    td { (share(part.after_us / after)) }
                                    td { (maybe_times(part.vs_user)) }
                                    td { (maybe_times(part.in_place)) }
                                    td { (of_roof(part)) }
                                }
                            }
                        }
                        tfoot {
                            tr {
                                th { "together" } td {} td { (time(before)) } td {} td { (time(after)) } td {}
                                td { (sound(before / after).map_or_else(|| NOTHING.to_owned(), fine_times)) } td {} td {}
                            }
                            @if let Some((now, ratio)) = measured {
                                tr.quiet { th { "not explained" } td {} td {} td {} td { (signed_time(now - after)) } td {} td {} td {} td {} }
                                tr {
                                    th { "whole pass, measured" } td {} td { (time(before)) } td {} td { (time(now)) } td {}
                                    td { (fine_times(ratio)) } td {} td {}
                                }
                            }
                        }
                    }
                }
                p.small {
                    "“vs. yours” is the kernel timed alone against what you have today; “in place” is the same within the model, where "
                    "caches and clocks are what they are there. Steps in grey are no operation’s, and stay as they are. "
                    @if self.whole.as_ref().is_some_and(|whole| whole.measured.is_some()) {
                        "“before” is from the profile at the start; the pass above was timed again at the end, both sides in "
                        "fresh processes, and differs from the profile’s by what processes differ: the last row has its gain on the profile’s time. "
                    }
                    "“after” follows from “in place” where that was measured, else from “vs. yours”. "
                    @for note in &self.notes { (sentence(note)) " " }
                }
            }
        }
    }

    /// The chart and the ceilings.
    pub(super) fn roofline_section(&self, chart: Option<&Chart>) -> Markup {
        html! {
            @if let Some(chart) = chart {
                (chart.figure(&html! {
                    "Rings are starting points, discs what there is now"
                    @if self.whole.is_some() { ", both over all calls of a pass" }
                    ". The black line is what reading memory and "
                    "arithmetic allow, the grey one what writing does, all measured on this device. A target above the "
                    "slope found its data in a cache. "
                    @let missing = self.unplaced();
                    @if !missing.is_empty() { "Not shown, for want of a time or of formulae: " (missing) "." }
                }))
            }
            @match &self.ceilings {
                Some(ceilings) => p.small {
                    "Measured on " (self.device) ": reading " (rate(ceilings.read_gb_s)) "B/s, writing "
                    (rate(ceilings.write_gb_s)) "B/s"
                    @if let Some((dtype, peak)) = &ceilings.arithmetic {
                        ", " (dtype) " arithmetic " (rate(*peak)) "FLOP/s"
                    }
                    "."
                },
                None => p { "This run did not write down the ceilings of its device." },
            }
            @if chart.is_none() && self.ceilings.is_some() {
                p { "No target has been timed yet." }
            }
        }
    }
}

impl RunReport {
    /// The targets that were begun and have no place in the roofline.
    fn unplaced(&self) -> String {
        let missing = self.targets.iter().filter(|target| target.begun && !is_placed(target));
        missing.map(|target| target.op.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// A time that may be less than nothing: parts timed apart can gain more than the pass that they are parts of.
fn signed_time(us: f64) -> String {
    if us < 0.0 { format!("−{}", time(-us)) } else { time(us) }
}

/// How much of its roofline a part reached before; above it a cache helped.
fn of_roof(part: &PartReport) -> String {
    let reached = part.roofline_us.and_then(|us| sound(100.0 * us / part.before_us));
    reached.map_or_else(|| NOTHING.to_owned(), |pct| if pct > 999.0 { "> 999 %".to_owned() } else { percent(pct) })
}

impl TargetReport {
    /// How much of its roofline the incumbent reaches.
    pub(super) fn of_roof(&self) -> String {
        self.timing.as_ref().map_or_else(|| NOTHING.to_owned(), |timing| percent(timing.roofline_pct))
    }
}
