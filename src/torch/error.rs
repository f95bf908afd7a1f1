//! What can go wrong with PyTorch, in one sentence each.

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation's or problem's file.
    File,
    /// The machine: no Python, no PyTorch, no memory.
    Machine,
}

/// Why PyTorch has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TorchError {
    /// There is no such program, or it ended before it said anything.
    #[error("PyTorch cannot be asked: {python} {why}")]
    Start {
        /// The interpreter that was started.
        python: String,
        /// What happened.
        why: String,
    },
    /// The interpreter has no PyTorch.
    #[error("PyTorch cannot be asked: {0}")]
    NoTorch(String),
    /// The user's code does something that makes it no operation, or raises.
    #[error("{0}")]
    Code(String),
    /// The user's code did something after which its process can use the GPU no more.
    #[error("{0}; its process lost the GPU by that, and another one answers the next question")]
    Lost(String),
    /// What is asked for cannot be a target, although nothing is wrong with the file.
    #[error("this cannot be a target: {0}")]
    Target(String),
    /// It did not end in time.
    #[error("{file} did not end within {seconds} s, {doing}; PyTorch was stopped")]
    Time {
        /// The user's file.
        file: String,
        /// What it was asked for.
        doing: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The process died.
    #[error("PyTorch died, {doing} ({file}): {how}")]
    Died {
        /// The user's file.
        file: String,
        /// What it was asked for.
        doing: &'static str,
        /// Of what, as far as it is known.
        how: String,
    },
    /// Something between here and there.
    #[error("talking to PyTorch: {0}")]
    Talk(String),
}

impl TorchError {
    /// Whose fault it is.
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self {
            Self::Code(_) | Self::Lost(_) | Self::Target(_) | Self::Time { .. } => Fault::File,
            Self::Start { .. } | Self::NoTorch(_) | Self::Died { .. } | Self::Talk(_) => Fault::Machine,
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::Start { .. } | Self::NoTorch(_) => {
                "name a Python that has it with --python or $WARPSMITH_PYTHON (`pip install torch` into a virtual environment)"
            }
            Self::Time { .. } => "$WARPSMITH_TORCH_SECONDS allows more",
            Self::Target(_) | Self::Code(_) | Self::Lost(_) => {
                "docs/pytorch-operations.md says what a problem file may do, docs/pytorch-models.md what a model"
            }
            Self::Died { .. } | Self::Talk(_) => "the next question starts it again",
        }
    }
}
