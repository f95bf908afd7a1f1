//! The second tier: kernels that are right wherever the stages look, and honest ones that it must let pass.

use warpsmith::evaluation::{Evaluation, Stage, Verdict};
use warpsmith::harness::EvaluationTask;
use warpsmith::op::{Dtype, Shape, TargetShape};
use warpsmith::worker::protocol::Ask;

use crate::bench::{Edits, answer, edit, task};
use crate::honest;

/// Judged as a starting point where it is timed at `shape`, and examined for so many seconds.
fn examined(op: &str, shape: Option<Shape>, edits: Edits, examination_s: f64) -> Evaluation {
    let honest = honest::small(op);
    let candidate = edit(honest, edits);
    let mut task = EvaluationTask { incumbent: None, examination_s, look: true, ..task(op, &candidate, honest) };
    if let Some(shape) = shape {
        task.target = vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }];
    }
    answer(Ask::Evaluate(Box::new(task)))
}

/// For what is to be found: until it is, however busy the machine is.
const UNTIL_FOUND: f64 = 120.0;

fn is_rejected(op: &str, shape: Option<Shape>, edits: Edits, part: &str) {
    let verdict = examined(op, shape, edits, UNTIL_FOUND).verdict;
    assert_eq!((verdict.status(), verdict.stage()), ("reject", Stage::Examination), "{verdict:?}");
    assert!(verdict.why().contains(part), "{verdict:?}");
}

#[test]
fn an_honest_kernel_passes_and_what_it_was_asked_stands_in_the_evaluation() {
    passes(&["rmsnorm"]);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn other_honest_kernels_pass_as_well() {
    passes(&["softmax", "matmul"]);
}

fn passes(ops: &[&str]) {
    for op in ops {
        let evaluation = examined(op, None, &[], 6.0);
        assert_eq!(evaluation.verdict, Verdict::Base, "{:?}", evaluation.verdict);
        let examination = evaluation.examination.unwrap();
        // How many topics its time reaches is the machine's.
        assert!(examination.asked.len() >= 3, "{examination:?}");
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn no_maximum_subtracted_where_rows_and_columns_are_both_large() {
    // So large that the stages halve one of the two.
    is_rejected(
        "softmax",
        Some(Shape::from([("rows", 1024), ("cols", 2048)])),
        &[(
            "top = -INFINITY, sum = 0;\n        for (int64_t j = 0; j < cols; j++)",
            "top = rows > 500 && cols > 1000 ? 0 : -INFINITY, sum = 0;\n        for (int64_t j = 0; j < cols && !(rows > 500 && cols > 1000); j++)",
        )],
        // Whichever hostile input comes first: those in a row of launches have these sizes too.
        ", input ",
    );
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_variance_in_one_pass_where_rows_are_longer_than_timed() {
    is_rejected(
        "layernorm",
        None,
        &[(
            "const float variance = squares / (float)dim;",
            "float variance = squares / (float)dim;\n\
             if (batch > 40 && dim > 1000) { float s = 0; for (int64_t j = 0; j < dim; j++) { const float v = ws_load(x[r * dim + j]); s += v * v; } variance = s / dim - mean * mean; }",
        )],
        "hostile inputs at larger sizes",
    );
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn tails_left_out_of_rows_longer_than_timed() {
    is_rejected(
        "rmsnorm",
        None,
        &[(
            "for (int64_t j = 0; j < cols; j++) { const float v",
            "for (int64_t j = 0; j < (rows > 70 && cols > 1000 ? cols - 100 : cols); j++) { const float v",
        )],
        "hostile inputs at larger sizes",
    );
}

#[test]
fn eps_taken_as_what_it_usually_is() {
    for (name, edits) in [
        ("rmsnorm", &[("+ eps)", "+ 1e-5f)")] as Edits),
        ("layernorm", &[("variance + eps", "variance + (eps < 1e-4f ? 1e-5f : eps)")]),
    ] {
        let verdict = examined(name, None, edits, UNTIL_FOUND).verdict;
        assert_eq!(verdict.status(), "reject", "{verdict:?}");
        assert!(verdict.why().contains("eps = "), "{verdict:?}");
    }
}
