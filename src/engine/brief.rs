//! What an agent is told, from what a run knows: while it runs, and afterwards for whoever asks.

use crate::agent::Brief;
use crate::device::DeviceCard;
use crate::op::OpSource;

use super::state::{RunState, TargetState};

/// The margin before any was measured: the least there is.
const LEAST_MARGIN: f64 = 0.01;

/// The brief for a target as it stands in `state`. `source` is the operation as the run judges it, `incumbent` the text
/// at the branch's tip, `seed` the run's for this target, `experiment` the number of the next one.
#[must_use]
pub fn brief(
    state: &RunState,
    target: &TargetState,
    source: OpSource,
    incumbent: String,
    device: DeviceCard,
    seed: u64,
    experiment: u64,
) -> Brief {
    Brief {
        op: target.op.clone(),
        source,
        backend: state.backend.clone(),
        file: target.file.clone(),
        languages: target.languages.clone(),
        incumbent,
        unwritten: target.is_unwritten(),
        starter: target.start_text.clone(),
        shapes: target.shapes.clone(),
        timing: target.timing.clone(),
        resources: target.resources.clone(),
        vs_user: target.vs_user(),
        against: target.against.clone(),
        share: state.workload.whole_us().map(|_| target.share),
        device,
        margin: target.precision.map_or(LEAST_MARGIN, |precision| precision.margin),
        history: target.tried.clone(),
        seed,
        experiment,
    }
}
