//! Shapes, and an operation at a shape: a case.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Dtype;

/// Values of an operation's symbols, flags such as `causal` included (0 or 1).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(pub BTreeMap<String, i64>);

impl Shape {
    /// The value of a symbol.
    #[must_use]
    pub fn get(&self, symbol: &str) -> Option<i64> {
        self.0.get(symbol).copied()
    }

    /// This shape with `symbol` set to `value`.
    #[must_use]
    pub fn with(mut self, symbol: &str, value: i64) -> Self {
        self.0.insert(symbol.to_owned(), value);
        self
    }
}

impl<const N: usize> From<[(&str, i64); N]> for Shape {
    fn from(pairs: [(&str, i64); N]) -> Self {
        Self(pairs.into_iter().map(|(symbol, value)| (symbol.to_owned(), value)).collect())
    }
}

/// An operation at a shape, dtype and kind of input.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Case {
    /// Every symbol's value.
    pub shape: Shape,
    /// Element type of the `T` tensors.
    pub dtype: Dtype,
    /// Name of the adversarial input, or `None` for the ordinary draw.
    pub input: Option<String>,
    /// Which values the floating-point arguments have: 0 for the operation's own, else the one of `Scalar::others` that it
    /// counts, round and round.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub setting: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
const fn is_zero(setting: &u32) -> bool {
    *setting == 0
}

/// A shape a model really uses, and how often in one pass through it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TargetShape {
    /// Every symbol's value.
    pub shape: Shape,
    /// Element type of the `T` tensors.
    pub dtype: Dtype,
    /// Calls in one pass through the model (at least 1).
    pub calls: u32,
}

impl std::fmt::Display for Shape {
    /// `M=128 N=128 K=64`, symbols in alphabetical order; an operation without symbols has a fixed shape.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.pad("fixed shape");
        }
        let pairs: Vec<String> = self.0.iter().map(|(symbol, value)| format!("{symbol}={value}")).collect();
        f.pad(&pairs.join(" "))
    }
}
