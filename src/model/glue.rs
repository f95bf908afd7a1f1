//! What a model does between its operations.

use serde::{Deserialize, Serialize};

use crate::op::Dtype;

/// Steps of a model that are not targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Glue {
    /// `y[i, :] = table[ids[i], :]`; arguments ids, table, y.
    Embedding {
        /// Number of tokens in the pass.
        tokens: u64,
        /// Width of a row.
        width: u64,
    },
    /// `y[i, :] = x[i, :] + table[ids[i], :]`, rounded once; arguments x, ids, table, y.
    AddedEmbedding {
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
    /// `y = x Φ(x)`, Φ the normal distribution's (Hendrycks and Gimpel 2016); arguments x, y.
    Gelu {
        /// Number of elements.
        elements: u64,
    },
    /// `y = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`, the same nearly; arguments x, y.
    GeluTanh {
        /// Number of elements.
        elements: u64,
    },
    /// `y = tanh(x)`; arguments x, y.
    Tanh {
        /// Number of elements.
        elements: u64,
    },
    /// `q[i, :], k[i, :], v[i, :] = x[i, :]` in thirds; arguments x, q, k, v.
    Split {
        /// Number of tokens in the pass.
        tokens: u64,
        /// Width of a row of q.
        width: u64,
    },
    /// `y[b, seq - 1, :] = x[b, :]`: a token's keys or values join those before; arguments x, y.
    Append {
        /// Number of sequences.
        batch: u64,
        /// Tokens of each, the new one included.
        seq: u64,
        /// Width of a row.
        width: u64,
    },
    /// `y[b, :] = x[b, 0, :]`; arguments x, y.
    FirstToken {
        /// Number of sequences.
        batch: u64,
        /// Tokens of each.
        seq: u64,
        /// Width of a row.
        width: u64,
    },
}

impl Glue {
    /// The name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding { .. } => "embedding",
            Self::AddedEmbedding { .. } => "added embedding",
            Self::Add { .. } => "residual add",
            Self::Gelu { .. } => "gelu",
            Self::GeluTanh { .. } => "gelu (tanh)",
            Self::Tanh { .. } => "tanh",
            Self::Split { .. } => "split q, k, v",
            Self::Append { .. } => "append to cache",
            Self::FirstToken { .. } => "first token",
        }
    }

    /// The sizes in tables.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Self::Embedding { tokens, width } | Self::AddedEmbedding { tokens, width } => format!("{tokens}x{width}"),
            Self::Split { tokens, width } => format!("{tokens}x{}", 3 * width),
            Self::Append { batch, width, .. } | Self::FirstToken { batch, width, .. } => format!("{batch}x{width}"),
            Self::Add { elements }
            | Self::Gelu { elements }
            | Self::GeluTanh { elements }
            | Self::Tanh { elements } => elements.to_string(),
        }
    }

    /// The arguments' names, in the order of the function's.
    #[must_use]
    pub const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Embedding { .. } => &["ids", "table", "y"],
            Self::AddedEmbedding { .. } => &["x", "ids", "table", "y"],
            Self::Add { .. } => &["a", "b", "y"],
            Self::Split { .. } => &["x", "q", "k", "v"],
            Self::Gelu { .. }
            | Self::GeluTanh { .. }
            | Self::Tanh { .. }
            | Self::Append { .. }
            | Self::FirstToken { .. } => &["x", "y"],
        }
    }

    /// How many of the arguments, the last ones, are written.
    #[must_use]
    pub const fn outputs(self) -> usize {
        match self {
            Self::Split { .. } => 3,
            _ => 1,
        }
    }

    /// Bytes read and written, each tensor once (of a table, the rows that are looked up).
    #[must_use]
    pub const fn bytes(self, dtype: Dtype) -> (u64, u64) {
        let size = dtype.bytes() as u64;
        match self {
            Self::Embedding { tokens, width } => (tokens * 8 + tokens * width * size, tokens * width * size),
            Self::AddedEmbedding { tokens, width } => (tokens * 8 + 2 * tokens * width * size, tokens * width * size),
            Self::Add { elements } => (2 * elements * size, elements * size),
            Self::Gelu { elements } | Self::GeluTanh { elements } | Self::Tanh { elements } => {
                (elements * size, elements * size)
            }
            Self::Split { tokens, width } => (3 * tokens * width * size, 3 * tokens * width * size),
            Self::Append { batch, width, .. } | Self::FirstToken { batch, width, .. } => {
                (batch * width * size, batch * width * size)
            }
        }
    }
}
