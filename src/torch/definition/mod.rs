//! FlashInfer-Bench's Definition (and SOL-ExecBench's) as an operation: free axes are symbols, constant ones numbers, `run` says what is
//! right, and workloads say at which sizes it is called.

mod sizes;
mod stated;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use self::sizes::Form;
use self::stated::{Axis, InOrder, Stated, Tensor, Workload};
use super::problem::{Names, float, quoted};
use super::{Problem, TorchError, name_of};
use crate::expr::Expr;
use crate::op::{Dtype, OpSource, Shape};

/// What is put behind a definition's own code.
const RUN: &str = include_str!("run.py");

/// Axes that are made of one another so many times are made of themselves.
const DEEPEST: usize = 16;

/// The problem that a definition in a file of this name and text is, at the sizes of the workloads in another file, where one is given.
///
/// # Errors
/// Why it is none that a kernel can be judged by.
pub fn definition(file: &str, text: &str, workloads: Option<(&str, &str)>) -> Result<Problem, TorchError> {
    let target = |why: String| TorchError::Target(format!("{file}: {why}"));
    let stated = Stated::read(text).map_err(target)?;
    let workloads = workloads.map(|(file, text)| stated.workloads(file, text)).transpose();
    let workloads = workloads.map_err(TorchError::Target)?.unwrap_or_default();
    if let (Some(maker), true) = (&stated.custom_inputs_entrypoint, workloads.is_empty()) {
        return Err(target(format!("its inputs are made by its own `{maker}`, and inputs are drawn here")));
    }
    let made = Made::of(&stated, &workloads).map_err(target)?;
    let name = name_of(&stated.name);
    let source = OpSource { toml: made.toml(&name, file, &stated), header: String::new(), python: made.python, name };
    source.operation().map_err(|error| target(error.to_string()))?;
    let shapes = if workloads.is_empty() { Vec::new() } else { made.sizes.sweep };
    Ok(Problem { source, dtype: made.dtype, shapes })
}

/// A definition in the words of an operation's file.
struct Made {
    symbols: Vec<String>,
    /// Those of them that are sizes.
    shrink: Vec<String>,
    scalars: Vec<(String, Vec<f64>)>,
    /// Names, whether it goes in, sizes, the type in the file.
    tensors: Vec<(String, bool, Vec<Expr>, &'static str)>,
    flops: String,
    requires: Option<Expr>,
    sizes: sizes::Sizes,
    python: String,
    dtype: Dtype,
}

impl Made {
    fn of(stated: &Stated, workloads: &[Workload]) -> Result<Self, String> {
        let dtype = floating(stated)?;
        let mut names = Names::default();
        let axes = Axes::of(stated, &mut names)?;
        let (mut scalars, mut numbers, mut tensors, mut arguments) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut first = None;
        for (given, tensor) in &stated.inputs.0 {
            let name = names.take(given);
            let Some(sizes) = &tensor.shape else {
                let values: Vec<f64> = workloads.iter().filter_map(|it| it.numbers.get(given).copied()).collect();
                if let Some(without) = workloads.iter().find(|it| !it.numbers.contains_key(given)) {
                    return Err(format!("{}: the scalar `{given}` has no value", without.place));
                }
                if tensor.dtype.starts_with("float") || tensor.dtype == "bfloat16" {
                    arguments.push(format!("given[{name:?}]"));
                    scalars.push((name, distinct(if values.is_empty() { usual_scalar(given) } else { values })));
                } else if values.is_empty() {
                    return Err(format!("the scalar `{given}` is of {}, and only workloads say which", tensor.dtype));
                } else {
                    let python = if tensor.dtype == "bool" { "bool" } else { "int" };
                    arguments.push(format!("{python}(given[{name:?}])"));
                    numbers.push((name, values.iter().map(|value| *value as i64).collect::<Vec<_>>()));
                }
                continue;
            };
            let element = element(given, tensor, dtype)?;
            if !matches!(element, "T" | "f32") {
                let kind = &tensor.dtype;
                return Err(format!(
                    "`{given}` is a tensor of {kind}, and the definition does not say which whole numbers it may hold"
                ));
            }
            if element == "T" && first.is_none() {
                first = Some(name.clone());
            }
            let plain = format!("given[{name:?}]");
            arguments.push(if sizes.is_empty() { format!("{plain}.reshape(())") } else { plain });
            tensors.push((name, true, axes.sizes(given, sizes)?, element));
        }
        for (given, tensor) in &stated.outputs.0 {
            let sizes = axes.sizes(given, tensor.shape.as_deref().unwrap_or_default())?;
            tensors.push((names.take(given), false, sizes, element(given, tensor, dtype)?));
        }
        let form = Form {
            axes: axes.free.clone(),
            numbers,
            tensors: tensors.iter().map(|(_, _, sizes, _)| sizes.clone()).collect(),
            requires: axes.requires(stated)?,
        };
        let shapes: Result<Vec<Shape>, String> =
            workloads.iter().enumerate().map(|(at, it)| axes.shape(&form, at, it)).collect();
        let sizes = form.sizes(shapes?)?;
        let symbols = form.axes.iter().chain(form.numbers.iter().map(|(name, _)| name)).cloned().collect();
        let outputs: Vec<&String> = stated.outputs.0.iter().map(|(name, _)| name).collect();
        let python = format!(
            "{}\n{RUN}\n\n_STATED, _IN, _OUTPUTS = _torch.{}, {}, {outputs:?}\n\n\ndef _arguments(given):\n    return [{}]\n",
            stated.reference.trim_end(),
            torch_name(dtype),
            first.map_or_else(|| "None".to_owned(), |name| format!("{name:?}")),
            arguments.join(", ")
        );
        let flops = flops(stated, &tensors);
        Ok(Self { symbols, shrink: form.axes, scalars, tensors, flops, requires: form.requires, sizes, python, dtype })
    }

    fn toml(&self, name: &str, file: &str, stated: &Stated) -> String {
        let list = |names: &[String]| format!("[{}]", names.iter().map(|it| quoted(it)).collect::<Vec<_>>().join(", "));
        let shape = |shape: &Shape| {
            let pairs: Vec<String> = shape.0.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
            format!("{{ {} }}", pairs.join(", "))
        };
        let shapes = |all: &[Shape]| format!("[{}]", all.iter().map(shape).collect::<Vec<_>>().join(", "));
        let random: Vec<String> =
            self.sizes.random.iter().map(|(name, (low, high))| format!("{name} = [{low}, {high}]")).collect();
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# Made of {file}; what is right its `run` says, whose text is beside this file.");
        let _ = writeln!(text, "name = {}", quoted(name));
        let _ = writeln!(
            text,
            "summary = {}",
            quoted(&format!("the definition {} of {file}, evaluated by PyTorch", stated.name))
        );
        let _ = writeln!(
            text,
            "oracle = \"torch\"\nsymbols = {}\nflops = {}\nshrink = {}",
            list(&self.symbols),
            quoted(&self.flops),
            list(&self.shrink)
        );
        if let Some(requires) = &self.requires {
            let _ = writeln!(text, "requires = {}", quoted(requires.text()));
        }
        let _ = writeln!(text, "primary = {}\nsmoke = {}", self.sizes.sweep.len() - 1, shape(&self.sizes.smoke));
        let _ = writeln!(text, "sweep = {}\nedges = {}", shapes(&self.sizes.sweep), shapes(&self.sizes.edges));
        let _ = writeln!(text, "random = {{ {} }}", random.join(", "));
        for (name, values) in &self.scalars {
            let value = values.first().copied().unwrap_or(1.0);
            // A number that is not there may be ignored: half of zero and twice it are zero.
            let beside = if value == 0.0 { [1.0, -1.0] } else { [0.5 * value, 2.0 * value] };
            let others: Vec<String> = values[1..].iter().copied().chain(beside).map(|it| quoted(&float(it))).collect();
            let value = quoted(&float(value));
            let _ = writeln!(
                text,
                "\n[[scalars]]\nname = {}\nvalue = {value}\nothers = [{}]",
                quoted(name),
                others.join(", ")
            );
        }
        // What is the same size in every call is a model's weight, beside something that is not.
        let constant = |sizes: &[Expr]| sizes.iter().all(|size| size.names().is_empty());
        let calls = self.tensors.iter().any(|(_, goes_in, sizes, _)| *goes_in && !constant(sizes));
        for (name, goes_in, sizes, element) in &self.tensors {
            let role = if *goes_in { "input" } else { "output" };
            let sizes_text: Vec<String> = sizes.iter().map(|size| size.text().to_owned()).collect();
            let _ = writeln!(
                text,
                "\n[[tensors]]\nname = {}\nrole = \"{role}\"\nshape = {}\ndtype = \"{element}\"",
                quoted(name),
                list(&sizes_text)
            );
            if *goes_in {
                let _ = writeln!(
                    text,
                    "{}draw = {{ dist = \"normal\" }}",
                    if calls && constant(sizes) { "weight = true\n" } else { "" }
                );
            }
        }
        text
    }
}

/// Axes in the language of expressions.
struct Axes {
    /// What each is, in symbols.
    texts: BTreeMap<String, String>,
    /// The symbols of those that are free.
    free: Vec<String>,
    /// Axes by their symbols.
    symbols: BTreeMap<String, String>,
}

impl Axes {
    fn of(stated: &Stated, names: &mut Names) -> Result<Self, String> {
        let InOrder(all) = &stated.axes;
        let mut written: BTreeMap<&str, String> = BTreeMap::new();
        for (name, axis) in all {
            match axis {
                Axis::Const { value } if *value < 1 => return Err(format!("the axis `{name}` is {value}")),
                Axis::Const { value } => drop(written.insert(name, value.to_string())),
                Axis::Expr { expression } => drop(written.insert(name, expression.clone())),
                Axis::Var => {}
            }
        }
        // `H_qo == H_kv * H_r` says what an axis is rather than which sizes go together.
        for constraint in stated.constraints.iter().flatten() {
            let Some((left, right)) = constraint.split_once("==").filter(|(_, right)| !right.contains("==")) else {
                continue;
            };
            for (axis, value) in [(left.trim(), right.trim()), (right.trim(), left.trim())] {
                let is_free = all.iter().any(|(name, it)| name == axis && matches!(it, Axis::Var));
                let others = replaced(value, &|name| {
                    let known = all.iter().any(|(other, _)| other == name) && name != axis;
                    known.then(|| name.to_owned())
                });
                if is_free && others.is_ok() && !written.contains_key(axis) {
                    written.insert(axis, value.to_owned());
                    break;
                }
            }
        }
        let (mut free, mut symbols, mut texts) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (name, _) in all.iter().filter(|(name, _)| !written.contains_key(name.as_str())) {
            let symbol = names.take(name);
            symbols.insert(symbol.clone(), name.clone());
            texts.insert(name.clone(), symbol.clone());
            free.push(symbol);
        }
        for (name, _) in all {
            let text = resolved(name, &written, &texts, 0)?;
            texts.insert(name.clone(), text);
        }
        Ok(Self { texts, free, symbols })
    }

    fn expression(&self, text: &str) -> Result<Expr, String> {
        let text = replaced(text, &|name| self.texts.get(name).cloned())?;
        text.parse().map_err(|error: crate::expr::ExprError| error.to_string())
    }

    /// The sizes of a tensor; a single number is a tensor of one element.
    fn sizes(&self, tensor: &str, sizes: &[Value]) -> Result<Vec<Expr>, String> {
        if sizes.is_empty() {
            return Ok(vec![Expr::from(1)]);
        }
        let wrong = |why: String| format!("the shape of `{tensor}`: {why}");
        let each = sizes.iter().map(|size| match size {
            Value::String(text) => self.expression(text).map_err(wrong),
            other => other.as_i64().map(Expr::from).ok_or_else(|| wrong(format!("{other} is no axis"))),
        });
        each.collect()
    }

    /// What must hold of sizes, where anything must.
    fn requires(&self, stated: &Stated) -> Result<Option<Expr>, String> {
        let mut parts = Vec::new();
        for constraint in stated.constraints.iter().flatten() {
            let wrong = |why: String| format!("the constraint `{constraint}`: {why}");
            if is_chained(constraint) {
                return Err(wrong("it compares three things at once; `a <= b and b <= c` says the same".into()));
            }
            let it = self.expression(constraint).map_err(wrong)?;
            parts.push(format!("({})", it.text()));
        }
        let joined = (!parts.is_empty()).then(|| parts.join(" && "));
        joined.map(|text| text.parse().map_err(|error: crate::expr::ExprError| error.to_string())).transpose()
    }

    /// The symbols of a workload, of which it is the one at this place.
    fn shape(&self, form: &Form, at: usize, workload: &Workload) -> Result<Shape, String> {
        let wrong = |why: String| format!("{}: {why}", workload.place);
        let mut shape = Shape::default();
        for symbol in &self.free {
            let axis = &self.symbols[symbol];
            let value = *workload.axes.get(axis).ok_or_else(|| wrong(format!("the axis `{axis}` has no value")))?;
            if value < 1 {
                return Err(wrong(format!("the axis `{axis}` is {value}")));
            }
            shape = shape.with(symbol, value);
        }
        for (name, values) in &form.numbers {
            shape = shape.with(name, values.get(at).copied().unwrap_or(0));
        }
        for (axis, value) in &workload.axes {
            let text = self.texts.get(axis).map_or("", String::as_str);
            let is = text.parse::<Expr>().ok().and_then(|it| it.int(&|name| shape.get(name)).ok());
            if is.is_some_and(|is| is != *value) {
                return Err(wrong(format!(
                    "the axis `{axis}` is {value}, and the definition makes it {}",
                    is.unwrap_or(0)
                )));
            }
        }
        match form.elements(&shape) {
            Some(_) => Ok(shape),
            None => Err(wrong("its sizes break the definition's constraints".into())),
        }
    }
}

/// What an axis is, in symbols and numbers.
fn resolved(
    name: &str,
    written: &BTreeMap<&str, String>,
    free: &BTreeMap<String, String>,
    depth: usize,
) -> Result<String, String> {
    let Some(text) = written.get(name) else {
        return free.get(name).cloned().ok_or_else(|| format!("`{name}` is no axis"));
    };
    if depth > DEEPEST {
        return Err(format!("the axis `{name}` is made of itself"));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(text.clone());
    }
    let inside = std::cell::RefCell::new(None);
    let text = replaced(text, &|other| match resolved(other, written, free, depth + 1) {
        Ok(text) => Some(text),
        Err(why) => {
            inside.replace(Some(why));
            None
        }
    });
    match (text, inside.into_inner()) {
        (_, Some(why)) => Err(why),
        (text, None) => text.map(|text| format!("({text})")),
    }
}

/// Whether a part of it compares more than two things: to Python that is all of the comparisons, elsewhere one of another's result.
fn is_chained(text: &str) -> bool {
    let words = text.replace(" and ", "(").replace(" or ", "(");
    words.split(['(', ')']).any(|part| {
        let signs = part.replace("<=", "<").replace(">=", "<").replace("==", "<").replace("!=", "<");
        signs.matches(['<', '>']).count() > 1
    })
}

/// An expression of Python over axes in the language of expressions, with other names for its names. What Python would round downward and
/// this language toward zero is refused.
fn replaced(text: &str, name: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let bare: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    if bare.contains("//") && (bare.contains("(-") || bare.starts_with('-')) {
        return Err(format!("`{text}` divides what is negative; rounding up is `(n + 1) // 2`"));
    }
    let (mut made, mut rest) = (String::new(), text);
    while let Some(letter) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        if letter.is_ascii_digit() {
            made.push_str(&rest[..length]);
            rest = &rest[length..];
        } else if length > 0 {
            match &rest[..length] {
                "and" => made.push_str("&&"),
                "or" => made.push_str("||"),
                "not" => made.push('!'),
                word @ ("min" | "max") => made.push_str(word),
                word => made.push_str(&name(word).ok_or_else(|| format!("`{word}` is no axis"))?),
            }
            rest = &rest[length..];
        } else if let Some(behind) = rest.strip_prefix("//") {
            made.push('/');
            rest = behind;
        } else if letter == '/' {
            return Err(format!("`{text}` divides into fractions (`/`); sizes are whole, and `//` keeps them so"));
        } else {
            made.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    Ok(made)
}

/// The type that a definition's kernels are for: its own of 16 bits where it has one, beside which 32 bits stay 32 bits.
fn floating(stated: &Stated) -> Result<Dtype, String> {
    let mut found: Option<(&str, Dtype)> = None;
    for (name, tensor) in stated.inputs.0.iter().chain(&stated.outputs.0).filter(|(_, it)| it.shape.is_some()) {
        let own = match tensor.dtype.as_str() {
            "float16" => Dtype::F16,
            "bfloat16" => Dtype::Bf16,
            _ => continue,
        };
        match found {
            Some((other, dtype)) if dtype != own => {
                return Err(format!("`{other}` and `{name}` are of two types of 16 bits, and a kernel here has one"));
            }
            _ => found = Some((name, own)),
        }
    }
    Ok(found.map_or(Dtype::F32, |(_, dtype)| dtype))
}

/// The type of a tensor in the operation's file.
fn element(name: &str, tensor: &Tensor, dtype: Dtype) -> Result<&'static str, String> {
    Ok(match tensor.dtype.as_str() {
        "float16" | "bfloat16" => "T",
        "float32" if dtype == Dtype::F32 => "T",
        "float32" => "f32",
        "int64" => "i64",
        "int32" => "i32",
        "bool" | "uint8" => "u8",
        "int8" => "i8",
        other => {
            return Err(format!(
                "`{name}` is a tensor of {other}; kernels take float32, float16 and bfloat16, and give int64, int32 and bool too"
            ));
        }
    })
}

const fn torch_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
        Dtype::F32 => "float32",
    }
}

/// Values of a scalar where no workload says any: something that stabilises is small, anything else is one.
fn usual_scalar(name: &str) -> Vec<f64> {
    vec![if name.to_ascii_lowercase().contains("eps") { 1e-6 } else { 1.0 }]
}

fn distinct(values: Vec<f64>) -> Vec<f64> {
    let mut found = Vec::new();
    values.into_iter().for_each(|value| {
        if !found.contains(&value) {
            found.push(value);
        }
    });
    found
}

/// Useful operations: of a product two for each of its terms, of anything else one for each element of its results.
fn flops(stated: &Stated, tensors: &[(String, bool, Vec<Expr>, &'static str)]) -> String {
    let last = tensors.first().filter(|(_, _, sizes, _)| sizes.len() > 1).and_then(|(_, _, sizes, _)| sizes.last());
    let results = tensors.iter().filter(|(_, goes_in, _, _)| !goes_in);
    let counts: Vec<String> =
        results.map(|(_, _, sizes, _)| sizes.iter().map(Expr::text).collect::<Vec<_>>().join(" * ")).collect();
    match (stated.op_type.as_str(), last, counts.as_slice()) {
        ("gemm", Some(terms), [results]) => format!("2 * {results} * {terms}"),
        _ => counts.join(" + "),
    }
}

#[cfg(test)]
mod tests;
