//! `warpsmith mcp`: a run that a coding agent drives.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use rmcp::ServiceExt;
use rmcp::transport::io::stdio_pipes;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::begin::{self, RunArgs, Wanted};
use super::lines::{decided_line, stage_words};
use super::problem;
use super::resume;
use super::rules::RuleArgs;
use super::session;
use crate::agent::{Choice, Outside};
use crate::engine::stop::Rules;
use crate::engine::{MakeAgent, Parts, Run, RunEvent, Watcher};
use crate::mcp::{Feed, Job, Server, View, work};

/// Serve a run as tools over the Model Context Protocol, for a coding agent.
///
/// Speaks on standard input and output, so it is started by its client; what it has to say to you goes to standard error.
/// The client lists targets, reads the incumbent and hands in whole kernel files; Warpsmith judges, and keeps or
/// discards. The run has a branch and a ledger as any other, and goes on after the client has gone: --resume.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  claude mcp add warpsmith -- warpsmith mcp models/tiny-llama      for Claude Code\n  codex mcp add warpsmith -- warpsmith mcp models/tiny-llama       for Codex\n  warpsmith mcp models/tiny-llama --resume                         go on with the latest run\n  warpsmith mcp kernels/cpu/softmax.c                              a kernel alone, whatever calls it\n\nWhile it runs:\n  tail -f results.tsv\n  warpsmith status",
    mut_arg("max_reverts", |arg| arg.help("Take no more for a target after N in a row that were not kept [default: no limit]")),
    mut_arg("roofline", |arg| arg.help("Take no more for a target at this percentage of its roofline [default: no limit]")),
    mut_arg("speedup", |arg| arg.help("Take no more for a target at this speedup against what you have today [default: no limit]")),
    mut_arg("per_kernel", |arg| arg.help("Take no more for a target after this time [default: no limit]")),
    mut_arg("budget", |arg| arg.help("Judge nothing more after this time, such as 8h or 90m")),
    mut_arg("until", |arg| arg.help("Judge nothing more from this time of day on, such as 07:00"))
)]
pub(super) struct Args {
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    rules: RuleArgs,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on_beside_input(mcp(args))
}

/// Jobs that wait for the run; a client that asks for more waits itself.
const WAITING: usize = 16;

async fn mcp(mut args: Args) -> anyhow::Result<ExitCode> {
    problem::begin(&mut args.run, None, &super::warn)?;
    let cancel = session::interruptible();
    let (workspace, made) = begin::workspace_for(&args.run)?;
    let workspace = Arc::new(workspace);
    made.iter().for_each(|line| super::warn(line));
    // Cancelled when there is nobody to serve any more.
    let gone = cancel.child_token();
    let (show, view) = watch::channel(View::Preparing);
    let (send, jobs) = mpsc::channel(WAITING);
    let server = Server::new(workspace.as_ref().clone(), view, send, gone.clone());
    // The client has its answers to `initialize` and `tools/list` while the model is still being profiled.
    let served = serve(server, gone.clone());
    let worked = async {
        let _gone = gone.clone().drop_guard();
        run(&args, &workspace, jobs, &show, &gone).await
    };
    let (served, worked) = tokio::join!(served, worked);
    worked?;
    served?;
    Ok(if session::interrupted() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// Answers the client until one of both has gone.
async fn serve(server: Server, gone: CancellationToken) -> anyhow::Result<()> {
    let _gone = gone.clone().drop_guard();
    let service = tokio::select! {
        service = server.serve(stdio_pipes()) => {
            service.context("no client on standard input: a coding agent starts this; --help has the command")?
        }
        () = gone.cancelled() => return Ok(()),
    };
    let stop = service.cancellation_token();
    let ending = gone.clone();
    tokio::spawn(async move {
        ending.cancelled().await;
        stop.cancel();
    });
    service.waiting().await?;
    Ok(())
}

/// The run behind the tools, from its beginning to where the client leaves it.
async fn run(
    args: &Args,
    workspace: &Arc<crate::workspace::Workspace>,
    jobs: mpsc::Receiver<Job>,
    show: &watch::Sender<View>,
    gone: &CancellationToken,
) -> anyhow::Result<()> {
    let agent = Choice::Outside { name: "mcp".to_owned() };
    let override_rules = &|rules: &mut Rules| {
        if !args.run.resumes() {
            // The client decides when a target is done, unless the user does.
            *rules = Rules { budget: rules.budget, examination: rules.examination, ..Rules::none() };
        }
        args.rules.override_rules(rules)
    };
    let wanted = Wanted { args: &args.run, agent: Some(agent), override_rules, tell: &super::warn };
    let ready = match resume::ready(&wanted, workspace, gone).await {
        Err(error) if gone.is_cancelled() && error.to_string() == "cancelled" => return Ok(()),
        ready => ready?,
    };
    super::diary::keep_in(ready.history.folder());
    super::warn(&format!("run {} is open on {}; its branch is warpsmith/{0}", ready.state.run, ready.state.device));
    let make_agent: MakeAgent = Box::new(|_| Ok(Box::new(Outside { name: "mcp".to_owned() })));
    let feed = Feed::default();
    let watcher = Box::new(Voice(feed.clone()));
    let (workspace, cancel) = (Some(workspace.clone()), gone.child_token());
    let parts = Parts { workspace, pool: ready.pool, make_agent, watcher, cancel };
    let mut run = Run::new(parts, ready.state, ready.history, ready.pending);
    let worked = work(&mut run, jobs, show, &feed).await;
    let state = run.state();
    super::warn(&state.summary().to_string());
    if state.ended.is_none() {
        super::warn(&format!("go on with   {}", resume::resume_command(state)));
    }
    Ok(worked?)
}

/// Tells the client where the judge is, and standard error what was decided.
struct Voice(Feed);

impl Watcher for Voice {
    fn on(&mut self, event: &RunEvent<'_>) {
        match event {
            RunEvent::Experiment { number, description } => self.0.tell(format!("#{number} {description}")),
            RunEvent::Judging { number, progress } => {
                self.0.tell(format!("#{number} {}: {}", stage_words(progress.stage), progress.detail));
            }
            RunEvent::Decided { number, description, evaluation, .. } => {
                super::warn(&decided_line(*number, description, evaluation));
            }
            RunEvent::TargetDone { target, reason } => super::warn(&format!("{} is done: {reason}", target.op)),
            RunEvent::Trouble { what } => super::warn(&format!("warning: {what}")),
            RunEvent::Verifying => self.0.tell("comparing the whole model, before and after".to_owned()),
            _ => {}
        }
    }
}
