use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::model::{Glue, TensorKind, Work};
use crate::op::Shape;

#[test]
fn a_layer_is_the_calls_of_a_llama_in_order() {
    let graph = graph(&llama(), 2, 16);
    let sites: Vec<&str> = graph.nodes.iter().map(|node| node.site.as_str()).collect();
    assert_eq!(sites.len(), 1 + 3 * 12 + 2);
    assert_eq!(
        sites[..13],
        [
            "embed_tokens",
            "layers.0.input_norm",
            "layers.0.q_proj",
            "layers.0.k_proj",
            "layers.0.v_proj",
            "layers.0.rotary_q",
            "layers.0.rotary_k",
            "layers.0.attention",
            "layers.0.o_proj",
            "layers.0.attention_residual",
            "layers.0.post_attention_norm",
            "layers.0.mlp",
            "layers.0.mlp_residual",
        ]
    );
    assert_eq!(sites[sites.len() - 2..], ["norm", "lm_head"]);
}

#[test]
fn shapes_are_those_of_the_configuration() {
    let graph = graph(&llama(), 2, 16);
    let shape = |site: &str| {
        let node = graph.nodes.iter().find(|node| node.site == site).unwrap();
        let Work::Op { op, shape, .. } = &node.work else { panic!("{site} is glue") };
        (*op, shape.clone())
    };
    let matmul =
        |n, k| ("matmul", Shape::from([("batch", 1), ("M", 32), ("N", n), ("K", k), ("trans_b", 1), ("has_bias", 0)]));
    assert_eq!(shape("layers.1.q_proj"), matmul(64, 64));
    assert_eq!(shape("layers.1.k_proj"), matmul(32, 64));
    assert_eq!(shape("lm_head"), matmul(500, 64));
    let rotary = Shape::from([("B", 2), ("H", 4), ("S", 16), ("D", 8), ("bshd", 1), ("interleaved", 0)]);
    assert_eq!(shape("layers.2.rotary_k"), ("rotary_embedding", rotary));
    let attention = [("B", 2), ("H", 8), ("H_kv", 4), ("S_q", 16), ("S_kv", 16), ("D", 8), ("causal", 1), ("bshd", 1)];
    assert_eq!(shape("layers.0.attention"), ("flash_attention", Shape::from(attention)));
    assert_eq!(shape("layers.0.mlp"), ("fused_mlp", Shape::from([("B", 32), ("D", 64), ("H", 176)])));
    assert_eq!(shape("norm"), ("rmsnorm", Shape::from([("rows", 32), ("cols", 64)])));
}

#[test]
fn every_activation_is_written_once_and_before_it_is_read() {
    for config in [llama(), with(llama(), "architectures", json!(["Qwen2ForCausalLM"]))] {
        let graph = graph(&config, 2, 16);
        let mut written = BTreeSet::new();
        for node in &graph.nodes {
            let (output, inputs) = node.tensors.split_last().unwrap();
            for binding in inputs {
                let tensor = &graph.tensors[binding.tensor];
                assert!(
                    !tensor.kind.is_activation() || written.contains(&binding.tensor),
                    "{}: {}",
                    node.site,
                    tensor.name
                );
            }
            assert!(graph.tensors[output.tensor].kind.is_activation());
            assert!(written.insert(output.tensor), "{} is written twice", graph.tensors[output.tensor].name);
        }
        assert!(written.contains(&graph.output));
        let names: BTreeSet<&str> = graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names.len(), graph.tensors.len(), "names are unique");
    }
}

#[test]
fn a_bias_is_bound_where_the_shape_says_so_and_nowhere_else() {
    let graph = graph(&with(llama(), "architectures", json!(["Qwen2ForCausalLM"])), 1, 8);
    for node in &graph.nodes {
        let Work::Op { op: "matmul", shape, .. } = &node.work else { continue };
        assert_eq!(shape.get("has_bias") == Some(1), node.tensor("bias").is_some(), "{}", node.site);
    }
    let with_bias = |site: &str| graph.nodes.iter().any(|n| n.site == site && n.tensor("bias").is_some());
    assert!(with_bias("layers.0.q_proj") && with_bias("layers.0.k_proj") && with_bias("layers.0.v_proj"));
    assert!(!with_bias("layers.0.o_proj") && !with_bias("lm_head"));
}

#[test]
fn elements_match_the_shapes() {
    let graph = graph(&llama(), 2, 16);
    for node in &graph.nodes {
        let elements = |name: &str| graph.tensors[node.tensor(name).unwrap()].elements() as i64;
        match &node.work {
            Work::Op { op: "matmul", shape, .. } => {
                let size = |symbol: &str| shape.get(symbol).unwrap();
                assert_eq!(elements("a"), size("M") * size("K"));
                assert_eq!(elements("b"), size("N") * size("K"));
                assert_eq!(elements("c"), size("M") * size("N"));
            }
            Work::Op { op: "flash_attention", shape, .. } => {
                let size = |symbol: &str| shape.get(symbol).unwrap();
                let (q, kv) = (size("B") * size("H") * 16 * 8, size("B") * size("H_kv") * 16 * 8);
                assert_eq!((elements("q"), elements("k"), elements("v"), elements("o")), (q, kv, kv, q));
            }
            Work::Op { op: "rotary_embedding", shape, .. } => {
                let all = ["B", "H", "S", "D"].iter().map(|s| shape.get(s).unwrap()).product::<i64>();
                assert_eq!(
                    (elements("x"), elements("y"), elements("cos"), elements("sin")),
                    (all, all, 16 * 4, 16 * 4)
                );
            }
            Work::Op { op: "fused_mlp", .. } => {
                assert_eq!((elements("w_gate"), elements("w_up"), elements("w_down")), (176 * 64, 176 * 64, 64 * 176));
            }
            Work::Op { op: "rmsnorm", .. } => assert_eq!((elements("x"), elements("weight")), (32 * 64, 64)),
            Work::Glue(Glue::Embedding { tokens, width }) => {
                assert_eq!((elements("tokens"), elements("y")), (*tokens as i64, (tokens * width) as i64));
            }
            Work::Glue(Glue::Add { elements: n }) => assert_eq!((elements("a"), elements("b")), (*n as i64, *n as i64)),
            Work::Op { op, .. } => panic!("no check for {op}"),
        }
    }
}

#[test]
fn targets_count_every_call_once() {
    let graph = graph(&llama(), 1, 16);
    let targets = graph.targets();
    let names: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
    assert_eq!(names, ["rmsnorm", "matmul", "rotary_embedding", "flash_attention", "fused_mlp"]);
    let calls = |op: &str| -> Vec<u32> {
        targets.iter().find(|t| t.op == op).unwrap().shapes.iter().map(|shape| shape.calls).collect()
    };
    assert_eq!(calls("rmsnorm"), [7]);
    // q and o are alike, and so are k and v; the head is one of its own.
    assert_eq!(calls("matmul"), [6, 6, 1]);
    assert_eq!(
        (calls("rotary_embedding"), calls("flash_attention"), calls("fused_mlp")),
        (vec![3, 3], vec![3], vec![3])
    );
}

#[test]
fn a_tied_head_reads_the_embedding() {
    let graph = graph(&with(llama(), "tie_word_embeddings", json!(true)), 1, 16);
    let table = graph.nodes[0].tensor("table").unwrap();
    let head = graph.nodes.last().unwrap();
    assert_eq!(head.tensor("b"), Some(table));
    assert_eq!(graph.tensors[table].kind, TensorKind::Weight { sigma: 0.125 });
}

#[test]
fn parameters_are_those_of_the_published_models() {
    let llama_7b = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000
    });
    assert_eq!(graph(&llama_7b, 1, 8).parameters(), 6_738_415_616);
    let qwen2_05b = json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151_936, "tie_word_embeddings": true
    });
    assert_eq!(graph(&qwen2_05b, 1, 8).parameters(), 494_032_768);
}

#[test]
fn the_models_epsilon_reaches_every_norm() {
    let graph = graph(&llama(), 1, 4);
    let norms: Vec<f32> = graph
        .nodes
        .iter()
        .filter_map(|n| {
            if let Work::Op { op: "rmsnorm", scalars, .. } = &n.work { scalars.get("eps").copied() } else { None }
        })
        .collect();
    assert_eq!(norms, [1e-5f32; 7]);
}

#[test]
fn a_pass_may_run_the_first_layers_only() {
    let config = parse(&llama()).unwrap();
    let pass = Pass { batch: 1, seq: 16, dtype: Dtype::Bf16, layers: Some(1) };
    let graph = Graph::build(&config, pass).unwrap();
    assert_eq!((graph.layers, graph.layers_of_model, graph.nodes.len()), (1, 3, 1 + 12 + 2));
    assert!(graph.notes[0].contains("first 1 of 3 layers"), "{:?}", graph.notes);
}

#[test]
fn passes_that_run_nothing_or_too_much_are_refused() {
    let config =
        parse(&with(with(llama(), "architectures", json!(["MistralForCausalLM"])), "sliding_window", json!(8)))
            .unwrap();
    let said = |batch, seq, layers| {
        let pass = Pass { batch, seq, dtype: Dtype::F32, layers };
        Graph::build(&config, pass).map(|_| ()).unwrap_err().to_string()
    };
    assert!(said(0, 8, None).contains("1 or more") && said(1, 0, None).contains("1 or more"));
    assert!(said(1, 8, Some(0)).contains("0 layers") && said(1, 8, Some(4)).contains("has 3 layers, not 4"));
    assert!(said(u64::MAX, 2, None).contains("too many") && said(1 << 30, 8, None).contains("too many"));
    assert!(said(1, 9, None).contains("sliding window of 8"));
    assert!(Graph::build(&config, Pass { batch: 1, seq: 8, dtype: Dtype::F32, layers: None }).is_ok());
}
