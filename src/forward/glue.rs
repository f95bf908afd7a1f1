//! Code of the forward pass itself, compiled like a kernel.

use crate::backend::cpu::{CompileError, Compiler, Image, prelude};
use crate::model::Glue;
use crate::op::Dtype;

const SOURCE: &str = include_str!("glue.c");

/// What the glue can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Embedding,
    Add,
    /// Measures what starting a call costs.
    Nothing,
}

impl Step {
    /// In the order of [`images`].
    const ALL: [Self; 3] = [Self::Embedding, Self::Add, Self::Nothing];

    pub(super) const fn of(glue: Glue) -> Self {
        match glue {
            Glue::Embedding { .. } => Self::Embedding,
            Glue::Add { .. } => Self::Add,
        }
    }

    const fn call(self) -> &'static str {
        match self {
            Self::Embedding => "embedding(p[0], p[1], p[2], i[0], i[1])",
            Self::Add => "add(p[0], p[1], p[2], i[0])",
            Self::Nothing => "nothing()",
        }
    }
}

/// The sizes that a step's function takes after its pointers.
pub(super) fn sizes(glue: Glue) -> Vec<i64> {
    match glue {
        Glue::Embedding { tokens, width } => vec![tokens as i64, width as i64],
        Glue::Add { elements } => vec![elements as i64],
    }
}

/// One image for each step. They go the candidates' way, so that they are built with the same flags as kernels are.
pub(super) fn images(compiler: &Compiler, dtype: Dtype) -> Result<Vec<(Step, Image)>, CompileError> {
    Step::ALL
        .into_iter()
        .map(|step| {
            let entry = format!(
                "__attribute__((visibility(\"default\")))\n\
                 void ws_entry(void *const *p, const int64_t *i, const float *f) {{\n    \
                 (void)p, (void)i, (void)f;\n    {};\n}}\n",
                step.call()
            );
            let source = format!("{}#line 1 \"glue.c\"\n{SOURCE}\n{entry}", prelude(dtype));
            Ok((step, compiler.compile_candidate("glue", SOURCE, &source, &[])?))
        })
        .collect()
}
