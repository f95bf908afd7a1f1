//! Definitions of FlashInfer-Bench as targets, judged by the processor's judge: their own types named in the reference, workloads as sizes.

use std::path::Path;

use super::{service, text, warpsmith};

/// The reference names types, as nearly all do.
const RMSNORM: &str = r#"{
  "name": "rmsnorm_h256", "op_type": "rmsnorm", "description": "Rows by their root mean square.",
  "axes": { "batch_size": { "type": "var" }, "hidden_size": { "type": "const", "value": 256 } },
  "inputs": {
    "hidden_states": { "shape": ["batch_size", "hidden_size"], "dtype": "bfloat16" },
    "weight": { "shape": ["hidden_size"], "dtype": "bfloat16" },
    "eps": { "shape": null, "dtype": "float32" }
  },
  "outputs": { "output": { "shape": ["batch_size", "hidden_size"], "dtype": "bfloat16" } },
  "reference": "import torch\n\n@torch.no_grad()\ndef run(hidden_states, weight, eps):\n    batch_size, hidden_size = hidden_states.shape\n    assert hidden_size == 256\n    x = hidden_states.to(torch.float32)\n    scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)\n    return ((x * scale).float() * weight.to(torch.float32)).to(hidden_states.dtype)\n"
}"#;

const ROWS: &str = r#"{"definition": "rmsnorm_h256", "workload": {"uuid": "a", "axes": {"batch_size": 32}, "inputs": {"hidden_states": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-06}}}, "solution": null, "evaluation": null}
{"definition": "rmsnorm_h256", "workload": {"uuid": "b", "axes": {"batch_size": 7}, "inputs": {"hidden_states": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-05}}}, "solution": null, "evaluation": null}
"#;

const RMSNORM_C: &str = r#"/*---
op = "rmsnorm_h256"
dtypes = ["bf16"]
arch = ["native"]
---*/
void rmsnorm_h256(const T *hidden_states, const T *weight, T *output, int64_t batch_size, float eps) {
    for (int64_t r = 0; r < batch_size; r++) {
        const T *row = hidden_states + r * 256;
        float sum = 0;
        for (int64_t j = 0; j < 256; j++) sum += ws_load(row[j]) * ws_load(row[j]);
        const float scale = 1 / sqrtf(sum / 256 + eps);
        for (int64_t j = 0; j < 256; j++) output[r * 256 + j] = ws_store(ws_load(row[j]) * scale * ws_load(weight[j]));
    }
}
"#;

/// SOL-ExecBench has no type of operation, and its workloads stand alone.
const GEMM: &str = r#"{
  "name": "gemm_n48_k64", "description": "C = A @ B.T", "hf_id": "none",
  "axes": { "M": { "type": "var" }, "N": { "type": "const", "value": 48 }, "K": { "type": "const", "value": 64 },
            "twice": { "type": "expr", "expression": "M * 2" } },
  "inputs": { "A": { "shape": ["twice", "K"], "dtype": "float16" }, "B": { "shape": ["N", "K"], "dtype": "float16" } },
  "outputs": { "C": { "shape": ["twice", "N"], "dtype": "float16" } },
  "reference": "import torch\n\ndef run(A, B):\n    C = torch.empty((A.shape[0], 48), dtype=torch.float16, device=A.device)\n    C.copy_(torch.matmul(A, B.T))\n    return {'C': C}\n"
}"#;

const PRODUCTS: &str = r#"{"uuid": "one", "axes": {"M": 24}, "inputs": {"A": {"type": "random"}, "B": {"type": "random"}}, "tolerance": {"max_atol": 0.01, "max_rtol": 0.01}}
"#;

const GEMM_C: &str = r#"/*---
op = "gemm_n48_k64"
dtypes = ["f16", "f32"]
arch = ["native"]
---*/
void gemm_n48_k64(const T *A, const T *B, T *C, int64_t M) {
    for (int64_t i = 0; i < 2 * M; i++)
        for (int64_t j = 0; j < 48; j++) {
            float sum = 0;
            for (int64_t k = 0; k < 64; k++) sum += ws_load(A[i * 64 + k]) * ws_load(B[j * 64 + k]);
            C[i * 48 + j] = ws_store(sum);
        }
}
"#;

fn write(root: &Path, files: &[(&str, &str)]) {
    files.iter().for_each(|(name, text)| std::fs::write(root.join(name), text).unwrap());
}

/// What `bench` says of a kernel for a definition, and whether it is right.
fn judged(root: &Path, kernel: &str, definition: &str, workloads: &str) -> (Option<i32>, String) {
    let made = warpsmith(root, &["bench", kernel, "--problem", definition, "--workloads", workloads]);
    (made.status.code(), text(&made.stdout) + &text(&made.stderr))
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_definition_is_a_target_at_the_sizes_of_its_workloads() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, &[("d.json", RMSNORM), ("w.jsonl", ROWS), ("right.c", RMSNORM_C)]);
    write(root, &[("wrong.c", &RMSNORM_C.replace(" + eps)", ")"))]);
    let (code, said) = judged(root, "right.c", "d.json", "w.jsonl");
    assert!(code == Some(0) && said.starts_with("rmsnorm_h256: correct\n"), "{said}");
    assert!(said.contains("batch_size=7") && said.contains("batch_size=32") && said.contains("eager bf16: "), "{said}");
    let (code, said) = judged(root, "wrong.c", "d.json", "w.jsonl");
    assert!(code == Some(1), "{said}");
    let made = warpsmith(root, &["init", "--problem", "d.json", "--workloads", "w.jsonl", "--backend", "cpu"]);
    let kernel = std::fs::read_to_string(root.join("kernels/cpu/rmsnorm_h256.c")).unwrap_or_default();
    assert!(made.status.success() && kernel.contains("dtypes = [\"bf16\"]"), "{made:?} {kernel}");
    // Later commands find the operation in the workspace.
    std::fs::write(root.join("kernels/cpu/rmsnorm_h256.c"), RMSNORM_C).unwrap();
    let made = warpsmith(root, &["bench", "kernels/cpu/rmsnorm_h256.c", "--smoke"]);
    assert!(made.status.success(), "{made:?}");
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_reference_is_followed_in_every_type_that_a_kernel_serves() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(root, &[("d.json", GEMM), ("w.jsonl", PRODUCTS), ("right.c", GEMM_C)]);
    write(root, &[("wrong.c", &GEMM_C.replace("k < 64", "k < 63"))]);
    let (code, said) = judged(root, "right.c", "d.json", "w.jsonl");
    assert!(code == Some(0) && said.starts_with("gemm_n48_k64: correct\n"), "{said}");
    let (code, said) = judged(root, "wrong.c", "d.json", "w.jsonl");
    assert!(code == Some(1), "{said}");
}

#[test]
fn what_is_wrong_with_a_definition_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let fails = |arguments: &[&str], part: &str| {
        let made = warpsmith(root, arguments);
        let said = text(&made.stderr);
        assert!(made.status.code() == Some(2) && said.contains(part) && said.lines().count() == 1, "{made:?}");
    };
    write(root, &[("d.json", RMSNORM), ("w.jsonl", PRODUCTS), ("k.c", RMSNORM_C), ("p.py", "class Model: ...\n")]);
    fails(&["bench", "k.c", "--problem", "d.json", "--workloads", "w.jsonl"], "w.jsonl, line 1: `M` is no axis");
    fails(&["bench", "k.c", "--workloads", "w.jsonl"], "--workloads says at which sizes");
    fails(&["ops", "p.py", "--workloads", "w.jsonl"], "--workloads is for a definition in JSON");
    fails(&["run", "k.c", "--workloads", "w.jsonl"], "--workloads is for a definition in JSON");
    fails(&["run", "d.json", "--workloads", "nowhere.jsonl", "--backend", "cpu"], "nowhere.jsonl cannot be read");
    fails(&["ops", "missing.json"], "missing.json cannot be read");
    std::fs::write(root.join("e.json"), "{\"name\": \"x\"}").unwrap();
    fails(&["init", "--problem", "e.json", "--backend", "cpu"], "e.json: missing field `axes`");
    let shown = warpsmith(root, &["ops", "d.json"]);
    let said = text(&shown.stdout);
    assert!(shown.status.success() && said.contains("void rmsnorm_h256(const T *hidden_states"), "{said}");
}
