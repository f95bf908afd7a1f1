//! A Hugging Face checkpoint as PyTorch runs it. What stands in for `transformers` lies in the model's folder, where Python looks first.

use serde_json::Value;

use crate::{Place, text};

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64, "max_position_embeddings": 16}"#;

const TRANSFORMERS: &str = "
import json, os, types
import torch
from torch import nn

class AutoConfig:
    @staticmethod
    def from_pretrained(folder):
        return types.SimpleNamespace(**json.load(open(os.path.join(folder, 'config.json'))))

class LlamaForCausalLM(nn.Module):
    main_input_name = 'input_ids'

    def __init__(self, config):
        super().__init__()
        assert config.use_cache is False, 'a cache of keys and values is no result'
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, input_ids):
        return (self.head(torch.sin(self.tokens(input_ids))),)
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_checkpoint_of_a_kind_that_is_known_here_is_taken_apart_as_pytorch_runs_it_where_that_is_asked_for() {
    let Some(place) = Place::new() else { return };
    std::fs::create_dir(place.path("llama")).unwrap();
    std::fs::write(place.path("llama/config.json"), CONFIG).unwrap();
    let load = ["profile", "llama", "--load", "transformers"];

    let said = place.warpsmith(&load);
    let (ok, said) = (said.status.success(), text(&said.stderr));
    assert!(!ok && said.contains("is a Hugging Face checkpoint that `transformers` is to run"), "{said}");

    std::fs::write(place.path("llama/transformers.py"), TRANSFORMERS).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&[&load[..], &["--json"]].concat())).unwrap();
    let rows = profile["captured"]["regions"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"].as_str().is_some_and(|name| name.starts_with("addmm_"))), "{profile}");
    let lines = rows.iter().flat_map(|row| row["lines"].as_array().unwrap());
    assert!(
        lines.filter_map(Value::as_str).any(|line| line.starts_with("transformers.py:")),
        "where each comes from: {profile}"
    );
}
