#![allow(clippy::unwrap_used)]
use super::*;

fn region() -> Region {
    let described = serde_json::json!({
        "inputs": [
            {"role": "input", "name": "x0", "shape": [8, 32], "dtype": "float32", "contiguous": true,
             "figures": {"min": -3.0, "max": 3.1, "mean": 0.0, "deviation": 1.0, "zeros": 0.0, "whole": false, "count": 256}},
            {"role": "state", "name": "w0", "shape": [32], "dtype": "float32", "contiguous": true,
             "figures": {"min": 1.0, "max": 1.0, "mean": 1.0, "deviation": 0.0, "zeros": 0.0, "whole": true, "count": 32}},
        ],
        "outputs": [{"shape": [8, 32], "dtype": "float32"}],
        "flops": 0, "structure": [],
    });
    Region {
        name: "mul_0123abcd".into(),
        kind: Kind::Fusible,
        key: "0123abcd".into(),
        plain: None,
        family: "f".into(),
        operators: vec!["mul".into()],
        modules: vec!["norm".into()],
        lines: vec!["model.py:3: return x * w".into()],
        why_not: None,
        source: Some("def reference(x0, w0):\n    return x0 * w0\n".into()),
        described: Some(serde_json::from_value(described).unwrap()),
        inputs: None,
        outputs: None,
        dtype: Some("float32".into()),
        shipped: None,
        calls: 2,
        parts: Vec::new(),
        within: Vec::new(),
        us: Some(3.0),
        kernels: None,
        busy_us: None,
        ran: None,
    }
}

#[test]
fn a_region_is_an_operation_over_its_tensors() {
    let source = region().operation(Bar::Compiled).unwrap();
    assert_eq!((source.name.as_str(), region().element()), ("mul_0123abcd", Some(Dtype::F32)));
    let op = source.operation().unwrap();
    assert_eq!(op.c_function(), "void mul_0123abcd(const T *x0, const T *w0, T *out);");
    assert!(op.tensors[1].weight && !op.tensors[0].weight);
}

#[test]
fn one_that_cannot_be_judged_says_why() {
    let refused = Region { why_not: Some("a tensor has gaps".into()), ..region() };
    assert_eq!(refused.operation(Bar::Compiled).unwrap_err(), "a tensor has gaps");
    let unknown = Region { source: None, ..region() };
    assert!(unknown.operation(Bar::Compiled).unwrap_err().contains("text"));
}

#[test]
fn a_python_that_is_missing_or_says_nothing_is_told_in_a_sentence() {
    let asked = |python: &str| {
        let python = Python::chosen(Some(Path::new(python)));
        ask(&python, "", serde_json::json!({}), &mut |_| {}).unwrap_err().to_string()
    };
    assert!(asked("/no/such/python").contains("cannot be started"));
    assert!(asked("/bin/false").contains("exit status: 1"));
}

#[test]
fn what_a_process_is_doing_is_told_and_its_last_words_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("python");
    std::fs::write(&script, "#!/bin/sh\necho '@first' >&2\necho 'a last word' >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut heard = Vec::new();
    let error = ask(&Python::chosen(Some(&script)), "", serde_json::json!({}), &mut |what| heard.push(what.to_owned()));
    let error = error.unwrap_err().to_string();
    assert_eq!(heard, ["first"]);
    assert!(error.contains("exit status: 3; it said: a last word"), "{error}");
}
