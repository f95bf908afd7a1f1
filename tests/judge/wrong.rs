//! Kernels that mean well and are wrong.

use crate::bench::{Edits, PRODUCTS, Row, few, judge};
use warpsmith::evaluation::Stage::{self, Compile, Determinism, Edges, Smoke, Stability, Sweep, Timing};

const fn row(name: &'static str, op: &'static str, edits: Edits, stages: &'static [Stage], part: &'static str) -> Row {
    Row { name, op, edits, status: "reject", stages, part }
}

pub const ROWS: &[Row] = &[
    row(
        "adds to an output nobody zeroed (24)",
        "rmsnorm",
        &[("ws_store(v);", "ws_store(ws_load(y[r * cols + j]) + v);")],
        &[Smoke],
        "NaN",
    ),
    row("NaN everywhere (34)", "rmsnorm", &[("ws_store(v);", "ws_store(NAN);")], &[Smoke], "NaN"),
    row("NaN made zero (35)", "rmsnorm", &[("ws_store(v);", "ws_store(v == v ? v : 0);")], &[Stability], "not_finite"),
    row(
        "infinity made the largest half (35)",
        "matmul",
        &[("ws_store(sum);", "ws_store(fminf(fmaxf(sum, -65504), 65504));")],
        &[Stability],
        "input",
    ),
    row("infinity everywhere", "matmul", &[("ws_store(sum);", "ws_store(INFINITY);")], &[Smoke], "outside"),
    row(
        "no shift by the maximum (36)",
        "flash_attention",
        &[("expf(score[j] - top)", "expf(score[j])")],
        &[Sweep, Stability],
        "outside",
    ),
    row(
        "no shift by the maximum, alone (36)",
        "softmax",
        &[
            ("sum += expf(ws_load(x[r * cols + j]) - top)", "sum += expf(ws_load(x[r * cols + j]))"),
            ("const float p = expf(ws_load(x[r * cols + j]) - top)", "const float p = expf(ws_load(x[r * cols + j]))"),
        ],
        &[Stability],
        "shifted_up",
    ),
    row(
        "a maximum of at least zero",
        "softmax",
        &[("float top = -INFINITY", "float top = 0")],
        &[Stability],
        "shifted_down",
    ),
    row(
        "a sum over a sample of the row (17)",
        "softmax",
        &[(
            "sum += expf(ws_load(x[r * cols + j]) - top)",
            "if (j % 2 == 0) sum += 2 * expf(ws_load(x[r * cols + j]) - top)",
        )],
        &[Smoke],
        "outside",
    ),
    row("every column alike (15)", "softmax", &[("ws_store(p);", "ws_store(1 / (float)cols);")], &[Smoke], "outside"),
    row("scores for weights (15)", "softmax", &[("ws_store(p);", "x[r * cols + j];")], &[Smoke], "outside"),
    row("zeros (15)", "softmax", &[("ws_store(p);", "ws_store(0);")], &[Smoke], "outside"),
    row(
        "a masked row made zero (35)",
        "softmax",
        &[("ws_store(p);", "ws_store(top == -INFINITY ? 0 : p);")],
        &[Stability],
        "masked",
    ),
    row(
        "a variance with cancellation (37)",
        "layernorm",
        &[
            (
                "const float d = ws_load(x[r * dim + j]) - mean; squares",
                "const float d = ws_load(x[r * dim + j]); squares",
            ),
            ("variance = squares / (float)dim;", "variance = squares / (float)dim - mean * mean;"),
        ],
        &[Sweep, Stability],
        "outside",
    ),
    row(
        "a variance by one less",
        "layernorm",
        &[("variance = squares / (float)dim;", "variance = squares / ((float)dim - 1);")],
        &[Smoke],
        "outside",
    ),
    row(
        "no epsilon, deviations (38)",
        "layernorm",
        &[("variance + eps", "variance")],
        &[Smoke, Sweep, Stability],
        "outside",
    ),
    row("the bias alone (15)", "layernorm", &[("ws_store(v);", "bias[j];")], &[Smoke], "outside"),
    row("x as it is (15)", "layernorm", &[("ws_store(v);", "x[r * dim + j];")], &[Smoke], "outside"),
    row("no epsilon (38)", "rmsnorm", &[(" + eps)", ")")], &[Smoke, Sweep, Stability], "outside"),
    row(
        "epsilon outside the root (38)",
        "rmsnorm",
        &[("1 / sqrtf((float)(sum / cols) + eps)", "1 / (sqrtf((float)(sum / cols)) + eps)")],
        &[Smoke, Sweep, Stability],
        "outside",
    ),
    row(
        "a running sum in half (40)",
        "matmul",
        &[(
            "sum += ws_load(row[k]) * ws_load(column[k * step]);",
            "sum = (float)(_Float16)(sum + ws_load(row[k]) * ws_load(column[k * step]));",
        )],
        &[Smoke, Sweep, Stability],
        "outside",
    ),
    row(
        "a running sum in half where the tensors are half (40)",
        "matmul",
        &[(
            "sum += ws_load(row[k]) * ws_load(column[k * step]);",
            "sum = ws_load(ws_store(sum + ws_load(row[k]) * ws_load(column[k * step])));",
        )],
        &[Smoke, Sweep, Stability],
        "outside",
    ),
    row(
        "inputs rounded as tf32 rounds them (40)",
        "matmul",
        &[
            (
                "\nvoid matmul",
                "\nstatic inline float tf32(float v) { uint32_t b; memcpy(&b, &v, 4); b = (b + 0x1000) & ~0x1fffu; memcpy(&v, &b, 4); return v; }\nvoid matmul",
            ),
            ("ws_load(row[k]) * ws_load(column[k * step])", "tf32(ws_load(row[k])) * tf32(ws_load(column[k * step]))"),
        ],
        &[Smoke, Sweep, Stability],
        "outside",
    ),
    row(
        "writes one past the end (41)",
        "rmsnorm",
        &[("        }\n    }\n}", "        }\n    }\n    y[rows * cols] = ws_store(1);\n}")],
        &[Smoke],
        "it wrote outside `y`, 1 bytes after its end",
    ),
    row(
        "writes one before the start (41)",
        "rmsnorm",
        &[("        }\n    }\n}", "        }\n    }\n    y[-1] = ws_store(1);\n}")],
        &[Smoke],
        "it wrote outside `y`, 1 bytes before its start",
    ),
    row(
        "reads one past the end and uses it (42)",
        "rmsnorm",
        &[("j < cols; j++) { const", "j <= cols; j++) { const")],
        &[Smoke],
        "outside their bound",
    ),
    row(
        "memory from the heap taken for zeros (43)",
        "rmsnorm",
        &[(
            "double sum = 0;",
            "float *first = malloc(1 << 12); double sum = ((volatile float *)first)[700]; free(first);",
        )],
        &[Smoke],
        "outside",
    ),
    row(
        "the stack taken for zeros (43)",
        "rmsnorm",
        &[("double sum = 0;", "volatile float junk[600]; double sum = junk[300] + junk[17];")],
        &[Smoke],
        "outside",
    ),
    row(
        "scratch taken for zeros (43)",
        "rmsnorm",
        &[
            ("---*/", "[[scratch]]\nname = \"squares\"\ndtype = \"f32\"\nshape = [\"rows\"]\n---*/"),
            ("T *y, int64_t", "T *y, float *squares, int64_t"),
            ("double sum = 0;", "double sum = squares[r];"),
        ],
        &[Smoke],
        "outside",
    ),
    row(
        "lost updates (44)",
        "rmsnorm",
        &[
            (
                "\nvoid rmsnorm",
                "\ntypedef struct { const T *x; volatile float *sum; int64_t cols; } job;\n\
            static void add(int64_t begin, int64_t end, void *context) {\n\
                const job *p = context;\n\
                for (int64_t j = begin; j < end; j++) *p->sum += ws_load(p->x[j]) * ws_load(p->x[j]);\n\
            }\n\
            void rmsnorm",
            ),
            (
                "double sum = 0;",
                "volatile float sum = 0; job p = {x + r * cols, &sum, cols}; ws_parallel(cols, add, &p);",
            ),
            ("for (int64_t j = 0; j < cols; j++) { const float v = ws_load(x[r * cols + j]); sum += v * v; }", ""),
        ],
        &[Smoke, Sweep, Stability, Determinism],
        "",
    ),
    row(
        "offsets of sixteen bits (48)",
        "rmsnorm",
        &[("const float v = ws_load(x[r * cols + j]) *", "const float v = ws_load(x[(uint16_t)(r * cols + j)]) *")],
        &[Sweep],
        "outside",
    ),
    row(
        "an offset computed in single precision (49)",
        "rmsnorm",
        &[(
            "const float v = ws_load(x[r * cols + j]) *",
            "const float v = ws_load(x[(int64_t)((float)(r * cols + j) * 1.00002f)]) *",
        )],
        &[Smoke, Sweep],
        "outside",
    ),
    row(
        "the other layout of a head",
        "flash_attention",
        &[("step = bshd ? H_kv * D : D", "step = D")],
        &[Sweep, Edges],
        "outside",
    ),
    row(
        "a mask aligned to the start",
        "flash_attention",
        &[("i + S_kv - S_q + 1", "i + 1")],
        &[Sweep, Stability, Edges, Timing],
        "outside",
    ),
    row(
        "no shift by the maximum of a row of logits (36)",
        "cross_entropy",
        &[("expf(ws_load(row[j]) - top)", "expf(ws_load(row[j]))"), ("top - ws_load(row[t", "-ws_load(row[t")],
        &[Stability],
        "input",
    ),
    row(
        "labels kept in sixteen bits (48)",
        "cross_entropy",
        &[("row[targets[i]]", "row[(uint16_t)targets[i]]")],
        &[Stability],
        "input labels_beyond_16_bits",
    ),
    row(
        "labels read as if they had 32 bits",
        "cross_entropy",
        &[("row[targets[i]]", "row[((const int32_t *)targets)[i]]")],
        &[Smoke],
        "outside",
    ),
    row(
        "a loss that knows nothing of its row (15)",
        "cross_entropy",
        &[("losses[i] = top - ws_load(row[targets[i]]) + logf(sum);", "losses[i] = logf(vocab);")],
        &[Smoke],
        "outside",
    ),
    row(
        "a mean over one row too many",
        "cross_entropy",
        &[("all / batch", "all / (batch + 1)")],
        &[Smoke, Sweep],
        "outside",
    ),
    row(
        "exponentials added up in half (40)",
        "cross_entropy",
        &[("sum += expf(ws_load(row[j]) - top)", "sum = (float)(_Float16)(sum + expf(ws_load(row[j]) - top))")],
        &[Smoke, Sweep],
        "outside",
    ),
    row(
        "twice the sum over every second column (17)",
        "reduce",
        &[("j < cols; j++) sum +=", "j < cols; j += 2) sum += 2 *")],
        &[Smoke],
        "outside",
    ),
    row(
        "a running sum of a row in the type of the tensors (40)",
        "reduce",
        &[("sum += ws_load(x[r * cols + j])", "sum = ws_load(ws_store(sum + ws_load(x[r * cols + j])))")],
        &[Smoke, Sweep],
        "outside",
    ),
    row("the mean for the sum", "reduce", &[("ws_store(sum)", "ws_store(sum / cols)")], &[Smoke], "outside"),
    row(
        "sums held to the largest half (35)",
        "reduce",
        &[("ws_store(sum)", "ws_store(fminf(fmaxf(sum, -65504), 65504))")],
        &[Stability],
        "input",
    ),
    row(
        "a domain that leaves out a required shape",
        "rmsnorm",
        &[("dtypes = [", "domain = \"cols % 2 == 0\"\ndtypes = [")],
        &[Compile],
        "outside the kernel's domain",
    ),
    row(
        "a type that is missing",
        "rmsnorm",
        &[("\"bf16\", ", "")],
        &[Compile],
        "it does not serve bf16, as the kernel that it would replace does",
    ),
];

#[test]
fn some_wrong_kernels_are_rejected() {
    judge(few(ROWS));
}

// Two tests, so that both cores have something to do to the end.
#[test]
#[ignore = "the full suite: .ci/run"]
fn wrong_products_are_rejected() {
    judge(ROWS.iter().filter(|row| PRODUCTS.contains(&row.op)));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn other_wrong_kernels_are_rejected() {
    judge(ROWS.iter().filter(|row| !PRODUCTS.contains(&row.op)));
}
