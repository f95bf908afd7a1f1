//! The JSON of FlashInfer-Bench: a Definition, and Workloads as lines of their own. SOL-ExecBench's is nearly the same.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// What is to be computed. Fields that say nothing of that (tags, a description) are passed over.
#[derive(Debug, Deserialize)]
pub(super) struct Stated {
    pub name: String,
    /// `gemm`, `rmsnorm`; the older form calls it `type`, and SOL-ExecBench has none.
    #[serde(default, alias = "type")]
    pub op_type: String,
    pub axes: InOrder<Axis>,
    pub inputs: InOrder<Tensor>,
    pub outputs: InOrder<Tensor>,
    /// Python with `run`.
    pub reference: String,
    #[serde(default)]
    pub constraints: Option<Vec<String>>,
    /// A function of `reference` that makes the inputs.
    #[serde(default)]
    pub custom_inputs_entrypoint: Option<String>,
}

/// A size by its name.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Axis {
    /// The same in every workload.
    Const { value: i64 },
    /// Each workload's own.
    Var,
    /// Made of others.
    Expr { expression: String },
}

/// A tensor, or a number where it has no shape.
#[derive(Debug, Deserialize)]
pub(super) struct Tensor {
    /// Axes by their names, or sizes.
    pub shape: Option<Vec<Value>>,
    pub dtype: String,
}

/// Sizes and numbers for one call.
#[derive(Debug, Default)]
pub(super) struct Workload {
    /// In words, for sentences about it.
    pub place: String,
    pub axes: BTreeMap<String, i64>,
    /// Inputs that are numbers.
    pub numbers: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    definition: Option<String>,
    /// A trace has the workload inside, beside a solution and how that did.
    #[serde(default)]
    workload: Option<Bound>,
}

#[derive(Deserialize)]
struct Bound {
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    axes: Option<BTreeMap<String, i64>>,
    #[serde(default)]
    inputs: Option<BTreeMap<String, Source>>,
}

#[derive(Deserialize)]
struct Source {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    value: Value,
}

/// An object of JSON in the order in which it is written, which is that of `run`'s arguments.
#[derive(Debug)]
pub(super) struct InOrder<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for InOrder<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
            type Value = InOrder<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<InOrder<T>, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(InOrder(pairs))
            }
        }
        from.deserialize_map(Pairs(PhantomData))
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

impl Stated {
    /// A Definition of this text.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let it: Self = read(text)?;
        let has_run = |line: &str| line.strip_prefix("def run").is_some_and(|rest| rest.trim_start().starts_with('('));
        if !it.reference.lines().any(has_run) {
            return Err("its reference defines no `run`".into());
        }
        Ok(it)
    }

    /// The workloads of a text of lines, each an object: a workload, or a trace with one in it.
    pub(super) fn workloads(&self, file: &str, text: &str) -> Result<Vec<Workload>, String> {
        let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let found: Result<Vec<Workload>, String> =
            numbered.map(|(at, line)| self.workload(&format!("{file}, line {}", at + 1), line)).collect();
        match found {
            Ok(found) if found.is_empty() => Err(format!("{file} has no workload")),
            found => found,
        }
    }

    fn workload(&self, place: &str, line: &str) -> Result<Workload, String> {
        let wrong = |why: String| format!("{place}: {why}");
        let Line { definition, workload } = read(line).map_err(wrong)?;
        if let Some(other) = definition.filter(|other| *other != self.name) {
            return Err(wrong(format!("it is a workload of `{other}`, and the definition is `{}`", self.name)));
        }
        let bound = match workload {
            Some(bound) => bound,
            None => read::<Bound>(line).map_err(wrong)?,
        };
        let axes = bound.axes.ok_or_else(|| wrong("it has no `axes`".into()))?;
        if let Some(strange) = axes.keys().find(|axis| !self.axes.0.iter().any(|(name, _)| name == *axis)) {
            return Err(wrong(format!("`{strange}` is no axis of `{}`", self.name)));
        }
        let mut numbers = BTreeMap::new();
        for (name, Source { kind, value }) in bound.inputs.unwrap_or_default() {
            let number = value.as_f64().or_else(|| value.as_bool().map(|it| f64::from(u8::from(it))));
            match (kind.as_str(), number) {
                ("random", _) => {}
                ("scalar", Some(number)) => drop(numbers.insert(name, number)),
                ("scalar", None) => return Err(wrong(format!("`{name}` is a scalar without a number"))),
                ("safetensors", _) => {
                    return Err(wrong(format!("`{name}` comes from a safetensors file, and inputs are drawn here")));
                }
                ("custom", _) => {
                    return Err(wrong(format!(
                        "`{name}` is made by the definition's own code, and inputs are drawn here"
                    )));
                }
                (other, _) => return Err(wrong(format!("`{name}` is of the type `{other}`, which is none"))),
            }
        }
        let uuid = bound.uuid.map_or(String::new(), |uuid| format!(" ({uuid})"));
        Ok(Workload { place: format!("{place}{uuid}"), axes, numbers })
    }
}
