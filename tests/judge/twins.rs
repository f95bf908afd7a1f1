//! Shipped operations written in PyTorch: what their headers refuse is refused by PyTorch's own error too, and what is honest is
//! accepted. They are given no hostile inputs: those that come by themselves must do.

use std::sync::OnceLock;

use warpsmith::evaluation::{Evaluation, Verdict};
use warpsmith::harness::EvaluationTask;
use warpsmith::op::OpSource;
use warpsmith::torch::{PYTHON, Python, Service};
use warpsmith::worker::protocol::Ask;

use crate::bench::{Edits, answer, correct, edit, few, starter, task};
use crate::{honest, wrong};

/// Attention over the keys that a query sees, one query after another where they differ: what it does not see is not there, NaN or not.
const ATTENTION: &str = r#"import torch
from torch.nn.functional import scaled_dot_product_attention as attend

def reference(q, k, v, *, S_q, S_kv, causal, bshd, scale):
    if bshd:
        q, k, v = [one.transpose(1, 2) for one in (q, k, v)]
    many = q.shape[1] // k.shape[1]
    k, v = [one.repeat_interleave(many, 1) for one in (k, v)]
    if not causal:
        o = attend(q, k, v, scale=scale)
    else:
        o = torch.zeros_like(q)
        for i in range(max(0, S_q - S_kv), S_q):
            seen = i + 1 + S_kv - S_q
            o[:, :, i : i + 1] = attend(q[:, :, i : i + 1], k[:, :, :seen], v[:, :, :seen], scale=scale)
    return o.transpose(1, 2) if bshd else o
"#;

const ROTARY: &str = r#"import torch

def reference(x, cos, sin, *, D, bshd, interleaved):
    if bshd:
        cos, sin = cos[:, None], sin[:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : D // 2], x[..., D // 2 :])
    y = [a * cos - b * sin, a * sin + b * cos]
    return torch.stack(y, -1).flatten(-2) if interleaved else torch.cat(y, -1)
"#;

const CROSS_ENTROPY: &str = r#"import torch

def reference(logits, targets):
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = torch.nn.functional.cross_entropy(wide, targets, reduction="none")
    return losses, losses.mean()
"#;

/// The same functions in PyTorch, by the operations' names.
const TWINS: [(&str, &str); 9] = [
    ("flash_attention", ATTENTION),
    ("rotary_embedding", ROTARY),
    ("cross_entropy", CROSS_ENTROPY),
    (
        "fused_mlp",
        "import torch\ndef reference(x, w_gate, w_up, w_down):\n    hidden = torch.nn.functional.silu(x @ w_gate.mT) * (x @ w_up.mT)\n    return hidden @ w_down.mT\n",
    ),
    ("softmax", "import torch\ndef reference(x):\n    return torch.softmax(x, -1)\n"),
    (
        "rmsnorm",
        "import torch\ndef reference(x, weight, *, eps):\n    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)\n",
    ),
    (
        "layernorm",
        "import torch\ndef reference(x, weight, bias, *, eps):\n    return torch.nn.functional.layer_norm(x, (x.shape[-1],), weight, bias, eps)\n",
    ),
    (
        "matmul",
        "def reference(a, b, bias, *, trans_b):\n    c = a @ (b.mT if trans_b else b)\n    return c if bias is None else c + bias\n",
    ),
    ("reduce", "def reference(x):\n    return x.sum(-1)\n"),
];

/// Honest kernels that PyTorch's bound refuses and the header's does not, by operation, and the input on which it does. Two passes with
/// one accumulator in single precision: where nearly all of 1000 terms of the variance are the same number, each addition is rounded
/// the same way, and 105 units are lost; PyTorch loses one. With several accumulators, or one in double precision, nothing is.
///
/// Of attention the two define different functions: where every score that a query sees is -inf or NaN, PyTorch's fused attention gives zero, and
/// the header NaN.
const STRICTER: &[(&str, &str)] = &[("layernorm", "few_terms in x"), ("flash_attention", "not_finite in k")];

/// Wrong only at a size that none but a hostile input of the shipped file has (more than 65536 labels): a twin keeps no such input, so that
/// nobody asks. The bounds have no part in it.
const BY_SHAPE: &[&str] = &["labels kept in sixteen bits (48)"];

/// More that is wrong: what a bound by PyTorch's own error could let pass where its floors were too wide.
const MORE: &[(&str, &str, Edits)] = &[
    (
        "two parts of bfloat16 for single precision",
        "matmul",
        &[
            (
                "\nvoid matmul",
                "\nstatic inline float high(float v) { uint32_t b; memcpy(&b, &v, 4); b = (b + 0x7fff + ((b >> 16) & 1)) & 0xffff0000u; memcpy(&v, &b, 4); return v; }\n\
                 static inline float two(float x, float y) { const float p = high(x), q = high(x - p), r = high(y), s = high(y - r); return isfinite(x * y) ? p * r + (p * s + q * r) : x * y; }\n\
                 void matmul",
            ),
            ("ws_load(row[k]) * ws_load(column[k * step])", "two(ws_load(row[k]), ws_load(column[k * step]))"),
        ],
    ),
    ("one column of a row left out", "reduce", &[("j < cols; j++) sum +=", "j < cols - (cols > 200); j++) sum +=")]),
    (
        "one product of a row left out",
        "matmul",
        &[("for (int64_t k = 0; k < K; k++)", "for (int64_t k = 0; k < K - (K > 100); k++)")],
    ),
];

/// Whether there is a PyTorch to ask; where there is none it is said once.
pub fn torch() -> bool {
    static THERE: OnceLock<bool> = OnceLock::new();
    *THERE.get_or_init(|| {
        let why = match std::env::var_os(PYTHON) {
            None => Some(format!("${PYTHON} names no Python")),
            Some(_) => Service::new(Python::default()).hello().err().map(|error| error.to_string()),
        };
        if let Some(why) = &why {
            println!("skipped, as nothing can be asked of PyTorch: {why}");
        }
        why.is_none()
    })
}

/// The shipped operation, made small, with PyTorch for an oracle.
fn twin(op: &str) -> OpSource {
    let source = crate::bench::source(op);
    let mut file: toml::Table = source.toml.parse().unwrap();
    for key in ["passes", "tolerance", "adversarial"] {
        file.remove(key);
    }
    file.insert("oracle".into(), "torch".into());
    let python = TWINS.iter().find(|(name, _)| *name == op).unwrap().1.to_owned();
    OpSource { name: op.to_owned(), toml: toml::to_string(&file).unwrap(), header: String::new(), python }
}

fn evaluate(op: &str, candidate: &str) -> Evaluation {
    let task = EvaluationTask { op: twin(op), ..task(op, candidate, &plain(op)) };
    answer(Ask::Evaluate(Box::new(task)))
}

/// An honest kernel to begin from: a small one where there is one.
fn plain(op: &str) -> String {
    match op {
        "rotary_embedding" | "fused_mlp" => starter(op),
        _ => honest::small(op).to_owned(),
    }
}

fn has_twin(op: &str) -> bool {
    TWINS.iter().any(|(name, _)| *name == op)
}

fn told(name: &str, verdict: &Verdict) -> String {
    let why: String = verdict.why().chars().take(230).collect();
    format!("{name:<55} {:<8} {:<12} {why}", verdict.status(), verdict.stage().name())
}

/// Judges kernels that are wrong; those that are not refused.
fn refused<'a>(rows: impl Iterator<Item = (&'a str, &'a str, Edits)>) -> Vec<String> {
    let mut accepted = Vec::new();
    for (name, op, edits) in rows.filter(|(_, op, _)| has_twin(op)) {
        let verdict = evaluate(op, &edit(&plain(op), edits)).verdict;
        println!("{}", told(name, &verdict));
        if correct(&verdict) && !BY_SHAPE.contains(&name) {
            accepted.push(told(name, &verdict));
        }
    }
    accepted
}

fn wrong_rows() -> impl Iterator<Item = (&'static str, &'static str, Edits)> {
    wrong::ROWS.iter().map(|row| (row.name, row.op, row.edits)).chain(MORE.iter().copied())
}

/// Judges kernels that are honest; those that are refused.
fn accepted<'a>(rows: impl Iterator<Item = (&'a str, &'a str, Edits)>) -> Vec<String> {
    let mut refused = Vec::new();
    for (name, op, edits) in rows.filter(|(_, op, _)| has_twin(op)) {
        let verdict = evaluate(op, &edit(&plain(op), edits)).verdict;
        println!("{}", told(&format!("{op}: {name}"), &verdict));
        let known = STRICTER.iter().any(|(of, input)| *of == op && verdict.why().contains(input));
        if !(correct(&verdict) || known) {
            refused.push(told(name, &verdict));
        }
    }
    refused
}

#[test]
fn pytorch_refuses_some_wrong_kernels() {
    if !torch() {
        return;
    }
    let rows: Vec<_> = wrong_rows().filter(|(_, op, _)| *op == "softmax" || *op == "rmsnorm").collect();
    assert_eq!(refused(few(&rows).copied()), Vec::<String>::new());
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn pytorch_refuses_what_headers_refuse() {
    if torch() {
        assert_eq!(refused(wrong_rows()), Vec::<String>::new());
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn pytorch_accepts_what_is_honest() {
    if torch() {
        let plain = TWINS.iter().map(|(op, _)| ("plain", *op, &[] as Edits));
        assert_eq!(accepted(plain.chain(honest::UNUSUAL.iter().copied())), Vec::<String>::new());
    }
}
