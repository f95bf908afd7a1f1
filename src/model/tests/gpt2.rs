use serde_json::json;

use super::*;
use crate::model::{Answer, Glue, TensorKind};

#[test]
fn a_configuration_is_read_with_its_defaults() {
    let config = parse(&gpt2()).unwrap();
    assert_eq!((config.hidden, config.intermediate, config.layers, config.vocab), (64, 256, 3, 500));
    assert_eq!((config.heads, config.head_dim, config.max_positions, config.norm_eps), (4, 16, 32, 1e-5));
    assert!(config.tie_word_embeddings && config.kind == Kind::Gpt2);
    assert_eq!(parse(&with(gpt2(), "n_inner", json!(100))).unwrap().intermediate, 100);
    let said = parse(&with(gpt2(), "n_ctx", json!(64))).unwrap_err();
    assert_eq!(said, "tiny/config.json: `n_ctx` is 64; it must be 32, as n_positions says");
}

#[test]
fn a_layer_is_the_calls_of_a_gpt2_in_order() {
    let graph = graph(&gpt2(), 2, 16);
    let sites: Vec<&str> = graph.nodes.iter().map(|node| node.site.as_str()).collect();
    assert_eq!(sites.len(), 2 + 3 * 11 + 2);
    assert_eq!(
        sites[..13],
        [
            "wte",
            "wpe",
            "layers.0.ln_1",
            "layers.0.attn.c_attn",
            "layers.0.attn.split",
            "layers.0.attention",
            "layers.0.attn.c_proj",
            "layers.0.attention_residual",
            "layers.0.ln_2",
            "layers.0.mlp.c_fc",
            "layers.0.mlp.act",
            "layers.0.mlp.c_proj",
            "layers.0.mlp_residual",
        ]
    );
    assert_eq!(sites[sites.len() - 2..], ["ln_f", "lm_head"]);
    assert_eq!(graph.answer, Answer::NextToken);
}

#[test]
fn matrices_lie_as_conv1d_has_them_and_the_head_as_the_embedding() {
    let graph = graph(&gpt2(), 2, 16);
    assert_eq!(call(&graph, "layers.1.attn.c_attn"), matmul(32, 192, 64, 0, 1));
    assert_eq!(call(&graph, "layers.1.attn.c_proj"), matmul(32, 64, 64, 0, 1));
    assert_eq!(call(&graph, "layers.2.mlp.c_fc"), matmul(32, 256, 64, 0, 1));
    assert_eq!(call(&graph, "layers.2.mlp.c_proj"), matmul(32, 64, 256, 0, 1));
    assert_eq!(call(&graph, "lm_head"), matmul(32, 500, 64, 1, 0));
    let dims = |site: &str, name: &str| graph.tensors[node(&graph, site).tensor(name).unwrap()].dims.clone();
    assert_eq!(dims("layers.0.mlp.c_fc", "b"), [64, 256]);
    assert_eq!(dims("lm_head", "b"), [500, 64]);
    assert_eq!(node(&graph, "lm_head").tensor("b"), node(&graph, "wte").tensor("table"));
    let attention = [("B", 2), ("H", 4), ("H_kv", 4), ("S_q", 16), ("S_kv", 16), ("D", 16), ("causal", 1), ("bshd", 1)];
    assert_eq!(call(&graph, "layers.0.attention"), ("flash_attention", Shape::from(attention)));
    assert_eq!(call(&graph, "ln_f"), ("layernorm", Shape::from([("batch", 32), ("dim", 64)])));
    assert_eq!(node(&graph, "layers.0.mlp.act").work, Work::Glue(Glue::GeluTanh { elements: 32 * 256 }));
}

#[test]
fn an_untied_head_has_its_own_matrix() {
    let graph = graph(&with(gpt2(), "tie_word_embeddings", json!(false)), 1, 4);
    let head = node(&graph, "lm_head").tensor("b").unwrap();
    assert_eq!((graph.tensors[head].name.as_str(), &graph.tensors[head].dims[..]), ("lm_head.weight", &[500, 64][..]));
}

#[test]
fn positions_are_looked_up_in_a_table_that_ends() {
    let graph = graph(&gpt2(), 2, 32);
    let place = node(&graph, "wpe");
    assert_eq!(graph.tensors[place.tensor("ids").unwrap()].kind, TensorKind::Positions { first: 0 });
    assert_eq!(graph.tensors[place.tensor("table").unwrap()].dims, [32, 64]);
    let long = Graph::build(&parse(&gpt2()).unwrap(), pass(Phase::Prefill, 1, 33)).unwrap_err().to_string();
    assert_eq!(long, "tiny has a table of 32 positions: a sequence has at most so many tokens, not 33");
}

#[test]
fn parameters_are_those_of_the_published_model() {
    let published = json!({
        "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "vocab_size": 50257
    });
    assert_eq!(graph(&published, 1, 8).parameters(), 124_439_808);
}
