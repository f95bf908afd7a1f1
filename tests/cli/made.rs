//! A run that has ended, written down without being measured: what comes after a run must not depend on how busy the
//! machine was during it.

use std::sync::LazyLock;

use warpsmith::engine::stop::{Rules, StopReason, TargetProgress};
use warpsmith::engine::{RunState, TargetState, VERSION, Workload};
use warpsmith::history::{Entry, History, Pending, Row};
use warpsmith::model::Pass;
use warpsmith::op::Dtype;
use warpsmith::profile::Profile;
use warpsmith::workspace::Workspace;

use crate::common::{Place, kernels};

/// The run's id.
pub const MADE: &str = "260214a";

/// Its winner, which stands for what takes most of the model's time, so that the next run has it as a target.
pub const KERNEL: &str = "kernels/cpu/fused_mlp.c";

/// What makes the winner another text.
pub const FASTER: &str = "// faster";

/// The next run's arguments.
pub const NEXT: [&str; 6] = ["run", "model", "--only", "fused_mlp", "--seed", "1"];

static FINISHED: LazyLock<Place> = LazyLock::new(|| {
    let place = Place::shared("made", &kernels::keeps());
    write_run(&place, Some(StopReason::NoTargets), 1.5);
    place
});

/// A workspace of one's own with the finished run, which kept a kernel for `fused_mlp` and one for `rmsnorm`, of which the
/// second does not beat what the user has.
pub fn made() -> Place {
    FINISHED.copy()
}

/// The text of the winner.
pub fn winner(place: &Place) -> String {
    place.git(&["show", &format!("warpsmith/{MADE}:{KERNEL}")])
}

/// The run's id that is not [`MADE`].
#[track_caller]
pub fn next_run(place: &Place) -> String {
    let refs = place.git(&["for-each-ref", "--format=%(refname)", "refs/warpsmith"]);
    let others: Vec<_> = refs.lines().filter_map(|name| name.split('/').nth(2)).filter(|run| *run != MADE).collect();
    assert!(!others.is_empty(), "{refs}");
    others[others.len() - 1].to_owned()
}

/// Of a model of which nothing was measured but a pass of a millisecond.
fn profile() -> Profile {
    let pass = Pass { phase: warpsmith::model::Phase::Prefill, batch: 1, seq: 16, dtype: Dtype::F32, layers: None };
    Profile {
        model: "model".to_owned(),
        pass,
        layers: 1,
        layers_of_model: 1,
        parameters: 1,
        device: String::new(),
        rounds: 1,
        whole_us: 1000.0,
        parts_us: 0.0,
        other_us: 1000.0,
        overlap_us: 0.0,
        other_share: 1.0,
        launch_us: 0.0,
        rows: Vec::new(),
        notes: Vec::new(),
    }
}

/// Writes down a run of what is in the workspace: a base and a keep for each of two kernels, the first of which is
/// `vs_user` times as fast as what the user has.
pub fn write_run(place: &Place, ended: Option<StopReason>, vs_user: f64) {
    let workspace = Workspace::find(&place.root).unwrap().unwrap();
    let target = |op: &str, vs_user: f64| TargetState {
        kept: 1,
        start_judged: true,
        start_us: Some(3180.0),
        best_us: Some(3180.0 / vs_user),
        progress: TargetProgress { vs_user: Some(vs_user), ..TargetProgress::default() },
        ..TargetState::new(op, format!("kernels/cpu/{op}.c"), place.read(&format!("kernels/cpu/{op}.c")), Vec::new())
    };
    // The rest of the model, which nobody worked on.
    let other = |op: &str| {
        let file = format!("kernels/cpu/{op}.c");
        let text = warpsmith::workspace::embedded(&file).unwrap().to_owned();
        TargetState::new(op, file, text, Vec::new())
    };
    let others = ["matmul", "flash_attention", "rotary_embedding"].map(other);
    let worked_on = [target("fused_mlp", vs_user), target("rmsnorm", 0.8)];
    let mut state = RunState {
        version: VERSION,
        run: MADE.to_owned(),
        model: "model".to_owned(),
        workload: Workload::Model(Box::new(profile())),
        agent: warpsmith::agent::Choice::Tuner,
        usage: warpsmith::agent::Usage::default(),
        backend: "cpu".to_owned(),
        device: warpsmith::device::detect_cpu().name,
        device_key: "cpu-1".to_owned(),
        judge: String::new(),
        seed: 1,
        rules: Rules::default(),
        elapsed_s: 60.0,
        busy_s: 50.0,
        next_experiment: 1,
        trials: 0,
        decided: 0,
        targets: worked_on.iter().chain(&others).cloned().collect(),
        in_model: None,
        resumed: 0,
        resumed_at: Vec::new(),
        ceilings: None,
        troubles: Vec::new(),
        closing: false,
        ended: None,
        verified: None,
    };
    let json = |state: &RunState| serde_json::to_value(state).unwrap();
    let mut history = History::begin(&workspace, MADE, json(&state)).unwrap();
    for target in worked_on {
        for (keep, text) in [(false, target.start_text.clone()), (true, format!("{}{FASTER}\n", target.start_text))] {
            let number = history.next_number();
            let path = target.file.clone();
            let pending = Pending {
                trial: number,
                number,
                path: path.clone(),
                text: text.clone(),
                seed: number,
                meta: serde_json::Value::Null,
            };
            history.begin_experiment(&pending).unwrap();
            state.next_experiment = number + 1;
            let row = Row {
                status: if keep { "keep" } else { "base" }.to_owned(),
                op: target.op.clone(),
                backend: "cpu".to_owned(),
                ..Row::default()
            };
            let entry = Entry {
                trial: number,
                number,
                path,
                candidate_text: text,
                keep,
                removes: None,
                subject: format!("{}: experiment {number}", target.op),
                body: String::new(),
                trailers: Vec::new(),
                row,
                record: serde_json::Value::Null,
                evaluation: serde_json::Value::Null,
                state: json(&state),
            };
            history.record(entry).unwrap();
        }
    }
    state.ended = ended;
    history.checkpoint(json(&state)).unwrap();
}
