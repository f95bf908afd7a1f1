//! Charts as SVG text, drawn with plotters in pixels of the chart's own size.

mod amdahl;
mod axis;
mod ink;
mod labels;
mod progress;
mod roofline;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(super) use amdahl::amdahl;
pub(super) use ink::{Ink, dark_rules, part_ink, swatch_rules};
pub(super) use progress::{Lane, progress};
pub(super) use roofline::{is_placed, roofline};

use super::figures::legal;

/// For which screen a chart is drawn: text has the same size on both, so what fits differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// A desk or a sheet of paper.
    Wide,
    /// A phone.
    Narrow,
}

impl Room {
    /// Width in pixels.
    pub(super) const fn width(self) -> f64 {
        match self {
            Self::Wide => 1000.0,
            Self::Narrow => 420.0,
        }
    }
}

/// plotters' SVG has whole pixels: everything is drawn at so many times its size, for finer steps.
const FINE: f64 = 4.0;
/// plotters divides the size of text by this.
const TEXT_SCALE: f64 = 1.24;
/// Text size in pixels.
const TEXT: f64 = 13.0;
/// Size of text that says less.
const SMALL: f64 = 12.0;

/// Where text stands at its point: left, centre or right of it across; always centred on it vertically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Centre,
    Right,
}

/// A sheet to draw on. Writing to a text cannot fail, so that drawing has no errors to return.
struct Sheet<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

/// A chart of `width` × `height` px; `title` is what someone hears who cannot see it.
fn draw(width: f64, height: f64, title: &str, paint: impl FnOnce(&Sheet<'_>)) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (fine(width) as u32, fine(height) as u32)).into_drawing_area();
        paint(&Sheet { area });
    }
    // plotters' own first tag has a size that no page can scale, and no name.
    let body = text.split_once('>').map_or("", |(_, body)| body);
    let name: String = maud::html! { (legal(title)) }.into_string();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\"><title>{name}</title>{body}",
        fine(width),
        fine(height)
    )
}

fn fine(pixels: f64) -> i32 {
    (pixels * FINE).round() as i32
}

/// How wide a text is, about: the drawing has no fonts to measure by.
fn text_width(text: &str, size: f64) -> f64 {
    text.chars()
        .map(|c| {
            if "il.,:;|'()[] /ft1".contains(c) {
                0.36
            } else if c.is_uppercase() || c == 'm' || c == 'w' {
                0.72
            } else {
                0.57
            }
        })
        .sum::<f64>()
        * size
}

type Point = (f64, f64);

impl Sheet<'_> {
    fn line(&self, path: &[Point], ink: Ink, width: f64) {
        let path: Vec<_> = path.iter().map(|(x, y)| (fine(*x), fine(*y))).collect();
        let _ = self.area.draw(&PathElement::new(path, ink.rgb().stroke_width(fine(width) as u32)));
    }

    fn rect(&self, from: Point, to: Point, ink: Ink) {
        let corners = [from, to].map(|(x, y)| (fine(x), fine(y)));
        let _ = self.area.draw(&Rectangle::new(corners, ink.rgb().filled()));
    }

    fn disc(&self, (x, y): Point, radius: f64, ink: Ink) {
        let _ = self.area.draw(&Circle::new((fine(x), fine(y)), fine(radius), ink.rgb().filled()));
    }

    fn ring(&self, (x, y): Point, radius: f64, ink: Ink) {
        let _ =
            self.area.draw(&Circle::new((fine(x), fine(y)), fine(radius), ink.rgb().stroke_width(fine(1.4) as u32)));
    }

    fn polygon(&self, corners: &[Point], ink: Ink) {
        let corners: Vec<_> = corners.iter().map(|(x, y)| (fine(*x), fine(*y))).collect();
        let _ = self.area.draw(&Polygon::new(corners, ink.rgb().filled()));
    }

    fn text(&self, text: &str, (x, y): Point, align: Align, size: f64, ink: Ink) {
        let across = match align {
            Align::Left => HPos::Left,
            Align::Centre => HPos::Center,
            Align::Right => HPos::Right,
        };
        let colour = ink.rgb();
        let style =
            TextStyle::from(("inherit", size * FINE * TEXT_SCALE)).color(&colour).pos(Pos::new(across, VPos::Center));
        let _ = self.area.draw(&Text::new(legal(text), (fine(x), fine(y)), style));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_scales_has_a_name_and_escapes_what_it_is_given() {
        let hostile = "</text><script>alert('&\u{0}\"')</script>";
        let svg = draw(100.0, 50.0, hostile, |sheet| {
            sheet.text(hostile, (10.0, 10.0), Align::Left, TEXT, ink::TEXT);
            sheet.disc((10.25, 20.0), 2.0, ink::KEPT);
        });
        let document = roxmltree::Document::parse(&svg).expect(&svg);
        assert_eq!(document.root_element().attribute("viewBox"), Some("0 0 400 200"));
        let said: Vec<_> =
            document.descendants().filter(roxmltree::Node::is_text).filter_map(|node| node.text()).collect();
        let legal = hostile.replace('\u{0}', "");
        assert_eq!(said.iter().filter(|text| text.trim() == legal).count(), 2, "{svg}");
        assert!(!svg.contains("<script"), "{svg}");
        assert!(svg.contains("cx=\"41\""), "{svg}");
    }
}
