#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::convert::Infallible;

use super::*;
use crate::device::{Ceilings, DeviceCard, samples};
use crate::forward::Rounds;
use crate::model::{Graph, ModelConfig, Phase, Work};
use crate::op::Dtype;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1376,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096}"#;

fn graph() -> Graph {
    let config = ModelConfig::parse("tiny-llama", CONFIG).unwrap();
    Graph::build(&config, Pass { phase: Phase::Prefill, batch: 1, seq: 128, dtype: Dtype::F32, layers: None }).unwrap()
}

/// 10 GB/s both ways and 100 GFLOP/s: 1 µs is 10 kB or 100 kFLOP.
fn card() -> DeviceCard {
    let gflops = Dtype::ALL.into_iter().map(|dtype| (dtype, 100.0)).collect();
    let ceilings = Ceilings { gflops, launch_us: 50.0, ..samples::card().ceilings };
    DeviceCard { name: "two cores".into(), ceilings, ..samples::card() }
}

/// Every call of an operation costs 10 kB read and `flops`.
fn cost(flops: f64) -> impl Fn(&str, &Shape) -> Result<CallCost, Infallible> {
    move |_, shape| Ok(CallCost { label: shape.to_string(), read_bytes: 1e4, write_bytes: 0.0, flops })
}

/// Each node takes the time of its operation, µs; three rounds, one of them disturbed.
fn rounds(graph: &Graph, whole_us: f64, op_us: &[(&str, f64)]) -> Rounds {
    let time = |work: &Work| match work {
        Work::Op { op, .. } => op_us.iter().find(|(name, _)| name == op).map_or(1.0, |(_, us)| *us),
        Work::Glue(_) => 1.0,
    };
    let round: Vec<f64> = graph.nodes.iter().map(|node| time(&node.work)).collect();
    let disturbed = round.iter().map(|us| us * 7.0).collect();
    Rounds {
        whole_us: vec![whole_us, whole_us * 9.0, whole_us],
        node_us: vec![round.clone(), disturbed, round],
        launch_us: 6.0,
        notes: vec![],
    }
}

fn profile(whole_us: f64, op_us: &[(&str, f64)], flops: f64) -> Profile {
    let graph = graph();
    let rounds = rounds(&graph, whole_us, op_us);
    aggregate(&graph, &rounds, &card(), &cost(flops)).unwrap()
}

/// A Llama of four layers, 1x128 tokens in f32, that spends most of its 10 ms in two operations.
pub(crate) fn sample() -> Profile {
    profile(10_000.0, &[("fused_mlp", 1000.0), ("matmul", 200.0)], 1e6)
}

#[test]
fn rows_gather_the_calls_of_one_shape_most_time_first() {
    let profile = profile(10_000.0, &[("fused_mlp", 1000.0), ("matmul", 200.0)], 1e6);
    let rows: Vec<(usize, &str, u32, f64)> = profile.rows.iter().map(|r| (r.rank, r.name(), r.calls, r.us)).collect();
    assert_eq!(rows[0], (1, "fused_mlp", 4, 4000.0));
    // q and o; k and v; the head.
    assert_eq!(rows[1..4], [(2, "matmul", 8, 1600.0), (3, "matmul", 8, 1600.0), (4, "matmul", 1, 200.0)]);
    let calls: u32 = profile.rows.iter().map(|row| row.calls).sum();
    assert_eq!(calls as usize, graph().nodes.len());
    assert!(rows.iter().any(|row| row.1 == "embedding") && rows.iter().any(|row| row.1 == "residual add"));
}

#[test]
fn shares_and_other_make_up_the_whole() {
    let profile = profile(10_000.0, &[("fused_mlp", 1000.0), ("matmul", 200.0)], 1e6);
    let shares: f64 = profile.rows.iter().map(|row| row.share).sum();
    assert!((shares + profile.other_share - 1.0).abs() < 1e-12);
    assert!((profile.rows.last().unwrap().cumulative - shares).abs() < 1e-12);
    assert!((profile.parts_us + profile.other_us - profile.whole_us).abs() < 1e-9);
    assert!(profile.other_share > MOST_OTHER);
    assert!(profile.notes.iter().any(|note| note.contains("do not explain 2")), "{:?}", profile.notes);
}

#[test]
fn parts_that_take_longer_than_the_whole_leave_no_other_no_share_above_one_and_a_note() {
    let profile = profile(3900.0, &[("fused_mlp", 1000.0)], 1e6);
    assert_eq!((profile.other_us, profile.other_share), (0.0, 0.0));
    assert!((profile.parts_us - profile.overlap_us - profile.whole_us).abs() < 1e-9);
    assert!((profile.rows.last().unwrap().cumulative - 1.0).abs() < 1e-12);
    assert!(profile.notes[0].contains("shares are of their sum"), "{:?}", profile.notes);
    let other = profile.table().lines().find(|line| line.trim_start().starts_with("other")).unwrap().to_owned();
    let cells: Vec<&str> = other.split_whitespace().collect();
    assert_eq!(cells[..2], ["other", "-0.147"], "{other}");
    assert!(cells[2].starts_with("-3.") && cells[2].ends_with('%'), "{other}");
}

#[test]
fn steps_between_operations_have_rows_of_their_own() {
    let named = |text: &str, phase| {
        let config = ModelConfig::parse("tiny", text).unwrap();
        let graph = Graph::build(&config, Pass { phase, batch: 1, seq: 8, dtype: Dtype::F32, layers: None }).unwrap();
        let profile = aggregate(&graph, &rounds(&graph, 1000.0, &[]), &card(), &cost(1.0)).unwrap();
        let mut names: Vec<String> =
            profile.rows.iter().filter(|row| row.gains.is_none()).map(|row| row.name().to_owned()).collect();
        names.sort_unstable();
        names.join("; ")
    };
    let gpt2 =
        r#"{"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 32, "vocab_size": 50}"#;
    assert_eq!(named(gpt2, Phase::Prefill), "added embedding; embedding; gelu (tanh); residual add; split q, k, v");
    assert_eq!(
        named(gpt2, Phase::Decode),
        "added embedding; append to cache; embedding; gelu (tanh); residual add; split q, k, v"
    );
    let bert = r#"{"model_type": "bert", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 50, "max_position_embeddings": 32}"#;
    assert_eq!(named(bert, Phase::Prefill), "added embedding; embedding; first token; gelu; residual add; tanh");
}

#[test]
fn a_pass_too_fast_to_measure_gives_no_nan() {
    let graph = graph();
    let nothing =
        Rounds { whole_us: vec![0.0], node_us: vec![vec![0.0; graph.nodes.len()]], launch_us: 3.0, notes: vec![] };
    let profile = aggregate(&graph, &nothing, &card(), &cost(1.0)).unwrap();
    for row in &profile.rows {
        let gains = row.gains.map_or(1.0, |gains| gains.at_1_5 + gains.at_2 + gains.at_roofline);
        assert!(gains.is_finite() && row.share.is_finite() && row.cumulative.is_finite(), "{row:?}");
    }
    assert!(serde_json::to_string(&profile).is_ok());
}

#[test]
fn gains_follow_amdahl_and_glue_has_none() {
    let profile = profile(8000.0, &[("fused_mlp", 1000.0), ("matmul", 100.0)], 1e6);
    let mlp = &profile.rows[0];
    let gains = mlp.gains.unwrap();
    assert_eq!(mlp.share, 0.5);
    // 1e6 operations at 100 GFLOP/s are 10 µs a call, 40 µs of 4000.
    assert_eq!((mlp.roofline_us, mlp.bound), (40.0, Bound::Compute));
    let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
    assert!(
        near(gains.at_1_5, 1.2) && near(gains.at_2, 4.0 / 3.0) && near(gains.at_roofline, 1.0 / (0.5 + 0.5 / 100.0))
    );
    assert!(profile.rows.iter().all(|row| row.gains.is_none() == matches!(row.what, What::Glue(_))));
}

#[test]
fn a_start_is_no_ceiling_inside_a_pass() {
    let profile = profile(8000.0, &[], 1.0);
    for row in profile.rows.iter().filter(|row| row.gains.is_some()) {
        assert_eq!((row.bound, row.roofline_us), (Bound::Memory, f64::from(row.calls)), "{row:?}");
    }
}

#[test]
fn targets_are_ranked_by_what_their_roofline_is_worth() {
    // Attention takes more time than the MLP but stands at its roofline of 10 µs already.
    let profile = profile(8000.0, &[("flash_attention", 10.0), ("fused_mlp", 9.0), ("matmul", 300.0)], 1e6);
    let targets = profile.ranked_targets(&BTreeMap::new());
    assert_eq!(targets[0].op, "matmul");
    assert_eq!(targets[0].shapes.len(), 3);
    assert_eq!(targets[0].shapes.iter().map(|shape| shape.calls).sum::<u32>(), 17);
    assert!(!targets[0].skipped && targets[1..].iter().all(|target| target.skipped && target.ceiling < 1.01));
    assert_eq!(targets.len(), 5);
    assert!(targets.is_sorted_by(|a, b| a.ceiling >= b.ceiling));
    let attention = targets.iter().find(|target| target.op == "flash_attention").unwrap();
    assert_eq!(attention.ceiling, 1.0);
}

#[test]
fn what_was_gained_moves_a_target_down_and_the_others_up() {
    let profile = profile(8000.0, &[("fused_mlp", 1000.0), ("matmul", 180.0)], 1e6);
    let before = profile.ranked_targets(&BTreeMap::new());
    assert_eq!((before[0].op.as_str(), before[1].op.as_str()), ("fused_mlp", "matmul"));
    let after = profile.ranked_targets(&BTreeMap::from([("fused_mlp".to_owned(), 2.0)]));
    assert_eq!((after[0].op.as_str(), after[1].op.as_str()), ("matmul", "fused_mlp"));
    assert!((after[1].us - 2000.0).abs() < 1e-9 && (after[1].share - 2000.0 / 6000.0).abs() < 1e-12);
    assert!(after[0].share > before[1].share && after[0].ceiling > before[1].ceiling);
}

#[test]
fn the_prediction_is_the_whole_less_what_is_saved() {
    let profile = profile(8000.0, &[("fused_mlp", 1000.0), ("matmul", 180.0)], 1e6);
    let with = |op: &str, speedup| profile.predict(&BTreeMap::from([(op.to_owned(), speedup)]));
    assert!((with("fused_mlp", 2.0) - 6000.0).abs() < 1e-9);
    assert!((with("matmul", 1.5) - (8000.0 - 17.0 * 60.0)).abs() < 1e-9);
    assert_eq!((with("fused_mlp", 0.5), with("softmax", 9.0)), (8000.0, 8000.0));
}

#[test]
fn what_is_not_faster_is_not_installed_and_changes_no_rank() {
    let profile = profile(8000.0, &[("fused_mlp", 1000.0), ("matmul", 180.0)], 1e6);
    let before = profile.ranked_targets(&BTreeMap::new());
    for speedup in [1.0, 0.5, 0.0, f64::NAN] {
        assert_eq!(profile.ranked_targets(&BTreeMap::from([("fused_mlp".to_owned(), speedup)])), before);
    }
}

#[test]
fn the_table_fits_a_hundred_columns_whatever_the_sizes() {
    let graph = graph();
    for whole in [80.0, 8000.0, 8e6, 8e9] {
        let rounds = rounds(&graph, whole, &[("fused_mlp", whole / 8.0), ("matmul", 3.0)]);
        let long = |_: &str, _: &Shape| {
            let label = "65536x4096x65536x131072 causal bshd ".repeat(3);
            Ok::<_, Infallible>(CallCost { label, read_bytes: 1e4, write_bytes: 1e4, flops: 1e5 })
        };
        let table = aggregate(&graph, &rounds, &card(), &long).unwrap().table();
        let widest = table.lines().filter(|line| !line.starts_with("note")).map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{widest:?}\n{table}");
    }
}

#[test]
fn the_table_reads_well() {
    let graph = graph();
    let times = [("fused_mlp", 11_000.0), ("matmul", 6000.0), ("flash_attention", 400.0), ("rmsnorm", 200.0)];
    let rounds = rounds(&graph, 151_000.0, &times);
    let sizes = |op: &str, shape: &Shape| {
        let product = |symbols: &[&str]| symbols.iter().map(|s| shape.get(s).unwrap()).product::<i64>() as f64;
        let join =
            |symbols: &[&str]| symbols.iter().map(|s| shape.get(s).unwrap().to_string()).collect::<Vec<_>>().join("x");
        let (symbols, factor): (&[&str], f64) = match op {
            "matmul" => (&["M", "N", "K"], 2.0),
            "fused_mlp" => (&["B", "D", "H"], 6.0),
            "rmsnorm" => (&["rows", "cols"], 6.0),
            "rotary_embedding" => (&["B", "H", "S", "D"], 3.0),
            _ => (&["B", "H", "S_q", "S_kv", "D"], 2.0),
        };
        let flops = factor * product(symbols);
        Ok::<_, Infallible>(CallCost { label: join(symbols), read_bytes: 1e6, write_bytes: 1e5, flops })
    };
    let table = aggregate(&graph, &rounds, &card(), &sizes).unwrap().table();
    insta::assert_snapshot!(table, @r"
    tiny-llama · 4 layers, 15.8M weights · 1x128 tokens · f32 · two cores
    one pass takes 151.0 ms (3 rounds)
    last columns: how much faster the pass gets when that row alone runs at 1.5x, at 2x, at its roof

     # operation        shape          calls    ms share  cum. roof, bound   1.5x    2x at roof
     1 matmul           128x512x512        8 48.00 31.8% 31.8%  11% compute 1.12x 1.19x   1.39x
     2 matmul           128x256x512        8 48.00 31.8% 63.6%   6% compute 1.12x 1.19x   1.43x
     3 fused_mlp        128x512x1376       4 44.00 29.1% 92.7%  49% compute 1.11x 1.17x   1.17x
     4 matmul           128x4096x512       1 6.000  4.0% 96.7%  89% compute 1.01x 1.02x   1.00x
     5 rmsnorm          128x512            9 1.800  1.2% 97.9%  55% memory  1.00x 1.01x   1.01x
     6 flash_attention  1x8x128x128x64     4 1.600  1.1% 98.9%  42% compute 1.00x 1.01x   1.01x
     7 residual add     65536              8 0.008  0.0% 98.9% >999% memory
     8 rotary_embedding 1x8x128x64         4 0.004  0.0% 98.9% >999% memory 1.00x 1.00x   1.00x
     9 rotary_embedding 1x4x128x64         4 0.004  0.0% 99.0% >999% memory 1.00x 1.00x   1.00x
    10 embedding        128x512            1 0.001  0.0% 99.0% >999% memory
       other                                 1.583  1.0%
    ");
}
