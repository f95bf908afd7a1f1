//! Code of the forward pass itself, compiled like a kernel.

use super::compile::{CompileError, Compiler, Image};
use super::prelude::prelude;
use crate::backend::Step;
use crate::op::Dtype;

const SOURCE: &str = include_str!("glue.c");

fn call(step: Step) -> String {
    let (pointers, ints) = step.arguments();
    let arguments = (0..pointers).map(|at| format!("p[{at}]")).chain((0..ints).map(|at| format!("i[{at}]")));
    format!("{}({})", step.function(), arguments.collect::<Vec<_>>().join(", "))
}

/// The image of a step. It goes the candidates' way, so that it is built with the same flags as kernels are.
pub(super) fn glue(compiler: &Compiler, step: Step, dtype: Dtype) -> Result<Image, CompileError> {
    let entry = format!(
        "#line 1 \"entry\"\n__attribute__((visibility(\"default\")))\n\
         void ws_entry(void *const *p, const int64_t *i, const float *f) {{\n    \
         (void)p, (void)i, (void)f;\n    {};\n}}\n",
        call(step)
    );
    let source = format!("{}#line 1 \"glue.c\"\n{SOURCE}\n{entry}", prelude(dtype, SOURCE));
    compiler.compile_candidate("glue", SOURCE, &source, &[])
}
