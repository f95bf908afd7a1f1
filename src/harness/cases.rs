//! Which cases each stage runs: a pure function of the operation, the target and the seed.

use crate::backend::CaseLimits;
use crate::evaluation::Stage;
use crate::op::{Case, Dtype, OpError, Operation, Shape, TargetShape};

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

/// All cases of stages 1, 2, 3 and 5 in the order they run, within the device's `limits`; determinism and timing take the
/// target's shapes.
///
/// Target shapes join the sweep in their own dtype, because a model's shapes are the ones that matter.
///
/// # Errors
/// A shape that does not fit the operation.
pub fn plan(
    op: &Operation,
    target: &[TargetShape],
    seed: u64,
    limits: &CaseLimits,
) -> Result<Vec<PlannedCase>, OpError> {
    let mut cases = Plan { op, limits, cases: Vec::new() };
    for dtype in Dtype::ALL {
        cases.add(Stage::Smoke, &op.smoke, dtype, None)?;
    }
    for shape in op.sweep.iter().chain(&op.decode) {
        for dtype in Dtype::ALL {
            cases.add(Stage::Sweep, shape, dtype, None)?;
        }
    }
    for wanted in target {
        cases.add(Stage::Sweep, &wanted.shape, wanted.dtype, None)?;
    }
    for hostile in &op.adversarial {
        for dtype in Dtype::ALL {
            if hostile.dtypes.is_empty() || hostile.dtypes.contains(&dtype) {
                cases.add(Stage::Stability, &hostile.shape, dtype, Some(&hostile.name))?;
            }
        }
    }
    let random = op.random_shape(seed)?;
    for shape in op.edges.iter().chain([&random]) {
        for dtype in Dtype::ALL {
            cases.add(Stage::Edges, shape, dtype, None)?;
        }
    }
    Ok(cases.cases)
}

/// The cases so far.
struct Plan<'a> {
    op: &'a Operation,
    limits: &'a CaseLimits,
    cases: Vec<PlannedCase>,
}

impl Plan<'_> {
    fn add(&mut self, stage: Stage, shape: &Shape, dtype: Dtype, input: Option<&str>) -> Result<(), OpError> {
        let CaseLimits { macs, elements, .. } = *self.limits;
        let (shape, shrunk) = self.op.shrink_to(&self.op.complete(shape)?, macs, elements)?;
        let case = Case { shape, dtype, input: input.map(str::to_owned) };
        // Shrinking may make two shapes one.
        if !self.cases.iter().any(|known| known.stage == stage && known.case == case) {
            self.cases.push(PlannedCase { stage, case, shrunk });
        }
        Ok(())
    }
}
