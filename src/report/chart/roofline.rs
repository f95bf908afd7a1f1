//! The roofline of the device, and where each target started and stands (Williams, Waterman and Patterson 2009).

use super::super::data::{CeilingLines, TargetReport, sound};
use super::super::figures::rate;
use super::axis::{Axis, Scale};
use super::labels::Labels;
use super::{Align, Point, Room, SMALL, draw, ink, text_width};

/// A target in the chart.
#[derive(Debug, Clone, PartialEq)]
struct Spot<'a> {
    op: &'a str,
    /// Operations a byte.
    intensity: f64,
    /// GFLOP/s at the start and now.
    start: f64,
    best: f64,
}

/// A target's place, where its work and both its times are known.
fn spot(target: &TargetReport) -> Option<Spot<'_>> {
    let work = target.work?;
    let rate = |us: Option<f64>| us.and_then(sound).and_then(|us| sound(work.flops / us / 1e3));
    Some(Spot {
        op: &target.op,
        intensity: sound(work.flops / work.bytes)?,
        start: rate(target.start_us)?,
        best: rate(target.best_us)?,
    })
}

/// Whether a target has a place in the chart.
pub(in crate::report) fn is_placed(target: &TargetReport) -> bool {
    spot(target).is_some()
}

/// The chart; none without ceilings, or where no target has its place.
pub(in crate::report) fn roofline(
    ceilings: &CeilingLines,
    targets: &[TargetReport],
    room: Room,
    title: &str,
) -> Option<String> {
    let (read, write) = (sound(ceilings.read_gb_s)?, sound(ceilings.write_gb_s));
    let peak = ceilings.arithmetic.as_ref().and_then(|(dtype, rate)| Some((dtype, sound(*rate)?)));
    let spots: Vec<Spot<'_>> = targets.iter().filter_map(spot).collect();
    if spots.is_empty() {
        return None;
    }
    let fold = |values: &mut dyn Iterator<Item = f64>, pick: fn(f64, f64) -> f64| values.reduce(pick);
    // The bend belongs in the picture, with enough of the slope to be seen as one.
    let ridge = peak.map(|(_, peak)| peak / read);
    let low_x = fold(&mut spots.iter().map(|spot| spot.intensity / 3.0).chain(ridge.map(|at| at / 8.0)), f64::min)?;
    let high_x = fold(&mut spots.iter().map(|spot| spot.intensity).chain(ridge), f64::max)? * 4.0;
    let roof = |x: f64| peak.map_or(read * x, |(_, peak)| peak.min(read * x));
    let low_y = fold(&mut spots.iter().map(|spot| spot.start.min(spot.best)).chain([roof(low_x)]), f64::min)? / 4.0;
    let high_y = fold(&mut spots.iter().map(|spot| spot.start.max(spot.best)).chain([roof(high_x)]), f64::max)? * 2.0;

    let width = room.width();
    let (left, right, top, bottom) = (56.0, width - 14.0, 28.0, if room == Room::Wide { 380.0 } else { 330.0 });
    let x = Axis::new(Scale::Log, (low_x, high_x), (left, right));
    let y = Axis::new(Scale::Log, (low_y, high_y), (bottom, top));
    Some(draw(width, bottom + 44.0, title, |sheet| {
        let few = if room == Room::Wide { 9 } else { 6 };
        sheet.text("FLOP/s", (left - 48.0, 10.0), Align::Left, SMALL, ink::QUIET);
        for tick in y.ticks(7) {
            sheet.line(&[(left, y.at(tick)), (right, y.at(tick))], ink::GRID, 1.0);
            sheet.text(&round_rate(tick), (left - 7.0, y.at(tick)), Align::Right, SMALL, ink::QUIET);
        }
        sheet.line(&[(left, bottom), (right, bottom)], ink::QUIET, 1.0);
        for tick in x.ticks(few) {
            sheet.line(&[(x.at(tick), bottom), (x.at(tick), bottom + 4.0)], ink::QUIET, 1.0);
            sheet.text(&plain(tick), (x.at(tick), bottom + 14.0), Align::Centre, SMALL, ink::QUIET);
        }
        sheet.text("useful operations a byte", (right, bottom + 32.0), Align::Right, SMALL, ink::QUIET);
        let mut labels = Labels::within([left, top - 14.0, right + 8.0, bottom]);
        if let Some(write) = write {
            let under = slope(write, peak.map(|(_, peak)| peak), (low_x, high_x), (low_y, high_y), (&x, &y));
            sheet.line(&under, ink::REVERTED, 1.2);
            labels.avoid_path(&under);
        }
        let over = slope(read, peak.map(|(_, peak)| peak), (low_x, high_x), (low_y, high_y), (&x, &y));
        sheet.line(&over, ink::TEXT, 1.8);
        if let Some((_, peak)) = peak {
            let from = (peak / read).clamp(low_x, high_x);
            let flat = [(x.at(from), y.at(peak)), (right, y.at(peak))];
            sheet.line(&flat, ink::TEXT, 1.8);
            labels.avoid_path(&flat);
        }
        labels.avoid_path(&over);
        for spot in &spots {
            for speed in [spot.start, spot.best] {
                labels.avoid((x.at(spot.intensity), y.at(speed)), 6.0);
            }
        }
        let mut name = |text: &str, places: &[(Point, Align)], ink| -> Option<Point> {
            let (at, align) = labels.place(text_width(text, SMALL), 14.0, places)?;
            sheet.text(text, at, align, SMALL, ink);
            Some(at)
        };
        if let Some((dtype, peak)) = peak {
            let text = format!("{dtype} arithmetic {}FLOP/s", rate(peak));
            let beside = |off: f64| ((right, y.at(peak) + off), Align::Right);
            name(&text, &[beside(-11.0), beside(12.0), beside(-26.0), beside(28.0)], ink::TEXT);
        }
        let bandwidth = |words: &str, gb_s: f64| format!("{words} {gb_s:.0} GB/s");
        let along = |gb_s: f64, off: f64, align| -> Vec<(Point, Align)> {
            [0.12, 0.3, 0.5, 0.7]
                .map(|part| low_x * (high_x / low_x).powf(part))
                .into_iter()
                .filter(|at| gb_s * at <= high_y && gb_s * at >= low_y)
                .map(|at| ((x.at(at) + off, y.at(gb_s * at) + off), align))
                .collect()
        };
        // Each on its own side of the other.
        let (above, below) = ((-12.0, Align::Right), (12.0, Align::Left));
        let (of_read, of_write) = if write.is_some_and(|write| write > read) { (below, above) } else { (above, below) };
        name(&bandwidth("read", read), &along(read, of_read.0, of_read.1), ink::TEXT);
        if let Some(write) = write {
            name(&bandwidth("write", write), &along(write, of_write.0, of_write.1), ink::QUIET);
        }
        for spot in &spots {
            let across = x.at(spot.intensity);
            let (start, best) = ((across, y.at(spot.start)), (across, y.at(spot.best)));
            sheet.line(&[start, best], ink::KEPT, 1.4);
            sheet.disc(start, 4.8, ink::KEPT);
            sheet.disc(start, 3.2, ink::PAPER);
            sheet.disc(best, 5.0, ink::KEPT);
        }
        for spot in &spots {
            let (across, best, start) = (x.at(spot.intensity), y.at(spot.best), y.at(spot.start));
            let lower = start.max(best);
            let mut places = vec![
                ((across + 10.0, best), Align::Left),
                ((across - 10.0, best), Align::Right),
                ((across + 10.0, best + 15.0), Align::Left),
                ((across, lower + 15.0), Align::Centre),
                ((across - 10.0, best + 15.0), Align::Right),
                ((across + 10.0, best - 15.0), Align::Left),
            ];
            places.extend((2..8).map(|row| ((across, lower + 15.0 * f64::from(row)), Align::Centre)));
            if let Some((x, y)) = name(spot.op, &places, ink::KEPT).filter(|(_, y)| *y > lower + 20.0) {
                sheet.line(&[(x, lower + 6.0), (x, y - 8.0)], ink::REVERTED, 0.8);
            }
        }
    }))
}

/// The line of a bandwidth within the chart, up to the arithmetic's ceiling.
fn slope(
    gb_s: f64,
    peak: Option<f64>,
    (low_x, high_x): (f64, f64),
    (low_y, high_y): (f64, f64),
    (x, y): (&Axis, &Axis),
) -> Vec<Point> {
    let from = low_x.max(low_y / gb_s);
    let to = high_x.min(peak.unwrap_or(high_y) / gb_s).max(from);
    [from, to].map(|at| (x.at(at), y.at(gb_s * at))).to_vec()
}

/// `0.1`, `20`, `5000`.
fn plain(tick: f64) -> String {
    let text = format!("{tick:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A tick in GFLOP/s with its unit.
fn round_rate(giga: f64) -> String {
    match giga {
        giga if giga >= 1e3 => format!("{} T", plain(giga / 1e3)),
        giga if giga < 1.0 => format!("{} M", plain(giga * 1e3)),
        giga => format!("{} G", plain(giga)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::TargetWork;
    use crate::report::sample::target;

    fn ceilings() -> CeilingLines {
        CeilingLines { read_gb_s: 20.0, write_gb_s: 10.0, arithmetic: Some(("f32".into(), 200.0)) }
    }

    fn placed(op: &str, work: Option<TargetWork>, times: [f64; 2]) -> TargetReport {
        TargetReport { work, start_us: Some(times[0]), best_us: Some(times[1]), ..target(op, Vec::new()) }
    }

    #[test]
    fn a_target_stands_at_its_intensity_under_the_roof() {
        let work = TargetWork { flops: 4e6, bytes: 1e6 };
        let target = placed("matmul", Some(work), [2000.0, 100.0]);
        assert_eq!(spot(&target), Some(Spot { op: "matmul", intensity: 4.0, start: 2.0, best: 40.0 }));
        for room in [Room::Wide, Room::Narrow] {
            let svg = roofline(&ceilings(), std::slice::from_ref(&target), room, "roofline").expect("a chart");
            let document = roxmltree::Document::parse(&svg).expect(&svg);
            let texts: Vec<_> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
            for text in ["matmul", "read 20 GB/s", "f32 arithmetic 200\u{a0}GFLOP/s"] {
                assert!(texts.contains(&text), "{text} in {texts:?}");
            }
        }
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let work = TargetWork { flops: 4e6, bytes: 1e6 };
        for target in [
            placed("a", None, [2.0, 1.0]),
            placed("a", Some(work), [f64::NAN, 1.0]),
            placed("a", Some(work), [1.0, 0.0]),
            placed("a", Some(TargetWork { flops: 0.0, ..work }), [1.0, 1.0]),
            placed("a", Some(TargetWork { bytes: 0.0, ..work }), [1.0, 1.0]),
        ] {
            assert_eq!(spot(&target), None, "{target:?}");
            assert_eq!(roofline(&ceilings(), &[target], Room::Wide, ""), None);
        }
        let known = [placed("a", Some(work), [2.0, 1.0])];
        for read_gb_s in [0.0, f64::NAN, f64::INFINITY] {
            assert_eq!(roofline(&CeilingLines { read_gb_s, ..ceilings() }, &known, Room::Wide, ""), None);
        }
        let no_peak = CeilingLines { arithmetic: None, write_gb_s: f64::NAN, ..ceilings() };
        assert!(roofline(&no_peak, &known, Room::Wide, "").is_some_and(|svg| !svg.contains("NaN")));
    }

    #[test]
    fn ticks_have_units() {
        assert_eq!([round_rate(0.5), round_rate(20.0), round_rate(5000.0)], ["500 M", "20 G", "5 T"]);
    }
}
