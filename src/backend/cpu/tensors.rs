//! The tensors of one case, placed in an arena.

use super::arena::{Arena, ArenaError, Region, Span};
use super::control::Call;
use super::poison::fill;
use super::values::{decode_into, encode_one};
use crate::kernel::{KernelFile, Resolution, ScratchInit};
use crate::op::{Case, ElementType, OpError, Operation, Role, Stored, draw};
use crate::rng::Stream;

/// Why a case has no tensors.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// They do not fit.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A shape for which an expression fails.
    #[error(transparent)]
    Op(#[from] OpError),
}

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
}

/// One case's tensors: `copies` sets of inputs, outputs and scratch, each buffer between red zones.
#[derive(Debug, Clone)]
pub struct CaseMemory {
    op: Operation,
    case: Case,
    ints: Vec<i64>,
    floats: Vec<f32>,
    scratch: Vec<ScratchBuffer>,
    copies: Vec<Copy>,
}

#[derive(Debug, Clone)]
struct Copy {
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
    pub fn footprint(
        op: &Operation,
        case: &Case,
        scratch: &[ScratchBuffer],
        copies: usize,
    ) -> Result<(usize, usize), OpError> {
        let (mut inputs, mut outputs) = (0, 0);
        for (role, bytes) in tensor_bytes(op, case)? {
            let side = if role == Role::Input { &mut inputs } else { &mut outputs };
            *side += bytes.map_or(0, Arena::footprint);
        }
        for buffer in scratch {
            outputs += Arena::footprint(buffer.elements * buffer.dtype.bytes(case.dtype));
        }
        Ok((inputs * copies, outputs * copies))
    }

    /// Places `copies` sets of the case's tensors; they hold nothing in particular yet. `case.shape` is complete.
    ///
    /// # Errors
    /// A full arena, or an expression that fails at this shape.
    pub fn place(
        arena: &mut Arena,
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
            sets.push(Copy { tensors, scratch, zones: None });
        }
        Ok(Self {
            ints: op.ints(&case.shape)?,
            floats: op.scalars(&case.shape)?,
            op: op.clone(),
            case: case.clone(),
            scratch: scratch.to_vec(),
            copies: sets,
        })
    }

    /// The case these are the tensors of.
    #[must_use]
    pub const fn case(&self) -> &Case {
        &self.case
    }

    /// How many sets there are.
    #[must_use]
    pub const fn copies(&self) -> usize {
        self.copies.len()
    }

    /// Draws a copy's inputs from `seed`, as the case's kind of input says.
    ///
    /// # Errors
    /// An expression of a draw that fails.
    pub fn draw(&self, arena: &mut Arena, copy: usize, seed: u64) -> Result<(), OpError> {
        let (shape, dtype) = (&self.case.shape, self.case.dtype);
        for (tensor, span) in self.op.tensors.iter().zip(&self.copies[copy].tensors) {
            if let (Some(span), Some(how)) = (span, self.op.draw_of(tensor, &self.case)?) {
                draw(&self.op, tensor, shape, dtype, how, seed, arena.bytes_mut(span))?;
            }
        }
        Ok(())
    }

    /// Fills a copy's outputs and scratch with poison from `seed`, and all its red zones with another.
    ///
    /// Poison is random bits with high exponents: about half the elements are NaN, the others close to
    /// the largest value of their type, of either sign; neither is ever a plausible result. Scratch that
    /// is kept at zero by its kernel is zeroed; scratch that is zeroed for each launch is so by [`Self::call`].
    pub fn poison(&mut self, arena: &mut Arena, copy: usize, seed: u64) {
        let stream = Stream::new(seed, "poison");
        let mut number = 0;
        let mut next = |bytes: &mut [u8], stored: Stored| {
            number += 1;
            fill(bytes, stored, stream.bits(number));
        };
        for (stored, span) in self.outputs_of(copy) {
            next(arena.bytes_mut(&span), stored);
        }
        for (buffer, span) in self.scratch.iter().zip(&self.copies[copy].scratch) {
            match buffer.init {
                ScratchInit::Poison | ScratchInit::Zero => {
                    next(arena.bytes_mut(span), buffer.dtype.stored(self.case.dtype))
                }
                ScratchInit::ZeroKept => arena.bytes_mut(span).fill(0),
            }
        }
        let zones = stream.bits(0);
        self.copies[copy].zones = Some(zones);
        for (number, stored, zone, _) in self.zones_of(copy) {
            fill(arena.bytes_mut(&zone), stored, zones ^ number);
        }
    }

    /// Changes one random element of one random input to something far from what it was, as large as
    /// eight times what surrounds it, so that a right answer changes by more than its tolerance.
    ///
    /// What stands in the output is then the answer to another question: a kernel that recognises its
    /// inputs by a sample, and returns what it stored, is caught (JUDGE, row 4).
    pub fn change_one(&self, arena: &mut Arena, copy: usize, seed: u64) -> Option<Change> {
        let stream = Stream::new(seed, "change");
        let inputs: Vec<(&str, Stored, Span)> = self
            .op
            .tensors
            .iter()
            .zip(&self.copies[copy].tensors)
            .filter(|(tensor, _)| tensor.role == Role::Input)
            .filter_map(|(tensor, span)| Some((tensor.name.as_str(), tensor.dtype.stored(self.case.dtype), (*span)?)))
            .collect();
        let &(tensor, stored, span) = inputs.get(stream.below(0, inputs.len() as u64) as usize)?;
        let size = stored.bytes();
        let count = span.bytes / size;
        let element = stream.below(1, count as u64) as usize;
        let bytes = arena.bytes_mut(&span);
        let value = |bytes: &[u8], at: usize| {
            let mut one = [0.0];
            decode_into(&bytes[at * size..(at + 1) * size], stored, &mut one);
            one[0]
        };
        let others: Vec<f64> = (2..66)
            .map(|turn| value(bytes, stream.below(turn, count as u64) as usize))
            .filter(|v| v.is_finite())
            .collect();
        let before = value(bytes, element);
        let wanted = match stored.dtype() {
            // Another element's index is one that is allowed.
            None => others.into_iter().find(|other| *other != before)?,
            Some(dtype) => {
                let largest = others.iter().fold(0.0, |largest: f64, v| largest.max(v.abs()));
                let size = if largest == 0.0 { 1.0 } else { 8.0 * largest };
                size.min(dtype.largest()).copysign(if before.is_sign_negative() { 1.0 } else { -1.0 })
            }
        };
        encode_one(wanted, stored, &mut bytes[element * size..(element + 1) * size]);
        Some(Change { tensor: tensor.to_owned(), element, before, after: value(bytes, element) })
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
    pub fn check_zones(&self, arena: &Arena, copy: usize) -> Result<(), String> {
        let Some(zones) = self.copies[copy].zones else { return Ok(()) };
        let mut wanted = Vec::new();
        for (number, stored, zone, (name, after)) in self.zones_of(copy) {
            wanted.resize(zone.bytes, 0);
            fill(&mut wanted, stored, zones ^ number);
            let found = arena.bytes(&zone);
            let differs = |(a, b): (&u8, &u8)| a != b;
            let mut pairs = found.iter().zip(&wanted);
            // The byte nearest to the buffer says most about the mistake.
            let (distance, side) = if after {
                (pairs.position(differs), "after its end")
            } else {
                (pairs.rev().position(differs), "before its start")
            };
            if let Some(distance) = distance {
                return Err(format!("it wrote outside `{name}`, {} bytes {side}", distance + 1));
            }
        }
        let kept = self.scratch.iter().zip(&self.copies[copy].scratch);
        for (buffer, span) in kept.filter(|(buffer, _)| buffer.init == ScratchInit::ZeroKept) {
            if let Some(at) = arena.bytes(span).iter().position(|byte| *byte != 0) {
                return Err(format!("scratch `{}` is not zero afterwards (byte {at})", buffer.name));
            }
        }
        Ok(())
    }

    /// Each input's bytes in the operation's order, `None` where absent: what the oracle takes.
    #[must_use]
    pub fn inputs<'a>(&self, arena: &'a Arena, copy: usize) -> Vec<Option<&'a [u8]>> {
        let pairs = self.op.tensors.iter().zip(&self.copies[copy].tensors);
        let inputs = pairs.filter(|(tensor, _)| tensor.role == Role::Input);
        inputs.map(|(_, span)| span.as_ref().map(|span| arena.bytes(span))).collect()
    }

    /// Each output's bytes in the operation's order: what [`super::compare`] takes.
    #[must_use]
    pub fn outputs<'a>(&self, arena: &'a Arena, copy: usize) -> Vec<&'a [u8]> {
        self.outputs_of(copy).map(|(_, span)| arena.bytes(&span)).collect()
    }

    /// How many scratch buffers a copy has.
    #[must_use]
    pub const fn scratch_count(&self) -> usize {
        self.scratch.len()
    }

    /// Bytes of all outputs of one copy.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        self.outputs_of(0).map(|(_, span)| span.bytes).sum()
    }

    /// BLAKE3 of a copy's outputs.
    #[must_use]
    pub fn output_digest(&self, arena: &Arena, copy: usize) -> [u8; 32] {
        digest(self.outputs(arena, copy).into_iter())
    }

    /// BLAKE3 of a copy's inputs, to see whether they are unchanged.
    #[must_use]
    pub fn inputs_digest(&self, arena: &Arena, copy: usize) -> [u8; 32] {
        digest(self.inputs(arena, copy).into_iter().flatten())
    }

    fn outputs_of(&self, copy: usize) -> impl Iterator<Item = (Stored, Span)> + '_ {
        let pairs = self.op.tensors.iter().zip(&self.copies[copy].tensors);
        let outputs = pairs.filter(|(tensor, _)| tensor.role == Role::Output);
        outputs.filter_map(|(tensor, span)| Some((tensor.dtype.stored(self.case.dtype), (*span)?)))
    }

    /// Red zones with a number each, what their buffer holds, its name, and whether they stand after it.
    fn zones_of(&self, copy: usize) -> Vec<(u64, Stored, Span, (&str, bool))> {
        let dtype = self.case.dtype;
        let set = &self.copies[copy];
        let tensors = self.op.tensors.iter().zip(&set.tensors);
        let tensors = tensors.filter_map(|(tensor, span)| Some((tensor.name.as_str(), tensor.dtype, (*span)?)));
        let scratch = self.scratch.iter().zip(&set.scratch);
        let scratch = scratch.map(|(buffer, span)| (buffer.name.as_str(), buffer.dtype, *span));
        let zones = tensors.chain(scratch).flat_map(|(name, element, span)| {
            let [before, after] = Arena::red_zones(&span);
            let stored = element.stored(dtype);
            [(stored, before, (name, false)), (stored, after, (name, true))]
        });
        zones.enumerate().map(|(number, (stored, zone, what))| (number as u64, stored, zone, what)).collect()
    }
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

fn digest<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    *hasher.finalize().as_bytes()
}
