//! Inductor's kernels for an operation, as a Triton kernel file: where a search begins that has no kernel yet.
//!
//! A process of the user's Python has torch.compile write its kernels for `reference(...)` on this GPU and stops it before any is
//! compiled (`trace.py`); reads the module that it has written as a launch plan (`read.py`); makes functions of the kernels that need
//! Triton alone (`alone.py`); and answers once. What became of it is put into a file here ([`file`]), and is judged like anything else.
//! Products of matrices and convolutions are its Triton templates (`template.py`), into which it puts what is around them. Where Inductor
//! calls a library on the way for anything else there is no file, and a sentence says what it calls.

mod file;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model::{About, ask_about, torch_name};
use super::{Python, TorchError};
use crate::backend::cuda::TRITON_READER;
use crate::op::{Dtype, OpSource, Operation, Role, Shape};
use file::{Written, kernel_file_of};

/// The program that asks Inductor.
const PROGRAM: &str = concat!(
    include_str!("pretend.py"),
    "\n\n",
    include_str!("template.py"),
    "\n\n",
    include_str!("trace.py"),
    "\n\n",
    include_str!("read.py"),
    "\n\n",
    include_str!("alone.py"),
    "\n\n",
    include_str!("../unit.py"),
    "\n\n",
    include_str!("start.py")
);

/// A first use of torch.compile takes ten seconds on a GPU machine with a cold disk, each further one less than one.
const LIMIT: Duration = Duration::from_secs(240);
const LIMIT_OF_EACH: Duration = Duration::from_secs(60);

/// The GPU that Inductor writes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpu {
    /// One of this machine, by its number.
    Here(u32),
    /// None that is here: one of this compute capability, 90 for 9.0, as far as Inductor asks.
    Pretended(u32),
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// The text of a kernel file.
    Kernel(String),
    /// Why there is none, in a sentence.
    Nothing(String),
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    role: &'static str,
    shape: Vec<usize>,
    dtype: crate::op::ElementType,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Nothing { none: String },
    Written(Box<Written>),
}

/// What [`start`] tells of a kernel whose block sizes are the first that Inductor has, and why.
pub const UNCHOSEN: &str = "Inductor's own choice of block sizes cannot be had";

/// Has Inductor write kernels for operations that PyTorch evaluates, each for one type, in one process; `tell` hears what it is doing.
/// Block sizes are chosen as the way of torch.compile chooses them that a kernel must beat: those of max-autotune take some seconds a kernel.
///
/// # Errors
/// No Python, no PyTorch in it, or the process ended without an answer.
pub fn start(
    python: &Python,
    wanted: &[(&OpSource, Dtype)],
    gpu: Gpu,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Start>, TorchError> {
    let mut starts = Vec::new();
    let (mut asked, mut ops) = (Vec::new(), Vec::new());
    for (place, (source, dtype)) in wanted.iter().enumerate() {
        match source.operation().map_err(|error| error.to_string()).and_then(servable) {
            Ok(op) => {
                asked.push(serde_json::json!({
                    "source": source.python, "file": format!("{}.py", source.name), "tensors": tensors(&op), "scalars": scalars(&op), "dtype": torch_name(*dtype),
                    "bar": op.bar,
                }));
                ops.push((place, op, *dtype));
                starts.push(Start::Nothing(String::new()));
            }
            Err(why) => starts.push(Start::Nothing(why)),
        }
    }
    let Some((first, _)) = wanted.first().filter(|_| !ops.is_empty()) else { return Ok(starts) };
    let device = match gpu {
        Gpu::Here(number) => {
            serde_json::json!({"device": format!("cuda:{number}"), "pretend": null, "reader": TRITON_READER})
        }
        Gpu::Pretended(capability) => {
            serde_json::json!({"device": "cuda:0", "pretend": capability, "reader": TRITON_READER})
        }
    };
    let file = if wanted.len() == 1 { format!("{}.py", first.name) } else { format!("{} operations", wanted.len()) };
    let limit = LIMIT + LIMIT_OF_EACH * u32::try_from(ops.len()).unwrap_or(u32::MAX);
    let about = About { file: &file, doing: "having Inductor write kernels", limit: Some(limit) };
    let mut answers: Vec<Answer> = Vec::new();
    // A process ends early where one of these kernels goes astray: it could have nothing of the GPU any more.
    while answers.len() < asked.len() {
        let request = serde_json::json!({"asked": asked[answers.len()..], "device": device});
        let answer = ask_about(python, PROGRAM, request, about, tell)?;
        let some: Vec<Answer> = serde_json::from_str(&answer).map_err(|error| TorchError::Talk(error.to_string()))?;
        if some.is_empty() {
            return Err(TorchError::Talk("it answers nothing".to_owned()));
        }
        answers.extend(some);
    }
    for ((place, op, dtype), answer) in ops.iter().zip(answers) {
        starts[*place] = match answer {
            Answer::Nothing { none } => Start::Nothing(none),
            Answer::Written(written) => kernel_file_of(op, *dtype, &written).map_or_else(Start::Nothing, Start::Kernel),
        };
    }
    Ok(starts)
}

/// An operation that has one set of sizes, which Inductor writes into its kernels.
fn servable(op: Operation) -> Result<Operation, String> {
    if op.python.is_empty() {
        return Err(format!("{} is not written in PyTorch", op.name));
    }
    if let Some(symbol) = op.symbols.first() {
        return Err(format!(
            "{} has sizes that differ from shape to shape (`{symbol}`), and Inductor's kernels are for one",
            op.name
        ));
    }
    Ok(op)
}

/// Numbers that the operation takes beside its tensors: Inductor's kernels get them by value.
fn scalars(op: &Operation) -> Vec<serde_json::Value> {
    let values = op.scalars(&Shape::default()).unwrap_or_default();
    let named = op.scalars.iter().zip(values);
    named.map(|(scalar, value)| serde_json::json!({"name": scalar.name, "value": value})).collect()
}

fn tensors(op: &Operation) -> Vec<Tensor<'_>> {
    let shape = Shape::default();
    let form = |tensor: &'_ crate::op::TensorSpec| op.dimensions(tensor, &shape).unwrap_or_default();
    let role = |role| if role == Role::Input { "input" } else { "output" };
    op.tensors
        .iter()
        .map(|tensor| Tensor { name: &tensor.name, role: role(tensor.role), shape: form(tensor), dtype: tensor.dtype })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn source(more: &str, symbols: &str) -> OpSource {
        let toml = format!(
            "name = \"twice\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = {symbols}\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {{}}\n\
             sweep = [{{}}]\nedges = []\nrandom = {{}}\n{more}[[tensors]]\nname = \"x\"\nrole = \"input\"\nshape = [\"8\", \"32\"]\ndtype = \"T\"\n\
             draw = {{ dist = \"normal\" }}\n[[tensors]]\nname = \"out\"\nrole = \"output\"\nshape = [\"8\", \"32\"]\ndtype = \"T\"\n"
        );
        OpSource {
            name: "twice".into(),
            toml,
            header: String::new(),
            python: "def reference(x):\n    return 2 * x\n".into(),
        }
    }

    #[test]
    fn an_operation_with_sizes_of_its_own_has_no_kernel_of_inductors_and_numbers_are_asked_about() {
        let scalar = "[[scalars]]\nname = \"s\"\nvalue = \"2\"\nothers = [\"1\"]\n";
        let op = source(scalar, "[]").operation().unwrap();
        assert_eq!(serde_json::to_value(scalars(&op)).unwrap(), serde_json::json!([{"name": "s", "value": 2.0}]));
        let none = Python::chosen(Some(std::path::Path::new("/no/such/python")));
        let asked = |source: &OpSource| start(&none, &[(source, Dtype::F32)], Gpu::Pretended(90), &mut |_| {});
        let sized = source("", "[\"n\"]");
        let sized = OpSource {
            toml: sized.toml.replace("smoke = {}", "smoke = { n = 1 }").replace("[{}]", "[{ n = 1 }]"),
            ..sized
        };
        let answers = asked(&sized).unwrap();
        assert!(matches!(&answers[..], [Start::Nothing(why)] if why.contains("`n`")), "{answers:?}");
        assert!(asked(&source("", "[]")).unwrap_err().to_string().contains("cannot be started"));
    }

    #[test]
    fn what_a_process_leaves_unanswered_is_asked_of_another_one() {
        let folder = tempfile::tempdir().unwrap();
        // It answers one question, as one does whose kernel went astray, and keeps a list of what it was asked about; in the end none.
        let script = folder.path().join("python");
        let text = "#!/bin/sh\nrequest=$(cat)\ncd \"$(dirname \"$0\")\"\n\
                    printf '%s' \"$request\" | grep -o '\"file\":\"[^\"]*' >> asked; echo >> asked\n\
                    answer=$(printf '%s' \"$request\" | sed 's/.*\"answer\":\"\\([^\"]*\\)\".*/\\1/')\n\
                    if [ -e mute ]; then echo '[]' > \"$answer\"; else echo '[{\"none\": \"lost\"}]' > \"$answer\"; fi\n";
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let python = Python::chosen(Some(&script));
        let some = ["one", "two", "three"].map(|name| {
            let source = source("", "[]");
            OpSource { name: name.into(), toml: source.toml.replace("twice", name), ..source }
        });
        let wanted = some.each_ref().map(|source| (source, Dtype::F32));
        let answers = start(&python, &wanted, Gpu::Here(0), &mut |_| {}).unwrap();
        assert!(answers.iter().all(|one| matches!(one, Start::Nothing(why) if why == "lost")), "{answers:?}");
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap().replace("\"file\":\"", "");
        let lists: Vec<Vec<&str>> = asked.trim().split("\n\n").map(|list| list.lines().collect()).collect();
        assert_eq!(lists, [vec!["one.py", "two.py", "three.py"], vec!["two.py", "three.py"], vec!["three.py"]]);

        std::fs::write(folder.path().join("mute"), "").unwrap();
        let error = start(&python, &wanted, Gpu::Here(0), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("it answers nothing"), "{error}");
    }

    #[test]
    fn tensors_are_asked_about_with_the_sizes_that_kernels_see() {
        let op = source("", "[]").operation().unwrap();
        let said = serde_json::to_value(tensors(&op)).unwrap();
        assert_eq!(said[0], serde_json::json!({"name": "x", "role": "input", "shape": [8, 32], "dtype": "T"}));
        assert_eq!(said[1]["role"], "output");
    }
}
