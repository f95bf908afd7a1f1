//! `warpsmith bench --seeds`: the same kernel under one seed after another, in one worker.

use std::process::ExitCode;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::bench::is_correct;
use super::spinner::Spinner;
use crate::evaluation::{Evaluation, Verdict};
use crate::harness::EvaluationTask;
use crate::worker::Client;
use crate::worker::protocol::Ask;

/// What is asked.
pub(super) struct Asked {
    /// With the first seed.
    pub(super) task: EvaluationTask,
    /// How many seeds.
    pub(super) count: u64,
    /// Whether stage 1 alone.
    pub(super) smoke: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Table {
    op: String,
    first_seed: u64,
    seeds: u64,
    /// Those under which it is not correct.
    wrong: Vec<Wrong>,
}

#[derive(Debug, Serialize)]
struct Wrong {
    seed: u64,
    verdict: Verdict,
}

/// Judges it under each seed; the exit code is 1 where one of them finds something.
pub(super) async fn table(
    worker: &mut Client,
    asked: Asked,
    watch: &Spinner,
    cancel: &CancellationToken,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let Asked { task, count, smoke } = asked;
    let first_seed = task.seed;
    let mut table = Table { op: task.op.name.clone(), first_seed, seeds: count, wrong: Vec::new() };
    for seed in (0..count).map(|more| first_seed.wrapping_add(more)) {
        let task = Box::new(EvaluationTask { seed, ..task.clone() });
        let ask = if smoke { Ask::Smoke(task) } else { Ask::Evaluate(task) };
        let Evaluation { verdict, .. } = worker.ask(ask, &mut |progress| watch.show(&progress), cancel).await?;
        if is_correct(&verdict) {
            continue;
        }
        if !json {
            super::say(&format!("seed {seed}: {} at {}: {}", verdict.status(), verdict.stage(), verdict.why()));
        }
        table.wrong.push(Wrong { seed, verdict });
    }
    match (json, table.wrong.len()) {
        (true, _) => super::say(&serde_json::to_string_pretty(&table)?),
        (false, 0) => super::say(&format!("{}: correct under {count} seeds, from {first_seed} on", table.op)),
        (false, wrong) => super::say(&format!("{}: not correct under {wrong} of {count} seeds", table.op)),
    }
    Ok(ExitCode::from(u8::from(!table.wrong.is_empty())))
}
