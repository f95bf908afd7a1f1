//! Where a model's tensors lie: weights where kernels cannot write, caches where they can, activations in shared slots.

use super::ForwardError;
use super::units::Unit;
use crate::backend::{Arena, Device, Placing, Region, Span};
use crate::kernel::ScratchInit;
use crate::model::{Graph, TensorKind};

/// One arena with everything in it.
pub(super) struct Memory<A> {
    pub arena: A,
    /// For each tensor of the graph.
    pub tensors: Vec<Span>,
    /// For each set of kernels and unit, its scratch buffers.
    pub scratch: Vec<Vec<Vec<Span>>>,
    /// What holds nothing between passes: activations, and scratch that may hold anything.
    pub transient: Vec<Span>,
}

/// Places the graph's tensors once and the scratch of each set of units.
pub(super) fn place<B: Device>(
    backend: &B,
    graph: &Graph,
    sets: &[&[Unit<'_, B>]],
) -> Result<Memory<B::Arena>, ForwardError> {
    let dtype = graph.pass.dtype;
    let slots = graph.slots();
    let constants = || graph.tensors.iter().filter(|t| !t.kind.is_written()).map(|t| t.bytes(dtype) as usize);
    let caches = graph.tensors.iter().filter(|t| t.kind == TensorKind::Cache).map(|t| t.bytes(dtype) as usize);
    let scratch = || sets.iter().flat_map(|units| units.iter()).flat_map(|unit| unit.scratch()).map(|(_, bytes)| bytes);
    let footprint = |bytes| B::Arena::footprint(bytes, Placing::Packed);
    let inputs = constants().map(footprint).sum();
    let outputs: usize =
        slots.bytes.iter().map(|bytes| *bytes as usize).chain(caches).chain(scratch()).map(footprint).sum();
    let mut arena = backend.arena(inputs, outputs, Placing::Packed)?;
    let mut transient = Vec::new();
    for bytes in &slots.bytes {
        transient.push(arena.place(Region::Outputs, *bytes as usize)?);
    }
    let mut tensors = Vec::with_capacity(graph.tensors.len());
    for (tensor, slot) in graph.tensors.iter().zip(&slots.of) {
        tensors.push(match slot {
            Some(slot) => transient[*slot],
            None => {
                let region = if tensor.kind.is_written() { Region::Outputs } else { Region::Inputs };
                arena.place(region, tensor.bytes(dtype) as usize)?
            }
        });
    }
    let mut all = Vec::new();
    for units in sets {
        let mut of_set = Vec::new();
        for unit in *units {
            let mut spans = Vec::new();
            for (init, bytes) in unit.scratch() {
                let span = arena.place(Region::Outputs, bytes)?;
                if init == ScratchInit::Poison {
                    transient.push(span);
                }
                spans.push(span);
            }
            of_set.push(spans);
        }
        all.push(of_set);
    }
    Ok(Memory { arena, tensors, scratch: all, transient })
}
