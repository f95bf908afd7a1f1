//! The lines of a running run, as pure functions of its state.

use std::time::Duration;

use crate::agent::Choice;
use crate::engine::stop::Rules;
use crate::engine::{Phase, RunState, TargetState};
use crate::evaluation::{Evaluation, Stage, Verdict};
use crate::report::{latency, spell};

/// `260214a llama-7b · H200 · tuner   3h12 of 8h   model 12.40→9.81 ms 1.26x predicted`.
pub(super) fn run_line(state: &RunState, spent: Duration) -> String {
    let budget = state.rules.budget.map_or(String::new(), |budget| format!(" of {}", spell(budget)));
    let model = state.model.rsplit('/').next().unwrap_or(&state.model);
    let mut line =
        format!("{} {model} · {} · {}   {}{budget}", state.run, state.device, state.agent.name(), spell(spent));
    if let (Some(before), Some((after, ratio))) = (state.workload.whole_us(), state.predicted()) {
        let places = if after < 1000.0 { 3 } else { 2 };
        let [before, after] = [before, after].map(|us| format!("{:.*}", places, us / 1000.0));
        line.push_str(&format!("   model {before}→{after} ms {ratio:.2}x predicted"));
    }
    line
}

/// `2/6 flash_attention · 31 % of model · 1.42x · 58 % roof · 3 of 5 reverts · 0h41 of 2h`; a kernel alone has its shapes
/// where the others have their share.
pub(super) fn target_line(state: &RunState, target: &TargetState, spent: Duration) -> String {
    let counted = |phase: &Phase| !matches!(phase, Phase::Skipped(_));
    let total = state.targets.iter().filter(|target| counted(&target.phase)).count();
    let done = state.targets.iter().filter(|target| matches!(target.phase, Phase::Done(_))).count();
    let Rules { max_reverts, per_kernel, .. } = &state.rules;
    let mut parts = match state.workload.whole_us() {
        Some(_) => {
            vec![format!("{}/{total} {}", done + 1, target.op), format!("{:.0} % of model", 100.0 * target.share)]
        }
        None => vec![target.op.clone(), state.timed_at()],
    };
    parts.push(format!("{:.2}x", target.vs_user()));
    parts.extend(target.progress.roofline_pct.map(|pct| format!("{pct:.0} % roof")));
    parts.extend(max_reverts.map(|limit| format!("{} of {limit} reverts", target.progress.reverts)));
    parts.push(match per_kernel {
        Some(limit) => format!("{} of {}", spell(spent), spell(*limit)),
        None => spell(spent),
    });
    parts.join(" · ")
}

/// `#214 stage 5/5 edges: 1023x769 f16   168/h · device busy 71 %`.
pub(super) fn experiment_line(state: &RunState, doing: &str) -> String {
    let pace = state.experiments_per_hour();
    if pace > 0.0 {
        format!("{doing}   {pace:.0}/h · device busy {:.0} %", 100.0 * state.busy())
    } else {
        doing.to_owned()
    }
}

/// What a run waits for while it has no candidate.
pub(super) fn waiting_words(agent: &Choice) -> String {
    match agent {
        Choice::Tuner => "the tuner is choosing".to_owned(),
        Choice::Openai { models, .. } => {
            let names: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
            format!("waiting for a proposal of {}", names.join(" or "))
        }
        Choice::Command { .. } => "the command is at work".to_owned(),
        Choice::Replay { .. } | Choice::Outside { .. } => "waiting for a proposal".to_owned(),
    }
}

/// The judge's stage with its place among the five.
pub(super) fn stage_words(stage: Stage) -> String {
    let place = match stage {
        Stage::Smoke => 1,
        Stage::Sweep => 2,
        Stage::Stability => 3,
        Stage::Determinism => 4,
        Stage::Edges => 5,
        Stage::Compile | Stage::Timing | Stage::Confirmation | Stage::Examination | Stage::Model => {
            return stage.name().to_owned();
        }
    };
    format!("stage {place}/5 {stage}")
}

/// `#12 keep    matmul  1.18x (at least 1.16x)  BLOCK_M 32→64`, one line for a decided experiment.
pub(super) fn decided_line(number: u64, description: &str, evaluation: &Evaluation) -> String {
    let gain = match &evaluation.verdict {
        Verdict::Base | Verdict::Start => evaluation.timing.as_ref().map_or(String::new(), |timing| {
            let noisy = match timing.is_noisy() {
                true => format!(
                    ", only gains above {:.0} % can be proven while this machine is so busy",
                    timing.margin_pct()
                ),
                false => String::new(),
            };
            format!("{}, {:.0} % of the roofline{noisy}", latency(timing.latency_us), timing.roofline_pct)
        }),
        Verdict::Keep { speedup, .. } => {
            let total = evaluation.vs_user.map_or(String::new(), |total| format!(", {total:.2}x in all"));
            format!("{:.2}x (at least {:.2}x{total})", speedup.ratio, speedup.low)
        }
        Verdict::Revert { speedup, .. } => format!("{:.2}x", speedup.ratio),
        other => format!("at {}", other.stage()),
    };
    let why = match evaluation.verdict.why() {
        "" => String::new(),
        why => format!(": {}", crate::engine::one_line(why)),
    };
    format!("#{number:<3} {:<7} {:<16} {gain}  {description}{why}", evaluation.verdict.status(), evaluation.op)
}
