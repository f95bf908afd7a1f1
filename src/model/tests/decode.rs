use super::*;
use crate::model::{Glue, TensorKind};

fn decode(config: &Value) -> Graph {
    Graph::build(&parse(config).unwrap(), pass(Phase::Decode, 3, 16)).unwrap()
}

#[test]
fn one_token_of_each_sequence_goes_through_the_model() {
    let graph = decode(&llama());
    assert_eq!(call(&graph, "layers.0.q_proj"), matmul(3, 64, 64, 1, 0));
    assert_eq!(call(&graph, "lm_head"), matmul(3, 500, 64, 1, 0));
    assert_eq!(call(&graph, "layers.1.mlp"), ("fused_mlp", Shape::from([("B", 3), ("D", 64), ("H", 176)])));
    assert_eq!(call(&graph, "norm"), ("rmsnorm", Shape::from([("rows", 3), ("cols", 64)])));
    assert_eq!(graph.tensors[graph.output].dims, [3, 500]);
    assert_eq!(graph.pass.label(), "3x1 tokens after 15");
    let gpt2 = decode(&gpt2());
    assert_eq!(call(&gpt2, "layers.0.attn.c_attn"), matmul(3, 192, 64, 0, 1));
    assert_eq!(call(&gpt2, "ln_f"), ("layernorm", Shape::from([("batch", 3), ("dim", 64)])));
}

#[test]
fn it_attends_to_a_cache_that_it_joins_first() {
    for (config, heads, kv_heads, width) in [(llama(), 8, 4, 8), (gpt2(), 4, 4, 16)] {
        let graph = decode(&config);
        let wanted = [
            ("B", 3),
            ("H", heads),
            ("H_kv", kv_heads),
            ("S_q", 1),
            ("S_kv", 16),
            ("D", width),
            ("causal", 0),
            ("bshd", 1),
        ];
        assert_eq!(call(&graph, "layers.2.attention"), ("flash_attention", Shape::from(wanted)));
        let at = graph.nodes.iter().position(|node| node.site == "layers.2.attention").unwrap();
        let appends: Vec<&Node> = graph.nodes[..at].iter().rev().take(2).collect();
        let row = (kv_heads * width) as u64;
        for (node, name) in appends.into_iter().zip(["v", "k"]) {
            assert_eq!(node.work, Work::Glue(Glue::Append { batch: 3, seq: 16, width: row }), "{}", node.site);
            assert_eq!(node.tensor("y"), graph.nodes[at].tensor(name));
            let cache = &graph.tensors[node.tensor("y").unwrap()];
            assert_eq!((cache.kind, &cache.dims[..]), (TensorKind::Cache, &[3, 16, row][..]));
        }
    }
}

#[test]
fn it_stands_at_the_last_position() {
    let llama = decode(&llama());
    let rotary = node(&llama, "layers.0.rotary_k");
    let shape = Shape::from([("B", 3), ("H", 4), ("S", 1), ("D", 8), ("bshd", 1), ("interleaved", 0)]);
    assert_eq!(call(&llama, "layers.0.rotary_k"), ("rotary_embedding", shape));
    let cos = &llama.tensors[rotary.tensor("cos").unwrap()];
    assert_eq!((cos.kind, &cos.dims[..]), (TensorKind::RotaryCos { theta: 500_000.0, first: 15 }, &[1, 4][..]));
    let gpt2 = decode(&gpt2());
    let ids = node(&gpt2, "wpe").tensor("ids").unwrap();
    assert_eq!(gpt2.tensors[ids].kind, TensorKind::Positions { first: 15 });
}

#[test]
fn caches_are_counted_as_memory_of_a_layer() {
    let (one, more) = (decode(&llama()), Graph::build(&parse(&llama()).unwrap(), pass(Phase::Decode, 3, 24)).unwrap());
    // Keys and values of 3 sequences, 8 tokens more of 32 elements each.
    assert_eq!(more.memory().per_layer - one.memory().per_layer, 2 * 3 * 8 * 32 * 4);
    assert_eq!(more.memory().activations, one.memory().activations);
    assert_eq!(one.parameters(), graph(&llama(), 1, 8).parameters());
}

#[test]
fn an_encoder_does_not_decode() {
    let config = parse(&bert("BertModel")).unwrap();
    let said = Graph::build(&config, pass(Phase::Decode, 1, 16)).unwrap_err().to_string();
    assert!(said.contains("tiny is an encoder") && said.contains("--phase prefill"), "{said}");
}

#[test]
fn a_sequence_of_one_token_has_only_itself_to_attend_to() {
    let graph = Graph::build(&parse(&gpt2()).unwrap(), pass(Phase::Decode, 2, 1)).unwrap();
    assert_eq!(call(&graph, "layers.0.attention").1.get("S_kv"), Some(1));
    let ids = node(&graph, "wpe").tensor("ids").unwrap();
    assert_eq!(graph.tensors[ids].kind, TensorKind::Positions { first: 0 });
}
