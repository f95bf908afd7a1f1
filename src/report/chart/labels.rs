//! Labels that do not cover each other.

use super::{Align, Point};

/// Rectangles that are taken, in pixels: left, top, right, bottom.
#[derive(Debug, Default)]
pub(super) struct Labels {
    taken: Vec<[f64; 4]>,
    /// What may be covered where there is no other way.
    marks: Vec<[f64; 4]>,
    /// Nothing is placed outside.
    bounds: [f64; 4],
}

impl Labels {
    /// Labels within left, top, right, bottom.
    pub(super) const fn within(bounds: [f64; 4]) -> Self {
        Self { taken: Vec::new(), marks: Vec::new(), bounds }
    }

    /// Keeps labels away from a place.
    pub(super) fn avoid(&mut self, (x, y): Point, radius: f64) {
        self.taken.push([x - radius, y - radius, x + radius, y + radius]);
    }

    /// Keeps labels away from a place as long as another is free; only [`Self::place_over_marks`] covers it.
    pub(super) fn mark(&mut self, (x, y): Point, radius: f64) {
        self.marks.push([x - radius, y - radius, x + radius, y + radius]);
    }

    /// Keeps labels away from a line.
    pub(super) fn avoid_path(&mut self, path: &[Point]) {
        for pair in path.windows(2) {
            let [from, to] = [pair[0], pair[1]];
            let pieces = ((to.0 - from.0).abs().max((to.1 - from.1).abs()) / 6.0).ceil().max(1.0);
            for piece in 0..=pieces as usize {
                let share = piece as f64 / pieces;
                self.avoid((from.0 + share * (to.0 - from.0), from.1 + share * (to.1 - from.1)), 2.0);
            }
        }
    }

    /// The first of some places where a label `width` × `height` covers nothing, which it then takes; the point is the
    /// middle of its left, centre or right.
    pub(super) fn place(&mut self, width: f64, height: f64, places: &[(Point, Align)]) -> Option<(Point, Align)> {
        self.first(width, height, places, true)
    }

    /// The same, where marks may be covered.
    pub(super) fn place_over_marks(
        &mut self,
        width: f64,
        height: f64,
        places: &[(Point, Align)],
    ) -> Option<(Point, Align)> {
        self.first(width, height, places, false)
    }

    fn first(&mut self, width: f64, height: f64, places: &[(Point, Align)], clear: bool) -> Option<(Point, Align)> {
        let [left, top, right, bottom] = self.bounds;
        let own = |((x, y), align): (Point, Align)| {
            let from = match align {
                Align::Left => x,
                Align::Centre => x - width / 2.0,
                Align::Right => x - width,
            };
            [from, y - height / 2.0, from + width, y + height / 2.0]
        };
        let apart = |a: [f64; 4], b: &[f64; 4]| a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1];
        let found = places.iter().copied().find(|place| {
            let own = own(*place);
            let inside = own[0] >= left && own[1] >= top && own[2] <= right && own[3] <= bottom;
            let covered = if clear { self.marks.as_slice() } else { &[] };
            inside && self.taken.iter().chain(covered).all(|other| apart(own, other))
        })?;
        self.taken.push(own(found));
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_takes_the_first_free_place_or_none() {
        let mut labels = Labels::within([0.0, 0.0, 100.0, 50.0]);
        labels.avoid((10.0, 10.0), 3.0);
        let places = [((5.0, 10.0), Align::Left), ((50.0, 20.0), Align::Centre), ((100.0, 40.0), Align::Right)];
        assert_eq!(labels.place(40.0, 10.0, &places), Some(places[1]));
        assert_eq!(labels.place(40.0, 10.0, &places), Some(places[2]));
        assert_eq!(labels.place(40.0, 10.0, &places), None);
        assert_eq!(labels.place(200.0, 10.0, &[((50.0, 5.0), Align::Centre)]), None);
        labels.avoid_path(&[(0.0, 30.0), (100.0, 30.0)]);
        assert_eq!(labels.place(10.0, 10.0, &[((50.0, 30.0), Align::Centre)]), None);
        labels.mark((90.0, 10.0), 2.0);
        let covering = [((90.0, 10.0), Align::Centre)];
        assert_eq!(labels.place(10.0, 10.0, &covering), None);
        assert_eq!(labels.place_over_marks(10.0, 10.0, &covering), Some(covering[0]));
    }
}
