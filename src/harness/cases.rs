//! Which cases each stage runs: a pure function of the operation, the target and the seed.

use crate::evaluation::Stage;
use crate::op::{Case, Dtype, OpError, Operation, Shape, TargetShape};

/// Multiply-adds a case may have on a CPU; larger shapes shrink by [`Operation::shrink_to`] (JUDGE, "Oracle and timing
/// costs").
pub const MAX_MACS: u64 = 1 << 26;

/// Elements, all tensors together, that a case may have on a CPU: what two cores draw, compute and compare in a
/// fraction of a second.
pub const MAX_ELEMENTS: u64 = 1 << 23;

/// A case, the stage it belongs to, and whether its shape was made smaller for this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCase {
    /// The stage.
    pub stage: Stage,
    /// What is asked.
    pub case: Case,
    /// Whether the shape is smaller than the operation asks.
    pub shrunk: bool,
}

/// All cases of stages 1, 2, 3 and 5 in the order they run; determinism and timing take the target's shapes.
///
/// Target shapes join the sweep in their own dtype, because a model's shapes are the ones that matter.
///
/// # Errors
/// A shape that does not fit the operation.
pub fn plan(op: &Operation, target: &[TargetShape], seed: u64) -> Result<Vec<PlannedCase>, OpError> {
    let mut cases = Vec::new();
    for dtype in Dtype::ALL {
        add(&mut cases, op, Stage::Smoke, &op.smoke, dtype, None)?;
    }
    for shape in op.sweep.iter().chain(&op.decode) {
        for dtype in Dtype::ALL {
            add(&mut cases, op, Stage::Sweep, shape, dtype, None)?;
        }
    }
    for wanted in target {
        add(&mut cases, op, Stage::Sweep, &wanted.shape, wanted.dtype, None)?;
    }
    for hostile in &op.adversarial {
        for dtype in Dtype::ALL {
            if hostile.dtypes.is_empty() || hostile.dtypes.contains(&dtype) {
                add(&mut cases, op, Stage::Stability, &hostile.shape, dtype, Some(&hostile.name))?;
            }
        }
    }
    let random = op.random_shape(seed)?;
    for shape in op.edges.iter().chain([&random]) {
        for dtype in Dtype::ALL {
            add(&mut cases, op, Stage::Edges, shape, dtype, None)?;
        }
    }
    Ok(cases)
}

fn add(
    cases: &mut Vec<PlannedCase>,
    op: &Operation,
    stage: Stage,
    shape: &Shape,
    dtype: Dtype,
    input: Option<&str>,
) -> Result<(), OpError> {
    let (shape, shrunk) = op.shrink_to(&op.complete(shape)?, MAX_MACS, MAX_ELEMENTS)?;
    let case = Case { shape, dtype, input: input.map(str::to_owned) };
    // Shrinking may make two shapes one.
    if !cases.iter().any(|known: &PlannedCase| known.stage == stage && known.case == case) {
        cases.push(PlannedCase { stage, case, shrunk });
    }
    Ok(())
}
