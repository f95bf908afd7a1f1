//! Every experiment as a point, and the running best of each target as a step line.

use super::super::data::{Outcome, TargetReport};
use super::super::figures::{shorten, times};
use super::super::trail::{Step, trail};
use super::axis::{Axis, Scale};
use super::labels::Labels;
use super::{Align, Point, Room, SMALL, Sheet, draw, ink, text_width};

/// From so many times between the slowest and the fastest on, the axis is logarithmic.
const LOG_FROM: f64 = 3.0;
/// What is slower stands at the lower edge: a failed idea must not press everything else together.
const LEAST: f64 = 0.2;
/// From so many experiments on, a label over marks cannot be read.
const CROWD: usize = 150;
/// Height of a line of text.
const LINE: f64 = 16.0;

/// A target with its number on the page.
pub(in crate::report) type Lane<'a> = (usize, &'a TargetReport);

/// The chart of some targets, side by side in the order of their experiments; none where there are fewer than two.
pub(in crate::report) fn progress(lanes: &[Lane<'_>], room: Room, title: &str) -> Option<String> {
    let lanes: Vec<(usize, &str, Vec<Step<'_>>)> =
        lanes.iter().map(|(place, target)| (*place, target.op.as_str(), trail(&target.tries))).collect();
    let steps: Vec<&Step<'_>> = lanes.iter().flat_map(|(_, _, steps)| steps).collect();
    let first = steps.iter().map(|step| step.tried.number).min()?;
    let last = steps.iter().map(|step| step.tried.number).max().filter(|last| *last > first)?;
    let untimed = steps.iter().any(|step| step.over_start.is_none());
    let legend = legend_rows(&steps, room);

    let width = room.width();
    let top = 44.0;
    let plot = match room {
        Room::Wide => 300.0,
        Room::Narrow => 250.0,
    };
    let lane_height = if untimed { 26.0 } else { 0.0 };
    let bottom = top + plot;
    let height = bottom + lane_height + 40.0 + LINE * 1.2 * legend.len() as f64;
    let (left, right) = (52.0, width - 14.0);
    let x = Axis::new(Scale::Linear, (first as f64 - 0.6, last as f64 + 0.6), (left, right));
    let (low, high) = range(&steps);
    let scale = if high / low > LOG_FROM { Scale::Log } else { Scale::Linear };
    let y = Axis::new(scale, (low, high), (bottom, top + 6.0));

    Some(draw(width, height, title, |sheet| {
        let mut labels = Labels::within([left, top, right + 10.0, bottom]);
        if lanes.len() > 1 {
            heads(sheet, &lanes, &x, (top, bottom + lane_height));
        }
        sheet.text("speedup over the start", (left - 44.0, 10.0), Align::Left, SMALL, ink::QUIET);
        for tick in y.ticks(if room == Room::Wide { 7 } else { 5 }) {
            let at = y.at(tick);
            sheet.line(&[(left, at), (right, at)], ink::GRID, 1.0);
            sheet.text(&tick_times(tick), (left - 7.0, at), Align::Right, SMALL, ink::QUIET);
        }
        let foot = bottom + lane_height;
        sheet.line(&[(left, foot), (right, foot)], ink::QUIET, 1.0);
        for tick in x.ticks(if room == Room::Wide { 12 } else { 6 }).into_iter().filter(|tick| tick.fract() == 0.0) {
            sheet.line(&[(x.at(tick), foot), (x.at(tick), foot + 4.0)], ink::QUIET, 1.0);
            sheet.text(&format!("{tick}"), (x.at(tick), foot + 14.0), Align::Centre, SMALL, ink::QUIET);
        }
        sheet.text("experiment", (right, foot + 30.0), Align::Right, SMALL, ink::QUIET);
        if untimed {
            sheet.line(&[(left, bottom), (right, bottom)], ink::GRID, 1.0);
            sheet.text("not timed", (left - 7.0, bottom + lane_height / 2.0), Align::Right, 10.0, ink::QUIET);
        }
        let size = point_size(steps.len(), room);
        let place = |step: &Step<'_>| {
            let across = x.at(step.tried.number as f64);
            (across, step.over_start.map_or(bottom + lane_height / 2.0, |speedup| y.at(speedup)))
        };
        let over_line = |step: &&&Step<'_>| matches!(step.tried.outcome, Outcome::Base | Outcome::Keep);
        for step in steps.iter().filter(|step| !over_line(step)) {
            mark(sheet, step.tried.outcome, place(step), size);
        }
        for (_, _, steps) in &lanes {
            sheet.line(&staircase(steps, &x, &y), ink::KEPT, 2.0);
        }
        for step in steps.iter().filter(over_line) {
            mark(sheet, step.tried.outcome, place(step), size + 0.6);
            labels.avoid(place(step), size);
        }
        for (_, _, steps) in &lanes {
            labels.avoid_path(&staircase(steps, &x, &y));
        }
        for step in steps.iter().filter(|step| step.over_start.is_some()) {
            labels.mark(place(step), size);
        }
        name_kept(sheet, &mut labels, &steps, &place, room);
        for (row, items) in legend.iter().enumerate() {
            let at = foot + 30.0 + LINE * 1.2 * (row as f64 + if room == Room::Wide { 0.0 } else { 1.0 });
            draw_legend(sheet, items, (left, at));
        }
    }))
}

/// From the slowest shown to the fastest, with some air.
fn range(steps: &[&Step<'_>]) -> (f64, f64) {
    let speedups = || steps.iter().flat_map(|step| [step.over_start.unwrap_or(1.0), step.best]);
    let low = speedups().fold(0.95, f64::min).max(LEAST);
    let high = speedups().fold(1.05, f64::max);
    (low / 1.02, high + (high - low) * 0.12)
}

/// The least points are large enough to be told apart, the most leave the line visible.
fn point_size(count: usize, room: Room) -> f64 {
    let crowd = count as f64 / room.width() * 1000.0;
    match crowd {
        crowd if crowd <= 80.0 => 4.4,
        crowd if crowd <= 300.0 => 3.4,
        crowd if crowd <= 800.0 => 2.6,
        _ => 1.9,
    }
}

/// The running best from the first experiment of a target to its last; nothing where none was timed.
fn staircase(steps: &[Step<'_>], x: &Axis, y: &Axis) -> Vec<Point> {
    let mut path: Vec<Point> = Vec::new();
    if steps.iter().all(|step| step.over_start.is_none()) {
        return path;
    }
    let mut best = 1.0;
    for step in steps {
        let across = x.at(step.tried.number as f64);
        if path.is_empty() || step.best.to_bits() != f64::to_bits(best) {
            path.push((across, y.at(best)));
            path.push((across, y.at(step.best)));
            best = step.best;
        }
    }
    if let Some(last) = steps.last() {
        path.push((x.at(last.tried.number as f64 + 0.45), y.at(best)));
    }
    path
}

/// Targets' names over their part of the chart, every second one on a band.
fn heads(sheet: &Sheet<'_>, lanes: &[(usize, &str, Vec<Step<'_>>)], x: &Axis, (top, bottom): (f64, f64)) {
    let spanned = lanes.iter().filter_map(|(place, op, steps)| {
        let (first, last) = (steps.first()?.tried.number, steps.last()?.tried.number);
        Some((place, op, x.at(first as f64 - 0.5), x.at(last as f64 + 0.5)))
    });
    for (at, (place, op, from, to)) in spanned.enumerate() {
        if at % 2 == 0 {
            sheet.rect((from, top - 20.0), (to, bottom), ink::BAND);
        }
        let whole = format!("{place} {op}");
        let room = to - from - 6.0;
        // A part of a name says less than the number, by which the page's table has all of it.
        let head = if text_width(&whole, SMALL) <= room { whole } else { place.to_string() };
        sheet.text(&head, (f64::midpoint(from, to), top - 9.0), Align::Centre, SMALL, ink::TEXT);
    }
}

/// Names the kept ones, the greatest gains first, as far as there is room.
fn name_kept(
    sheet: &Sheet<'_>,
    labels: &mut Labels,
    steps: &[&Step<'_>],
    place: &dyn Fn(&Step<'_>) -> Point,
    room: Room,
) {
    let mut kept: Vec<(&Step<'_>, f64)> = steps
        .iter()
        .filter(|step| step.tried.outcome == Outcome::Keep)
        .map(|step| (*step, step.tried.speedup.map_or(1.0, |(ratio, _)| ratio)))
        .collect();
    kept.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let most = if room == Room::Wide { 40 } else { 12 };
    for (rank, (step, gain)) in kept.into_iter().take(most).enumerate() {
        let text = format!("{} {}", shorten(&step.tried.technique, 18), times(gain));
        let (x, y) = place(step);
        let places = [
            ((x - 7.0, y - 9.0), Align::Right),
            ((x - 9.0, y), Align::Right),
            ((x, y - 13.0), Align::Centre),
            ((x + 4.0, y - 13.0), Align::Left),
            ((x - 7.0, y - 22.0), Align::Right),
            ((x, y - 26.0), Align::Centre),
            ((x + 8.0, y + 10.0), Align::Left),
            ((x + 8.0, y + 22.0), Align::Left),
        ];
        let width = text_width(&text, SMALL) + 2.0;
        let clear = labels.place(width, 14.0, &places);
        // The greatest gains are named even where that covers what was reverted, if it is only little.
        let insist = rank < 3 && steps.len() < CROWD;
        let placed = clear.or_else(|| insist.then(|| labels.place_over_marks(width, 14.0, &places)).flatten());
        if let Some((at, align)) = placed {
            sheet.text(&text, at, align, SMALL, ink::KEPT);
        }
    }
}

/// An outcome's mark: no two have the same form.
fn mark(sheet: &Sheet<'_>, outcome: Outcome, at: Point, size: f64) {
    let (x, y) = at;
    let bar = size * 0.95;
    match outcome {
        Outcome::Base => {
            sheet.disc(at, size + 0.8, ink::KEPT);
            sheet.disc(at, size - 0.8, ink::PAPER);
        }
        Outcome::Keep => sheet.disc(at, size, ink::KEPT),
        Outcome::Revert => sheet.ring(at, size * 0.9, ink::REVERTED),
        Outcome::Reject => {
            sheet.line(&[(x - bar, y - bar), (x + bar, y + bar)], ink::WRONG, 1.8);
            sheet.line(&[(x - bar, y + bar), (x + bar, y - bar)], ink::WRONG, 1.8);
        }
        Outcome::Crash => sheet.polygon(&[(x, y - size), (x + size, y + size), (x - size, y + size)], ink::FAILED),
        Outcome::Withdrawn => sheet.polygon(&[(x - size, y - size), (x + size, y - size), (x, y + size)], ink::WRONG),
        Outcome::Timeout => sheet.rect((x - bar, y - bar), (x + bar, y + bar), ink::FAILED),
        Outcome::Error => {
            sheet.polygon(
                &[(x, y - size * 1.2), (x + size * 1.2, y), (x, y + size * 1.2), (x - size * 1.2, y)],
                ink::FAILED,
            );
        }
    }
}

/// What each mark means, for those that occur, in rows that fit.
fn legend_rows(steps: &[&Step<'_>], room: Room) -> Vec<Vec<Outcome>> {
    let there = Outcome::ALL.into_iter().filter(|outcome| steps.iter().any(|step| step.tried.outcome == *outcome));
    let most = room.width() - if room == Room::Wide { 150.0 } else { 60.0 };
    let mut rows: Vec<Vec<Outcome>> = Vec::new();
    let mut used = f64::INFINITY;
    for outcome in there {
        let width = legend_width(outcome);
        if used + width > most {
            rows.push(Vec::new());
            used = 0.0;
        }
        used += width;
        if let Some(row) = rows.last_mut() {
            row.push(outcome);
        }
    }
    rows
}

fn legend_width(outcome: Outcome) -> f64 {
    text_width(outcome.word(), SMALL) + 34.0
}

fn draw_legend(sheet: &Sheet<'_>, items: &[Outcome], (left, y): Point) {
    let mut x = left + 6.0;
    for outcome in items {
        mark(sheet, *outcome, (x, y), 4.2);
        sheet.text(outcome.word(), (x + 10.0, y), Align::Left, SMALL, ink::QUIET);
        x += legend_width(*outcome);
    }
}

/// `1×`, `1.2×`, `0.35×`.
fn tick_times(tick: f64) -> String {
    let text = format!("{tick:.3}");
    format!("{}×", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::Try;
    use crate::report::sample::{target, tried};

    fn circles(svg: &str, ink: &str) -> usize {
        svg.matches(&format!("fill=\"{ink}\" stroke=\"none\"")).count()
    }

    #[test]
    fn every_experiment_has_a_mark_and_kept_ones_a_name() {
        let tries = vec![
            tried(1, Outcome::Base),
            Try { speedup: Some((1.5, 1.4)), ..tried(2, Outcome::Keep) },
            Try { speedup: Some((0.9, 0.8)), ..tried(3, Outcome::Revert) },
            tried(4, Outcome::Reject),
            tried(5, Outcome::Error),
        ];
        let target = target("rmsnorm", tries);
        for room in [Room::Wide, Room::Narrow] {
            let svg = progress(&[(1, &target)], room, "progress").expect("a chart");
            let document = roxmltree::Document::parse(&svg).expect(&svg);
            let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
            for text in ["tune 1.50×", "start", "kept", "reverted", "rejected", "did not compile", "not timed"] {
                assert!(texts.contains(&text), "{text} in {texts:?}");
            }
            assert!(!texts.contains(&"crashed"), "{texts:?}");
            // One kept, the outer disc of the start, and one of each in the legend.
            assert_eq!(circles(&svg, "#0B5CAD"), 4, "{svg}");
            assert_eq!(svg.matches("<polygon").count(), 2, "{svg}");
        }
    }

    #[test]
    fn fewer_than_two_experiments_are_no_chart() {
        let empty = target("rmsnorm", Vec::new());
        assert_eq!(progress(&[(1, &empty)], Room::Wide, ""), None);
        let one = target("rmsnorm", vec![tried(1, Outcome::Base)]);
        assert_eq!(progress(&[(1, &one), (2, &empty)], Room::Wide, ""), None);
        let two = target("rmsnorm", vec![tried(2, Outcome::Base)]);
        assert!(progress(&[(1, &one), (2, &two)], Room::Narrow, "").is_some());
    }

    #[test]
    fn the_axis_holds_whatever_was_measured() {
        for (ratio, best) in [(1e-9, 1.0), (1e6, 1.0), (f64::NAN, 1.0), (1.0, 1e6)] {
            let tried = Try { speedup: Some((ratio, ratio)), ..tried(1, Outcome::Revert) };
            let step = Step { tried: &tried, over_start: Some(ratio).filter(|r| r.is_finite()), best };
            let (low, high) = range(&[&step]);
            assert!(low > 0.0 && low < high && high.is_finite(), "{ratio} {best}: {low} {high}");
        }
        assert_eq!([tick_times(1.0), tick_times(1.25), tick_times(20.0)], ["1×", "1.25×", "20×"]);
    }
}
