//! Device memory for cases.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::driver::{Access, Arguments, CudaError};
use super::desk::{Desk, place};
use super::ground::Ground;
use super::words::{STRETCHES, Stretch, Words, draw, exponent};
use crate::backend::{Arena as Arenas, Disturbed, Exchange, Gather, Lent, MemoryError, Placing, Poison, Region, Span};
use crate::defence::Defence;
use crate::op::{Distribution, DrawPlan, RowScale, Stored};
use crate::rng::Stream;

/// Alignment of every buffer, bytes: what `cudaMalloc` gives.
pub const ALIGNMENT: usize = 256;
/// Least bytes of pattern on both sides of every buffer: further than a block's tile usually oversteps a row.
pub const RED_ZONE: usize = 1024;
/// Addresses behind a fenced buffer that lead nowhere, and what such a buffer is rounded up to: what today's devices map.
const FENCE: usize = 2 << 20;
/// Elements of one gathering launch (`PLACES`).
const PLACES: usize = 256;

/// Memory that kernels can reach: inputs, which candidates only read, and outputs with scratch.
#[derive(Debug)]
pub struct Arena {
    desk: Rc<Desk>,
    ground: Rc<Ground>,
    /// Where the digest of an input is kept, by its span.
    recorded: HashMap<Span, usize>,
}

impl Arena {
    /// Memory for `inputs` and `outputs` bytes, red zones included.
    ///
    /// # Errors
    /// The device has not so much left.
    pub fn new(desk: &Rc<Desk>, inputs: usize, outputs: usize, placing: Placing) -> Result<Self, MemoryError> {
        let [inputs, outputs] = [inputs, outputs].map(|bytes| bytes.next_multiple_of(ALIGNMENT));
        let bytes = inputs.saturating_add(outputs);
        let unavailable = |error| MemoryError::Unavailable(format!("{bytes} bytes of the device's memory: {error}"));
        if placing == Placing::Fenced && !FENCE.is_multiple_of(desk.granule()) {
            let granule = desk.granule();
            return Err(MemoryError::Unavailable(format!("this device maps memory by {granule} bytes: no fences")));
        }
        let ground = desk.ground([inputs, outputs], placing).map_err(unavailable)?;
        Ok(Self { desk: Rc::clone(desk), ground, recorded: HashMap::new() })
    }

    /// Where a span begins on the device.
    #[must_use]
    pub fn address(&self, span: &Span) -> u64 {
        assert!(span.offset + span.bytes <= self.ground.bytes(span.region), "the span is of this arena");
        self.ground.begin(span.region) + span.offset as u64
    }

    /// The judge's place on the device.
    #[must_use]
    pub const fn desk(&self) -> &Rc<Desk> {
        &self.desk
    }

    /// Takes everything out of a candidate's reach but what this arena has for it, as before a launch. Whatever the judge does
    /// next gives it back to the judge.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn seal(&self) -> Result<(), CudaError> {
        self.desk.seal(&self.ground)
    }

    /// What it stands on.
    pub(in super::super) const fn ground(&self) -> &Rc<Ground> {
        &self.ground
    }

    /// The address of a span that the judge may now use so.
    pub(super) fn at(&self, span: &Span, access: Access) -> Result<u64, CudaError> {
        self.ground.reach(span.region, access)?;
        Ok(self.address(span))
    }

    pub(super) fn plain(&self, span: &Span, access: Access) -> Result<Stretch, CudaError> {
        Ok(Stretch { at: self.at(span, access)?, bytes: span.bytes as u64, exponent: 0, key: self.desk.key() })
    }

    fn poisoned(&self, stretches: &[Poison], access: Access) -> Result<Vec<Stretch>, CudaError> {
        let poisoned = |poison: &Poison| {
            let plain = self.plain(&poison.span, access)?;
            Ok(Stretch { exponent: exponent(poison.stored), key: poison.key, ..plain })
        };
        stretches.iter().map(poisoned).collect()
    }

    /// The place of an input's digest, which it gets where it has none.
    pub(super) fn new_slot(&mut self, span: &Span) -> usize {
        *self.recorded.entry(*span).or_insert_with(|| self.desk.take_slot())
    }

    /// The place of an input's digest, where there is one.
    pub(super) fn slot(&self, span: &Span) -> Option<usize> {
        self.recorded.get(span).copied().filter(|slot| *slot < place::MOST_RECORDED)
    }

    /// The first stretch for which the kernel found something, with its first byte and one more than its last.
    fn search(&self, kernel: &'static str, stretches: &[Stretch]) -> Result<Option<(usize, u64, u64)>, CudaError> {
        for (number, group) in stretches.chunks(STRETCHES).enumerate() {
            let found = self.desk.paper(place::FOUND)?;
            let half = STRETCHES * 8;
            self.desk.gpu().memset(found, 0xff, half)?;
            self.desk.gpu().memset(found + half as u64, 0, half)?;
            self.desk.on_stretches(kernel, group, &mut |_, _, arguments| Ok(arguments.pointer(found)))?;
            let mut bytes = vec![0; 2 * half];
            self.desk.gpu().copy_out(&mut bytes, found)?;
            let found = words(&bytes);
            if let Some(index) = (0..group.len()).find(|index| found[*index] != u64::MAX) {
                return Ok(Some((number * STRETCHES + index, found[index], found[STRETCHES + index])));
            }
        }
        Ok(None)
    }

    /// Where poison does not stand any more, or rubbish behind all buffers, which then counts to the last zone before it.
    fn find_disturbed(&self, zones: &[Poison]) -> Result<Option<Disturbed>, CudaError> {
        let mut stretches = self.poisoned(zones, Access::Read)?;
        let rests = [Region::Inputs, Region::Outputs];
        let filled = rests.map(|region| self.ground.filled(region));
        for (region, (begin, end)) in rests.into_iter().zip(filled) {
            if end > begin {
                self.ground.reach(region, Access::Read)?;
            }
            stretches.push(self.desk.rest(&self.ground, region));
        }
        let Some((index, first, end)) = self.search("ws_disturbed", &stretches)? else { return Ok(None) };
        let (first, last) = (first as usize, (end as usize).saturating_sub(1));
        let Some(rest) = index.checked_sub(zones.len()) else { return Ok(Some(Disturbed { index, first, last })) };
        let begin = filled[rest].0;
        let inside = zones.iter().enumerate().filter(|(_, zone)| zone.span.region == rests[rest]);
        let nearest = inside.max_by_key(|(_, zone)| zone.span.offset);
        let (index, offset) = nearest.map_or((0, begin), |(index, zone)| (index, zone.span.offset));
        let distance = begin.saturating_sub(offset);
        Ok(Some(Disturbed { index, first: distance + first, last: distance + last }))
    }

    /// Elements of several buffers: one launch and one copy for up to 256 of them.
    fn gathered(&self, wanted: &[(Span, usize, &[usize])]) -> Result<Vec<Vec<u8>>, CudaError> {
        let mut places = Vec::new();
        for (span, size, indices) in wanted {
            let begin = self.at(span, Access::Read)?;
            places.extend(indices.iter().map(|index| (begin + (index * size) as u64, *size)));
        }
        let words = self.desk.words_at(&places)?;
        let mut words = words.iter();
        let of_one = |(_, size, indices): &(Span, usize, &[usize])| {
            let own = words.by_ref().take(indices.len());
            own.flat_map(|word| word.to_ne_bytes().into_iter().take(*size)).collect()
        };
        Ok(wanted.iter().map(of_one).collect())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.desk.give_slots(self.recorded.drain().map(|(_, slot)| slot));
    }
}

impl Desk {
    /// The bytes at these addresses (at most 8 each), each as a word.
    pub(super) fn words_at(&self, places: &[(u64, usize)]) -> Result<Vec<u64>, CudaError> {
        let mut all = Vec::with_capacity(places.len());
        for group in places.chunks(PLACES) {
            let to = self.paper(place::GATHER)?;
            let table = Words::default().many(group.iter().map(|(at, bytes)| at | (*bytes as u64) << 56));
            let arguments = Arguments::new().int(group.len() as i32).bytes(&table.padded(PLACES * 8)).pointer(to);
            self.launch("ws_gather", 1, &arguments)?;
            let mut bytes = vec![0; 8 * group.len()];
            self.gpu().copy_out(&mut bytes, to)?;
            all.extend(words(&bytes));
        }
        Ok(all)
    }
}

/// Bytes of device memory that a fenced buffer takes, red zone before it included.
const fn fenced(bytes: usize) -> usize {
    // Some of it must stand before the buffer.
    (bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT).next_multiple_of(FENCE)
}

// Where the driver fails, the device is lost in all but name: what a method then answers is the suspicious answer, and
// `Desk::failure` says why.
impl Arenas for Arena {
    fn footprint(bytes: usize, placing: Placing) -> usize {
        match placing {
            Placing::Packed => bytes.next_multiple_of(ALIGNMENT) + 2 * RED_ZONE,
            Placing::Fenced => fenced(bytes) + FENCE,
        }
    }

    fn red_zones(&self, span: &Span) -> [Span; 2] {
        let Span { region, offset, bytes } = *span;
        let (end, aligned) = (offset + bytes, bytes.next_multiple_of(ALIGNMENT));
        let (before, after) = match self.ground.placing() {
            Placing::Packed => (RED_ZONE, aligned + RED_ZONE - bytes),
            // A fenced buffer ends where its memory does.
            Placing::Fenced => (fenced(bytes) - aligned, aligned - bytes),
        };
        [Span { region, offset: offset - before, bytes: before }, Span { region, offset: end, bytes: after }]
    }

    fn place(&mut self, region: Region, bytes: usize) -> Result<Span, MemoryError> {
        let (used, room) = (self.ground.used(region), self.ground.bytes(region));
        let full = || {
            MemoryError::Unavailable(format!(
                "{bytes} more bytes do not fit: {region:?} has {room} bytes, {used} of them used"
            ))
        };
        let placing = self.ground.placing();
        if bytes > room || used.saturating_add(Self::footprint(bytes, placing)) > room {
            return Err(full());
        }
        let offset = match placing {
            Placing::Packed => used + RED_ZONE,
            Placing::Fenced => {
                let refused = |error| MemoryError::Unavailable(format!("{bytes} bytes with a fence: {error}"));
                self.ground.map(region, used, fenced(bytes)).map_err(refused)?;
                used + fenced(bytes) - bytes.next_multiple_of(ALIGNMENT)
            }
        };
        self.ground.set_used(region, used + Self::footprint(bytes, placing));
        Ok(Span { region, offset, bytes })
    }

    fn reset(&mut self) {
        self.ground.reset();
        self.desk.give_slots(self.recorded.drain().map(|(_, slot)| slot));
    }

    fn draw(&mut self, span: &Span, plan: &DrawPlan) {
        let Some(at) = self.desk.keep(self.at(span, Access::Write)) else { return };
        if !plan.stands() {
            let Some(words) = draw(plan, at) else {
                let mut values = if plan.dist == Distribution::File { self.read(span) } else { vec![0; span.bytes] };
                plan.fill(&mut values);
                return self.fill(span, &mut |bytes| bytes.copy_from_slice(&values));
            };
            let blocks = self.desk.blocks(plan.elements as u64);
            self.desk.keep(self.desk.launch("ws_draw", blocks, &Arguments::new().bytes(&words)));
        }
        let recorded = self.record(span);
        self.desk.keep(recorded);
    }

    fn poison(&mut self, stretches: &[Poison]) {
        let write = |stretches: Vec<Stretch>| {
            self.desk.on_stretches("ws_poison", &stretches, &mut |_, _, arguments| Ok(arguments))
        };
        self.desk.keep(self.poisoned(stretches, Access::Write).and_then(write));
    }

    fn disturbed(&mut self, stretches: &[Poison]) -> Option<Disturbed> {
        let nothing = Some(Disturbed { index: 0, first: 0, last: 0 });
        self.desk.keep(self.find_disturbed(stretches)).unwrap_or(nothing)
    }

    fn zero(&mut self, span: &Span) {
        let zero =
            |stretch: Stretch| self.desk.on_stretches("ws_zero", &[stretch], &mut |_, _, arguments| Ok(arguments));
        self.desk.keep(self.plain(span, Access::Write).and_then(zero));
        let recorded = self.record(span);
        self.desk.keep(recorded);
    }

    fn not_zero(&mut self, span: &Span) -> Option<usize> {
        let search = |stretch: Stretch| self.search("ws_not_zero", &[stretch]);
        match self.desk.keep(self.plain(span, Access::Read).and_then(search)) {
            Some(found) => found.map(|(_, first, _)| first as usize),
            None => Some(0),
        }
    }

    fn fill(&mut self, span: &Span, write: &mut dyn FnMut(&mut [u8])) {
        let mut bytes = vec![0; span.bytes];
        write(&mut bytes);
        self.desk.keep(self.at(span, Access::Write).and_then(|to| self.desk.gpu().copy_in(to, &bytes)));
        let recorded = self.record(span);
        self.desk.keep(recorded);
    }

    fn read(&mut self, span: &Span) -> Vec<u8> {
        let mut bytes = vec![0; span.bytes];
        self.desk.keep(self.at(span, Access::Read).and_then(|from| self.desk.gpu().copy_out(&mut bytes, from)));
        bytes
    }

    fn gather(&mut self, span: &Span, size: usize, indices: &[usize]) -> Vec<u8> {
        let gathered = self.desk.keep(self.gathered(&[(*span, size, indices)]));
        gathered.map_or_else(|| vec![0; indices.len() * size], |all| all.concat())
    }

    fn gather_all(&mut self, wanted: &[Gather]) -> Vec<Vec<u8>> {
        let one = |it: &Gather| vec![0; it.indices.len() * it.size];
        let all: Vec<_> = wanted.iter().map(|it| (it.span, it.size, &it.indices[..])).collect();
        self.desk.keep(self.gathered(&all)).unwrap_or_else(|| wanted.iter().map(one).collect())
    }

    fn poke(&mut self, span: &Span, at: usize, bytes: &[u8]) {
        self.desk.keep(self.overwrite(span, at, bytes));
    }

    fn exchange(&mut self, changes: &[Exchange]) {
        self.desk.keep(self.exchanged(changes));
    }

    fn lend(&mut self, region: Region) -> Result<Option<Lent>, MemoryError> {
        // A kernel that has ended has no reach, and nothing else may be under way while another process reads.
        let pieces = self.desk.gpu().settle().and_then(|()| self.ground.lend(region));
        let refused = |error: CudaError| MemoryError::Unavailable(format!("lending memory: {error}"));
        Ok(Some(Lent { device: true, pieces: pieces.map_err(refused)? }))
    }

    fn changed_input(&mut self, inputs: &[Span]) -> Option<usize> {
        if !Defence::ReadOnlyInputs.stands() {
            return None;
        }
        match self.desk.keep(self.changed(inputs)) {
            Some(changed) => changed,
            None => Some(0),
        }
    }
}

impl Desk {
    /// Fills memory with halves drawn from the normal distribution.
    pub(super) fn halves(&self, at: u64, elements: usize) -> Result<(), CudaError> {
        let stream = Stream::new(1, "halves");
        let plan = DrawPlan {
            elements,
            stored: Stored::F16,
            columns: elements.max(1),
            dist: Distribution::Normal,
            scale: 1.0,
            shift: 0.0,
            row_scale: RowScale::None,
            specials: Vec::new(),
            first: Vec::new(),
            values: stream,
            rows: stream,
            places: stream,
        };
        let Some(bytes) = draw(&plan, at) else { return Ok(()) };
        self.launch("ws_draw", self.blocks(elements as u64), &Arguments::new().bytes(&bytes))
    }
}

/// Bytes as 64-bit words.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        .map(|chunk| {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        })
        .collect()
}
