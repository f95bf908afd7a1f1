//! What is said between this program and PyTorch: lines of JSON. Tensors are in files that travel beside them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bound::{Measured, Parts};
use super::counts::Counts;
use crate::backend::Lent;
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
    /// The GPU, by its name, on which it computes.
    pub gpu: Option<String>,
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
    /// The GPU that it computes on, as PyTorch calls it.
    pub gpu: Option<String>,
}

/// A question.
#[derive(Debug, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub(super) enum Ask<'a> {
    /// Answers on another line too. Files: the line.
    Join,
    /// Reads a function or a problem, to be asked about by its id.
    Load { id: &'a str, file: &'a str, source: &'a str },
    /// Evaluates it in float64, which is kept for the next question, and eagerly, which is measured. Files: inputs.
    Evaluate {
        id: &'a str,
        file: &'a str,
        inputs: Region,
        tensors: Vec<Tensor<'a>>,
        numbers: &'a [(String, Value)],
        outputs: &'a [Out],
        /// Whether it is wanted for inputs in two parts of bfloat16 too.
        split: bool,
    },
    /// Compares a candidate's outputs, at these places, with what was just evaluated; elements that are off by more units than their output's
    /// limit (the bits of a double) are counted. Files: outputs.
    Compare { file: &'a str, given: Region, places: Vec<usize>, outputs: &'a [Out], limits: Vec<u64> },
    /// Measures answers that have nothing to do with the second inputs: those of the first among them. Files: inputs, others.
    Trivial {
        id: &'a str,
        file: &'a str,
        inputs: Region,
        others: Region,
        tensors: Vec<Tensor<'a>>,
        numbers: &'a [(String, Value)],
        outputs: &'a [Out],
    },
    /// Changes an element of each of these inputs (by their places), to see what it reaches. Files: inputs.
    Reach {
        id: &'a str,
        file: &'a str,
        inputs: Region,
        tensors: Vec<Tensor<'a>>,
        numbers: &'a [(String, Value)],
        outputs: &'a [Out],
        changed: Vec<usize>,
    },
    /// Has the file draw its inputs from a seed; of each tensor that goes in its place, where it is wanted. Files: memory to write them to.
    Draw { id: &'a str, file: &'a str, seed: u64, memory: Region, places: Vec<Option<Place>> },
    /// Gets a way of computing it ready: compiled in a mode, or eagerly. Caches are as large as this. Files: inputs.
    Prepare {
        id: &'a str,
        file: &'a str,
        inputs: Region,
        /// Of each copy of the inputs.
        copies: Vec<Vec<Tensor<'a>>>,
        numbers: &'a [(String, Value)],
        way: &'a str,
        mode: Option<&'a str>,
        cold_bytes: u64,
    },
    /// Times so many calls of a way that is ready.
    Block { file: &'a str, way: &'a str, calls: usize },
    /// Answers when none of its threads runs on the processor any more.
    Rest,
    /// Gives up what was got ready, and its memory.
    Forget { file: &'a str },
    /// Looks at a problem file; with `values` at the values of its tensors too.
    Describe { file: &'a str, source: &'a str, values: bool },
}

impl Ask<'_> {
    /// For a sentence: PyTorch died, ...
    pub(super) const fn doing(&self) -> &'static str {
        match self {
            Self::Join => "answering another process",
            Self::Load { .. } => "reading the file",
            Self::Evaluate { .. } | Self::Trivial { .. } | Self::Reach { .. } => "evaluating it",
            Self::Compare { .. } => "comparing results",
            Self::Draw { .. } => "drawing its inputs",
            Self::Prepare { .. } => "getting ready to be timed",
            Self::Block { .. } | Self::Forget { .. } | Self::Rest => "being timed",
            Self::Describe { .. } => "describing it",
        }
    }

    /// The user's file.
    pub(super) const fn file(&self) -> &str {
        match self {
            Self::Load { file, .. }
            | Self::Evaluate { file, .. }
            | Self::Compare { file, .. }
            | Self::Draw { file, .. }
            | Self::Trivial { file, .. }
            | Self::Reach { file, .. }
            | Self::Prepare { file, .. }
            | Self::Block { file, .. }
            | Self::Forget { file }
            | Self::Describe { file, .. } => file,
            Self::Join | Self::Rest => "",
        }
    }
}

/// Memory that travels as files: how these make up one stretch of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Region {
    /// Whether it is a device's.
    pub device: bool,
    /// Of each file the place in the stretch, and its length.
    pub pieces: Vec<(usize, usize)>,
}

impl Region {
    pub(super) fn of(lent: &Lent) -> Self {
        Self { device: lent.device, pieces: lent.pieces.iter().map(|piece| (piece.at, piece.bytes)).collect() }
    }
}

/// An input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: &'static str,
    /// `None` where it is absent.
    pub shape: Option<Vec<usize>>,
    /// Its first byte in the inputs.
    pub at: usize,
}

/// Where a tensor is to be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Place {
    /// Its first byte.
    pub at: usize,
    pub dtype: &'static str,
    pub elements: usize,
}

/// An output.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Out {
    pub name: String,
    pub dtype: &'static str,
    pub elements: usize,
    /// Elements of a row.
    pub row: usize,
    /// Its type's roundoff, largest finite value, and what a result near zero may lose.
    pub u: f64,
    pub largest: f64,
    pub underflow: f64,
}

/// How far an output is from what is right.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Far {
    /// Bits of its four parts.
    parts: [u64; 4],
    /// Bits of rms(d) / rms(r).
    rms: [u64; 1],
    at: usize,
    misplaced: u64,
    /// Elements that are off by more than was asked about.
    pub outside: u64,
    /// Elements that are off by half of what they are.
    lost: u64,
    /// Of 16 bits those that are not the nearest number of their type.
    strayed: u64,
    /// Bits of the worst element and of what belongs there.
    values: [u64; 2],
}

impl Far {
    /// The same with numbers for bits, which JSON cannot hold where they are not finite.
    pub(super) const fn measured(&self) -> Measured {
        let [tensor, row, element, bias] = self.parts;
        let [tensor, row] = [f64::from_bits(tensor), f64::from_bits(row)];
        Measured {
            parts: Parts { tensor, row, element: f64::from_bits(element), bias: f64::from_bits(bias) },
            worst_at: self.at,
            misplaced: self.misplaced,
            counts: Counts { lost: self.lost, strayed: self.strayed },
            relative_rms: f64::from_bits(self.rms[0]),
            got: f64::from_bits(self.values[0]),
            want: f64::from_bits(self.values[1]),
        }
    }
}

/// What [`Ask::Evaluate`] has to say, of each output.
#[derive(Debug, Deserialize)]
pub(super) struct Evaluated {
    /// Of eager PyTorch.
    pub eager: Vec<Far>,
    /// Of inputs in two parts of bfloat16, where that was asked for.
    #[serde(default)]
    pub split: Option<Vec<Far>>,
    /// Whether a result in double precision is NaN.
    pub undefined: bool,
    /// Whether all inputs are finite.
    pub finite: bool,
    /// Whether there is attention in it that hides some of its keys.
    pub masked: bool,
}

impl Evaluated {
    /// Why these inputs tell nothing of a kernel; those that are no more than `ordinary` tell something also where they are not finite, as a
    /// mask of infinities is not.
    pub(super) fn tells_nothing(&self, ordinary: bool) -> Option<&'static str> {
        // A NaN that no input holds: the function is not defined there.
        if self.finite && self.undefined {
            return Some("it is not defined there: the result is NaN in double precision");
        }
        (self.masked && !self.finite && !ordinary)
            .then_some("what is not finite behind attention's mask is NaN or nothing, by PyTorch's choice of algorithm")
    }
}

/// What [`Ask::Compare`] has to say, of each output.
#[derive(Debug, Deserialize)]
pub(super) struct Compared {
    pub given: Vec<Far>,
}

/// What [`Ask::Trivial`] has to say, of each output: of zeros, of the mean everywhere, of other inputs' results, of copies of inputs.
#[derive(Debug, Deserialize)]
pub(super) struct Guessed {
    pub guesses: Vec<Vec<Far>>,
}

/// What [`Ask::Reach`] has to say.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Reached {
    /// Elements of an input of which an element of each output is made, on average; zero where nothing that was tried changed any.
    pub reach: Vec<f64>,
    /// Whether it has products of matrices or convolutions.
    pub products: bool,
}

/// The name of a type.
pub(super) const fn type_name(stored: Stored) -> &'static str {
    match stored {
        Stored::F16 => "f16",
        Stored::Bf16 => "bf16",
        Stored::F32 => "f32",
        Stored::I64 => "i64",
        Stored::I32 => "i32",
        Stored::U8 => "u8",
        Stored::I8 => "i8",
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
    /// µs.
    pub us: f64,
    /// Whether it is replayed as a CUDA graph.
    #[serde(default)]
    pub graph: bool,
    /// Whether Inductor may have, or without them had, patterns that hand its steps to what it has for them.
    #[serde(default)]
    pub lowers: bool,
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
    /// Scale and shift of the normal values that these are where those below zero are made zero, as behind a ReLU; none where they are not like that.
    #[serde(default)]
    pub rectified: Option<[f64; 2]>,
    /// Whether they say where groups of rows end, in order and up to the largest.
    #[serde(default)]
    pub ends: bool,
    /// The number far below these that hides scores, of which there are as well; 0 stands for -infinity.
    #[serde(default)]
    pub hidden: Option<f64>,
}
