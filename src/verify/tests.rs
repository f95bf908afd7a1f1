#![allow(clippy::unwrap_used)]

use super::*;
use crate::forward::{Block, Comparison, Rounds, bound, compare_outputs};
use crate::model::{Graph, ModelConfig, Pass, Phase};
use crate::op::Dtype;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 10}"#;

fn graph() -> Graph {
    let config = ModelConfig::parse("tiny", CONFIG).unwrap();
    Graph::build(&config, Pass { phase: Phase::Prefill, batch: 1, seq: 3, dtype: Dtype::F32, layers: None }).unwrap()
}

/// What comes of two models whose every call takes 10 µs but for the MLP, which takes `mlp` before and after, and whose
/// outputs differ by a factor.
fn comparison(graph: &Graph, mlp: [f64; 2], factor: f64) -> Comparison {
    let mlps = graph.calls_of("fused_mlp");
    let side = |us: f64| {
        let round: Vec<f64> = (0..graph.nodes.len()).map(|at| if mlps.contains(&at) { us } else { 10.0 }).collect();
        Rounds { whole_us: vec![round.iter().sum(); 3], node_us: vec![round; 3], launch_us: 5.0, notes: vec![] }
    };
    let [before, after] = mlp.map(side);
    let block = Block { before_us: [before.whole() + 5.0; 2], after_us: [after.whole() + 5.0; 2] };
    let outputs: Vec<f64> = (0..30).map(|i| f64::from(i * 7 % 11 - 5)).collect();
    let others: Vec<f64> = outputs.iter().map(|v| v * factor).collect();
    let output = compare_outputs(&outputs, &others, 10, bound(graph.pass.dtype, graph.nodes.len()));
    Comparison { output, before, after, sessions: vec![vec![block; 4]; 3] }
}

fn mlp(vs_user: f64) -> Vec<Change> {
    vec![Change { op: "fused_mlp".to_owned(), vs_user }]
}

#[test]
fn only_what_is_faster_is_installed() {
    let change = |op: &str, vs_user| Change { op: op.to_owned(), vs_user };
    let all = [change("a", 1.2), change("b", 1.0), change("c", 0.9), change("d", f64::NAN), change("e", 1.000_001)];
    let choice = choose(&all);
    let names = |changes: &[Change]| changes.iter().map(|change| change.op.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&choice.installed), names(&choice.left_out)),
        (vec!["a".into(), "e".into()], vec!["b".into(), "c".into(), "d".into()])
    );
    assert_eq!(choose(&[]), Choice::default());
}

#[test]
fn the_prediction_takes_what_the_parts_save_off_the_whole() {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
    assert!(near(predicted(100.0, &[(50.0, 2.0)]), 100.0 / 75.0));
    assert!(near(predicted(100.0, &[(50.0, 2.0), (20.0, 1.25)]), 100.0 / 71.0));
    assert_eq!(predicted(100.0, &[]), 1.0);
    assert_eq!(predicted(100.0, &[(50.0, 1.0), (50.0, 0.5), (50.0, f64::NAN)]), 1.0);
    assert_eq!(predicted(0.0, &[(1.0, 2.0)]), 1.0);
    assert!(predicted(10.0, &[(50.0, 2.0)]).is_finite());
}

#[test]
fn the_speedup_is_the_median_of_blocks_with_its_interval() {
    let block = |before, after| Block { before_us: [before; 2], after_us: [after; 2] };
    let sessions = [
        (0..20).map(|i| block(120.0 + f64::from(i % 3), 100.0)).collect::<Vec<_>>(),
        vec![block(121.0, 100.0), block(121.0, 100.0), block(900.0, 100.0)],
    ];
    let speedup = Speedup::of(&sessions);
    assert!((speedup.median - 1.21).abs() < 1e-9, "{speedup:?}");
    let (low, high) = (speedup.low.unwrap(), speedup.high.unwrap());
    assert!(low <= speedup.median && speedup.median <= high && (1.2..1.23).contains(&low) && high < 1.23);
    assert_eq!((speedup.passes, speedup.sessions.len()), (46, 2));
    assert_eq!((speedup.before_us, speedup.after_us), (121.0, 100.0));
}

#[test]
fn too_few_blocks_have_no_interval_and_none_have_no_speedup() {
    let block = Block { before_us: [2.0; 2], after_us: [1.0; 2] };
    let few = Speedup::of(&[vec![block; 3]]);
    assert!((few.median - 2.0).abs() < 1e-12 && few.low.is_none() && few.high.is_none());
    let none = Speedup::of(&[]);
    assert_eq!((none.median, none.passes), (1.0, 0));
}

#[test]
fn a_true_gain_is_measured_and_predicted_alike() {
    let graph = graph();
    let others = 10.0 * (graph.nodes.len() - 2) as f64;
    let report = Report::new(&graph, &comparison(&graph, [100.0, 40.0], 1.0), &mlp(2.5), "two cores");
    let before = others + 200.0;
    assert!((report.predicted - before / (before - 120.0)).abs() < 1e-6, "{report:?}");
    assert!((report.measured.median - (before + 5.0) / (before - 115.0)).abs() < 1e-6);
    assert!(report.difference().abs() < 0.01 && report.difference() < 0.0);
    assert_eq!((report.parts[0].before_us, report.parts[0].after_us), (200.0, 80.0));
    assert_eq!(report.output.wrong, None);
}

#[test]
fn a_model_that_says_something_else_is_called_wrong_however_fast() {
    let graph = graph();
    let report = Report::new(&graph, &comparison(&graph, [100.0, 1.0], 1.05), &mlp(100.0), "two cores");
    assert!(report.text().contains("OUTPUTS DIFFER: the outputs differ by 5.0e-2"), "{}", report.text());
}

#[test]
fn the_report_reads_well() {
    let graph = graph();
    let mut report = Report::new(&graph, &comparison(&graph, [100.0, 40.0], 1.0), &mlp(2.46), "two cores");
    report.notes.push("the first 2 of 4 layers are run".to_owned());
    assert!(report.text().lines().all(|line| line.chars().count() <= 100), "{}", report.text());
    insta::assert_snapshot!(report.text(), @r"
    tiny · 1x3 tokens · f32 · two cores
    outputs agree to 0.0e0 of their rms (bound 1.5e-4); same next token at 3 of 3 positions
    0.46 -> 0.34 ms: 1.358x measured (95 % 1.358 to 1.358, 24 passes a side, 3 fresh processes)
    1.358x predicted; measured is 0.0 % below

    operation            before ms    after ms  in place   vs_user
    fused_mlp                0.200       0.080     2.50x     2.46x
    note: the first 2 of 4 layers are run
    ");
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap().text(), report.text());
}

#[test]
fn a_pass_is_slower_where_it_is_so_in_every_session_and_by_more_than_processes_differ() {
    // Time before over time after, by sessions of four blocks.
    let seen = |sessions: &[f64]| {
        let block = |ratio: &f64| Block { before_us: [100.0 * ratio; 2], after_us: [100.0; 2] };
        Speedup::of(&sessions.iter().map(|ratio| vec![block(ratio); 4]).collect::<Vec<_>>())
    };
    assert!(seen(&[0.98, 0.97, 0.99, 0.98, 0.97]).is_slower());
    assert!(!seen(&[0.98, 0.97, 1.001, 0.98, 0.97]).is_slower(), "one session says otherwise");
    assert!(!seen(&[0.997, 0.996, 0.998, 0.997, 0.996]).is_slower(), "less than half a percent");
    assert!(!seen(&[1.0; 5]).is_slower() && !seen(&[1.02; 5]).is_slower());
    assert!(!seen(&[0.5]).is_slower(), "four blocks have no interval");
    assert!(!seen(&[]).is_slower());
}
