use serde_json::json;

use super::*;
use crate::model::{Answer, Bert, BertHead, Glue, TensorKind};

#[test]
fn a_configuration_is_read_with_its_defaults() {
    let config = parse(&bert("BertForMaskedLM")).unwrap();
    assert_eq!((config.hidden, config.intermediate, config.layers, config.vocab), (64, 160, 3, 500));
    assert_eq!((config.heads, config.head_dim, config.max_positions, config.norm_eps), (4, 16, 32, 1e-12));
    assert_eq!(config.kind, Kind::Bert(Bert { type_vocab: 2, head: BertHead::MaskedLm }));
    let bare = parse(&without(bert("BertModel"), "type_vocab_size")).unwrap();
    assert_eq!(bare.kind, Kind::Bert(Bert { type_vocab: 2, head: BertHead::Pooler }));
}

#[test]
fn a_layer_is_the_calls_of_a_bert_in_order() {
    let graph = graph(&bert("BertForMaskedLM"), 2, 16);
    let sites: Vec<&str> = graph.nodes.iter().map(|node| node.site.as_str()).collect();
    assert_eq!(sites.len(), 4 + 3 * 12 + 4);
    assert_eq!(
        sites[..16],
        [
            "embeddings.word_embeddings",
            "embeddings.token_type_embeddings",
            "embeddings.position_embeddings",
            "embeddings.norm",
            "layers.0.attention.query",
            "layers.0.attention.key",
            "layers.0.attention.value",
            "layers.0.attention",
            "layers.0.attention.output",
            "layers.0.attention_residual",
            "layers.0.attention.norm",
            "layers.0.intermediate",
            "layers.0.intermediate.act",
            "layers.0.output",
            "layers.0.mlp_residual",
            "layers.0.output.norm",
        ]
    );
    assert_eq!(sites[sites.len() - 4..], ["mlm.dense", "mlm.act", "mlm.norm", "mlm.decoder"]);
}

#[test]
fn nothing_is_masked_and_every_projection_has_a_bias() {
    let graph = graph(&bert("BertForMaskedLM"), 2, 16);
    let attention = [("B", 2), ("H", 4), ("H_kv", 4), ("S_q", 16), ("S_kv", 16), ("D", 16), ("causal", 0), ("bshd", 1)];
    assert_eq!(call(&graph, "layers.0.attention"), ("flash_attention", Shape::from(attention)));
    assert_eq!(call(&graph, "layers.1.attention.key"), matmul(32, 64, 64, 1, 1));
    assert_eq!(call(&graph, "layers.1.intermediate"), matmul(32, 160, 64, 1, 1));
    assert_eq!(call(&graph, "layers.1.output"), matmul(32, 64, 160, 1, 1));
    assert_eq!(node(&graph, "layers.0.intermediate.act").work, Work::Glue(Glue::Gelu { elements: 32 * 160 }));
    let types = node(&graph, "embeddings.token_type_embeddings");
    assert_eq!(graph.tensors[types.tensor("ids").unwrap()].kind, TensorKind::Tokens { vocab: 2 });
}

#[test]
fn the_architecture_says_what_follows_the_last_layer() {
    let masked = graph(&bert("BertForMaskedLM"), 2, 16);
    assert_eq!((masked.answer, &masked.tensors[masked.output].dims[..]), (Answer::TokenHere, &[32, 500][..]));
    assert_eq!(call(&masked, "mlm.decoder"), matmul(32, 500, 64, 1, 1));
    let decoder = node(&masked, "mlm.decoder").tensor("b");
    assert_eq!(decoder, node(&masked, "embeddings.word_embeddings").tensor("table"));
    let pooled = graph(&bert("BertModel"), 2, 16);
    assert_eq!((pooled.answer, &pooled.tensors[pooled.output].dims[..]), (Answer::Vector, &[2, 64][..]));
    assert_eq!(call(&pooled, "pooler.dense"), matmul(2, 64, 64, 1, 1));
    assert_eq!(node(&pooled, "pooler.act").work, Work::Glue(Glue::Tanh { elements: 128 }));
}

#[test]
fn parameters_are_those_of_the_published_models() {
    let published = |architecture: &str| {
        json!({
            "architectures": [architecture], "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
            "num_attention_heads": 12, "vocab_size": 30522, "max_position_embeddings": 512
        })
    };
    assert_eq!(graph(&published("BertModel"), 1, 8).parameters(), 109_482_240);
    assert_eq!(graph(&published("BertForMaskedLM"), 1, 8).parameters(), 109_514_298);
}
