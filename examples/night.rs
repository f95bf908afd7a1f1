//! A night over the library: profile a model, improve its kernels until nothing is left or an hour is over, say what came of it.
//!
//!     cargo run --release --example night -- models/tiny-llama target/release/warpsmith
//!
//! The second argument is the program whose workers judge. They may be anywhere, and there may be several.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use warpsmith::agent::{Agent, Choice, tuner::Tuner};
use warpsmith::engine::{MakeAgent, Options, Parts, Pool, Run, RunEvent, Watcher, files, plan, stop::Rules};
use warpsmith::history::{Archive, History, next_run_id};
use warpsmith::model::{ModelConfig, Pass, Phase};
use warpsmith::op::Dtype;
use warpsmith::worker::Client;
use warpsmith::workspace::Workspace;

/// Says what was decided.
struct Voice;

impl Watcher for Voice {
    fn on(&mut self, event: &RunEvent<'_>) {
        if let RunEvent::Decided { number, description, evaluation, .. } = event {
            println!("#{number} {} {description}", evaluation.verdict.status());
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let (model, program) = arguments.next().zip(arguments.next()).context("night MODEL_DIR WARPSMITH")?;
    let workspace = Arc::new(Workspace::find(&model)?.context("the model is in no workspace")?);
    let root = workspace.root();
    let name = model.canonicalize()?.strip_prefix(root)?.to_string_lossy().into_owned();

    let mut worker = Client::start(&program, &["worker".to_owned()]).await?;
    let (card, judge) = (worker.device().clone(), worker.judge().to_owned());
    let (config, cancel) = (ModelConfig::load(&model)?, CancellationToken::new());
    let pass = Pass { phase: Phase::Prefill, batch: 1, seq: 128, dtype: Dtype::F32, layers: None };
    let read = files::reader(Some(&workspace));
    let kernels = files::kernels(Some(&workspace), &card, pass.dtype)?;
    let profile = warpsmith::profile::measure(&mut worker, &config, pass, &kernels, &read, 1, &cancel).await?;

    let run = next_run_id(jiff::Zoned::now().date(), &Archive::open(&workspace)?.used_run_ids()?);
    let rules = Rules { budget: Some(Duration::from_secs(3600)), ..Rules::default() };
    let options = Options { run, model: name, agent: Choice::Tuner, rules, only: vec![], skip: vec![], seed: 1 };
    let kernel = |op: &str| files::kernel(Some(&workspace), &card, op, pass.dtype);
    let state = plan(options, profile, &card, &judge, &kernel)?;
    let history = History::begin(&workspace, &state.run, serde_json::to_value(&state)?)?;
    let make_agent: MakeAgent = Box::new(|_| Ok(Box::new(Tuner::new()) as Box<dyn Agent>));
    let pool = Pool::of_one(worker);
    let parts = Parts { workspace: Some(workspace.clone()), pool, make_agent, watcher: Box::new(Voice), cancel };
    println!("{}", Run::new(parts, state, history, Vec::new()).go().await?.summary());
    Ok(())
}
