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
    assert_eq!(call(&graph, "layers.1.q_proj"), matmul(32, 64, 64, 1, 0));
    assert_eq!(call(&graph, "layers.1.k_proj"), matmul(32, 32, 64, 1, 0));
    assert_eq!(call(&graph, "lm_head"), matmul(32, 500, 64, 1, 0));
    let rotary = Shape::from([("B", 2), ("H", 4), ("S", 16), ("D", 8), ("bshd", 1), ("interleaved", 0)]);
    assert_eq!(call(&graph, "layers.2.rotary_k"), ("rotary_embedding", rotary));
    let attention = [("B", 2), ("H", 8), ("H_kv", 4), ("S_q", 16), ("S_kv", 16), ("D", 8), ("causal", 1), ("bshd", 1)];
    assert_eq!(call(&graph, "layers.0.attention"), ("flash_attention", Shape::from(attention)));
    assert_eq!(call(&graph, "layers.0.mlp"), ("fused_mlp", Shape::from([("B", 32), ("D", 64), ("H", 176)])));
    assert_eq!(call(&graph, "norm"), ("rmsnorm", Shape::from([("rows", 32), ("cols", 64)])));
}

/// The graphs of every family in every phase that it has.
fn all_graphs() -> Vec<Graph> {
    let phases = [Phase::Prefill, Phase::Decode];
    let of = |config: &Value| phases.map(|phase| Graph::build(&parse(config).unwrap(), pass(phase, 2, 16)).ok());
    let graphs: Vec<Graph> = one_of_each().iter().flat_map(of).flatten().collect();
    assert_eq!(graphs.len(), 5 + 3);
    graphs
}

#[test]
fn everything_is_written_once_and_before_it_is_read() {
    for graph in all_graphs() {
        let mut written = BTreeSet::new();
        for node in &graph.nodes {
            let outputs = if let Work::Glue(glue) = node.work { glue.outputs() } else { 1 };
            let (inputs, outputs) = node.tensors.split_at(node.tensors.len() - outputs);
            for binding in inputs {
                let tensor = &graph.tensors[binding.tensor];
                assert!(
                    !tensor.kind.is_written() || written.contains(&binding.tensor),
                    "{}: {}",
                    node.site,
                    tensor.name
                );
            }
            for output in outputs {
                assert!(graph.tensors[output.tensor].kind.is_written(), "{}", node.site);
                assert!(written.insert(output.tensor), "{} is written twice", graph.tensors[output.tensor].name);
            }
            if let Work::Glue(glue) = node.work {
                let bound: Vec<&str> = node.tensors.iter().map(|binding| binding.name).collect();
                assert_eq!(bound, glue.arguments(), "{}", node.site);
            }
        }
        assert!(written.contains(&graph.output));
        let names: BTreeSet<&str> = graph.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names.len(), graph.tensors.len(), "names are unique");
    }
}

#[test]
fn a_bias_is_bound_where_the_shape_says_so_and_nowhere_else() {
    for graph in all_graphs() {
        for node in &graph.nodes {
            let Work::Op { op: "matmul", shape, .. } = &node.work else { continue };
            assert_eq!(shape.get("has_bias") == Some(1), node.tensor("bias").is_some(), "{}", node.site);
        }
    }
    let graph = graph(&with(llama(), "architectures", json!(["Qwen2ForCausalLM"])), 1, 8);
    let with_bias = |site: &str| graph.nodes.iter().any(|n| n.site == site && n.tensor("bias").is_some());
    assert!(with_bias("layers.0.q_proj") && with_bias("layers.0.k_proj") && with_bias("layers.0.v_proj"));
    assert!(!with_bias("layers.0.o_proj") && !with_bias("lm_head"));
}

#[test]
fn elements_match_the_shapes() {
    for graph in all_graphs() {
        graph.nodes.iter().for_each(|node| check_elements(&graph, node));
    }
}

/// The tensors of a call have as many elements as its sizes say.
fn check_elements(graph: &Graph, node: &Node) {
    let elements = |name: &str| graph.tensors[node.tensor(name).unwrap()].elements() as i64;
    let all = |names: &[&str]| names.iter().map(|name| elements(name)).collect::<Vec<_>>();
    match &node.work {
        Work::Op { op, shape, .. } => {
            let size = |symbols: &str| symbols.split(' ').map(|s| shape.get(s).unwrap()).product::<i64>();
            match *op {
                "matmul" => assert_eq!(all(&["a", "b", "c"]), [size("M K"), size("N K"), size("M N")]),
                "flash_attention" => {
                    let (q, kv) = (size("B H S_q D"), size("B H_kv S_kv D"));
                    assert_eq!(all(&["q", "k", "v", "o"]), [q, kv, kv, q], "{}", node.site);
                }
                "rotary_embedding" => {
                    let (x, table) = (size("B H S D"), size("S D") / 2);
                    assert_eq!(all(&["x", "y", "cos", "sin"]), [x, x, table, table]);
                }
                "fused_mlp" => assert_eq!(all(&["w_gate", "w_up", "w_down"]), [size("D H"); 3]),
                "rmsnorm" => assert_eq!(all(&["x", "weight"]), [size("rows cols"), size("cols")]),
                "layernorm" => {
                    let (x, dim) = (size("batch dim"), size("dim"));
                    assert_eq!(all(&["x", "weight", "bias", "y"]), [x, dim, dim, x]);
                }
                op => panic!("no check for {op}"),
            }
        }
        Work::Glue(glue) => {
            let bytes = |inputs: &[&str], outputs: &[&str]| {
                let sum = |names: &[&str]| all(names).iter().sum::<i64>() as u64;
                (sum(inputs) * 4, sum(outputs) * 4)
            };
            let of_all = |inputs, outputs| assert_eq!(glue.bytes(Dtype::F32), bytes(inputs, outputs), "{}", node.site);
            match *glue {
                Glue::Embedding { tokens, width } | Glue::AddedEmbedding { tokens, width } => {
                    assert_eq!(all(&["ids", "y"]), [tokens as i64, (tokens * width) as i64]);
                }
                Glue::Add { .. } => of_all(&["a", "b"], &["y"]),
                Glue::Gelu { .. } | Glue::GeluTanh { .. } | Glue::Tanh { .. } => of_all(&["x"], &["y"]),
                Glue::Split { .. } => of_all(&["x"], &["q", "k", "v"]),
                Glue::Append { batch, seq, width } => {
                    assert_eq!(all(&["x", "y"]), [(batch * width) as i64, (batch * seq * width) as i64]);
                }
                Glue::FirstToken { batch, seq, width } => {
                    assert_eq!(all(&["x", "y"]), [(batch * seq * width) as i64, (batch * width) as i64]);
                }
            }
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
    let pass = Pass { layers: Some(1), ..pass(Phase::Prefill, 1, 16) };
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
        let pass = Pass { layers, ..pass(Phase::Prefill, batch, seq) };
        Graph::build(&config, pass).map(|_| ()).unwrap_err().to_string()
    };
    assert!(said(0, 8, None).contains("1 or more") && said(1, 0, None).contains("1 or more"));
    assert!(said(1, 8, Some(0)).contains("0 layers") && said(1, 8, Some(4)).contains("has 3 layers, not 4"));
    assert!(said(u64::MAX, 2, None).contains("too many") && said(1 << 30, 8, None).contains("too many"));
    assert!(said(1, 9, None).contains("sliding window of 8"));
    assert!(Graph::build(&config, pass(Phase::Prefill, 1, 8)).is_ok());
}
