//! Conditions that tell some of a target's shapes from the others.

use crate::op::TargetShape;

/// A condition on a symbol and the shapes for which it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The condition in front matter's grammar, such as `N <= 512`.
    pub when: String,
    /// Which of the target's shapes it holds for: some, but not all.
    pub members: Vec<bool>,
}

/// Every division of the shapes by one threshold on one symbol, both sides of it; the same division by several symbols
/// is named by the one whose values lie furthest apart (as a ratio), which is most likely what it depends on.
#[must_use]
pub fn cuts(shapes: &[TargetShape]) -> Vec<Cut> {
    let mut found: Vec<(f64, Cut)> = Vec::new();
    let Some(first) = shapes.first() else { return Vec::new() };
    for symbol in first.shape.0.keys() {
        let Some(sizes) = shapes.iter().map(|target| target.shape.get(symbol)).collect::<Option<Vec<i64>>>() else {
            continue;
        };
        let mut distinct = sizes.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for pair in distinct.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            let apart = high as f64 / low.max(1) as f64;
            for (sign, below) in [("<=", true), (">", false)] {
                let members = sizes.iter().map(|size| (*size <= low) == below).collect();
                let cut = Cut { when: format!("{symbol} {sign} {low}"), members };
                match found.iter_mut().find(|(_, other)| other.members == cut.members) {
                    Some(other) if other.0 < apart => *other = (apart, cut),
                    Some(_) => {}
                    None => found.push((apart, cut)),
                }
            }
        }
    }
    found.into_iter().map(|(_, cut)| cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Dtype, Shape};

    fn shape(m: i64, n: i64, k: i64) -> TargetShape {
        TargetShape { shape: Shape::from([("M", m), ("N", n), ("K", k)]), dtype: Dtype::F32, calls: 1 }
    }

    #[test]
    fn a_single_shape_or_equal_shapes_cannot_be_divided() {
        assert!(cuts(&[]).is_empty());
        assert!(cuts(&[shape(1, 2, 3)]).is_empty());
        assert!(cuts(&[shape(1, 2, 3), shape(1, 2, 3)]).is_empty());
    }

    #[test]
    fn two_shapes_are_told_apart_by_what_differs_most() {
        let found = cuts(&[shape(64, 256, 512), shape(64, 8192, 1024)]);
        let whens: Vec<&str> = found.iter().map(|cut| cut.when.as_str()).collect();
        assert_eq!(whens, ["N <= 256", "N > 256"]);
        assert_eq!(found[0].members, [true, false]);
        assert_eq!(found[1].members, [false, true]);
    }

    #[test]
    fn every_threshold_gives_both_sides() {
        let found = cuts(&[shape(1, 1, 1), shape(1, 2, 1), shape(1, 4, 1)]);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|cut| cut.members.contains(&true) && cut.members.contains(&false)));
    }

    #[test]
    fn the_conditions_hold_where_they_say() {
        let shapes = [shape(0, 256, 512), shape(7, 8192, 1024), shape(9, 1, 3)];
        for cut in cuts(&shapes) {
            let expr: Result<crate::expr::Expr, _> = cut.when.clone().try_into();
            let Ok(expr) = expr else { panic!("{}", cut.when) };
            for (target, member) in shapes.iter().zip(&cut.members) {
                assert_eq!(expr.holds(&|name| target.shape.get(name)), Ok(*member), "{}", cut.when);
            }
        }
    }
}
