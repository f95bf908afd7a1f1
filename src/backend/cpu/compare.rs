//! Candidate against oracle: every element, in two parts (JUDGE, "Tolerances, measured").

// `!(a <= b)` is how a comparison is written here, so that NaN fails.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use std::sync::{Mutex, PoisonError};

use super::share::share;
use super::values::decode_into;
use crate::evaluation::ErrorStats;
use crate::op::{Case, Dtype, OpError, Operation, Role, Stored};

/// Unit roundoff of the single precision that sums are taken in.
const U32: f64 = 1.0 / (1u64 << 24) as f64;

/// Within this share of the largest finite value, infinity and a finite value are both right.
const NEAR_OVERFLOW: f64 = 0.001;

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
/// tensor in the operation's order; `case.shape` is complete. [`failure`] says whether it passed.
///
/// With u the unit roundoff of the output's type, s half its smallest subnormal, K the length of the
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
    let (shape, dtype) = (&case.shape, case.dtype);
    let sum_length = op.size("tolerance sum_length", &op.tolerance.sum_length, shape)?;
    let row = op.size("tolerance row", &op.tolerance.row, shape)?.max(1);
    let rms_bound = op.rms_bound(shape, dtype)?;
    let factor = 8.0 + (sum_length as f64).sqrt() / 2.0;
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let mut total = ErrorStats::default();
    for ((spec, bytes), expected) in outputs.zip(actual).zip(&expected.tensors) {
        let stored = spec.dtype.stored(dtype);
        let elements = expected.values.len();
        assert_eq!(bytes.len(), elements * stored.bytes(), "output `{}` has its size", spec.name);
        let precision = stored.dtype().unwrap_or(dtype);
        let rules = Rules {
            u: precision.roundoff(),
            s: precision.half_subnormal(),
            largest: precision.largest(),
            sums: factor * U32,
            row_term: if op.tolerance.row_term && dtype != Dtype::F32 { 6.0 * dtype.roundoff() } else { 0.0 },
            rms_bound,
        };
        // An output that has no such rows (a mean beside its losses) is one row.
        let row = if elements.is_multiple_of(row) { row } else { elements };
        merge_outputs(&mut total, &rules.tensor(stored, bytes, expected, row));
    }
    Ok(total)
}

/// Why an output is wrong, in a sentence; `None` where it passed.
#[must_use]
pub fn failure(stats: &ErrorStats) -> Option<String> {
    let relative = stats.relative_rms;
    if stats.outside > 0 || !(stats.worst <= 1.0) {
        return Some(format!(
            "{} of {} elements are outside their bound; the worst is element {}: {} where {} belongs ({} times the bound; relative rms error {relative:.2e})",
            stats.outside,
            stats.elements,
            stats.worst_at,
            Number(stats.got),
            Number(stats.want),
            Number(stats.worst),
        ));
    }
    if !(stats.tensor_ratio <= 1.0) {
        return Some(format!(
            "each element is near, but together they are {:.2} times as far off as an honest kernel may be (relative rms error {relative:.2e})",
            stats.tensor_ratio
        ));
    }
    if !(stats.row_ratio <= 1.0) {
        return Some(format!(
            "one row is {:.2} times as far off as an honest kernel may be (relative rms error of the whole {relative:.2e})",
            stats.row_ratio
        ));
    }
    None
}

/// A value as people read it: few digits, and an exponent only where it helps.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = self.0.abs();
        if size == f64::MAX {
            f.write_str("infinitely many")
        } else if size == 0.0 || (1e-3..1e5).contains(&size) || !self.0.is_finite() {
            write!(f, "{:.5}", self.0)
        } else {
            write!(f, "{:.4e}", self.0)
        }
    }
}

/// The bounds of one output at one shape.
struct Rules {
    u: f64,
    s: f64,
    largest: f64,
    /// B 2^-24.
    sums: f64,
    /// 6u, or 0.
    row_term: f64,
    rms_bound: f64,
}

/// Sums over elements where both sides are finite.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: f64,
    error: f64,
    value: f64,
    terms: f64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.error += other.error;
        self.value += other.value;
        self.terms += other.terms;
    }
}

impl Rules {
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
        stats.relative_rms = if sums.error == 0.0 { 0.0 } else { finite((sums.error / sums.value).sqrt()) };
        stats
    }

    /// Judges a row's elements and adds up what its rms needs.
    fn row(&self, got: &[f64], want: &[f64], terms: &[f64], offset: usize, stats: &mut ErrorStats) -> Sums {
        let row_term = if self.row_term > 0.0 { self.row_term * rms_of_finite(want) } else { 0.0 };
        let mut sums = Sums::default();
        for (index, ((&y, &r), &terms)) in got.iter().zip(want).zip(terms).enumerate() {
            // The oracle's terms of a finite value are finite; were they not, any value would pass.
            let terms = if terms.is_finite() { terms } else { r.abs() };
            let ratio = self.element(y, r, terms, row_term);
            if y.is_finite() && r.abs() <= self.largest {
                let error = y - r;
                sums.count += 1.0;
                sums.error += error * error;
                sums.value += r * r;
                sums.terms += terms * terms;
            }
            stats.outside += u64::from(!(ratio <= 1.0));
            if !(ratio <= stats.worst) {
                stats.worst = finite(ratio);
                (stats.worst_at, stats.got, stats.want) = ((offset + index) as u64, y, r);
            }
        }
        sums
    }

    /// How far off an element is, as a multiple of its bound; infinite where no distance would do.
    fn element(&self, y: f64, r: f64, terms: f64, row_term: f64) -> f64 {
        const WRONG: f64 = f64::INFINITY;
        let right = |condition: bool| if condition { 0.0 } else { WRONG };
        if r.is_nan() {
            return right(y.is_nan());
        }
        if r.is_infinite() {
            return right(y == r);
        }
        if y.is_nan() {
            return WRONG;
        }
        let bound = 2.0 * self.u * r.abs() + self.s + self.sums * terms + row_term;
        if r.abs() + bound >= (1.0 - NEAR_OVERFLOW) * self.largest && y.signum() == r.signum() {
            let must_overflow = r.abs() - bound > (1.0 + NEAR_OVERFLOW) * self.largest;
            if y.is_infinite() {
                return 0.0;
            }
            if must_overflow {
                return WRONG;
            }
            if r.abs() >= (1.0 - NEAR_OVERFLOW) * self.largest && y.abs() > (1.0 - NEAR_OVERFLOW) * self.largest {
                return 0.0;
            }
        }
        if y.is_infinite() {
            return WRONG;
        }
        (y - r).abs() / bound
    }

    /// An rms error as a multiple of its bound, `level` being the L in force.
    fn rms_ratio(&self, sums: &Sums, level: f64) -> f64 {
        if sums.count == 0.0 {
            return 0.0;
        }
        let rms = |square: f64| (square / sums.count).sqrt();
        let bound = (level + self.u / sums.count.sqrt()) * rms(sums.value) + self.s + self.sums / 4.0 * rms(sums.terms);
        finite(rms(sums.error) / bound)
    }
}

fn rms_of_finite(values: &[f64]) -> f64 {
    let (count, squares) =
        values.iter().filter(|v| v.is_finite()).fold((0.0, 0.0), |(count, squares), v| (count + 1.0, squares + v * v));
    if count == 0.0 { 0.0 } else { (squares / count).sqrt() }
}

/// A ratio that every format of file can hold.
fn finite(ratio: f64) -> f64 {
    if ratio.is_nan() { f64::MAX } else { ratio.min(f64::MAX) }
}

/// Adds what another part of the same tensor found; ties go to the lower index, so that the result
/// does not depend on which thread came first.
fn merge(into: &mut ErrorStats, part: &ErrorStats) {
    into.outside += part.outside;
    into.row_ratio = into.row_ratio.max(part.row_ratio);
    if part.worst > into.worst || (part.worst == into.worst && part.worst_at < into.worst_at) {
        (into.worst, into.worst_at, into.got, into.want) = (part.worst, part.worst_at, part.got, part.want);
    }
}

/// Adds another output's result: the worse of each.
fn merge_outputs(into: &mut ErrorStats, other: &ErrorStats) {
    into.elements += other.elements;
    into.outside += other.outside;
    into.row_ratio = into.row_ratio.max(other.row_ratio);
    into.tensor_ratio = into.tensor_ratio.max(other.tensor_ratio);
    into.relative_rms = into.relative_rms.max(other.relative_rms);
    if other.worst > into.worst {
        (into.worst, into.worst_at, into.got, into.want) = (other.worst, other.worst_at, other.got, other.want);
    }
}
