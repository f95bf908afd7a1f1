//! The steps of a model between its operations, none of them a target.

use crate::backend::{Backend, BuildError, Step};
use crate::model::Glue;
use crate::op::Dtype;

/// The backend's name for it.
pub(super) const fn step(glue: Glue) -> Step {
    match glue {
        Glue::Embedding { .. } => Step::Embedding,
        Glue::Add { .. } => Step::Add,
    }
}

/// The sizes that a step's function takes after its pointers.
pub(super) fn sizes(glue: Glue) -> Vec<i64> {
    match glue {
        Glue::Embedding { tokens, width } => vec![tokens as i64, width as i64],
        Glue::Add { elements } => vec![elements as i64],
    }
}

/// One image for each step.
pub(super) fn images<B: Backend>(backend: &B, dtype: Dtype) -> Result<Vec<(Step, B::Image)>, BuildError> {
    Step::ALL.into_iter().map(|step| Ok((step, backend.glue(step, dtype)?))).collect()
}
