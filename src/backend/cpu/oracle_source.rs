//! The C around an operation's header: what `WS_PASS`, `ws_put` and the tensors' names mean there.

use std::fmt::Write;

use crate::op::{ItemsPass, Operation, Pass, Role};

/// The passes written in the header.
pub(super) fn items_passes(op: &Operation) -> impl Iterator<Item = &ItemsPass> {
    op.passes.iter().filter_map(|pass| match pass {
        Pass::Items(items) => Some(items),
        Pass::Product(_) => None,
    })
}

/// Names of all arrays that passes write, in order; their places in the context.
pub(super) fn array_names(op: &Operation) -> Vec<&str> {
    op.passes
        .iter()
        .flat_map(|pass| match pass {
            Pass::Items(items) => items.out.iter().map(|out| out.name.as_str()).collect(),
            Pass::Product(product) => vec![product.out.as_str()],
        })
        .collect()
}

/// How passes are given the input tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inputs {
    /// As doubles: for all items.
    Decoded,
    /// As they lie in memory: where only a few items are wanted, decoding all of them would take longer.
    Stored,
}

/// The translation unit: accessors for this operation, its header, and one entry point a pass.
pub(super) fn source(op: &Operation, inputs: Inputs) -> String {
    let mut text = String::from(
        "#include <math.h>\n#include <stdint.h>\n\
         typedef struct { const double *const *inputs; double *const *values; double *const *terms; \
         const int64_t *symbols; const double *scalars; double underflow; const void *const *stored; const uint8_t *types; } \
         ws_context;\n\
         #define WS_PASS(name) static inline __attribute__((always_inline)) void ws_pass_##name(const ws_context *const ws, const int64_t WS_ITEM)\n\
         #define WS_EACH(j, n) _Pragma(\"GCC ivdep\") for (int64_t j = 0, ws_end_##j = (n); j < ws_end_##j; ++j)\n\
         #define WS_UNDERFLOW (ws->underflow)\n\
         #define ws_sum(v) ((double)(v))\n\
         #define ws_max(v) ((double)(v))\n\
         #define ws_get(h, i) (ws_values_##h[i])\n\
         #define ws_get_abs(h, i) (ws_terms_##h[i])\n\
         #define ws_put(h, i, value, abs) do { const int64_t ws_at = (i); ws_values_##h[ws_at] = (value); ws_terms_##h[ws_at] = (abs); } while (0)\n",
    );
    if inputs == Inputs::Stored {
        text += ELEMENT;
    }
    let mut define = |name: &str, what: String| {
        let _ = writeln!(text, "#define {name} ({what})");
    };
    for (index, symbol) in op.symbols.iter().enumerate() {
        define(symbol, format!("ws->symbols[{index}]"));
    }
    for (index, scalar) in op.scalars.iter().enumerate() {
        define(&scalar.name, format!("ws->scalars[{index}]"));
    }
    for (index, tensor) in op.tensors.iter().filter(|tensor| tensor.role == Role::Input).enumerate() {
        let element = match inputs {
            Inputs::Decoded => format!("ws->inputs[{index}][i]"),
            Inputs::Stored => format!("ws_element(ws, {index}, i)"),
        };
        define(&format!("{}(i)", tensor.name), element);
    }
    for (index, name) in array_names(op).iter().enumerate() {
        define(&format!("ws_values_{name}"), format!("ws->values[{index}]"));
        define(&format!("ws_terms_{name}"), format!("ws->terms[{index}]"));
    }
    let _ = writeln!(text, "#line 1 \"{}.h\"\n{}\n#line 1 \"entries\"", op.name, op.header);
    for pass in items_passes(op) {
        let name = &pass.name;
        let _ = writeln!(
            text,
            "__attribute__((visibility(\"default\"))) void ws_run_{name}(const ws_context *ws, int64_t begin, int64_t end) \
             {{ for (int64_t item = begin; item < end; ++item) ws_pass_{name}(ws, item); }}"
        );
    }
    text
}

/// An element as it lies in memory, as a double. Types are numbered as `op::Stored` lists them.
const ELEMENT: &str = r"
static inline double ws_element(const ws_context *ws, int tensor, int64_t i) {
    union { uint64_t bits; double value; } exact;
    union { uint32_t bits; float value; } single;
    switch (ws->types[tensor]) {
    case 0: {
        const uint64_t half = ((const uint16_t *)ws->stored[tensor])[i], exponent = half >> 10 & 31, fraction = half & 1023;
        if (exponent == 0) return (half >> 15 ? -1.0 : 1.0) * (double)fraction * 5.9604644775390625e-8;
        exact.bits = (half >> 15) << 63 | (exponent == 31 ? 2047 : exponent + 1008) << 52 | fraction << 42;
        return exact.value;
    }
    case 1: single.bits = (uint32_t)((const uint16_t *)ws->stored[tensor])[i] << 16; return single.value;
    case 2: return ((const float *)ws->stored[tensor])[i];
    default: return (double)((const int64_t *)ws->stored[tensor])[i];
    }
}
";
