//! One pass through a model as a list of calls.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Memory, ModelConfig, ModelError, Slots};
use crate::op::{Dtype, Shape, TargetShape};

/// The pass asked for: a prefill of `batch` sequences of `seq` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pass {
    /// Sequences.
    pub batch: u64,
    /// Tokens of each.
    pub seq: u64,
    /// Element type of weights and activations.
    pub dtype: Dtype,
    /// Only the first so many layers (the embedding and the output projection stay), or all.
    pub layers: Option<u64>,
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
    /// The tensor of the logits, `[batch, seq, vocab]`.
    pub output: usize,
    /// What a reader should know, a sentence each.
    pub notes: Vec<String>,
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
            TensorKind::Tokens { .. } => self.elements() * 8,
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
    /// cos(position × theta^(-2j / dim)) at `[position, j]`.
    RotaryCos {
        /// Base of the frequencies.
        theta: f64,
    },
    /// The same with sin.
    RotarySin {
        /// Base of the frequencies.
        theta: f64,
    },
    /// Written by a node, read by later ones.
    Activation,
}

impl TensorKind {
    /// Whether a node writes it.
    #[must_use]
    pub const fn is_activation(self) -> bool {
        matches!(self, Self::Activation)
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

/// Steps of a model that are not targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Glue {
    /// `y[i, :] = table[tokens[i], :]`; arguments tokens, table, y.
    Embedding {
        /// Number of tokens in the pass.
        tokens: u64,
        /// Width of a row.
        width: u64,
    },
    /// `y = a + b`, rounded once; arguments a, b, y.
    Add {
        /// Number of elements.
        elements: u64,
    },
}

impl Glue {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding { .. } => "embedding",
            Self::Add { .. } => "residual add",
        }
    }

    /// The sizes in tables.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Self::Embedding { tokens, width } => format!("{tokens}x{width}"),
            Self::Add { elements } => elements.to_string(),
        }
    }

    /// The arguments' names, in the order of the C function's.
    #[must_use]
    pub const fn arguments(self) -> [&'static str; 3] {
        match self {
            Self::Embedding { .. } => ["tokens", "table", "y"],
            Self::Add { .. } => ["a", "b", "y"],
        }
    }

    /// Bytes read and written, each tensor once (of the table, the rows that are looked up).
    #[must_use]
    pub const fn bytes(self, dtype: Dtype) -> (u64, u64) {
        let size = dtype.bytes() as u64;
        match self {
            Self::Embedding { tokens, width } => (tokens * 8 + tokens * width * size, tokens * width * size),
            Self::Add { elements } => (2 * elements * size, elements * size),
        }
    }
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
    /// window, sizes that no index can count.
    pub fn build(config: &ModelConfig, pass: Pass) -> Result<Self, ModelError> {
        super::llama::build(config, pass)
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
        let is_weight = |t: &&Tensor| matches!(t.kind, TensorKind::Weight { .. } | TensorKind::NormWeight);
        self.tensors.iter().filter(is_weight).map(Tensor::elements).sum()
    }
}
