//! Hostile inputs among ordinary ones: what a kernel that looks at a few elements first does not see coming.
//!
//! In an adversarial input everything is hostile, so that looking at a few elements would tell. Here a few elements of ordinary
//! rows have such values, runs of columns have them, and whole rows of them stand among ordinary rows.

use std::collections::BTreeMap;

use super::{Adversarial, Distribution, Draw, OpError, Operation, RowScale, Shape, Special};

/// Rows that have one such element, rows that have another one, and rows that are hostile altogether: each so many'th.
const ONE: u64 = 3;
const ANOTHER: u64 = 5;
const WHOLE: u64 = 7;
/// Rows in which some of the columns that stand together are at the hostile level, and how many these are at the most: whoever takes the
/// first of a row for a sample of it is then wrong.
const RUN: u64 = 2;
const LONGEST: u64 = 1024;

impl Operation {
    /// A mixture for each adversarial input that has one, under the name `<input> mixed in`: of those that change one tensor
    /// alone, because the values of several are made for each other, and whose values are finite, because where infinity may
    /// stand an input's author has thought about (a masked key times an infinite value is nothing or NaN, by the algorithm).
    ///
    /// # Errors
    /// An expression that fails at an input's own shape.
    pub(super) fn mixtures(&self) -> Result<Vec<Adversarial>, OpError> {
        let mut all = Vec::new();
        // Where few terms of a sum are to be other than zero, nothing ordinary stands beside them.
        let alone = |hostile: &&Adversarial| hostile.draw.len() == 1 && hostile.few_terms.is_none();
        let finite = |draw: &Draw| draw.specials.iter().all(|special| special.value.is_finite());
        // Rows that repeat one hold ordinary values.
        let repeated = |draw: &Draw| draw.rows == RowScale::Repeated;
        for hostile in self.adversarial.iter().filter(alone).filter(|hostile| hostile.draw.values().all(finite)) {
            if hostile.draw.values().any(repeated) {
                continue;
            }
            let shape = self.complete(&hostile.shape)?;
            let mut draw = BTreeMap::new();
            for (name, how) in &hostile.draw {
                let own =
                    self.tensors.iter().find(|tensor| tensor.name == *name).and_then(|tensor| tensor.draw.as_ref());
                let Some(own) = own else { continue };
                if how.dist == Distribution::File && !how.is_free() {
                    continue;
                }
                let integers = [how, own].iter().any(|draw| draw.dist.is_whole());
                draw.insert(name.clone(), if integers { how.clone() } else { self.mixture(own, how, &shape)? });
            }
            if draw.is_empty() {
                continue;
            }
            all.push(Adversarial { name: format!("{} mixed in", hostile.name), draw, ..hostile.clone() });
        }
        Ok(all)
    }

    /// `own` with some elements and some rows as `hostile` has them.
    fn mixture(&self, own: &Draw, hostile: &Draw, shape: &Shape) -> Result<Draw, OpError> {
        let value = |key: &str, expr: &Option<crate::expr::Expr>, otherwise: f64| match expr {
            Some(expr) => self.double(&format!("draw, {key}"), expr, shape),
            None => Ok(otherwise),
        };
        let rows = match hostile.rows {
            RowScale::None | RowScale::Repeated => 1.0,
            RowScale::Mild => 2.0,
            RowScale::Wide => 64.0,
        };
        let (scale, shift) = (value("scale", &hostile.scale, 1.0)? * rows, value("shift", &hostile.shift, 0.0)?);
        let low = if hostile.dist == Distribution::Uniform { shift } else { shift - scale };
        let mut specials = own.specials.clone();
        specials.push(Special::scattered(shift + scale, None, WHOLE));
        specials.push(Special::run(shift + scale, LONGEST, RUN));
        specials.push(Special::scattered(shift + scale, Some(1), ONE));
        specials.push(Special::scattered(low, Some(1), ANOTHER));
        // No row may tell what the others hold: some are ordinary throughout.
        let few = |special: &Special| Special {
            count: special.count.map(|count| count.min(2)),
            every: special.every.max(ANOTHER - 1),
            ..special.clone()
        };
        specials.extend(hostile.specials.iter().map(few));
        Ok(Draw { specials, ..own.clone() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Of those that ship.
    fn load(name: &str) -> Operation {
        let read = |path: &str| std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).ok();
        Operation::load(&read, name).unwrap()
    }

    #[test]
    fn every_operation_has_mixtures_and_they_have_names_of_their_own() {
        for name in
            ["matmul", "fused_mlp", "flash_attention", "rmsnorm", "softmax", "layernorm", "cross_entropy", "reduce"]
        {
            let op = load(name);
            assert!(!op.mixed.is_empty(), "{name}");
            for mixed in &op.mixed {
                assert!(op.adversarial.iter().all(|other| other.name != mixed.name));
                assert!(mixed.draw.values().all(|draw| draw.specials.len() < 20), "{name}, {}", mixed.name);
            }
        }
    }

    #[test]
    fn ordinary_rows_of_a_mixture_hold_few_hostile_values() {
        let op = load("softmax");
        let mixed = op.mixed.iter().find(|mixed| mixed.name == "shifted_up mixed in").unwrap();
        let x = &mixed.draw["x"];
        assert_eq!(x.dist, op.tensors[0].draw.as_ref().unwrap().dist);
        assert!(x.specials.iter().any(|special| special.value > 200.0 && special.count == Some(1)));
    }
}
