//! What stands before a candidate's text when it is compiled.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use crate::kernel::{KernelFile, Resolution, headers_named};
use crate::op::{Dtype, Operation};

/// Types and names that CUDA programs take for granted and NVRTC does not bring. `printf` prints nothing: what a kernel
/// under judgement has to say is in its outputs. The names of limits are spelled as CUDA's own headers spell them, so that
/// including those is no redefinition.
const HEAD: &str = r#"typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef CUtensorMap_st CUtensorMap;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define printf(...) ((void)0)
#undef assert
#define assert(...) ((__VA_ARGS__) ? (void)0 : __trap())
__device__ __forceinline__ void ws_next_may_begin() {
#if WS_SM >= 90
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void ws_wait_for_previous() {
#if WS_SM >= 90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
"#;

/// Single precision is stored as it is computed.
const F32: &str = r"#define WS_F32 1
#define WS_DTYPE_BYTES 4
typedef float T;
__device__ __forceinline__ float ws_load(T v) { return v; }
__device__ __forceinline__ T ws_store(float v) { return v; }
";

/// Half precision by the device's own conversions, which round to nearest even and keep subnormals.
const F16: &str = r#"#define WS_F16 1
#define WS_DTYPE_BYTES 2
typedef unsigned short T;
__device__ __forceinline__ float ws_load(T v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
    return f;
}
__device__ __forceinline__ T ws_store(float v) {
    T h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}
"#;

/// bfloat16 is the upper half of a single; devices before 8.0 round it by integers. Said as a pair, since the compiler takes
/// two instructions for the upper half of a word that is shifted down and up again.
const BF16: &str = r#"#define WS_BF16 1
#define WS_DTYPE_BYTES 2
typedef unsigned short T;
__device__ __forceinline__ float ws_load(T v) {
    float f;
    asm("mov.b32 %0, {%1, %2};" : "=f"(f) : "h"((T)0), "h"(v));
    return f;
}
__device__ __forceinline__ T ws_store(float v) {
#if WS_SM >= 80
    T h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
#else
    const unsigned int bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (T)((bits >> 16) | 0x40u);
    return (T)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
"#;

/// The prelude of a dtype on a device of compute capability `capability` (90 for 9.0): integer types, limits, `CUtensorMap`,
/// `T`, `ws_load`, `ws_store`, `WS_SM`, and what a launch says to those behind and in front of it.
#[must_use]
pub fn prelude(dtype: Dtype, capability: u32) -> String {
    let types = match dtype {
        Dtype::F16 => F16,
        Dtype::Bf16 => BF16,
        Dtype::F32 => F32,
    };
    format!("#define WS_SM {capability}\n{HEAD}{types}")
}

/// What a code names, and so which constants it is compiled for.
#[derive(Debug, Default)]
pub(super) struct Named {
    words: HashSet<String>,
    /// Whether it puts names together, by `##`.
    pastes: bool,
    /// What was found of names that were asked about: several milliseconds for a long file.
    known: HashMap<String, bool>,
}

impl Named {
    pub(super) fn of(code: &str) -> Self {
        let words = code.split(|c: char| c != '_' && !c.is_alphanumeric()).map(str::to_owned);
        Self { words: words.collect(), pastes: code.contains("##"), known: HashMap::new() }
    }

    /// Those of the constants that the code names, or may put together.
    pub(super) fn among<'a>(&mut self, macros: &'a BTreeMap<String, i64>) -> Vec<(&'a String, i64)> {
        let mut named = Vec::new();
        for (name, value) in macros {
            let is_named = match self.known.get(name) {
                Some(known) => *known,
                None => {
                    let found = self.words.contains(name) || (self.pastes && self.is_of_parts(name));
                    self.known.insert(name.clone(), found);
                    found
                }
            };
            if is_named {
                named.push((name, *value));
            }
        }
        named
    }

    /// Whether a name may be put together of parts: each is something that the code names, or a number.
    fn is_of_parts(&self, name: &str) -> bool {
        let is_part = |part: &str| self.words.contains(part) || part.bytes().all(|byte| byte.is_ascii_digit());
        // Where a part may begin.
        let mut begins = BTreeSet::from([0]);
        for end in 1..=name.len() {
            if begins.iter().any(|begin| name.get(*begin..end).is_some_and(is_part)) {
                begins.insert(end);
            }
        }
        begins.contains(&name.len())
    }
}

/// The whole translation unit for `kernel` at `resolution`: prelude, headers of our own that the code includes, constants as
/// macros, the candidate's code under its own name and line numbers. A constant that the code does not name is left out: what
/// differs in such alone is one compilation.
///
/// The headers come first, and are read once, so that neither a constant nor a macro of the file changes what they mean. What the
/// code says of them afterwards is read like the rest of it, where nothing hides: in what the compiler has made of it.
#[must_use]
pub fn candidate_source(op: &Operation, kernel: &KernelFile, resolution: &Resolution, capability: u32) -> String {
    let mut source = prelude(resolution.dtype, capability);
    let code = kernel.code();
    for header in headers_named(code) {
        let _ = writeln!(source, "#include \"{}\"", header.name);
    }
    for (name, value) in Named::of(code).among(&resolution.macros) {
        let _ = writeln!(source, "#define {name} ({value})");
    }
    // Without the front matter: what changes in its launches alone needs no compilation.
    let lines_before = kernel.text[..kernel.text.len() - code.len()].matches('\n').count();
    let _ = writeln!(source, "#line {} \"{}.cu\"", lines_before + 1, op.name);
    source.push_str(code);
    source.push('\n');
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_pasted_of_what_the_code_names_and_of_numbers_and_of_nothing_else() {
        let macros: BTreeMap<String, i64> = [
            ("HALF", true),
            ("WIDTH", true),
            ("HALFHALF", true),
            ("HALF_1", true),
            ("HALF2", true),
            ("WIDTH16HALF", true),
            ("name_1", true),
            ("WID", false),
            ("TH", false),
            ("HALF_2", false),
            ("HALFS", false),
            ("_", false),
            ("\u{e4}", false),
            ("TILES", false),
        ]
        .map(|(name, is_named)| (name.to_owned(), i64::from(is_named)))
        .into();
        let mut named = Named::of("HALF + WI ## DTH - _1 name");
        for _ in 0..2 {
            let found = named.among(&macros);
            assert!(found.iter().all(|(_, is_named)| *is_named == 1), "{found:?}");
            assert_eq!(found.len(), 7, "{found:?}");
        }
        assert_eq!(Named::of("HALF + WI - DTH").among(&macros), [(&"HALF".to_owned(), 1)]);
    }
}
