//! Weights from files: found under the names of each family, converted, and refused where they are not the model's.

use std::path::Path;

use half::{bf16, f16};
use serde_json::{Value, json};
use tempfile::TempDir;
use warpsmith::model::{Graph, ModelConfig, Phase, Tensor, stored_names};
use warpsmith::op::Dtype;

use crate::{Bench, definition, families};

/// A tensor as a file has it.
struct Written {
    name: String,
    dtype: Dtype,
    dims: Vec<u64>,
    values: Vec<f32>,
}

impl Written {
    fn bytes(&self) -> Vec<u8> {
        let one = |value: &f32| match self.dtype {
            Dtype::F32 => value.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        };
        self.values.iter().flat_map(one).collect()
    }
}

fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
    }
}

/// A safetensors file of these tensors.
fn file(tensors: &[Written]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    for tensor in tensors {
        let begin = data.len();
        data.extend(tensor.bytes());
        let entry =
            json!({"dtype": dtype_name(tensor.dtype), "shape": tensor.dims, "data_offsets": [begin, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let text = Value::Object(header).to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat()
}

/// The value of element `i` of a tensor: different in each, and the same in every type.
fn value(name: &str, i: usize) -> f32 {
    let salt = name.bytes().fold(7usize, |sum, byte| sum * 31 % 10_007 + usize::from(byte));
    ((i * 37 + salt) % 61) as f32 / 128.0 - 0.25
}

/// Every weight of the graph under its `which`-th name, in these types by turns.
fn all_weights(config: &ModelConfig, graph: &Graph, which: usize, dtypes: &[Dtype]) -> Vec<Written> {
    let weights = graph.tensors.iter().filter(|tensor| tensor.kind.is_weight());
    let written = |(at, tensor): (usize, &Tensor)| {
        let names = stored_names(&config.kind, &tensor.name);
        let values = (0..tensor.elements() as usize).map(|i| value(&tensor.name, i)).collect();
        let name = names.get(which).or(names.last()).unwrap_or_else(|| panic!("no name for {}", tensor.name)).clone();
        Written { name, dtype: dtypes[at % dtypes.len()], dims: tensor.dims.clone(), values }
    };
    weights.enumerate().map(written).collect()
}

/// A model directory.
struct Directory {
    folder: TempDir,
}

impl Directory {
    fn new(config: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path().join(name), bytes).unwrap();
    }

    fn config(&self) -> ModelConfig {
        ModelConfig::load(self.path()).unwrap()
    }
}

fn graph(config: &ModelConfig, dtype: Dtype) -> Graph {
    families::graph(config, Phase::Prefill, dtype)
}

#[test]
fn every_weight_of_every_family_is_found_under_each_of_its_names_and_converted() {
    let bench = Bench::new();
    let qwen = families::llama("Qwen2ForCausalLM");
    for config in [qwen, families::gpt2(), families::bert("BertForMaskedLM"), families::bert("BertModel")] {
        for (which, dtype) in [(0, Dtype::F32), (1, Dtype::F16), (2, Dtype::Bf16), (3, Dtype::F32)] {
            let directory = Directory::new(&config);
            let plain = directory.config();
            assert_eq!(plain.weights, None);
            let weights = all_weights(&plain, &graph(&plain, dtype), which, &Dtype::ALL);
            directory.write("model.safetensors", &file(&weights));
            let config = directory.config();
            let graph = graph(&config, dtype);
            let mut forward = bench.starters(&config, &graph).unwrap();
            assert_eq!(forward.notes(), [format!("{0} of {0} weights are read from model.safetensors", weights.len())]);
            for (at, tensor) in graph.tensors.iter().enumerate().filter(|(_, tensor)| tensor.kind.is_weight()) {
                let read = forward.values(at);
                let wanted = (0..read.len()).map(|i| f64::from(value(&tensor.name, i)));
                assert!(read.iter().copied().eq(wanted), "{} {dtype}", tensor.name);
            }
        }
    }
}

#[test]
fn a_model_with_weights_of_its_own_computes_with_them() {
    let bench = Bench::new();
    let directory = Directory::new(&families::gpt2());
    let config = directory.config();
    let weights = all_weights(&config, &graph(&config, Dtype::F32), 1, &[Dtype::Bf16]);
    directory.write("pytorch.safetensors", &file(&weights));
    let (config, graph) = (directory.config(), graph(&config, Dtype::F32));
    let mut forward = bench.starters(&config, &graph).unwrap();
    forward.run(0).unwrap();
    let exact = definition::output(&config, &graph, &mut forward);
    let (said, largest) = (forward.output(), exact.iter().fold(0.0, |most: f64, v| most.max(v.abs())));
    assert!(largest > 0.0 && said.iter().zip(&exact).all(|(a, b)| (a - b).abs() < 1e-4 * largest));
}

#[test]
fn several_files_are_read_by_their_index() {
    let bench = Bench::new();
    let directory = Directory::new(&families::llama("LlamaForCausalLM"));
    let config = directory.config();
    let mut first = all_weights(&config, &graph(&config, Dtype::F32), 0, &[Dtype::F16]);
    let second = first.split_off(first.len() / 2);
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let map: serde_json::Map<String, Value> = [&first, &second]
        .into_iter()
        .zip(names)
        .flat_map(|(part, name)| part.iter().map(move |tensor| (tensor.name.clone(), json!(name))))
        .collect();
    let index =
        |map: &serde_json::Map<String, Value>| json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
    directory.write("model.safetensors.index.json", index(&map).as_bytes());
    directory.write(names[0], &file(&first));
    let refusal = || {
        let config = directory.config();
        bench.starters(&config, &graph(&config, Dtype::F32)).map(|_| ()).unwrap_err().to_string()
    };
    assert!(refusal().starts_with("model-00002-of-00002.safetensors: "), "{}", refusal());
    directory.write(names[1], &file(&second));
    let config = directory.config();
    let forward = bench.starters(&config, &graph(&config, Dtype::F32)).unwrap();
    assert!(forward.notes()[0].ends_with("weights are read from 2 files"), "{:?}", forward.notes());
    // A tensor that its file does not have, and a file that is elsewhere.
    let mut wrong = map.clone();
    wrong.insert(second[0].name.clone(), json!(names[0]));
    directory.write("model.safetensors.index.json", index(&wrong).as_bytes());
    let said = refusal();
    assert!(said.contains(names[0]) && said.contains(&format!("lacks the tensor `{}`", second[0].name)), "{said}");
    wrong.insert(second[0].name.clone(), json!("../../etc/x.safetensors"));
    directory.write("model.safetensors.index.json", index(&wrong).as_bytes());
    assert!(refusal().contains("which is no file beside it"), "{}", refusal());
    directory.write("model.safetensors.index.json", b"{");
    assert!(refusal().starts_with("model.safetensors.index.json: it cannot be read"), "{}", refusal());
    // Without an index nobody knows which file has what.
    std::fs::remove_file(directory.path().join("model.safetensors.index.json")).unwrap();
    assert!(refusal().contains("2 *.safetensors files and no model.safetensors.index.json"), "{}", refusal());
}

#[test]
fn weights_that_are_missing_are_drawn_and_named() {
    let bench = Bench::new();
    let directory = Directory::new(&families::llama("LlamaForCausalLM"));
    let plain = directory.config();
    let mut weights = all_weights(&plain, &graph(&plain, Dtype::F32), 0, &[Dtype::F32]);
    weights.retain(|tensor| tensor.name != "lm_head.weight");
    directory.write("model.safetensors", &file(&weights));
    let (config, graph) = (directory.config(), graph(&plain, Dtype::F32));
    let mut forward = bench.starters(&config, &graph).unwrap();
    assert_eq!(forward.notes()[1], "1 weights are in no file and are drawn: `lm_head.weight`");
    let head = graph.tensors.iter().position(|tensor| tensor.name == "lm_head.weight").unwrap();
    let mut drawn = bench.starters(&plain, &graph).unwrap();
    assert_eq!(forward.values(head), drawn.values(head));
}

#[test]
fn weights_of_another_model_are_refused_by_file_and_tensor() {
    let bench = Bench::new();
    let directory = Directory::new(&families::gpt2());
    let config = directory.config();
    let graph = graph(&config, Dtype::F32);
    let weights = || all_weights(&config, &graph, 0, &[Dtype::F32]);
    let refusal = |tensors: &[Written]| {
        directory.write("model.safetensors", &file(tensors));
        bench.starters(&directory.config(), &graph).map(|_| ()).unwrap_err().to_string()
    };
    let mut turned = weights();
    let at = turned.iter().position(|tensor| tensor.name == "transformer.h.1.mlp.c_fc.weight").unwrap();
    turned[at].dims.reverse();
    assert_eq!(
        refusal(&turned),
        "model.safetensors: tensor `transformer.h.1.mlp.c_fc.weight` has the shape [200, 96]; config.json makes it [96, 200]"
    );
    let mut integers = file(&weights());
    let place = integers.windows(5).position(|text| text == b"\"F32\"").unwrap();
    integers[place..place + 5].copy_from_slice(b"\"I32\"");
    directory.write("model.safetensors", &integers);
    let said = bench.starters(&directory.config(), &graph).map(|_| ()).unwrap_err().to_string();
    assert!(said.starts_with("model.safetensors: tensor `") && said.contains("is I32; F16, BF16 and F32"), "{said}");
    let other = Written { name: "conv.weight".into(), dtype: Dtype::F32, dims: vec![1], values: vec![1.0] };
    let said = refusal(&[other]);
    assert!(said.contains("has none of the model's") && said.contains("`transformer.wte.weight`"), "{said}");
    // What the graph does not need may be of any type.
    let mut more = weights();
    more.push(Written {
        name: "transformer.h.0.attn.bias".into(),
        dtype: Dtype::F16,
        dims: vec![2, 3],
        values: vec![0.0; 6],
    });
    directory.write("model.safetensors", &file(&more));
    assert!(bench.starters(&directory.config(), &graph).is_ok());
}
