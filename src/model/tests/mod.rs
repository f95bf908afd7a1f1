#![allow(clippy::unwrap_used)]

mod bert;
mod config;
mod decode;
mod gpt2;
mod graph;
mod memory;
mod safetensors;

use serde_json::{Value, json};

use super::{Graph, Kind, Llama, ModelConfig, Node, Pass, Phase, Work};
use crate::op::{Dtype, Shape};

/// A small Llama, written as Hugging Face does.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 500,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "pretraining_tp": 1,
        "rope_scaling": null
    })
}

/// A small GPT-2, written as Hugging Face does.
fn gpt2() -> Value {
    json!({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 32, "n_embd": 64, "n_head": 4, "n_layer": 3,
        "n_positions": 32, "vocab_size": 500
    })
}

/// A small BERT, written as Hugging Face does.
fn bert(architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 160,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 32, "model_type": "bert", "num_attention_heads": 4,
        "num_hidden_layers": 3, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 500
    })
}

/// One of each family's graphs.
fn one_of_each() -> Vec<Value> {
    let qwen = with(llama(), "architectures", json!(["Qwen2ForCausalLM"]));
    vec![llama(), qwen, gpt2(), bert("BertForMaskedLM"), bert("BertModel")]
}

/// The object with `key` set to `value`.
fn with(mut config: Value, key: &str, value: Value) -> Value {
    config.as_object_mut().unwrap().insert(key.to_owned(), value);
    config
}

fn without(mut config: Value, key: &str) -> Value {
    config.as_object_mut().unwrap().remove(key);
    config
}

fn parse(config: &Value) -> Result<ModelConfig, String> {
    ModelConfig::parse("tiny", &config.to_string()).map_err(|error| error.to_string())
}

fn pass(phase: Phase, batch: u64, seq: u64) -> Pass {
    Pass { phase, batch, seq, dtype: Dtype::F32, layers: None }
}

fn graph(config: &Value, batch: u64, seq: u64) -> Graph {
    Graph::build(&parse(config).unwrap(), pass(Phase::Prefill, batch, seq)).unwrap()
}

/// What only a Llama has.
fn own(config: &ModelConfig) -> &Llama {
    let Kind::Llama(own) = &config.kind else { panic!("{config:?}") };
    own
}

fn node<'a>(graph: &'a Graph, site: &str) -> &'a Node {
    graph.nodes.iter().find(|node| node.site == site).unwrap_or_else(|| panic!("no site {site}"))
}

/// The operation called at a site, and its shape.
fn call(graph: &Graph, site: &str) -> (&'static str, Shape) {
    let Work::Op { op, shape, .. } = &node(graph, site).work else { panic!("{site} is glue") };
    (op, shape.clone())
}

fn matmul(rows: i64, out: i64, width: i64, trans_b: i64, has_bias: i64) -> (&'static str, Shape) {
    let sizes = [("batch", 1), ("M", rows), ("N", out), ("K", width), ("trans_b", trans_b), ("has_bias", has_bias)];
    ("matmul", Shape::from(sizes))
}
