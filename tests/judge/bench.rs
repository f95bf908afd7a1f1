//! Workers that are asked as a run asks them.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio_util::sync::CancellationToken;
use warpsmith::evaluation::{Evaluation, Stage, Verdict};
use warpsmith::harness::{EvaluationTask, Precision};
use warpsmith::worker::Client;
use warpsmith::worker::protocol::Ask;

use crate::slot;
use crate::small::target;
pub use crate::small::{read, source};

pub fn starter(op: &str) -> String {
    read(&format!("kernels/cpu/{op}.c")).unwrap()
}

/// Rounds of a block: where a launch takes as long as a sample, as on a busy machine, a process has no more than a few launches a block,
/// and kernels that behave for the first sixty must have more than that.
pub const ROUNDS: u32 = 4;

/// Judged against `incumbent`. The wide margin lets timing give up soon on what is merely as fast.
pub fn task(op: &str, candidate: &str, incumbent: &str) -> EvaluationTask {
    EvaluationTask {
        op: source(op),
        candidate: candidate.to_owned(),
        incumbent: Some(incumbent.to_owned()),
        baseline: None,
        target: target(op),
        seed: 20,
        precision: Some(Precision { margin: 3.0, spread: 1.0, rounds: ROUNDS }),
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
    answer_within(ask, None)
}

/// The same, of a worker that takes no more than so many bytes: those that judge at the same time must not take all that there is.
pub fn answer_within<T: serde::de::DeserializeOwned>(ask: Ask, memory: Option<u64>) -> T {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    static WORKERS: Mutex<BTreeMap<(usize, Option<u64>), Client>> = Mutex::new(BTreeMap::new());
    let workers = || WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = RUNTIME
        .get_or_init(|| tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
    let place = (slot::slot(), memory);
    let idle = workers().remove(&place);
    let mut client = idle.unwrap_or_else(|| {
        let (program, mut arguments) = worker();
        arguments.splice(0..0, memory.map(|bytes| format!("WARPSMITH_MEMORY={bytes}")));
        runtime.block_on(Client::start(&program, &arguments)).unwrap()
    });
    let cancel = CancellationToken::new();
    let said = runtime.block_on(client.ask(ask, &mut |_| {}, &cancel)).unwrap();
    workers().insert(place, client);
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

/// Three rows from all parts of a table, or four, for every `cargo test`; the full suite judges all of them.
pub fn few<T>(rows: &[T]) -> impl Iterator<Item = &T> {
    rows.iter().step_by(rows.len().div_ceil(4).max(1))
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
