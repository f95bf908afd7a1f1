//! The CUDA around an operation's header: an item is a warp or a block, and inputs are decoded where they are read.

use std::fmt::Write;

use crate::op::{ElementType, ItemsPass, Operation, Pass, Role};

/// Bytes that the context of an oracle may take as a kernel's parameter.
const LARGEST_CONTEXT: usize = 3072;

/// Threads of an item that has a block to itself.
pub(super) const WIDE: u32 = 256;

/// What stands before the header. Everything here begins with `ws_`, since the operation's names become macros.
const PRELUDE: &str = include_str!("device/oracle.cuh");

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

/// The entry point of a pass.
pub(super) fn entry(pass: &str) -> String {
    format!("ws_run_{pass}")
}

/// The translation unit: accessors for this operation, its header, and the entry points.
///
/// # Errors
/// More tensors or symbols than fit in a kernel's parameters.
pub fn source(op: &Operation) -> Result<String, String> {
    let inputs: Vec<_> = op.tensors.iter().filter(|tensor| tensor.role == Role::Input).collect();
    let arrays = array_names(op);
    let counts = [inputs.len(), arrays.len(), op.symbols.len(), op.scalars.len()];
    if context_words(op) * 8 > LARGEST_CONTEXT {
        return Err(format!("the oracle of `{}` has too many tensors, arrays and symbols for one kernel", op.name));
    }
    let mut text = String::new();
    // Arrays without elements are errors in C++.
    for (name, count) in ["WS_INPUTS", "WS_ARRAYS", "WS_SYMBOLS", "WS_SCALARS"].iter().zip(counts) {
        let _ = writeln!(text, "#define {name} {}", count.max(1));
    }
    text.push_str(PRELUDE);
    let mut define = |name: &str, what: String| {
        let _ = writeln!(text, "#define {name} ({what})");
    };
    for (index, symbol) in op.symbols.iter().enumerate() {
        define(symbol, format!("ws_context.symbols[{index}]"));
    }
    for (index, scalar) in op.scalars.iter().enumerate() {
        define(&scalar.name, format!("ws_context.scalars[{index}]"));
    }
    for (index, tensor) in inputs.iter().enumerate() {
        let stored = match tensor.dtype {
            ElementType::Case => "(int)ws_context.stored",
            ElementType::F32 => "2",
            ElementType::I64 => "3",
            ElementType::I32 => "4",
            ElementType::U8 => "5",
            ElementType::I8 => "6",
        };
        define(&format!("{}(i)", tensor.name), format!("ws_element({stored}, ws_context.inputs[{index}], (i))"));
    }
    for (index, name) in arrays.iter().enumerate() {
        define(&format!("ws_values_{name}"), format!("ws_context.values[{index}]"));
        define(&format!("ws_terms_{name}"), format!("ws_context.terms[{index}]"));
    }
    let _ = writeln!(text, "#line 1 \"{}.h\"\n{}\n#line 1 \"entries\"", op.name, op.header);
    let checkers: Vec<&str> = op.checkers().collect();
    for pass in items_passes(op) {
        let name = pass.name.as_str();
        let kind = if checkers.contains(&name) { "WS_CHECK" } else { "WS_RUN" };
        let _ = writeln!(text, "{kind}({}, {name})", entry(name));
    }
    Ok(text)
}

/// 64-bit words of the context: inputs, values, terms, symbols, scalars, what `T` is.
pub(super) fn context_words(op: &Operation) -> usize {
    let inputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Input).count();
    inputs.max(1) + 2 * array_names(op).len().max(1) + op.symbols.len().max(1) + op.scalars.len().max(1) + 1
}
