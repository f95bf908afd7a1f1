//! Device memory for cases.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::driver::{Arguments, CudaError, DeviceMemory};
use super::desk::{Desk, place};
use super::words::{STRETCHES, Stretch, draw, exponent};
use crate::backend::{Arena as Arenas, Disturbed, MemoryError, Placing, Poison, Region, Span};
use crate::op::{Distribution, DrawPlan, RowScale, Stored};
use crate::rng::Stream;

/// Alignment of every buffer, bytes: what `cudaMalloc` gives.
pub const ALIGNMENT: usize = 256;
/// Least bytes of pattern on both sides of every buffer: further than a block's tile usually oversteps a row.
pub const RED_ZONE: usize = 1024;
/// Indices of one gathering launch (`PLACES`).
const PLACES: usize = 256;

/// Memory that kernels can reach: one piece, inputs first.
#[derive(Debug)]
pub struct Arena {
    desk: Rc<Desk>,
    /// Given back to the desk when the arena goes.
    memory: Option<DeviceMemory>,
    inputs: Area,
    outputs: Area,
    /// Where the digest of an input is kept, by its span.
    recorded: HashMap<Span, usize>,
    /// Digests kept by all arenas lie in one table; this is the next free place in this arena's part.
    next: usize,
}

#[derive(Debug, Clone, Copy)]
struct Area {
    begin: u64,
    bytes: usize,
    used: usize,
}

impl Arena {
    /// Memory for `inputs` and `outputs` bytes, red zones included.
    ///
    /// # Errors
    /// The device has not so much left.
    pub fn new(desk: &Rc<Desk>, inputs: usize, outputs: usize) -> Result<Self, MemoryError> {
        let [inputs, outputs] = [inputs, outputs].map(|bytes| bytes.next_multiple_of(ALIGNMENT));
        let bytes = inputs.saturating_add(outputs);
        let memory = desk
            .lend(bytes)
            .map_err(|error| MemoryError::Unavailable(format!("{bytes} bytes of the device's memory: {error}")))?;
        let begin = memory.ptr();
        Ok(Self {
            desk: Rc::clone(desk),
            memory: Some(memory),
            inputs: Area { begin, bytes: inputs, used: 0 },
            outputs: Area { begin: begin + inputs as u64, bytes: outputs, used: 0 },
            recorded: HashMap::new(),
            next: 0,
        })
    }

    /// Where a span begins on the device.
    #[must_use]
    pub fn address(&self, span: &Span) -> u64 {
        let area = self.area(span.region);
        debug_assert!(span.offset + span.bytes <= area.bytes, "the span is of this arena");
        area.begin + span.offset as u64
    }

    /// The judge's place on the device.
    #[must_use]
    pub const fn desk(&self) -> &Rc<Desk> {
        &self.desk
    }

    /// What identifies every bit of each span; the same for the same bytes at other places.
    ///
    /// # Errors
    /// What the driver refused, or that the device is lost.
    pub fn digests(&self, spans: &[Span]) -> Result<Vec<[u64; 2]>, CudaError> {
        let mut all = Vec::with_capacity(spans.len());
        for group in spans.chunks(STRETCHES) {
            let sums = self.desk.paper(place::SUMS)?;
            self.desk.gpu().memset(sums, 0, group.len() * 16)?;
            self.add_digests(group, sums)?;
            let mut bytes = vec![0; group.len() * 16];
            self.desk.gpu().copy_out(&mut bytes, sums)?;
            all.extend(words(&bytes).chunks_exact(2).map(|pair| [pair[0], pair[1]]));
        }
        Ok(all)
    }

    fn area(&self, region: Region) -> &Area {
        match region {
            Region::Inputs => &self.inputs,
            Region::Outputs => &self.outputs,
        }
    }

    fn plain(&self, span: &Span) -> Stretch {
        Stretch { at: self.address(span), bytes: span.bytes as u64, exponent: 0, key: self.desk.key() }
    }

    fn poisoned(&self, poison: &Poison) -> Stretch {
        Stretch { exponent: exponent(poison.stored), key: poison.key, ..self.plain(&poison.span) }
    }

    fn add_digests(&self, spans: &[Span], sums: u64) -> Result<(), CudaError> {
        let stretches: Vec<Stretch> = spans.iter().map(|span| self.plain(span)).collect();
        self.desk.on_stretches("ws_digest", &stretches, &mut |_, first, arguments| {
            Ok(arguments.pointer(sums + 16 * first as u64))
        })
    }

    /// Keeps the digest of an input as it now is.
    fn record(&mut self, span: &Span) {
        if span.region != Region::Inputs {
            return;
        }
        let next = self.next;
        let slot = *self.recorded.entry(*span).or_insert(next);
        if slot == next {
            self.next += 1;
        }
        if slot >= place::MOST_RECORDED {
            return;
        }
        let kept = || {
            let sums = self.desk.paper(place::RECORDED + 16 * slot as u64)?;
            self.desk.gpu().memset(sums, 0, 16)?;
            self.add_digests(&[*span], sums)
        };
        self.desk.keep(kept());
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

    fn gathered(&self, span: &Span, size: usize, indices: &[usize]) -> Result<Vec<u8>, CudaError> {
        let mut all = vec![0; indices.len() * size];
        for (places, bytes) in indices.chunks(PLACES).zip(all.chunks_mut(PLACES * size)) {
            let to = self.desk.paper(place::GATHER)?;
            let mut table = super::words::Words::default();
            table = table.many(places.iter().map(|place| *place as u64));
            let arguments = Arguments::new()
                .pointer(self.address(span))
                .int(size as i32)
                .int(places.len() as i32)
                .bytes(&table.padded(PLACES * 8))
                .pointer(to);
            self.desk.launch("ws_gather", 1, &arguments)?;
            self.desk.gpu().copy_out(bytes, to)?;
        }
        Ok(all)
    }

    fn changed(&self, inputs: &[Span]) -> Result<Option<usize>, CudaError> {
        let known: Vec<(usize, usize)> = inputs
            .iter()
            .enumerate()
            .filter_map(|(index, span)| Some((index, *self.recorded.get(span)?)))
            .filter(|(_, slot)| *slot < place::MOST_RECORDED)
            .collect();
        let spans: Vec<Span> = known.iter().map(|(index, _)| inputs[*index]).collect();
        let now = self.digests(&spans)?;
        for ((index, slot), now) in known.into_iter().zip(now) {
            let mut bytes = [0; 16];
            let at = self.desk.paper(place::RECORDED + 16 * slot as u64)?;
            self.desk.gpu().copy_out(&mut bytes, at)?;
            if words(&bytes) != now {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.desk.give_back(memory);
        }
    }
}

// Where the driver fails, the device is lost in all but name: what a method then answers is the suspicious answer, and
// `Desk::failure` says why.
impl Arenas for Arena {
    fn footprint(bytes: usize, _: Placing) -> usize {
        bytes.next_multiple_of(ALIGNMENT) + 2 * RED_ZONE
    }

    fn red_zones(&self, span: &Span) -> [Span; 2] {
        let end = span.offset + span.bytes;
        let rest = span.offset + span.bytes.next_multiple_of(ALIGNMENT) + RED_ZONE - end;
        [
            Span { region: span.region, offset: span.offset - RED_ZONE, bytes: RED_ZONE },
            Span { region: span.region, offset: end, bytes: rest },
        ]
    }

    fn place(&mut self, region: Region, bytes: usize) -> Result<Span, MemoryError> {
        let area = match region {
            Region::Inputs => &mut self.inputs,
            Region::Outputs => &mut self.outputs,
        };
        let wanted = bytes.checked_next_multiple_of(ALIGNMENT).and_then(|b| b.checked_add(2 * RED_ZONE));
        match wanted.and_then(|wanted| area.used.checked_add(wanted)) {
            Some(end) if end <= area.bytes => {
                let offset = area.used + RED_ZONE;
                area.used = end;
                Ok(Span { region, offset, bytes })
            }
            _ => Err(MemoryError::Unavailable(format!(
                "{bytes} more bytes do not fit: {region:?} has {} bytes, {} of them used",
                area.bytes, area.used
            ))),
        }
    }

    fn reset(&mut self) {
        self.inputs.used = 0;
        self.outputs.used = 0;
        self.recorded.clear();
        self.next = 0;
    }

    fn draw(&mut self, span: &Span, plan: &DrawPlan) {
        let Some(bytes) = draw(plan, self.address(span)) else {
            return self.fill(span, &mut |bytes| plan.fill(bytes));
        };
        let blocks = self.desk.blocks(plan.elements as u64);
        self.desk.keep(self.desk.launch("ws_draw", blocks, &Arguments::new().bytes(&bytes)));
        self.record(span);
    }

    fn poison(&mut self, stretches: &[Poison]) {
        let stretches: Vec<Stretch> = stretches.iter().map(|poison| self.poisoned(poison)).collect();
        self.desk.keep(self.desk.on_stretches("ws_poison", &stretches, &mut |_, _, arguments| Ok(arguments)));
    }

    fn disturbed(&mut self, stretches: &[Poison]) -> Option<Disturbed> {
        let stretches: Vec<Stretch> = stretches.iter().map(|poison| self.poisoned(poison)).collect();
        match self.desk.keep(self.search("ws_disturbed", &stretches)) {
            Some(found) => found.map(|(index, first, end)| Disturbed {
                index,
                first: first as usize,
                last: (end as usize).saturating_sub(1),
            }),
            None => Some(Disturbed { index: 0, first: 0, last: 0 }),
        }
    }

    fn zero(&mut self, span: &Span) {
        let stretch = self.plain(span);
        self.desk.keep(self.desk.on_stretches("ws_zero", &[stretch], &mut |_, _, arguments| Ok(arguments)));
        self.record(span);
    }

    fn not_zero(&mut self, span: &Span) -> Option<usize> {
        let stretch = self.plain(span);
        match self.desk.keep(self.search("ws_not_zero", &[stretch])) {
            Some(found) => found.map(|(_, first, _)| first as usize),
            None => Some(0),
        }
    }

    fn fill(&mut self, span: &Span, write: &mut dyn FnMut(&mut [u8])) {
        let mut bytes = vec![0; span.bytes];
        write(&mut bytes);
        self.desk.keep(self.desk.gpu().copy_in(self.address(span), &bytes));
        self.record(span);
    }

    fn read(&mut self, span: &Span) -> Vec<u8> {
        let mut bytes = vec![0; span.bytes];
        self.desk.keep(self.desk.gpu().copy_out(&mut bytes, self.address(span)));
        bytes
    }

    fn gather(&mut self, span: &Span, size: usize, indices: &[usize]) -> Vec<u8> {
        self.desk.keep(self.gathered(span, size, indices)).unwrap_or_else(|| vec![0; indices.len() * size])
    }

    fn poke(&mut self, span: &Span, at: usize, bytes: &[u8]) {
        self.desk.keep(self.desk.gpu().copy_in(self.address(span) + at as u64, bytes));
        self.record(span);
    }

    fn changed_input(&mut self, inputs: &[Span]) -> Option<usize> {
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
