//! A few places of an output, looked at before and after a launch: what still holds its poison was not written.

use crate::backend::{Arena, CaseMemory, Span};
use crate::rng::Stream;

/// Places in each output.
const PLACES: u64 = 16;

/// What stood in some places of a copy's outputs.
#[derive(Debug)]
pub(super) struct Spots {
    outputs: Vec<Spot>,
}

/// The same for one output.
#[derive(Debug)]
struct Spot {
    span: Span,
    /// Bytes of an element.
    size: usize,
    indices: Vec<usize>,
    before: Vec<u8>,
}

impl Spots {
    /// What stands now in places of `copy` that `seed` chooses.
    pub(super) fn of<A: Arena>(memory: &CaseMemory, arena: &mut A, copy: usize, seed: u64) -> Self {
        let outputs = memory.outputs_of(copy).zip(0u64..).filter_map(|((stored, span), number)| {
            let size = stored.bytes();
            let elements = (span.bytes / size) as u64;
            let stream = Stream::new(seed.wrapping_add(number), "places");
            let indices =
                (0..PLACES.min(elements)).map(|place| stream.below(place, elements) as usize).collect::<Vec<_>>();
            let before = arena.gather(&span, size, &indices);
            (elements > 0).then_some(Spot { span, size, indices, before })
        });
        Self { outputs: outputs.collect() }
    }

    /// Whether an element still has the bits it had. What stood there is poison, which no result for ordinary inputs equals.
    pub(super) fn untouched<A: Arena>(&self, arena: &mut A) -> bool {
        self.outputs.iter().any(|Spot { span, size, indices, before }| {
            let after = arena.gather(span, *size, indices);
            after.chunks(*size).zip(before.chunks(*size)).any(|(after, before)| after == before)
        })
    }
}
