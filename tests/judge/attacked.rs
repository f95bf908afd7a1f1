//! What an attack with the judge's source open had kept: kernels that are right wherever the stages look, told from timing by where
//! their buffers are, by counting launches, or by looking at a few elements first. Each is much faster than the incumbent.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use warpsmith::backend::cpu::available_memory;
use warpsmith::evaluation::{Evaluation, Stage, Verdict};
use warpsmith::harness::{EvaluationTask, Precision};
use warpsmith::kernel::KernelFile;
use warpsmith::op::{Dtype, OpSource, Shape, TargetShape};
use warpsmith::worker::protocol::Ask;

use crate::bench::{Edits, ROUNDS, answer, answer_within, correct, edit, read, task};
use crate::honest::small;

/// No maximum is subtracted where the condition holds, which may look at the row `x + r * cols`.
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
    let target = Shape::from([("rows", 96), ("cols", 400)]);
    against(&edit(small("softmax"), edits), &slow("softmax"), target)
}

/// An honest kernel that takes several times as long as it might.
fn slow(op: &str) -> String {
    if op == "fused_mlp" {
        let text = read("kernels/cpu/fused_mlp.c").unwrap();
        let hidden = "    ws_parallel(p.tiles_m * ((H + TILE_N - 1) / TILE_N), hidden_tiles, &p);\n";
        return text.replace(hidden, &hidden.repeat(5));
    }
    if op == "cross_entropy" {
        let rows = "for (int64_t i = 0; i < batch; i++) {\n        const T *row";
        let often = "for (int64_t turn = 0; turn < 6 * batch; turn++) {\n        if (turn % batch == 0) all = 0;\n        const int64_t i = turn % batch;\n        const T *row";
        return small(op).replace(rows, often);
    }
    edit(
        small(op),
        &[(
            "for (int64_t r = 0; r < rows; r++) {",
            "for (int64_t turn = 0; turn < 6 * rows; turn++) { const int64_t r = turn % rows;",
        )],
    )
}

/// To be kept at `shape` if it is right.
fn against(candidate: &str, incumbent: &str, shape: Shape) -> EvaluationTask {
    let op = KernelFile::parse(candidate).unwrap().front.op;
    EvaluationTask {
        target: vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }],
        precision: Some(Precision { margin: 1.3, spread: 0.1, rounds: ROUNDS }),
        examination_s: 2.5,
        ..task(&op, candidate, incumbent)
    }
}

/// What an attempt says of itself under a name.
fn said<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().take(12).find_map(|line| line.strip_prefix(&format!("# {name}: ")))
}

/// Where an attempt is timed, and what it must beat: lines of its own say so.
fn attempt(text: &str) -> EvaluationTask {
    let said = |name: &str| said(text, name);
    let op = KernelFile::parse(text).unwrap().front.op;
    let sizes = said("shape").unwrap_or("rows=96,cols=400").split(',').map(|size| size.split_once('=').unwrap());
    let shape = sizes.fold(Shape::default(), |shape, (symbol, value)| shape.with(symbol, value.parse().unwrap()));
    if said("against") == Some("slow") {
        return against(text, &slow(&op), shape);
    }
    let mut task = task(&op, text, "");
    if said("sizes") == Some("shipped") {
        task.op = OpSource::read(&op, &read).unwrap();
        // Where `bench` times it: what is grown from there is longer than anything that is small.
        let shape = task.op.operation().unwrap().primary_shape().unwrap();
        task.target = vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }];
    }
    // Examined as a starting point is, whatever the speed; until it is refused, however busy the machine is.
    EvaluationTask { incumbent: None, look: true, examination_s: 600.0, ..task }
}

/// What the attack had accepted, or tried; what is still accepted is in the folder `open` (`docs/judging.md`, "What is not defended").
#[test]
#[ignore = "the full suite: .ci/run"]
fn every_attempt_is_refused() {
    refused(&std::env::var("ATTEMPT").unwrap_or_default());
}

#[test]
fn attempts_at_some_defences_are_refused() {
    for attempt in ["softmax_f32_18_bits", "softmax_shift_by_first"] {
        refused(attempt);
    }
}

/// Where the symbols of the judge's own program are, by the ends of their names.
fn symbols<const N: usize>(names: [&str; N]) -> [i64; N] {
    let listed = Command::new("nm").args(["-C", env!("CARGO_BIN_EXE_warpsmith")]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    names.map(|name| {
        let line = listed.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("no symbol {name}"));
        i64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    })
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn work_before_the_clock_in_two_samples_of_five_gains_nothing() {
    let [here, gate, page, sizes, bases] =
        symbols([" ws_parallel", " warpsmith_gate", "::signals::PAGE", "::signals::SIZES", "::signals::BASES"]);
    let mut attack = read("tests/judge/kernels/softmax_takes_over.c").unwrap();
    for (name, at) in [("GATE", gate), ("PAGE", page), ("SIZES", sizes), ("BASES", bases)] {
        attack = attack.replace(&format!("{name}_FROM_HERE"), &format!("({})", at - here));
    }
    let task = EvaluationTask {
        target: vec![TargetShape { shape: Shape::from([("rows", 512), ("cols", 1024)]), dtype: Dtype::F32, calls: 1 }],
        precision: Some(Precision { margin: 1.2, spread: 0.1, rounds: 2 }),
        ..task("softmax", &attack, &read("kernels/cpu/softmax.c").unwrap())
    };
    let evaluation: Evaluation = answer(Ask::Evaluate(Box::new(task)));
    println!("{}: {}", evaluation.verdict.status(), evaluation.verdict.why());
    assert!(!matches!(evaluation.verdict, Verdict::Keep { .. } | Verdict::Error { .. }), "{:?}", evaluation.verdict);
}

/// Leaves the maximum out where `holds` is not so.
fn right_where(holds: &str) -> String {
    edit(
        small("softmax"),
        &[
            ("---*/\n", "---*/\n#include <stdlib.h>\n"),
            (
                "    for (int64_t r = 0; r < rows; r++) {",
                &format!("    {holds}\n    for (int64_t r = 0; r < rows; r++) {{"),
            ),
            ("ws_load(x[r * cols + j]));", "holds ? ws_load(x[r * cols + j]) : 0);"),
        ],
    )
}

/// What is right where heap and stack hold rubbish, and there alone, is right wherever a kernel runs, so that neither tells whether it is timed.
#[test]
#[ignore = "the full suite: .ci/run"]
fn neither_heap_nor_stack_tells_what_is_timed() {
    for place in [
        "volatile unsigned char *m = malloc(5000); const int holds = m[2000] == 0x7f && m[3001] == 0x7f; free((void *)m);",
        "volatile unsigned char m[40000]; int same = 0; for (int i = 0; i < 64; i++) same += m[i * 500 + 77] == 0x7f; const int holds = same > 32;",
    ] {
        let task = against(&right_where(place), &slow("softmax"), Shape::from([("rows", 96), ("cols", 400)]));
        let evaluation: Evaluation = answer(Ask::Evaluate(Box::new(task)));
        println!("{} {}", evaluation.verdict.status(), evaluation.verdict.why());
        assert!(correct(&evaluation.verdict), "{place}: {:?}", evaluation.verdict);
    }
}

/// Every attempt in whose path `only` stands is refused, and there is one. Those about which time decides are judged where they are
/// asked for by name alone.
fn refused(only: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attack");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "c")).collect();
    files.sort();
    files.retain(|file| file.to_string_lossy().contains(only));
    assert!(!files.is_empty(), "no attempt is named {only}");
    let texts = files.iter().map(|file| (file, std::fs::read_to_string(file).unwrap()));
    let wanted = |text: &str| !only.is_empty() || said(text, "by chance").is_none();
    let attempts: Vec<_> = texts.filter(|(file, text)| wanted(text) && does_wrong_here(file, text)).collect();
    // Each is examined by one process, most of its time on one core, and with tensors as large as memory allows.
    let (next, accepted) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let lanes = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = available_memory().map(|bytes| bytes / lanes as u64);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some((file, text)) = attempts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let began = Instant::now();
                    let evaluation: Evaluation = answer_within(Ask::Evaluate(Box::new(attempt(text))), memory);
                    let verdict = evaluation.verdict;
                    let name = file.file_name().unwrap().display().to_string();
                    println!(
                        "{name:<35} {:>5.0} s {:<8} {:<12} {}",
                        began.elapsed().as_secs_f64(),
                        verdict.status(),
                        verdict.stage().name(),
                        verdict.why()
                    );
                    if correct(&verdict) {
                        accepted.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    assert_eq!(accepted.into_inner().unwrap(), Vec::<String>::new(), "accepted");
}

/// Whether the processor has the instructions that an attempt does wrong with, by a line of its own.
fn does_wrong_here(file: &Path, text: &str) -> bool {
    let Some(needed) = said(text, "needs") else { return true };
    let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = listed.split_whitespace().any(|flag| flag == needed);
    if !has {
        println!("skipped, as this processor has no {needed}: {}", file.display());
    }
    has
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
#[ignore = "the full suite: .ci/run"]
fn hostile_values_among_ordinary_ones_and_sizes_beyond_the_listed_ones_are_asked_about() {
    for edits in [BY_A_FEW_ELEMENTS, LONG_ROWS] {
        // Until it is refused, however busy the machine is.
        let task = EvaluationTask { examination_s: 600.0, ..against_a_slow_one(edits) };
        let verdict = answer::<Evaluation>(Ask::Evaluate(Box::new(task))).verdict;
        assert_eq!(verdict.status(), "reject", "{verdict:?}");
    }
}
