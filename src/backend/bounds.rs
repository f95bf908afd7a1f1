//! How far from the oracle a result may be (JUDGE, "Tolerances, measured").

use crate::evaluation::ErrorStats;
use crate::op::{Case, Dtype, OpError, Operation, Role, TensorSpec};

/// Unit roundoff of the single precision that sums are taken in.
const U32: f64 = 1.0 / (1u64 << 24) as f64;

/// The bounds of one output at one shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Unit roundoff of the output's type.
    pub u: f64,
    /// What a result near zero may lose ([`Dtype::underflow`]).
    pub s: f64,
    /// Its largest finite value.
    pub largest: f64,
    /// B 2^-24.
    pub sums: f64,
    /// 6u, or 0.
    pub row_term: f64,
    /// L.
    pub rms_bound: f64,
}

/// Sums over elements where both sides are finite.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    /// How many.
    pub count: f64,
    /// Squares of `y - r`.
    pub error: f64,
    /// Squares of `r`.
    pub value: f64,
    /// Squares of C.
    pub terms: f64,
}

impl Sums {
    /// Adds another part.
    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.error += other.error;
        self.value += other.value;
        self.terms += other.terms;
    }
}

impl Bounds {
    /// The bounds of the output `spec`, which has `elements` elements, and the length of its rows.
    ///
    /// # Errors
    /// An expression that fails at the case's shape.
    pub(super) fn of(
        op: &Operation,
        case: &Case,
        spec: &TensorSpec,
        elements: usize,
    ) -> Result<(Self, usize), OpError> {
        let (shape, dtype) = (&case.shape, case.dtype);
        let sum_length = op.size("tolerance sum_length", &op.tolerance.sum_length, shape)?;
        let row = op.size("tolerance row", &op.tolerance.row, shape)?.max(1);
        let precision = spec.dtype.stored(dtype).dtype().unwrap_or(dtype);
        let bounds = Self {
            u: precision.roundoff(),
            s: precision.underflow(),
            largest: precision.largest(),
            sums: (8.0 + (sum_length as f64).sqrt() / 2.0) * U32,
            row_term: if op.tolerance.row_term && dtype != Dtype::F32 { 6.0 * dtype.roundoff() } else { 0.0 },
            rms_bound: op.rms_bound(shape, dtype)?,
        };
        // An output that has no such rows (a mean beside its losses) is one row.
        Ok((bounds, if elements.is_multiple_of(row) { row } else { elements }))
    }

    /// An rms error as a multiple of its bound, `level` being the L in force.
    pub(super) fn rms_ratio(&self, sums: &Sums, level: f64) -> f64 {
        if sums.count == 0.0 {
            return 0.0;
        }
        let rms = |square: f64| (square / sums.count).sqrt();
        let bound = (level + self.u / sums.count.sqrt()) * rms(sums.value) + self.s + self.sums / 4.0 * rms(sums.terms);
        finite(rms(sums.error) / bound)
    }
}

/// A ratio that every format of file can hold.
pub(super) fn finite(ratio: f64) -> f64 {
    if ratio.is_nan() { f64::MAX } else { ratio.min(f64::MAX) }
}

/// Adds another output's result: the worse of each, with `name` where it has to be told from others.
pub(super) fn merge_outputs(into: &mut ErrorStats, other: &ErrorStats, name: Option<&str>) {
    let name = || name.map(str::to_owned);
    into.elements += other.elements;
    into.outside += other.outside;
    if other.row_ratio > into.row_ratio {
        into.outputs.row = name();
    }
    if other.tensor_ratio > into.tensor_ratio {
        into.outputs.tensor = name();
    }
    into.row_ratio = into.row_ratio.max(other.row_ratio);
    into.tensor_ratio = into.tensor_ratio.max(other.tensor_ratio);
    into.relative_rms = into.relative_rms.max(other.relative_rms);
    if other.worst > into.worst {
        (into.worst, into.worst_at, into.got, into.want) = (other.worst, other.worst_at, other.got, other.want);
        into.outputs.element = name();
    }
}

/// The name by which an output is told from the operation's others; `None` where there is no other.
pub(super) fn told_apart<'a>(op: &Operation, spec: &'a TensorSpec) -> Option<&'a str> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output).count();
    (outputs > 1).then_some(spec.name.as_str())
}
