#![allow(clippy::unwrap_used)]

mod config;
mod graph;
mod memory;

use serde_json::{Value, json};

use super::{Graph, ModelConfig, Pass};
use crate::op::Dtype;

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

fn graph(config: &Value, batch: u64, seq: u64) -> Graph {
    Graph::build(&parse(config).unwrap(), Pass { batch, seq, dtype: Dtype::F32, layers: None }).unwrap()
}
