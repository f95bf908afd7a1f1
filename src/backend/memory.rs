//! The tensors of one case, placed in an arena.

use super::values::{decode_into, encode_one};
use super::{Arena, Call, Exchange, Placing, Poison, Region, Span};
use crate::kernel::{KernelFile, Resolution, ScratchInit};
use crate::op::{Case, Distribution, Draw, DrawPlan, Dtype, ElementType, OpError, Operation, Role, Stored, TensorSpec};
use crate::rng::Stream;

/// Why a case has no tensors.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The memory is not to be had, or too small; a sentence.
    #[error("{0}")]
    Unavailable(String),
    /// A shape for which an expression fails.
    #[error(transparent)]
    Op(#[from] OpError),
}

/// What a buffer is called that no front matter names.
const OWN: &str = "the compiler's own memory";

/// A scratch buffer as a kernel asks for it at a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchBuffer {
    /// Its name in the front matter.
    pub name: String,
    /// Elements.
    pub elements: usize,
    /// Element type.
    pub dtype: ElementType,
    /// What it holds before a launch.
    pub init: ScratchInit,
}

impl ScratchBuffer {
    /// The scratch buffers of `kernel` at `resolution`, in the order of its arguments.
    #[must_use]
    pub fn of(kernel: &KernelFile, resolution: &Resolution) -> Vec<Self> {
        let specs = kernel.front.scratch.iter().zip(&resolution.scratch_elements);
        specs
            .map(|(spec, &elements)| Self { name: spec.name.clone(), elements, dtype: spec.dtype, init: spec.init })
            .collect()
    }

    /// A buffer that a kernel's compiler asks for.
    #[must_use]
    pub fn own(bytes: usize) -> Self {
        Self { name: OWN.into(), elements: bytes, dtype: ElementType::U8, init: ScratchInit::Poison }
    }

    /// Bytes of several buffers at a dtype; `None` beyond all numbers.
    #[must_use]
    pub fn bytes(all: &[Self], dtype: Dtype) -> Option<usize> {
        all.iter().try_fold(0usize, |sum, one| sum.checked_add(one.elements.checked_mul(one.dtype.bytes(dtype))?))
    }
}

/// One case's tensors: `copies` sets of inputs, outputs and scratch, each buffer between red zones.
#[derive(Debug, Clone)]
pub struct CaseMemory {
    op: Operation,
    case: Case,
    ints: Vec<i64>,
    floats: Vec<f32>,
    scratch: Vec<ScratchBuffer>,
    copies: Vec<Set>,
    /// How many times what sums in single precision may lose they may lose here.
    sums: f64,
}

#[derive(Debug, Clone)]
struct Set {
    /// In the operation's order; `None` where absent.
    tensors: Vec<Option<Span>>,
    scratch: Vec<Span>,
    /// What the red zones were last filled from.
    zones: Option<u64>,
}

/// What [`CaseMemory::change_one`] changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The input.
    pub tensor: String,
    /// Flat index of the element.
    pub element: usize,
    /// Its value before.
    pub before: f64,
    /// Its value now.
    pub after: f64,
}

impl CaseMemory {
    /// Bytes that [`Self::place`] takes of the arena's inputs and outputs.
    ///
    /// # Errors
    /// An expression that fails at the case's (complete) shape.
    pub fn footprint<A: Arena>(
        op: &Operation,
        case: &Case,
        scratch: &[ScratchBuffer],
        copies: usize,
        placing: Placing,
    ) -> Result<(usize, usize), OpError> {
        let (mut inputs, mut outputs) = (0, 0);
        for (role, bytes) in tensor_bytes(op, case)? {
            let side = if role == Role::Input { &mut inputs } else { &mut outputs };
            *side += bytes.map_or(0, |bytes| A::footprint(bytes, placing));
        }
        for buffer in scratch {
            outputs += A::footprint(buffer.elements * buffer.dtype.bytes(case.dtype), placing);
        }
        Ok((inputs * copies, outputs * copies))
    }

    /// Places `copies` sets of the case's tensors; they hold nothing in particular yet. `case.shape` is complete.
    ///
    /// # Errors
    /// A full arena, or an expression that fails at this shape.
    pub fn place<A: Arena>(
        arena: &mut A,
        op: &Operation,
        case: &Case,
        scratch: &[ScratchBuffer],
        copies: usize,
    ) -> Result<Self, MemoryError> {
        let sizes = tensor_bytes(op, case)?;
        let mut sets = Vec::with_capacity(copies);
        for _ in 0..copies {
            let mut tensors = Vec::with_capacity(sizes.len());
            for (role, bytes) in &sizes {
                let region = if *role == Role::Input { Region::Inputs } else { Region::Outputs };
                tensors.push(bytes.map(|bytes| arena.place(region, bytes)).transpose()?);
            }
            let scratch = scratch
                .iter()
                .map(|buffer| arena.place(Region::Outputs, buffer.elements * buffer.dtype.bytes(case.dtype)))
                .collect::<Result<_, _>>()?;
            sets.push(Set { tensors, scratch, zones: None });
        }
        Ok(Self {
            ints: op.ints(&case.shape)?,
            floats: op.scalars_of(case)?,
            op: op.clone(),
            case: case.clone(),
            scratch: scratch.to_vec(),
            copies: sets,
            sums: 1.0,
        })
    }

    /// The same tensors for another case of this shape and dtype: other inputs, other arguments.
    ///
    /// # Errors
    /// An argument's expression that fails.
    pub fn with_case(&self, case: &Case) -> Result<Self, OpError> {
        assert!(case.shape == self.case.shape && case.dtype == self.case.dtype, "the tensors are the same");
        Ok(Self { floats: self.op.scalars_of(case)?, case: case.clone(), ..self.clone() })
    }

    /// The same tensors where sums in single precision may lose `times` as much as their bounds allow, which were measured at other
    /// lengths.
    #[must_use]
    pub fn with_sums(self, times: f64) -> Self {
        Self { sums: times, ..self }
    }

    /// How many times their bounds what sums in single precision lose may be.
    #[must_use]
    pub const fn sums(&self) -> f64 {
        self.sums
    }

    /// The case these are the tensors of.
    #[must_use]
    pub const fn case(&self) -> &Case {
        &self.case
    }

    /// The operation they belong to.
    #[must_use]
    pub const fn operation(&self) -> &Operation {
        &self.op
    }

    /// How many sets there are.
    #[must_use]
    pub const fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Draws a copy's inputs from `seed`, as the case's kind of input says. What a file draws stays zero.
    ///
    /// # Errors
    /// An expression of a draw that fails.
    pub fn draw<A: Arena>(&self, arena: &mut A, copy: usize, seed: u64) -> Result<(), OpError> {
        for (span, plan) in input_plans(&self.op, &self.case, &self.inputs(copy), seed)? {
            match plan.dist {
                Distribution::File => arena.zero(&span),
                _ => arena.draw(&span, &plan),
            }
        }
        Ok(())
    }

    /// Whether an element of some input can be another one without any becoming what it never is.
    #[must_use]
    pub fn stirs(&self) -> bool {
        self.free_inputs(0).next().is_some()
    }

    /// Inputs whose elements do not depend on each other.
    fn free_inputs(&self, copy: usize) -> impl Iterator<Item = (&TensorSpec, Span)> + '_ {
        let pairs = self.op.tensors.iter().zip(&self.copies[copy].tensors);
        let free = |tensor: &TensorSpec| tensor.draw.as_ref().is_some_and(Draw::is_free);
        pairs.filter_map(move |(tensor, span)| {
            (*span).filter(|_| tensor.role == Role::Input && free(tensor)).map(|span| (tensor, span))
        })
    }

    /// Fills a copy's outputs and scratch with poison from `seed`, and all its red zones with another.
    ///
    /// Poison is random bits with high exponents: about half the elements are NaN, the others close to
    /// the largest value of their type, of either sign; neither is ever a plausible result. Scratch that
    /// is kept at zero by its kernel is zeroed; scratch that is zeroed for each launch is so by [`Self::call`].
    pub fn poison<A: Arena>(&mut self, arena: &mut A, copy: usize, seed: u64) {
        self.poison_all(arena, &[(copy, seed)]);
    }

    /// The same for several copies, each with its seed.
    pub fn poison_all<A: Arena>(&mut self, arena: &mut A, seeds: &[(usize, u64)]) {
        let dtype = self.case.dtype;
        let mut stretches = Vec::new();
        for &(copy, seed) in seeds {
            let stream = Stream::new(seed, "poison");
            let scratch = || self.scratch.iter().zip(&self.copies[copy].scratch);
            for (_, span) in scratch().filter(|(buffer, _)| buffer.init == ScratchInit::ZeroKept) {
                arena.zero(span);
            }
            let rubbish = scratch().filter(|(buffer, _)| buffer.init != ScratchInit::ZeroKept);
            let rubbish = rubbish.map(|(buffer, span)| (buffer.dtype.stored(dtype), *span));
            let spans = self.outputs_of(copy).chain(rubbish).zip(1..);
            stretches.extend(spans.map(|((stored, span), number)| Poison { span, stored, key: stream.bits(number) }));
            self.copies[copy].zones = Some(stream.bits(0));
            stretches.extend(self.zones_of(arena, copy).into_iter().map(|zone| zone.poison));
        }
        arena.poison(&stretches);
    }

    /// Changes one random element of one random input to something far from what it was, as large as
    /// eight times what surrounds it, so that a right answer changes by more than its tolerance.
    ///
    /// What stands in the output is then the answer to another question: a kernel that recognises its
    /// inputs by a sample, and returns what it stored, is caught.
    pub fn change_one<A: Arena>(&self, arena: &mut A, copy: usize, seed: u64) -> Option<Change> {
        let stream = Stream::new(seed, "change");
        let inputs: Vec<(&str, Stored, Span)> = self
            .free_inputs(copy)
            .map(|(tensor, span)| (tensor.name.as_str(), tensor.dtype.stored(self.case.dtype), span))
            .collect();
        if inputs.is_empty() {
            return None;
        }
        let &(tensor, stored, span) = inputs.get(stream.below(0, inputs.len() as u64) as usize)?;
        let size = stored.bytes();
        let count = span.bytes / size;
        let element = stream.below(1, count as u64) as usize;
        let places = (2..66).map(|turn| stream.below(turn, count as u64) as usize);
        let places: Vec<usize> = std::iter::once(element).chain(places).collect();
        let mut values = vec![0.0; places.len()];
        decode_into(&arena.gather(&span, size, &places), stored, &mut values);
        let before = values[0];
        let others = || values[1..].iter().copied().filter(|v| v.is_finite());
        let wanted = match stored.dtype() {
            // Another element's index is one that is allowed.
            None => others().find(|other| *other != before)?,
            Some(dtype) => {
                let largest = others().fold(0.0, |largest: f64, v| largest.max(v.abs()));
                let size = if largest == 0.0 { 1.0 } else { 8.0 * largest };
                size.min(dtype.largest()).copysign(if before.is_sign_negative() { 1.0 } else { -1.0 })
            }
        };
        let mut bytes = vec![0; size];
        encode_one(wanted, stored, &mut bytes);
        arena.poke(&span, element * size, &bytes);
        let mut after = [0.0];
        decode_into(&bytes, stored, &mut after);
        Some(Change { tensor: tensor.to_owned(), element, before, after: after[0] })
    }

    /// A change of one random element of one random input of a copy to the value of another: nothing that an ordinary draw would
    /// not hold. `None` where there is nothing to change.
    #[must_use]
    pub fn stir(&self, copy: usize, seed: u64) -> Option<Exchange> {
        let stream = Stream::new(seed, "stir");
        let inputs: Vec<(usize, Span)> =
            self.free_inputs(copy).map(|(tensor, span)| (tensor.dtype.stored(self.case.dtype).bytes(), span)).collect();
        if inputs.is_empty() {
            return None;
        }
        let &(size, span) = inputs.get(stream.below(0, inputs.len() as u64) as usize)?;
        let [from, to] = [1, 2].map(|turn| stream.below(turn, (span.bytes / size) as u64) as usize);
        Some(Exchange { span, size, from, to })
    }

    /// A launch of image number `image` on a copy, which begins with zeroing the scratch that wants it.
    #[must_use]
    pub fn call(&self, image: usize, copy: usize) -> Call {
        let copy = &self.copies[copy];
        let pointers = copy.tensors.iter().copied().chain(copy.scratch.iter().copied().map(Some)).collect();
        let scratch = self.scratch.iter().zip(&copy.scratch);
        let zeroed = scratch.filter(|(buffer, _)| buffer.init == ScratchInit::Zero).map(|(_, span)| *span).collect();
        Call { image, pointers, ints: self.ints.clone(), floats: self.floats.clone(), zeroed }
    }

    /// Whether a copy's red zones are as [`Self::poison`] left them, and scratch that must be zero
    /// afterwards is; the error says what was overwritten.
    ///
    /// # Errors
    /// A sentence for the verdict.
    pub fn check_zones<A: Arena>(&self, arena: &mut A, copy: usize) -> Result<(), String> {
        if self.copies[copy].zones.is_none() {
            return Ok(());
        }
        let zones = self.zones_of(arena, copy);
        let stretches: Vec<Poison> = zones.iter().map(|zone| zone.poison).collect();
        if let Some(found) = arena.disturbed(&stretches) {
            let zone = &zones[found.index];
            // The byte nearest to the buffer says most about the mistake.
            let (distance, side) = match zone.after {
                true => (found.first + 1, "after its end"),
                false => (zone.poison.span.bytes - found.last, "before its start"),
            };
            return Err(format!("it wrote outside `{}`, {distance} bytes {side}", zone.name));
        }
        let kept = self.scratch.iter().zip(&self.copies[copy].scratch);
        for (buffer, span) in kept.filter(|(buffer, _)| buffer.init == ScratchInit::ZeroKept) {
            if let Some(at) = arena.not_zero(span) {
                return Err(format!("scratch `{}` is not zero afterwards (byte {at})", buffer.name));
            }
        }
        Ok(())
    }

    /// The input that is not as the judge's last write left it, by name.
    pub fn changed_input<A: Arena>(&self, arena: &mut A, copy: usize) -> Option<&str> {
        let pairs = self.op.tensors.iter().zip(&self.copies[copy].tensors);
        let inputs = pairs.filter(|(tensor, _)| tensor.role == Role::Input);
        let (names, spans): (Vec<&str>, Vec<Span>) =
            inputs.filter_map(|(tensor, span)| Some((tensor.name.as_str(), (*span)?))).unzip();
        arena.changed_input(&spans).map(|index| names[index])
    }

    /// Each input in the operation's order, `None` where absent: what the oracle takes.
    #[must_use]
    pub fn inputs(&self, copy: usize) -> Vec<Option<Span>> {
        let pairs = self.op.tensors.iter().zip(&self.copies[copy].tensors);
        pairs.filter(|(tensor, _)| tensor.role == Role::Input).map(|(_, span)| *span).collect()
    }

    /// Each output in the operation's order: what is compared.
    #[must_use]
    pub fn outputs(&self, copy: usize) -> Vec<Span> {
        self.outputs_of(copy).map(|(_, span)| span).collect()
    }

    /// How many scratch buffers a copy has.
    #[must_use]
    pub const fn scratch_count(&self) -> usize {
        self.scratch.len()
    }

    /// The same with what their elements are.
    pub fn outputs_of(&self, copy: usize) -> impl Iterator<Item = (Stored, Span)> + '_ {
        let pairs = self.op.tensors.iter().zip(&self.copies[copy].tensors);
        let outputs = pairs.filter(|(tensor, _)| tensor.role == Role::Output);
        outputs.filter_map(|(tensor, span)| Some((tensor.dtype.stored(self.case.dtype), (*span)?)))
    }

    /// All red zones of a copy, once they were filled.
    fn zones_of<A: Arena>(&self, arena: &A, copy: usize) -> Vec<Zone<'_>> {
        let dtype = self.case.dtype;
        let set = &self.copies[copy];
        let tensors = self.op.tensors.iter().zip(&set.tensors);
        let tensors = tensors.filter_map(|(tensor, span)| Some((tensor.name.as_str(), tensor.dtype, (*span)?)));
        let scratch = self.scratch.iter().zip(&set.scratch);
        let scratch = scratch.map(|(buffer, span)| (buffer.name.as_str(), buffer.dtype, *span));
        let sides = tensors.chain(scratch).flat_map(|(name, element, span)| {
            let [before, after] = arena.red_zones(&span);
            [(name, element.stored(dtype), before, false), (name, element.stored(dtype), after, true)]
        });
        let keys = (0..).map(|number| set.zones.unwrap_or_default() ^ number);
        let zone = |((name, stored, span, after), key)| Zone { name, after, poison: Poison { span, stored, key } };
        sides.zip(keys).map(zone).collect()
    }
}

/// A red zone.
struct Zone<'a> {
    /// The buffer it guards.
    name: &'a str,
    /// Whether it stands after that buffer.
    after: bool,
    /// What it holds.
    poison: Poison,
}

/// How each of a case's inputs that are drawn is, with its place; `spans` has those of all inputs in the operation's order.
///
/// # Errors
/// An expression of a draw that fails.
pub(crate) fn input_plans(
    op: &Operation,
    case: &Case,
    spans: &[Option<Span>],
    seed: u64,
) -> Result<Vec<(Span, DrawPlan)>, OpError> {
    let mut plans = Vec::with_capacity(spans.len());
    for (tensor, span) in op.tensors.iter().filter(|tensor| tensor.role == Role::Input).zip(spans) {
        if let (Some(span), Some(how)) = (span, op.draw_of(tensor, case)?) {
            plans.push((*span, DrawPlan::new(op, tensor, &case.shape, case.dtype, how, seed)?));
        }
    }
    Ok(plans)
}

/// Role and size in bytes of each tensor, `None` where it is absent.
fn tensor_bytes(op: &Operation, case: &Case) -> Result<Vec<(Role, Option<usize>)>, OpError> {
    op.tensors
        .iter()
        .map(|tensor| {
            let present = op.present(tensor, &case.shape)?;
            let bytes = op.elements(tensor, &case.shape)? * tensor.dtype.bytes(case.dtype);
            Ok((tensor.role, present.then_some(bytes)))
        })
        .collect()
}
