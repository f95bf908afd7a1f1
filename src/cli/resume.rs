//! How a run goes on that was interrupted, or begins.

use std::path::Path;

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use super::alone;
use super::begin::{Ready, RunArgs, Wanted, begin};
use super::device::{self, Device};
use super::starter::Starter;
use crate::agent::Choice;
use crate::device::{DeviceCard, Opening};
use crate::engine::stop::{Moment, Rules, StopReason};
use crate::engine::{RunError, RunState, VERSION};
use crate::history::{self, Archive, History, is_run_id};
use crate::worker::Client;
use crate::workspace::Workspace;

/// Begins the run, or goes on with the one that is named.
pub(super) async fn ready(
    wanted: &Wanted<'_>,
    workspace: &Workspace,
    cancel: &CancellationToken,
) -> anyhow::Result<Ready> {
    match wanted.args.resumed() {
        Some(named) => resume(wanted, workspace, named).await,
        None => begin(wanted, workspace, cancel).await,
    }
}

/// Opens a run that was interrupted.
async fn resume(wanted: &Wanted<'_>, workspace: &Workspace, named: &str) -> anyhow::Result<Ready> {
    let args = wanted.args;
    let run = if !is_run_id(named) && Path::new(named).is_file() {
        history::unbundle(workspace, Path::new(named))?
    } else if named.is_empty() {
        Archive::open(workspace)?
            .latest_run()?
            .context("there is no run to resume here; leave --resume out to start one")?
    } else {
        named.to_owned()
    };
    let (history, pending) = History::open(workspace, &run)?;
    let mut state: RunState = serde_json::from_value(history.state().clone())
        .map_err(|error| RunError::State(error.to_string()))
        .with_context(|| format!("run {run}"))?;
    if state.ended == Some(StopReason::Watch) {
        bail!("run {run} is a watch's, and `warpsmith watch --keep` always begins anew; `--resume RUN` names another");
    }
    if state.version != VERSION {
        bail!("run {run} was written by another version of Warpsmith (format {}, this one {VERSION})", state.version);
    }
    if args.fixes_what_is_kept() {
        bail!("a resumed run keeps its pass, shapes, types, seed and targets; only its stop rules can be given anew");
    }
    let asked = alone::path_in(workspace, &args.model)?;
    if asked != state.model {
        let of = &state.model;
        bail!(
            "run {run} is on {of}, not on {asked}; `{}` goes on with it, and --resume RUN names another",
            resume_command(&state)
        );
    }
    (wanted.override_rules)(&mut state.rules)?;
    let past = past_hour(&state.rules, Moment(jiff::Timestamp::now()));
    // With an hour or a budget of its own it begins experiments again.
    state.closing &= past.is_some();
    if let (None, false, Some(hour)) = (&state.ended, state.closing, past) {
        bail!("run {run} was to end at {hour}, which is past; --until HH:MM or --budget TIME has it go on");
    }
    if let Some(reason) = &state.ended {
        bail!("run {run} has ended: {reason}; leave --resume out to start a new one");
    }
    if driven(&state.agent) != wanted.agent.as_ref().and_then(driven) {
        bail!("run {run} goes on with `{}`; leave --resume out to start a new one", resume_command(&state));
    }
    state.agent = wanted.agent.clone().unwrap_or(state.agent);
    state.resume();
    let settings = &workspace.settings().run;
    let starter = args.crew.lead().starter(settings)?;
    let device = device_of(args, workspace, &state, &starter)?;
    let worker = starter.start(device, Opening::Now).await?;
    check_same_judge(&state, &worker)?;
    let pool = args.crew.pool(settings, worker, device).await?;
    Ok(Ready { history, pending, state, pool })
}

/// The hour at which a run was to end, where that is past: it would end at once, for good.
fn past_hour(rules: &Rules, now: Moment) -> Option<String> {
    let until = rules.until.filter(|until| now >= *until)?;
    Some(until.0.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M on %-d %B").to_string())
}

/// The command that goes on with a run, in its workspace.
pub(super) fn resume_command(state: &RunState) -> String {
    resume_command_for(state, &state.model)
}

/// The same where its model is called `model`.
pub(super) fn resume_command_for(state: &RunState, model: &str) -> String {
    format!("warpsmith {} {model} --resume {}", driven(&state.agent).unwrap_or("run"), state.run)
}

/// The subcommand through which proposals come from outside, where they do.
fn driven(agent: &Choice) -> Option<&str> {
    match agent {
        Choice::Outside { name } => Some(name),
        _ => None,
    }
}

/// The device of a resumed run: its kernels are written for its backend.
fn device_of(args: &RunArgs, workspace: &Workspace, state: &RunState, starter: &Starter) -> anyhow::Result<Device> {
    let wanted = args.crew.device_of_lead(args.device).or(device::backend_of(&state.backend)?);
    Ok(device::choose(wanted, workspace.settings().device, starter)?.device)
}

/// Why this is no device of the kind that the run was begun on; none where it is one.
fn other_kind(state: &RunState, device: &DeviceCard) -> Option<String> {
    match &state.ceilings {
        Some(ceilings) if state.device == device.name && state.backend == device.backend => {
            device.ceilings.differ_from(ceilings)
        }
        _ => Some(format!("{}; this is {}", state.device, device.name)),
    }
}

/// A resumed run goes on where its figures mean the same.
fn check_same_judge(state: &RunState, worker: &Client) -> anyhow::Result<()> {
    if state.device_key != worker.device().key
        && let Some(why) = other_kind(state, worker.device())
    {
        bail!("run {} was begun on another device ({why}): its times mean nothing here; start a new run", state.run);
    }
    if state.judge != worker.judge() {
        super::warn("note: this is another build of Warpsmith than the one the run was begun with");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_past_its_hour_once_that_has_come() {
        let at = |seconds| Moment(jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(seconds));
        let past = |until, now| past_hour(&Rules { until, ..Rules::none() }, now).is_some();
        assert!(past(Some(at(10)), at(10)) && past(Some(at(10)), at(11)));
        assert!(!past(Some(at(10)), at(9)) && !past(None, at(9)));
    }
}
