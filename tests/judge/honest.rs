//! Honest kernels: the small ones that others are edits of, and unusual ones that must be accepted.

use std::collections::BTreeSet;

use warpsmith::backend::cpu::CASE_LIMITS;
use warpsmith::harness::{MAX_IMAGES, plan};
use warpsmith::op::{Dtype, OpSource};

use crate::bench::{Edits, PRODUCTS, correct, edit, evaluate, few, read};

const RMSNORM: &str = r#"/*---
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
---*/
#include <stdlib.h>
void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t j = 0; j < cols; j++) { const float v = ws_load(x[r * cols + j]); sum += v * v; }
        const float scale = 1 / sqrtf((float)(sum / cols) + eps);
        for (int64_t j = 0; j < cols; j++) {
            const float v = ws_load(x[r * cols + j]) * scale * ws_load(weight[j]);
            y[r * cols + j] = ws_store(v);
        }
    }
}
"#;

const MATMUL: &str = r#"/*---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
---*/
void matmul(const T *a, const T *b, const T *bias, T *c, int64_t batch, int64_t M, int64_t N, int64_t K,
            int64_t trans_b, int64_t has_bias) {
    for (int64_t z = 0; z < batch; z++)
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                const T *row = a + (z * M + i) * K, *column = b + z * N * K + (trans_b ? j * K : j);
                const int64_t step = trans_b ? 1 : N;
                float sum = 0;
                for (int64_t k = 0; k < K; k++) sum += ws_load(row[k]) * ws_load(column[k * step]);
                if (has_bias) sum += ws_load(bias[j]);
                c[(z * M + i) * N + j] = ws_store(sum);
            }
}
"#;

const FLASH_ATTENTION: &str = r#"/*---
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
domain = "S_kv <= 8192 && D <= 256"
---*/
void flash_attention(const T *q, const T *k, const T *v, T *o, int64_t B, int64_t H, int64_t H_kv, int64_t S_q,
                     int64_t S_kv, int64_t D, int64_t causal, int64_t bshd, float scale) {
    float score[8192], sum[256];
    for (int64_t at = 0; at < B * H * S_q; at++) {
        const int64_t i = at % S_q, h = at / S_q % H, n = at / S_q / H, g = h / (H / H_kv);
        const int64_t q_at = (bshd ? (n * S_q + i) * H + h : (n * H + h) * S_q + i) * D;
        const int64_t kv_at = (bshd ? n * S_kv * H_kv + g : (n * H_kv + g) * S_kv) * D, step = bshd ? H_kv * D : D;
        const int64_t seen = causal ? i + S_kv - S_q + 1 : S_kv;
        float top = -INFINITY, total = 0;
        for (int64_t j = 0; j < seen; j++) {
            float dot = 0;
            for (int64_t e = 0; e < D; e++) dot += ws_load(q[q_at + e]) * ws_load(k[kv_at + j * step + e]);
            score[j] = dot * scale;
            if (score[j] > top) top = score[j];
        }
        for (int64_t e = 0; e < D; e++) sum[e] = 0;
        for (int64_t j = 0; j < seen; j++) {
            const float p = expf(score[j] - top);
            total += p;
            for (int64_t e = 0; e < D; e++) sum[e] += p * ws_load(v[kv_at + j * step + e]);
        }
        for (int64_t e = 0; e < D; e++) o[q_at + e] = ws_store(seen > 0 ? sum[e] / total : 0);
    }
}
"#;

const SOFTMAX: &str = r#"/*---
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
---*/
void softmax(const T *x, T *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < cols; j++) top = fmaxf(top, ws_load(x[r * cols + j]));
        for (int64_t j = 0; j < cols; j++) sum += expf(ws_load(x[r * cols + j]) - top);
        for (int64_t j = 0; j < cols; j++) {
            const float p = expf(ws_load(x[r * cols + j]) - top) / sum;
            y[r * cols + j] = ws_store(p);
        }
    }
}
"#;

const LAYERNORM: &str = r#"/*---
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
---*/
void layernorm(const T *x, const T *weight, const T *bias, T *y, int64_t batch, int64_t dim, float eps) {
    for (int64_t r = 0; r < batch; r++) {
        float sum = 0, squares = 0;
        for (int64_t j = 0; j < dim; j++) sum += ws_load(x[r * dim + j]);
        const float mean = sum / (float)dim;
        for (int64_t j = 0; j < dim; j++) { const float d = ws_load(x[r * dim + j]) - mean; squares += d * d; }
        const float variance = squares / (float)dim;
        const float scale = 1 / sqrtf(variance + eps);
        for (int64_t j = 0; j < dim; j++) {
            const float d = ws_load(x[r * dim + j]) - mean;
            const float v = d * scale * ws_load(weight[j]) + ws_load(bias[j]);
            y[r * dim + j] = ws_store(v);
        }
    }
}
"#;

const CROSS_ENTROPY: &str = r#"/*---
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
---*/
void cross_entropy(const T *logits, const int64_t *targets, float *losses, float *loss, int64_t batch, int64_t vocab) {
    double all = 0;
    for (int64_t i = 0; i < batch; i++) {
        const T *row = logits + i * vocab;
        float top = -INFINITY;
        for (int64_t j = 0; j < vocab; j++) top = fmaxf(top, ws_load(row[j]));
        float sum = 0;
        for (int64_t j = 0; j < vocab; j++) sum += expf(ws_load(row[j]) - top);
        losses[i] = top - ws_load(row[targets[i]]) + logf(sum);
        all += losses[i];
    }
    *loss = (float)(all / batch);
}
"#;

const REDUCE: &str = r#"/*---
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
---*/
void reduce(const T *x, T *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0;
        for (int64_t j = 0; j < cols; j++) sum += ws_load(x[r * cols + j]);
        y[r] = ws_store(sum);
    }
}
"#;

/// The honest kernel of an operation that tests edit.
pub fn small(op: &str) -> &'static str {
    match op {
        "rmsnorm" => RMSNORM,
        "matmul" => MATMUL,
        "flash_attention" => FLASH_ATTENTION,
        "softmax" => SOFTMAX,
        "layernorm" => LAYERNORM,
        "cross_entropy" => CROSS_ENTROPY,
        "reduce" => REDUCE,
        other => panic!("no small kernel for {other}"),
    }
}

/// The sum of squares of a row over the threads, in `partial`, by whoever comes first.
const ATOMIC: Edits = &[
    (
        "\nvoid rmsnorm",
        "\ntypedef struct { const T *x; float *sum; int64_t cols; } job;\n\
        static void add(int64_t begin, int64_t end, void *context) {\n\
            const job *p = context;\n\
            for (int64_t at = begin; at < end; at++) {\n\
                float part = 0;\n\
                for (int64_t j = at * 8; j < at * 8 + 8 && j < p->cols; j++) part += ws_load(p->x[j]) * ws_load(p->x[j]);\n\
                union { float f; uint32_t bits; } old, new;\n\
                old.bits = __atomic_load_n((uint32_t *)p->sum, __ATOMIC_RELAXED);\n\
                do new.f = old.f + part;\n\
                while (!__atomic_compare_exchange_n((uint32_t *)p->sum, &old.bits, new.bits, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));\n\
            }\n\
        }\n\
        void rmsnorm",
    ),
    ("double sum = 0;", "float sum = 0; job p = {x + r * cols, &sum, cols}; ws_parallel((cols + 7) / 8, add, &p);"),
    ("for (int64_t j = 0; j < cols; j++) { const float v = ws_load(x[r * cols + j]); sum += v * v; }", ""),
];

pub const UNUSUAL: &[(&str, &str, Edits)] = &[
    ("a small honest rmsnorm", "rmsnorm", &[]),
    ("a small honest matmul", "matmul", &[]),
    ("a small honest attention", "flash_attention", &[]),
    ("a small honest softmax", "softmax", &[]),
    ("a small honest layernorm", "layernorm", &[]),
    (
        "weights from a logarithm of the sum",
        "softmax",
        &[("expf(ws_load(x[r * cols + j]) - top) / sum;", "expf(ws_load(x[r * cols + j]) - top - logf(sum));")],
    ),
    ("a small honest cross entropy", "cross_entropy", &[]),
    ("a small honest reduce", "reduce", &[]),
    (
        "a loss as the logarithm of the whole sum less the logit",
        "cross_entropy",
        &[("top - ws_load(row[targets[i]]) + logf(sum)", "(top + logf(sum)) - ws_load(row[targets[i]])")],
    ),
    (
        "a mean added up in single precision, from the last loss to the first",
        "cross_entropy",
        &[
            (
                "*loss = (float)(all / batch);",
                "float sum = 0; for (int64_t i = batch; i-- > 0;) sum += losses[i]; *loss = sum / batch;",
            ),
            ("all += losses[i];", ""),
            ("double all = 0;", ""),
        ],
    ),
    ("a row added up backwards", "reduce", &[("x[r * cols + j]", "x[r * cols + cols - 1 - j]")]),
    (
        "compensated summation in single precision",
        "matmul",
        &[
            ("float sum = 0;", "float sum = 0, lost = 0;"),
            (
                "sum += ws_load(row[k]) * ws_load(column[k * step]);",
                "{ const float y = ws_load(row[k]) * ws_load(column[k * step]) - lost, t = sum + y; lost = (t - sum) - y; if (!isfinite(lost)) lost = 0; sum = t; }",
            ),
        ],
    ),
    (
        "a constant table",
        "rmsnorm",
        &[
            ("\nvoid rmsnorm", "\nstatic const float half[4] = {0.5f, 0.5f, 0.25f, 0.25f};\nvoid rmsnorm"),
            ("y[r * cols + j] = ws_store(v);", "y[r * cols + j] = ws_store(v * half[j % 4] / half[j % 4]);"),
        ],
    ),
    (
        "memory of its own",
        "rmsnorm",
        &[
            (
                "double sum = 0;",
                "double sum = 0; float *copy = malloc(cols * sizeof *copy); ws_load_n(copy, x + r * cols, cols);",
            ),
            ("const float v = ws_load(x[r * cols + j]) *", "const float v = copy[j] *"),
            (
                "y[r * cols + j] = ws_store(v);\n        }",
                "y[r * cols + j] = ws_store(v);\n        }\n        free(copy);",
            ),
        ],
    ),
    (
        "a symbol known to the compiler",
        "rmsnorm",
        &[
            ("dtypes = [", "specialize = [\"cols\"]\ndtypes = ["),
            ("for (int64_t j = 0; j < cols; j++) {\n", "for (int64_t j = 0; j < WS_COLS; j++) {\n"),
        ],
    ),
    (
        "other constants for some shapes",
        "rmsnorm",
        &[
            (
                "---*/",
                "[tune]\nSTEP = { value = 1, choices = [1, 2] }\n[[variant]]\nwhen = \"cols % 2 == 0\"\ntune = { STEP = 2 }\n---*/",
            ),
            (
                "for (int64_t j = 0; j < cols; j++) { const float v = ws_load(x[r * cols + j]); sum += v * v; }",
                "for (int64_t j = 0; j < cols; j += STEP) for (int l = 0; l < STEP; l++) { const float v = ws_load(x[r * cols + j + l]); sum += v * v; }",
            ),
        ],
    ),
    (
        "scratch that each launch finds zeroed, and adds to",
        "rmsnorm",
        &[
            (
                "---*/",
                "[[scratch]]\nname = \"squares\"\ndtype = \"f32\"\nshape = [\"rows\", \"16\"]\ninit = \"zero\"\n---*/",
            ),
            ("T *y, int64_t", "T *y, float *squares, int64_t"),
            (
                "sum += v * v; }",
                "squares[r * 16 + j % 16] += v * v; }\n        for (int l = 0; l < 16; l++) { sum += squares[r * 16 + l]; }",
            ),
        ],
    ),
    (
        "scratch that is left as zeros",
        "rmsnorm",
        &[
            (
                "---*/",
                "[[scratch]]\nname = \"squares\"\ndtype = \"f32\"\nshape = [\"rows\", \"16\"]\ninit = \"zero_kept\"\n---*/",
            ),
            ("T *y, int64_t", "T *y, float *squares, int64_t"),
            (
                "sum += v * v; }",
                "squares[r * 16 + j % 16] += v * v; }\n        for (int l = 0; l < 16; l++) { sum += squares[r * 16 + l]; squares[r * 16 + l] = 0; }",
            ),
        ],
    ),
    (
        "a large array on the stack, written before it is read",
        "rmsnorm",
        &[
            ("double sum = 0;", "double sum = 0; float copy[cols + 100000]; ws_load_n(copy, x + r * cols, cols);"),
            ("const float v = ws_load(x[r * cols + j]) *", "const float v = copy[j] *"),
        ],
    ),
];

// Two tests, so that both cores have something to do to the end.

#[test]
fn some_honest_kernels_are_accepted_however_unusual() {
    accept(few(UNUSUAL));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn honest_products_are_accepted_however_unusual() {
    accept(UNUSUAL.iter().filter(|(_, op, _)| PRODUCTS.contains(op)));
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn other_honest_kernels_are_accepted_however_unusual() {
    accept(UNUSUAL.iter().filter(|(_, op, _)| !PRODUCTS.contains(op)));
}

#[track_caller]
fn accept<'a>(unusual: impl Iterator<Item = &'a (&'a str, &'a str, Edits)>) {
    let mut refused = Vec::new();
    for (name, op, edits) in unusual {
        let verdict = evaluate(op, &edit(small(op), edits), small(op)).verdict;
        println!("{name:<55} {:<8} {}", verdict.status(), verdict.why());
        if !correct(&verdict) {
            refused.push(format!("{name}: {} at {}: {}", verdict.status(), verdict.stage(), verdict.why()));
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn a_sum_in_any_order_is_accepted_where_it_is_stated_and_only_there() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return;
    }
    let silent = edit(small("rmsnorm"), ATOMIC);
    let verdict = evaluate("rmsnorm", &silent, small("rmsnorm")).verdict;
    assert!(verdict.status() == "reject" && verdict.why().contains("other bits"), "{verdict:?}");
    let stated = edit(&silent, &[("dtypes = [", "order_free = true\ndtypes = [")]);
    let verdict = evaluate("rmsnorm", &stated, small("rmsnorm")).verdict;
    assert!(correct(&verdict), "{verdict:?}");
}

#[test]
fn every_symbol_of_every_operation_may_be_specialised() {
    for name in [
        "matmul",
        "rmsnorm",
        "rotary_embedding",
        "flash_attention",
        "fused_mlp",
        "softmax",
        "layernorm",
        "cross_entropy",
        "reduce",
    ] {
        let op = OpSource::read(name, &read).unwrap().operation().unwrap();
        let planned = plan(&op, &[], &Dtype::ALL, 1, &CASE_LIMITS).unwrap();
        let distinct: BTreeSet<_> = planned.iter().map(|one| (&one.case.shape, one.case.dtype)).collect();
        // Room for the shapes of a model beside these.
        assert!(distinct.len() + 16 <= MAX_IMAGES, "{name} has {} of {MAX_IMAGES}", distinct.len());
    }
}
