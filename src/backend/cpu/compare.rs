//! Candidate against oracle: every element, in two parts (docs/judging.md, "Tolerances").

// `!(a <= b)` is how a comparison is written here, so that NaN fails.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use std::sync::{Mutex, PoisonError};

use super::share::share;
use crate::backend::bounds::{
    Bounds, Sums, finite, is_misrounded, merge_outputs, misrounded_allowed, rms_of_finite, told_apart,
};
use crate::backend::values::decode_into;
use crate::evaluation::ErrorStats;
use crate::op::{Case, OpError, Operation, Role, Stored};

/// Elements a thread takes at a time, rounded up to rows.
const GRAIN: usize = 1 << 16;

/// What every output must be.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// In the order of the operation's output tensors.
    pub tensors: Vec<ExpectedTensor>,
}

/// What one output must be.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectedTensor {
    /// Its name.
    pub name: String,
    /// The double-precision values, r.
    pub values: Vec<f64>,
    /// The sums of the absolute terms that made them, C.
    pub terms: Vec<f64>,
}

/// Compares every element of every output with the oracle. `actual` holds the bytes of each output
/// tensor in the operation's order; `case.shape` is complete. [`ErrorStats::failure`] says whether it passed.
///
/// With u the unit roundoff of the output's type, s what it may lose near zero, K the length of the
/// sums and B = 8 + sqrt(K)/2, an element may be off by `2u|r| + s + B 2^-24 C` (plus 6u times the rms
/// of its row where the operation says so and the case has 16 bits); the rms error of a tensor by
/// `(L + u/sqrt(n)) rms(r) + s + B/4 2^-24 rms(C)`, that of a row by the same with 2L.
/// NaN must meet NaN and infinity the same infinity.
///
/// # Errors
/// An expression that fails at this shape.
///
/// # Panics
/// Where `actual` and `expected` do not have the outputs' sizes.
pub fn compare(op: &Operation, case: &Case, actual: &[&[u8]], expected: &Expected) -> Result<ErrorStats, OpError> {
    compare_with(op, (case, 1.0), actual, expected)
}

/// The same where sums in single precision may lose `sums` times what they may.
pub(super) fn compare_with(
    op: &Operation,
    (case, sums): (&Case, f64),
    actual: &[&[u8]],
    expected: &Expected,
) -> Result<ErrorStats, OpError> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let mut total = ErrorStats::default();
    for ((spec, bytes), expected) in outputs.zip(actual).zip(&expected.tensors) {
        let stored = spec.dtype.stored(case.dtype);
        let elements = expected.values.len();
        assert_eq!(bytes.len(), elements * stored.bytes(), "output `{}` has its size", spec.name);
        let (bounds, row) = Bounds::of(op, case, spec, elements)?;
        let bounds = bounds.with_sums(sums);
        merge_outputs(&mut total, &bounds.tensor(stored, bytes, expected, row), told_apart(op, spec));
    }
    Ok(total)
}

impl Bounds {
    fn tensor(&self, stored: Stored, bytes: &[u8], expected: &ExpectedTensor, row: usize) -> ErrorStats {
        let elements = expected.values.len();
        if elements == 0 {
            return ErrorStats::default();
        }
        let shared = Mutex::new((ErrorStats::default(), Sums::default()));
        let size = stored.bytes();
        share(elements / row, GRAIN.div_ceil(row), &|rows| {
            let mut stats = ErrorStats::default();
            let mut sums = Sums::default();
            let mut got = vec![0.0; row];
            for index in rows {
                let range = index * row..(index + 1) * row;
                decode_into(&bytes[range.start * size..range.end * size], stored, &mut got);
                let one = self.row(
                    stored,
                    &got,
                    &expected.values[range.clone()],
                    &expected.terms[range.clone()],
                    range.start,
                    &mut stats,
                );
                stats.row_ratio = stats.row_ratio.max(self.rms_ratio(&one, 2.0 * self.rms_bound));
                sums.add(&one);
            }
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            merge(&mut shared.0, &stats);
            shared.1.add(&sums);
        });
        let (mut stats, sums) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        stats.elements = elements as u64;
        stats.tensor_ratio = self.rms_ratio(&sums, self.rms_bound);
        if let Some(share) = self.misrounded {
            stats.misrounded_ratio = stats.misrounded as f64 / misrounded_allowed(share, elements as f64);
        }
        stats.side_ratio = self.sides.ratio(stats.sides, elements as f64);
        stats.relative_rms = if sums.error == 0.0 { 0.0 } else { finite((sums.error / sums.value).sqrt()) };
        stats
    }

    /// Judges a row's elements and adds up what its rms needs.
    fn row(
        &self,
        stored: Stored,
        got: &[f64],
        want: &[f64],
        terms: &[f64],
        offset: usize,
        stats: &mut ErrorStats,
    ) -> Sums {
        let row_term = if self.row_term > 0.0 { self.row_term * rms_of_finite(want) } else { 0.0 };
        let mut sums = Sums::default();
        for (index, ((&y, &r), &terms)) in got.iter().zip(want).zip(terms).enumerate() {
            // The oracle's terms of a finite value are finite; were they not, any value would pass.
            let terms = if terms.is_finite() { terms } else { r.abs() };
            let ratio = finite(self.element(y, r, terms, row_term));
            if self.misrounded.is_some() && self.is_normal(r) {
                stats.misrounded += u64::from(is_misrounded(y, r, stored));
            }
            if self.sides.counts(y, r, stored) && self.is_normal(r) && y.is_finite() {
                stats.sides[usize::from(y.abs() > r.abs())] += 1;
            }
            if y.is_finite() && r.abs() <= self.largest {
                let error = y - r;
                sums.count += 1.0;
                sums.error += error * error;
                sums.value += r * r;
                sums.terms += terms * terms;
            }
            stats.outside += u64::from(!(ratio <= 1.0));
            if ratio > stats.worst {
                stats.worst = ratio;
                (stats.worst_at, stats.got, stats.want) = ((offset + index) as u64, y, r);
            }
        }
        sums
    }
}

/// Adds what another part of the same tensor found; ties go to the lower index, so that the result
/// does not depend on which thread came first.
fn merge(into: &mut ErrorStats, part: &ErrorStats) {
    into.outside += part.outside;
    into.misrounded += part.misrounded;
    (0..2).for_each(|side| into.sides[side] += part.sides[side]);
    into.row_ratio = into.row_ratio.max(part.row_ratio);
    if part.worst > into.worst || (part.worst == into.worst && part.worst_at < into.worst_at) {
        (into.worst, into.worst_at, into.got, into.want) = (part.worst, part.worst_at, part.got, part.want);
    }
}
