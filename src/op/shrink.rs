//! The one stated rule by which a shape is made smaller for a machine.

use super::{OpError, Operation, Shape};

/// No size is halved to below this.
const SMALLEST: i64 = 16;

impl Operation {
    /// `shape`, halved until it has at most `max_macs` multiply-adds and `max_elements` elements in all
    /// tensors; and whether it was changed.
    ///
    /// While either limit is exceeded, the largest of the `shrink` symbols is halved (the first listed
    /// of equals), never to below 16, and an odd size stays odd, so that an edge stays an edge. A
    /// symbol that has its default follows it (`H_kv = H`). A halving that `requires` forbids is passed over.
    /// Where nothing is left to halve, the shape stays over the limit.
    ///
    /// # Errors
    /// As [`Operation::complete`].
    pub fn shrink_to(&self, shape: &Shape, max_macs: u64, max_elements: u64) -> Result<(Shape, bool), OpError> {
        self.shrink_others(shape, None, max_macs, max_elements)
    }

    /// The same without ever halving `kept`.
    ///
    /// # Errors
    /// The same.
    pub fn shrink_others(
        &self,
        shape: &Shape,
        kept: Option<&str>,
        max_macs: u64,
        max_elements: u64,
    ) -> Result<(Shape, bool), OpError> {
        let original = self.complete(shape)?;
        let mut shape = original.clone();
        while self.macs(&shape)? > max_macs || self.all_elements(&shape)? > max_elements {
            let Some(smaller) = self.halved(&shape, kept) else { break };
            shape = smaller;
        }
        let shrunk = shape != original;
        Ok((shape, shrunk))
    }

    fn halved(&self, shape: &Shape, kept: Option<&str>) -> Option<Shape> {
        self.halves(shape, kept, SMALLEST).next()
    }

    /// A shape with one of its sizes halved, the largest first, but never `kept` nor below `least`. Odd sizes stay odd.
    pub fn halves<'a>(&'a self, shape: &'a Shape, kept: Option<&str>, least: i64) -> impl Iterator<Item = Shape> + 'a {
        let symbols = self.shrink.iter().map(String::as_str).filter(|symbol| Some(*symbol) != kept);
        let mut candidates: Vec<(&str, i64)> =
            symbols.filter_map(|symbol| Some((symbol, shape.get(symbol)?))).collect();
        // Stable: equals stay in the order of the list.
        candidates.sort_by_key(|&(_, value)| std::cmp::Reverse(value));
        candidates.into_iter().filter_map(move |(symbol, value)| {
            let half = if value % 2 == 0 { value / 2 } else { (value / 2) | 1 };
            (half >= least && half < value).then(|| self.with_followers(shape, symbol, half))?
        })
    }

    fn with_followers(&self, shape: &Shape, symbol: &str, value: i64) -> Option<Shape> {
        let mut smaller = shape.clone().with(symbol, value);
        for follower in self.following(shape).keys().filter(|follower| **follower != symbol) {
            smaller.0.remove(*follower);
        }
        self.complete(&smaller).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::samples;
    use super::*;

    #[test]
    fn a_shape_within_the_limits_is_left_alone() {
        let op = samples::matmul();
        let shape = Shape::from([("M", 128), ("N", 128), ("K", 128)]);
        assert_eq!(op.shrink_to(&shape, 1 << 26, 1 << 25).unwrap(), (op.complete(&shape).unwrap(), false));
    }

    #[test]
    fn the_largest_symbol_is_halved_and_the_first_of_equals_wins() {
        let op = samples::matmul();
        let shape = Shape::from([("M", 1024), ("N", 1024), ("K", 1024)]);
        let (small, shrunk) = op.shrink_to(&shape, 1 << 28, u64::MAX).unwrap();
        assert!(shrunk);
        assert_eq!((small.get("M"), small.get("N"), small.get("K")), (Some(512), Some(512), Some(1024)));
    }

    #[test]
    fn odd_sizes_stay_odd_and_small_ones_stay() {
        let op = samples::matmul();
        let shape = Shape::from([("M", 1), ("N", 4097), ("K", 11009)]);
        let (small, _) = op.shrink_to(&shape, 1 << 20, u64::MAX).unwrap();
        assert_eq!(small.get("M"), Some(1));
        assert!(small.get("N").unwrap() % 2 == 1 && small.get("K").unwrap() % 2 == 1);
        assert!(op.macs(&small).unwrap() <= 1 << 20);
        let floor = op.shrink_to(&Shape::from([("M", 17), ("N", 31), ("K", 30)]), 1, 1).unwrap();
        assert!(!floor.1, "nothing can be halved without falling below 16");
    }

    #[test]
    fn elements_count_as_well_as_multiply_adds() {
        let op = samples::rmsnorm();
        let (small, shrunk) = op.shrink_to(&Shape::from([("rows", 8192), ("cols", 8192)]), 1 << 40, 1 << 25).unwrap();
        assert!(shrunk && op.all_elements(&small).unwrap() <= 1 << 25);
    }

    #[test]
    fn a_symbol_at_its_default_follows_it() {
        let mut op = samples::matmul();
        op.symbols.push("L".into());
        op.defaults.insert("L".into(), "M".parse().unwrap());
        op.requires = Some("M % L == 0".parse().unwrap());
        let shape = Shape::from([("M", 4096), ("N", 16), ("K", 16)]);
        let (small, _) = op.shrink_to(&shape, 1 << 19, u64::MAX).unwrap();
        assert_eq!((small.get("M"), small.get("L")), (Some(2048), Some(2048)));
        let (fixed, _) = op.shrink_to(&shape.with("L", 8), 1 << 19, u64::MAX).unwrap();
        assert_eq!((fixed.get("M"), fixed.get("L")), (Some(2048), Some(8)));
    }
}
