//! What each family computes, in every phase and dtype, against its definition.

use serde_json::{Value, json};
use warpsmith::forward::{bound, compare_outputs};
use warpsmith::model::{Graph, ModelConfig, Pass, Phase};
use warpsmith::op::Dtype;

use crate::{Bench, definition};

pub fn llama(architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 301, "rms_norm_eps": 1e-3
    })
}

pub fn gpt2() -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"], "n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 40,
        "n_inner": 200, "vocab_size": 301, "layer_norm_epsilon": 1e-3
    })
}

pub fn bert(architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2,
        "num_attention_heads": 6, "vocab_size": 301, "max_position_embeddings": 40, "layer_norm_eps": 1e-3
    })
}

/// Two sequences of this model.
pub fn graph(config: &ModelConfig, phase: Phase, dtype: Dtype) -> Graph {
    Graph::build(config, Pass { phase, batch: 2, seq: 37, dtype, layers: None }).unwrap()
}

/// Holds a pass to the definition.
#[track_caller]
fn agrees(bench: &Bench, config: &Value, phase: Phase, dtype: Dtype) {
    let config = ModelConfig::parse("tiny", &config.to_string()).unwrap();
    let graph = graph(&config, phase, dtype);
    let mut forward = bench.starters(&config, &graph).unwrap();
    forward.poison();
    forward.run(0).unwrap();
    let exact = definition::output(&config, &graph, &mut forward);
    let row = *graph.tensors[graph.output].dims.last().unwrap() as usize;
    let check = compare_outputs(&exact, &forward.output(), row, bound(dtype, graph.nodes.len()));
    assert_eq!(check.wrong, None, "{config:?} {phase:?} {dtype}: {check:?}");
    // Rounding alone leaves something, so comparing a model with itself would be noticed.
    assert!(check.rms_relative > Some(0.0), "{check:?}");
    assert!(check.positions < 20 || check.same_token * 10 >= check.positions * 8, "{check:?}");
}

#[test]
fn a_llama_computes_what_its_definition_says() {
    let bench = Bench::new();
    for dtype in Dtype::ALL {
        agrees(&bench, &llama("LlamaForCausalLM"), Phase::Prefill, dtype);
        agrees(&bench, &llama("LlamaForCausalLM"), Phase::Decode, dtype);
    }
    for phase in [Phase::Prefill, Phase::Decode] {
        agrees(&bench, &llama("Qwen2ForCausalLM"), phase, Dtype::F32);
    }
    let mut tied = llama("LlamaForCausalLM");
    tied["tie_word_embeddings"] = json!(true);
    agrees(&bench, &tied, Phase::Prefill, Dtype::F32);
}

#[test]
fn a_gpt2_computes_what_its_definition_says() {
    let bench = Bench::new();
    for dtype in Dtype::ALL {
        agrees(&bench, &gpt2(), Phase::Prefill, dtype);
        agrees(&bench, &gpt2(), Phase::Decode, dtype);
    }
    let mut untied = gpt2();
    untied["tie_word_embeddings"] = json!(false);
    agrees(&bench, &untied, Phase::Prefill, Dtype::F32);
}

#[test]
fn a_bert_computes_what_its_definition_says() {
    let bench = Bench::new();
    for dtype in Dtype::ALL {
        agrees(&bench, &bert("BertForMaskedLM"), Phase::Prefill, dtype);
        agrees(&bench, &bert("BertModel"), Phase::Prefill, dtype);
    }
}

#[test]
fn the_definition_knows_the_error_function() {
    // Abramowitz and Stegun, table 7.1.
    for (x, value) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0)] {
        assert!((definition::erf(x) - value).abs() < 1e-9 && (definition::erf(-x) + value).abs() < 1e-9, "{x}");
    }
    assert!((definition::erf(4.9) - 1.0).abs() < 1e-6 && definition::erf(9.0) == 1.0);
}

#[test]
fn a_cache_outlives_passes_and_holds_the_last_token_anew() {
    let bench = Bench::new();
    let config = ModelConfig::parse("tiny", &gpt2().to_string()).unwrap();
    let graph = graph(&config, Phase::Decode, Dtype::F32);
    let mut forward = bench.starters(&config, &graph).unwrap();
    let cache = graph.tensors.iter().position(|tensor| tensor.name == "layers.1.v_cache").unwrap();
    let drawn = forward.values(cache);
    forward.run(0).unwrap();
    let (said, kept) = (forward.output(), forward.values(cache));
    let width = 96;
    for (at, (before, after)) in drawn.chunks(width).zip(kept.chunks(width)).enumerate() {
        assert_eq!(before == after, at % 37 != 36, "row {at}");
    }
    forward.poison();
    forward.run(0).unwrap();
    assert_eq!((forward.output(), forward.values(cache)), (said, kept));
}
