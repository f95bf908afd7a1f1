//! `warpsmith run`: the main job.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use super::agent::{self, AgentArgs};
use super::begin::{self, Ready, RunArgs, Wanted};
use super::diary;
use super::notify::{self, Ending, Notify};
use super::problem;
use super::progress::{Progress, Voice};
use super::resume;
use super::rules::RuleArgs;
use super::session;
use super::whole::{self, Whole};
use crate::agent::Choice;
use crate::engine::files;
use crate::engine::stop::Rules;
use crate::engine::{Parts, Run, RunError, RunState};
use crate::history::Archive;
use crate::report::spell;
use crate::workspace::Workspace;

/// Improve a model's kernels one by one, or a single one, keeping only what is measured to be correct and faster.
///
/// Works on a branch of its own (`warpsmith/<run>`), never on your files: of those it writes only `results.tsv` and
/// `.warpsmith/`. Stop it with Ctrl-C at any time, or kill it: `--resume` goes on where it was.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  warpsmith run models/tiny-llama                      until nothing is left to do\n  warpsmith run models/llama-7b --until 07:00          all night\n  warpsmith run models/tiny-llama --only matmul --budget 2m\n  warpsmith run models/tiny-llama --resume             go on with the latest run\n  warpsmith run kernels/cpu/softmax.c                  a kernel alone, whatever calls it\n  warpsmith run 23_Softmax.py --kernel mine.c          a kernel for what PyTorch computes there\n  warpsmith run kernels/cpu/softmax.c --shape rows=512,cols=4096 --budget 5m\n  warpsmith run models/tiny-llama --agent openai --model gpt-5.1 --proposals 4 --max-cost 20\n  warpsmith run models/tiny-llama --agent command -- claude -p --permission-mode acceptEdits\n  warpsmith run models/tiny-llama --agent replay .warpsmith/261120a/transcript.jsonl\n\nWhile it runs:\n  tail -f results.tsv\n  warpsmith status"
)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    agent: AgentArgs,
    #[command(flatten)]
    rules: RuleArgs,
    /// The kernel to start from, where what is named is a problem file (PyTorch with `Model` and `get_inputs`) [default: none: an agent
    /// writes the first one]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Run a command (by `sh -c`) when the run ends or is interrupted; the summary is on its standard input and in
    /// WARPSMITH_SUMMARY, WARPSMITH_SPEEDUP, WARPSMITH_REASON, WARPSMITH_STATUS, WARPSMITH_RUN, ...
    #[arg(long, value_name = "CMD")]
    notify: Option<String>,
    /// Say only what was kept, and the summary
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn main(args: Args) -> anyhow::Result<ExitCode> {
    session::block_on(run(args))
}

async fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    args.agent.find_transcript(&mut args.run.model);
    problem::begin(&mut args.run, args.kernel.as_deref(), &super::say)?;
    let cancel = session::interruptible();
    let voice = Voice::choose(args.quiet);
    let (workspace, made) = begin::workspace_for(&args.run)?;
    let workspace = Arc::new(workspace);
    made.iter().for_each(|line| super::say(line));
    let say = |text: &str| {
        if !args.quiet {
            super::say(text);
        }
    };
    // An agent that cannot work is found out before anything is measured.
    let asked = args.agent.choice()?;
    let read = files::reader(Some(&workspace));
    let prices = &workspace.settings().prices;
    let known = match &asked {
        None if args.run.resumes() => None,
        choice => Some(agent::ready(&choice.clone().unwrap_or_default(), prices, &read).await?),
    };
    let wanted = Wanted {
        args: &args.run,
        agent: asked.clone(),
        override_rules: &|rules| args.override_rules(rules),
        tell: &say,
    };
    let Ready { history, pending, state, pool } = resume::ready(&wanted, &workspace, &cancel).await?;
    let log = diary::path(history.folder());
    diary::keep_in(history.folder());
    let notify = Notify::choose(args.notify.as_deref(), &workspace);
    if !args.quiet {
        super::say(&opening(&workspace, &state, notify.as_ref()));
    }
    let make_agent = match known {
        Some(make_agent) => make_agent,
        None => agent::ready(&state.agent, prices, &read).await?,
    };
    let watcher = Box::new(Progress::new(voice));
    let begun = state.clone();
    let stop = cancel.clone();
    let parts = Parts { workspace: Some(workspace.clone()), pool, make_agent, watcher, cancel };
    let result = Run::new(parts, state, history, pending).go().await;
    let (mut whole, mut whole_interrupted) = (None, false);
    if let Ok(ended) = &result {
        super::say(&closing(ended, &args.run.model));
        if ended.ended.is_some() {
            let measured = whole::of_run(workspace.clone(), ended.clone(), args.run.crew.python.clone());
            let seen = tokio::select! {
                seen = measured => Some(seen),
                () = stop.cancelled() => None,
            };
            match seen {
                Some(Ok(seen)) => {
                    seen.iter().for_each(|seen| super::say(&seen.text()));
                    whole = seen;
                }
                Some(Err(error)) => super::warn(&format!("note: the whole model could not be measured: {error:#}")),
                None => {
                    whole_interrupted = true;
                    super::warn(&not_compared(ended, &args.run.model));
                }
            }
        }
    }
    if let Err(error) = &result {
        tracing::error!(%error, "the run cannot go on");
        let command = resume::resume_command_for(&begun, &args.run.model.display().to_string());
        super::say(&format!("go on with   {command}"));
    }
    if result.as_ref().map_or(true, |ended| ended.troubles.len() > begun.troubles.len()) {
        super::say(&format!("what happened in detail   {}", log.display()));
    }
    if let Some(notify) = &notify {
        tell(notify, &workspace, begun, (&result, whole.as_ref(), whole_interrupted)).await;
    }
    let ended = result?;
    let interrupted = ended.ended.is_none() || whole_interrupted;
    Ok(ExitCode::from(exit_code(interrupted, whole.as_ref().is_none_or(Whole::is_right))))
}

/// 130 for an interruption, be it of the comparison of the whole alone; 1 where the whole does not agree with what was kept.
const fn exit_code(interrupted: bool, is_right: bool) -> u8 {
    match (interrupted, is_right) {
        (true, _) => 130,
        (false, true) => 0,
        (false, false) => 1,
    }
}

/// What is to be known of a run that was interrupted after its last experiment, while its whole PyTorch model was being compared.
fn not_compared(state: &RunState, model: &Path) -> String {
    format!(
        "interrupted: the whole model was not compared with what run {0} kept, and nothing is known of kernels to leave out; `warpsmith export {0} \
         -o PACKAGE` and `warpsmith verify PACKAGE --model {1} --diagnose` compare it",
        state.run,
        model.display()
    )
}

/// Tells the user's command how the run ended, and what the whole of a PyTorch model said. That this fails is said, and changes nothing.
async fn tell(
    notify: &Notify,
    workspace: &Workspace,
    begun: RunState,
    (result, whole, whole_interrupted): (&Result<RunState, RunError>, Option<&Whole>, bool),
) {
    let words = result.as_ref().err().map(ToString::to_string);
    let ending = match (&words, result) {
        (Some(_), _) if session::interrupted() => Ending::Interrupted,
        (Some(why), _) => Ending::Failed(why),
        (None, Ok(state)) if state.ended.is_none() || whole_interrupted => Ending::Interrupted,
        (None, _) => Ending::Ended,
    };
    // A run that failed has its last state in the journal.
    let recorded = || Archive::open(workspace).and_then(|archive| archive.state(&begun.run)).ok();
    let state = match result {
        Ok(state) => state.clone(),
        Err(_) => recorded().and_then(|state| serde_json::from_value(state).ok()).unwrap_or(begun),
    };
    let news = notify::news(&state, workspace, ending, whole.and_then(Whole::measured));
    let mut text = format!("{}\n", state.summary());
    text.extend(whole.map(|whole| format!("\n{}\n", whole.text())));
    if let Err(why) = notify.send(&news, &text, notify::LIMIT).await {
        super::warn(&format!("note: {why}"));
    }
}

impl Args {
    /// Whether who proposes can write a kernel where there is none, as the tuner cannot.
    pub(super) fn agent_writes(&self) -> anyhow::Result<bool> {
        Ok(self.agent.choice()?.is_some_and(|choice| choice != Choice::Tuner))
    }

    /// Puts the rules that were given on the command line over those there are.
    fn override_rules(&self, rules: &mut Rules) -> anyhow::Result<()> {
        self.rules.override_rules(rules)?;
        self.agent.override_rules(rules)
    }
}

/// The first lines of a run.
fn opening(workspace: &Workspace, state: &RunState, notify: Option<&Notify>) -> String {
    let mut lines = vec![
        format!("workspace   {}", workspace.root().display()),
        format!("branch      warpsmith/{}{}", state.run, if state.resumed > 0 { " (resumed)" } else { "" }),
        format!("device      {} ({})", state.device, state.backend),
        format!("agent       {}", agent::words(&state.agent)),
        format!("budget      {}", budget_words(&state.rules)),
    ];
    let missing: Vec<String> =
        crate::sandbox::protections().into_iter().filter_map(|protection| protection.missing()).collect();
    lines.push(match missing.is_empty() {
        true => "protection  complete".to_owned(),
        false => format!("protection  MISSING: {}", missing.join("; ")),
    });
    lines.extend(notify.map(|notify| format!("notify      {}", notify.command)));
    lines.push(format!("follow      tail -f {}", workspace.root().join("results.tsv").display()));
    lines.extend(agent::hint(&state.agent));
    lines.join("\n")
}

fn budget_words(rules: &Rules) -> String {
    let budget = rules.budget.map_or_else(|| "until the targets end".to_owned(), spell);
    let until = rules.until.map_or(String::new(), |until| {
        format!(", at the latest until {}", until.0.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M"))
    });
    let each = rules.per_kernel.map_or(String::new(), |time| format!("; {} a target", spell(time)));
    format!("{budget}{until}{each}")
}

/// The last lines of a run on what is called `model` where the user is: the summary and the commands to look closer.
fn closing(state: &RunState, model: &Path) -> String {
    let mut text = format!("\n{}\n", state.summary());
    if state.ended.is_none() {
        let command = resume::resume_command_for(state, &model.display().to_string());
        text.push_str(&format!("go on with   {command}\n"));
    }
    if state.targets.iter().any(|target| target.kept > 0) {
        text.push_str(&format!(
            "history      git log --stat warpsmith/{0}\ntake it      warpsmith apply {0}    (or every step: git merge warpsmith/{0})\n",
            state.run
        ));
    }
    text.push_str(&format!("every try    warpsmith log\nas a page    warpsmith report {}\n", state.run));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_whose_last_comparison_was_interrupted_ends_as_one_that_was_interrupted() {
        assert_eq!([exit_code(false, true), exit_code(false, false), exit_code(true, true)], [0, 1, 130]);
    }
}
