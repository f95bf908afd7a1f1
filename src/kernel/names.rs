//! Names in a CUDA file: what an argument stands for, and what a kernel is called at one resolution.

use std::collections::BTreeMap;

use super::file::Given;
use super::{Facts, FrontMatter, KernelFile, Language, Resolution};
use crate::op::{Operation, Shape};

/// What a name among the arguments stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Named {
    Tensor(usize),
    Scratch(usize),
    Symbol(usize),
    Scalar(usize),
    Map,
    Constant,
    Given(Given),
}

/// Looks a name up; nothing has the name of something else in a file that was checked against its operation.
pub(super) fn named(front: &FrontMatter, op: &Operation, name: &str) -> Option<Named> {
    let tensor = || op.tensors.iter().position(|tensor| tensor.name == name).map(Named::Tensor);
    let scratch = || front.scratch.iter().position(|scratch| scratch.name == name).map(Named::Scratch);
    let symbol = || op.symbols.iter().position(|symbol| symbol == name).map(Named::Symbol);
    let scalar = || op.scalars.iter().position(|scalar| scalar.name == name).map(Named::Scalar);
    let map = || front.tensor_maps.iter().any(|map| map.name == name).then_some(Named::Map);
    let constant = front.tune.contains_key(name) || front.lets.contains_key(name);
    tensor()
        .or_else(scratch)
        .or_else(symbol)
        .or_else(scalar)
        .or_else(map)
        .or_else(|| front.given.get(name).copied().map(Named::Given))
        .or_else(|| constant.then_some(Named::Constant))
}

impl KernelFile {
    /// A shape with the sizes that the file is given besides.
    pub(super) fn with_given(&self, shape: &Shape) -> Shape {
        let mut all = shape.clone();
        all.0.extend(self.front.given.iter().filter_map(|(name, value)| match value {
            Given::Int(value) => Some((name.clone(), *value)),
            Given::Float(_) => None,
        }));
        all
    }

    /// The kernels that may be launched with these constants, each once: what a compilation must make. A launch is left out
    /// where its `when` cannot hold, whatever the symbols are.
    #[must_use]
    pub fn kernel_names(&self, resolution: &Resolution, facts: &Facts) -> Vec<String> {
        if self.language == Language::Triton {
            return resolution.jit.iter().map(|jit| jit.name.clone()).collect();
        }
        let mut known = facts.clone();
        known.insert("dtype_bytes".into(), resolution.dtype.bytes() as i64);
        known.extend(resolution.macros.clone());
        for symbol in &self.front.specialize {
            if let Some(value) = resolution.macros.get(&format!("WS_{}", symbol.to_uppercase())) {
                known.insert(symbol.clone(), *value);
            }
        }
        let mut names = Vec::new();
        for launch in &self.front.launches {
            let never =
                launch.when.as_ref().is_some_and(|when| when.decided(&|name| known.get(name).copied()) == Some(0));
            let name = instance(&launch.kernel, &resolution.macros);
            if !never && !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// A kernel's name with the constants in its template arguments put in.
pub(super) fn instance(kernel: &str, macros: &BTreeMap<String, i64>) -> String {
    let (function, mut rest) = kernel.split_at(kernel.find('<').unwrap_or(kernel.len()));
    let mut text = function.trim_end().to_owned();
    while !rest.is_empty() {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        match macros.get(name) {
            Some(value) => text.push_str(&value.to_string()),
            None => text.push_str(name),
        }
        let next = after.find(word).unwrap_or(after.len());
        text.push_str(&after[..next]);
        rest = &after[next..];
    }
    text
}
