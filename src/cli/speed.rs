//! `warpsmith bench --speed`: how long a verdict takes.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::spinner::Spinner;
use super::{bench, session};
use crate::device::Opening;
use crate::evaluation::{Evaluation, Stage, Verdict};
use crate::harness::{EvaluationTask, Precision, Progress};
use crate::kernel::{KernelFile, Language, set_tunables};
use crate::op::OpSource;
use crate::rng::Stream;
use crate::stats::median;
use crate::worker::protocol::Ask;
use crate::worker::{Client, WorkerError};

/// What one kernel file's verdicts took.
#[derive(Debug, Serialize)]
struct Row {
    op: String,
    backend: String,
    /// From starting the worker to the kernel's own verdict, in seconds: what a plain `bench` takes on a text never seen.
    cold_s: f64,
    /// From text to verdict in the warm worker: candidates that are right and no gain.
    not_kept_s: Vec<f64>,
    /// The same for candidates that a run would keep.
    kept_s: Vec<f64>,
    /// How much of either was spent waiting for the compiler.
    compile_s: Vec<f64>,
    /// Candidates that ended earlier: refused, or wrong.
    refused: usize,
}

/// Measures each file, of the operation that is `given` or its own, in a worker of its own, and prints one table.
pub(super) async fn table(args: &bench::Args, given: Option<&OpSource>, candidates: usize) -> anyhow::Result<ExitCode> {
    let cancel = session::interruptible();
    let watch = Spinner::new(args.json);
    let mut rows = Vec::new();
    for path in &args.kernels {
        let began = Instant::now();
        let wanted = bench::Wanted::read_for(args.device, &args.worker, path, given)?;
        let mut worker = wanted.worker(Opening::Meanwhile).await?;
        let start = wanted.task(args, worker.limits())?;
        match measure(start, candidates, began, &mut worker, &watch, &cancel).await? {
            Ok(row) => rows.push(row),
            Err(verdict) => {
                drop(watch);
                super::warn(&format!(
                    "{}: {} at {}: {}",
                    path.display(),
                    verdict.status(),
                    verdict.stage(),
                    verdict.why()
                ));
                return Ok(ExitCode::from(1));
            }
        }
    }
    drop(watch);
    if args.json {
        super::say(&serde_json::to_string_pretty(&rows)?);
    } else {
        super::say(&lines(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// Judges the kernel as a start, then its neighbours against it. The inner error is the verdict on a kernel that is wrong.
async fn measure(
    start: EvaluationTask,
    candidates: usize,
    began: Instant,
    worker: &mut Client,
    watch: &Spinner,
    cancel: &CancellationToken,
) -> anyhow::Result<Result<Row, Verdict>> {
    let seed = start.seed;
    let mut show = |progress: Progress| watch.show(&progress);
    let start = EvaluationTask { candidate: unseen(&start.candidate, seed, 0), ..start };
    let look = EvaluationTask { look: true, ..start.clone() };
    let base: Evaluation = worker.ask(Ask::Evaluate(Box::new(look)), &mut show, cancel).await?;
    let mut row = Row {
        op: base.op,
        backend: base.backend,
        cold_s: began.elapsed().as_secs_f64(),
        not_kept_s: Vec::new(),
        kept_s: Vec::new(),
        compile_s: Vec::new(),
        refused: 0,
    };
    let Some(timing) = base.timing.filter(|_| base.verdict == Verdict::Base) else { return Ok(Err(base.verdict)) };
    let precision = Precision { margin: timing.margin, spread: timing.spread, rounds: timing.rounds };
    for (index, text) in neighbours(&start.candidate)?.iter().cycle().take(candidates).enumerate() {
        let number = index as u64 + 1;
        let task = EvaluationTask {
            candidate: unseen(text, seed, number),
            incumbent: Some(start.candidate.clone()),
            baseline: Some(start.candidate.clone()),
            precision: Some(precision),
            seed: Stream::new(seed, "speed").bits(number),
            ..start.clone()
        };
        let Some((found, took)) = judged(worker, task, &start, &mut show, cancel).await? else {
            row.refused += 1;
            continue;
        };
        match found.verdict {
            Verdict::Revert { .. } => row.not_kept_s.push(took),
            Verdict::Keep { .. } => row.kept_s.push(took),
            _ => {
                row.refused += 1;
                continue;
            }
        }
        row.compile_s.extend(found.stage_s.get(&Stage::Compile));
    }
    Ok(Ok(row))
}

/// What was found of a candidate, and the seconds that took; none where it takes the worker down with it, twice.
async fn judged(
    worker: &mut Client,
    task: EvaluationTask,
    start: &EvaluationTask,
    show: &mut (dyn FnMut(Progress) + Send),
    cancel: &CancellationToken,
) -> anyhow::Result<Option<(Evaluation, f64)>> {
    for _ in 0..2 {
        let asked = Instant::now();
        let answer: Result<Evaluation, _> = worker.ask(Ask::Evaluate(Box::new(task.clone())), show, cancel).await;
        match answer {
            Ok(evaluation) => return Ok(Some((evaluation, asked.elapsed().as_secs_f64()))),
            // It may be the one before that left a dying worker behind. The new one is as warm as one verdict makes it.
            Err(WorkerError::Died(_)) => {
                worker.restart().await?;
                let _: Evaluation = worker.ask(Ask::Evaluate(Box::new(start.clone())), show, cancel).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// The same kernel as a text that nobody has compiled before: what a cache remembers would flatter the figures.
fn unseen(text: &str, seed: u64, number: u64) -> String {
    let language = KernelFile::parse(text).map_or(Language::C, |kernel| kernel.language);
    format!("{text}\n{}", language.comment(&format!("speed {seed:016x} {number}")))
}

/// The kernel at the points next to its own, one tunable a step up or down, all tunables in turn; itself where it has none.
fn neighbours(text: &str) -> anyhow::Result<Vec<String>> {
    let kernel = KernelFile::parse(text)?;
    let mut steps = Vec::new();
    for up in [true, false] {
        for (name, tunable) in &kernel.front.tune {
            let mut choices = tunable.choices.clone();
            choices.sort_unstable();
            let beside = |value: &&i64| if up { **value > tunable.value } else { **value < tunable.value };
            let next = if up { choices.iter().find(beside) } else { choices.iter().rev().find(beside) };
            steps.extend(next.map(|value| BTreeMap::from([(name.clone(), *value)])));
        }
    }
    let mut texts = steps.iter().map(|step| set_tunables(text, step)).collect::<Result<Vec<_>, _>>()?;
    if texts.is_empty() {
        texts.push(text.to_owned());
    }
    Ok(texts)
}

/// The table: columns that a script can split at blanks.
fn lines(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<18} {:<8} {:>8} {:>8} {:>8} {:>8}  candidates",
        "seconds/verdict", "backend", "not_kept", "kept", "cold", "compile"
    );
    let middle = |times: &[f64]| median(times).map_or("-".to_owned(), |seconds| format!("{seconds:.2}"));
    for row in rows {
        text.push_str(&format!(
            "\n{:<18} {:<8} {:>8} {:>8} {:>8.2} {:>8}  {} not kept, {} kept, {} refused",
            row.op,
            row.backend,
            middle(&row.not_kept_s),
            middle(&row.kept_s),
            row.cold_s,
            middle(&row.compile_s),
            row.not_kept_s.len(),
            row.kept_s.len(),
            row.refused
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(tune: &str) -> String {
        format!("/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\n{tune}---*/\nint x;\n")
    }

    #[test]
    fn neighbours_are_one_step_away_in_one_tunable() {
        let kernel = text("[tune]\nA = { value = 4, choices = [8, 2, 4, 16] }\nB = { value = 1, choices = [1, 2] }\n");
        let points: Vec<_> = neighbours(&kernel)
            .unwrap()
            .iter()
            .map(|text| KernelFile::parse(text).unwrap().values().into_values().collect::<Vec<_>>())
            .collect();
        assert_eq!(points, [vec![8, 1], vec![4, 2], vec![2, 1]]);
    }

    #[test]
    fn a_kernel_without_choices_is_its_own_neighbour() {
        let kernel = text("[tune]\nA = { value = 4, choices = [4] }\n");
        assert_eq!(neighbours(&kernel).unwrap(), [kernel]);
    }

    #[test]
    fn every_text_that_is_measured_is_new_and_the_same_kernel() {
        let kernel = text("");
        let (one, two) = (unseen(&kernel, 7, 1), unseen(&kernel, 7, 2));
        assert!(one != two && unseen(&kernel, 8, 1) != one);
        assert_eq!(KernelFile::parse(&one).unwrap().front, KernelFile::parse(&kernel).unwrap().front);
        let triton = crate::workspace::embedded("kernels/triton/rmsnorm.py").unwrap();
        assert!(unseen(triton, 7, 1).ends_with("\n# speed 0000000000000007 1\n"), "a comment of its own language");
    }

    #[test]
    fn the_table_has_a_dash_for_what_did_not_happen() {
        let row = Row {
            op: "rmsnorm".into(),
            backend: "cpu".into(),
            cold_s: 2.345,
            not_kept_s: vec![1.0, 3.0, 1.5],
            kept_s: Vec::new(),
            compile_s: vec![0.25],
            refused: 1,
        };
        let table = lines(&[row]);
        let fields: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(fields[..6], ["rmsnorm", "cpu", "1.50", "-", "2.35", "0.25"]);
        assert!(table.ends_with("3 not kept, 0 kept, 1 refused"), "{table}");
    }
}
