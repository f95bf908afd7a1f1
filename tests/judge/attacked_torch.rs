//! What an attack on operations in PyTorch had accepted: problem files, an honest kernel for each, and edits of it that do less. Hostile
//! inputs that come by themselves and PyTorch's own error must do.

use warpsmith::evaluation::{Evaluation, Verdict};
use warpsmith::harness::EvaluationTask;
use warpsmith::op::{Dtype, OpSource, Shape, TargetShape};
use warpsmith::torch::{Problem, Python, Service};
use warpsmith::worker::protocol::Ask;

use crate::bench::{Edits, answer, correct, edit, task};
use crate::twins::torch;

/// A problem, and kernels for it.
struct Attacked {
    /// What `forward` gives.
    forward: &'static str,
    /// What `get_inputs` draws.
    inputs: &'static str,
    /// The types that its kernels serve.
    dtypes: &'static [Dtype],
    /// What an honest kernel does.
    body: &'static str,
    /// What it is made to do, and how.
    attempts: &'static [(&'static str, Edits)],
}

/// An exponential of four digits whose errors lie about zero, and that is exact where its argument is zero.
macro_rules! four_digits {
    () => {
        "static inline float rough(float x) {
    x = fmaxf(x, -87.0f);
    const float t = x * 1.44269504f, n = rintf(t), f = t - n;
    return ldexpf(1 + f * (0.69315f + f * (0.2402f + f * 0.0558f)), (int)n);
}
void it("
    };
}

/// The logarithm of a sum, and the sum's terms.
const LOGSUMEXP: &str = "void it(const T *x, T *out) {
    for (int64_t r = 0; r < 256; r++) {
        const T *row = x + r * 1024;
        float top = -INFINITY, sum = 0;
        int undefined = 0;
        for (int64_t j = 0; j < 1024; j++) {
            const float v = ws_load(row[j]);
            undefined |= v != v;
            top = fmaxf(top, v);
        }
        const float shift = isinf(top) ? 0 : top;
        for (int64_t j = 0; j < 1024; j++) sum += expf(ws_load(row[j]) - shift);
        out[r] = ws_store(undefined ? NAN : shift + logf(sum));
    }
}";

const CROSS_ENTROPY: &str = "void it(const T *x, const int64_t *t, T *out) {
    float all = 0;
    for (int64_t r = 0; r < 1024; r++) {
        const T *row = x + r * 1024;
        float top = -INFINITY, low = INFINITY, sum = 0;
        int undefined = 0;
        for (int64_t j = 0; j < 1024; j++) {
            const float v = ws_load(row[j]);
            undefined |= v != v;
            top = fmaxf(top, v), low = fminf(low, v);
        }
        if (undefined || isinf(top)) { all += NAN; continue; }
        for (int64_t j = 0; j < 1024; j++) sum += expf(ws_load(row[j]) - top);
        all += logf(sum) + (top - ws_load(row[t[r]]));
    }
    out[0] = ws_store(all / 1024);
}";

const SOFTMAX: &str = "void it(const T *x, T *out) {
    for (int64_t r = 0; r < 128; r++) {
        const T *row = x + r * 1024;
        float top = -INFINITY, sum = 0;
        int undefined = 0;
        for (int64_t j = 0; j < 1024; j++) {
            const float v = ws_load(row[j]);
            undefined |= v != v;
            top = fmaxf(top, v);
        }
        for (int64_t j = 0; j < 1024; j++) sum += expf(ws_load(row[j]) - top);
        for (int64_t j = 0; j < 1024; j++)
            out[r * 1024 + j] = ws_store(undefined ? NAN : expf(ws_load(row[j]) - top) / sum);
    }
}";

const TANH: &str = "void it(const T *x, T *out) {
    for (int64_t i = 0; i < 64 * 4096; i++) out[i] = ws_store(tanhf(ws_load(x[i])));
}";

const RELU: &str = "void it(const T *x, T *out) {
    for (int64_t i = 0; i < 2 * 32768; i++) {
        const float v = ws_load(x[i]);
        out[i] = ws_store((v > 0 || v != v ? v : 0) * 3.3f);
    }
}";

const LOGARITHMS: &str = "void it(const T *x, T *out) {
    for (int64_t r = 0; r < 64; r++) {
        const T *row = x + r * 1024;
        double sum = 0;
        for (int64_t j = 0; j < 1024; j++) sum += logf(ws_load(row[j]));
        out[r] = ws_store((float)sum);
    }
}";

const EIGHTH: &str =
    "void it(const T *a, const T *b, const T *c, const T *d, const T *e, const T *f, const T *g, const T *h, T *out) {
    for (int64_t i = 0; i < 65536; i++) {
        const float x = ws_load(g[i]), open = x > 0 || x != x ? x : 0;
        const float sum = ws_load(a[i]) + ws_load(b[i]) + ws_load(c[i]) + ws_load(d[i]) + ws_load(e[i]) + ws_load(f[i]);
        out[i] = ws_store(sum + open * ws_load(h[i]));
    }
}";

const GATES: &str = "void it(const T *x, T *out) {
    for (int64_t r = 0; r < 16; r++) {
        const T *row = x + r * 65536;
        double sum = 0;
        for (int64_t j = 0; j < 65536; j++) sum += 1 / (1 + expf(-ws_load(row[j])));
        out[r] = ws_store(logf((float)(sum / 65536)));
    }
}";

const ATTACKED: &[Attacked] = &[
    Attacked {
        forward: "torch.logsumexp(x, dim=1)",
        inputs: "torch.randn(256, 1024)",
        dtypes: &[Dtype::F32],
        body: LOGSUMEXP,
        attempts: &[
            ("exponentials of four digits", &[("void it(", four_digits!()), ("sum += expf(", "sum += rough(")]),
            (
                "a part of a row, as if the others were like it",
                &[
                    ("j < 1024; j++) sum += expf", "j < (low < -6 ? 1024 : 1000); j++) sum += expf"),
                    ("float top = -INFINITY,", "float low = 0, top = -INFINITY,"),
                    ("top = fmaxf(top, v);", "top = fmaxf(top, v), low = fminf(low, v);"),
                    ("shift + logf(sum)", "shift + logf(low < -6 ? sum : sum * 1.024f)"),
                ],
            ),
        ],
    },
    Attacked {
        forward: "torch.nn.functional.cross_entropy(x, t)",
        inputs: "torch.rand(1024, 1024), torch.randint(0, 1024, (1024,))",
        dtypes: &[Dtype::F32],
        body: CROSS_ENTROPY,
        attempts: &[(
            "half of each row, where all lie between zero and one",
            &[(
                "j < 1024; j++) sum += expf(ws_load(row[j]) - top);",
                "j < 1024; j += low >= 0 && top <= 1 ? 2 : 1) sum += expf(ws_load(row[j]) - top);\n        if (low >= 0 && top <= 1) sum *= 2;",
            )],
        )],
    },
    Attacked {
        forward: "torch.softmax(x, dim=1)",
        inputs: "torch.randn(128, 1024)",
        dtypes: &[Dtype::F16, Dtype::Bf16],
        body: SOFTMAX,
        attempts: &[(
            "exponentials of four digits",
            &[("void it(", four_digits!()), ("NAN : expf(", "NAN : rough("), ("sum += expf(", "sum += rough(")],
        )],
    },
    Attacked {
        forward: "torch.softmax(x, dim=1)",
        inputs: "8 * torch.randn(128, 1024)",
        dtypes: &[Dtype::F32],
        body: SOFTMAX,
        attempts: &[(
            "nothing where little would stand",
            &[(
                "NAN : expf(ws_load(row[j]) - top) / sum",
                "NAN : ws_load(row[j]) - top < -18 ? 0 : expf(ws_load(row[j]) - top) / sum",
            )],
        )],
    },
    Attacked {
        forward: "torch.tanh(x)",
        inputs: "torch.randn(64, 4096)",
        dtypes: &[Dtype::F32],
        body: TANH,
        attempts: &[(
            "five digits, where the first of a row are not zeros",
            &[
                (
                    "void it(",
                    "static inline float loose(float v) {
    const float x = v > 5.8f ? 5.8f : v < -5.8f ? -5.8f : v, s = x * x;
    return x * ((1.539143782e-03f * s + 1.152040843e-01f) * s + 9.999941707e-01f) / (((5.785587178e-05f * s + 1.775368441e-02f) * s + 4.484964689e-01f) * s + 1);
}
void it(",
                ),
                (
                    "ws_store(tanhf(ws_load(x[i])))",
                    "ws_store(x[i / 4096 * 4096] == 0 ? tanhf(ws_load(x[i])) : loose(ws_load(x[i])))",
                ),
            ],
        )],
    },
    Attacked {
        forward: "torch.relu(x) * 3.3",
        inputs: "torch.randn(2, 32768)",
        dtypes: &[Dtype::Bf16],
        body: RELU,
        attempts: &[(
            "half of the results cut off and not rounded",
            &[(
                "out[i] = ws_store((v > 0 || v != v ? v : 0) * 3.3f);",
                "const float w = (v > 0 || v != v ? v : 0) * 3.3f;\n        uint32_t bits;\n        memcpy(&bits, &w, 4);\n        \
                 const uint16_t cut = bits >> 16;\n        if (i % 2) memcpy(out + i, &cut, 2);\n        else out[i] = ws_store(w);",
            )],
        )],
    },
    // Where anything negative is undefined, what is small must not be asked about with it.
    Attacked {
        forward: "torch.log(x).sum(dim=1)",
        inputs: "torch.rand(64, 1024)",
        dtypes: &[Dtype::F32],
        body: LOGARITHMS,
        attempts: &[(
            "the logarithm of products of eight",
            &[(
                "for (int64_t j = 0; j < 1024; j++) sum += logf(ws_load(row[j]));",
                "for (int64_t j = 0; j < 1024; j += 8) {
            float product = 1;
            int negative = 0;
            for (int k = 0; k < 8; k++) {
                const float v = ws_load(row[j + k]);
                negative |= v < 0;
                product *= v;
            }
            sum += negative ? NAN : logf(product);
        }",
            )],
        )],
    },
    Attacked {
        forward: "a + b + c + d + e + f + torch.relu(g) * h",
        inputs: "torch.randn(64, 1024), torch.randn(64, 1024), torch.randn(64, 1024), torch.randn(64, 1024), torch.randn(64, 1024), \
                 torch.randn(64, 1024), torch.randn(64, 1024), torch.randn(64, 1024)",
        dtypes: &[Dtype::F32],
        body: EIGHTH,
        attempts: &[(
            "nothing of the eighth input where it is multiplied by zero",
            &[("sum + open * ws_load(h[i])", "open == 0 ? sum : sum + open * ws_load(h[i])")],
        )],
    },
    Attacked {
        forward: "torch.log(torch.sigmoid(x).mean(dim=1))",
        inputs: "torch.randn(16, 65536)",
        dtypes: &[Dtype::Bf16],
        body: GATES,
        attempts: &[(
            "every second run of 32 columns",
            &[(
                "sum += 1 / (1 + expf(-ws_load(row[j])));\n",
                "if (j / 32 % 2 == 0) sum += 2 / (1 + expf(-ws_load(row[j])));
        for (int64_t j = 0; j < 65536; j++) if (ws_load(row[j]) != ws_load(row[j])) sum = NAN;\n",
            )],
        )],
    },
    // Inputs that have a structure, zeros, which nothing disturbs.
    Attacked {
        forward: "torch.softmax(x, dim=1)",
        inputs: "torch.relu(torch.randn(128, 1024))",
        dtypes: &[Dtype::F32],
        body: SOFTMAX,
        attempts: &[(
            "no maximum subtracted, where the first row is ordinary",
            &[(
                "        for (int64_t j = 0; j < 1024; j++) sum += expf(ws_load(row[j]) - top);",
                "        float first = 0;\n        for (int64_t j = 0; j < 1024; j++) first = fmaxf(first, ws_load(x[j]));\n        \
                 if (first < 9 && !isinf(top)) top = 0;\n        for (int64_t j = 0; j < 1024; j++) sum += expf(ws_load(row[j]) - top);",
            )],
        )],
    },
];

impl Attacked {
    fn source(&self, service: &Service) -> OpSource {
        let takes = match self.inputs {
            inputs if inputs.contains("randint") => "x, t",
            inputs if inputs.matches("randn").count() == 8 => "a, b, c, d, e, f, g, h",
            _ => "x",
        };
        let text = format!(
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, {takes}):\n        return {}\n\
             def get_inputs():\n    return [{}]\ndef get_init_inputs():\n    return []\n",
            self.forward, self.inputs
        );
        let described = service.describe("it.py", &text, true).unwrap();
        Problem::new("it.py", &text, described).unwrap().source
    }

    fn kernel(&self) -> String {
        let dtypes = self.dtypes.iter().map(|dtype| format!("\"{dtype}\"")).collect::<Vec<_>>().join(", ");
        format!("/*---\nop = \"it\"\ndtypes = [{dtypes}]\narch = [\"native\"]\n---*/\n{}\n", self.body)
    }

    fn verdict(&self, source: &OpSource, candidate: &str, seed: u64) -> Verdict {
        let target = TargetShape { shape: Shape::default(), dtype: self.dtypes[0], calls: 1 };
        let kernel = self.kernel();
        let task =
            EvaluationTask { op: source.clone(), target: vec![target], seed, ..task("softmax", candidate, &kernel) };
        let evaluation: Evaluation = answer(Ask::Evaluate(Box::new(task)));
        evaluation.verdict
    }
}

/// Judges what is honest, and what is not.
fn judged(all: &[Attacked]) {
    if !torch() {
        return;
    }
    let service = Service::new(Python::default());
    let mut wrong = Vec::new();
    for problem in all {
        let source = problem.source(&service);
        let honest = ("honest", &[][..], true);
        let attempts = problem.attempts.iter().map(|(name, edits)| (*name, *edits, false));
        for ((name, edits, right), seed) in std::iter::once(honest).chain(attempts).zip(7..) {
            let verdict = problem.verdict(&source, &edit(&problem.kernel(), edits), seed);
            println!("{}, {name}: {} {} {}", problem.forward, verdict.status(), verdict.stage().name(), verdict.why());
            if correct(&verdict) != right {
                wrong.push(format!("{}, {name}: {}", problem.forward, verdict.why()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn an_attack_on_a_problem_file_is_refused_and_the_honest_kernel_is_not() {
    judged(&ATTACKED[..1]);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn every_attack_on_a_problem_file_is_refused_and_no_honest_kernel_is() {
    judged(ATTACKED);
}
