#![allow(clippy::unwrap_used)]

use super::*;

const RMSNORM: &str = r#"{
  "name": "rmsnorm_h256", "op_type": "rmsnorm", "tags": ["status:verified"],
  "axes": { "batch_size": { "type": "var" }, "hidden_size": { "type": "const", "value": 256 } },
  "inputs": {
    "hidden_states": { "shape": ["batch_size", "hidden_size"], "dtype": "bfloat16" },
    "weight": { "shape": ["hidden_size"], "dtype": "bfloat16" },
    "eps": { "shape": null, "dtype": "float32" }
  },
  "outputs": { "output": { "shape": ["batch_size", "hidden_size"], "dtype": "bfloat16" } },
  "reference": "import torch\n\ndef run(hidden_states, weight, eps):\n    return hidden_states\n"
}"#;

const TRACE: &str = r#"{"definition": "rmsnorm_h256", "workload": {"uuid": "a", "axes": {"batch_size": 32}, "inputs": {"hidden_states": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-06}}}, "solution": null}"#;
const PLAIN: &str = r#"{"uuid": "b", "axes": {"batch_size": 7}, "inputs": {"eps": {"type": "scalar", "value": 1e-05}}, "tolerance": {"max_atol": 0.01}}"#;

fn read(text: &str, lines: &[&str]) -> Result<Problem, String> {
    let lines = lines.join("\n");
    let workloads = (!lines.is_empty()).then_some(("w.jsonl", lines.as_str()));
    definition("d.json", text, workloads).map_err(|error| error.to_string())
}

#[test]
fn free_axes_are_symbols_constant_ones_are_numbers_and_workloads_are_sizes() {
    let found = read(RMSNORM, &[TRACE, "", PLAIN]).unwrap();
    let op = found.source.operation().unwrap();
    assert_eq!(
        op.c_function(),
        "void rmsnorm_h256(const T *hidden_states, const T *weight, T *output, int64_t batch_size, float eps);"
    );
    assert_eq!(found.dtype, Dtype::Bf16);
    assert_eq!(found.shapes, [7, 32].map(|size| Shape::from([("batch_size", size)])));
    assert_eq!((op.sweep.len(), op.primary_shape().unwrap().get("batch_size")), (2, Some(32)));
    assert!(op.tensors[1].weight && !op.tensors[0].weight && !op.adversarial.is_empty());
    let eps: Vec<&str> = op.scalars[0].others.iter().map(Expr::text).collect();
    assert_eq!((op.scalars[0].value.text(), eps), ("0.000001", vec!["0.00001", "0.0000005", "0.000002"]));
    let alone = read(RMSNORM, &[]).unwrap();
    assert!(alone.shapes.is_empty() && alone.source.operation().unwrap().sweep.len() == 3);
}

#[test]
fn an_axis_may_be_made_of_others_and_a_constraint_says_what_one_is() {
    let text = r#"{"name": "heads", "axes": {"B": {"type": "var"}, "H_qo": {"type": "var"}, "H_kv": {"type": "var"},
        "R": {"type": "const", "value": 4}, "flat": {"type": "expr", "expression": "B * H_qo // 2"}},
        "constraints": ["H_qo == H_kv * R", "B % 2 == 0 and B > 1"],
        "inputs": {"q": {"shape": ["B", "H_qo", 8], "dtype": "float32"}, "k": {"shape": ["flat"], "dtype": "float32"}},
        "outputs": {"out": {"shape": ["B", "H_qo"], "dtype": "float32"}}, "reference": "def run(q, k):\n    return q.sum(-1)\n"}"#;
    let found = read(text, &[r#"{"axes": {"B": 2, "H_kv": 3, "H_qo": 12}}"#]).unwrap();
    let op = found.source.operation().unwrap();
    assert_eq!(op.symbols, ["B", "H_kv"]);
    let shape = op.complete(&found.shapes[0]).unwrap();
    assert_eq!(op.all_elements(&shape).unwrap(), 2 * 12 * 8 + 12 + 24);
    assert!(op.complete(&Shape::from([("B", 3), ("H_kv", 1)])).is_err());
    let wrong = read(text, &[r#"{"axes": {"B": 2, "H_kv": 3, "H_qo": 13}}"#]).unwrap_err();
    assert!(wrong.contains("the axis `H_qo` is 13, and the definition makes it 12"), "{wrong}");
}

#[test]
fn what_python_would_work_out_otherwise_is_refused() {
    for (text, part) in [
        ("1 <= n <= 8", "compares three things at once"),
        ("n == m and 1 < n < 4", "compares three things at once"),
        ("n / 2 > 1", "divides into fractions"),
        ("-(-n // 2) > 1", "divides what is negative"),
    ] {
        let text = format!(
            r#"{{"name": "c", "axes": {{"n": {{"type": "var"}}, "m": {{"type": "var"}}}}, "constraints": ["{text}"],
            "inputs": {{"x": {{"shape": ["n", "m"], "dtype": "float32"}}}},
            "outputs": {{"out": {{"shape": ["n", "m"], "dtype": "float32"}}}}, "reference": "def run(x):\n    return x\n"}}"#
        );
        let why = read(&text, &[]).unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    assert!(!is_chained("n >= 1 and n <= 8 or (m == 2)"));
}

#[test]
fn a_number_that_is_zero_is_judged_at_others_too() {
    let workload = TRACE.replace("1e-06", "0.0");
    let op = read(RMSNORM, &[&workload]).unwrap().source.operation().unwrap();
    let eps: Vec<&str> = op.scalars[0].others.iter().map(Expr::text).collect();
    assert_eq!(eps, ["1", "-1"]);
}

#[test]
fn types_are_as_they_are_stated_where_the_judge_has_them() {
    let text = r#"{"name": "lse", "axes": {"n": {"type": "var"}, "k": {"type": "const", "value": 8}},
        "inputs": {"x": {"shape": ["n", "k"], "dtype": "float16"}, "scale": {"shape": [], "dtype": "float32"},
                   "times": {"shape": null, "dtype": "int32"}},
        "outputs": {"out": {"shape": ["n"], "dtype": "float32"}, "at": {"shape": ["n"], "dtype": "int64"}},
        "reference": "def run(x, scale, times):\n    return (x * scale * times).max(-1)\n"}"#;
    let workload = r#"{"axes": {"n": 5}, "inputs": {"times": {"type": "scalar", "value": 3}}}"#;
    let op = read(text, &[workload]).unwrap().source.operation().unwrap();
    assert_eq!(
        op.c_function(),
        "void lse(const T *x, const float *scale, float *out, int64_t *at, int64_t n, int64_t times);"
    );
    let without = read(text, &[]).unwrap_err();
    assert!(without.contains("`times` is of int32, and only workloads say which"), "{without}");
}

#[test]
fn what_is_wrong_with_a_definition_is_told_in_a_sentence() {
    for (from, to, part) in [
        ("\"axes\"", "\"axles\"", "missing field `axes`"),
        (
            "\"dtype\": \"bfloat16\" },\n    \"weight\"",
            "\"dtype\": \"float8_e4m3fn\" },\n    \"weight\"",
            "`hidden_states` is a tensor of float8_e4m3fn",
        ),
        (
            "\"dtype\": \"bfloat16\" },\n    \"eps\"",
            "\"dtype\": \"int32\" },\n    \"eps\"",
            "`weight` is a tensor of int32",
        ),
        ("\"dtype\": \"bfloat16\" },\n    \"eps\"", "\"dtype\": \"float16\" },\n    \"eps\"", "two types of 16 bits"),
        ("def run(", "def compute(", "its reference defines no `run`"),
        ("[\"hidden_size\"]", "[\"hidden\"]", "the shape of `weight`: `hidden` is no axis"),
        ("\"value\": 256", "\"value\": 0", "the axis `hidden_size` is 0"),
        ("\"type\": \"var\"", "\"type\": \"free\"", "unknown variant `free`"),
        ("\"tags\"", "\"constraints\": [\"batch_size == indptr[-1].item()\"], \"tags\"", "the constraint"),
        ("\"tags\"", "\"custom_inputs_entrypoint\": \"make\", \"tags\"", "made by its own `make`"),
    ] {
        assert!(RMSNORM.contains(from), "{from}");
        let error = read(&RMSNORM.replacen(from, to, 1), &[]).unwrap_err();
        assert!(error.contains(part) && error.lines().count() == 1, "{to}: {error}");
    }
    let error = read("{", &[]).unwrap_err();
    assert!(error.contains("d.json: EOF"), "{error}");
    let circle = RMSNORM
        .replace("\"value\": 256", "\"x\": 1")
        .replace("\"const\"", "\"expr\", \"expression\": \"hidden_size + 1\"");
    assert!(read(&circle, &[]).unwrap_err().contains("`hidden_size` is made of itself"));
}

#[test]
fn what_is_wrong_with_a_workload_is_told_with_its_line() {
    for (from, to, part) in [
        ("\"rmsnorm_h256\"", "\"rmsnorm_h512\"", "a workload of `rmsnorm_h512`, and the definition is `rmsnorm_h256`"),
        ("\"batch_size\": 32", "", "the axis `batch_size` has no value"),
        ("\"batch_size\"", "\"batch\"", "`batch` is no axis"),
        ("32", "0", "the axis `batch_size` is 0"),
        ("32", "\"32\"", "invalid type"),
        ("\"scalar\", \"value\": 1e-06", "\"scalar\"", "`eps` is a scalar without a number"),
        ("\"eps\": {\"type\": \"scalar\"", "\"epsilon\": {\"type\": \"scalar\"", "the scalar `eps` has no value"),
        ("\"random\"", "\"safetensors\", \"path\": \"x\", \"tensor_key\": \"y\"", "comes from a safetensors file"),
        ("\"random\"", "\"custom\"", "made by the definition's own code"),
        ("\"random\"", "\"zeros\"", "of the type `zeros`"),
        ("\"axes\"", "\"sizes\"", "it has no `axes`"),
    ] {
        assert!(TRACE.contains(from), "{from}");
        let error = read(RMSNORM, &[PLAIN, &TRACE.replacen(from, to, 1)]).unwrap_err();
        assert!(error.contains(part) && error.contains("w.jsonl, line 2"), "{to}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(read(RMSNORM, &["not json"]).unwrap_err().contains("w.jsonl, line 1: expected"));
    assert!(read(RMSNORM, &[" "]).unwrap_err().contains("w.jsonl has no workload"));
}
