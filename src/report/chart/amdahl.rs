//! Where the model's time goes, before and after, as two bars on the same scale.

use super::super::data::{PartKind, PartReport};
use super::super::figures::{share, time};
use super::{Align, Room, SMALL, TEXT, draw, ink, part_ink, text_width};

/// The bars; none where nothing took any time.
pub(in crate::report) fn amdahl(parts: &[PartReport], room: Room, title: &str) -> Option<String> {
    let total = |us: &dyn Fn(&PartReport) -> f64| parts.iter().map(us).filter(|us| us.is_finite()).sum::<f64>();
    let (before, after) = (total(&|part| part.before_us), total(&|part| part.after_us));
    let longest = before.max(after);
    if !(longest > 0.0 && longest.is_finite()) {
        return None;
    }
    let width = room.width();
    let (bar, gap) = (40.0, 34.0);
    let full = width - 4.0;
    Some(draw(width, 2.0 * (bar + gap) - 6.0, title, |sheet| {
        for (row, (name, whole)) in [("before", before), ("after", after)].into_iter().enumerate() {
            let top = 24.0 + row as f64 * (bar + gap);
            sheet.text(name, (2.0, top - 12.0), Align::Left, SMALL, ink::QUIET);
            let beside = 8.0 + text_width(name, SMALL);
            sheet.text(&time(whole), (2.0 + beside, top - 12.0), Align::Left, TEXT, ink::TEXT);
            let (mut x, mut place) = (2.0, 0);
            for part in parts {
                let us = if row == 0 { part.before_us } else { part.after_us };
                let fill = part_ink(part.kind, place);
                place += usize::from(part.kind == PartKind::Op);
                let long = if us.is_finite() { us.max(0.0) / longest * full } else { 0.0 };
                // A hair of paper parts neighbours where both can be seen.
                let hair = if long > 3.0 { 1.0 } else { 0.0 };
                sheet.rect((x, top), (x + long - hair, top + bar), fill);
                let percent = share(us / whole);
                let most = long - 12.0;
                if most > text_width(&percent, SMALL) {
                    // Where the name has no room the swatch in the table says whose colour it is.
                    if text_width(&part.name, SMALL) <= most {
                        sheet.text(&part.name, (x + 6.0, top + 13.0), Align::Left, SMALL, ink::TEXT);
                    }
                    sheet.text(&percent, (x + 6.0, top + 29.0), Align::Left, SMALL, ink::TEXT);
                }
                x += long;
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample::part;

    #[test]
    fn both_bars_have_one_scale_and_large_parts_a_name() {
        let parts = [part("matmul", 900.0, 450.0), part("softmax", 100.0, 100.0)];
        let svg = amdahl(&parts, Room::Wide, "time").expect("a chart");
        let document = roxmltree::Document::parse(&svg).expect(&svg);
        let widths: Vec<f64> = document
            .descendants()
            .filter(|node| node.has_tag_name("rect"))
            .map(|node| node.attribute("width").and_then(|width| width.parse().ok()).expect("a width"))
            .collect();
        assert_eq!(widths.len(), 4);
        assert!((widths[0] / widths[2] - 2.0).abs() < 0.02 && (widths[1] - widths[3]).abs() < 2.0, "{widths:?}");
        for text in ["matmul", "softmax", "90\u{a0}%", "82\u{a0}%", "1.00\u{a0}ms", "550\u{a0}µs"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
    }

    #[test]
    fn no_time_is_no_chart_and_odd_times_do_no_harm() {
        assert_eq!(amdahl(&[], Room::Wide, ""), None);
        assert_eq!(amdahl(&[part("a", 0.0, 0.0)], Room::Wide, ""), None);
        let odd = [part("a", f64::NAN, f64::INFINITY), part("", 1.0, 1.0), part("b", -1.0, 3.0)];
        let svg = amdahl(&odd, Room::Narrow, "").expect("a chart");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
