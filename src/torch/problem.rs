//! A problem file as an operation: what PyTorch says of it, in the words of `reference/<op>.toml`.

use std::fmt::Write as _;

use super::TorchError;
use super::wire::{Argument, Described, Figures, Given, TensorForm};
use crate::op::{Bar, Dtype, OpSource, Shape, is_name};

/// The longest name of an operation that a file gets.
const LONGEST: usize = 48;

/// Sums and means of values around zero come out as small numbers: a mean so many standard errors from zero is none.
const CENTRED: f64 = 5.0;

/// Values of a uniform distribution lie within 1.73 deviations of their mean; of a few thousand, close to that.
const UNIFORM: f64 = 1.9;

/// A problem, described.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// The operation that it is, for any worker.
    pub source: OpSource,
    /// The type that its kernels are for, where somebody writes the first.
    pub dtype: Dtype,
    /// The sizes at which it is called, where that is known.
    pub shapes: Vec<Shape>,
}

impl Problem {
    /// The problem in a file of this name and text.
    ///
    /// # Errors
    /// Why it is none that a kernel can be judged by.
    pub fn new(file: &str, text: &str, described: Described) -> Result<Self, TorchError> {
        Self::with(file, text, &described, Values::File)
    }

    /// A region of a model, and what its kernels must beat: its inputs are drawn as those of the model were, as far as their figures say.
    ///
    /// # Errors
    /// Why it is none that a kernel can be judged by.
    pub(super) fn region(file: &str, text: &str, described: Described, bar: Bar) -> Result<Self, TorchError> {
        Self::with(file, text, &described, Values::Figures(bar))
    }

    fn with(file: &str, text: &str, described: &Described, values: Values) -> Result<Self, TorchError> {
        let name = name_of(file);
        let toml =
            operation(&name, file, described, values).map_err(|why| TorchError::Target(format!("{file}: {why}")))?;
        let source = OpSource { name, toml, header: String::new(), python: text.to_owned() };
        source.operation().map_err(|error| TorchError::Target(format!("{file}: {error}")))?;
        Ok(Self { source, dtype: Dtype::F32, shapes: Vec::new() })
    }
}

/// Where the values of inputs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// `get_inputs` draws them.
    File,
    /// They are drawn like those that were seen once, in a model; with what is to be beaten there.
    Figures(Bar),
}

/// The name of a file's operation: the file's own as a name in C, `23_Softmax.py` as `p23_softmax`.
#[must_use]
pub fn name_of(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    let base = base.strip_suffix(".py").unwrap_or(base).to_ascii_lowercase();
    let letters: String = base.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut name = String::new();
    for part in letters.split('_').filter(|part| !part.is_empty()) {
        if name.len() + part.len() < LONGEST {
            name = if name.is_empty() { part.to_owned() } else { format!("{name}_{part}") };
        }
    }
    if is_name(&name) { name } else { format!("p{name}") }
}

/// Bytes of everything that goes in and comes out, as floats of 32 bits where they are floating.
#[must_use]
pub fn bytes(described: &Described) -> u64 {
    let size = |dtype: &str| match dtype {
        "int64" | "float64" => 8,
        "bool" | "uint8" | "int8" => 1,
        "int16" | "float16" | "bfloat16" => 2,
        _ => 4,
    };
    let count = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
    let given = described.outputs.iter().map(|it| count(&it.shape) * size(&it.dtype));
    tensors(described).map(|it| count(&it.shape) * size(&it.dtype)).chain(given).sum()
}

fn tensors(described: &Described) -> impl Iterator<Item = &TensorForm> {
    described.inputs.iter().filter_map(|input| match input {
        Argument::Input(form) | Argument::State(form) => Some(form),
        Argument::Scalar { .. } | Argument::Constant { .. } => None,
    })
}

/// Why a problem is no target, as far as its form tells; `None` where it is one.
#[must_use]
pub fn refusal(described: &Described) -> Option<String> {
    for TensorForm { name, shape, dtype, .. } in tensors(described) {
        if element(dtype).is_none() {
            return Some(format!(
                "`{name}` is a tensor of {dtype}; kernels take float32, float16, bfloat16, int64, int32, int8, uint8 and bool"
            ));
        }
        if shape.contains(&0) {
            return Some(format!("`{name}` has no elements"));
        }
    }
    if tensors(described).next().is_none() {
        return Some("it has no tensor to start from".into());
    }
    let other = described.outputs.iter().find(|it| element(&it.dtype).is_none());
    other.map(|Given { dtype, .. }| format!("its result is a tensor of {dtype}, which no kernel makes here"))
}

/// What cannot be drawn by figures; `None` where all can.
fn unlike(described: &Described) -> Option<String> {
    for input in &described.inputs {
        let Argument::Input(TensorForm { name, dtype, figures, .. }) = input else { continue };
        match (element(dtype), figures) {
            (Some("T"), Some(Figures { zeros, count, min, max, rectified: None, hidden: None, .. }))
                if *count > 64 && *zeros > 0.02 && min < max =>
            {
                return Some(format!("{:.0} % of `{name}` are zeros, which a draw would lose", 100.0 * zeros));
            }
            // A truth value may be either, whatever was seen.
            (Some("i64" | "i32" | "i8" | "u8"), Some(Figures { min, max, .. })) if min == max && dtype != "bool" => {
                return Some(format!("`{name}` is {min} everywhere, and which other values it may have nobody knows"));
            }
            _ => {}
        }
    }
    let whole = described.outputs.iter().find(|it| element(&it.dtype) != Some("T"));
    whole.map(|Given { dtype, .. }| format!("its result is a tensor of {dtype}; those of regions are floating-point"))
}

/// The type of a kernel's tensor by PyTorch's name, by itself.
fn element(dtype: &str) -> Option<&'static str> {
    Some(match dtype {
        "float32" | "float16" | "bfloat16" => "T",
        "int64" => "i64",
        "int32" => "i32",
        "uint8" | "bool" => "u8",
        "int8" => "i8",
        _ => return None,
    })
}

/// Whether kernels are for a type of 16 bits, beside which tensors in single precision stay so.
fn is_narrow(described: &Described) -> bool {
    let mut types = tensors(described).map(|it| &it.dtype).chain(described.outputs.iter().map(|it| &it.dtype));
    types.any(|it| it == "bfloat16")
}

/// The operation's file.
fn operation(name: &str, file: &str, described: &Described, values: Values) -> Result<String, String> {
    let figures = matches!(values, Values::Figures(_)).then(|| unlike(described)).flatten();
    if let Some(why) = refusal(described).or(figures) {
        return Err(why);
    }
    let beside_narrow = matches!(values, Values::Figures(_)) && is_narrow(described);
    let stored = |dtype: &str| match element(dtype) {
        Some("T") if beside_narrow && dtype == "float32" => "f32",
        known => known.unwrap_or("T"),
    };
    let mut names = Names::default();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# Made of {file}, whose text is beside this file; shapes are the file's own.");
    let _ = writeln!(text, "name = {}", quoted(name));
    let _ = writeln!(text, "summary = {}", quoted(&format!("the problem of {file}, evaluated by PyTorch")));
    let elements: u64 =
        described.outputs.iter().map(|it| it.shape.iter().map(|size| *size as u64).product::<u64>()).sum();
    let _ = writeln!(
        text,
        "oracle = \"torch\"\nsymbols = []\nflops = \"{}\"\nshrink = []\nprimary = 0\nsmoke = {{}}\nsweep = [{{}}]\nedges = []\nrandom = {{}}",
        described.flops.max(elements).max(1)
    );
    if values == Values::Figures(Bar::Compiled) {
        let _ = writeln!(text, "bar = \"compiled\"");
    }
    for input in &described.inputs {
        match input {
            Argument::Scalar { name, value } => {
                let others = [0.5 * value, value + 1.0, -value].map(|other| quoted(&float(other)));
                let _ = writeln!(
                    text,
                    "\n[[scalars]]\nname = {}\nvalue = {}\nothers = [{}]",
                    quoted(&names.take(name)),
                    quoted(&float(*value)),
                    others.join(", ")
                );
            }
            Argument::Constant { name, text: value } => {
                let _ =
                    writeln!(text, "\n# `{name}` is always {}; kernels are not given it.", value.replace('\n', " "));
            }
            Argument::Input(form) | Argument::State(form) => {
                let state = matches!(input, Argument::State(_));
                let dtype = stored(&form.dtype);
                let draw = match values {
                    Values::File if !state => drawn(form, &described.structure)?,
                    Values::File | Values::Figures(_) => usual(form)?,
                };
                let _ = writeln!(
                    text,
                    "\n[[tensors]]\nname = {}\nrole = \"input\"\nshape = {}\ndtype = \"{dtype}\"",
                    quoted(&names.take(&form.name)),
                    sizes(&form.shape)
                );
                if state {
                    let _ = writeln!(text, "weight = true");
                }
                let _ = writeln!(text, "draw = {draw}");
            }
        }
    }
    for (index, Given { shape, dtype }) in described.outputs.iter().enumerate() {
        let own = if described.outputs.len() == 1 { "out".to_owned() } else { format!("out{index}") };
        let _ = writeln!(
            text,
            "\n[[tensors]]\nname = {}\nrole = \"output\"\nshape = {}\ndtype = \"{}\"",
            quoted(&names.take(&own)),
            sizes(shape),
            stored(dtype)
        );
    }
    Ok(text)
}

/// Names in C, none twice.
#[derive(Default)]
pub(super) struct Names(Vec<String>);

impl Names {
    /// A name like this one, which nothing has yet.
    pub(super) fn take(&mut self, wanted: &str) -> String {
        let plain: String = wanted.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let plain = if is_name(&plain) { plain } else { format!("a_{plain}") };
        let mut name = plain.clone();
        for number in 2.. {
            if !self.0.contains(&name) {
                break;
            }
            name = format!("{plain}_{number}");
        }
        self.0.push(name.clone());
        name
    }
}

/// How an input is drawn: by the file, and hostile values are like those as far as their figures say. What has a structure, or holds whole
/// numbers, keeps it. What is always the same number is drawn around it, since a kernel must read its inputs.
fn drawn(form: &TensorForm, structure: &[String]) -> Result<String, String> {
    let file = "{ dist = \"file\" }".to_owned();
    if element(&form.dtype) != Some("T") || !structure.is_empty() {
        return Ok(file);
    }
    let Figures { min, max, zeros, whole, count, .. } =
        form.figures.ok_or_else(|| format!("the values of `{}` were not drawn", form.name))?;
    if min == max {
        return usual(form);
    }
    let structured = (whole && count > 16) || (count > 64 && zeros > 0.02);
    Ok(if structured { file } else { format!("{{ dist = \"file\", like = {} }}", usual(form)?) })
}

/// Beyond it expressions have no number.
const LARGEST: f64 = 1e18;

/// How values are drawn here that are like those of a tensor, as far as its figures say.
fn usual(form: &TensorForm) -> Result<String, String> {
    let name = &form.name;
    if form.dtype == "bool" {
        return Ok("{ dist = \"index\", scale = \"2\" }".to_owned());
    }
    let Figures { min, max, mean, deviation, whole, count, rectified, ends, hidden, .. } =
        form.figures.ok_or_else(|| format!("the values of `{name}` were not drawn"))?;
    if ![min, max, mean, deviation].iter().all(|value| value.is_finite()) {
        return Err(format!("`{name}` is not finite"));
    }
    if min.abs().max(max.abs()) > LARGEST {
        return Err(format!("`{name}` reaches from {min:.1e} to {max:.1e}, and no draw does"));
    }
    let uniform = |low: f64, wide: f64| {
        format!("{{ dist = \"uniform\", scale = {}, shift = {} }}", quoted(&float(wide)), quoted(&float(low)))
    };
    if element(&form.dtype) != Some("T") {
        if ends {
            return Ok(format!("{{ dist = \"ends\", scale = \"{max}\" }}"));
        }
        let (low, many) = (min, max - min + 1.0);
        return Ok(format!("{{ dist = \"index\", scale = \"{many}\", shift = \"{low}\" }}"));
    }
    let normal = |scale: f64, middle: f64| {
        format!("{{ dist = \"normal\", scale = {}, shift = {} }}", quoted(&float(scale)), quoted(&float(middle)))
    };
    let draw = if hidden.is_some() && min == max {
        format!("{{ dist = \"constant\", scale = {} }}", quoted(&float(min)))
    } else if min == max {
        // What a layer starts with (ones, zeros) is no value that a kernel may rely on; what is positive stays so.
        if min == 0.0 { normal(0.25, 0.0) } else { uniform(0.5 * min, min) }
    } else if let Some([scale, shift]) = rectified {
        let [scale, shift] = [scale, shift].map(|it| quoted(&float(rounded(it))));
        format!("{{ dist = \"rectified\", scale = {scale}, shift = {shift} }}")
    } else if whole && count > 16 {
        return Err(format!("`{name}` holds whole numbers in a floating type, which a draw would lose"));
    } else if max <= mean + UNIFORM * deviation && min >= mean - UNIFORM * deviation || min >= 0.0 {
        let (low, wide) = tidy(min, max);
        uniform(low, wide)
    } else {
        let centred = mean.abs() < CENTRED * deviation / (count.max(1) as f64).sqrt();
        normal(rounded(deviation), if centred { 0.0 } else { rounded(mean) })
    };
    Ok(match hidden {
        Some(low) => hiding(&draw, low, form.shape.last().copied().unwrap_or(1)),
        None => draw,
    })
}

/// A draw with what hides a score in up to a half of each row; in whole rows too, where something is left of what is hidden.
fn hiding(draw: &str, low: f64, columns: usize) -> String {
    let value = if low == 0.0 { "-inf".to_owned() } else { format!("{low:?}") };
    let whole = if low == 0.0 { String::new() } else { format!(", {{ value = {value}, every = 7 }}") };
    let half = (columns / 2).max(1);
    draw.replace(" }", &format!(", specials = [{{ value = {value}, count = {half} }}{whole}] }}"))
}

/// The bounds of a uniform distribution of which these are the smallest and the largest value drawn.
fn tidy(min: f64, max: f64) -> (f64, f64) {
    let near = |value: f64, whole: f64| (value - whole).abs() < 0.02 * (max - min);
    let low = if near(min, min.round()) { min.round() } else { rounded(min) };
    let high = if near(max, max.round()) { max.round() } else { rounded(max) };
    if high > low { (low, high - low) } else { (min, max - min) }
}

/// Two digits: what was drawn once says no more of a distribution.
fn rounded(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}

/// A number as expressions have it: without an exponent.
pub(super) fn float(value: f64) -> String {
    value.to_string()
}

fn sizes(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(|size| quoted(&size.to_string())).collect();
    // A single number is a tensor of one element.
    if sizes.is_empty() { "[\"1\"]".to_owned() } else { format!("[{}]", sizes.join(", ")) }
}

/// A string of TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests;
