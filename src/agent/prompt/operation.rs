//! What must be computed, as a prompt says it.

use std::fmt::Write as _;

use super::template::Values;
use super::{PromptError, fenced};
use crate::agent::Brief;
use crate::kernel::{Header, Language, headers_named};
use crate::op::{ElementType, OpError, Operation, Role, TargetShape};

/// Everything that follows from the operation and the kernel and is the same however short the prompt.
pub(super) fn describe(brief: &Brief) -> Result<Values, PromptError> {
    let wrong = |error: OpError| PromptError::Operation(error.to_string());
    let op = brief.source.operation().map_err(wrong)?;
    let language = brief.language();
    let cuda = language != Language::C;
    let mut values = Values::default();
    values.set("op", op.name.clone());
    values.set("language", languages(brief));
    values.set("summary", op.summary.clone());
    values.set("signature", if cuda { arguments(&op) } else { fenced::code(&op.c_function()) });
    values.set("shapes", shapes(brief, &op).map_err(wrong)?);
    values.set("flags", flags(brief));
    values.set("share", importance(brief.share));
    values.set("toml", fenced::code(&brief.source.toml));
    values.set("header", fenced::code(brief.source.oracle()));
    values.set("file", brief.file.clone());
    values.set(
        "standing",
        if brief.unwritten { UNWRITTEN.replace("BAR", op.bar.in_words()) } else { WRITTEN.to_owned() },
    );
    values.set("incumbent", fenced::code(&brief.incumbent));
    values.set("headers", if language == Language::Cuda { headers(&brief.incumbent) } else { String::new() });
    Ok(values)
}

/// The headers of ours that a CUDA file includes, each with its name.
fn headers(file: &str) -> String {
    let text = |header: &Header| format!("`{}`:\n\n{}", header.name, fenced::code(header.text));
    headers_named(file).iter().map(text).collect::<Vec<_>>().join("\n\n")
}

/// What the file is to which a change is asked for.
const WRITTEN: &str = "The best kernel so far, whole.";
const UNWRITTEN: &str = "There is no kernel yet: front matter and signature are right, the body is empty, and you write it. It is held \
                         against PyTorch alone: what is computed is the reference above, and what there is to beat is BAR, in pairs with your kernel. The first that is correct is gone on from even where it \
                         is slower; one that beats PyTorch is kept. It serves the types of its front matter, and `--against incumbent` means \
                         nothing yet.";

/// What a kernel is written in, for a sentence.
/// The language of the kernel, or all that it may be in.
fn languages(brief: &Brief) -> String {
    let own = brief.language();
    let others: Vec<&str> = brief.languages.iter().filter(|it| **it != own).map(|it| in_words(*it)).collect();
    match others.is_empty() {
        true => in_words(own).to_owned(),
        false => format!("{}, or as well in {}, then written anew as a whole", in_words(own), others.join(" or in ")),
    }
}

const fn in_words(language: Language) -> &'static str {
    match language {
        Language::C => "C",
        Language::Cuda => "CUDA C++ (device code and a launch plan)",
        Language::Triton => "Triton (`@triton.jit` functions and a launch plan, no host code)",
    }
}

/// Where the shapes are from, and what the operation matters there.
fn importance(share: Option<f64>) -> String {
    match share {
        Some(share) => format!("They are the model's own, and this operation has {} of its time.", percent(share)),
        None => "They are the user's choice: the kernel is improved by itself, outside of any model.".to_owned(),
    }
}

/// A share as whole percent, or tenths where it is small.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// The names that the `args` of a launch may take.
fn arguments(op: &Operation) -> String {
    let mut text = String::new();
    for tensor in &op.tensors {
        let sizes: Vec<&str> = tensor.shape.iter().map(|size| size.text()).collect();
        let role = if tensor.role == Role::Input { "input" } else { "output" };
        let absent = if tensor.present.is_some() { ", may be absent (NULL)" } else { "" };
        let element = match tensor.dtype {
            ElementType::Case => "T",
            ElementType::F32 => "f32",
            ElementType::I64 => "i64",
            ElementType::I32 => "i32",
            ElementType::U8 => "u8",
            ElementType::I8 => "i8",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- `{}`: {role} [{}] of {element}{absent}", tensor.name, sizes.join(", "));
    }
    let _ = write!(text, "- symbols (`long long`): {}", op.symbols.join(", "));
    if !op.scalars.is_empty() {
        let scalars: Vec<String> =
            op.scalars.iter().map(|scalar| format!("{} = {}", scalar.name, scalar.value)).collect();
        let _ = write!(text, "\n- scalars (`float`): {}", scalars.join(", "));
    }
    text
}

/// The target's shapes as flags of `warpsmith bench`.
fn flags(brief: &Brief) -> String {
    let shape = |target: &TargetShape| format!("--shape {}", target.shape.to_string().replace(' ', ","));
    let shapes: Vec<String> = brief.shapes.iter().map(shape).collect();
    let dtype = brief.shapes.first().map_or(String::new(), |target| format!(" --dtype {}", target.dtype));
    format!("{}{dtype}", shapes.join(" "))
}

/// The target's shapes with what they compulsorily move and compute.
fn shapes(brief: &Brief, op: &Operation) -> Result<String, OpError> {
    let mut text = String::from("| shape | dtype | calls | MB read | MB written | Mflop |\n|---|---|---|---|---|---|");
    for target in &brief.shapes {
        let read = op.read_bytes(&target.shape, target.dtype)? as f64 / 1e6;
        let written = op.write_bytes(&target.shape, target.dtype)? as f64 / 1e6;
        let flops = op.flops(&target.shape)? as f64 / 1e6;
        let _ = write!(
            text,
            "\n| {} | {} | {} | {read:.3} | {written:.3} | {flops:.3} |",
            target.shape, target.dtype, target.calls
        );
    }
    Ok(text)
}
