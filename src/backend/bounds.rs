//! How far from the oracle a result may be (docs/judging.md, "Tolerances").

// `!(a <= b)` is how a comparison is written here, so that NaN fails.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

use super::values::decode_into;
use crate::defence::Defence;
use crate::evaluation::ErrorStats;
use crate::op::{Case, Dtype, OpError, Operation, Role, Stored, TensorSpec};

/// Within this share of the largest finite value, infinity and a finite value are both right.
const NEAR_OVERFLOW: f64 = 0.001;

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
    /// Whether C adds nothing to the rms bound of many elements, because their terms have either sign.
    pub signed_terms: bool,
    /// The share of elements that may be rounded wrongly, where that is counted.
    pub misrounded: Option<f64>,
    /// Of which elements it is counted to which side they are off.
    pub sides: Sides,
}

/// Of which elements it is counted to which side they are off. Results that are cut off instead of being rounded are all off to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sides {
    /// Of none.
    Uncounted = 0,
    /// Of all that differ from the oracle's: about half are rounded to each side. Where values that may themselves be of 16 bits are
    /// summed, rounding one of them shifts whole rows of the results, and more than the last rounding decides which are not the nearest.
    Inexact = 1,
    /// Of those that are not the nearest number of their type. Few are, but where results are cut off; those that are rounded to the nearest
    /// may well all be off to one side, as where the exact result lies beside a number of the type.
    Misrounded = 2,
}

impl Sides {
    /// Whether an element is counted.
    pub(super) fn counts(self, y: f64, r: f64, stored: Stored) -> bool {
        match self {
            Self::Uncounted => false,
            Self::Inexact => y != r,
            Self::Misrounded => is_misrounded(y, r, stored),
        }
    }

    /// The more frequent of both sides over what may fall to one, of so many elements in all: the share, what chance adds to it where
    /// there are few, and of what is misrounded the few that an approximation with a bias of its own makes.
    pub(super) fn ratio(self, [nearer, further]: [u64; 2], elements: f64) -> f64 {
        let counted = (nearer + further) as f64;
        let biased = if self == Self::Misrounded { BIASED * elements } else { 0.0 };
        nearer.max(further) as f64 / (ONE_SIDE * counted + 4.0 * counted.sqrt() + 4.0 + biased)
    }
}

/// Of the exact result: so much nearer to it must another number of the type be. It is 2^-21, eight roundings of single precision. An exact result may lie in
/// the middle between two numbers but for less than single precision can tell, and it may do so for many elements at once: normalised rows of two
/// elements are 1 and -1 but for eps, and with a weight and a bias of 16 bits an eighth of them is such a middle. Which of the two is
/// nearer says nothing there.
const MIDDLE: f64 = 4.768_371_582_031_25e-7;

/// Whether another number of the type is nearer to `r`, which is finite, than `y` is, by more than single precision may be off.
pub(super) fn is_misrounded(y: f64, r: f64, stored: Stored) -> bool {
    let nearest = stored.nearest(r);
    let excess = (y - r).abs() - (nearest - r).abs();
    // Of what is not finite there is no excess, and it is wrong.
    y != nearest && !(excess <= MIDDLE * r.abs())
}

/// The share of all elements that may be misrounded to one side alone whatever the other: with it up to 4 % may be, which is more than an
/// exponential of single precision makes of 16 bits. Cutting off makes half of the elements so.
const BIASED: f64 = 0.01;

/// So many sums are not all small by chance, as one or a few may be where terms cancel.
pub(super) const MANY: f64 = 256.0;

/// The share of half-precision elements of an operation that rounds once that are not the number nearest to the oracle's: an error of some
/// units of single precision moves one in a few hundred across the middle between two numbers. Numbers of fewer bits are further apart, and
/// as many fewer are moved: with one share for both an exponential of 14 bits passed in bfloat16, where starters misround one in ten thousand.
const MISROUNDED: f64 = 0.03;

/// What an element must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Flat index into its output.
    pub index: usize,
    /// The double-precision value, r.
    pub value: f64,
    /// The sum of the absolute terms that made it, C.
    pub terms: f64,
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
        let tolerance = op.tolerance()?;
        let few = op.few_terms(case).filter(|_| Defence::FewTerms.stands());
        let sum_length = few.map_or(&tolerance.sum_length, |few| &few.sum_length);
        let sum_length = op.size("tolerance sum_length", sum_length, shape)?;
        let row = op.size("tolerance row", &tolerance.row, shape)?.max(1);
        let precision = spec.dtype.stored(dtype).dtype().unwrap_or(dtype);
        let sums = (8.0 + (sum_length as f64).sqrt() / 2.0) * U32;
        // What hostile terms do to a sum is in C; of others L says enough, and C would let half the bits of a long sum go.
        let shared = tolerance.shared_sums.as_ref();
        let shared = shared.map(|sums| op.size("tolerance shared_sums", sums, shape)).transpose()?;
        let by_length = Defence::SignedTerms.stands()
            && shared.is_none_or(|sums| sums as f64 >= MANY)
            && dtype == Dtype::F32
            && tolerance.signed_terms
            && (case.input.is_none() || few.is_some());
        let ordinary = case.input.is_none() && precision != Dtype::F32;
        let rounds_once = Defence::RoundsOnce.stands() && tolerance.rounds_once && ordinary;
        let bounds = Self {
            u: precision.roundoff(),
            s: precision.underflow(),
            largest: precision.largest(),
            sums,
            row_term: if tolerance.row_term && dtype != Dtype::F32 { 6.0 * dtype.roundoff() } else { 0.0 },
            rms_bound: match few.filter(|_| precision == Dtype::F32) {
                Some(few) => op.double("few_terms f32", &few.f32, shape)?,
                None => op.rms_bound(shape, dtype)?,
            },
            signed_terms: by_length,
            misrounded: rounds_once.then_some(MISROUNDED * Dtype::F16.roundoff() / precision.roundoff()),
            sides: match Defence::Unbiased.stands() && ordinary {
                false => Sides::Uncounted,
                true if tolerance.row_term && tolerance.signed_terms => Sides::Inexact,
                true => Sides::Misrounded,
            },
        };
        // An output that has no such rows (a mean beside its losses) is one row.
        Ok((bounds, if elements.is_multiple_of(row) { row } else { elements }))
    }

    /// The same where what single precision loses in long sums may be `times` as much: what sums make of C, and all that is
    /// allowed to a result of single precision. A result of 16 bits is rounded as elsewhere, but not always to the nearest number then.
    pub(super) fn with_sums(self, times: f64) -> Self {
        if times <= 1.0 {
            return self;
        }
        let rms_bound = if self.u <= U32 { self.rms_bound * times } else { self.rms_bound };
        Self { sums: self.sums * times, rms_bound, misrounded: None, sides: Sides::Uncounted, ..self }
    }

    /// How far off an element is, as a multiple of its bound; infinite where no distance would do.
    pub(super) fn element(&self, y: f64, r: f64, terms: f64, row_term: f64) -> f64 {
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

    /// Whether a value is so far from zero that nothing of it may be lost there.
    pub(super) fn is_normal(&self, r: f64) -> bool {
        r.is_finite() && r.abs() >= 2048.0 * self.s
    }

    /// An rms error as a multiple of its bound, `level` being the L in force.
    pub(super) fn rms_ratio(&self, sums: &Sums, level: f64) -> f64 {
        if sums.count == 0.0 {
            return 0.0;
        }
        let rms = |square: f64| (square / sums.count).sqrt();
        let by_terms = if self.signed_terms && sums.count >= MANY { 0.0 } else { self.sums / 4.0 };
        let bound = (level + self.u / sums.count.sqrt()) * rms(sums.value) + self.s + by_terms * rms(sums.terms);
        finite(rms(sums.error) / bound)
    }
}

/// Gives the bytes of some elements, by index, of an output of this number and type.
pub(super) type Read<'a> = &'a mut dyn FnMut(usize, Stored, &[usize]) -> Vec<u8>;

/// Compares a few elements of each output, all of one row, as `read` gives them; sums may lose so many times what they may.
///
/// # Errors
/// An expression that fails at this shape.
pub(super) fn compare_places(
    op: &Operation,
    (case, sums): (&Case, f64),
    expected: &[Vec<Place>],
    read: Read<'_>,
) -> Result<ErrorStats, OpError> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let mut total = ErrorStats::default();
    for (output, (spec, places)) in outputs.zip(expected).enumerate().filter(|(_, (_, places))| !places.is_empty()) {
        let stored = spec.dtype.stored(case.dtype);
        let (bounds, _) = Bounds::of(op, case, spec, op.elements(spec, &case.shape)?)?;
        let bounds = bounds.with_sums(sums);
        let indices: Vec<usize> = places.iter().map(|place| place.index).collect();
        let mut got = vec![0.0; places.len()];
        decode_into(&read(output, stored, &indices), stored, &mut got);
        let values: Vec<f64> = places.iter().map(|place| place.value).collect();
        let row_term = if bounds.row_term > 0.0 { bounds.row_term * rms_of_finite(&values) } else { 0.0 };
        let mut stats = ErrorStats { elements: places.len() as u64, ..ErrorStats::default() };
        for (y, Place { index, value, terms }) in got.into_iter().zip(places) {
            let terms = if terms.is_finite() { *terms } else { value.abs() };
            let ratio = finite(bounds.element(y, *value, terms, row_term));
            stats.outside += u64::from(!(ratio <= 1.0));
            if ratio > stats.worst {
                stats.worst = ratio;
                (stats.worst_at, stats.got, stats.want) = (*index as u64, y, *value);
            }
        }
        merge_outputs(&mut total, &stats, told_apart(op, spec));
    }
    Ok(total)
}

/// The rms of what is finite; zero where nothing is.
pub(super) fn rms_of_finite(values: &[f64]) -> f64 {
    let (count, squares) =
        values.iter().filter(|v| v.is_finite()).fold((0.0, 0.0), |(count, squares), v| (count + 1.0, squares + v * v));
    if count == 0.0 { 0.0 } else { (squares / count).sqrt() }
}

/// How many of `elements` may be rounded wrongly: the share, and what chance adds to it where there are few.
pub(super) fn misrounded_allowed(share: f64, elements: f64) -> f64 {
    let expected = share * elements;
    expected + 4.0 * expected.sqrt() + 2.0
}

/// The share of elements that may be off to the same side. Half are where each is rounded to the nearest; nearly all where results
/// are cut off, also where other errors of half a unit come on top.
const ONE_SIDE: f64 = 0.75;

/// A ratio that every format of file can hold.
pub(super) fn finite(ratio: f64) -> f64 {
    if ratio.is_nan() { f64::MAX } else { ratio.min(f64::MAX) }
}

/// Adds another output's result: the worse of each, with `name` where it has to be told from others.
pub(crate) fn merge_outputs(into: &mut ErrorStats, other: &ErrorStats, name: Option<&str>) {
    let name = || name.map(str::to_owned);
    into.elements += other.elements;
    into.outside += other.outside;
    into.misrounded += other.misrounded;
    into.misrounded_ratio = into.misrounded_ratio.max(other.misrounded_ratio);
    into.lost += other.lost;
    into.lost_ratio = into.lost_ratio.max(other.lost_ratio);
    if other.side_ratio > into.side_ratio || into.side_ratio == 0.0 {
        (into.sides, into.side_ratio) = (other.sides, other.side_ratio);
    }
    if other.row_ratio > into.row_ratio {
        into.outputs.row = name();
    }
    if other.tensor_ratio > into.tensor_ratio {
        into.outputs.tensor = name();
    }
    into.row_ratio = into.row_ratio.max(other.row_ratio);
    into.bias_ratio = into.bias_ratio.max(other.bias_ratio);
    into.tensor_ratio = into.tensor_ratio.max(other.tensor_ratio);
    into.relative_rms = into.relative_rms.max(other.relative_rms);
    if other.worst > into.worst {
        (into.worst, into.worst_at, into.got, into.want) = (other.worst, other.worst_at, other.got, other.want);
        into.outputs.element = name();
    }
}

/// The name by which an output is told from the operation's others; `None` where there is no other.
pub(crate) fn told_apart<'a>(op: &Operation, spec: &'a TensorSpec) -> Option<&'a str> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output).count();
    (outputs > 1).then_some(spec.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_of_two_numbers_is_nearer_does_not_count_where_single_precision_cannot_tell() {
        // 1 + 2^-8 is the middle between two numbers of bfloat16, 1 and 1 + 2^-7.
        let (middle, below, above) = (1.0 + 2f64.powi(-8), 1.0, 1.0 + 2f64.powi(-7));
        let misrounded = |y, r| is_misrounded(y, r, Stored::Bf16);
        for off in [0.0, 1e-8, -1e-8, 1e-7, -1e-7] {
            assert!(!misrounded(below, middle + off) && !misrounded(above, middle + off), "{off}");
        }
        for off in [1e-6, 1e-4, 3e-3] {
            assert!(misrounded(below, middle + off) && !misrounded(above, middle + off), "{off}");
            assert!(misrounded(above, middle - off) && !misrounded(below, middle - off), "{off}");
        }
        // Another number than both is as wrong as ever, and so is what is not finite.
        assert!(misrounded(1.0 + 2f64.powi(-6), middle) && misrounded(1.0 - 2f64.powi(-8), middle));
        assert!(misrounded(f64::NAN, 1.0) && misrounded(f64::INFINITY, 1.0));
    }
}
