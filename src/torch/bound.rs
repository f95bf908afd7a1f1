//! How far from double precision a result may be: as far as PyTorch's own is, times a factor (docs/pytorch-operations.md).

// `!(a <= b)` is how a comparison is written here, so that NaN fails.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use super::counts::{Allowed, Counts};
use crate::evaluation::ErrorStats;
use crate::op::Dtype;

/// Rows that are shorter say little by themselves; the dimension before the last joins them.
const SHORTEST_ROW: usize = 16;

/// An eager result that is off by more than this, as a share of what is right, is no yardstick.
const USELESS: f64 = 0.1;

/// Four ways of being off, in units of the output type's roundoff u. With d = y - r, r in double precision:
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Parts {
    /// rms(d) / rms(r) over the tensor.
    pub tensor: f64,
    /// The same of the worst row.
    pub row: f64,
    /// The worst |d| / (|r| + rms of its row).
    pub element: f64,
    /// |Σ d r| / Σ r²: what does not average out.
    pub bias: f64,
}

impl Parts {
    /// The worse of each.
    #[must_use]
    pub const fn worst(self, other: Self) -> Self {
        Self {
            tensor: self.tensor.max(other.tensor),
            row: self.row.max(other.row),
            element: self.element.max(other.element),
            bias: self.bias.max(other.bias),
        }
    }
}

/// What an honest kernel may be off by, whatever PyTorch's own error; and how many times that it may be off beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floors {
    /// How many times PyTorch's error.
    pub factor: f64,
    /// And so much more.
    pub more: Parts,
}

impl Floors {
    /// Those of an output of a type with so many rows, a sum of which may have so many terms: a kernel that takes them one by one in
    /// single precision loses in the order of their root, and PyTorch, which takes many at once, does not. In single precision nothing but rounding is off in one direction, and sums of
    /// many equal terms, which a plain kernel takes one by one, are: there bias says no more than the error of the whole.
    #[must_use]
    pub fn of(dtype: Dtype, rows: usize, terms: usize) -> Self {
        let chance = 1.0 / (rows.max(1) as f64).sqrt();
        let sums = (terms as f64).sqrt();
        match dtype {
            Dtype::F16 | Dtype::Bf16 => Self { factor: 2.0, more: parts(0.25, 0.5, 0.5, 0.05 + 0.5 * chance) },
            Dtype::F32 => {
                Self { factor: 8.0, more: parts(32.0 + sums, 64.0 + 2.0 * sums, 128.0 + 4.0 * sums, 32.0 + sums) }
            }
        }
    }

    /// What is allowed in single precision where only a few terms of each sum are not zero, however strict [`few_terms`] is.
    #[must_use]
    pub const fn least() -> Self {
        Self { factor: 4.0, more: parts(4.0, 8.0, 16.0, 4.0) }
    }

    /// What a kernel may be off by where PyTorch is off by `eager`.
    #[must_use]
    pub fn limits(&self, eager: Parts) -> Parts {
        let Self { factor, more } = self;
        Parts {
            tensor: factor * eager.tensor + more.tensor,
            row: factor * eager.row + more.row,
            element: factor * eager.element + more.element,
            bias: factor * eager.bias + more.bias,
        }
    }
}

/// What PyTorch's error may be, in units, where nothing but roundings of a few terms is in it.
const ONE_ROUNDING: f64 = 1.25;

/// The share of its error from which a kernel is refused that computes single precision in two parts of bfloat16: over the tensor, and of
/// the worst row and element, which depend on chance.
const SPLIT: f64 = 0.5;
const SPLIT_WORST: f64 = 0.75;

/// The limits of an output in single precision of which only a few terms of each sum are not zero, or that has no sums: the usual ones, or a part of
/// what inputs in two parts of bfloat16 make of it (`split`) where that is less, so that those are refused. Never less than
/// [`Floors::least`]: where such inputs do not show, nothing is wrong with a plain kernel. Where PyTorch itself loses more than a
/// rounding there are sums of other terms too (a mean that is subtracted), and the usual limits hold. A loss is made of so many `equal`
/// terms, one of each row: a plain sum of these is rounded the same way each time.
#[must_use]
pub fn few_terms(eager: Parts, split: Parts, usual: Parts, equal: usize) -> Parts {
    if eager.tensor > ONE_ROUNDING {
        return usual;
    }
    let least = Floors::least().limits(eager);
    let equal = EQUAL_TERM * equal as f64;
    let between = |usual: f64, least: f64, split: f64| (least.max(split) + equal).min(usual).max(least);
    Parts {
        tensor: between(usual.tensor, least.tensor, SPLIT * split.tensor),
        row: between(usual.row, least.row, SPLIT_WORST * split.row),
        element: between(usual.element, least.element, SPLIT_WORST * split.element),
        bias: usual.bias,
    }
}

/// What a plain sum loses with each of many equal terms, in units: a quarter on average.
const EQUAL_TERM: f64 = 0.5;

const fn parts(tensor: f64, row: f64, element: f64, bias: f64) -> Parts {
    Parts { tensor, row, element, bias }
}

/// Elements of a row of an output of these sizes: its last dimension, with those before it while it is short.
#[must_use]
pub fn row_length(dimensions: &[usize]) -> usize {
    let mut row = 1;
    for size in dimensions.iter().rev() {
        if row >= SHORTEST_ROW {
            break;
        }
        row *= size;
    }
    row.max(1)
}

/// What is known of an output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measured {
    pub parts: Parts,
    /// Where the worst element is; one that is misplaced is the worst.
    pub worst_at: usize,
    /// Elements that are finite where they should not be, or the other way round.
    pub misplaced: u64,
    pub counts: Counts,
    /// rms(d) / rms(r).
    pub relative_rms: f64,
    /// The worst element, and what belongs there.
    pub got: f64,
    pub want: f64,
}

impl Measured {
    /// What there is to say of an output of so many elements that may be off by `limits`, with so many of what is counted; `outside` of
    /// them, misplaced ones among them, are off by more than an element may be.
    pub(super) fn judge(&self, elements: usize, outside: u64, limits: &Parts, allowed: Allowed) -> ErrorStats {
        let Self { parts, worst_at, misplaced, counts, relative_rms, got, want } = *self;
        let worst = if misplaced > 0 { f64::MAX } else { ratio(parts.element, limits.element) };
        let mut stats = ErrorStats {
            elements: elements as u64,
            outside: if misplaced > 0 || !(worst <= 1.0) { outside.max(1) } else { 0 },
            worst,
            worst_at: worst_at as u64,
            got,
            want,
            relative_rms: finite(relative_rms),
            tensor_ratio: ratio(parts.tensor, limits.tensor),
            row_ratio: ratio(parts.row, limits.row),
            bias_ratio: ratio(parts.bias, limits.bias),
            ..ErrorStats::default()
        };
        counts.judge(allowed, &mut stats);
        stats
    }
}

/// An output's type, and its rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Form {
    pub dtype: Dtype,
    /// Whether it holds whole numbers, which are right or wrong.
    pub whole: bool,
    /// Elements of a row.
    pub row: usize,
}

impl Form {
    /// Rows of `elements`.
    pub(super) const fn rows(&self, elements: usize) -> usize {
        elements / self.row
    }

    /// Why PyTorch's own result is no yardstick, if it is none.
    pub(super) fn useless(&self, eager: &Measured) -> Option<String> {
        if eager.misplaced > 0 && self.whole {
            return Some(format!("PyTorch's own whole numbers in {} are others than in double precision", self.dtype));
        }
        if eager.misplaced > 0 {
            return Some(format!(
                "PyTorch's own result in {} is not finite where it should be, or the other way round",
                self.dtype
            ));
        }
        (!(eager.relative_rms <= USELESS))
            .then(|| format!("PyTorch's own result in {} is off by {:.0} %", self.dtype, 100.0 * eager.relative_rms))
    }
}

/// A part of an error over its limit. Where PyTorch itself has no limit (something beside an exact zero), there is none.
const fn ratio(part: f64, limit: f64) -> f64 {
    if limit == f64::INFINITY { 0.0 } else { finite(part / limit) }
}

/// A ratio that every format of file can hold.
const fn finite(ratio: f64) -> f64 {
    if ratio.is_nan() { f64::MAX } else { ratio.min(f64::MAX) }
}
