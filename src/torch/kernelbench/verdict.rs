//! What is right and what is not: pure functions of what the judge measured.

use serde::Deserialize;

use super::judge::Place;
use crate::evaluation::ErrorStats;
use crate::op::Dtype;
use crate::torch::bound::{Floors, Parts, few_terms, row_length};
use crate::torch::counts::{Allowed, Counts};

/// The clocks of the two columns have to differ by so many times, and by so many ms, before anything is said of it: one of them sees
/// what the host does for a call too.
const CLOCKS: f64 = 2.0;
const HOST: f64 = 0.2;

/// PyTorch's own result is no yardstick where it is off by more than this, as a share of what is right.
const USELESS: f64 = 0.1;

/// How far a tensor is from what is right, measured by the judge's process: [`Parts`] and where the worst is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
pub(super) struct Measure {
    tensor: f64,
    row: f64,
    element: f64,
    bias: f64,
    /// Elements that are finite where they should not be or the other way round; of integers those that differ.
    misplaced: u64,
    /// Elements that are off by half of what they are.
    lost: u64,
    /// Of 16 bits those that are not the nearest number of their type.
    strayed: u64,
    /// rms(d) / rms(r).
    relative: f64,
    at: u64,
    got: f64,
    want: f64,
}

impl Measure {
    pub(super) const fn parts(&self) -> Parts {
        Parts { tensor: self.tensor, row: self.row, element: self.element, bias: self.bias }
    }

    pub(super) const fn counts(&self) -> Counts {
        Counts { lost: self.lost, strayed: self.strayed }
    }

    /// Why it is no yardstick, if it is PyTorch's own result.
    pub(super) fn useless(&self) -> Option<String> {
        if self.misplaced > 0 {
            return Some("PyTorch's own result is not finite where it should be, or the other way round".into());
        }
        let off = self.relative;
        let near = off <= USELESS;
        (!near).then(|| format!("PyTorch's own result is off by {:.0} %", 100.0 * off))
    }
}

/// An output of a problem.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Output {
    /// None of integers, which are right or wrong.
    pub dtype: Option<Dtype>,
    /// Elements of a row.
    pub row: usize,
    /// Elements.
    pub elements: usize,
    /// Elements of the largest input: a sum has so many terms for each row, at most.
    pub terms: usize,
    /// Whether there are products of matrices or convolutions in it, or in another.
    pub products: bool,
    /// Its place among the outputs, where there are several.
    pub place: Option<usize>,
}

impl Output {
    /// Of a tensor, by the judge's name of its type.
    pub(super) fn new(it: &Place, (terms, products): (usize, bool), place: Option<usize>) -> Self {
        let dtype = match &*it.dtype {
            "f16" => Some(Dtype::F16),
            "bf16" => Some(Dtype::Bf16),
            "f32" | "f64" => Some(Dtype::F32),
            _ => None,
        };
        Self { dtype, row: row_length(&it.shape), elements: it.shape.iter().product(), terms, products, place }
    }

    /// What a result may be off by where PyTorch is off by `eager`, and two parts of bfloat16 would be by `split`.
    pub(super) fn limits(&self, eager: Parts, split: Option<Parts>) -> Parts {
        let Some(dtype) = self.dtype else { return Parts::default() };
        let rows = (self.elements / self.row).max(1);
        let usual = Floors::of(dtype, rows, self.terms / rows).limits(eager);
        match split {
            Some(split) if dtype == Dtype::F32 => few_terms(eager, split, usual, 0),
            _ => usual,
        }
    }

    /// How many elements of ordinary inputs' results may be what is counted, where PyTorch has `eager` at the most.
    pub(super) fn allowed(&self, eager: Counts, limits: &Parts) -> Allowed {
        let Some(dtype) = self.dtype else { return Allowed::default() };
        let terms = self.terms / (self.elements / self.row).max(1);
        // What cancels in a product is small, and rounding its sums moves much of it.
        let once = eager.rounds_once(dtype, self.elements) && !self.products;
        Allowed {
            lost: Some(Allowed::lost(eager, self.elements, limits.tensor * dtype.roundoff())),
            strayed: once.then(|| Allowed::strayed(eager, dtype, self.elements, terms)),
        }
    }

    /// Why a result is wrong; `None` where it is right.
    pub(super) fn failure(&self, made: &Measure, limits: &Parts, allowed: Allowed) -> Option<String> {
        let named = self.place.map_or(String::new(), |place| format!("output {place}: "));
        if self.dtype.is_none() {
            let Measure { misplaced, at, got, want, .. } = made;
            let wrong = *misplaced > 0;
            return wrong.then(|| {
                format!(
                    "{named}{misplaced} of {} integers differ; element {at} is {got} where {want} belongs",
                    self.elements
                )
            });
        }
        let over = |part: f64, limit: f64| {
            let ratio = part / limit;
            // Nothing of nothing is nothing; anything else beside nothing is too much.
            if part == 0.0 {
                0.0
            } else if ratio.is_nan() {
                f64::MAX
            } else {
                ratio.min(f64::MAX)
            }
        };
        let misplaced = made.misplaced > 0;
        let mut stats = ErrorStats {
            elements: self.elements as u64,
            outside: made.misplaced,
            worst: if misplaced { f64::MAX } else { over(made.element, limits.element) },
            worst_at: made.at,
            got: made.got,
            want: made.want,
            relative_rms: made.relative,
            tensor_ratio: over(made.tensor, limits.tensor),
            row_ratio: over(made.row, limits.row),
            bias_ratio: over(made.bias, limits.bias),
            ..ErrorStats::default()
        };
        made.counts().judge(allowed, &mut stats);
        match (misplaced, stats.within(1.0)) {
            (_, true) => None,
            (true, _) => Some(format!(
                "{named}{} of {} elements are NaN or infinite where they should not be, or not where they should, as what was never written is; one is element {}",
                made.misplaced, self.elements, made.at
            )),
            (false, _) if stats.worst > 1.0 => Some(format!(
                "{named}element {} is {:.5e} where {:.5e} belongs, {:.1e} times as far off as an honest kernel may be",
                made.at, made.got, made.want, stats.worst
            )),
            _ => stats.failure().map(|why| named + &why),
        }
    }
}

/// Why the two columns differ, where they do: right or not, ms, and what is wrong. Of the protocol its mean, of the strict judge the
/// shortest call, since any may be disturbed.
pub(super) fn difference(protocol: (bool, f64, &str), strict: (bool, f64, Option<&str>)) -> Option<String> {
    let ((passes, clocked, error), (right, took, reason)) = (protocol, strict);
    match (passes, right) {
        (true, false) => {
            Some(format!("passes the benchmark's protocol and is not right: {}", reason.unwrap_or("it is not")))
        }
        (false, true) => Some(format!("right, and the benchmark's protocol refuses it: {error}")),
        (true, true) if clocked > 0.0 && took > CLOCKS * clocked && took > clocked + HOST => {
            Some(format!("right, but it takes {took:.3} ms at least where the benchmark's clock saw {clocked:.3} ms"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn output(dtype: &str) -> Output {
        let place = Place { dtype: dtype.to_owned(), shape: vec![64, 1024] };
        Output::new(&place, (64 * 1024, false), None)
    }

    fn off(tensor: f64, row: f64, element: f64, bias: f64) -> Measure {
        Measure { tensor, row, element, bias, ..Measure::default() }
    }

    #[test]
    fn each_part_over_its_limit_is_refused_by_itself() {
        let it = output("f32");
        let limits = it.limits(off(1.0, 1.5, 3.0, 0.1).parts(), None);
        assert_eq!(it.failure(&off(30.0, 60.0, 100.0, 10.0), &limits, Allowed::default()), None);
        for wrong in
            [off(1e3, 0.0, 0.0, 0.0), off(0.0, 1e3, 0.0, 0.0), off(0.0, 0.0, 1e4, 0.0), off(0.0, 0.0, 0.0, 1e3)]
        {
            assert!(it.failure(&wrong, &limits, Allowed::default()).is_some(), "{wrong:?}");
        }
        assert!(
            it.failure(&Measure { misplaced: 1, ..off(0.0, 0.0, 0.0, 0.0) }, &limits, Allowed::default())
                .unwrap()
                .contains("NaN or infinite")
        );
    }

    #[test]
    fn what_is_counted_is_refused_by_itself_where_pytorch_has_little_of_it() {
        let counted = |dtype: &str, products: bool, lost: u64, strayed: u64| {
            let it = Output { products, ..output(dtype) };
            let limits = it.limits(Parts::default(), None);
            let allowed = it.allowed(Counts { lost: 0, strayed: 10 }, &limits);
            it.failure(&Measure { lost, strayed, ..Measure::default() }, &limits, allowed)
        };
        assert_eq!(counted("f32", false, 8, 0), None);
        assert!(counted("f32", false, 1000, 0).unwrap().contains("off by half of what they are"));
        assert!(counted("f16", false, 0, 6000).unwrap().contains("not the nearest number"));
        assert_eq!(counted("f16", true, 0, 6000), None);
    }

    #[test]
    fn integers_are_right_or_wrong() {
        let it = output("i64");
        let limits = it.limits(Parts::default(), None);
        assert_eq!(it.failure(&Measure::default(), &limits, Allowed::default()), None);
        let wrong = Measure { misplaced: 2, at: 7, got: 1.0, want: 3.0, ..Measure::default() };
        assert!(
            it.failure(&wrong, &limits, Allowed::default())
                .unwrap()
                .contains("2 of 65536 integers differ; element 7 is 1 where 3 belongs")
        );
    }

    #[test]
    fn what_is_no_number_is_never_within_a_limit() {
        let it = output("f32");
        let limits = it.limits(Parts::default(), None);
        for value in [f64::NAN, f64::INFINITY, 1e300] {
            assert!(it.failure(&off(value, value, value, value), &limits, Allowed::default()).is_some(), "{value}");
        }
    }

    #[test]
    fn a_yardstick_that_is_off_itself_is_none() {
        assert!(off(1.0, 1.0, 1.0, 1.0).useless().is_none());
        assert!(Measure { relative: 0.2, ..Measure::default() }.useless().unwrap().contains("20 %"));
        assert!(Measure { relative: f64::NAN, ..Measure::default() }.useless().is_some());
        assert!(Measure { misplaced: 1, ..Measure::default() }.useless().is_some());
    }

    #[test]
    fn the_columns_differ_in_what_is_right_or_in_what_their_clocks_saw() {
        assert_eq!(difference((true, 1.0, ""), (true, 1.5, None)), None);
        assert_eq!(difference((true, 0.001, ""), (true, 0.1, None)), None);
        assert_eq!(difference((false, -1.0, "x"), (false, 1.0, Some("y"))), None);
        assert!(difference((true, 1.0, ""), (false, 1.0, Some("zeros"))).unwrap().contains("is not right: zeros"));
        assert!(difference((false, -1.0, "raises"), (true, 1.0, None)).unwrap().contains("refuses it: raises"));
        assert!(difference((true, 0.01, ""), (true, 5.0, None)).unwrap().contains("takes 5.000 ms at least"));
    }
}
