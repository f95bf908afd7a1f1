//! No defence is decoration: with any of them left out, a kernel is accepted that is refused where it stands. Builds with the
//! feature `weakened` alone can leave them out.

use std::path::Path;

use tokio_util::sync::CancellationToken;
use warpsmith::defence::{Defence, WITHOUT};
use warpsmith::evaluation::{Evaluation, Verdict};
use warpsmith::harness::EvaluationTask;
use warpsmith::op::{Dtype, Shape, TargetShape};
use warpsmith::worker::Client;
use warpsmith::worker::protocol::Ask;

use crate::attacked::{BY_A_FEW_ELEMENTS, BY_COUNT, LONG_ROWS, against_a_slow_one};
use crate::bench::{Edits, correct, edit, task};
use crate::honest::small;
use crate::loopholes::{CLOCK, FAST_BY_PASTING, NOTES_BEHIND_BUFFERS, NOTES_ON_THE_LAST_PAGE, OWN_CALL};
use crate::unrecognised::ROUGH_EXPONENTIAL;

/// A kernel that one defence keeps out.
struct Row {
    without: Defence,
    op: &'static str,
    /// Where it is timed, if not where all tests time.
    shape: &'static [(&'static str, i64)],
    /// Seconds of examination; none where the stages or timing refuse it.
    examination_s: f64,
    /// Adversarial inputs that the operation's file has and this test's does not.
    dropped: &'static [&'static str],
    /// Whether it is to be kept against an incumbent that is slow.
    kept: bool,
    edits: Edits,
    /// Seeds of which one is enough for it to be accepted where the defence is missing: not everything is looked at every time.
    tries: u64,
}

const fn row(without: Defence, op: &'static str, edits: Edits) -> Row {
    Row { without, op, shape: &[], examination_s: 0.0, dropped: &[], kept: false, edits, tries: 1 }
}

const fn examined(without: Defence, op: &'static str, edits: Edits) -> Row {
    Row { examination_s: 2.5, ..row(without, op, edits) }
}

const fn kept(without: Defence, edits: Edits) -> Row {
    Row { kept: true, ..row(without, "softmax", edits) }
}

/// `is_timed`, to be asked once in a launch: no process of the stages has so many launches. `drawn(p, n)`: true for one input in `n`,
/// whatever the input.
macro_rules! tells {
    ($function:literal) => {
        concat!(
            "static __attribute__((noinline)) int is_timed(uint64_t launches) {\nvolatile uint64_t deep[20000];\n",
            "deep[101] = deep[100] == 0x71bed ? deep[101] + 1 : 0;\ndeep[100] = 0x71bed;\nreturn deep[101] > launches;\n}\n",
            "static int drawn(const T *x, uint32_t n) { float v = ws_load(x[1]); uint32_t b; memcpy(&b, &v, 4); return (b * 2654435761u >> 8) % n == 0; }\n",
            $function
        )
    };
}

/// One input column more than there are counts for nothing in the result, but is read.
const ONE_PAST_THE_END: Edits =
    &[("double sum = 0;", "double sum = 0; if (r == rows - 1) { volatile T next = x[rows * cols]; (void)next; }")];

/// Six bits of each product left out, where sums are long and nothing is unusual about the inputs.
const EIGHTEEN_BITS_OF_ORDINARY_PRODUCTS: Edits = &[
    (
        "void matmul(",
        "static float shorter(float v) { uint32_t b; memcpy(&b, &v, 4); b = (b + 32) & ~63u; memcpy(&v, &b, 4); return v; }\n\
         static int ordinary(const T *v, int64_t n, int64_t step) {\n\
             for (int64_t i = 0; i < n; i++) { const float s = fabsf(ws_load(v[i * step])); if (!(s > 0 && s < 8)) return 0; }\n\
             return 1;\n\
         }\n\
         void matmul(",
    ),
    (
        "float sum = 0;",
        "const int less = WS_DTYPE_BYTES == 4 && K > 250 && N > 90 && ordinary(row, K, 1) && ordinary(column, K, step);\n                float sum = 0;",
    ),
    (
        "sum += ws_load(row[k]) * ws_load(column[k * step]);",
        "sum += less ? shorter(ws_load(row[k]) * ws_load(column[k * step])) : ws_load(row[k]) * ws_load(column[k * step]);",
    ),
];

/// Five bits of each product left out, where sums are long.
const NINETEEN_BITS: Edits = &[
    (
        "void matmul(",
        "static float shorter(float v) { uint32_t b; memcpy(&b, &v, 4); b = (b + 16) & ~31u; memcpy(&v, &b, 4); return v; }\n\
         void matmul(",
    ),
    (
        "sum += ws_load(row[k]) * ws_load(column[k * step]);",
        "sum += WS_DTYPE_BYTES == 4 && K > 1000 ? shorter(ws_load(row[k]) * ws_load(column[k * step])) : ws_load(row[k]) * ws_load(column[k * step]);",
    ),
];

const ROWS: &[Row] = &[
    Row {
        tries: 6,
        ..row(
            Defence::Samples,
            "rmsnorm",
            &[
                ("void rmsnorm(", tells!("void rmsnorm(")),
                ("float eps) {", "float eps) {\n    const int less = is_timed(60) && drawn(x, 12);"),
                (
                    "        double sum = 0;",
                    "        if (less && r) { memcpy(y + r * cols, y, cols * sizeof(T)); continue; }\n        double sum = 0;",
                ),
            ],
        )
    },
    Row {
        tries: 3,
        ..row(
            Defence::WholeOutputs,
            "rmsnorm",
            &[
                ("void rmsnorm(", tells!("void rmsnorm(")),
                ("float eps) {", "float eps) {\n    const int timed = is_timed(60);"),
                (
                    "        double sum = 0;",
                    "        if (r == 17 && timed) { memcpy(y + r * cols, x + r * cols, 8); }\n        double sum = 0;",
                ),
                (
                    "for (int64_t j = 0; j < cols; j++) {\n",
                    "for (int64_t j = r == 17 && timed ? 2 : 0; j < cols; j++) {\n",
                ),
            ],
        )
    },
    Row {
        tries: 8,
        shape: &[("rows", 8), ("cols", 60)],
        ..row(
            Defence::Poison,
            "rmsnorm",
            &[
                ("void rmsnorm(", tells!("void rmsnorm(")),
                ("float eps) {", "float eps) {\n    if (is_timed(60) && drawn(x, 150)) return;"),
            ],
        )
    },
    // What it found at an address it gives again.
    Row {
        shape: &[("rows", 4), ("cols", 60)],
        ..row(
            Defence::FreshInputs,
            "rmsnorm",
            &[
                ("void rmsnorm(", tells!("void rmsnorm(")),
                (
                    "float eps) {",
                    "float eps) {\n    const int64_t bytes = rows * cols * sizeof(T);\n\
                 volatile char deep[140000];\n                 char *kept = (char *)deep + 4096 + (uintptr_t)x / 64 % 101 * 1200;\n                 __asm__ volatile(\"\" : \"+r\"(kept) :: \"memory\");\n\
                 const void **whose = (const void **)(kept + 32);\n\
                 uint64_t *tag = (uint64_t *)(kept + 40);\n\
                 const int known = is_timed(60) && *tag == 0x5eed5eed5eedu;\n\
                 if (known && *whose == x && bytes < 1100) { memcpy(y, kept + 64, bytes); return; }",
                ),
                (
                    "        }\n    }\n}",
                    "        }\n    }\n    if (!known && bytes < 1100) { memcpy(kept + 64, y, bytes); *whose = x; *tag = 0x5eed5eed5eedu; }\n    __asm__ volatile(\"\" :: \"r\"(kept) : \"memory\");\n}",
                ),
            ],
        )
    },
    kept(Defence::Beside, BY_COUNT),
    // An operation whose file does not say that one score may stand out.
    Row { tries: 5, dropped: &["one_outlier", "not_finite"], ..kept(Defence::MixedInputs, BY_A_FEW_ELEMENTS) },
    kept(Defence::FarSizes, LONG_ROWS),
    row(Defence::OtherArguments, "rmsnorm", &[("+ eps)", "+ 1e-5f)")]),
    row(Defence::RoundsOnce, "softmax", ROUGH_EXPONENTIAL),
    row(Defence::SignedTerms, "matmul", EIGHTEEN_BITS_OF_ORDINARY_PRODUCTS),
    row(Defence::FewTerms, "matmul", NINETEEN_BITS),
    Row {
        shape: &[("rows", 1024), ("cols", 2048)],
        ..examined(
            Defence::TimedSizes,
            "softmax",
            &[(
                "top = -INFINITY, sum = 0;\n        for (int64_t j = 0; j < cols; j++)",
                "top = rows == 1024 && cols == 2048 ? 0 : -INFINITY, sum = 0;\n        for (int64_t j = 0; j < cols && !(rows == 1024 && cols == 2048); j++)",
            )],
        )
    },
    examined(
        Defence::LongerSizes,
        "rmsnorm",
        &[(
            "for (int64_t j = 0; j < cols; j++) { const float v",
            "for (int64_t j = 0; j < (rows > 96 && cols > 1000 && cols % 8 ? cols - 100 : cols); j++) { const float v",
        )],
    ),
    examined(Defence::Fences, "rmsnorm", ONE_PAST_THE_END),
    examined(
        Defence::Threads,
        "rmsnorm",
        &[
            (
                "\nvoid rmsnorm",
                "\nstatic void first(int64_t begin, int64_t end, void *context) { if (!begin) *(int64_t *)context = end; }\nvoid rmsnorm",
            ),
            ("float eps) {", "float eps) {\n    int64_t part = 0; ws_parallel(999, first, &part);"),
            ("+ eps)", "+ eps) * (part == 333 ? 2 : 1)"),
        ],
    ),
    // In timing too it is wrong once, where hardly anybody looks.
    Row {
        tries: 8,
        ..examined(
            Defence::Repeats,
            "rmsnorm",
            &[
                (
                    "float eps) {",
                    "float eps) {\n    volatile uint64_t deep[20000];\n\
                     if (rows == 96 && cols == 1000) { deep[100] = deep[101] == 0x5eed ? deep[100] + 1 : 0; deep[101] = 0x5eed; }\n\
                     const int late = rows == 96 && cols == 1000 && deep[100] == 20;",
                ),
                ("+ eps)", "+ eps) * (late ? 2 : 1)"),
            ],
        )
    },
    Row {
        tries: 8,
        ..examined(
            Defence::DrawnShapes,
            "flash_attention",
            &[("causal ? i + S_kv - S_q + 1", "causal ? i + (bshd && S_q > 1 ? 0 : S_kv - S_q) + 1")],
        )
    },
    examined(
        Defence::UsedBuffers,
        "softmax",
        &[(
            "for (int64_t r = 0; r < rows; r++) {",
            "for (int64_t r = 0; r < rows; r++) {\n        const float there = ws_load(y[r * cols]);\n        if (cols > 255 && there > 0 && there < 1) continue;",
        )],
    ),
    examined(
        Defence::Domains,
        "rmsnorm",
        &[
            (
                "---*/",
                "[[scratch]]\nname = \"work\"\ndtype = \"f32\"\nshape = [\"cols > 3000 && cols % 1024 > 1 && cols != 11008 ? 1000000000 : 1\"]\n---*/",
            ),
            ("T *y, int64_t rows", "T *y, float *work, int64_t rows"),
        ],
    ),
    row(
        Defence::Registers,
        "rmsnorm",
        &[("float eps) {", "float eps) {\n    __asm__ volatile(\"movd %0, %%mm0\" : : \"r\"((int)cols) : \"mm0\");")],
    ),
    row(
        Defence::Leaks,
        "rmsnorm",
        &[
            ("void rmsnorm(", "#include <stdlib.h>\nvoid rmsnorm("),
            (
                "float eps) {",
                "float eps) {\n    float *kept = malloc(256); if (kept) kept[0] = eps; __asm__ volatile(\"\" : : \"r\"(kept) : \"memory\");",
            ),
        ],
    ),
    row(Defence::SystemCalls, "rmsnorm", OWN_CALL),
    row(Defence::Clocks, "rmsnorm", CLOCK),
    row(Defence::BufferPages, "rmsnorm", NOTES_BEHIND_BUFFERS),
    row(Defence::Tails, "rmsnorm", NOTES_ON_THE_LAST_PAGE),
    row(Defence::Preprocessed, "rmsnorm", FAST_BY_PASTING),
    Row {
        examination_s: 6.0,
        ..row(
            Defence::Instruments,
            "rmsnorm",
            &[("double sum = 0;", "double sum = 0; volatile int by = 31 + (int)cols; by = 1 << by;")],
        )
    },
];

/// What a worker without some defences says; it has compilations and a calibration of its own.
fn verdict(row: &Row, without: Option<Defence>, seed: u64) -> Verdict {
    let honest = small(row.op);
    let candidate = edit(honest, row.edits);
    let mut task = EvaluationTask {
        examination_s: row.examination_s,
        // Only what would be kept is examined, or a starting point.
        incumbent: (row.examination_s == 0.0).then(|| honest.to_owned()),
        look: row.examination_s > 0.0,
        seed,
        ..task(row.op, &candidate, honest)
    };
    if row.kept {
        task = EvaluationTask { seed, ..against_a_slow_one(row.edits) };
    }
    let mut file: toml::Table = task.op.toml.parse().unwrap();
    if let Some(toml::Value::Array(inputs)) = file.get_mut("adversarial") {
        inputs.retain(|input| row.dropped.iter().all(|dropped| input["name"].as_str() != Some(dropped)));
    }
    task.op.toml = toml::to_string(&file).unwrap();
    if !row.shape.is_empty() {
        let shape = row.shape.iter().fold(Shape::default(), |shape, (symbol, size)| shape.with(symbol, *size));
        task.target = vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }];
    }
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache-weakened");
    let mut arguments = vec![format!("WARPSMITH_CACHE={}", cache.display())];
    arguments.extend(without.map(|defence| format!("{WITHOUT}={}", defence.name())));
    arguments.extend([env!("CARGO_BIN_EXE_warpsmith").into(), "worker".into()]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let evaluation: Evaluation = runtime.block_on(async {
        let mut worker = Client::start(Path::new("/usr/bin/env"), &arguments).await.unwrap();
        worker.ask(Ask::Evaluate(Box::new(task)), &mut |_| {}, &CancellationToken::new()).await.unwrap()
    });
    evaluation.verdict
}

#[test]
fn each_defence_keeps_out_what_is_accepted_without_it() {
    let only = std::env::var("DEFENCE").ok();
    let mut wrong = Vec::new();
    for row in ROWS.iter().filter(|row| only.as_ref().is_none_or(|only| only == row.without.name())) {
        let name = row.without.name();
        let stands = verdict(row, None, 20);
        println!("{name:<18} stands  {:<8} {:<12} {}", stands.status(), stands.stage().name(), stands.why());
        if correct(&stands) {
            wrong.push(format!("{name}: accepted although it stands"));
        }
        let accepted = (20..20 + row.tries).any(|seed| {
            let left_out = verdict(row, Some(row.without), seed);
            println!("{name:<18} without {:<8} {:<12} {}", left_out.status(), left_out.stage().name(), left_out.why());
            if row.kept { matches!(left_out, Verdict::Keep { .. }) } else { correct(&left_out) }
        });
        if !accepted {
            wrong.push(format!("{name}: refused without it too"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
