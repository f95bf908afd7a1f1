//! One pass through a model as a list of calls.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Glue, Memory, ModelConfig, ModelError, Slots};
use crate::op::{Dtype, Shape, TargetShape};

/// The pass asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pass {
    /// What is run of each sequence.
    #[serde(default)]
    pub phase: Phase,
    /// Sequences.
    pub batch: u64,
    /// Tokens of each.
    pub seq: u64,
    /// Element type of weights and activations.
    pub dtype: Dtype,
    /// Only the first so many layers (what stands before and after them stays), or all.
    pub layers: Option<u64>,
}

/// What is run of each sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// All its tokens at once, as a prompt is read
    #[default]
    Prefill,
    /// Its last token alone, against the keys and values of the others, as text is written
    Decode,
}

impl Pass {
    /// Tokens of each sequence that go through the model.
    #[must_use]
    pub const fn queries(&self) -> u64 {
        match self.phase {
            Phase::Prefill => self.seq,
            Phase::Decode => 1,
        }
    }

    /// Tokens of all sequences that go through the model.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.batch * self.queries()
    }

    /// The position of the first of them in its sequence.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.seq - self.queries()
    }

    /// Its sizes in a few words.
    #[must_use]
    pub fn label(&self) -> String {
        match self.phase {
            Phase::Prefill => format!("{}x{} tokens", self.batch, self.seq),
            Phase::Decode => format!("{}x1 tokens after {}", self.batch, self.first()),
        }
    }
}

/// Calls in order, and the tensors between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The model's name.
    pub model: String,
    /// The pass.
    pub pass: Pass,
    /// Layers of the model that this graph runs.
    pub layers: u64,
    /// Layers the model has.
    pub layers_of_model: u64,
    /// All tensors; nodes name them by index.
    pub tensors: Vec<Tensor>,
    /// Calls, in the order they run.
    pub nodes: Vec<Node>,
    /// The tensor of what the model says, in rows of its last dimension.
    pub output: usize,
    /// What a row of it is.
    pub answer: Answer,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
}

/// What a model says in each row of its output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A score for each token that could come next.
    #[default]
    NextToken,
    /// A score for each token that could stand at this place.
    TokenHere,
    /// A sequence as a vector.
    Vector,
}

/// A tensor of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name, as `layers.3.q_proj.weight`.
    pub name: String,
    /// Dimensions, row-major and contiguous.
    pub dims: Vec<u64>,
    /// Where its values come from.
    pub kind: TensorKind,
}

impl Tensor {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Bytes in memory when the pass has dtype `dtype`.
    #[must_use]
    pub fn bytes(&self, dtype: Dtype) -> u64 {
        match self.kind {
            _ if self.kind.is_index() => self.elements() * 8,
            _ => self.elements() * dtype.bytes() as u64,
        }
    }
}

/// Where a tensor's values come from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// Token ids in `0..vocab`, 64-bit integers.
    Tokens {
        /// Number of tokens.
        vocab: u64,
    },
    /// A matrix or a bias, drawn with mean 0 and standard deviation `sigma`.
    Weight {
        /// Standard deviation.
        sigma: f64,
    },
    /// The weight of a norm, drawn near 1.
    NormWeight,
    /// Positions, 64-bit integers: `first`, `first + 1`, … in each row.
    Positions {
        /// The first of a row.
        first: u64,
    },
    /// cos(position × theta^(-2j / dim)) at `[position - first, j]`.
    RotaryCos {
        /// Base of the frequencies.
        theta: f64,
        /// The first position.
        first: u64,
    },
    /// The same with sin.
    RotarySin {
        /// Base of the frequencies.
        theta: f64,
        /// The first position.
        first: u64,
    },
    /// Keys or values of earlier tokens, `[batch, seq, width]`, drawn with mean 0 and standard deviation 1. A node writes
    /// those of the last token, the same in every pass.
    Cache,
    /// Written by a node, read by later ones.
    Activation,
}

impl TensorKind {
    /// Whether it holds nothing before a node writes it.
    #[must_use]
    pub const fn is_activation(self) -> bool {
        matches!(self, Self::Activation)
    }

    /// Whether kernels may write to it.
    #[must_use]
    pub const fn is_written(self) -> bool {
        matches!(self, Self::Activation | Self::Cache)
    }

    /// Whether it belongs to the model rather than to the pass.
    #[must_use]
    pub const fn is_weight(self) -> bool {
        matches!(self, Self::Weight { .. } | Self::NormWeight)
    }

    /// Whether its elements are 64-bit integers, whatever the pass's dtype.
    #[must_use]
    pub const fn is_index(self) -> bool {
        matches!(self, Self::Tokens { .. } | Self::Positions { .. })
    }
}

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where in the model, as `layers.3.q_proj`.
    pub site: String,
    /// What is computed.
    pub work: Work,
    /// Its arguments; those an operation declares and that are not here are absent.
    pub tensors: Vec<Binding>,
}

impl Node {
    /// The tensor bound to the argument `name`.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<usize> {
        self.tensors.iter().find(|binding| binding.name == name).map(|binding| binding.tensor)
    }
}

/// An argument of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// The operation's name for it.
    pub name: &'static str,
    /// Index in [`Graph::tensors`].
    pub tensor: usize,
}

/// What a node computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Work {
    /// An operation, served by a kernel file.
    Op {
        /// Its name.
        op: &'static str,
        /// Every symbol's value.
        shape: Shape,
        /// Scalars whose value is the model's rather than the operation's own.
        scalars: BTreeMap<String, f32>,
    },
    /// What no operation computes; trusted code of the forward pass.
    Glue(Glue),
}

/// An operation and all the shapes at which the model calls it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The operation.
    pub op: String,
    /// Its shapes, with the number of calls in a pass.
    pub shapes: Vec<TargetShape>,
}

impl Graph {
    /// The graph of one pass.
    ///
    /// # Errors
    /// A pass that the model cannot make: nothing to run, more layers than there are, a sequence beyond a sliding
    /// window or a table of positions, an encoder that is asked to decode, sizes that no index can count.
    pub fn build(config: &ModelConfig, pass: Pass) -> Result<Self, ModelError> {
        super::build::graph(config, pass)
    }

    /// The calls grouped by operation and shape, each in the order of first appearance.
    #[must_use]
    pub fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<Target> = Vec::new();
        for node in &self.nodes {
            let Work::Op { op, shape, .. } = &node.work else { continue };
            let at = targets.iter().position(|target| target.op == *op).unwrap_or_else(|| {
                targets.push(Target { op: (*op).to_owned(), shapes: Vec::new() });
                targets.len() - 1
            });
            let shapes = &mut targets[at].shapes;
            match shapes.iter_mut().find(|known| known.shape == *shape) {
                Some(known) => known.calls += 1,
                None => shapes.push(TargetShape { shape: shape.clone(), dtype: self.pass.dtype, calls: 1 }),
            }
        }
        targets
    }

    /// The nodes that call `op`.
    #[must_use]
    pub fn calls_of(&self, op: &str) -> Vec<usize> {
        let calls = |at: &usize| matches!(&self.nodes[*at].work, Work::Op { op: name, .. } if *name == op);
        (0..self.nodes.len()).filter(calls).collect()
    }

    /// Which activations share memory.
    #[must_use]
    pub fn slots(&self) -> Slots {
        Slots::plan(self)
    }

    /// What the pass needs in memory.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::of(self)
    }

    /// Number of weights, each counted once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().filter(|tensor| tensor.kind.is_weight()).map(Tensor::elements).sum()
    }
}
