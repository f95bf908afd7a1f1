//! The parts of an error once more, written plainly: what `measure.py` says is compared with this.
#![allow(clippy::unwrap_used, clippy::neg_cmp_op_on_partial_ord)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::bound::{Floors, Form, Measured, Parts, few_terms, row_length};
use super::counts::{Allowed, Counts};
use super::service::PYTHON;
use super::wire::Far;
use crate::evaluation::ErrorStats;
use crate::op::Dtype;
use crate::rng::Stream;

/// Within this share of the largest finite value, infinity and a finite value are both right.
const NEAR_OVERFLOW: f64 = 0.001;

/// An element beside what it should be.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    /// Both are not finite, alike, or the result is as infinite as its type makes it.
    Alike,
    /// One is finite, and the other is not or the other way round.
    Misplaced,
    /// y - r, less what a result near zero may lose.
    Off(f64),
}

impl Form {
    fn element(&self, y: f64, r: f64) -> Element {
        let largest = self.dtype.largest();
        if r.is_nan() {
            return if y.is_nan() { Element::Alike } else { Element::Misplaced };
        }
        let overflowed = y.is_infinite() && y.signum() == r.signum();
        if r.is_infinite() || r.abs() > (1.0 + NEAR_OVERFLOW) * largest {
            return if overflowed { Element::Alike } else { Element::Misplaced };
        }
        if overflowed && r.abs() >= (1.0 - NEAR_OVERFLOW) * largest {
            return Element::Alike;
        }
        if !y.is_finite() {
            return Element::Misplaced;
        }
        let d = y - r;
        Element::Off(d.signum() * (d.abs() - self.dtype.underflow()).max(0.0))
    }

    /// How far `y` is from `r`.
    fn measure(&self, y_all: &[f64], r_all: &[f64]) -> Measured {
        let u = self.dtype.roundoff();
        let (mut parts, mut misplaced, mut worst_at, mut worst) = (Parts::default(), 0, 0, 0.0);
        let (mut errors, mut values, mut along) = (0.0, 0.0, 0.0);
        let (mut counts, stored) = (Counts::default(), crate::op::ElementType::Case.stored(self.dtype));
        for (number, (y, r)) in y_all.chunks(self.row).zip(r_all.chunks(self.row)).enumerate() {
            let (mut row_errors, mut row_values, mut finite) = (0.0, 0.0, 0.0);
            for (&y, &r) in y.iter().zip(r) {
                if let Element::Off(d) = self.element(y, r) {
                    (row_errors, row_values, finite) = (row_errors + d * d, row_values + r * r, finite + 1.0);
                    along += d * r;
                }
            }
            let rms = if finite > 0.0 { f64::sqrt(row_values / finite) } else { 0.0 };
            for (place, (&y, &r)) in y.iter().zip(r).enumerate() {
                let off = match self.element(y, r) {
                    Element::Alike => continue,
                    Element::Misplaced => {
                        misplaced += 1;
                        f64::INFINITY
                    }
                    Element::Off(d) => share(d.abs(), r.abs() + rms),
                };
                if let Element::Off(d) = self.element(y, r) {
                    counts.lost += u64::from(d.abs() > 0.5 * r.abs() && r.abs() > 1e-20 * rms);
                    counts.strayed += u64::from(self.dtype != Dtype::F32 && y != stored.nearest(r));
                }
                if off > worst {
                    (worst, worst_at) = (off, number * self.row + place);
                }
                if off.is_finite() {
                    parts.element = parts.element.max(off / u);
                }
            }
            parts.row = parts.row.max(share(row_errors, row_values).sqrt() / u);
            (errors, values) = (errors + row_errors, values + row_values);
        }
        let relative_rms = share(errors, values).sqrt();
        parts.tensor = relative_rms / u;
        parts.bias = share(f64::abs(along), values) / u;
        if worst == f64::INFINITY && misplaced == 0 {
            parts.element = f64::INFINITY;
        }
        let at = |values: &[f64]| values.get(worst_at).copied().unwrap_or_default();
        let (got, want) = (at(y_all), at(r_all));
        Measured { parts, worst_at, misplaced, counts, relative_rms, got, want }
    }

    fn judge(&self, y: &[f64], r: &[f64], limits: &Parts) -> ErrorStats {
        let measured = self.measure(y, r);
        let outside = measured.misplaced + self.outside(y, r, limits.element);
        measured.judge(y.len(), outside, limits, Allowed::default())
    }

    /// How many finite elements are off by more than `limit` units.
    fn outside(&self, y: &[f64], r: &[f64], limit: f64) -> u64 {
        let u = self.dtype.roundoff();
        let mut outside = 0;
        for (y, r) in y.chunks(self.row).zip(r.chunks(self.row)) {
            let finite: Vec<f64> = r.iter().copied().filter(|r| r.is_finite()).collect();
            let rms = (finite.iter().map(|r| r * r).sum::<f64>() / finite.len().max(1) as f64).sqrt();
            for (&y, &r) in y.iter().zip(r) {
                if let Element::Off(d) = self.element(y, r) {
                    outside += u64::from(!(share(d.abs(), r.abs() + rms) / u <= limit));
                }
            }
        }
        outside
    }
}

/// A ratio of which both may be zero: nothing of nothing is nothing.
fn share(part: f64, whole: f64) -> f64 {
    if part == 0.0 { 0.0 } else { part / whole }
}

const F32: Form = Form { dtype: Dtype::F32, row: 4, whole: false };
const U: f64 = 1.0 / (1u64 << 24) as f64;

#[test]
fn the_four_parts_are_what_their_names_say() {
    let r = [1.0, 1.0, 1.0, 1.0, 8.0, 8.0, 8.0, 8.0];
    let mut y = r;
    y[2] += 6.0 * U;
    let found = F32.measure(&y, &r);
    assert_eq!(found.worst_at, 2);
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(near(found.parts.element, 3.0) && near(found.parts.row, 3.0), "{found:?}");
    assert!(near(found.parts.tensor, 6.0 / 260f64.sqrt()) && near(found.parts.bias, 6.0 / 260.0), "{found:?}");
}

#[test]
fn what_is_not_finite_must_be_where_it_belongs() {
    let r = [1.0, f64::NAN, f64::INFINITY, 1e39];
    assert_eq!(F32.measure(&[1.0, f64::NAN, f64::INFINITY, f64::INFINITY], &r).misplaced, 0);
    for wrong in [[1.0, 0.0, f64::INFINITY, f64::INFINITY], [f64::NAN, f64::NAN, f64::INFINITY, f64::INFINITY]] {
        let stats = F32.judge(&wrong, &r, &Floors::of(Dtype::F32, 1, 1).limits(Parts::default()));
        assert_eq!(stats.outside, 1);
        assert!(stats.failure().is_some());
    }
    assert_eq!(F32.measure(&[1.0, f64::NAN, f64::NEG_INFINITY, f64::INFINITY], &r).misplaced, 1);
}

#[test]
fn a_row_or_a_bias_is_refused_where_each_element_is_near() {
    let limits = Floors::of(Dtype::Bf16, 64, 1).limits(Parts { tensor: 0.42, row: 0.5, element: 0.8, bias: 0.01 });
    let form = Form { dtype: Dtype::Bf16, row: 64, whole: false };
    let u = Dtype::Bf16.roundoff();
    let r: Vec<f64> = (0..4096).map(|i| 1.0 + f64::from(i % 7)).collect();
    let shrunk: Vec<f64> = r.iter().map(|r| r * (1.0 - 0.5 * u)).collect();
    let stats = form.judge(&shrunk, &r, &limits);
    assert!(stats.outside == 0 && stats.bias_ratio > 1.0, "{stats:?}");
    assert!(stats.failure().is_some_and(|why| why.contains("one direction")), "{:?}", stats.failure());
    let swayed = |i: usize, r: f64| r * (1.0 + if i.is_multiple_of(2) { 1.9 } else { -1.9 } * u);
    let row: Vec<f64> = r.iter().enumerate().map(|(i, r)| if i < 64 { swayed(i, *r) } else { *r }).collect();
    let stats = form.judge(&row, &r, &limits);
    assert!(stats.outside == 0 && stats.row_ratio > 1.0 && stats.tensor_ratio < 1.0, "{stats:?}");
}

#[test]
fn zero_where_zero_belongs_is_right_and_nothing_else_is() {
    let limits = Floors::of(Dtype::F16, 1, 1).limits(Parts::default());
    let form = Form { dtype: Dtype::F16, row: 4, whole: false };
    assert!(form.judge(&[0.0; 4], &[0.0; 4], &limits).failure().is_none());
    assert!(form.judge(&[0.0, 0.0, 1e-3, 0.0], &[0.0; 4], &limits).failure().is_some());
    // What a half loses near zero is not held against it.
    assert!(form.judge(&[0.0; 4], &[2e-8; 4], &limits).failure().is_none());
}

#[test]
fn a_yardstick_that_is_off_itself_is_none() {
    let r = [1.0, 2.0, 3.0, 4.0];
    assert!(F32.useless(&F32.measure(&r, &r)).is_none());
    assert!(F32.useless(&F32.measure(&[1.0, 2.0, 3.0, 6.0], &r)).is_some_and(|why| why.contains('%')));
    assert!(F32.useless(&F32.measure(&[1.0, 2.0, 3.0, f64::INFINITY], &r)).is_some());
}

#[test]
fn two_parts_of_bfloat16_are_refused_where_few_terms_are_not_zero() {
    let (eager, split) = (
        Parts { tensor: 0.6, row: 1.0, element: 2.0, bias: 0.1 },
        Parts { tensor: 30.0, row: 40.0, element: 60.0, bias: 1.0 },
    );
    let usual = Floors::of(Dtype::F32, 64, 4096).limits(eager);
    let limits = few_terms(eager, split, usual, 0);
    assert!(usual.tensor > split.tensor && limits.tensor <= split.tensor / 2.0, "{limits:?}");
    // Sums of other terms, and inputs whose bits do not show, are held to the usual.
    assert_eq!(few_terms(Parts { tensor: 3.0, ..eager }, split, usual, 0), usual);
    assert_eq!(few_terms(eager, Parts::default(), usual, 0).tensor, Floors::least().limits(eager).tensor);
    // A plain sum of 32 terms that are alike loses some units, and a mean of many no more than it may elsewhere.
    assert_eq!(few_terms(eager, split, usual, 32).tensor, limits.tensor + 16.0);
    assert_eq!(few_terms(eager, split, usual, 1 << 20).tensor, usual.tensor);
}

#[test]
fn a_short_last_dimension_is_no_row() {
    assert_eq!(row_length(&[8, 1024]), 1024);
    assert_eq!(row_length(&[8, 32, 1]), 32);
    assert_eq!(row_length(&[2, 3, 3, 3]), 27);
    assert_eq!((row_length(&[5]), row_length(&[1]), row_length(&[])), (5, 1, 1));
}

/// What `measure.py` is asked: of `y` in the form's type, and `r`.
struct Question {
    form: Form,
    y: Vec<f64>,
    r: Vec<f64>,
}

/// Units beyond which elements are counted.
const LIMIT: f64 = 4.0;

/// Asks `measure.py` in the Python of `$WARPSMITH_PYTHON`, on PyTorch's `device`: everything in one process, since importing PyTorch takes seconds.
fn asked(questions: &[Question], device: &str) -> Option<Vec<Far>> {
    let python = std::env::var_os(PYTHON)?;
    let program = concat!(
        include_str!("fused.py"),
        include_str!("measure.py"),
        r"
import json, struct, sys, torch
DEVICE, questions = json.load(sys.stdin)
assert DEVICE == 'cpu' or fused()
kinds = {'f16': torch.float16, 'bf16': torch.bfloat16, 'f32': torch.float32}
found = []
for asked in questions:
    y, r = (torch.tensor([struct.unpack('<d', struct.pack('<Q', b))[0] for b in asked[k]], dtype=torch.float64, device=DEVICE) for k in 'yr')
    AT_ONCE = asked['at_once']
    found.append(measure(y.to(kinds[asked['dtype']]), r, asked, asked['limit']))
print(json.dumps(found))
"
    );
    let mut child =
        Command::new(python).args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let question = |Question { form, y, r }: &Question| {
        let dtype = form.dtype;
        serde_json::json!({
            "y": bits(y), "r": bits(r), "row": form.row, "u": dtype.roundoff(), "largest": dtype.largest(), "underflow": dtype.underflow(),
            "dtype": dtype.to_string(), "limit": LIMIT, "at_once": 3 * form.row,
        })
    };
    let all = serde_json::json!([device, questions.iter().map(question).collect::<Vec<_>>()]);
    child.stdin.take()?.write_all(all.to_string().as_bytes()).ok()?;
    let said = child.wait_with_output().ok()?;
    if !said.status.success() {
        let _ = writeln!(std::io::stderr(), "skipped: {PYTHON} has no PyTorch that can use {device}");
        return None;
    }
    Some(serde_json::from_slice(&said.stdout).unwrap())
}

#[test]
fn pytorchs_process_measures_the_same_parts() {
    compared(&[(Dtype::F32, 7), (Dtype::F16, 64), (Dtype::Bf16, 16)], "cpu");
}

#[test]
fn a_gpu_measures_the_same_parts_in_one_launch() {
    let forms = [(Dtype::F32, 7), (Dtype::F16, 64), (Dtype::Bf16, 300), (Dtype::F32, 5000), (Dtype::F16, 70_000)];
    compared(&forms, "cuda");
}

fn compared(forms: &[(Dtype, usize)], device: &str) {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    let questions: Vec<Question> =
        forms.iter().flat_map(|&(dtype, row)| questions(Form { dtype, row, whole: false })).collect();
    let Some(answers) = asked(&questions, device) else { return };
    assert_eq!(answers.len(), questions.len());
    for (far, Question { form, y, r }) in answers.iter().zip(&questions) {
        let dtype = form.dtype;
        let (found, plain) = (far.measured(), form.measure(y, r));
        let parts = |it: &Measured| [it.parts.tensor, it.parts.row, it.parts.element, it.parts.bias, it.relative_rms];
        assert!(parts(&found).iter().zip(parts(&plain)).all(|(a, b)| near(*a, b)), "{dtype}: {found:?} {plain:?}");
        assert_eq!((found.worst_at, found.misplaced), (plain.worst_at, plain.misplaced), "{dtype}");
        assert_eq!(found.counts, plain.counts, "{dtype}");
        assert_eq!(far.outside, plain.misplaced + form.outside(y, r, LIMIT), "{dtype}");
    }
}

/// Results that are right, and some with one element that is not.
fn questions(form: Form) -> Vec<Question> {
    let (dtype, row) = (form.dtype, form.row);
    let stream = Stream::new(7, "measured");
    let stored = crate::op::ElementType::Case.stored(dtype);
    let mut r: Vec<f64> = (0..row as u64 * 10).map(|i| (stream.bits(i) >> 40) as f64 / 4e6 - 2.0).collect();
    r[3] = f64::NAN;
    r[row + 1] = f64::INFINITY;
    r[2 * row..3 * row].fill(0.0);
    r[5 * row] = 1.0005 * dtype.largest();
    let noise = |i: u64| 1.0 + ((stream.bits(i | 1 << 40) >> 40) as f64 / 8e6 - 1.0) * 6.0 * dtype.roundoff();
    let right: Vec<f64> = r.iter().zip(0..).map(|(r, i)| stored.nearest(r * noise(i))).collect();
    let changed = |place: usize, value: f64| {
        let mut y = right.clone();
        y[place] = stored.nearest(value);
        y
    };
    let all = [
        right.clone(),
        changed(4, f64::NAN),
        changed(3, 0.0),
        changed(row + 1, -f64::INFINITY),
        changed(8 * row, 9.0),
        changed(2 * row, 1.0),
        changed(9 * row + 1, 0.0),
    ];
    all.into_iter().map(|y| Question { form, y, r: r.clone() }).collect()
}
