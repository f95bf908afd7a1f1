//! The steps of a model between its operations, none of them a target.

use crate::backend::{BuildError, Step, Toolchain};
use crate::model::{Glue, Graph, Work};

/// The backend's name for it, and the sizes that its function takes after its pointers.
pub(super) fn step(glue: Glue) -> (Step, Vec<u64>) {
    match glue {
        Glue::Embedding { tokens, width } => (Step::Embedding, vec![tokens, width]),
        Glue::AddedEmbedding { tokens, width } => (Step::AddedEmbedding, vec![tokens, width]),
        Glue::Add { elements } => (Step::Add, vec![elements]),
        Glue::Gelu { elements } => (Step::Gelu, vec![elements]),
        Glue::GeluTanh { elements } => (Step::GeluTanh, vec![elements]),
        Glue::Tanh { elements } => (Step::Tanh, vec![elements]),
        Glue::Split { tokens, width } => (Step::Split, vec![tokens, width]),
        Glue::Append { batch, seq, width } => {
            (Step::CopyRows, vec![batch, width, width, seq * width, (seq - 1) * width])
        }
        Glue::FirstToken { batch, seq, width } => (Step::CopyRows, vec![batch, width, seq * width, width, 0]),
    }
}

/// One image for each step of the graph, and one for nothing at all.
pub(super) fn images<B: Toolchain>(backend: &B, graph: &Graph) -> Result<Vec<(Step, B::Image)>, BuildError> {
    let has =
        |step: Step| graph.nodes.iter().any(|node| matches!(node.work, Work::Glue(glue) if self::step(glue).0 == step));
    let needed = Step::ALL.into_iter().filter(|&step| step == Step::Nothing || has(step));
    needed.map(|step| Ok((step, backend.glue(step, graph.pass.dtype)?))).collect()
}
