//! What a run will do: its targets in Amdahl order, its rules, its seed.

use std::collections::BTreeMap;

use crate::agent::{Choice, Usage};
use crate::device::DeviceCard;
use crate::kernel::{Language, is_unwritten, kernel_file, skeleton};
use crate::op::{Dtype, OpSource};
use crate::profile::{Compiled, Profile, RankedTarget};
use crate::torch::model::{Kind, Region};

use super::RunError;
use super::state::{Phase, RunState, TargetState, VERSION};
use super::stop::Rules;
use super::workload::Workload;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// The run's name.
    pub run: String,
    /// The model directory or the kernel file, as it is shown.
    pub model: String,
    /// Who proposes.
    pub agent: Choice,
    /// When to stop.
    pub rules: Rules,
    /// Only these operations (all where empty).
    pub only: Vec<String>,
    /// Never these.
    pub skip: Vec<String>,
    /// Seed of everything drawn.
    pub seed: u64,
}

/// The state that a new run starts from; `kernel` gives an operation's kernel file for the device, as name and text.
///
/// # Errors
/// Where nothing is left to work on, or a named operation is not in the model.
pub fn plan(
    options: Options,
    profile: Profile,
    device: &DeviceCard,
    judge: &str,
    kernel: &dyn Fn(&str) -> Option<(String, String)>,
) -> Result<RunState, RunError> {
    let ranked = profile.ranked_targets(&BTreeMap::new());
    let there: Vec<&str> = ranked.iter().map(|target| target.op.as_str()).collect();
    check_names(options.only.iter().chain(&options.skip), &there)?;
    let mut targets = Vec::new();
    for target in &ranked {
        let mut state = match kernel(&target.op) {
            Some((file, text)) => TargetState::new(&target.op, file, text, target.shapes.clone()),
            None => {
                let file = kernel_file(&target.op, &device.backend);
                let mut missing = TargetState::new(&target.op, file.clone(), String::new(), target.shapes.clone());
                missing.phase = Phase::Skipped(format!("there is no {file}"));
                missing
            }
        };
        state.named = options.only.contains(&target.op);
        if options.skip.contains(&target.op) || (!options.only.is_empty() && !state.named) {
            state.phase = Phase::Skipped("not asked for".to_owned());
        }
        targets.push(state);
    }
    rank(&mut targets, &ranked);
    if !targets.iter().any(|target| target.phase == Phase::Waiting) {
        return Err(RunError::Nothing(
            "no operation of this model is worth the time: every ceiling is under 1 %".into(),
        ));
    }
    Ok(begun(options, Workload::Model(Box::new(profile)), targets, device, judge))
}

/// The state that a run on a PyTorch model starts from; `kernel` gives a region's kernel file, as name and text, where there is one.
///
/// A region without a kernel begins with a file to be written in. A joined one is worked on where there is a kernel for it, where one of
/// Inductor's is `written` that will be tried, or where it is asked for by name; its parts are targets too, and wait for what comes of it.
///
/// # Errors
/// Where nothing is left to work on, or a named region is not in the model.
pub fn plan_compiled(
    options: Options,
    compiled: Compiled,
    device: &DeviceCard,
    judge: &str,
    kernel: &dyn Fn(&Region) -> Option<(String, String)>,
    written: &BTreeMap<String, String>,
) -> Result<RunState, RunError> {
    let ranked = compiled.ranked_targets(&BTreeMap::new());
    let there: Vec<&str> = ranked.iter().map(|target| target.op.as_str()).collect();
    check_names(options.only.iter().chain(&options.skip), &there)?;
    let mut targets = Vec::new();
    for target in &ranked {
        let Some(region) = compiled.region(&target.op) else { continue };
        let source: Result<OpSource, String> = region.operation(compiled.bar());
        let found = kernel(region);
        let in_parts = region.kind == Kind::Joined && found.is_none() && !written.contains_key(&region.name);
        let (file, text) = match found {
            Some(found) => found,
            None => {
                let op = source.as_ref().ok().and_then(|source| source.operation().ok());
                let dtype = target.shapes.first().map_or(Dtype::F32, |shape| shape.dtype);
                let text = op.map_or_else(String::new, |op| skeleton(&op, usual(&device.backend), dtype));
                (kernel_file(&target.op, &device.backend), text)
            }
        };
        let mut state = TargetState::new(&target.op, file, text, target.shapes.clone());
        state.empty = is_unwritten(&state.start_text);
        state.named = options.only.contains(&target.op);
        state.phase = match &source {
            Err(why) => Phase::Skipped(why.clone()),
            Ok(_) if options.skip.contains(&target.op) => Phase::Skipped("not asked for".into()),
            Ok(_) if !options.only.is_empty() && !state.named => Phase::Skipped("not asked for".into()),
            Ok(_) if in_parts && !state.named => {
                Phase::Skipped("its parts are targets; --only works on the whole".into())
            }
            Ok(_) => Phase::Waiting,
        };
        state.source = source.ok();
        targets.push(state);
    }
    let waiting: Vec<String> =
        targets.iter().filter(|target| target.phase == Phase::Waiting).map(|target| target.op.clone()).collect();
    for target in targets.iter_mut().filter(|target| !target.named) {
        target.within = compiled.holders(&target.op).into_iter().filter(|name| waiting.contains(name)).collect();
    }
    rank(&mut targets, &ranked);
    if !targets.iter().any(|target| target.phase == Phase::Waiting) {
        return Err(RunError::Nothing(
            "no region of this model is worth the time, or can be judged; `warpsmith profile MODEL_DIR` says why not"
                .into(),
        ));
    }
    Ok(begun(options, Workload::Compiled(Box::new(compiled)), targets, device, judge))
}

/// The language that kernels of a backend are written in where nobody names one.
fn usual(backend: &str) -> Language {
    Language::of_backend(backend).first().copied().unwrap_or(Language::C)
}

/// The state that a single kernel, outside of any model, starts from; [`Options::model`] names its file.
///
/// It is the only target, all there is to improve, and whatever it can gain is worth the time.
#[must_use]
pub fn alone(options: Options, target: TargetState, device: &DeviceCard, judge: &str) -> RunState {
    several(options, vec![target], device, judge)
}

/// The state that several kernels start from that are parts of nothing: each is worth the time that any other is, in their order.
#[must_use]
pub fn several(options: Options, targets: Vec<TargetState>, device: &DeviceCard, judge: &str) -> RunState {
    let share = 1.0 / targets.len().max(1) as f64;
    let targets = targets.into_iter().map(|target| TargetState { named: true, share, ..target }).collect();
    begun(options, Workload::Operation, targets, device, judge)
}

/// A run that has done nothing yet.
fn begun(
    options: Options,
    workload: Workload,
    targets: Vec<TargetState>,
    device: &DeviceCard,
    judge: &str,
) -> RunState {
    RunState {
        version: VERSION,
        run: options.run,
        model: options.model,
        workload,
        agent: options.agent,
        usage: Usage::default(),
        backend: device.backend.clone(),
        device: device.name.clone(),
        device_key: device.key.clone(),
        judge: judge.to_owned(),
        seed: options.seed,
        rules: options.rules,
        elapsed_s: 0.0,
        busy_s: 0.0,
        next_experiment: 1,
        trials: 0,
        decided: 0,
        targets,
        in_model: None,
        ceilings: Some(device.ceilings.clone()),
        troubles: Vec::new(),
        resumed: 0,
        resumed_at: Vec::new(),
        closing: false,
        ended: None,
        verified: None,
    }
}

/// Refuses a name that is none of the model's operations, which are `there`.
///
/// # Errors
/// The first such name.
pub fn check_names<'a>(named: impl Iterator<Item = &'a String>, there: &[&str]) -> Result<(), RunError> {
    for name in named {
        if !there.contains(&name.as_str()) {
            let there = there.join(", ");
            return Err(RunError::Nothing(format!("`{name}` is no operation of this model; it has {there}")));
        }
    }
    Ok(())
}

/// Updates shares, puts the waiting targets in the ranked order behind those begun, and skips what is not worth it and was not
/// asked for by name, and parts of a whole that has become faster.
pub(super) fn rank(targets: &mut [TargetState], ranked: &[RankedTarget]) {
    let place = |op: &str| ranked.iter().position(|target| target.op == op).unwrap_or(usize::MAX);
    // What was not kept is in no package, whatever its median says.
    let is_faster =
        |target: &&TargetState| matches!(target.phase, Phase::Done(_)) && target.kept > 0 && target.vs_user() > 1.0;
    let faster: Vec<String> = targets.iter().filter(is_faster).map(|target| target.op.clone()).collect();
    for target in targets.iter_mut() {
        let begins = target.phase == Phase::Waiting && !target.progress.beyond;
        if let Some(whole) = target.within.iter().find(|op| begins && faster.contains(op)) {
            target.phase = Phase::Skipped(format!("{whole}, which it is a part of, is faster as a whole"));
        }
        let Some(known) = ranked.get(place(&target.op)) else { continue };
        target.share = known.share;
        let low = begins && target.phase == Phase::Waiting && known.skipped && !target.named;
        if low {
            let gain = 100.0 * (known.ceiling - 1.0);
            target.phase = Phase::Skipped(format!("the model could gain {gain:.1} % at the most"));
        }
    }
    targets.sort_by_key(|target| match target.phase {
        Phase::Done(_) | Phase::Active => (0, 0),
        Phase::Waiting => (1, place(&target.op)),
        Phase::Skipped(_) => (2, place(&target.op)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stop::StopReason;

    fn target(op: &str, phase: Phase) -> TargetState {
        TargetState { phase, ..TargetState::new(op, format!("kernels/cpu/{op}.c"), String::new(), Vec::new()) }
    }

    fn ranked(op: &str, share: f64, ceiling: f64) -> RankedTarget {
        RankedTarget { op: op.into(), shapes: Vec::new(), us: 1.0, share, ceiling, skipped: ceiling < 1.01 }
    }

    #[test]
    fn waiting_targets_follow_the_ranking_behind_those_done() {
        let mut targets = [
            target("rmsnorm", Phase::Waiting),
            target("matmul", Phase::Done(StopReason::Reverts { limit: 5 })),
            target("rotary_embedding", Phase::Waiting),
            target("fused_mlp", Phase::Waiting),
        ];
        let order = [
            ranked("fused_mlp", 0.5, 1.4),
            ranked("matmul", 0.3, 1.2),
            ranked("rmsnorm", 0.1, 1.05),
            ranked("rotary_embedding", 0.01, 1.004),
        ];
        rank(&mut targets, &order);
        let ops: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
        assert_eq!(ops, ["matmul", "fused_mlp", "rmsnorm", "rotary_embedding"]);
        assert_eq!(targets[3].phase, Phase::Skipped("the model could gain 0.4 % at the most".into()));
        assert!((targets[1].share - 0.5).abs() < 1e-12);
    }

    #[test]
    fn what_is_gone_on_with_waits_behind_what_is_done_however_little_is_left_of_it() {
        let mut again = target("matmul", Phase::Waiting);
        again.progress.beyond = true;
        let mut targets = [again, target("rmsnorm", Phase::Done(StopReason::Reverts { limit: 5 }))];
        rank(&mut targets, &[ranked("matmul", 0.005, 1.005), ranked("rmsnorm", 0.1, 1.1)]);
        let ops: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
        assert_eq!(ops, ["rmsnorm", "matmul"]);
        assert_eq!(targets[1].phase, Phase::Waiting);
    }

    #[test]
    fn a_part_waits_for_the_whole_and_is_left_out_where_the_whole_is_faster() {
        let order = [ranked("mlp", 0.6, 2.0), ranked("mm", 0.4, 1.5)];
        let after = |kept: u32, vs_user: f64| {
            let done = Phase::Done(StopReason::Reverts { limit: 5 });
            let mut whole = TargetState { kept, ..target("mlp", done) };
            whole.progress.vs_user = Some(vs_user);
            let part = TargetState { within: vec!["mlp".into()], ..target("mm", Phase::Waiting) };
            let mut targets = [part, whole];
            rank(&mut targets, &order);
            assert_eq!(targets[0].op, "mlp");
            targets[1].phase.clone()
        };
        assert_eq!([after(1, 0.97), after(0, 1.002)], [Phase::Waiting, Phase::Waiting]);
        assert_eq!(after(1, 1.1), Phase::Skipped("mlp, which it is a part of, is faster as a whole".into()));
    }

    fn compiled_with(kernel: Option<&str>, written: Option<&str>) -> Vec<(String, Phase)> {
        let mut compiled = crate::profile::compiled_sample();
        for region in &mut compiled.captured.regions {
            region.source = Some("def reference(x0):\n    return x0\n".into());
            let described = serde_json::json!({
                "inputs": [{"role": "input", "name": "x0", "shape": [8], "dtype": "float32", "contiguous": true,
                    "figures": {"min": -3.0, "max": 3.1, "mean": 0.0, "deviation": 1.0, "zeros": 0.0, "whole": false, "count": 8}}],
                "outputs": [{"shape": [8], "dtype": "float32"}], "flops": 0, "structure": [],
            });
            region.described = Some(serde_json::from_value(described).expect("described"));
            region.why_not = None;
            region.operation(crate::op::Bar::Compiled).expect("an operation");
        }
        let options = Options {
            run: "r".into(),
            model: "m".into(),
            agent: Choice::default(),
            rules: Rules::default(),
            only: Vec::new(),
            skip: Vec::new(),
            seed: 1,
        };
        let there = |region: &Region| {
            (Some(region.name.as_str()) == kernel).then(|| (format!("{}.c", region.name), "void f() {}".to_owned()))
        };
        let written = written.map(|name| (name.to_owned(), "a kernel".to_owned())).into_iter().collect();
        let card = crate::device::samples::card();
        let state = plan_compiled(options, compiled, &card, "judge", &there, &written).expect("a plan");
        state.targets.into_iter().map(|target| (target.op, target.phase)).collect()
    }

    #[test]
    fn a_joined_region_is_a_target_where_it_has_a_kernel_and_its_parts_are_behind_it() {
        let phase = |targets: &[(String, Phase)], op: &str| {
            targets.iter().find(|(name, _)| name == op).map(|(_, phase)| phase.clone()).expect("a target")
        };
        let in_parts = compiled_with(None, None);
        assert!(matches!(phase(&in_parts, "mm_norm"), Phase::Skipped(why) if why.contains("its parts are targets")));
        assert_eq!(phase(&in_parts, "mm"), Phase::Waiting);
        for as_a_whole in [compiled_with(Some("mm_norm"), None), compiled_with(None, Some("mm_norm"))] {
            let order: Vec<&str> = as_a_whole.iter().map(|(op, _)| op.as_str()).collect();
            assert_eq!(order[..3], ["mm_norm", "mm", "norm"]);
            assert!(as_a_whole[..3].iter().all(|(_, phase)| *phase == Phase::Waiting));
        }
    }

    #[test]
    fn what_the_user_named_is_worked_on_however_little_it_can_gain() {
        let mut targets = [TargetState { named: true, ..target("rmsnorm", Phase::Waiting) }];
        rank(&mut targets, &[ranked("rmsnorm", 0.001, 1.0005)]);
        assert_eq!(targets[0].phase, Phase::Waiting);
    }
}
