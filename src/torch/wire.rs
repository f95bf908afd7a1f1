//! What is said between this program and PyTorch: lines of JSON. Tensors are in files that travel beside them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::op::Stored;

/// The first thing it is told.
#[derive(Debug, Serialize)]
pub(super) struct Setup {
    /// Our process, with which it ends.
    pub parent: u32,
    /// Threads that PyTorch computes with.
    pub threads: usize,
    /// Bytes that user code may have beyond PyTorch's own.
    pub memory: u64,
}

/// The first thing it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// PyTorch's version.
    pub torch: String,
    /// Python's version.
    pub python: String,
    /// Threads that it computes with.
    pub threads: usize,
}

/// A question.
#[derive(Debug, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(super) enum Ask<'a> {
    /// Reads a function or a problem, to be asked about by its id.
    Load { id: &'a str, file: &'a str, source: &'a str },
    /// Evaluates it in float64 and eagerly. Files: inputs, results.
    Evaluate {
        id: &'a str,
        file: &'a str,
        tensors: Vec<Tensor<'a>>,
        numbers: &'a [(String, Value)],
        outputs: Vec<Out<'a>>,
    },
    /// Times it, compiled in a mode or eagerly. Files: inputs.
    Time {
        id: &'a str,
        file: &'a str,
        tensors: Vec<Tensor<'a>>,
        numbers: &'a [(String, Value)],
        mode: Option<&'a str>,
        seconds: f64,
    },
    /// Looks at a problem file; with `values` at the values of its tensors too.
    Describe { file: &'a str, source: &'a str, values: bool },
}

impl Ask<'_> {
    /// For a sentence: PyTorch died, ...
    pub(super) const fn doing(&self) -> &'static str {
        match self {
            Self::Load { .. } => "reading the file",
            Self::Evaluate { .. } => "evaluating it",
            Self::Time { .. } => "being timed",
            Self::Describe { .. } => "describing it",
        }
    }

    /// The user's file.
    pub(super) const fn file(&self) -> &str {
        match self {
            Self::Load { file, .. }
            | Self::Evaluate { file, .. }
            | Self::Time { file, .. }
            | Self::Describe { file, .. } => file,
        }
    }
}

/// An input in the file of inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: &'static str,
    /// `None` where it is absent.
    pub shape: Option<Vec<usize>>,
    /// Its first byte.
    pub at: usize,
}

/// An output in the file of results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Out<'a> {
    pub name: &'a str,
    pub dtype: &'static str,
    pub elements: usize,
    /// First byte of the doubles.
    pub right: usize,
    /// First byte of eager PyTorch's result in the output's type.
    pub eager: usize,
    /// First byte of the doubles for inputs in two parts of bfloat16, where these are asked for: of all outputs, or of none.
    pub split: Option<usize>,
}

/// The name of a type.
pub(super) const fn type_name(stored: Stored) -> &'static str {
    match stored {
        Stored::F16 => "f16",
        Stored::Bf16 => "bf16",
        Stored::F32 => "f32",
        Stored::I64 => "i64",
    }
}

/// An answer that is none.
#[derive(Debug, Deserialize)]
pub(super) struct Refusal {
    pub kind: String,
    pub what: String,
}

/// Any answer.
#[derive(Debug, Deserialize)]
pub(super) struct Reply {
    #[serde(default)]
    pub error: Option<Refusal>,
    #[serde(flatten)]
    pub rest: Value,
}

/// How long a call takes.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Timed {
    /// µs, the median.
    pub us: f64,
    /// Of so many calls.
    pub calls: u64,
}

/// A problem file as PyTorch sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Described {
    /// What `forward` takes, in order, then the floating parameters and buffers.
    pub inputs: Vec<Argument>,
    /// What it gives.
    pub outputs: Vec<Given>,
    /// By PyTorch's own counter, which knows products and convolutions only.
    pub flops: u64,
    /// Operators by which inputs get a structure that values drawn one by one would not have.
    pub structure: Vec<String>,
}

/// Something that goes in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum Argument {
    /// A tensor of `get_inputs`.
    Input(TensorForm),
    /// A parameter or buffer.
    State(TensorForm),
    /// A number with a point.
    Scalar {
        /// The argument's name.
        name: String,
        /// Its value.
        value: f64,
    },
    /// Anything else, which stays as it is.
    Constant {
        /// The argument's name.
        name: String,
        /// Its value, as Python writes it.
        text: String,
    },
}

/// A tensor that goes in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorForm {
    /// Its name in the file.
    pub name: String,
    /// Sizes; none for a single number.
    pub shape: Vec<usize>,
    /// PyTorch's name of the type.
    pub dtype: String,
    /// Whether it is row-major without gaps.
    pub contiguous: bool,
    /// What its values are like, where they were drawn.
    pub figures: Option<Figures>,
}

/// A tensor that comes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Sizes; none for a single number.
    pub shape: Vec<usize>,
    /// PyTorch's name of the type.
    pub dtype: String,
}

/// What values are like.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The share of zeros.
    pub zeros: f64,
    /// Whether all are whole numbers.
    pub whole: bool,
    /// Of how many.
    pub count: u64,
}
