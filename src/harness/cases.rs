//! Which cases each stage runs: a pure function of the operation, the target and the seed.

use std::num::NonZeroU64;

use crate::backend::CaseLimits;
use crate::defence::Defence;
use crate::evaluation::Stage;
use crate::op::{Adversarial, Case, DrawPlan, Dtype, OpError, Operation, Shape, TargetShape};
use crate::rng::Stream;

/// A case, the stage it belongs to, and whether its shape was made smaller for this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCase {
    /// The stage.
    pub stage: Stage,
    /// What is asked.
    pub case: Case,
    /// Whether the shape is smaller than the operation asks.
    pub shrunk: bool,
    /// How many times its bounds an error may be.
    pub leeway: f64,
}

/// [`PlannedCase::leeway`] of an adversarial input at sizes it was not made for: bounds were measured at its own, where sums
/// are shorter, and a plain sum of many values of one sign is somewhat outside. What goes wrong there is wrong by more.
pub(super) const LEEWAY: f64 = 8.0;

/// How many times its bounds an error may be for an adversarial input at sizes that it was not made for. Where few terms are not zero
/// bounds hold at any size; where PyTorch is the oracle its error is measured at the very sizes.
pub(super) fn leeway(op: &Operation, hostile: &Adversarial) -> f64 {
    if hostile.few_terms.is_some() || op.knows_only_wholes() { 1.0 } else { LEEWAY }
}

/// All cases of stages 1, 2, 3 and 5 in the order they run, within the device's `limits`, in the `dtypes` that a kernel serves;
/// determinism and timing take the target's shapes.
///
/// Target shapes join the sweep in their own dtype, because a model's shapes are the ones that matter. The one with the most
/// work meets the adversarial inputs too, as it is or else once with each of its sizes as it is: a kernel may go another way
/// where a size is large, and the way that is timed must be safe.
///
/// # Errors
/// A shape that does not fit the operation.
pub fn plan(
    op: &Operation,
    target: &[TargetShape],
    dtypes: &[Dtype],
    seed: u64,
    limits: &CaseLimits,
) -> Result<Vec<PlannedCase>, OpError> {
    let mut cases = Plan { op, limits, seed, cases: Vec::new() };
    let served = || Dtype::ALL.into_iter().filter(|dtype| dtypes.contains(dtype));
    for dtype in served() {
        cases.add(Stage::Smoke, &op.smoke, dtype, None)?;
    }
    for shape in op.sweep.iter().chain(&op.decode) {
        for dtype in served() {
            cases.add(Stage::Sweep, shape, dtype, None)?;
        }
    }
    for wanted in target {
        cases.add(Stage::Sweep, &wanted.shape, wanted.dtype, None)?;
    }
    for hostile in &op.adversarial {
        for dtype in served() {
            if hostile.dtypes.is_empty() || hostile.dtypes.contains(&dtype) {
                cases.add(Stage::Stability, &hostile.shape, dtype, Some(&hostile.name))?;
            }
        }
    }
    if let Some(wanted) = most_work(op, target)? {
        cases.add_hostile(wanted, limits.hostile_share)?;
    }
    let random = op.random_shape(seed)?;
    for shape in op.edges.iter().chain([&random]) {
        for dtype in served() {
            cases.add(Stage::Edges, shape, dtype, None)?;
        }
    }
    Ok(cases.cases)
}

/// The cases so far.
struct Plan<'a> {
    op: &'a Operation,
    limits: &'a CaseLimits,
    seed: u64,
    cases: Vec<PlannedCase>,
}

impl Plan<'_> {
    fn add(&mut self, stage: Stage, shape: &Shape, dtype: Dtype, input: Option<&str>) -> Result<(), OpError> {
        let CaseLimits { macs, elements, .. } = *self.limits;
        let (shape, shrunk) = self.op.shrink_to(&self.op.complete(shape)?, macs, elements)?;
        self.add_shrunk(stage, (shape, shrunk), dtype, input, 1.0);
        Ok(())
    }

    /// The adversarial inputs at a target's sizes in its dtype: where the limits are too small for all of them, once with each
    /// of those that may shrink as it is. What is no size (masked or not, transposed or not) stays what the input was made for.
    fn add_hostile(&mut self, wanted: &TargetShape, share: NonZeroU64) -> Result<(), OpError> {
        let (op, dtype, CaseLimits { macs, elements, .. }) = (self.op, wanted.dtype, *self.limits);
        let (macs, elements) = (macs / share, elements / share);
        let wanted = op.complete(&wanted.shape)?;
        for hostile in op.adversarial.iter().filter(|it| it.dtypes.is_empty() || it.dtypes.contains(&dtype)) {
            let shape = with_flags_of(op, &wanted, &op.complete(&hostile.shape)?);
            for kept in &op.shrink {
                // Not every operation makes sense in every mixture.
                let Ok((shape, shrunk)) = op.shrink_others(&shape, Some(kept), macs, elements) else { continue };
                if !op.is_defined(hostile, &shape)? {
                    continue;
                }
                let case = Case { shape, dtype, input: Some(hostile.name.clone()), setting: 0 };
                if can_be_drawn(op, &case)? {
                    let leeway = leeway(op, hostile);
                    self.add_shrunk(Stage::Stability, (case.shape, shrunk), dtype, Some(&hostile.name), leeway);
                }
            }
        }
        Ok(())
    }

    /// Floating-point arguments are drawn where inputs are ordinary; smallest cases have the operation's own.
    fn setting(&self, stage: Stage, input: Option<&str>) -> u32 {
        if input.is_some() || stage == Stage::Smoke || !Defence::OtherArguments.stands() {
            return 0;
        }
        self.op.drawn_setting(Stream::new(self.seed, "setting").bits(self.cases.len() as u64))
    }

    fn add_shrunk(
        &mut self,
        stage: Stage,
        (shape, shrunk): (Shape, bool),
        dtype: Dtype,
        input: Option<&str>,
        leeway: f64,
    ) {
        let case = Case { shape, dtype, input: input.map(str::to_owned), setting: self.setting(stage, input) };
        // Shrinking may make two shapes one.
        let known = |known: &PlannedCase| {
            known.stage == stage && Case { setting: 0, ..known.case.clone() } == Case { setting: 0, ..case.clone() }
        };
        if !self.cases.iter().any(known) {
            self.cases.push(PlannedCase { stage, case, shrunk, leeway });
        }
    }
}

/// Whether a symbol is a size of some tensor.
pub(super) fn is_size(op: &Operation, symbol: &str) -> bool {
    op.tensors.iter().flat_map(|tensor| &tensor.shape).any(|dimension| dimension.names().contains(&symbol))
}

/// The symbols that may have many values: sizes, but for flags.
pub(super) fn sizes(op: &Operation) -> impl Iterator<Item = &String> {
    op.symbols.iter().filter(|symbol| is_size(op, symbol) && flags(op).all(|flag| flag != **symbol))
}

/// The symbols that are zero or one by their drawn values, whether a tensor's shape names them or not.
pub(super) fn flags(op: &Operation) -> impl Iterator<Item = &str> {
    op.random.iter().filter(|(_, bounds)| **bounds == (0, 1)).map(|(symbol, _)| symbol.as_str())
}

/// A shape with the flags, and all else that is no size, of another one.
pub(super) fn with_flags_of(op: &Operation, shape: &Shape, other: &Shape) -> Shape {
    let flags = other.0.iter().filter(|(symbol, _)| !is_size(op, symbol));
    flags.fold(shape.clone(), |shape, (symbol, value)| shape.with(symbol, *value))
}

/// Whether a case's inputs exist at its shape: an index needs something to choose from.
pub(super) fn can_be_drawn(op: &Operation, case: &Case) -> Result<bool, OpError> {
    for tensor in &op.tensors {
        if let Some(how) = op.draw_of(tensor, case)?.filter(|how| how.dist.is_whole()) {
            let plan = DrawPlan::new(op, tensor, &case.shape, case.dtype, how, 0)?;
            if plan.scale < 1.0 {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The target's shape with the most flops.
///
/// # Errors
/// A shape that does not fit the operation.
pub(super) fn most_work<'a>(op: &Operation, target: &'a [TargetShape]) -> Result<Option<&'a TargetShape>, OpError> {
    let mut best: Option<(u64, &TargetShape)> = None;
    for wanted in target {
        let flops = op.flops(&op.complete(&wanted.shape)?)?;
        if best.is_none_or(|(most, _)| flops > most) {
            best = Some((flops, wanted));
        }
    }
    Ok(best.map(|(_, wanted)| wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::embedded;

    /// The shapes of softmax's adversarial inputs in f16 that are not their own, at a target of 4096 x 4096.
    fn hostile(elements: u64, share: u64) -> Vec<(Option<String>, Shape)> {
        let op = Operation::load(&|path| embedded(path).map(str::to_owned), "softmax").expect("it ships");
        let limits = CaseLimits {
            macs: u64::MAX,
            macs_twice: u64::MAX,
            elements,
            hostile_share: NonZeroU64::new(share).expect("not zero"),
            sample_macs: 0,
            threads_vary: false,
            timed_bytes: 0,
            repeats: 3,
            again: 0,
            least_flops: 1,
        };
        let shape = Shape::from([("rows", 4096), ("cols", 4096)]);
        let target = [TargetShape { shape, dtype: Dtype::F16, calls: 1 }];
        let cases = plan(&op, &target, &Dtype::ALL, 1, &limits).expect("they fit");
        cases.into_iter().filter(|planned| planned.leeway > 1.0).map(|it| (it.case.input, it.case.shape)).collect()
    }

    #[test]
    fn an_adversarial_input_comes_once_at_the_timed_shape_where_that_is_not_too_large() {
        let inputs = hostile(1 << 26, 1);
        assert!(inputs.len() > 5);
        for (index, (input, shape)) in inputs.iter().enumerate() {
            assert_eq!(*shape, Shape::from([("rows", 4096), ("cols", 4096)]));
            assert!(inputs[..index].iter().all(|(known, _)| known != input), "{input:?}");
        }
    }

    #[test]
    fn elsewhere_it_comes_once_with_each_size_as_it_is() {
        let inputs = hostile(1 << 26, 16);
        for (_, shape) in &inputs {
            let [rows, cols] = ["rows", "cols"].map(|symbol| shape.get(symbol).expect("complete"));
            assert!((rows == 4096) != (cols == 4096) && 2 * rows * cols <= (1 << 26) / 16, "{shape}");
        }
        assert_eq!(inputs.len(), 2 * hostile(1 << 26, 1).len());
    }
}
