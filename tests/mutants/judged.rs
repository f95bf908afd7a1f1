//! What becomes of mutants: each is asked what a kernel is asked before it is kept, the cheap questions first.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use warpsmith::evaluation::{Evaluation, Stage, Verdict};
use warpsmith::harness::EvaluationTask;
use warpsmith::op::{OpSource, TargetShape};
use warpsmith::worker::Client;
use warpsmith::worker::protocol::Ask;

use crate::equivalent::reason;
use crate::generate::Mutant;
use crate::same::Same;

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    /// The compiler refuses it: it is no kernel.
    NoKernel,
    /// It is compiled to the same code.
    SameCode,
    /// The judge found it, here and for this reason.
    Found { status: &'static str, stage: Stage, why: String },
    /// The judge took it.
    Alive,
    /// There was no verdict, twice.
    NotJudged(String),
}

/// What a kernel is asked.
#[derive(Clone)]
pub struct Tier {
    pub op: OpSource,
    pub target: Vec<TargetShape>,
    /// Seconds of the second tier.
    pub examination_s: f64,
}

/// What is asked about a starter's mutants: stage 1 alone, whether it is the same code, then all.
#[derive(Clone)]
pub struct Questions {
    pub starter: String,
    pub tier: Tier,
    /// How many examinations may go on at the same time, where that must be few.
    pub examinations: Option<Arc<Semaphore>>,
}

/// A worker, and the compiler beside it.
pub struct Lane {
    runtime: tokio::runtime::Runtime,
    client: Client,
    pub same: Same,
}

impl Lane {
    /// Starts `program` as a worker with its files in `cache`; what is compiled beside it is kept in `compiled`.
    pub fn start(program: PathBuf, cache: &Path, compiled: &Path, cuda: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let folder = format!("WARPSMITH_CACHE={}", cache.display());
        let backend = if cuda { "cuda" } else { "cpu" };
        let words = [&folder, program.to_str().unwrap(), "worker", "--backend", backend].map(str::to_owned);
        let client = runtime.block_on(Client::start("/usr/bin/env".as_ref(), &words)).unwrap();
        let same = Same::new(compiled, program, client.device().facts.clone(), cuda).unwrap();
        Self { runtime, client, same }
    }

    fn ask(&mut self, ask: &Ask) -> Result<Verdict, String> {
        let cancel = CancellationToken::new();
        let mut why = String::new();
        for _ in 0..2 {
            let said = self.runtime.block_on(self.client.ask::<Evaluation>(ask.clone(), &mut |_| {}, &cancel));
            match said {
                Ok(evaluation) => return Ok(evaluation.verdict),
                Err(error) => why = error.to_string(),
            }
            if let Err(error) = self.runtime.block_on(self.client.restart()) {
                why = error.to_string();
            }
        }
        Err(why)
    }

    /// What becomes of a mutant.
    pub fn fate(&mut self, mutant: &Mutant, questions: &Questions) -> Fate {
        let Questions { starter, tier, examinations } = questions;
        let task = |examination_s: f64| {
            Box::new(EvaluationTask {
                op: tier.op.clone(),
                candidate: mutant.text.clone(),
                incumbent: None,
                baseline: None,
                target: tier.target.clone(),
                seed: 20,
                precision: None,
                look: true,
                examination_s,
                branch_over_best: None,
            })
        };
        let mut asks = vec![Ask::Smoke(task(0.0)), Ask::Evaluate(task(0.0)), Ask::Evaluate(task(tier.examination_s))];
        if examinations.is_none() && reason(mutant).is_none() {
            asks.remove(1);
        }
        let last = asks.len() - 1;
        for (number, ask) in asks.iter().enumerate() {
            if number == 1 && self.same.is_same(&tier.op, starter, &mutant.text) {
                return Fate::SameCode;
            }
            if number == last && reason(mutant).is_some() {
                return Fate::Alive;
            }
            let permit = examinations.as_ref().filter(|_| number == last);
            let _permit = permit.map(|permit| self.runtime.block_on(permit.acquire()).unwrap());
            let verdict = match self.ask(ask) {
                Ok(verdict) => verdict,
                Err(why) => return Fate::NotJudged(why),
            };
            if matches!(verdict, Verdict::Base | Verdict::Keep { .. } | Verdict::Revert { .. }) {
                continue;
            }
            let (status, stage, why) = (verdict.status(), verdict.stage(), verdict.why().to_owned());
            if stage == Stage::Compile && why.starts_with("the compiler refuses it") {
                return Fate::NoKernel;
            }
            return Fate::Found { status, stage, why };
        }
        Fate::Alive
    }
}

/// Asks all lanes about the mutants, which come with the number of their questions, until `end`: those that were judged by then.
pub fn all(
    lanes: Vec<Lane>,
    mutants: Vec<(usize, Mutant)>,
    questions: &[Questions],
    end: Option<Instant>,
    told: &(dyn Fn(&Mutant, &Fate, f64) + Sync),
) -> Vec<(Mutant, Fate)> {
    let next = Mutex::new(mutants.into_iter());
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for mut lane in lanes {
            let (next, done) = (&next, &done);
            scope.spawn(move || {
                while end.is_none_or(|end| Instant::now() < end) {
                    let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, mutant)) = taken else { return };
                    let began = Instant::now();
                    let fate = lane.fate(&mutant, &questions[number]);
                    told(&mutant, &fate, began.elapsed().as_secs_f64());
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((mutant, fate));
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
