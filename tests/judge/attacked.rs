//! What an attack with the judge's source open had kept: kernels that are right wherever the stages look, told from timing by where
//! their buffers are, by counting launches, or by looking at a few elements first. Each is much faster than the incumbent.

use std::path::Path;

use warpsmith::evaluation::{Evaluation, Stage, Verdict};
use warpsmith::harness::{EvaluationTask, Precision};
use warpsmith::kernel::KernelFile;
use warpsmith::op::{Dtype, OpSource, Shape, TargetShape};
use warpsmith::worker::protocol::Ask;

use crate::bench::{Edits, answer, correct, edit, read, task};
use crate::honest::small;

/// No maximum is subtracted where `UNSAFE` holds for the row `x + r * cols`.
macro_rules! no_maximum_where {
    ($condition:literal) => {
        (
            "for (int64_t j = 0; j < cols; j++) top = fmaxf(top, ws_load(x[r * cols + j]));",
            concat!(
                "if (",
                $condition,
                ") top = 0; else\n        for (int64_t j = 0; j < cols; j++) top = fmaxf(top, ws_load(x[r * cols + j]));"
            ),
        )
    };
}

/// A case of the stages has one copy of its buffers, at the beginning of their memory.
pub const BY_ADDRESS: Edits =
    &[("dtypes = [", "order_free = true\ndtypes = ["), no_maximum_where!("((uintptr_t)x & 0xfff) != 0x100")];

/// No process of the stages is launched so often.
pub const BY_COUNT: Edits = &[
    (
        "void softmax(",
        "#include <stdlib.h>\n__attribute__((noinline)) static long launches(void) {\n\
             volatile uint64_t deep[20000];\n\
             uint64_t n = deep[100] ^ 0x5bd1e995a7c3u;\n\
             if (deep[101] != n * 0x9e3779b97f4a7c15u) n = 0;\n\
             n++;\n\
             deep[100] = n ^ 0x5bd1e995a7c3u; deep[101] = n * 0x9e3779b97f4a7c15u;\n\
             return n;\n\
         }\n\
         void softmax(",
    ),
    (
        "    for (int64_t r = 0; r < rows; r++) {",
        "    const long before = launches();\n    for (int64_t r = 0; r < rows; r++) {",
    ),
    no_maximum_where!("before > 60"),
];

/// Hostile inputs are hostile in every element.
pub const BY_A_FEW_ELEMENTS: Edits = &[no_maximum_where!(
    "fabsf(ws_load(x[r * cols])) < 60 && fabsf(ws_load(x[r * cols + cols / 3])) < 60 && fabsf(ws_load(x[r * cols + cols - 1])) < 60"
)];

/// No shape that is listed has such rows.
pub const LONG_ROWS: Edits = &[("j < cols; j++) sum += expf", "j < (cols > 60000 ? 60000 : cols); j++) sum += expf")];

/// Judged against an incumbent that does its work six times.
pub fn against_a_slow_one(edits: Edits) -> EvaluationTask {
    let honest = small("softmax");
    let slow = edit(
        honest,
        &[(
            "for (int64_t r = 0; r < rows; r++) {",
            "for (int64_t turn = 0; turn < 6 * rows; turn++) { const int64_t r = turn % rows;",
        )],
    );
    EvaluationTask {
        target: vec![TargetShape { shape: Shape::from([("rows", 96), ("cols", 400)]), dtype: Dtype::F32, calls: 1 }],
        precision: Some(Precision { margin: 1.3, spread: 0.1, rounds: 1 }),
        examination_s: 2.5,
        ..task("softmax", &edit(honest, edits), &slow)
    }
}

/// Where an attempt is timed, and what it must beat.
fn attempt(text: &str) -> EvaluationTask {
    let kernel = KernelFile::parse(text).unwrap();
    let op = kernel.front.op;
    if text.contains("# against: slow") {
        return EvaluationTask { candidate: text.to_owned(), ..against_a_slow_one(&[]) };
    }
    let mut task = task(&op, text, "");
    if text.contains("# sizes: shipped") {
        task.op = OpSource::read(&op, &read).unwrap();
        // Where `bench` times it: what is grown from there is longer than anything that is small.
        let shape = task.op.operation().unwrap().primary_shape().unwrap();
        task.target = vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }];
    }
    // Examined as a starting point is, whatever the speed; until it is refused, however busy the machine is.
    EvaluationTask { incumbent: None, look: true, examination_s: 120.0, ..task }
}

/// What the attack had accepted, or tried; what is still accepted is in the folder `open` (`docs/judging.md`, "What is not defended").
#[test]
fn every_attempt_is_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attack");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "c")).collect();
    files.sort();
    let only = std::env::var("ATTEMPT").unwrap_or_default();
    let mut accepted = Vec::new();
    for file in files.iter().filter(|file| file.to_string_lossy().contains(&only)) {
        let text = std::fs::read_to_string(file).unwrap();
        let evaluation: Evaluation = answer(Ask::Evaluate(Box::new(attempt(&text))));
        let verdict = evaluation.verdict;
        let name = file.file_name().unwrap().display().to_string();
        println!("{name:<35} {:<8} {:<12} {}", verdict.status(), verdict.stage().name(), verdict.why());
        if correct(&verdict) {
            accepted.push(name);
        }
    }
    assert!(accepted.is_empty(), "accepted: {accepted:?}");
}

fn verdict(edits: Edits) -> Verdict {
    let evaluation: Evaluation = answer(Ask::Evaluate(Box::new(against_a_slow_one(edits))));
    println!("{:?}", evaluation.verdict);
    evaluation.verdict
}

#[test]
fn an_honest_kernel_that_is_faster_is_kept() {
    let verdict = verdict(&[]);
    assert!(matches!(verdict, Verdict::Keep { .. }), "{verdict:?}");
}

#[test]
fn being_right_in_the_stages_alone_is_not_enough() {
    for edits in [BY_ADDRESS, BY_COUNT] {
        let verdict = verdict(edits);
        assert_eq!((verdict.status(), verdict.stage()), ("reject", Stage::Confirmation), "{verdict:?}");
        assert!(verdict.why().contains("between timed launches"), "{verdict:?}");
    }
}

#[test]
fn hostile_values_among_ordinary_ones_and_sizes_beyond_the_listed_ones_are_asked_about() {
    for edits in [BY_A_FEW_ELEMENTS, LONG_ROWS] {
        let verdict = verdict(edits);
        assert_eq!(verdict.status(), "reject", "{verdict:?}");
    }
}
