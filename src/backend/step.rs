//! What a forward pass does beside its operations.

/// A step of the forward pass that is no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `y[r] = table[ids[r]]`: pointers ids, table, y; ints rows, width.
    Embedding,
    /// `y[r] = x[r] + table[ids[r]]`: pointers x, ids, table, y; ints rows, width.
    AddedEmbedding,
    /// `y = a + b`: pointers a, b, y; ints elements.
    Add,
    /// `y = x Φ(x)`: pointers x, y; ints elements.
    Gelu,
    /// `y = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`: pointers x, y; ints elements.
    GeluTanh,
    /// `y = tanh(x)`: pointers x, y; ints elements.
    Tanh,
    /// `q[r], k[r], v[r] = x[r]` in thirds: pointers x, q, k, v; ints rows, width of a third.
    Split,
    /// `y[offset + r * to ..] = x[r * from ..]`, `width` elements of each row: pointers x, y; ints rows, width, from, to, offset.
    CopyRows,
    /// Nothing at all: measures what starting a call costs.
    Nothing,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Embedding,
        Self::AddedEmbedding,
        Self::Add,
        Self::Gelu,
        Self::GeluTanh,
        Self::Tanh,
        Self::Split,
        Self::CopyRows,
        Self::Nothing,
    ];

    /// The name of its function in every backend's code.
    #[must_use]
    pub const fn function(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::AddedEmbedding => "added_embedding",
            Self::Add => "add",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::Tanh => "hyperbolic_tangent",
            Self::Split => "split",
            Self::CopyRows => "copy_rows",
            Self::Nothing => "nothing",
        }
    }

    /// How many pointers its function takes, and how many integers after them.
    #[must_use]
    pub const fn arguments(self) -> (usize, usize) {
        match self {
            Self::Embedding => (3, 2),
            Self::AddedEmbedding | Self::Split => (4, 2),
            Self::Add => (3, 1),
            Self::Gelu | Self::GeluTanh | Self::Tanh => (2, 1),
            Self::CopyRows => (2, 5),
            Self::Nothing => (0, 0),
        }
    }
}
