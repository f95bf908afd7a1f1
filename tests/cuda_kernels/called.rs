//! Kernels that ship as those of regions of a model: called with other tensors, more of them at once, and what lies otherwise.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::atomic::AtomicBool;

use warpsmith::backend::cuda::{Compiled, Compiler};
use warpsmith::kernel::{Call, KernelFile, PlannedLaunch, adopted};
use warpsmith::op::{Dtype, Operation, Shape};

use super::{GPUS, compiler, facts, operation, root};

/// A tensor of a region; `draw` says how one that it takes is drawn.
fn tensor(name: &str, shape: &[i64], dtype: &str, draw: Option<&str>) -> String {
    let role = if draw.is_some() { "input" } else { "output" };
    let draw = draw.map(|draw| format!("draw = {{ {draw} }}\n")).unwrap_or_default();
    let sizes: Vec<String> = shape.iter().map(|size| format!("\"{size}\"")).collect();
    let sizes = sizes.join(", ");
    format!("[[tensors]]\nname = \"{name}\"\nrole = \"{role}\"\nshape = [{sizes}]\ndtype = \"{dtype}\"\n{draw}")
}

/// A region of these tensors, of which the named ones come in.
fn region_of(tensors: &str, names: &[&str]) -> Operation {
    let toml = format!(
        "name = \"region_1\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\n\
         smoke = {{}}\nsweep = [{{}}]\nedges = []\nrandom = {{}}\n{tensors}"
    );
    Operation::parse(&toml, &format!("def reference({}):\n    return x0\n", names.join(", ")), "region_1").unwrap()
}

fn region(inputs: &[(&str, &[i64])], outputs: &[(&str, &[i64])]) -> Operation {
    let taken = inputs.iter().map(|(name, shape)| tensor(name, shape, "T", Some("dist = \"normal\"")));
    let tensors: String = taken.chain(outputs.iter().map(|(name, shape)| tensor(name, shape, "T", None))).collect();
    region_of(&tensors, &inputs.iter().map(|(name, _)| *name).collect::<Vec<_>>())
}

/// A kernel that ships, called for a region of one type and compiled for a GPU: what its plan launches, and what the compiler says.
fn called(
    compiler: &Compiler,
    file: &str,
    (theirs, own): (Option<&Operation>, &Operation),
    call: &Call,
    (dtype, gpu): (Dtype, (u32, i64, i64)),
) -> (Vec<PlannedLaunch>, Compiled) {
    let text = std::fs::read_to_string(root().join("kernels/cuda").join(file)).unwrap();
    let facts = facts(gpu);
    let kernel = KernelFile::parse(&adopted(&text, (theirs, own), call, dtype, &facts).unwrap()).unwrap();
    let resolution = kernel.resolve(&Shape::default(), dtype, &facts).unwrap();
    let launches = kernel.launches(own, &[], &resolution, &facts).unwrap();
    let compiled = compiler
        .candidate(own, &kernel, &[resolution], gpu.0, &facts, &AtomicBool::new(false))
        .unwrap_or_else(|error| panic!("{file} {dtype} {:?}: {error}", call.symbols));
    assert!(compiled[0].resources.iter().all(|kernel| kernel.registers > 0), "{file} {dtype} {:?}", call.symbols);
    (launches, compiled[0].clone())
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn products_of_one_tensor_and_their_activations_compile_as_one_kernel_whatever_the_rows_are() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let theirs = operation("matmul");
    // Rows, columns, terms; how many times so many columns each has; a bias; an activation: tensor cores, a few rows, one row, clusters that share
    // the terms, large tiles.
    let cases: [(_, _, _, &[i64], _, _); 12] = [
        (128, 768, 768, &[1, 1, 1], 1, 0),
        (128, 768, 768, &[1, 1], 0, 0),
        (128, 3072, 768, &[1], 1, 1),
        (8, 4096, 4096, &[1, 1, 1], 1, 2),
        (1, 4096, 4096, &[1, 1, 1], 0, 3),
        (128, 1024, 4096, &[1, 1], 0, 4),
        (4096, 4096, 4096, &[1, 1, 1], 1, 0),
        (2048, 5120, 1280, &[1], 1, 2),
        (128, 1024, 2048, &[2, 1, 1], 0, 0),
        (1, 1024, 4096, &[4, 1, 1], 1, 0),
        (8, 256, 1536, &[6, 1], 1, 0),
        (2048, 1024, 4096, &[4, 1, 1], 1, 0),
    ];
    for (m, n, k, spans, has_bias, act) in cases {
        let count = spans.len();
        let numbers = 0..count;
        let (weights, biases, results): (Vec<_>, Vec<_>, Vec<_>) = (
            numbers.clone().map(|at| format!("w{at}")).collect(),
            numbers.clone().map(|at| format!("b{at}")).collect(),
            numbers.map(|at| format!("out{at}")).collect(),
        );
        let sizes: Vec<([i64; 2], [i64; 1], [i64; 2])> =
            spans.iter().map(|span| ([n * span, k], [n * span], [m, n * span])).collect();
        let a = [m, k];
        let mut inputs: Vec<(&str, &[i64])> = vec![("x0", &a)];
        inputs.extend(weights.iter().zip(&sizes).map(|(name, (b, _, _))| (name.as_str(), &b[..])));
        if has_bias == 1 {
            inputs.extend(biases.iter().zip(&sizes).map(|(name, (_, bias, _))| (name.as_str(), &bias[..])));
        }
        let outputs: Vec<(&str, &[i64])> =
            results.iter().zip(&sizes).map(|(name, (_, _, c))| (name.as_str(), &c[..])).collect();
        let own = region(&inputs, &outputs);
        let of = |at: usize| {
            let bias = (has_bias == 1).then(|| biases[at].clone());
            serde_json::json!({ "b": weights[at], "bias": bias, "c": results[at] })
        };
        let mut first = of(0);
        first["a"] = "x0".into();
        let mut lets = serde_json::json!({ "PARTS": count, "ACT": act });
        for (name, span) in ["SPAN", "SPAN_1", "SPAN_2"].iter().zip(spans) {
            lets[name] = (*span).into();
        }
        let call: Call = serde_json::from_value(serde_json::json!({
            "op": "matmul",
            "tensors": first,
            "symbols": { "batch": spans.iter().sum::<i64>(), "M": m, "N": n, "K": k, "trans_b": 1, "has_bias": has_bias },
            "scalars": {},
            "lets": lets,
            "beside": (1..weights.len()).map(of).collect::<Vec<_>>(),
        }))
        .unwrap();
        for (file, gpu) in [("matmul.cu", GPUS[0]), ("nvidia-h200/matmul.cu", GPUS[1])] {
            let (launches, compiled) = called(&compiler, file, (Some(&theirs), &own), &call, (Dtype::Bf16, gpu));
            eprintln!(
                "{file} {spans:?} of {m} x {n} x {k}: {} {:?}, {}",
                launches[0].kernel, launches[0].grid, compiled.log
            );
        }
    }
}

#[test]
fn attention_whose_queries_keys_and_values_lie_side_by_side_compiles_in_every_dtype() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let theirs = operation("flash_attention");
    let own = region(&[("x0", &[128, 2304])], &[("out", &[1, 128, 12, 64])]);
    let call: Call = serde_json::from_value(serde_json::json!({
        "op": "flash_attention",
        "tensors": { "q": "x0", "k": "x0", "v": "x0", "o": "out" },
        "symbols": { "B": 1, "H": 12, "H_kv": 12, "S_q": 128, "S_kv": 128, "D": 64, "causal": 1, "bshd": 1 },
        "scalars": { "scale": 0.125 },
        "lets": { "Q_HEADS": 36, "Q_FIRST": 0, "K_HEADS": 36, "K_FIRST": 12, "V_HEADS": 36, "V_FIRST": 24 },
    }))
    .unwrap();
    for (file, gpu) in [("flash_attention.cu", GPUS[0]), ("nvidia-h200/flash_attention.cu", GPUS[1])] {
        for dtype in Dtype::ALL {
            called(&compiler, file, (Some(&theirs), &own), &call, (dtype, gpu));
        }
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn attention_with_a_bias_compiles_in_every_dtype_and_path() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let theirs = operation("flash_attention");
    // Many queries, an odd number of keys, few queries, what lies otherwise; for each what is added, truth values, and both.
    let cases = [
        (128, 128, [0, 16384, 128, 1]),
        (197, 197, [38809, 0, 197, 1]),
        (1, 512, [512, 0, 0, 1]),
        (64, 64, [0, 1, 256, 4]),
    ];
    for (queries, keys, steps) in cases {
        for (bias, seen, hidden) in [(1, 0, 0), (0, 1, -65536), (1, 1, 1)] {
            let scores = [2, 4, queries, keys];
            let (of_q, of_k) = ([2, queries, 4, 64], [2, keys, 4, 64]);
            let normal = Some("dist = \"normal\"");
            let mut tensors = vec![
                tensor("x0", &of_q, "T", normal),
                tensor("x1", &of_k, "T", normal),
                tensor("x2", &of_k, "T", normal),
                tensor("x3", &scores, "T", normal),
                tensor("x4", &scores, "u8", Some("dist = \"index\", scale = \"2\"")),
            ];
            let mut call = serde_json::json!({
                "op": "flash_attention",
                "tensors": { "q": "x0", "k": "x1", "v": "x2", "o": "out" },
                "symbols": { "B": 2, "H": 4, "H_kv": 4, "S_q": queries, "S_kv": keys, "D": 64, "causal": 0, "bshd": 1 },
                "scalars": { "scale": 0.125 },
                "lets": { "BIAS": bias, "SEEN": seen, "HIDDEN": hidden },
            });
            for (of, there, name) in [("BIAS", bias, "x3"), ("SEEN", seen, "x4")] {
                if there == 1 {
                    call["tensors"][format!("{of}_TENSOR")] = name.into();
                    ["B", "H", "Q", "K"]
                        .iter()
                        .zip(steps)
                        .for_each(|(own, step)| call["lets"][format!("{of}_{own}")] = step.into());
                }
            }
            let call: Call = serde_json::from_value(call).unwrap();
            tensors.push(tensor("out", &of_q, "T", None));
            let own = region_of(&tensors.concat(), &["x0", "x1", "x2", "x3", "x4"]);
            for (file, gpu) in [("flash_attention.cu", GPUS[0]), ("nvidia-h200/flash_attention.cu", GPUS[1])] {
                for dtype in Dtype::ALL {
                    let (_, compiled) = called(&compiler, file, (Some(&theirs), &own), &call, (dtype, gpu));
                    eprintln!("{file} {dtype} {queries} {keys} {bias} {seen}: {}", compiled.log);
                }
            }
        }
    }
}

#[test]
fn products_of_groups_take_all_from_their_call_and_compile_for_hopper() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let dtype = Dtype::Bf16;
    for (groups, m, n, k, turned) in [(8, 2, 28672, 4096, 1), (128, 8192, 1536, 2048, 1), (8, 8192, 1024, 2816, 0)] {
        let matrices = if turned == 1 { [groups, n, k] } else { [groups, k, n] };
        let normal = Some("dist = \"normal\"");
        let ends = format!("dist = \"ends\", scale = \"{m}\"");
        let tensors = [
            tensor("x0", &[m, k], "T", normal),
            tensor("w0", &matrices, "T", normal),
            tensor("x1", &[groups], "i32", Some(&ends)),
            tensor("out", &[m, n], "T", None),
        ];
        let own = region_of(&tensors.concat(), &["x0", "w0", "x1"]);
        let (all, read) = (own.input_bytes(&Shape::default(), dtype), own.read_bytes(&Shape::default(), dtype));
        let share = read.unwrap() as f64 / all.unwrap() as f64;
        assert!(if m < groups { share < 0.3 } else { share > 0.6 && share < 1.0 }, "{groups} of {m} rows: {share}");
        let call: Call = serde_json::from_value(serde_json::json!({
            "op": "grouped_mm",
            "tensors": { "a": "x0", "b": "w0", "ends": "x1", "c": "out" },
            "symbols": { "groups": groups, "M": m, "N": n, "K": k, "trans_b": turned },
            "scalars": {},
        }))
        .unwrap();
        let (launches, compiled) =
            called(&compiler, "nvidia-h200/grouped_mm.cu", (None, &own), &call, (dtype, GPUS[1]));
        eprintln!(
            "{groups} groups, {m} x {n} x {k}: {:?} {:?}, {}",
            launches[0].grid, launches[0].shared, compiled.log
        );
    }
}

#[test]
fn a_convolution_of_patches_side_by_side_takes_all_from_its_call_and_compiles() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    // Pictures, their sides, channels, the side of a patch: many patches, an odd number of them, few terms, one patch that is not square.
    for (b, c, [h, w], o, [kh, kw]) in [
        (1, 3, [224, 224], 768, [16, 16]),
        (3, 3, [224, 224], 1024, [32, 32]),
        (2, 1, [8, 24], 40, [8, 8]),
        (1, 4, [64, 48], 96, [4, 16]),
    ] {
        let x = [b, c, h, w];
        let (weight, bias, y) = ([o, c, kh, kw], [o], [b, o, h / kh, w / kw]);
        let own = region(&[("x0", &x), ("w0", &weight), ("w1", &bias)], &[("out", &y)]);
        let call: Call = serde_json::from_value(serde_json::json!({
            "op": "patch_mm",
            "tensors": { "x": "x0", "w": "w0", "bias": "w1", "out": "out" },
            "symbols": { "B": b, "C": c, "H": h, "W": w, "O": o, "KH": kh, "KW": kw },
            "scalars": {},
        }))
        .unwrap();
        for (dtype, gpu) in [(Dtype::Bf16, GPUS[0]), (Dtype::F16, GPUS[1])] {
            let (launches, _) = called(&compiler, "nvidia-h200/patch_mm.cu", (None, &own), &call, (dtype, gpu));
            assert!(launches[0].shared <= 48 << 10, "as much as a block has unasked: {}", launches[0].shared);
        }
    }
}
