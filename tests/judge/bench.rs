//! Workers that are asked as a run asks them; operations made small enough to test on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;
use warpsmith::evaluation::{Evaluation, Stage, Verdict};
use warpsmith::harness::{EvaluationTask, Precision};
use warpsmith::op::{Dtype, OpSource, Shape, TargetShape};
use warpsmith::worker::Client;
use warpsmith::worker::protocol::Ask;

use crate::slot;

/// Multiply-adds and elements of a case in these tests.
const MAX_MACS: u64 = 1 << 20;
const MAX_ELEMENTS: u64 = 1 << 17;

pub fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

pub fn starter(op: &str) -> String {
    read(&format!("kernels/cpu/{op}.c")).unwrap()
}

/// Elements of a hostile input: all but the largest stay as they are.
const MAX_HOSTILE: u64 = 1 << 20;

/// An operation as it ships, with ordinary shapes shrunk, and hostile inputs where they are very large.
pub fn source(name: &str) -> OpSource {
    let mut source = OpSource::read(name, &read).unwrap();
    let op = source.operation().unwrap();
    let mut file: toml::Table = source.toml.parse().unwrap();
    for (key, shapes) in [("sweep", &op.sweep), ("edges", &op.edges), ("decode", &op.decode)] {
        let small = shapes.iter().map(|shape| {
            let (shape, _) = op.shrink_to(&op.complete(shape).unwrap(), MAX_MACS, MAX_ELEMENTS).unwrap();
            toml::Value::try_from(shape).unwrap()
        });
        file.insert(key.into(), small.collect::<Vec<_>>().into());
    }
    for (hostile, table) in op.adversarial.iter().zip(file["adversarial"].as_array_mut().unwrap()) {
        let (shape, _) = op.shrink_to(&op.complete(&hostile.shape).unwrap(), u64::MAX, MAX_HOSTILE).unwrap();
        table["shape"] = toml::Value::try_from(shape).unwrap();
    }
    if let Some(toml::Value::Table(random)) = file.get_mut("random") {
        for (_, bounds) in random.iter_mut() {
            let [low, high] = [0, 1].map(|at| bounds[at].as_integer().unwrap());
            *bounds = vec![low, high.min(70)].into();
        }
    }
    source.toml = toml::to_string(&file).unwrap();
    source
}

/// Where a kernel is timed: long enough for the clock, and more work than anything before.
fn target(op: &str) -> Vec<TargetShape> {
    let shape = match op {
        "rmsnorm" => Shape::from([("rows", 96), ("cols", 1000)]),
        "matmul" => Shape::from([("M", 40), ("N", 96), ("K", 300), ("trans_b", 1)]),
        "softmax" => Shape::from([("rows", 96), ("cols", 1000)]),
        "layernorm" => Shape::from([("batch", 96), ("dim", 1000)]),
        "rotary_embedding" => Shape::from([("B", 1), ("H", 8), ("S", 100), ("D", 64)]),
        "flash_attention" => Shape::from([("B", 1), ("H", 4), ("S_q", 90), ("S_kv", 90), ("D", 32), ("causal", 1)]),
        "fused_mlp" => Shape::from([("B", 10), ("D", 100), ("H", 300)]),
        "cross_entropy" => Shape::from([("batch", 70), ("vocab", 1000)]),
        "reduce" => Shape::from([("rows", 200), ("cols", 1000)]),
        other => panic!("no target for {other}"),
    };
    vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }]
}

/// Judged against `incumbent`. The wide margin lets timing give up soon on what is merely as fast.
pub fn task(op: &str, candidate: &str, incumbent: &str) -> EvaluationTask {
    EvaluationTask {
        op: source(op),
        candidate: candidate.to_owned(),
        incumbent: Some(incumbent.to_owned()),
        baseline: None,
        target: target(op),
        seed: 20,
        precision: Some(Precision { margin: 3.0, spread: 1.0, rounds: 1 }),
        examination_s: 0.0,
        look: false,
        branch_over_best: None,
    }
}

/// The worker's program and arguments; compilations and calibration are shared with the tests before and after.
pub fn worker() -> (std::path::PathBuf, Vec<String>) {
    let cache = format!("WARPSMITH_CACHE={}", slot::cache().display());
    ("/usr/bin/env".into(), vec![cache, env!("CARGO_BIN_EXE_warpsmith").into(), "worker".into()])
}

pub async fn start() -> Client {
    let (program, arguments) = worker();
    Client::start(&program, &arguments).await.unwrap()
}

/// What a worker says to `ask`: the same one for all tests that have the same place, one after another.
pub fn answer<T: serde::de::DeserializeOwned>(ask: Ask) -> T {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    static WORKERS: Mutex<BTreeMap<usize, Client>> = Mutex::new(BTreeMap::new());
    let workers = || WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = RUNTIME
        .get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
    let idle = workers().remove(&slot::slot());
    let mut client = idle.unwrap_or_else(|| runtime.block_on(start()));
    let cancel = CancellationToken::new();
    let said = runtime.block_on(client.ask(ask, &mut |_| {}, &cancel)).unwrap();
    workers().insert(slot::slot(), client);
    said
}

pub fn evaluate(op: &str, candidate: &str, incumbent: &str) -> Evaluation {
    answer(Ask::Evaluate(Box::new(task(op, candidate, incumbent))))
}

/// Whether a verdict says that the answers were right.
pub const fn correct(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Base | Verdict::Keep { .. } | Verdict::Revert { .. })
}

/// An edit of a text: each pattern stands in it exactly once.
pub fn edit(text: &str, edits: &[(&str, &str)]) -> String {
    edits.iter().fold(text.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "`{from}` in\n{text}");
        text.replace(from, to)
    })
}

/// What stands in a text, and what takes its place.
pub type Edits = &'static [(&'static str, &'static str)];

/// Operations that take longest to judge.
pub const PRODUCTS: [&str; 3] = ["matmul", "flash_attention", "fused_mlp"];

/// A kernel, and what the judge must say to it.
pub struct Row {
    pub name: &'static str,
    /// The operation, whose honest kernel is edited.
    pub op: &'static str,
    pub edits: Edits,
    pub status: &'static str,
    pub stages: &'static [Stage],
    /// In the reason.
    pub part: &'static str,
}

/// Judges every row; all that is not as expected is told at once.
pub fn judge<'a>(rows: impl IntoIterator<Item = &'a Row>) {
    let mut wrong = Vec::new();
    for row in rows {
        let honest = crate::honest::small(row.op);
        let verdict = evaluate(row.op, &edit(honest, row.edits), honest).verdict;
        let (status, stage, why) = (verdict.status(), verdict.stage(), verdict.why());
        let line = format!("{:<55} {status:<8} {:<12} {}", row.name, stage.name(), first_line(why));
        println!("{line}");
        if status != row.status || !row.stages.contains(&stage) || !why.contains(row.part) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "not as expected:\n{}", wrong.join("\n"));
}

fn first_line(text: &str) -> String {
    text.lines().take(2).collect::<Vec<_>>().join(" / ").chars().take(220).collect()
}
