//! Whether an operation's file contradicts itself. Everything is tried at every shape it lists, so
//! that nothing can fail later, in the night.

use std::collections::{BTreeMap, BTreeSet};

use super::{Distribution, Draw, Dtype, ElementType, Operation, OracleKind, Pass, Role, Shape, TensorSpec};
use crate::expr::Expr;

/// The loosest L there may be, whatever an operation says (DESIGN, "The harness").
const LOOSEST: [(Dtype, f64); 3] = [(Dtype::F16, 1e-2), (Dtype::Bf16, 2e-2), (Dtype::F32, 1e-4)];

/// Words that would not survive as names in generated C.
const RESERVED: [&str; 40] = [
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "sqrt", "fabs", "exp",
    "main", "NULL", "T",
];

type Check = Result<(), String>;

/// Whether `name` can be a name in C, of an operation, a tensor or an argument.
#[must_use]
pub fn is_identifier(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.to_ascii_lowercase().starts_with("ws_")
        && !RESERVED.contains(&name)
}

/// What a file must say, or must not, by its oracle.
pub(super) fn keys(op: &Operation, toml: &str) -> Check {
    let table: toml::Table = toml.parse().unwrap_or_default();
    let has = |key: &str| table.contains_key(key);
    match op.oracle {
        OracleKind::Header => match ["passes", "tolerance", "adversarial"].into_iter().find(|key| !has(key)) {
            Some(key) => Err(format!("missing field `{key}`")),
            None if has("bar") => {
                Err("`bar` is for oracle = \"torch\": it names what of PyTorch is to be beaten".into())
            }
            None => Ok(()),
        },
        OracleKind::Torch => match ["passes", "tolerance"].into_iter().find(|key| has(key)) {
            Some(key) => {
                Err(format!("`{key}` is for an oracle in a header; with oracle = \"torch\" PyTorch says both"))
            }
            None => Ok(()),
        },
    }
}

/// Everything that must hold of an operation's file; the error is a sentence without the file's name.
pub(super) fn check(op: &Operation) -> Check {
    names(op)?;
    tensors(op)?;
    symbols(op)?;
    if op.primary >= op.sweep.len() {
        return Err(format!("primary = {} but the sweep has {} shapes", op.primary, op.sweep.len()));
    }
    for (place, shape) in listed_shapes(op) {
        at_shape(op, shape).map_err(|what| format!("{place}: {what}"))?;
    }
    for seed in 0..8 {
        let shape = op.random_shape(seed).map_err(|error| format!("random: {error}"))?;
        at_shape(op, &shape).map_err(|what| format!("random: {what}"))?;
    }
    passes(op)?;
    adversarial(op)
}

fn listed_shapes(op: &Operation) -> impl Iterator<Item = (String, &Shape)> {
    let lists = [("sweep", &op.sweep), ("edges", &op.edges), ("decode", &op.decode)];
    let numbered = lists.into_iter().flat_map(|(key, shapes)| {
        shapes.iter().enumerate().map(move |(index, shape)| (format!("{key} {}", index + 1), shape))
    });
    let hostile = op.adversarial.iter().map(|a| (format!("adversarial `{}`", a.name), &a.shape));
    std::iter::once(("smoke".to_owned(), &op.smoke)).chain(numbered).chain(hostile)
}

fn names(op: &Operation) -> Check {
    let mut seen = BTreeSet::new();
    let tensors = op.tensors.iter().map(|tensor| &tensor.name);
    let scalars = op.scalars.iter().map(|scalar| &scalar.name);
    for name in std::iter::once(&op.name).chain(&op.symbols).chain(scalars).chain(tensors) {
        if !is_identifier(name) {
            return Err(format!("`{name}` cannot be used as an identifier in C"));
        }
        if !seen.insert(name) {
            return Err(format!("the name `{name}` stands twice"));
        }
    }
    let places =
        |pass: &Pass| matches!(pass, Pass::Product(p) if p.a_at.is_some() || p.b_at.is_some() || p.out_at.is_some());
    if op.has_symbol(super::product::MATRIX) && op.passes.iter().any(places) {
        return Err("a symbol called `z` hides the number of a product's matrix".into());
    }
    if op.summary.trim().is_empty() {
        return Err("summary is empty".into());
    }
    Ok(())
}

fn tensors(op: &Operation) -> Check {
    for role in [Role::Input, Role::Output] {
        if !op.tensors.iter().any(|tensor| tensor.role == role) {
            return Err(format!("there is no {role:?} tensor").to_lowercase());
        }
    }
    for tensor in &op.tensors {
        let name = &tensor.name;
        match (tensor.role, &tensor.draw) {
            (Role::Input, None) => return Err(format!("input `{name}` has no draw")),
            (Role::Input, Some(draw)) => drawable(tensor, draw)?,
            (Role::Output, None) if tensor.present.is_none() && !tensor.weight => {}
            (Role::Output, _) => {
                return Err(format!("output `{name}` has a draw, is a weight, or is not always present"));
            }
        }
        let whole = match op.oracle {
            OracleKind::Torch => false,
            OracleKind::Header if tensor.role == Role::Output => tensor.dtype.is_whole(),
            OracleKind::Header => matches!(tensor.dtype, ElementType::I32 | ElementType::U8 | ElementType::I8),
        };
        if whole {
            return Err(format!(
                "`{name}` is an integer tensor; with a header outputs are floating-point, and integers that go in have 64 bits"
            ));
        }
        if op.oracle == OracleKind::Header && tensor.draw.as_ref().is_some_and(|draw| draw.dist == Distribution::File) {
            return Err(format!("`{name}` is drawn by a problem file, and the operation has none"));
        }
        if tensor.shape.is_empty() {
            return Err(format!("tensor `{name}` has no dimensions"));
        }
    }
    Ok(())
}

fn drawable(tensor: &TensorSpec, draw: &Draw) -> Check {
    let name = &tensor.name;
    if draw.like.is_some() && (draw.dist != Distribution::File || tensor.dtype.is_whole()) {
        return Err(format!("`{name}`: like is for floating-point values that a file draws"));
    }
    if tensor.dtype.is_whole() && draw.dist != Distribution::File && !draw.dist.is_whole() {
        return Err(format!("integer tensor `{name}` is drawn as something other than an index, or where groups end"));
    }
    if draw.dist.is_whole() && (draw.scale.is_none() || draw.rows != super::RowScale::None) {
        return Err(format!("`{name}`: an index needs a scale, and rows do not scale it"));
    }
    if draw.specials.iter().any(|special| special.every == 0 || special.count == Some(0)) {
        return Err(format!("`{name}`: a special with count or every = 0 replaces nothing"));
    }
    Ok(())
}

fn symbols(op: &Operation) -> Check {
    let unknown = |key: &str, symbol: &String| {
        if op.has_symbol(symbol) { Ok(()) } else { Err(format!("{key}: `{symbol}` is not a symbol")) }
    };
    op.defaults.keys().try_for_each(|symbol| unknown("defaults", symbol))?;
    op.shrink.iter().try_for_each(|symbol| unknown("shrink", symbol))?;
    op.random.keys().try_for_each(|symbol| unknown("random", symbol))?;
    if let Some((symbol, range)) = op.random.iter().find(|(_, (low, high))| low > high || *low < 0) {
        return Err(format!("random: the range {range:?} of `{symbol}` is empty or negative"));
    }
    if let Some(symbol) = op.symbols.iter().find(|s| !op.random.contains_key(*s) && !op.defaults.contains_key(*s)) {
        return Err(format!("random: `{symbol}` has neither a range nor a default"));
    }
    Ok(())
}

/// Everything that depends on a shape only.
fn at_shape(op: &Operation, shape: &Shape) -> Check {
    let shape = op.complete(shape).map_err(|error| error.to_string())?;
    let text = |error: super::OpError| error.to_string();
    if op.flops(&shape).map_err(text)? == 0 {
        return Err(format!("flops are zero at {shape}"));
    }
    for (scalar, value) in op.scalars.iter().zip(op.scalars(&shape).map_err(text)?) {
        if !value.is_finite() {
            return Err(format!("scalar `{}` is {value} at {shape}", scalar.name));
        }
    }
    for scalar in &op.scalars {
        let Some([low, high]) = &scalar.range else { continue };
        let value = |end: &Expr| op.double(&format!("range of scalar `{}`", scalar.name), end, &shape).map_err(text);
        let (low, high) = (value(low)?, value(high)?);
        if !(low > 0.0 && low < high && high.is_finite()) {
            return Err(format!(
                "scalar `{}` is drawn from {low} to {high} at {shape}: both are positive, the lower one first",
                scalar.name
            ));
        }
    }
    for (dtype, loosest) in LOOSEST.into_iter().filter(|_| op.oracle == OracleKind::Header) {
        let bound = op.rms_bound(&shape, dtype).map_err(text)?;
        if !(bound > 0.0 && bound <= loosest) {
            return Err(format!(
                "tolerance {dtype} = {bound} at {shape}; it is never looser than {loosest}, and positive"
            ));
        }
    }
    let lengths = |it: &super::Tolerance| [("sum_length", it.sum_length.clone()), ("row", it.row.clone())];
    let shared = op.tolerance.iter().filter_map(|it| Some(("shared_sums", it.shared_sums.clone()?)));
    for (key, expr) in op.tolerance.iter().flat_map(lengths).chain(shared) {
        let (key, expr) = (&format!("tolerance {key}"), &expr);
        if op.size(key, expr, &shape).map_err(text)? == 0 {
            return Err(format!("{key} is zero at {shape}"));
        }
    }
    for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
        if let Some(draw) = &tensor.draw {
            draw_at(op, tensor, draw, &shape)?;
        }
    }
    match op.oracle {
        OracleKind::Header => sizes(op, &shape),
        OracleKind::Torch => Ok(()),
    }
}

fn draw_at(op: &Operation, tensor: &TensorSpec, draw: &Draw, shape: &Shape) -> Check {
    for (key, expr) in [("scale", &draw.scale), ("shift", &draw.shift)] {
        let Some(expr) = expr else { continue };
        let value = op.double(&format!("draw of {}, {key}", tensor.name), expr, shape).map_err(|e| e.to_string())?;
        if !value.is_finite() || (draw.dist.is_whole() && key == "scale" && value < 1.0) {
            return Err(format!("draw of `{}`: {key} is {value} at {shape}", tensor.name));
        }
    }
    Ok(())
}

/// Whether the passes' sizes fit each other and the tensors, and every output is covered.
fn sizes(op: &Operation, shape: &Shape) -> Check {
    let size = |place: &str, expr: &Expr| op.size(place, expr, shape).map_err(|error| error.to_string());
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
        known.insert(&tensor.name, op.elements(tensor, shape).map_err(|error| error.to_string())?);
    }
    for pass in &op.passes {
        match pass {
            Pass::Items(pass) => {
                size(&format!("items of {}", pass.name), &pass.items)?;
                for out in &pass.out {
                    let elements = size(&format!("size of {}", out.name), &out.size)?;
                    fits_output(op, &out.name, elements, shape)?;
                    known.insert(&out.name, elements);
                }
            }
            Pass::Product(pass) => {
                let place = format!("product {}", pass.out);
                let layout = op.product_layout(pass, shape).map_err(|error| error.to_string())?;
                for (factor, matrices, placed) in
                    [(&pass.a, &layout.a, pass.a_at.is_some()), (&pass.b, &layout.b, pass.b_at.is_some())]
                {
                    let Some(&elements) = known.get(factor.as_str()) else {
                        return Err(format!("{place}: `{factor}` is neither an input nor an earlier output"));
                    };
                    let needed = if placed { matrices.end() } else { matrices.elements() };
                    if needed > elements || (!placed && needed != elements) {
                        return Err(format!("{place}: `{factor}` has {elements} elements, not {needed}, at {shape}"));
                    }
                }
                let elements = layout.out.elements();
                if layout.out.end() > elements || layout.out.step < layout.n {
                    return Err(format!("{place}: matrices are placed outside its {elements} elements at {shape}"));
                }
                fits_output(op, &pass.out, elements, shape)?;
                known.insert(&pass.out, elements);
                let checker = checker(op, &pass.checked_by, &place)?;
                if size(&place, &checker.items)? != elements || size(&place, &checker.out[0].size)? != elements {
                    return Err(format!("{place}: checked_by `{}` does not have one item an element", pass.checked_by));
                }
            }
        }
    }
    Ok(())
}

fn checker<'a>(op: &'a Operation, name: &str, place: &str) -> Result<&'a super::ItemsPass, String> {
    op.passes
        .iter()
        .find_map(|pass| match pass {
            Pass::Items(items) if items.name == name && items.out.len() == 1 => Some(items),
            _ => None,
        })
        .ok_or_else(|| format!("{place}: checked_by `{name}` is not an items pass with one output"))
}

fn fits_output(op: &Operation, name: &str, elements: usize, shape: &Shape) -> Check {
    let Some(tensor) = op.tensor(name) else { return Ok(()) };
    if tensor.role == Role::Input {
        return Err(format!("a pass writes the input `{name}`"));
    }
    let needed = op.elements(tensor, shape).map_err(|error| error.to_string())?;
    if elements != needed {
        return Err(format!("a pass gives `{name}` {elements} elements, not {needed}, at {shape}"));
    }
    Ok(())
}

fn passes(op: &Operation) -> Check {
    if op.oracle == OracleKind::Torch {
        return Ok(());
    }
    let checkers: Vec<&str> = op.checkers().collect();
    let (mut written, mut pass_names) = (BTreeSet::new(), BTreeSet::new());
    for pass in &op.passes {
        let outs: Vec<&str> = match pass {
            Pass::Product(product) => vec![&product.out],
            Pass::Items(items) => {
                let name = items.name.as_str();
                if !is_identifier(name) || !pass_names.insert(name) {
                    return Err(format!("pass `{name}` is not a new identifier"));
                }
                let spaceless: String = op.header.split_whitespace().collect();
                if !spaceless.contains(&format!("WS_PASS({name})")) {
                    return Err(format!("the header has no WS_PASS({name})"));
                }
                items.out.iter().map(|out| out.name.as_str()).collect()
            }
        };
        for out in outs {
            if !is_identifier(out) || op.has_symbol(out) || op.scalars.iter().any(|scalar| scalar.name == out) {
                return Err(format!("a pass's output cannot be called `{out}`"));
            }
            if !written.insert(out) {
                return Err(format!("two passes write `{out}`"));
            }
            let by_checker = matches!(pass, Pass::Items(items) if checkers.contains(&items.name.as_str()));
            if by_checker && op.tensor(out).is_some() {
                return Err(format!("`{out}` is written by a pass that only checks a product"));
            }
        }
    }
    match op.tensors.iter().find(|t| t.role == Role::Output && !written.contains(t.name.as_str())) {
        Some(tensor) => Err(format!("no pass writes the output `{}`", tensor.name)),
        None => Ok(()),
    }
}

fn adversarial(op: &Operation) -> Check {
    let mut seen = BTreeSet::new();
    for hostile in &op.adversarial {
        let name = &hostile.name;
        if !seen.insert(name) || name.trim().is_empty() {
            return Err(format!("adversarial `{name}` stands twice or has no name"));
        }
        if hostile.why.trim().is_empty() {
            return Err(format!("adversarial `{name}` does not say why it is there"));
        }
        let shape = op.complete(&hostile.shape).map_err(|error| error.to_string())?;
        if !op.is_defined(hostile, &shape).map_err(|error| error.to_string())? {
            return Err(format!("adversarial `{name}`: its own shape is none that it requires"));
        }
        for (tensor_name, draw) in &hostile.draw {
            let tensor = op.tensor(tensor_name).filter(|tensor| tensor.role == Role::Input);
            let Some(tensor) = tensor else {
                return Err(format!("adversarial `{name}`: `{tensor_name}` is not an input"));
            };
            if !op.present(tensor, &shape).map_err(|error| error.to_string())? {
                return Err(format!("adversarial `{name}`: `{tensor_name}` is absent at {shape}"));
            }
            drawable(tensor, draw).map_err(|what| format!("adversarial `{name}`: {what}"))?;
            draw_at(op, tensor, draw, &shape).map_err(|what| format!("adversarial `{name}`: {what}"))?;
        }
    }
    Ok(())
}

impl Operation {
    /// Names of the items passes that only check a product.
    pub(crate) fn checkers(&self) -> impl Iterator<Item = &str> {
        self.passes.iter().filter_map(|pass| match pass {
            Pass::Product(product) => Some(product.checked_by.as_str()),
            Pass::Items(_) => None,
        })
    }
}
