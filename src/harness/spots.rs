//! A few places of an output, looked at before and after a launch: what still holds its poison was not written.

use crate::backend::{Arena, CaseMemory, Gather};
use crate::op::Operation;
use crate::rng::Stream;

use super::timing::SAMPLE_LEEWAY;

/// Elements that cost more than is affordable every time are looked at in one sample of 2^6 at the least.
pub(super) const RAREST: u32 = 6;

/// What a look may cost in a sample of which there is one in 2^`rarely`, where any may cost `limit`, and how many times its bound an error
/// may be then. An oracle that knows whole outputs only is asked however dear that is in the rarest, and has all that its bounds need.
pub(super) fn looking(op: &Operation, limit: u64, rarely: u32) -> (u64, f64) {
    match op.knows_only_wholes() {
        true if rarely == RAREST => (u64::MAX, 1.0),
        true => (limit << rarely, 1.0),
        false => (limit << rarely, SAMPLE_LEEWAY),
    }
}

/// Places in each output.
const PLACES: u64 = 16;

/// Some places of a copy's outputs, and what stood there.
#[derive(Debug)]
pub(super) struct Spots {
    places: Vec<Gather>,
    before: Vec<Vec<u8>>,
}

impl Spots {
    /// What stands now in places of these copies, each with the seed that chooses them.
    pub(super) fn of<A: Arena>(memory: &CaseMemory, arena: &mut A, copies: &[(usize, u64)]) -> Vec<Self> {
        let places: Vec<Vec<Gather>> = copies.iter().map(|(copy, seed)| places(memory, *copy, *seed)).collect();
        let mut found = arena.gather_all(&places.concat()).into_iter();
        let with_before = |places: Vec<Gather>| {
            let before = found.by_ref().take(places.len()).collect();
            Self { places, before }
        };
        places.into_iter().map(with_before).collect()
    }

    /// Whether an element of any of these still has the bits it had. What stood there is poison, which no result for ordinary
    /// inputs equals.
    pub(super) fn untouched<A: Arena>(all: &[&Self], arena: &mut A) -> bool {
        Self::any(all, arena, |now, before| now == before)
    }

    /// Whether an element of any of these has other bits than it had.
    pub(super) fn written<A: Arena>(all: &[&Self], arena: &mut A) -> bool {
        Self::any(all, arena, |now, before| now != before)
    }

    /// Whether this holds for any element, as it is now and as it was.
    fn any<A: Arena>(all: &[&Self], arena: &mut A, holds: fn(&[u8], &[u8]) -> bool) -> bool {
        let places: Vec<Gather> = all.iter().flat_map(|spots| &spots.places).cloned().collect();
        let now = arena.gather_all(&places);
        let before = all.iter().flat_map(|spots| &spots.before);
        now.iter().zip(before).zip(&places).any(|((now, before), place)| {
            now.chunks(place.size).zip(before.chunks(place.size)).any(|(now, before)| holds(now, before))
        })
    }
}

fn places(memory: &CaseMemory, copy: usize, seed: u64) -> Vec<Gather> {
    let outputs = memory.outputs_of(copy).zip(0u64..).filter_map(|((stored, span), number)| {
        let size = stored.bytes();
        let elements = (span.bytes / size) as u64;
        let stream = Stream::new(seed.wrapping_add(number), "places");
        let indices = (0..PLACES.min(elements)).map(|place| stream.below(place, elements) as usize).collect();
        (elements > 0).then_some(Gather { span, size, indices })
    });
    outputs.collect()
}
