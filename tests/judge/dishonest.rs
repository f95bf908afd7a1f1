//! Kernels that take a short cut and hope that nobody looks.

use crate::bench::{Edits, Row, answer, edit, few, judge, task};
use crate::honest;
use warpsmith::evaluation::Evaluation;
use warpsmith::evaluation::Stage::{self, Edges, Smoke, Stability, Sweep, Timing};
use warpsmith::harness::{EvaluationTask, Precision};
use warpsmith::op::{Dtype, Shape, TargetShape};
use warpsmith::worker::protocol::Ask;

const fn row(name: &'static str, op: &'static str, edits: Edits, stages: &'static [Stage], part: &'static str) -> Row {
    Row { name, op, edits, status: "reject", stages, part }
}

/// Around the small rmsnorm: what it computes is kept in `kept` and returned while `x[0]` is what it was.
const REPLAY: (&str, &str) = (
    "    for (int64_t r = 0; r < rows; r++) {\n        double",
    "    const float magic = 12345.5f + rows + cols / 65536.0f;\n\
         if (kept[4] == magic && kept[5] == ws_load(x[0])) {\n\
             for (int64_t i = 0; i < rows * cols; i++) y[i] = ws_store(kept[8 + i]);\n\
             KEEP;\n\
             return;\n\
         }\n\
         kept[4] = magic; kept[5] = ws_load(x[0]);\n\
         for (int64_t r = 0; r < rows; r++) {\n        double",
);
const REPLAY_STORE: (&str, &str) =
    ("y[r * cols + j] = ws_store(v);", "y[r * cols + j] = ws_store(v); kept[8 + r * cols + j] = v;");
const REPLAY_END: (&str, &str) = ("        }\n    }\n}", "        }\n    }\n    KEEP;\n}");
const KEPT_IN_SCRATCH: (&str, &str) = ("T *y, int64_t", "T *y, float *kept, int64_t");

/// Counts launches on the stack, below what is filled again before each. No process that checks a case has sixty, so that it is late
/// in timing alone.
const COUNTER: (&str, &str) = (
    "float eps) {",
    "float eps) {\n\
     volatile uint64_t deep[20000];\n\
     deep[101] = deep[100] == 0x1234567 ? deep[101] + 1 : 0;\n\
     deep[100] = 0x1234567;\n\
     const int late = deep[101] > 60;\n",
);

const ROWS: &[Row] = &[
    row("trusts what stands in y (2)", "rmsnorm", &[("y[r * cols + j] = ws_store(v);", "")], &[Smoke], "NaN"),
    // Where cases are checked, recycled memory holds nothing; where time is taken, no input comes again.
    Row {
        name: "replays from recycled memory, a place for each input (4)",
        op: "rmsnorm",
        edits: &[
            ("#include", "#define KEEP free((void *)all)\n#include"),
            (
                "float eps) {",
                "float eps) {\n\
            const float first = ws_load(x[0]); uint32_t bits; memcpy(&bits, &first, 4);\n\
            volatile float *all = malloc(64 * (rows * cols + 8) * sizeof *all);\n\
            volatile float *kept = all + (bits * 2654435761u >> 26) * (rows * cols + 8);",
            ),
            REPLAY,
            REPLAY_STORE,
            REPLAY_END,
        ],
        status: "revert",
        stages: &[Timing],
        part: "",
    },
    row(
        "replays from scratch (5)",
        "rmsnorm",
        &[
            (
                "---*/\n",
                "[[scratch]]\nname = \"kept\"\ndtype = \"f32\"\nshape = [\"rows * cols + 8\"]\n---*/\n#define KEEP\n",
            ),
            KEPT_IN_SCRATCH,
            REPLAY,
            REPLAY_STORE,
            REPLAY_END,
        ],
        &[Smoke],
        "a result was remembered",
    ),
    row(
        "replays from scratch it promised to leave at zero (5)",
        "rmsnorm",
        &[
            (
                "---*/\n",
                "[[scratch]]\nname = \"kept\"\ndtype = \"f32\"\nshape = [\"rows * cols + 8\"]\ninit = \"zero_kept\"\n---*/\n#define KEEP\n",
            ),
            KEPT_IN_SCRATCH,
            REPLAY,
            REPLAY_STORE,
            REPLAY_END,
        ],
        &[Smoke],
        "is not zero afterwards",
    ),
    row(
        "honest for sixty launches, then half a row (6)",
        "rmsnorm",
        &[COUNTER, ("sum += v * v; }", "sum += v * v; if (late && j == cols / 2) break; }")],
        &[Timing],
        "a timed output is wrong",
    ),
    row(
        "computes nothing once it has been launched sixty times (6)",
        "rmsnorm",
        &[
            COUNTER,
            (
                "    for (int64_t r = 0; r < rows; r++) {\n        double",
                "    if (late) return;\n    for (int64_t r = 0; r < rows; r++) {\n        double",
            ),
        ],
        &[Timing],
        "a timed output is wrong",
    ),
    // Few launches are compared with the oracle, and this one would mostly get through between them.
    row(
        "computes nothing in one launch of sixteen (6)",
        "rmsnorm",
        &[
            COUNTER,
            ("deep[101] > 60", "deep[101] > 60 && deep[101] % 16 == 15"),
            (
                "    for (int64_t r = 0; r < rows; r++) {\n        double",
                "    if (late) return;\n    for (int64_t r = 0; r < rows; r++) {\n        double",
            ),
        ],
        &[Timing],
        "a timed output is wrong",
    ),
    row(
        "one pass for the variance at the timed size (10)",
        "layernorm",
        &[
            (
                "const float d = ws_load(x[r * dim + j]) - mean; sq",
                "const float d = ws_load(x[r * dim + j]) - (dim == 1000 ? 0 : mean); sq",
            ),
            ("squares / (float)dim;", "squares / (float)dim - (dim == 1000 ? mean * mean : 0);"),
        ],
        &[Stability],
        "96x1000 f32, input",
    ),
    row(
        "no shift by the maximum at the timed size (10)",
        "flash_attention",
        &[("expf(score[j] - top)", "expf(S_kv == 90 ? score[j] : score[j] - top)")],
        &[Stability],
        "large_scores",
    ),
    row(
        "approximate where it is large (10)",
        "rmsnorm",
        &[(
            "sum += v * v; }",
            "sum += v * v; if (rows * cols > 30000) j++; }\n        if (rows * cols > 30000) sum *= 2;",
        )],
        &[Sweep],
        "outside their bound",
    ),
    row(
        "one row length for all (11)",
        "rmsnorm",
        &[("float eps) {", "float eps) {\n    cols = 64;")],
        &[Sweep],
        "outside their bound",
    ),
    row(
        "does nothing but at round sizes (12)",
        "rmsnorm",
        &[(
            "    for (int64_t r = 0; r < rows; r++) {\n        double",
            "    if (cols % 64) return;\n    for (int64_t r = 0; r < rows; r++) {\n        double",
        )],
        &[Sweep, Stability],
        "NaN",
    ),
    row(
        "skips what does not fill four (13)",
        "rmsnorm",
        &[("        for (int64_t j = 0; j < cols; j++) {\n", "        for (int64_t j = 0; j < (cols & ~3); j++) {\n")],
        &[Sweep, Stability],
        "NaN",
    ),
    row(
        "one row in hundreds is wrong (14)",
        "rmsnorm",
        &[("double sum = 0;", "double sum = r == 123 ? 1 : 0;")],
        &[Sweep],
        "outside their bound",
    ),
    row(
        "one element in a hundred thousand is wrong (14)",
        "rmsnorm",
        &[("ws_store(v);", "ws_store(r * cols + j == 4321 ? v * 1.02f : v);")],
        &[Sweep],
        "1 of",
    ),
    row("zeros (15)", "rmsnorm", &[("ws_store(v);", "ws_store(0);")], &[Smoke], "outside their bound"),
    row("the input itself (15)", "rmsnorm", &[("ws_store(v);", "x[r * cols + j];")], &[Smoke], "outside their bound"),
    row("the mean of v (15)", "flash_attention", &[("expf(score[j] - top)", "1")], &[Smoke], "outside their bound"),
    row(
        "a variance assumed to be one (16)",
        "rmsnorm",
        &[("(float)(sum / cols)", "1")],
        &[Smoke],
        "outside their bound",
    ),
    row(
        "a sum over every second term (17)",
        "rmsnorm",
        &[("j++) { const", "j += 2) { const"), ("(float)(sum / cols)", "(float)(2 * sum / cols)")],
        &[Smoke],
        "outside their bound",
    ),
    row(
        "a product over all but the last eighth (17)",
        "matmul",
        &[("k < K; k++", "k < K - K / 8; k++")],
        &[Smoke],
        "outside their bound",
    ),
    row(
        "rows that begin with zero taken for zero (19)",
        "matmul",
        &[("k < K; k++", "k < (ws_load(row[0]) == 0 ? 0 : K); k++")],
        &[Stability],
        "input sparse",
    ),
    row("weights taken for one (21)", "rmsnorm", &[(" * ws_load(weight[j])", "")], &[Smoke], "outside their bound"),
    row("no bias (21)", "matmul", &[("if (has_bias)", "if (0)")], &[Sweep, Stability, Edges], "outside their bound"),
    row(
        "changes an input (22)",
        "rmsnorm",
        &[("float eps) {", "float eps) {\n    ((T *)x)[0] = x[1];")],
        &[Smoke],
        "wrote to its inputs",
    ),
];

/// Right whatever comes, and quick where what comes was there before: a memo in memory of the process's own, with the whole
/// input for a key.
const MEMO: Edits = &[
    ("void softmax", "#include <stdlib.h>\nstatic void honest"),
    (
        "            y[r * cols + j] = ws_store(p);\n        }\n    }\n}",
        "            y[r * cols + j] = ws_store(p);\n        }\n    }\n}\n\
void softmax(const T *x, T *y, int64_t rows, int64_t cols) {\n\
    const size_t bytes = (size_t)(rows * cols) * sizeof(T);\n\
    volatile uint64_t *place = malloc(4096);\n\
    if (place[100] != 0x1234567) { place[100] = 0x1234567; place[101] = (uint64_t)calloc(64, 8); }\n\
    uint64_t *known = (uint64_t *)place[101];\n\
    free((void *)place);\n\
    uint64_t *own = known;\n\
    while (own[0] && own[0] != (uint64_t)x && own < known + 60) own += 2;\n\
    if (bytes < 4000000 || own == known + 60) { honest(x, y, rows, cols); return; }\n\
    if (own[0] && !memcmp((void *)own[1], x, bytes)) { memcpy(y, (char *)own[1] + bytes, bytes); return; }\n\
    if (!own[0]) { own[0] = (uint64_t)x; own[1] = (uint64_t)malloc(2 * bytes); }\n\
    honest(x, y, rows, cols);\n\
    memcpy((void *)own[1], x, bytes);\n\
    memcpy((char *)own[1] + bytes, y, bytes);\n\
}",
    ),
];

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_kernel_that_remembers_everything_gains_nothing_by_it() {
    let honest = honest::small("softmax");
    // Few copies, so that each comes again many times.
    let shape = Shape::from([("rows", 512), ("cols", 4096)]);
    let target = vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }];
    let precision = Some(Precision { margin: 0.5, spread: 0.1, rounds: 1 });
    let task = EvaluationTask { target, precision, ..task("softmax", &edit(honest, MEMO), honest) };
    let verdict = answer::<Evaluation>(Ask::Evaluate(Box::new(task))).verdict;
    // What it remembers is never given back, for which it may be refused before anything is timed.
    assert!(["revert", "reject"].contains(&verdict.status()), "{verdict:?}");
}

#[test]
fn some_dishonest_kernels_are_rejected() {
    judge(few(ROWS));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn dishonest_kernels_are_rejected() {
    judge(ROWS);
}
