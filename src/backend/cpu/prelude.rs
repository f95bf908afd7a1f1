//! What stands around a candidate's text when it is compiled: types and conversions before it, the
//! entry point after it.

use std::fmt::Write;

use crate::kernel::{KernelFile, Resolution};
use crate::op::{Dtype, Operation, Role};

/// Standard headers and the one service of the harness.
const HEAD: &str = r"#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* Splits 0..n into contiguous ranges over the harness's threads; returns when all are done. A call from within a body runs in line. */
void ws_parallel(int64_t n, void (*body)(int64_t begin, int64_t end, void *context), void *context);
";

/// The processor's own instructions as functions. Compilers take longer to read it than most kernels, so it stands only
/// where something in it may be named.
const INTRINSICS: &str = r"#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif
";

/// Single precision is stored as it is computed.
const F32: &str = r"#define WS_F32 1
#define WS_DTYPE_BYTES 4
typedef float T;
static inline float ws_load(T v) { return v; }
static inline T ws_store(float v) { return v; }
static inline void ws_load_n(float *dst, const T *src, int64_t n) { memcpy(dst, src, (size_t)n * sizeof(T)); }
static inline void ws_store_n(T *dst, const float *src, int64_t n) { memcpy(dst, src, (size_t)n * sizeof(T)); }
";

/// bfloat16 is the upper half of a single, rounded to nearest even by integers, which vectorise; the
/// processors' own conversion instructions flush subnormals.
const BF16: &str = r"#define WS_BF16 1
#define WS_DTYPE_BYTES 2
typedef uint16_t T;
static inline float ws_load(T v) {
    const uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline T ws_store(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return (T)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}
static inline void ws_load_n(float *restrict dst, const T *restrict src, int64_t n) {
    for (int64_t i = 0; i < n; ++i) dst[i] = ws_load(src[i]);
}
static inline void ws_store_n(T *restrict dst, const float *restrict src, int64_t n) {
    for (int64_t i = 0; i < n; ++i) dst[i] = ws_store(src[i]);
}
";

/// Half precision by the compiler's own type; in bulk by F16C, which compilers do not find by themselves.
const F16: &str = r#"#define WS_F16 1
#define WS_DTYPE_BYTES 2
#ifdef __FLT16_MAX__
typedef _Float16 T;
#ifdef __F16C__ /* the newer instructions that the compiler prefers wait for their destination's old value */
static inline float ws_load(T v) {
    uint16_t bits;
    memcpy(&bits, &v, sizeof bits);
    return _cvtsh_ss(bits);
}
static inline T ws_store(float v) {
    const uint16_t bits = _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT);
    T t;
    memcpy(&t, &bits, sizeof t);
    return t;
}
#else
static inline float ws_load(T v) { return (float)v; }
static inline T ws_store(float v) { return (T)v; }
#endif
#elif defined(__F16C__)
typedef uint16_t T;
static inline float ws_load(T v) { return _cvtsh_ss(v); }
static inline T ws_store(float v) { return _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT); }
#else
#error "fp16 needs a compiler with _Float16 (gcc 12, clang 15 or newer) or a processor with F16C"
#endif
static inline void ws_load_n(float *restrict dst, const T *restrict src, int64_t n) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(dst + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(src + i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
#endif
    for (int64_t j = 0, rest = n - i; j < rest; ++j) dst[i + j] = ws_load(src[i + j]);
}
static inline void ws_store_n(T *restrict dst, const float *restrict src, int64_t n) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(dst + i), _mm512_cvtps_ph(_mm512_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (int64_t j = 0, rest = n - i; j < rest; ++j) dst[i + j] = ws_store(src[i + j]);
}
"#;

/// The prelude of a dtype for a kernel of this text: standard headers, the processor's intrinsics where the text or the
/// dtype needs them, `T`, `ws_load`, `ws_store`, `ws_load_n`, `ws_store_n`, `ws_parallel`.
#[must_use]
pub fn prelude(dtype: Dtype, text: &str) -> String {
    let types = match dtype {
        Dtype::F16 => F16,
        Dtype::Bf16 => BF16,
        Dtype::F32 => F32,
    };
    let intrinsics = if dtype == Dtype::F16 || may_name_intrinsics(text) { INTRINSICS } else { "" };
    format!("{HEAD}{intrinsics}{types}")
}

/// Names with an underscore in front that are the language's or the compiler's own.
const NO_INTRINSICS: [&str; 6] = ["__builtin_", "__attribute__", "__restrict", "__inline", "__asm__", "__volatile__"];

/// Whether a text has a name that could be from `<immintrin.h>`: one that begins with an underscore and a small letter
/// (`_mm512_add_ps`, `_pdep_u64`, `__m256`, `__rdtsc`) or with `_MM_`. In comments too, where it only costs time.
fn may_name_intrinsics(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c: char| !is_name(c)).filter(|name| name.starts_with('_')).any(|name| {
        let small = name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_lowercase());
        (small || name.starts_with("_MM_")) && !NO_INTRINSICS.iter().any(|own| name.starts_with(own))
    })
}

/// The whole translation unit for `kernel` at `resolution`: prelude, prototype, constants as macros,
/// the candidate's text under its own name and line numbers, and `ws_entry`, the only exported symbol:
///
/// `void ws_entry(void *const *pointers, const int64_t *symbols, const float *scalars)`, with the
/// pointers in the order of the operation's tensors, then the front matter's scratch buffers.
#[must_use]
pub fn candidate_source(op: &Operation, kernel: &KernelFile, resolution: &Resolution) -> String {
    let name = &op.name;
    let types = parameter_types(op, kernel);
    let pointers = op.tensors.len() + kernel.front.scratch.len();
    let (ints, floats) = (op.symbols.len(), op.scalars.len());
    let mut source = prelude(resolution.dtype, &kernel.text);
    // The prototype stands before the macros, one of which may have the name of a type's letter.
    let _ = writeln!(source, "void {name}({});", types.join(", "));
    for (macro_name, value) in &resolution.macros {
        let _ = writeln!(source, "#define {macro_name} ({value})");
    }
    let _ = writeln!(source, "#line 1 \"{name}.c\"");
    source.push_str(&kernel.text);
    let arguments: Vec<String> = (0..pointers)
        .map(|index| format!("ws_p[{index}]"))
        .chain((0..ints).map(|index| format!("ws_i[{index}]")))
        .chain((0..floats).map(|index| format!("ws_f[{index}]")))
        .collect();
    let _ = write!(
        source,
        "\n#line 1 \"entry\"\n\
         __attribute__((visibility(\"default\"))) void ws_entry(void *const *ws_p, const int64_t *ws_i, const float *ws_f) {{\n    \
         (void)ws_p; (void)ws_i; (void)ws_f;\n    {name}({});\n}}\n",
        arguments.join(", ")
    );
    source
}

/// The C types of the kernel's parameters, in order.
fn parameter_types(op: &Operation, kernel: &KernelFile) -> Vec<String> {
    let tensors = op.tensors.iter().map(|tensor| {
        let constant = if tensor.role == Role::Input { "const " } else { "" };
        format!("{constant}{} *", tensor.dtype.c_name())
    });
    let scratch = kernel.front.scratch.iter().map(|scratch| format!("{} *", scratch.dtype.c_name()));
    let ints = op.symbols.iter().map(|_| "int64_t".to_owned());
    let floats = op.scalars.iter().map(|_| "float".to_owned());
    tensors.chain(scratch).chain(ints).chain(floats).collect()
}
