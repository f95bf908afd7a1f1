//! Kernels of one operation as kernels of another: what they are called with, and what is refused.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::{Argument, Call, Facts, KernelFile, MapSource, PlannedLaunch, add_variant, adopted};
use crate::op::{Dtype, OpSource, Operation, Shape};
use crate::workspace::embedded;

fn operation(name: &str) -> Operation {
    OpSource::read(name, &|path| embedded(path).map(str::to_owned)).unwrap().operation().unwrap()
}

fn region() -> Operation {
    region_of(&[("x0", "[\"4\", \"8\"]"), ("w0", "[\"6\", \"8\"]")], "[\"4\", \"6\"]")
}

fn region_of(inputs: &[(&str, &str)], out: &str) -> Operation {
    region_with(inputs, &[("out", out)])
}

fn region_with(inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> Operation {
    let tensor = |name: &str, role: &str, shape: &str| {
        let draw = if role == "input" { "draw = { dist = \"normal\" }\n" } else { "" };
        format!("[[tensors]]\nname = \"{name}\"\nrole = \"{role}\"\nshape = {shape}\ndtype = \"T\"\n{draw}")
    };
    let toml = format!(
        "name = \"mm_1\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {{}}\nsweep = [{{}}]\n\
         edges = []\nrandom = {{}}\n{}{}",
        inputs.iter().map(|(name, shape)| tensor(name, "input", shape)).collect::<String>(),
        outputs.iter().map(|(name, shape)| tensor(name, "output", shape)).collect::<String>()
    );
    let names: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
    Operation::parse(&toml, &format!("def reference({}):\n    return x0\n", names.join(", ")), "mm_1").unwrap()
}

fn facts() -> Facts {
    Facts::from([("VECTOR_BYTES".to_owned(), 32)])
}

fn hopper() -> Facts {
    [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

fn call() -> Call {
    let names = [("a", Some("x0")), ("b", Some("w0")), ("bias", None), ("c", Some("out"))];
    let sizes = [("batch", 1), ("M", 4), ("N", 6), ("K", 8), ("trans_b", 1), ("has_bias", 0)];
    Call {
        op: "matmul".into(),
        tensors: names.map(|(own, name)| (own.to_owned(), name.map(str::to_owned))).into(),
        symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
        scalars: BTreeMap::new(),
        lets: BTreeMap::new(),
        beside: Vec::new(),
    }
}

#[test]
fn a_kernel_that_ships_is_called_with_what_a_region_has() {
    let shipped = embedded("kernels/cpu/matmul.c").unwrap();
    let text = adopted(shipped, (Some(&operation("matmul")), &region()), &call(), Dtype::F32, &Facts::new()).unwrap();
    assert!(
        text.contains(
            "void mm_1(const T *x0, const T *w0, T *out) {\n    matmul(x0, w0, 0, out, 1, 4, 6, 8, 1, 0);\n}"
        ),
        "{text}"
    );
    assert!(text.contains("static void matmul(const T *a"), "{text}");
    let (own, theirs) = (KernelFile::parse(&text).unwrap(), KernelFile::parse(shipped).unwrap());
    assert_eq!((own.front.op.as_str(), own.front.dtypes.as_slice()), ("mm_1", &[Dtype::F32][..]));
    assert_eq!(own.front.tune, theirs.front.tune);
    assert!(own.front.tune.len() > 1);
}

#[test]
fn variants_are_decided_by_the_sizes_that_there_are() {
    let shipped = embedded("kernels/cpu/matmul.c").unwrap();
    let row = |text: &str, when, value| add_variant(text, when, &BTreeMap::from([("MR".to_owned(), value)])).unwrap();
    let text = row(&row(shipped, "N > 100", 6), "N <= 6", 8);
    let text = adopted(&text, (Some(&operation("matmul")), &region()), &call(), Dtype::F32, &Facts::new()).unwrap();
    let kernel = KernelFile::parse(&text).unwrap();
    assert!(kernel.front.variants.is_empty());
    assert_eq!(kernel.resolve(&Shape::default(), Dtype::F32, &facts()).unwrap().macros["MR"], 8);
}

#[test]
fn the_plan_of_a_kernel_for_a_gpu_hands_on_names_and_sizes() {
    let facts = hopper();
    for (file, dtype) in [("kernels/cuda/matmul.cu", Dtype::F32), ("kernels/cuda/nvidia-h200/matmul.cu", Dtype::F16)] {
        let text =
            adopted(embedded(file).unwrap(), (Some(&operation("matmul")), &region()), &call(), dtype, &facts).unwrap();
        let kernel = KernelFile::parse(&text).unwrap();
        let resolution = kernel.resolve(&Shape::default(), dtype, &facts).unwrap();
        assert!(kernel.front.tune.len() > 1 && kernel.front.variants.is_empty());
        assert!(!resolution.macros.contains_key("M"), "parameters of kernels are called so");
        let launches = kernel.launches(&region(), &[], &resolution, &facts).unwrap();
        assert_eq!(resolution.macros["WS_TRANS_B"], 1);
        assert!(!launches.is_empty());
        let theirs = operation("matmul");
        let whole = KernelFile::parse(embedded(file).unwrap()).unwrap();
        let shape = theirs.complete(&Shape(call().symbols)).unwrap();
        let of_theirs = whole.resolve(&shape, dtype, &facts).unwrap();
        let planned = whole.launches(&theirs, &theirs.ints(&shape).unwrap(), &of_theirs, &facts).unwrap();
        let geometry = |all: &[PlannedLaunch]| -> Vec<_> {
            all.iter().map(|one| (one.kernel.clone(), one.grid, one.block, one.shared, one.args.len())).collect()
        };
        assert_eq!(geometry(&launches), geometry(&planned));
    }
}

#[test]
fn a_scalar_of_a_launch_is_given_as_a_float() {
    let theirs = operation("rmsnorm");
    let call = Call {
        op: "rmsnorm".into(),
        tensors: [("x", "x0"), ("weight", "w0"), ("y", "out")]
            .map(|(own, name)| (own.to_owned(), Some(name.to_owned())))
            .into(),
        symbols: theirs.symbols.iter().map(|symbol| (symbol.clone(), 8)).collect(),
        scalars: theirs.scalars.iter().map(|scalar| (scalar.name.clone(), 1e-6)).collect(),
        lets: BTreeMap::new(),
        beside: Vec::new(),
    };
    let facts = hopper();
    let text =
        adopted(embedded("kernels/cuda/rmsnorm.cu").unwrap(), (Some(&theirs), &region()), &call, Dtype::F32, &facts)
            .unwrap();
    let kernel = KernelFile::parse(&text).unwrap();
    let resolution = kernel.resolve(&Shape::default(), Dtype::F32, &facts).unwrap();
    let launches = kernel.launches(&region(), &[], &resolution, &facts).unwrap();
    assert!(launches[0].args.contains(&Argument::Float(1e-6f32.to_bits())), "{launches:?}");
    let missing = Call { scalars: BTreeMap::new(), ..call };
    assert!(
        adopted(embedded("kernels/cuda/rmsnorm.cu").unwrap(), (Some(&theirs), &region()), &missing, Dtype::F32, &facts)
            .is_err()
    );
}

#[test]
fn queries_keys_and_values_may_lie_side_by_side_in_one_tensor() {
    let theirs = operation("flash_attention");
    let own = region_of(&[("x0", "[\"80\", \"288\"]")], "[\"2\", \"40\", \"6\", \"16\"]");
    let sizes = [("B", 2), ("H", 6), ("H_kv", 6), ("S_q", 40), ("S_kv", 40), ("D", 16), ("causal", 1), ("bshd", 1)];
    let row = [("Q", 0), ("K", 6), ("V", 12)];
    let call = Call {
        op: "flash_attention".into(),
        tensors: [("q", "x0"), ("k", "x0"), ("v", "x0"), ("o", "out")]
            .map(|(own, name)| (own.to_owned(), Some(name.to_owned())))
            .into(),
        symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
        scalars: BTreeMap::from([("scale".to_owned(), 0.25)]),
        lets: row
            .into_iter()
            .flat_map(|(of, first)| [(format!("{of}_HEADS"), 18), (format!("{of}_FIRST"), first)])
            .collect(),
        beside: Vec::new(),
    };
    let made = |file: &str, dtype, facts: &Facts| {
        adopted(embedded(file).unwrap(), (Some(&theirs), &own), &call, dtype, facts).unwrap()
    };
    let text = made("kernels/cpu/flash_attention.c", Dtype::F32, &facts());
    assert!(text.contains("flash_attention(x0, x0, x0, out, 2, 6, 6, 40, 40, 16, 1, 1, (float)2.5e-1);"), "{text}");
    let macros = KernelFile::parse(&text).unwrap().resolve(&Shape::default(), Dtype::F32, &facts()).unwrap().macros;
    assert_eq!(["Q_HEADS", "Q_FIRST", "K_FIRST", "V_HEADS", "V_FIRST"].map(|name| macros[name]), [18, 0, 6, 18, 12]);

    let facts = hopper();
    let kernel = KernelFile::parse(&made("kernels/cuda/nvidia-h200/flash_attention.cu", Dtype::F16, &facts)).unwrap();
    let resolution = kernel.resolve(&Shape::default(), Dtype::F16, &facts).unwrap();
    let launches = kernel.launches(&own, &[], &resolution, &facts).unwrap();
    let maps: Vec<_> = launches[0]
        .args
        .iter()
        .filter_map(|argument| match argument {
            Argument::TensorMap(map) => Some((map.dims.clone(), map.strides_bytes.clone())),
            _ => None,
        })
        .collect();
    let (longer, of_output) = ((vec![16, 40, 18, 2], vec![576, 32, 23_040]), (vec![16, 40, 6, 2], vec![192, 32, 7680]));
    assert_eq!(maps, [longer.clone(), longer.clone(), longer, of_output]);

    let other = "/*---\nop = \"flash_attention\"\ndtypes = [\"f32\"]\n---*/\nvoid flash_attention(const T *q) {}\n";
    let error = adopted(other, (Some(&theirs), &own), &call, Dtype::F32, &facts).unwrap_err().to_string();
    assert!(error.contains("no `K_FIRST` under [let]"), "{error}");
}

#[test]
fn what_is_added_to_scores_goes_where_a_constant_stands_for_it_in_c_as_the_last_argument() {
    let inputs = ["x0", "x1", "x2", "x3"].map(|name| (name, "[\"2\", \"6\", \"40\", \"40\"]"));
    let own = region_of(&inputs, "[\"2\", \"40\", \"6\", \"40\"]");
    let theirs = operation("flash_attention");
    let tensors = [("q", "x0"), ("k", "x1"), ("v", "x2"), ("o", "out"), ("BIAS_TENSOR", "x3")];
    let sizes = [("B", 2), ("H", 6), ("H_kv", 6), ("S_q", 40), ("S_kv", 40), ("D", 40), ("causal", 0), ("bshd", 0)];
    let call = Call {
        op: "flash_attention".into(),
        tensors: tensors.map(|(own, name)| (own.to_owned(), Some(name.to_owned()))).into(),
        symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
        scalars: BTreeMap::from([("scale".to_owned(), 0.25)]),
        lets: [("BIAS", 1), ("BIAS_B", 9600), ("BIAS_H", 1600), ("BIAS_Q", 40), ("BIAS_K", 1)]
            .map(|(name, number)| (name.to_owned(), number))
            .into(),
        beside: Vec::new(),
    };
    let made = |file: &str, dtype, facts: &Facts| {
        adopted(embedded(file).unwrap(), (Some(&theirs), &own), &call, dtype, facts).unwrap()
    };
    let text = made("kernels/cpu/flash_attention.c", Dtype::F32, &facts());
    assert!(text.contains("flash_attention(x0, x1, x2, out, 2, 6, 6, 40, 40, 40, 0, 0, (float)2.5e-1, x3);"), "{text}");
    for file in ["kernels/cuda/flash_attention.cu", "kernels/cuda/nvidia-h200/flash_attention.cu"] {
        let kernel = KernelFile::parse(&made(file, Dtype::F16, &hopper())).unwrap();
        let resolution = kernel.resolve(&Shape::default(), Dtype::F16, &hopper()).unwrap();
        let launches = kernel.launches(&own, &[], &resolution, &hopper()).unwrap();
        let last = |launch: &PlannedLaunch| launch.args[launch.args.len() - 2..].to_vec();
        let nothing = Argument::Constant(0);
        assert_eq!(last(&launches[0]), [Argument::Tensor(3), nothing.clone()], "{file}");
        let plain = KernelFile::parse(embedded(file).unwrap()).unwrap();
        let shape = theirs.complete(&Shape(call.symbols.clone())).unwrap();
        let resolution = plain.resolve(&shape, Dtype::F16, &hopper()).unwrap();
        let without = plain.launches(&theirs, &theirs.ints(&shape).unwrap(), &resolution, &hopper()).unwrap();
        assert_eq!(last(&without[0]), [nothing.clone(), nothing], "{file}: nothing is added by itself");
    }
}

#[test]
fn every_kernel_in_c_can_be_adopted_with_its_buffers_and_half_a_call_is_refused() {
    let shipped = |op: &str| embedded(&format!("kernels/cpu/{op}.c")).unwrap();
    for op in ["softmax", "rmsnorm", "layernorm", "reduce", "flash_attention", "fused_mlp"] {
        let theirs = operation(op);
        let inputs = ["x0", "w0", "x0", "w0"].into_iter();
        let of = theirs.tensors.iter().zip(inputs.chain(["out"])).map(|(tensor, name)| {
            let output = tensor.role == crate::op::Role::Output;
            (tensor.name.clone(), Some(if output { "out" } else { name }.to_owned()))
        });
        let call = Call {
            op: op.into(),
            tensors: of.collect(),
            symbols: theirs.symbols.iter().map(|symbol| (symbol.clone(), 4)).collect(),
            scalars: theirs.scalars.iter().map(|scalar| (scalar.name.clone(), 1e-6)).collect(),
            lets: BTreeMap::new(),
            beside: Vec::new(),
        };
        let text = adopted(shipped(op), (Some(&theirs), &region()), &call, Dtype::F16, &Facts::new()).unwrap();
        assert_eq!(text.contains("(float)1e-6"), !theirs.scalars.is_empty(), "{text}");
        if op == "fused_mlp" {
            let call =
                "T *out, float *x_wide, float *hidden) {\n    fused_mlp(x0, w0, x0, w0, out, x_wide, hidden, 4, 4, 4);";
            assert!(text.contains(call), "{text}");
            let kernel = KernelFile::parse(&text).unwrap();
            let resolution = kernel.resolve(&Shape::default(), Dtype::F16, &facts()).unwrap();
            assert_eq!(resolution.scratch_elements, [16, 16]);
        }
    }
    let half = Call { symbols: BTreeMap::new(), ..call() };
    assert!(
        adopted(shipped("matmul"), (Some(&operation("matmul")), &region()), &half, Dtype::F32, &Facts::new()).is_err()
    );
}

#[test]
fn several_products_of_one_tensor_have_a_matrix_a_map_and_a_result_each() {
    let inputs = [
        ("x0", "[\"128\", \"768\"]"),
        ("w0", "[\"768\", \"768\"]"),
        ("w1", "[\"768\", \"768\"]"),
        ("w2", "[\"768\", \"768\"]"),
    ];
    let own = region_with(&inputs, &["out0", "out1", "out2"].map(|name| (name, "[\"128\", \"768\"]")));
    let some = |b: &str, c: &str| -> BTreeMap<String, Option<String>> {
        [("b", Some(b)), ("bias", None), ("c", Some(c))]
            .map(|(own, name)| (own.to_owned(), name.map(str::to_owned)))
            .into()
    };
    let mut tensors = some("w0", "out0");
    tensors.insert("a".into(), Some("x0".into()));
    let sizes = [("batch", 3), ("M", 128), ("N", 768), ("K", 768), ("trans_b", 1), ("has_bias", 0)];
    let call = Call {
        op: "matmul".into(),
        tensors,
        symbols: sizes.map(|(symbol, size)| (symbol.to_owned(), size)).into(),
        scalars: BTreeMap::new(),
        lets: BTreeMap::from([("PARTS".to_owned(), 3)]),
        beside: vec![some("w1", "out1"), some("w2", "out2")],
    };
    let made = |file: &str, dtype| {
        adopted(embedded(file).unwrap(), (Some(&operation("matmul")), &own), &call, dtype, &hopper())
    };
    // Inputs come first: x0, w0, w1, w2, then the results.
    let tensor = Argument::Tensor;
    let kernel = KernelFile::parse(&made("kernels/cuda/matmul.cu", Dtype::F32).unwrap()).unwrap();
    let resolution = kernel.resolve(&Shape::default(), Dtype::F32, &hopper()).unwrap();
    let plain = kernel.launches(&own, &[], &resolution, &hopper()).unwrap().remove(0);
    let none = Argument::Constant(0);
    let expected =
        [tensor(0), tensor(1), tensor(2), tensor(3), none.clone(), none.clone(), none, tensor(4), tensor(5), tensor(6)];
    assert_eq!(plain.args[..10], expected);
    assert_eq!(plain.args.len(), 15);

    let kernel = KernelFile::parse(&made("kernels/cuda/nvidia-h200/matmul.cu", Dtype::Bf16).unwrap()).unwrap();
    let resolution = kernel.resolve(&Shape::default(), Dtype::Bf16, &hopper()).unwrap();
    assert_eq!((resolution.macros["PARTS"], resolution.macros["TMA"]), (3, 1));
    let launch = kernel.launches(&own, &[], &resolution, &hopper()).unwrap().remove(0);
    let of_maps: Vec<MapSource> = launch
        .args
        .iter()
        .filter_map(|argument| match argument {
            Argument::TensorMap(map) => Some((map.source, map.dims.last().copied())),
            _ => None,
        })
        .map(|(source, matrices)| {
            assert_eq!(matrices, Some(1), "one matrix a tensor");
            source
        })
        .collect();
    assert_eq!(of_maps, [0, 1, 2, 3, 4, 5, 6].map(MapSource::Tensor));
    assert_eq!(launch.grid[0] as i64 % 3, 0, "as many tiles of each: {:?}", launch.grid);

    let error = made("kernels/cpu/matmul.c", Dtype::F32).unwrap_err().to_string();
    assert!(error.contains("no `PARTS` under [let]"), "{error}");
    let none = Call { lets: BTreeMap::new(), ..call.clone() };
    let error = adopted(
        embedded("kernels/cpu/matmul.c").unwrap(),
        (Some(&operation("matmul")), &own),
        &none,
        Dtype::F32,
        &hopper(),
    );
    assert!(error.unwrap_err().to_string().contains("several at once"));
}

#[test]
fn a_wider_product_among_several_is_some_matrices_side_by_side() {
    // Three times 768 columns, and twice 768.
    let inputs = [
        ("x0", "[\"128\", \"768\"]"),
        ("w0", "[\"2304\", \"768\"]"),
        ("w1", "[\"768\", \"768\"]"),
        ("w2", "[\"768\", \"768\"]"),
    ];
    let outputs = [("out0", "[\"128\", \"2304\"]"), ("out1", "[\"128\", \"768\"]"), ("out2", "[\"128\", \"768\"]")];
    let own = region_with(&inputs, &outputs);
    let call: Call = serde_json::from_value(serde_json::json!({
        "op": "matmul",
        "tensors": { "a": "x0", "b": "w0", "bias": null, "c": "out0" },
        "symbols": { "batch": 5, "M": 128, "N": 768, "K": 768, "trans_b": 1, "has_bias": 0 },
        "scalars": {},
        "lets": { "PARTS": 3, "SPAN": 3, "SPAN_1": 1, "SPAN_2": 1 },
        "beside": [{ "b": "w1", "bias": null, "c": "out1" }, { "b": "w2", "bias": null, "c": "out2" }],
    }))
    .unwrap();
    let text = embedded("kernels/cuda/nvidia-h200/matmul.cu").unwrap();
    let text = adopted(text, (Some(&operation("matmul")), &own), &call, Dtype::Bf16, &hopper()).unwrap();
    let kernel = KernelFile::parse(&text).unwrap();
    let resolution = kernel.resolve(&Shape::default(), Dtype::Bf16, &hopper()).unwrap();
    let launch = kernel.launches(&own, &[], &resolution, &hopper()).unwrap().remove(0);
    let maps: Vec<_> = launch
        .args
        .iter()
        .filter_map(|argument| match argument {
            Argument::TensorMap(map) => Some((map.source, map.dims.last().copied(), map.strides_bytes.last().copied())),
            _ => None,
        })
        .collect();
    let of = |tensor, matrices, apart: u64| (MapSource::Tensor(tensor), Some(matrices), Some(apart * 2));
    let (b, c) = (768 * 768, 768);
    let expected = [of(0, 1, 128 * 768), of(1, 3, b), of(2, 1, b), of(3, 1, b), of(4, 3, c), of(5, 1, c), of(6, 1, c)];
    assert_eq!(maps, expected);
}
