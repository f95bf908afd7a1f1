//! Hostile inputs that nobody has written: for operations whose oracle is PyTorch, from how their inputs are drawn.
//!
//! They are the kinds that the shipped operations have by hand. Which of them mean anything to an operation is found out when it
//! is judged: where PyTorch itself has no usable answer in the kernel's type, a case is dropped and counted.

use std::collections::BTreeMap;

use super::{Adversarial, Distribution, Draw, Dtype, FewTerms, Operation, Role, RowScale, Shape, Special, TensorSpec};
use crate::expr::Expr;

/// Inputs that meet every kind; others, and weights, meet the most telling ones only, so that a verdict stays short.
const IN_FULL: usize = 2;

/// Inputs of all, weights included, that meet the most telling kinds; those after them meet the least that nothing else shows.
const MOST: usize = 6;

/// A hostile input at its own sizes has no more elements than this, where the operation lists such a shape.
const ELEMENTS: u64 = 1 << 17;

/// Values of the few elements that are not zero: none a power of two or of few bits. None is above zero, so that what is left of an
/// exponential, shifted by the maximum, is exactly one, and a plain sum of it exact: nothing but lost bits shows.
const FEW: [f64; 12] = [1.0, 0.11, 0.37, 0.73, 1.3, 1.9, 2.6, 0.33, 0.043, 0.59, 0.77, 2.91];

/// How a tensor is drawn, in numbers.
#[derive(Debug, Clone, Copy)]
struct Usual {
    /// What lies in the middle, and how far values are from it.
    middle: f64,
    sigma: f64,
    /// Whether it is a weight of which no value is negative, so that none may become so: a variance. Whether negative values mean
    /// anything elsewhere PyTorch says.
    positive: bool,
    /// Whether it is drawn from zero upwards, so that negative values may mean nothing.
    upward: bool,
}

/// What is asked of an operation beside ordinary inputs.
pub(super) fn hostile(op: &Operation) -> Vec<Adversarial> {
    let own = op.ordinary_shape();
    let floating = |tensor: &&TensorSpec| tensor.role == Role::Input && !tensor.dtype.is_whole();
    let inputs: Vec<&TensorSpec> = op.tensors.iter().filter(floating).collect();
    let activations = inputs.iter().filter(|tensor| !tensor.weight);
    let order: Vec<&TensorSpec> = activations.chain(inputs.iter().filter(|tensor| tensor.weight)).copied().collect();
    let mut all = Vec::new();
    for (place, tensor) in order.iter().enumerate() {
        let Some(shape) = present_at(op, tensor, &own) else { continue };
        let Some(usual) = usual(op, tensor, &shape) else { continue };
        let in_full = place < IN_FULL && !tensor.weight;
        let free = tensor.draw.as_ref().is_some_and(Draw::is_free);
        for (kind, why, draw) in kinds(usual, tensor.draw.as_ref(), tensor.weight) {
            // What has a structure keeps it.
            let draw = match (free, SCALED.iter().find(|(of, _)| *of == kind)) {
                (true, _) => draw,
                (false, Some((_, factor))) => Draw { scale: Some(Expr::from(*factor)), ..own_of(tensor) },
                (false, None) if kind == "wide_rows" => Draw { rows: RowScale::Wide, ..own_of(tensor) },
                (false, None) => continue,
            };
            let met: &[&str] = if place < MOST { &TELLING } else { &LEAST };
            if !(in_full || met.contains(&kind)) {
                continue;
            }
            let few = (kind == "few_terms" && !usual.positive).then(few_terms);
            let name = if order.len() > 1 { format!("{kind} in {}", tensor.name) } else { kind.to_owned() };
            all.push(Adversarial {
                listed_arguments: false,
                name,
                why: why.to_owned(),
                shape: shape.clone(),
                draw: BTreeMap::from([(tensor.name.clone(), draw)]),
                dtypes: types_of(kind),
                requires: tensor.present.clone(),
                few_terms: few,
            });
        }
    }
    for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
        let Some(shape) = present_at(op, tensor, &own).filter(|shape| is_truth(op, tensor, shape)) else { continue };
        let specials = vec![Special::scattered(0.0, None, 3), Special::scattered(1.0, None, 4)];
        all.push(Adversarial {
            listed_arguments: false,
            name: format!("rows alike in {}", tensor.name),
            why: "rows that are true everywhere, or nowhere: what nothing is left of has a meaning too".to_owned(),
            shape,
            draw: BTreeMap::from([(tensor.name.clone(), Draw { specials, ..own_of(tensor) })]),
            dtypes: Vec::new(),
            requires: tensor.present.clone(),
            few_terms: None,
        });
    }
    all
}

/// Whether a tensor holds truth values, which are bytes to kernels.
fn is_truth(op: &Operation, tensor: &TensorSpec, shape: &Shape) -> bool {
    let draw = tensor.draw.as_ref().filter(|draw| draw.dist == Distribution::Index && draw.shift.is_none());
    let values = draw.and_then(|draw| op.double("hostile", draw.scale.as_ref()?, &op.complete(shape).ok()?).ok());
    tensor.dtype.is_whole() && values == Some(2.0)
}

/// Kinds that only make all values larger or smaller. (Rows that differ in size keep what structure they have as well.)
const SCALED: [(&str, f64); 2] = [("large", 30.0), ("small", 0.001)];

/// How a tensor is drawn ordinarily.
fn own_of(tensor: &TensorSpec) -> Draw {
    let nothing = Draw {
        dist: Distribution::File,
        scale: None,
        shift: None,
        rows: RowScale::None,
        specials: Vec::new(),
        like: None,
    };
    tensor.draw.clone().unwrap_or(nothing)
}

/// Kinds that every input meets.
const TELLING: [&str; 4] = ["large", "needles", "few_terms", "not_finite"];

/// Kinds that every input meets, however many there are: fewer bits, and what is left out where it is multiplied by zero.
const LEAST: [&str; 2] = ["few_terms", "not_finite"];

/// Kinds that say something in single precision alone.
const SINGLE: [&str; 3] = ["far_shifted", "few_above", "repeated"];

/// The types that a kind is for; all where there is none. Tiny values are nothing in half precision.
fn types_of(kind: &str) -> Vec<Dtype> {
    match kind {
        "tiny_upward" => vec![Dtype::F32, Dtype::Bf16],
        _ if SINGLE.contains(&kind) => vec![Dtype::F32],
        _ => Vec::new(),
    }
}

/// Only that there are few is of interest: bounds come from PyTorch's own error.
fn few_terms() -> FewTerms {
    FewTerms { sum_length: Expr::from(FEW.len() as f64), f32: Expr::from(1e-6) }
}

impl Operation {
    /// A listed shape that stands for all: the largest that is small. At the smallest of some operations (a softmax of one column)
    /// nothing depends on anything.
    #[must_use]
    pub fn ordinary_shape(&self) -> Shape {
        let listed = [&self.smoke].into_iter().chain(&self.sweep).chain(&self.edges);
        let sized = listed.filter_map(|shape| Some((self.all_elements(&self.complete(shape).ok()?).ok()?, shape)));
        let small = sized.filter(|(elements, _)| *elements <= ELEMENTS);
        small.max_by_key(|(elements, _)| *elements).map_or_else(|| self.smoke.clone(), |(_, shape)| shape.clone())
    }
}

/// A shape at which a tensor is there: this one, or with one of its flags raised.
fn present_at(op: &Operation, tensor: &TensorSpec, shape: &Shape) -> Option<Shape> {
    let flags = op.random.iter().filter(|(_, bounds)| **bounds == (0, 1)).map(|(symbol, _)| symbol);
    let raised = flags.map(|flag| shape.clone().with(flag, 1));
    let there = |shape: &Shape| {
        let shape = op.complete(shape).ok()?;
        op.present(tensor, &shape).ok()?.then_some(())
    };
    std::iter::once(shape.clone()).chain(raised).find(|shape| there(shape).is_some())
}

fn usual(op: &Operation, tensor: &TensorSpec, shape: &Shape) -> Option<Usual> {
    let draw = tensor.draw.as_ref()?;
    let draw = draw.like.as_deref().unwrap_or(draw);
    let shape = op.complete(shape).ok()?;
    let value = |expr: &Option<Expr>, otherwise: f64| match expr {
        Some(expr) => op.double("hostile", expr, &shape).ok().filter(|value| value.is_finite()),
        None => Some(otherwise),
    };
    let (scale, shift) = (value(&draw.scale, 1.0)?, value(&draw.shift, 0.0)?);
    Some(match draw.dist {
        Distribution::Uniform => {
            let low = shift.min(shift + scale);
            let upward = low >= 0.0;
            let positive = tensor.weight && upward;
            Usual { middle: shift + scale / 2.0, sigma: scale.abs() / 12f64.sqrt(), positive, upward }
        }
        Distribution::Constant => {
            let positive = tensor.weight && shift + scale > 0.0;
            Usual { middle: shift + scale, sigma: scale.abs().max(1.0), positive, upward: positive }
        }
        _ => Usual { middle: shift, sigma: scale.abs(), positive: false, upward: false },
    })
    .filter(|usual| usual.sigma > 0.0)
}

/// A name, the mistake it finds, and how the tensor is drawn then.
type Kind = (&'static str, &'static str, Draw);

fn kinds(usual: Usual, own: Option<&Draw>, weight: bool) -> Vec<Kind> {
    let Usual { middle, sigma, positive, upward } = usual;
    let plain = |dist, scale: f64, shift: f64| Draw {
        dist,
        scale: Some(Expr::from(scale)),
        shift: Some(Expr::from(shift)),
        rows: RowScale::None,
        specials: Vec::new(),
        like: None,
    };
    // Where nothing is negative, a multiple of uniform values is drawn.
    let from_zero = |factor: f64| plain(Distribution::Uniform, factor * (middle + 2.0 * sigma), 0.0);
    let of_size = |factor: f64| match positive {
        true => from_zero(factor),
        false => plain(Distribution::Normal, factor * sigma, factor * middle),
    };
    let with = |specials: &[(f64, Option<u64>, u64)]| {
        let specials = specials.iter().map(|&(value, count, every)| Special::scattered(value, count, every)).collect();
        Draw { specials, ..own.cloned().unwrap_or_else(|| of_size(1.0)) }
    };
    let far = middle + 1000.0 * sigma;
    let few = FEW.map(|value| if positive { value } else { -value } * sigma * 3.0);
    let few_on = |ground: f64| Draw {
        specials: few.iter().map(|value| Special::scattered(*value, Some(1), 1)).collect(),
        ..plain(Distribution::Constant, 0.0, ground)
    };
    let usually = own.and_then(|own| own.like.as_deref().or(Some(own)));
    let repeated = usually.filter(|own| own.dist != Distribution::File).cloned().unwrap_or_else(|| of_size(1.0));
    // What an infinite weight makes of a sum depends on the order of its terms, and masks are infinite activations.
    let unusual: &[(f64, Option<u64>, u64)] = match weight {
        true => &[(f64::NAN, Some(1), 5)],
        false => &[
            (f64::NEG_INFINITY, Some(1), 3),
            (f64::NEG_INFINITY, None, 9),
            (f64::NAN, Some(1), 5),
            (f64::INFINITY, Some(1), 7),
        ],
    };
    let mut all: Vec<Kind> = vec![
        (
            "large",
            "values thirty times as large: squares overflow, exponentials too, unless they are shifted",
            of_size(30.0),
        ),
        (
            "small",
            "values a thousandth as large: a constant that is added shows, and what is rounded to zero",
            of_size(0.001),
        ),
        (
            "constant",
            "every element alike: one too many or too few in a sum shows, and a variance is zero",
            plain(Distribution::Constant, power(middle.abs() + 0.7 * sigma), 0.0),
        ),
        (
            "needles",
            "one element of a row a thousand times as large: a sample misses it, and sums lose what is beside it",
            with(&[(far, Some(1), 1)]),
        ),
        (
            "few_terms",
            "a few elements of a row are not zero: whatever has fewer bits than it should shows as it is",
            few_on(0.0),
        ),
        ("zero_rows", "rows of zeros among others: divisions by what a row adds up to", with(&[(0.0, None, 3)])),
        ("not_finite", "a NaN or an infinity stays where it belongs", with(unusual)),
        (
            "wide_rows",
            "rows that differ by 2^12 in size: a bound of the whole does not hide a row",
            Draw { rows: RowScale::Wide, ..of_size(1.0) },
        ),
        (
            "repeated",
            "rows that hold the same ordinary values, as large or smaller: what each is off does not average out over the rows",
            Draw { rows: RowScale::Repeated, ..repeated },
        ),
    ];
    if !positive {
        all.extend([
            (
                "shifted",
                "a mean of eight deviations: sums of squares cancel",
                plain(Distribution::Normal, sigma, middle + 8.0 * sigma),
            ),
            (
                "shifted_down",
                "a mean of a hundred deviations below zero: a maximum that starts at zero is wrong",
                plain(Distribution::Normal, sigma, middle - 100.0 * sigma),
            ),
            (
                "far_shifted",
                "a mean of a hundred deviations: a variance in one pass loses all its digits",
                plain(Distribution::Normal, sigma, middle + 100.0 * sigma),
            ),
            (
                "alternating",
                "signs that alternate: what is summed in pairs cancels",
                plain(Distribution::Alternating, power(32.0 * sigma), 0.0),
            ),
            (
                "runs",
                "runs of one sign: what reads some of them takes the others to be like them",
                plain(Distribution::Runs, power(32.0 * sigma), 0.0),
            ),
            (
                "few_above",
                "a few elements of a row far above the others: what their exponentials are off does not average out in a sum",
                few_on(-power(100.0 * sigma)),
            ),
        ]);
    }
    if upward {
        all.push((
            "tiny_upward",
            "values a hundred-millionth as large, none negative: products of them vanish",
            from_zero(1e-8),
        ));
    }
    // Beside those that are negative too, of which a logarithm or a root makes nothing.
    if upward && !positive {
        all.extend([
            ("large_upward", "values thirty times as large, none negative", from_zero(30.0)),
            ("small_upward", "values a thousandth as large, none negative", from_zero(0.001)),
            (
                "wide_upward",
                "rows that differ by 2^12 in size, none negative",
                Draw { rows: RowScale::Wide, ..from_zero(1.0) },
            ),
        ]);
    }
    all
}

/// The power of two near a value: plain sums of equal ones are exact, so that a kernel which takes them one by one is not wrong.
fn power(value: f64) -> f64 {
    value.log2().round().exp2()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{OpSource, OracleKind};
    use super::*;

    const TOML: &str = r#"
name = "scaled"
summary = "y = x * w"
oracle = "torch"
symbols = ["rows", "cols"]
flops = "rows * cols"
shrink = ["rows", "cols"]
primary = 0
smoke = { rows = 3, cols = 5 }
sweep = [{ rows = 64, cols = 128 }]
edges = []
random = { rows = [1, 9], cols = [1, 9] }
[[tensors]]
name = "x"
role = "input"
shape = ["rows", "cols"]
dtype = "T"
draw = { dist = "normal", scale = "2" }
[[tensors]]
name = "w"
role = "input"
shape = ["cols"]
dtype = "T"
weight = true
draw = { dist = "uniform" }
[[tensors]]
name = "y"
role = "output"
shape = ["rows", "cols"]
dtype = "T"
"#;

    fn parsed(toml: &str) -> Operation {
        Operation::parse(toml, "def reference(x, w): return x * w", "scaled").unwrap()
    }

    #[test]
    fn inputs_nobody_wrote_come_with_every_torch_operation_and_weights_meet_the_telling_ones() {
        let op = parsed(TOML);
        let of = |name: &str| op.adversarial.iter().filter(|it| it.draw.contains_key(name)).count();
        assert!(
            of("x") >= 12 && of("w") == TELLING.len(),
            "{:?}",
            op.adversarial.iter().map(|it| &it.name).collect::<Vec<_>>()
        );
        assert!(op.adversarial.iter().all(|it| it.shape == op.sweep[0]));
        assert!(!op.mixed.is_empty());
        let needle = op.adversarial.iter().find(|it| it.name == "needles in x").unwrap();
        assert_eq!(needle.draw["x"].specials[0].value, 2000.0);
    }

    #[test]
    fn a_weight_that_is_never_negative_does_not_become_so() {
        let op = parsed(TOML);
        for hostile in op.adversarial.iter().filter(|it| it.draw.contains_key("w")) {
            let draw = &hostile.draw["w"];
            assert!(
                !matches!(draw.dist, Distribution::Normal | Distribution::Alternating | Distribution::Runs),
                "{}",
                hostile.name
            );
            assert!(
                draw.specials.iter().all(|special| special.value.is_nan() || special.value >= 0.0),
                "{}",
                hostile.name
            );
        }
    }

    #[test]
    fn inputs_that_are_written_are_the_only_ones() {
        let own = "[[adversarial]]\nname = \"ones\"\nwhy = \"w\"\nshape = { rows = 2, cols = 2 }\ndraw = { x = { dist = \"constant\" } }\n";
        assert_eq!(parsed(&format!("{TOML}{own}")).adversarial.len(), 1);
    }

    #[test]
    fn an_operation_has_the_keys_of_its_oracle_and_only_those() {
        let wrong = |toml: &str| Operation::parse(toml, "", "scaled").unwrap_err().to_string();
        assert!(wrong(&TOML.replace("oracle = \"torch\"", "")).contains("missing field `passes`"));
        assert!(wrong(&format!("passes = []\n{TOML}")).contains("is for an oracle in a header"));
        let read = |path: &str| Some(if path.ends_with("toml") { TOML } else { "text" }.to_owned());
        let source = OpSource::read("scaled", &read).unwrap();
        assert_eq!((source.oracle(), source.header.as_str()), ("text", ""));
        assert_eq!(source.operation().unwrap().oracle, OracleKind::Torch);
        let only = |path: &str| path.ends_with("toml").then(|| TOML.to_owned());
        assert!(OpSource::read("scaled", &only).unwrap_err().to_string().contains("scaled.py"));
    }
}
