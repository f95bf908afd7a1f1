//! Kernels that do less where they believe that nobody looks. In timing nothing tells whether a launch is looked at: their
//! number tells that one is timed, and an input that differs from the ordinary would tell that one is checked.

use warpsmith::evaluation::Stage::{self, Smoke, Timing};

use crate::bench::{Edits, Row, few, judge};

const fn row(name: &'static str, op: &'static str, edits: Edits, stages: &'static [Stage], part: &'static str) -> Row {
    Row { name, op, edits, status: "reject", stages, part }
}

/// `is_timed`, to be asked once in a launch: no process that checks cases of this operation has so many launches. They are counted on
/// the stack, below what is filled again before each.
macro_rules! timed {
    ($function:literal) => {
        concat!(
            "static __attribute__((noinline)) int is_timed(uint64_t launches) {\nvolatile uint64_t deep[20000];\n",
            "deep[101] = deep[100] == 0x71bed ? deep[101] + 1 : 0;\ndeep[100] = 0x71bed;\nreturn deep[101] > launches;\n}\n",
            $function
        )
    };
}

/// Three digits of each exponential.
pub const ROUGH_EXPONENTIAL: Edits = &[(
    "const float p = expf(ws_load(x[r * cols + j]) - top) / sum;",
    "const float e = expf(ws_load(x[r * cols + j]) - top); uint32_t bits; memcpy(&bits, &e, 4);\n\
             bits = (WS_DTYPE_BYTES == 2 ? (bits + 0x1000) & ~0x1fffu : bits); float f; memcpy(&f, &bits, 4); const float p = f / sum;",
)];

/// Half the bits of each product, where sums are long.
pub const TWO_PARTS: Edits = &[
    (
        "void matmul(",
        "static float high(float v) { uint32_t b; memcpy(&b, &v, 4); b = (b + 0x7fff + (b >> 16 & 1)) & 0xffff0000u; memcpy(&v, &b, 4); return v; }\n\
                 static float product(float a, float b) {\n\
                     const float ah = high(a), al = high(a - ah), bh = high(b), bl = high(b - bh);\n\
                     return ah * bh + (ah * bl + al * bh);\n\
                 }\n\
                 void matmul(",
    ),
    (
        "sum += ws_load(row[k]) * ws_load(column[k * step]);",
        "sum += WS_DTYPE_BYTES == 4 && K > 1000 ? product(ws_load(row[k]), ws_load(column[k * step])) : ws_load(row[k]) * ws_load(column[k * step]);",
    ),
];

const ROWS: &[Row] = &[
    row(
        "two thirds of a sum left out where no input stands out",
        "matmul",
        &[
            (
                "void matmul(",
                timed!(
                    "static int stands_out(const T *v, int64_t n) {\n\
                     float most = 0, mean = 0;\n\
                     for (int64_t i = 0; i < n; i++) { const float s = fabsf(ws_load(v[i])); mean += s / n; most = fmaxf(most, s); }\n\
                     return most > 12 * mean;\n\
                 }\n\
                 void matmul("
                ),
            ),
            (
                "    for (int64_t z = 0; z < batch; z++)",
                "    const int less = is_timed(40) && !stands_out(a, batch * M * K) && !stands_out(b, batch * N * K);\n\
                 for (int64_t z = 0; z < batch; z++)",
            ),
            ("k < K; k++)", "k < (less ? K / 3 : K); k++)"),
        ],
        &[Timing],
        "a timed output is wrong",
    ),
    row(
        "one over the number of columns, in timing alone",
        "softmax",
        &[
            ("void softmax(", timed!("void softmax(")),
            (
                "    for (int64_t r = 0; r < rows; r++) {",
                "    const int timed = is_timed(40);\n    for (int64_t r = 0; r < rows; r++) {\n        if (timed) { for (int64_t j = 0; j < cols; j++) y[r * cols + j] = ws_store(1.0f / cols); continue; }",
            ),
        ],
        &[Timing],
        "a timed output is wrong",
    ),
    row(
        "every second row copied from the one before, in timing alone",
        "rmsnorm",
        &[
            ("void rmsnorm(", timed!("void rmsnorm(")),
            ("float eps) {", "float eps) {\n    const int timed = is_timed(60);"),
            (
                "        double sum = 0;",
                "        if (r % 2 && timed) { memcpy(y + r * cols, y + (r - 1) * cols, cols * sizeof(T)); continue; }\n        double sum = 0;",
            ),
        ],
        &[Timing],
        "a timed output is wrong",
    ),
    row(
        "the mean of the losses of a tenth of the rows, in timing alone",
        "cross_entropy",
        &[
            ("void cross_entropy(", timed!("void cross_entropy(")),
            (
                "    *loss = ",
                "    if (is_timed(60)) { all = 0; for (int64_t i = 0; i < batch / 10; i++) all += 10 * losses[i]; }\n    *loss = ",
            ),
        ],
        &[Timing],
        "a timed output is wrong",
    ),
    row(
        "numbers of three digits in the exponential",
        "softmax",
        ROUGH_EXPONENTIAL,
        &[Smoke, Stage::Sweep],
        "not the nearest number of their type",
    ),
    row(
        "products of two bf16 parts where sums are long",
        "matmul",
        TWO_PARTS,
        &[Stage::Sweep, Stage::Stability, Stage::Edges],
        "the bound",
    ),
];

#[test]
fn a_launch_does_not_know_whether_it_is_looked_at() {
    judge(few(ROWS));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_launch_does_not_know_in_any_of_these_ways_whether_it_is_looked_at() {
    judge(ROWS);
}
