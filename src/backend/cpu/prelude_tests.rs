//! The prelude's conversions, compiled and compared with `half`; the entry point's order of arguments.

#![allow(clippy::unwrap_used)]

use half::{bf16, f16};

use super::judge_tests::build;
use super::prelude::{candidate_source, prelude};
use crate::kernel::KernelFile;
use crate::op::{Dtype, Operation, Shape, samples};

type Entry = unsafe extern "C" fn(*const *const u8, *const i64, *const f32);

/// A kernel for the sample rmsnorm's signature that converts instead: x to float into scratch, scratch to y.
const CONVERT: &str = r#"/*---
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
specialize = ["cols"]
[tune]
N = { value = -3, choices = [-3, 4] }
[[scratch]]
name = "wide"
dtype = "f32"
shape = ["rows", "cols"]
---*/
#if !WS_F16 && !WS_BF16 && !WS_F32
#error no dtype
#endif
void rmsnorm(const T *restrict x, const T *weight, T *restrict y, float *restrict wide, int64_t rows, int64_t cols, float eps) {
    const int64_t n = rows * cols;
    if (weight || sizeof(T) != WS_DTYPE_BYTES || WS_COLS != cols || 1 - N != 4) return;
    if (eps == 0) {
        ws_load_n(wide, x, n);
    } else if (eps == 1) {
        for (int64_t i = 0; i < n; ++i) wide[i] = ws_load(x[i]);
    } else if (eps == 2) {
        ws_store_n(y, wide, n);
    } else {
        for (int64_t i = 0; i < n; ++i) y[i] = ws_store(wide[i]);
    }
}
"#;

struct Converter {
    entry: Entry,
    _library: libloading::Library,
}

impl Converter {
    fn new(dtype: Dtype, cols: i64) -> Self {
        let op: Operation = samples::rmsnorm();
        let kernel = KernelFile::parse(CONVERT).unwrap();
        let shape = Shape::from([("rows", 1), ("cols", cols)]);
        let resolution = kernel.resolve(&shape, dtype, &Default::default()).unwrap();
        let source = candidate_source(&op, &kernel, &resolution);
        let path = build("convert", &source, &["-O3", "-march=native"]).unwrap();
        // SAFETY: the library is the source above; it has no constructors.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        // SAFETY: `candidate_source` defines this symbol with this type.
        let entry = *unsafe { library.get::<Entry>(b"ws_entry\0") }.unwrap();
        Self { entry, _library: library }
    }

    fn call(&self, mode: f32, x: &[u8], y: &mut [u8], wide: &mut [f32]) {
        let pointers = [x.as_ptr(), std::ptr::null(), y.as_ptr(), wide.as_ptr().cast()];
        let symbols = [1, wide.len() as i64];
        // SAFETY: the kernel above touches rows * cols elements of each buffer, which they have.
        unsafe { (self.entry)(pointers.as_ptr(), symbols.as_ptr(), &raw const mode) };
    }
}

fn alike(got: f32, want: f32) -> bool {
    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan())
}

#[test]
fn every_pattern_is_loaded_exactly() {
    // Not a multiple of a vector's length, so that the tail is converted too.
    let patterns: Vec<u16> = (0..=u16::MAX).chain([1, 0x3c00, 0x7c01]).collect();
    let x: Vec<u8> = patterns.iter().flat_map(|bits| bits.to_ne_bytes()).collect();
    for (dtype, value) in [
        (Dtype::F16, (|bits| f16::from_bits(bits).to_f32()) as fn(u16) -> f32),
        (Dtype::Bf16, |bits| bf16::from_bits(bits).to_f32()),
    ] {
        let converter = Converter::new(dtype, patterns.len() as i64);
        for mode in [0.0, 1.0] {
            let mut wide = vec![9f32; patterns.len()];
            converter.call(mode, &x, &mut [0; 8], &mut wide);
            for (bits, got) in patterns.iter().zip(&wide) {
                assert!(alike(*got, value(*bits)), "{dtype} {bits:#x}: {got} instead of {}", value(*bits));
            }
        }
    }
}

#[test]
fn stores_round_to_nearest_even_and_keep_what_is_not_finite() {
    // Every upper half with lower halves around each tie of bfloat16 and, for the exponents of fp16, of fp16.
    let lows = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let mut wide: Vec<f32> =
        (0..=0xffffu32).flat_map(|high| lows.map(|low| f32::from_bits(high << 16 | low))).collect();
    wide.push(1.0);
    for (dtype, bits) in
        [(Dtype::F16, (|v| f16::from_f32(v).to_f32()) as fn(f32) -> f32), (Dtype::Bf16, |v| bf16::from_f32(v).to_f32())]
    {
        let converter = Converter::new(dtype, wide.len() as i64);
        for mode in [2.0, 3.0] {
            let mut y = vec![0u8; 2 * wide.len()];
            converter.call(mode, &[0; 8], &mut y, &mut wide.clone());
            for (value, stored) in wide.iter().zip(y.chunks(2)) {
                let pattern = u16::from_ne_bytes([stored[0], stored[1]]);
                let got = match dtype {
                    Dtype::F16 => f16::from_bits(pattern).to_f32(),
                    _ => bf16::from_bits(pattern).to_f32(),
                };
                assert!(alike(got, bits(*value)), "{dtype} {:#x}: {got} not {}", value.to_bits(), bits(*value));
            }
        }
    }
}

#[test]
fn single_precision_passes_through() {
    let converter = Converter::new(Dtype::F32, 5);
    let values = [1.5f32, -0.0, f32::INFINITY, 1e-45, 3.0];
    let x: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    for mode in [0.0, 1.0] {
        let mut wide = [0f32; 5];
        converter.call(mode, &x, &mut [0; 8], &mut wide);
        assert!(wide.iter().zip(values).all(|(got, want)| alike(*got, want)));
        let mut y = [0u8; 20];
        converter.call(mode + 2.0, &[0; 8], &mut y, &mut wide);
        assert_eq!(y[..], x[..]);
    }
}

#[test]
fn a_signature_that_differs_does_not_compile() {
    let op = samples::rmsnorm();
    let wrong = CONVERT.replace("const T *weight, T *restrict y", "T *restrict y, const T *weight");
    let kernel = KernelFile::parse(&wrong).unwrap();
    let shape = Shape::from([("rows", 1), ("cols", 4)]);
    let resolution = kernel.resolve(&shape, Dtype::F16, &Default::default()).unwrap();
    let error = build("wrong", &candidate_source(&op, &kernel, &resolution), &["-O1"]).unwrap_err();
    assert!(error.contains("rmsnorm.c:15:") && error.contains("conflicting types"), "{error}");
}

#[test]
fn the_intrinsics_stand_where_the_dtype_or_the_text_may_need_them() {
    let has = |dtype, text: &str| prelude(dtype, text).contains("<immintrin.h>");
    assert!(has(Dtype::F16, ""));
    for text in ["_mm512_add_ps(a, b)", "__m256 v;", "x = _pdep_u64(a, b);", "(__rdtsc())", "_MM_HINT_T0"] {
        assert!(has(Dtype::F32, text) && has(Dtype::Bf16, text), "{text}");
    }
    let plain = "static float f(_Float16 h, float *__restrict x) __attribute__((noinline)); \
                 __builtin_prefetch(x); _Static_assert(1, \"a\"); int a_mm = __AVX512F__; #if WS_F16";
    assert!(!has(Dtype::F32, plain));
}
