//! What inputs were when the judge last wrote to them: digests, kept right through the judge's own small changes.

use super::super::driver::{Access, Arguments, CudaError};
use super::arena::{Arena, words};
use super::desk::place;
use super::words::{EXCHANGES, POKED, STRETCHES, Stretch, Words};
use crate::backend::{Exchange, Region, Span};

/// Bytes of recorded digests that are read at once at most; beyond it one by one.
const TOGETHER: usize = 64 << 10;

impl Arena {
    /// What identifies every bit of each span; the same for the same bytes at other places.
    ///
    /// # Errors
    /// What the driver refused, or that the device is lost.
    pub fn digests(&self, spans: &[Span]) -> Result<Vec<[u64; 2]>, CudaError> {
        let mut all = Vec::with_capacity(spans.len());
        for group in spans.chunks(STRETCHES) {
            let sums = self.desk().paper(place::SUMS)?;
            self.desk().gpu().memset(sums, 0, group.len() * 16)?;
            self.add_digests(group, sums)?;
            let mut bytes = vec![0; group.len() * 16];
            self.desk().gpu().copy_out(&mut bytes, sums)?;
            all.extend(words(&bytes).chunks_exact(2).map(|pair| [pair[0], pair[1]]));
        }
        Ok(all)
    }

    fn add_digests(&self, spans: &[Span], sums: u64) -> Result<(), CudaError> {
        let stretches: Vec<Stretch> =
            spans.iter().map(|span| self.plain(span, Access::Read)).collect::<Result<_, _>>()?;
        self.desk().on_stretches("ws_digest", &stretches, &mut |_, first, arguments| {
            Ok(arguments.pointer(sums + 16 * first as u64))
        })
    }

    /// Keeps the digest of an input that the judge has just written in full.
    pub(super) fn record(&mut self, span: &Span) -> Result<(), CudaError> {
        if span.region != Region::Inputs {
            return Ok(());
        }
        let slot = self.new_slot(span);
        if slot >= place::MOST_RECORDED {
            return Ok(());
        }
        let sums = self.desk().paper(place::RECORDED + 16 * slot as u64)?;
        self.desk().gpu().memset(sums, 0, 16)?;
        self.add_digests(&[*span], sums)
    }

    /// The first of these inputs that is not what the judge left.
    pub(super) fn changed(&self, inputs: &[Span]) -> Result<Option<usize>, CudaError> {
        let known: Vec<(usize, usize)> =
            inputs.iter().enumerate().filter_map(|(index, span)| Some((index, self.slot(span)?))).collect();
        let spans: Vec<Span> = known.iter().map(|(index, _)| inputs[*index]).collect();
        let now = self.digests(&spans)?;
        let slots: Vec<usize> = known.iter().map(|(_, slot)| *slot).collect();
        let recorded = self.recorded(&slots)?;
        let pairs = known.iter().zip(now.iter().zip(&recorded));
        Ok(pairs.into_iter().find(|(_, (now, recorded))| now != recorded).map(|((index, _), _)| *index))
    }

    /// What was recorded in these slots.
    fn recorded(&self, slots: &[usize]) -> Result<Vec<[u64; 2]>, CudaError> {
        let (Some(&least), Some(&most)) = (slots.iter().min(), slots.iter().max()) else { return Ok(Vec::new()) };
        let read = |first: usize, count: usize| -> Result<Vec<[u64; 2]>, CudaError> {
            let mut bytes = vec![0; 16 * count];
            let at = self.desk().paper(place::RECORDED + 16 * first as u64)?;
            self.desk().gpu().copy_out(&mut bytes, at)?;
            Ok(words(&bytes).chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
        };
        // A copy's inputs were recorded one after the other.
        if 16 * (most - least + 1) <= TOGETHER {
            let all = read(least, most - least + 1)?;
            return Ok(slots.iter().map(|slot| all[slot - least]).collect());
        }
        slots.iter().map(|slot| Ok(read(*slot, 1)?[0])).collect()
    }

    /// Overwrites bytes of a buffer. The digest of an input becomes what it would be had they always been there, so that what
    /// somebody else changed in it remains a difference.
    pub(super) fn overwrite(&self, span: &Span, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let to = self.at(span, Access::Write)?;
        let Some(sums) = self.sums(span)? else { return self.desk().gpu().copy_in(to + at as u64, bytes) };
        for (number, part) in bytes.chunks(POKED).enumerate() {
            let arguments = Arguments::new()
                .pointer(to)
                .long(span.bytes as i64)
                .long((at + number * POKED) as i64)
                .int(part.len() as i32)
                .bytes(&padded(part))
                .pointer(sums)
                .long(self.desk().key() as i64);
            self.desk().launch_as("ws_poke", &super::desk::WARP, &arguments)?;
        }
        Ok(())
    }

    /// Copies elements over others, keeping digests right in the same way.
    pub(super) fn exchanged(&self, changes: &[Exchange]) -> Result<(), CudaError> {
        let recorded = self.desk().paper(place::RECORDED)?;
        for group in changes.chunks(EXCHANGES) {
            let mut table = Words::default().u64(group.len() as u64);
            for Exchange { span, size, from, to } in group {
                let slot = self.slot(span).and_then(|slot| u32::try_from(slot).ok()).unwrap_or(u32::MAX);
                let bytes = [span.bytes, from * size, to * size].map(|bytes| bytes as u64);
                table = table.u64(self.at(span, Access::Write)?).many(bytes).u32(*size as u32).u32(slot);
            }
            let arguments = Arguments::new()
                .bytes(&table.padded(8 + EXCHANGES * 40))
                .pointer(recorded)
                .long(self.desk().key() as i64);
            self.desk().launch_as("ws_exchange", &super::desk::ONE_BLOCK, &arguments)?;
        }
        Ok(())
    }

    /// Where the digest of an input is kept.
    fn sums(&self, span: &Span) -> Result<Option<u64>, CudaError> {
        self.slot(span).map(|slot| self.desk().paper(place::RECORDED + 16 * slot as u64)).transpose()
    }
}

fn padded(part: &[u8]) -> Vec<u8> {
    let mut bytes = part.to_vec();
    bytes.resize(POKED, 0);
    bytes
}
