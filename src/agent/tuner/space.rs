//! The points of a kernel file's tunables.

use std::collections::BTreeMap;

use crate::kernel::KernelFile;
use crate::rng::Stream;

/// Tunables by name.
pub type Values = BTreeMap<String, i64>;

/// A point: for each axis, which of its choices.
pub type Point = Vec<usize>;

/// One tunable with more than one choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The tunable's name.
    pub name: String,
    /// Its choices in ascending order, so that neighbours are alike.
    pub choices: Vec<i64>,
}

/// All combinations of choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    axes: Vec<Axis>,
    fixed: Values,
}

impl Space {
    /// The space of a kernel file.
    #[must_use]
    pub fn of(kernel: &KernelFile) -> Self {
        let mut space = Self { axes: Vec::new(), fixed: Values::new() };
        for (name, tunable) in &kernel.front.tune {
            if tunable.choices.len() < 2 {
                space.fixed.insert(name.clone(), tunable.value);
                continue;
            }
            let mut choices = tunable.choices.clone();
            choices.sort_unstable();
            space.axes.push(Axis { name: name.clone(), choices });
        }
        space
    }

    /// Its axes, by name.
    #[must_use]
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// How many points it has (saturating).
    #[must_use]
    pub fn size(&self) -> u64 {
        self.axes.iter().fold(1u64, |n, axis| n.saturating_mul(axis.choices.len() as u64))
    }

    /// The point at these values; a value that is no choice (a variant may have one) counts as the nearest, a missing
    /// one as the lowest.
    #[must_use]
    pub fn point(&self, values: &Values) -> Point {
        let nearest = |axis: &Axis| {
            let value = values.get(&axis.name).copied().unwrap_or(i64::MIN);
            (0..axis.choices.len()).min_by_key(|index| axis.choices[*index].abs_diff(value)).unwrap_or(0)
        };
        self.axes.iter().map(nearest).collect()
    }

    /// The values at a point, fixed tunables included.
    #[must_use]
    pub fn values(&self, point: &[usize]) -> Values {
        let mut values = self.fixed.clone();
        values.extend(self.axes.iter().zip(point).map(|(axis, index)| (axis.name.clone(), axis.choices[*index])));
        values
    }

    /// Each axis' rank in `0..=1`.
    #[must_use]
    pub fn coordinates(&self, point: &[usize]) -> Vec<f64> {
        self.axes.iter().zip(point).map(|(axis, index)| *index as f64 / (axis.choices.len() - 1) as f64).collect()
    }

    /// Points worth considering: all of them up to `most`; of a larger space as many at random, and those that differ
    /// from one of `centres` in one or two axes by any choice or by one step each.
    #[must_use]
    pub fn candidates(&self, most: u64, centres: &[Point], stream: Stream) -> Vec<Point> {
        let size = self.size();
        if size <= most {
            return (0..size).map(|number| self.point_at(number)).collect();
        }
        let mut points: Vec<Point> = (0..most).map(|draw| self.point_at(stream.below(draw, size))).collect();
        for centre in centres {
            points.extend(self.neighbours(centre));
        }
        points.sort_unstable();
        points.dedup();
        points
    }

    /// The point with this number, in `0..size`.
    fn point_at(&self, mut number: u64) -> Point {
        let mut point: Point = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let count = axis.choices.len() as u64;
                let index = (number % count) as usize;
                number /= count;
                index
            })
            .collect();
        point.reverse();
        point
    }

    fn neighbours(&self, centre: &Point) -> Vec<Point> {
        let mut found = Vec::new();
        let steps = |axis: usize| {
            let (at, last) = (centre[axis], self.axes[axis].choices.len() - 1);
            [at.checked_sub(1), (at < last).then_some(at + 1)].into_iter().flatten()
        };
        for first in 0..self.axes.len() {
            for index in 0..self.axes[first].choices.len() {
                found.push(with(centre, &[(first, index)]));
            }
            for second in first + 1..self.axes.len() {
                for a in steps(first) {
                    found.extend(steps(second).map(|b| with(centre, &[(first, a), (second, b)])));
                }
            }
        }
        found
    }
}

fn with(point: &Point, changes: &[(usize, usize)]) -> Point {
    let mut changed = point.clone();
    for (axis, index) in changes {
        changed[*axis] = *index;
    }
    changed
}

/// What differs between two sets of values, for people: `BLOCK_M 32→64, UNROLL 2→4`.
#[must_use]
pub fn difference(from: &Values, to: &Values) -> String {
    let changed: Vec<String> = to
        .iter()
        .filter_map(|(name, value)| {
            let before = from.get(name)?;
            (before != value).then(|| format!("{name} {before}→{value}"))
        })
        .collect();
    changed.join(", ")
}

/// Values as an identifier: `BLOCK_M=64,UNROLL=4`.
#[must_use]
pub fn label(values: &Values) -> String {
    let pairs: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn space(front: &str) -> Space {
        let text = format!("/*---\nop = \"x\"\ndtypes = [\"f32\"]\n[tune]\n{front}\n---*/\nvoid x(void) {{}}\n");
        Space::of(&KernelFile::parse(&text).unwrap())
    }

    fn small() -> Space {
        space(
            "B = { value = 4, choices = [8, 2, 4] }\nA = { value = 1, choices = [0, 1] }\nC = { value = 7, choices = [7] }",
        )
    }

    fn values(pairs: &[(&str, i64)]) -> Values {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn every_point_stands_once_and_goes_back_and_forth() {
        let space = small();
        let all = space.candidates(100, &[], Stream::new(1, "x"));
        assert_eq!((space.size(), all.len()), (6, 6));
        for point in &all {
            assert_eq!(space.point(&space.values(point)), *point);
            assert_eq!(all.iter().filter(|other| *other == point).count(), 1);
        }
    }

    #[test]
    fn choices_are_in_order_and_a_single_choice_is_no_axis() {
        let space = small();
        assert_eq!(space.axes().iter().map(|axis| axis.name.as_str()).collect::<Vec<_>>(), ["A", "B"]);
        assert_eq!(space.axes()[1].choices, [2, 4, 8]);
        assert_eq!(space.values(&[1, 2]), values(&[("A", 1), ("B", 8), ("C", 7)]));
        assert_eq!(space.coordinates(&[1, 1]), [1.0, 0.5]);
    }

    #[test]
    fn a_value_that_is_no_choice_counts_as_the_nearest() {
        assert_eq!(small().point(&values(&[("A", 1), ("B", 7)])), [1, 2]);
        assert_eq!(small().point(&values(&[("A", 1)])), [1, 0]);
    }

    #[test]
    fn a_large_space_is_sampled_and_includes_the_neighbourhood() {
        let front: String = ["A", "B", "C", "D", "E", "F"]
            .map(|name| format!("{name} = {{ value = 1, choices = [1, 2, 3, 4, 5, 6, 7, 8] }}\n"))
            .concat();
        let space = space(&front);
        let centre = vec![3; 6];
        let found = space.candidates(500, std::slice::from_ref(&centre), Stream::new(1, "x"));
        assert_eq!(space.size(), 262_144);
        assert!((500..1000).contains(&found.len()), "{}", found.len());
        assert!(found.contains(&vec![3, 3, 7, 3, 3, 3]));
        assert!(found.contains(&vec![2, 3, 3, 3, 3, 4]));
        assert_eq!(found, space.candidates(500, &[centre], Stream::new(1, "x")));
    }

    #[test]
    fn a_kernel_without_tunables_is_a_single_point() {
        let space = space("");
        assert_eq!(space.candidates(10, &[], Stream::new(1, "x")), [Vec::<usize>::new()]);
    }

    #[test]
    fn differences_read_well() {
        let (from, to) = (values(&[("A", 1), ("B", 2)]), values(&[("A", 1), ("B", 8)]));
        assert_eq!(difference(&from, &to), "B 2→8");
        assert_eq!(label(&to), "A=1,B=8");
    }
}
