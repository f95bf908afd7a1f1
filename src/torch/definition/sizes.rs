//! At which sizes a definition is tried: those of its workloads, and others that its axes allow.

use crate::expr::Expr;
use crate::op::Shape;

/// So many shapes are timed, and judged at full size.
const MOST_TIMED: usize = 8;

/// Elements beyond what the constant axes make, where no workload says how large a call is, and of the shapes that are drawn.
const USUAL: u64 = 1 << 22;
const DRAWN: u64 = 1 << 19;

/// What the sizes of all tensors follow from.
#[derive(Debug)]
pub(super) struct Form {
    /// Axes that are free.
    pub axes: Vec<String>,
    /// Whole numbers that workloads give, with what they give: the first is the usual one.
    pub numbers: Vec<(String, Vec<i64>)>,
    /// Sizes of each tensor.
    pub tensors: Vec<Vec<Expr>>,
    /// What must hold.
    pub requires: Option<Expr>,
}

/// The shapes of an operation's file.
#[derive(Debug, PartialEq)]
pub(super) struct Sizes {
    pub smoke: Shape,
    /// The last is the primary one.
    pub sweep: Vec<Shape>,
    pub edges: Vec<Shape>,
    pub random: Vec<(String, (i64, i64))>,
}

impl Form {
    /// Elements of all tensors; none where a shape makes no sense.
    pub(super) fn elements(&self, shape: &Shape) -> Option<u64> {
        let lookup = |name: &str| shape.get(name);
        if self.requires.as_ref().is_some_and(|it| !it.holds(&lookup).unwrap_or(false)) {
            return None;
        }
        let size =
            |expr: &Expr| expr.int(&lookup).ok().and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        self.tensors.iter().try_fold(0u64, |sum, tensor| {
            let count = tensor.iter().try_fold(1u64, |product, expr| product.checked_mul(size(expr)?))?;
            sum.checked_add(count)
        })
    }

    /// All axes of one size.
    fn even(&self, size: i64) -> Shape {
        let axes = self.axes.iter().map(|axis| (axis.clone(), size));
        let numbers = self.numbers.iter().filter_map(|(name, values)| Some((name.clone(), *values.first()?)));
        Shape(axes.chain(numbers).collect())
    }

    /// The shapes that make sense among these, each once.
    fn sensible(&self, shapes: impl IntoIterator<Item = Shape>) -> Vec<Shape> {
        let mut found = Vec::new();
        for shape in shapes {
            if self.elements(&shape).is_some() && !found.contains(&shape) {
                found.push(shape);
            }
        }
        found
    }

    /// The largest of these sizes at which no more than so many elements come on top of the fewest.
    fn largest(&self, more: u64) -> i64 {
        let sizes = (0..=14).map(|power| 1i64 << power);
        let counted: Vec<(i64, u64)> =
            sizes.filter_map(|size| Some((size, self.elements(&self.even(size))?))).collect();
        let least = counted.first().map_or(0, |(_, least)| *least);
        counted.iter().rev().find(|(_, count)| count - least <= more).map_or(1, |(size, _)| *size)
    }

    /// The shapes, given those of the workloads.
    pub(super) fn sizes(&self, workloads: Vec<Shape>) -> Result<Sizes, String> {
        let usual = self.largest(USUAL);
        let mut sweep = match workloads.is_empty() {
            true => self.sensible([usual / 4, usual / 2, usual].map(|size| self.even(size.max(1)))),
            false => self.sensible(workloads),
        };
        sweep.sort_by_key(|shape| self.elements(shape));
        let (sweep, untimed) = spread(sweep);
        let Some(primary) = sweep.last() else {
            return Err("no sizes that were tried hold what its constraints say".into());
        };
        let beside = [-1, 1].into_iter().flat_map(|step| {
            self.axes.iter().filter_map(move |axis| Some(primary.clone().with(axis, primary.get(axis)? + step)))
        });
        let room = self.elements(primary).unwrap_or(0).saturating_mul(2);
        let mut edges = self.sensible([1, 7, 13].map(|size| self.even(size)).into_iter().chain(beside));
        edges.retain(|shape| {
            !sweep.contains(shape) && self.elements(shape).is_some_and(|count| count <= room.max(USUAL))
        });
        // What is not timed is judged all the same.
        edges.retain(|shape| !untimed.contains(shape));
        edges.extend(untimed);
        let smoke = self.sensible([3, 2, 4, 1, 8, 16].map(|size| self.even(size))).into_iter().next();
        let most = self.largest(DRAWN).max(4);
        let axes = self.axes.iter().map(|axis| (axis.clone(), (1, most)));
        let numbers = self
            .numbers
            .iter()
            .filter_map(|(name, values)| Some((name.clone(), (*values.iter().min()?, *values.iter().max()?))));
        let random = axes.chain(numbers).collect();
        let smoke = smoke.or_else(|| sweep.first().cloned()).unwrap_or_default();
        Ok(Sizes { smoke, edges: if self.axes.is_empty() { Vec::new() } else { edges }, sweep, random })
    }
}

/// No more than are timed, from the first to the last; and the others.
fn spread(shapes: Vec<Shape>) -> (Vec<Shape>, Vec<Shape>) {
    let count = shapes.len();
    if count <= MOST_TIMED {
        return (shapes, Vec::new());
    }
    let timed: Vec<usize> = (0..MOST_TIMED).map(|at| at * (count - 1) / (MOST_TIMED - 1)).collect();
    let (kept, left): (Vec<_>, Vec<_>) = shapes.into_iter().enumerate().partition(|(at, _)| timed.contains(at));
    let only = |all: Vec<(usize, Shape)>| all.into_iter().map(|(_, shape)| shape).collect();
    (only(kept), only(left))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn form(requires: Option<&str>) -> Form {
        let sizes = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Form {
            axes: vec!["rows".into()],
            numbers: Vec::new(),
            tensors: vec![sizes(&["rows", "64"]), sizes(&["64"])],
            requires: requires.map(|text| text.parse().unwrap()),
        }
    }

    #[test]
    fn without_workloads_a_free_axis_is_tried_at_sizes_that_fit() {
        let sizes = form(None).sizes(Vec::new()).unwrap();
        assert_eq!(sizes.sweep.last(), Some(&Shape::from([("rows", 16384)])));
        assert!(
            sizes.edges.contains(&Shape::from([("rows", 1)])) && sizes.edges.contains(&Shape::from([("rows", 16385)]))
        );
        assert_eq!(sizes.random, [("rows".to_owned(), (1, 8192))]);
    }

    #[test]
    fn workloads_are_the_sizes_from_the_smallest_to_the_largest() {
        let shapes = |counts: &[i64]| counts.iter().map(|rows| Shape::from([("rows", *rows)])).collect::<Vec<_>>();
        let sizes = form(None).sizes(shapes(&[9, 1, 5, 9])).unwrap();
        assert_eq!(sizes.sweep, shapes(&[1, 5, 9]));
        let many: Vec<i64> = (1..=40).collect();
        let sizes = form(None).sizes(shapes(&many)).unwrap();
        assert_eq!((sizes.sweep.len(), sizes.sweep[0].get("rows"), sizes.sweep[7].get("rows")), (8, Some(1), Some(40)));
        let judged = [&sizes.sweep[..], &sizes.edges[..]].concat();
        assert!(shapes(&many).iter().all(|shape| judged.contains(shape)), "{judged:?}");
    }

    #[test]
    fn no_size_breaks_a_constraint() {
        let even = form(Some("rows % 2 == 0"));
        let sizes = even.sizes(Vec::new()).unwrap();
        let all = [&sizes.sweep[..], &sizes.edges[..]].concat();
        assert!(all.iter().chain([&sizes.smoke]).all(|shape| shape.get("rows").unwrap() % 2 == 0), "{sizes:?}");
        assert!(form(Some("rows < 0")).sizes(Vec::new()).is_err());
    }
}
