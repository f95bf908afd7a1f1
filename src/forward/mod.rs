//! Running a model's graph on a backend.
//!
//! [`Forward::prepare`] compiles, places and draws; a [`Forward`] then runs passes for as many sets of kernels as it
//! was given. [`rounds`] and [`compare`] decide what to run, behind [`Timed`] and [`Contest`].

mod checkpoint;
mod contest;
mod glue;
mod measure;
mod output;
mod place;
mod run;
mod task;
#[cfg(test)]
mod tests;
mod units;
mod weights;

use crate::backend::{BuildError, Fault, MemoryError, StartError};
use crate::kernel::KernelError;
use crate::model::ModelError;
use crate::op::OpError;
pub use contest::{Block, Comparison, Contest, Sessions, Side, compare, compare_times};
pub use measure::{Effort, Rounds, Stretch, Timed, rounds};
pub use output::{OutputCheck, bound, compare_outputs};
pub use run::{Forward, Recipe};
pub use task::{CompareTask, Depth, MeasureTask, ModelTask, contest, measure};
pub use units::KernelSet;

/// Why a forward pass could not be prepared or did not finish.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The model does not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model calls an operation whose files are not there.
    #[error("{site} needs the operation `{op}`, which has no reference/{op}.toml")]
    NoOperation {
        /// The first site that calls it.
        site: String,
        /// The operation.
        op: String,
    },
    /// The model calls an operation for which there is no kernel.
    #[error("{site} needs a kernel for `{op}`, and kernels/ has none for this device")]
    NoKernel {
        /// The first site that calls it.
        site: String,
        /// The operation.
        op: String,
    },
    /// The operation's file says otherwise than the model about a tensor.
    #[error("{site}: {what}; reference/{op}.toml does not describe what the model calls")]
    Signature {
        /// The site.
        site: String,
        /// The operation.
        op: String,
        /// What differs.
        what: String,
    },
    /// An operation's formula fails at the model's shape.
    #[error("{site}: {source}")]
    Operation {
        /// The site.
        site: String,
        /// What failed.
        source: Box<OpError>,
    },
    /// The kernel does not serve the model's shape.
    #[error("{site}: {source}")]
    Kernel {
        /// The site.
        site: String,
        /// What failed.
        source: Box<KernelError>,
    },
    /// A kernel does not compile.
    #[error("{site}: {source}")]
    Compile {
        /// The site, or the forward pass's own code.
        site: String,
        /// What failed.
        source: BuildError,
    },
    /// The memory is not to be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The process that runs the kernels did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A call did not end well.
    #[error("{site}: {fault}")]
    Call {
        /// The site, or "the whole pass".
        site: String,
        /// How it ended.
        fault: Fault,
    },
    /// Somebody asked to stop.
    #[error("cancelled")]
    Cancelled,
}

impl ForwardError {
    /// What a failed compilation means for the site that needs it.
    fn build(site: &str, source: BuildError) -> Self {
        match source {
            BuildError::Cancelled => Self::Cancelled,
            source => Self::Compile { site: site.to_owned(), source },
        }
    }
}
