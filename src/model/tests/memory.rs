use serde_json::json;

use super::*;
use crate::model::{Memory, TensorKind};

#[test]
fn activations_that_live_together_never_share_memory() {
    for config in one_of_each() {
        let graph = graph(&config, 2, 16);
        let slots = graph.slots();
        let span = |tensor: usize| {
            let uses: Vec<usize> = (0..graph.nodes.len())
                .filter(|&at| graph.nodes[at].tensors.iter().any(|binding| binding.tensor == tensor))
                .collect();
            let last = if tensor == graph.output { usize::MAX } else { *uses.last().unwrap() };
            (uses[0], last)
        };
        for (tensor, what) in graph.tensors.iter().enumerate() {
            assert_eq!(slots.of[tensor].is_some(), what.kind == TensorKind::Activation);
            let Some(slot) = slots.of[tensor] else { continue };
            assert_eq!(slots.bytes[slot], what.bytes(Dtype::F32), "{}", what.name);
            for other in 0..tensor {
                if slots.of[other] == Some(slot) {
                    let (a, b) = (span(tensor), span(other));
                    assert!(a.1 < b.0 || b.1 < a.0, "{} and {}", what.name, graph.tensors[other].name);
                }
            }
        }
    }
}

#[test]
fn deeper_models_need_no_more_activations() {
    let shallow = graph(&llama(), 2, 16).memory();
    let deep = graph(&with(llama(), "num_hidden_layers", json!(30)), 2, 16).memory();
    assert_eq!(shallow.activations, deep.activations);
    assert_eq!(deep.constant - shallow.constant, 27 * shallow.per_layer);
}

fn seven_billion() -> Graph {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000
    });
    Graph::build(&parse(&config).unwrap(), Pass { dtype: Dtype::Bf16, ..pass(Phase::Prefill, 1, 128) }).unwrap()
}

#[test]
fn a_model_too_large_for_the_machine_is_refused_with_the_layers_that_fit() {
    let graph = seven_billion();
    let memory = graph.memory();
    assert_eq!(memory.constant / 1_000_000, 13_476);
    let said = memory.check(&graph, 8 << 30).unwrap_err().to_string();
    assert!(said.contains("weights 12.6 GiB") && said.contains("8.0 GiB free"), "{said}");
    let layers: u64 = said.split("--layers ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let fits = |layers| {
        Memory { constant: memory.constant - (32 - layers) * memory.per_layer, ..memory }.total() <= (8 << 30) / 10 * 9
    };
    assert!(fits(layers) && !fits(layers + 1), "{layers} is the most that fit");
    assert!(memory.check(&graph, 16 << 30).is_ok());
}

#[test]
fn where_no_layer_fits_the_sentence_says_what_else_to_do() {
    let graph = seven_billion();
    let said = graph.memory().check(&graph, 100 << 20).unwrap_err().to_string();
    assert!(said.contains("not even one layer fits"), "{said}");
    let config = parse(&llama()).unwrap();
    let long = Graph::build(&config, pass(Phase::Prefill, 64, 2048)).unwrap();
    let said = long.memory().check(&long, 100 << 20).unwrap_err().to_string();
    assert!(said.contains("smaller --batch or --seq"), "{said}");
}
