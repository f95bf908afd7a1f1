//! The oracle and the comparison together, on two small operations: right outputs pass, each kind of
//! wrong output fails.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::OnceLock;

use half::{bf16, f16};

use super::compare::{Expected, compare};
use super::oracle::{Oracle, OracleError};
use crate::backend::Place;
use crate::backend::values::encode_one;
use crate::evaluation::ErrorStats;
use crate::op::{Case, Dtype, Operation, Role, Shape, Stored, draw, samples};
use crate::workspace::{embedded, embedded_names};

/// A plain compiler call: what is under test here is what comes out of it.
pub(super) fn build(name: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let key = blake3::hash(source.as_bytes()).to_hex();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(&key[..16]).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    // Tests run in threads of one process: each compiles to a name of its own.
    let thread = format!("{:?}", std::thread::current().id());
    let (text, library) = (folder.join(format!("{thread}.c")), folder.join(format!("{thread}.so")));
    std::fs::write(&text, source).unwrap();
    let mut command = std::process::Command::new("cc");
    command.args(flags).args(["-std=gnu11", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
    let output = command.arg(&library).arg(&text).arg("-lm").output().unwrap();
    if output.status.success() { Ok(library) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// A case with drawn inputs and what the oracle makes of them.
struct Bench {
    op: Operation,
    case: Case,
    inputs: Vec<Option<Vec<u8>>>,
    expected: Expected,
}

impl Bench {
    fn new(op: Operation, shape: &Shape, dtype: Dtype, input: Option<&str>) -> Self {
        let case = Case { shape: op.complete(shape).unwrap(), dtype, input: input.map(str::to_owned), setting: 0 };
        let mut inputs = Vec::new();
        for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
            inputs.push(op.present(tensor, &case.shape).unwrap().then(|| {
                let elements = op.elements(tensor, &case.shape).unwrap();
                let mut bytes = vec![0; elements * tensor.dtype.bytes(dtype)];
                let how = op.draw_of(tensor, &case).unwrap().unwrap();
                draw(&op, tensor, &case.shape, dtype, how, 42, &mut bytes).unwrap();
                bytes
            }));
        }
        let oracle = Oracle::compile(&build, &op).unwrap();
        let given: Vec<Option<&[u8]>> = inputs.iter().map(Option::as_deref).collect();
        let expected = oracle.expected(&case, &given, 7).unwrap();
        Self { op, case, inputs, expected }
    }

    fn input(&self, index: usize) -> Vec<f32> {
        let bytes = self.inputs[index].as_ref().unwrap();
        match self.case.dtype {
            Dtype::F16 => bytes.chunks(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::Bf16 => bytes.chunks(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::F32 => bytes.chunks(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect(),
        }
    }

    /// The oracle's values, as a perfect kernel would store them.
    fn right(&self) -> Vec<f32> {
        self.expected.tensors[0].values.iter().map(|v| *v as f32).collect()
    }

    fn judge(&self, values: &[f32]) -> ErrorStats {
        let bytes: Vec<u8> = match self.case.dtype {
            Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_ne_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
            Dtype::F32 => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
        };
        compare(&self.op, &self.case, &[&bytes], &self.expected).unwrap()
    }

    #[track_caller]
    fn passes(&self, values: &[f32]) {
        let stats = self.judge(values);
        assert_eq!(stats.failure(), None, "{} {stats:?}", self.case.dtype);
    }

    #[track_caller]
    fn fails(&self, what: &str, values: &[f32]) {
        assert_ne!(self.judge(values).failure(), None, "{what} passes in {}", self.case.dtype);
    }
}

/// A product as a kernel computes it: `step` is applied to each partial sum, `factor` to each factor.
fn multiply(a: &[f32], b: &[f32], [m, n, k]: [usize; 3], factor: fn(f32) -> f32, step: fn(f32) -> f32) -> Vec<f32> {
    let (a, b): (Vec<f32>, Vec<f32>) = (a.iter().map(|v| factor(*v)).collect(), b.iter().map(|v| factor(*v)).collect());
    let mut out = vec![0f32; m * n];
    for (row, sums) in out.chunks_mut(n).enumerate() {
        for l in 0..k {
            for (sum, right) in sums.iter_mut().zip(&b[l * n..]) {
                *sum = step(*sum + a[row * k + l] * right);
            }
        }
    }
    out
}

const MNK: [usize; 3] = [24, 40, 2048];

fn matmul(dtype: Dtype) -> Bench {
    let [m, n, k] = MNK.map(|size| size as i64);
    Bench::new(samples::matmul(), &Shape::from([("M", m), ("N", n), ("K", k)]), dtype, None)
}

fn rmsnorm(dtype: Dtype, rows: i64, cols: i64) -> Bench {
    Bench::new(samples::rmsnorm(), &Shape::from([("rows", rows), ("cols", cols)]), dtype, None)
}

fn norm_in_single(x: &[f32], weight: &[f32], terms: usize) -> Vec<f32> {
    let cols = weight.len();
    x.chunks(cols)
        .flat_map(|row| {
            let squares: f32 = row[..terms].iter().map(|v| v * v).sum();
            let scale = 1.0 / (squares / terms as f32 + 1e-5).sqrt();
            row.iter().zip(weight).map(move |(v, w)| v * scale * w)
        })
        .collect()
}

fn same(v: f32) -> f32 {
    v
}

#[test]
fn an_honest_product_passes_in_every_dtype() {
    for dtype in Dtype::ALL {
        let bench = matmul(dtype);
        bench.passes(&bench.right());
        bench.passes(&multiply(&bench.input(0), &bench.input(1), MNK, same, same));
    }
}

#[test]
fn sums_in_sixteen_bits_fail() {
    let half = matmul(Dtype::F16);
    let in_half = multiply(&half.input(0), &half.input(1), MNK, same, |sum| f16::from_f32(sum).to_f32());
    half.fails("accumulation in fp16", &in_half);
    let brain = matmul(Dtype::Bf16);
    let in_brain = multiply(&brain.input(0), &brain.input(1), MNK, same, |sum| bf16::from_f32(sum).to_f32());
    brain.fails("accumulation in bf16", &in_brain);
}

#[test]
fn factors_rounded_to_tf32_fail_in_single_precision() {
    let tf32 = |v: f32| f32::from_bits((v.to_bits() + 0x1000) & !0x1fff);
    let bench = matmul(Dtype::F32);
    bench.fails("tf32", &multiply(&bench.input(0), &bench.input(1), MNK, tf32, same));
}

#[test]
fn an_honest_norm_passes_and_half_a_row_fails() {
    for dtype in Dtype::ALL {
        let bench = rmsnorm(dtype, 37, 1537);
        let (x, weight) = (bench.input(0), bench.input(1));
        bench.passes(&norm_in_single(&x, &weight, 1537));
        bench.fails("the mean over half a row", &norm_in_single(&x, &weight, 768));
        bench.fails("weights of one", &norm_in_single(&x, &[1.0; 1537], 1537));
        bench.fails("the input", &x);
    }
}

#[test]
fn degenerate_outputs_fail() {
    for dtype in Dtype::ALL {
        for bench in [matmul(dtype), rmsnorm(dtype, 9, 257)] {
            let right = bench.right();
            let n = right.len();
            let cols = bench.case.shape.get("N").or(bench.case.shape.get("cols")).unwrap() as usize;
            let mean = right.iter().sum::<f32>() / n as f32;
            bench.fails("zeros", &vec![0.0; n]);
            bench.fails("the mean", &vec![mean; n]);
            bench.fails("NaN", &vec![f32::NAN; n]);
            bench.fails("infinity", &vec![f32::INFINITY; n]);
            let mut shifted = right.clone();
            shifted.rotate_left(cols);
            bench.fails("rows shifted by one", &shifted);
            let mut one = right.clone();
            let at = n / 2;
            one[at] += right.iter().map(|v| v.abs()).fold(0.0, f32::max) * 0.1;
            bench.fails("one element", &one);
            let mut tail = right.clone();
            tail[n - 1] = 0.0;
            bench.fails("a missing tail", &tail);
            let mut nan = right.clone();
            nan[3] = f32::NAN;
            let stats = bench.judge(&nan);
            assert_eq!((stats.outside, stats.worst_at), (1, 3));
            assert!(stats.failure().unwrap().contains("element 3: NaN where"), "{:?}", stats.failure());
        }
    }
}

#[test]
fn of_several_outputs_the_one_that_is_wrong_is_named() {
    let op = Operation::load(&|path| embedded(path).map(str::to_owned), "cross_entropy").unwrap();
    let bench = Bench::new(op, &Shape::from([("batch", 6), ("vocab", 33)]), Dtype::F32, None);
    let said = |wrong: Option<(usize, usize)>| {
        let mut outputs: Vec<Vec<f32>> =
            bench.expected.tensors.iter().map(|tensor| tensor.values.iter().map(|v| *v as f32).collect()).collect();
        if let Some((output, element)) = wrong {
            outputs[output][element] *= 1.5;
        }
        let bytes: Vec<Vec<u8>> =
            outputs.iter().map(|values| values.iter().flat_map(|v| v.to_ne_bytes()).collect()).collect();
        let bytes: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        compare(&bench.op, &bench.case, &bytes, &bench.expected).unwrap().failure()
    };
    assert_eq!(said(None), None);
    for (wrong, part) in
        [((0, 4), "element 4 of `losses`: "), ((0, 0), "element 0 of `losses`: "), ((1, 0), "element 0 of `loss`: ")]
    {
        let said = said(Some(wrong)).unwrap();
        assert!(said.contains("1 of 7 elements") && said.contains(part), "{wrong:?}: {said}");
    }
    // An operation with one output has nothing to tell apart.
    let norm = rmsnorm(Dtype::F32, 3, 64);
    let said = norm.judge(&vec![0.5; 3 * 64]).failure().unwrap();
    assert!(!said.contains('`'), "{said}");
}

#[test]
fn a_small_error_everywhere_fails_though_each_element_is_near() {
    let bench = matmul(Dtype::F16);
    // Within 2u of each element, but an honest kernel's errors are not all of one sign and size.
    let biased: Vec<f32> = bench.right().iter().map(|v| v * (1.0 + 0.95 * 2f32.powi(-11))).collect();
    let stats = bench.judge(&biased);
    assert_eq!(stats.outside, 0, "{stats:?}");
    assert!(stats.tensor_ratio > 1.0 && stats.failure().unwrap().contains("together"), "{stats:?}");
}

#[test]
fn a_small_error_in_one_row_fails_though_the_tensor_is_near() {
    let bench = rmsnorm(Dtype::F16, 400, 64);
    let mut values = bench.right();
    values[64 * 17..64 * 18].iter_mut().for_each(|v| *v *= 1.0 + 2.5 * 2f32.powi(-11));
    let stats = bench.judge(&values);
    assert!(stats.row_ratio > 1.0 && stats.tensor_ratio <= 1.0, "{stats:?}");
    assert_ne!(stats.failure(), None);
}

#[test]
fn what_is_not_finite_must_be_where_the_oracle_has_it() {
    for dtype in Dtype::ALL {
        let op = samples::rmsnorm();
        let shape = op.adversarial[0].shape.clone();
        let bench = Bench::new(op, &shape, dtype, Some("infinite"));
        let right = bench.right();
        assert!(right.iter().any(|v| v.is_nan()) && right.contains(&0.0));
        bench.passes(&right);
        bench.passes(&norm_in_single(&bench.input(0), &bench.input(1), 64));
        let swallowed: Vec<f32> = right.iter().map(|v| if v.is_nan() { 0.0 } else { *v }).collect();
        bench.fails("NaN turned into zero", &swallowed);
    }
}

#[test]
fn near_overflow_infinity_and_the_largest_value_are_both_right() {
    let mut bench = rmsnorm(Dtype::F16, 1, 8);
    let expected = &mut bench.expected.tensors[0];
    expected.values = vec![65_500.0, -65_515.0, 65_525.0, 70_000.0, -1e9, f64::INFINITY, 1.0, 65_000.0];
    expected.terms = vec![0.0; 8];
    let inf = f32::INFINITY;
    bench.passes(&[65_504.0, -65_504.0, 65_504.0, inf, -inf, inf, 1.0, 65_000.0]);
    bench.passes(&[inf, -inf, inf, inf, -inf, inf, 1.0, 65_000.0]);
    bench.fails("the other infinity", &[-inf, -inf, inf, inf, -inf, inf, 1.0, 65_000.0]);
    bench.fails("saturation far above", &[65_504.0, -65_504.0, 65_504.0, inf, -65_504.0, inf, 1.0, 65_000.0]);
    bench.fails("saturation well above", &[65_504.0, -65_504.0, 65_504.0, 65_504.0, -inf, inf, 1.0, 65_000.0]);
    bench.fails("a finite value for infinity", &[65_504.0, -65_504.0, inf, inf, -inf, 65_504.0, 1.0, 65_000.0]);
    bench.fails("infinity well below", &[65_504.0, -65_504.0, inf, inf, -inf, inf, 1.0, inf]);
}

#[test]
fn flags_and_batches_reach_the_oracle() {
    let shape = Shape::from([("M", 6), ("N", 10), ("K", 33), ("batch", 3), ("trans_b", 1), ("has_bias", 1)]);
    let bench = Bench::new(samples::matmul(), &shape, Dtype::F32, None);
    let (a, b, bias) = (bench.input(0), bench.input(1), bench.input(2));
    let mut out = Vec::new();
    for (image, row, col) in (0..3).flat_map(|x| (0..6).flat_map(move |i| (0..10).map(move |j| (x, i, j)))) {
        let left = &a[(image * 6 + row) * 33..][..33];
        let right = &b[(image * 10 + col) * 33..][..33];
        out.push(left.iter().zip(right).map(|(a, b)| a * b).sum::<f32>() + bias[col]);
    }
    bench.passes(&out);
}

#[test]
fn a_product_that_contradicts_its_pass_is_the_oracles_own_fault() {
    let mut op = samples::matmul();
    op.header = op.header.replace("sum += v;", "sum += v * 1.0000001;");
    let oracle = Oracle::compile(&build, &op).unwrap();
    let shape = op.complete(&Shape::from([("M", 40), ("N", 40), ("K", 8)])).unwrap();
    let bytes: Vec<u8> = (0..320).flat_map(|i| (i as f32 - 3.5).to_ne_bytes()).collect();
    let error = oracle
        .expected(&Case { shape, dtype: Dtype::F32, input: None, setting: 0 }, &[Some(&bytes), Some(&bytes), None], 1)
        .unwrap_err();
    assert!(matches!(&error, OracleError::Disagreement { pass, .. } if pass == "element"), "{error}");
}

#[test]
fn an_oracle_that_does_not_compile_says_why() {
    let mut op = samples::rmsnorm();
    op.header = op.header.replace("eps", "epsilon");
    let error = Oracle::compile(&build, &op).unwrap_err().to_string();
    assert!(error.contains("rmsnorm") && error.contains("epsilon"), "{error}");
    // A call of what nobody defines compiles in older C, and would end the process when it is loaded.
    op.header = samples::rmsnorm().header.replace("weight(j)", "wieght(j)");
    let error = Oracle::compile(&build, &op).unwrap_err().to_string();
    assert!(error.contains("rmsnorm") && error.contains("wieght"), "{error}");
}

/// The oracle's values of one output in its type.
fn stored(values: &[f64], stored: Stored) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * stored.bytes()];
    let each = bytes.chunks_mut(stored.bytes()).zip(values);
    each.for_each(|(bytes, value)| encode_one(*value, stored, bytes));
    bytes
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn elements_that_are_asked_for_alone_are_those_of_the_whole() {
    elements_alone_are_those_of_the_whole(0..3);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn elements_that_are_asked_for_alone_are_those_of_the_whole_under_many_seeds() {
    elements_alone_are_those_of_the_whole(0..20);
}

fn elements_alone_are_those_of_the_whole(seeds: std::ops::Range<u64>) {
    let names = embedded_names("reference/").filter_map(|name| name.strip_prefix("reference/")?.strip_suffix(".toml"));
    for name in names {
        let op = Operation::load(&|path| embedded(path).map(str::to_owned), name).unwrap();
        let oracle = Oracle::compile(&build, &op).unwrap();
        let flags = [("trans_b", 1), ("has_bias", 1), ("bshd", 1), ("causal", 1), ("interleaved", 1)];
        let flags = flags.into_iter().filter(|(flag, _)| op.symbols.iter().any(|symbol| symbol == flag));
        let flagged = flags.fold(op.smoke.clone(), |shape, (flag, on)| shape.with(flag, on));
        for (shape, dtype) in [&op.smoke, &flagged].into_iter().flat_map(|shape| Dtype::ALL.map(|dtype| (shape, dtype)))
        {
            let Bench { case, inputs, expected, .. } = Bench::new(op.clone(), shape, dtype, None);
            let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
            let right: Vec<Vec<u8>> = outputs
                .zip(&expected.tensors)
                .map(|(tensor, expected)| stored(&expected.values, tensor.dtype.stored(dtype)))
                .collect();
            let views: Vec<&[u8]> = right.iter().map(Vec::as_slice).collect();
            let given: Vec<Option<&[u8]>> = inputs.iter().map(Option::as_deref).collect();
            for seed in seeds.clone() {
                let sample = op.sample(&case.shape, seed, u64::MAX).unwrap();
                let some = oracle.expected_some(&case, &given, &views, &sample).unwrap();
                for ((places, whole), elements) in some.iter().zip(&expected.tensors).zip(&sample.elements) {
                    assert_eq!(places.len(), elements.len());
                    assert!(!places.is_empty(), "{name}");
                    for Place { index, value, terms } in places {
                        // What later passes read was rounded to its type.
                        let near = |got: f64, want: f64| (got - want).abs() <= 1e-6 * terms.max(want.abs());
                        let inherited = sample.given.is_empty();
                        let ok = near(*value, whole.values[*index]);
                        let ok = ok && (!inherited || near(*terms, whole.terms[*index]));
                        assert!(ok, "{name} {} {dtype} `{}` {index}", op.label(&case.shape), whole.name);
                    }
                }
            }
        }
    }
}
