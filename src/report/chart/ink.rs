//! Colours: each has a light and a dark form, and is told from the others by readers who see few colours.
//!
//! A chart is drawn in the light ones. On a dark page the style sheet puts the dark form in the place of each.

use plotters::style::RGBColor;

/// A colour of the charts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::report) struct Ink {
    light: (u8, u8, u8),
    dark: &'static str,
}

const fn ink(r: u8, g: u8, b: u8, dark: &'static str) -> Ink {
    Ink { light: (r, g, b), dark }
}

/// Text.
pub(super) const TEXT: Ink = ink(0x1c, 0x22, 0x28, "#e8eaed");
/// Text that says less, and axes.
pub(super) const QUIET: Ink = ink(0x5b, 0x65, 0x70, "#a3adb8");
/// Lines of the grid.
pub(super) const GRID: Ink = ink(0xe3, 0xe6, 0xea, "#2c333a");
/// Behind every second target.
pub(super) const BAND: Ink = ink(0xf5, 0xf6, 0xf8, "#1b2026");
/// The page, where something must cover what is behind it.
pub(super) const PAPER: Ink = ink(0xff, 0xff, 0xff, "#13171b");
/// Kept, and the running best.
pub(super) const KEPT: Ink = ink(0x0b, 0x5c, 0xad, "#6cb2ff");
/// Reverted.
pub(super) const REVERTED: Ink = ink(0x7a, 0x84, 0x8f, "#8b96a2");
/// Wrong.
pub(super) const WRONG: Ink = ink(0xc4, 0x4a, 0x00, "#ff9147");
/// Crashed, timed out, did not compile.
pub(super) const FAILED: Ink = ink(0x8e, 0x3a, 0x8c, "#d98ad6");
/// A step that no operation computes.
const GLUE: Ink = ink(0xd3, 0xd8, 0xde, "#454e58");
/// What the parts do not explain.
const OTHER: Ink = ink(0xe9, 0xec, 0xf0, "#343c45");

/// Fills for operations; text in [`TEXT`] stands on them.
const FILLS: [Ink; 9] = [
    ink(0x9c, 0xc5, 0xee, "#1f5587"),
    ink(0xf6, 0xc8, 0x8f, "#85551a"),
    ink(0xa6, 0xd9, 0xc3, "#1f6a4e"),
    ink(0xe3, 0xb5, 0xdd, "#74386d"),
    ink(0xf0, 0xe1, 0x8c, "#6f6116"),
    ink(0xb9, 0xbc, 0xee, "#44489a"),
    ink(0xf4, 0xb5, 0xab, "#8a3c30"),
    ink(0xc5, 0xdd, 0x95, "#52691d"),
    ink(0x9e, 0xdb, 0xe2, "#1d6670"),
];

const PLAIN: [Ink; 11] = [TEXT, QUIET, GRID, BAND, PAPER, KEPT, REVERTED, WRONG, FAILED, GLUE, OTHER];

impl Ink {
    /// For plotters.
    pub(super) const fn rgb(self) -> RGBColor {
        RGBColor(self.light.0, self.light.1, self.light.2)
    }

    /// As plotters writes it.
    fn hex(self) -> String {
        let (r, g, b) = self.light;
        format!("#{r:02X}{g:02X}{b:02X}")
    }

    fn all() -> impl Iterator<Item = Self> {
        PLAIN.into_iter().chain(FILLS)
    }
}

/// The fill of a part: the operations' in turn, by their place among the operations.
pub(in crate::report) const fn part_ink(kind: super::super::data::PartKind, place: usize) -> Ink {
    match kind {
        super::super::data::PartKind::Op => FILLS[place % FILLS.len()],
        super::super::data::PartKind::Glue => GLUE,
        super::super::data::PartKind::Other => OTHER,
    }
}

/// The class of an ink for things outside charts, which [`swatch_rules`] colours.
impl Ink {
    /// Such as `ink-9cc5ee`.
    pub(in crate::report) fn class(self) -> String {
        format!("ink-{}", &self.hex()[1..].to_lowercase())
    }
}

/// Style rules that colour swatches like the chart.
pub(in crate::report) fn swatch_rules() -> String {
    Ink::all().map(|ink| format!(".{}{{background:{}}}", ink.class(), ink.hex())).collect()
}

/// Style rules that put the dark form of every ink in its place.
pub(in crate::report) fn dark_rules() -> String {
    Ink::all()
        .map(|ink| {
            let (light, dark) = (ink.hex(), ink.dark);
            format!("svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}.{}{{background:{dark}}}", ink.class())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2.2).
    fn luminance(rgb: [u8; 3]) -> f64 {
        let [r, g, b] = rgb.map(|value| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: [u8; 3], b: [u8; 3]) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    fn both(ink: Ink) -> [[u8; 3]; 2] {
        let parse = |at: usize| u8::from_str_radix(&ink.dark[at..at + 2], 16).expect("two digits");
        [[ink.light.0, ink.light.1, ink.light.2], [parse(1), parse(3), parse(5)]]
    }

    #[test]
    fn every_ink_can_be_read_on_its_paper_by_day_and_by_night() {
        for (ink, least) in [(TEXT, 7.0), (QUIET, 4.5), (KEPT, 4.5), (REVERTED, 3.0), (WRONG, 4.5), (FAILED, 4.5)] {
            for (ink, paper) in both(ink).into_iter().zip(both(PAPER)) {
                assert!(contrast(ink, paper) >= least, "{ink:?} on {paper:?}: {:.2}", contrast(ink, paper));
            }
        }
        for fill in FILLS.into_iter().chain([GLUE, OTHER, BAND]) {
            for (text, fill) in both(TEXT).into_iter().zip(both(fill)) {
                assert!(contrast(text, fill) >= 4.5, "{fill:?}: {:.2}", contrast(text, fill));
            }
        }
    }

    #[test]
    fn no_two_inks_are_the_same_so_that_each_has_its_own_dark_form() {
        let mut all: Vec<_> = Ink::all().map(Ink::hex).collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(dark_rules().contains("svg [fill=\"#0B5CAD\"]{fill:#6cb2ff}"));
    }
}
