//! What kernels take by value, as bytes: the structures of `device/*.cu`, member by member.

use crate::op::{Distribution, DrawPlan, RowScale, Stored};

/// Members of a structure in the machine's byte order; all are of 8 bytes, or pairs of 4.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<u8>);

impl Words {
    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn f64(self, value: f64) -> Self {
        self.u64(value.to_bits())
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn many(self, values: impl IntoIterator<Item = u64>) -> Self {
        values.into_iter().fold(self, Self::u64)
    }

    /// Zeros up to `bytes` bytes.
    pub(super) fn padded(mut self, bytes: usize) -> Vec<u8> {
        assert!(self.0.len() <= bytes, "the structure holds what it is given");
        self.0.resize(bytes, 0);
        self.0
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Bytes of a chunk of a stretch (`CHUNK`).
const CHUNK: u64 = 65_536;
/// Stretches of one launch (`STRETCHES`).
pub(super) const STRETCHES: usize = 64;

/// Bytes that one launch overwrites (`POKED`).
pub(super) const POKED: usize = 256;
/// Elements that one launch copies over others (`EXCHANGES`).
pub(super) const EXCHANGES: usize = 96;

/// A stretch of memory to work on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stretch {
    /// Address.
    pub at: u64,
    /// Length.
    pub bytes: u64,
    /// What its elements are, where it holds poison.
    pub exponent: u64,
    /// What poison or digest is drawn from.
    pub key: u64,
}

/// `struct Stretches` and the blocks to launch; at most [`STRETCHES`], none of them empty.
pub(super) fn stretches(all: &[Stretch]) -> (Vec<u8>, u32) {
    let mut words = Words::default().u64(all.len() as u64);
    let mut chunks = 0;
    for one in all {
        words = words.many([one.at, one.bytes, one.exponent, one.key, chunks]);
        chunks += one.bytes.div_ceil(CHUNK);
    }
    // 2^31 chunks are 128 TiB.
    (words.padded(8 + STRETCHES * 40), u32::try_from(chunks).unwrap_or(u32::MAX))
}

/// The bits that are always set in a word of poison: all of the exponent but the lowest. With that one an element is NaN or
/// infinite, without it within a factor of four of the largest.
pub(super) const fn exponent(stored: Stored) -> u64 {
    match stored {
        Stored::F16 => 0x7800_7800_7800_7800,
        Stored::Bf16 => 0x7f00_7f00_7f00_7f00,
        Stored::F32 => 0x7f00_0000_7f00_0000,
        Stored::I64 => 0x4000_0000_0000_0000,
        Stored::I32 => 0x4000_0000_4000_0000,
        Stored::U8 | Stored::I8 => 0xf0f0_f0f0_f0f0_f0f0,
    }
}

/// The number of an element type in the kernels.
pub(super) const fn number(stored: Stored) -> u32 {
    match stored {
        Stored::F16 => 0,
        Stored::Bf16 => 1,
        Stored::F32 => 2,
        Stored::I64 => 3,
        // Only PyTorch reads these.
        Stored::I32 => 4,
        Stored::U8 => 5,
        Stored::I8 => 6,
    }
}

/// Specials of one draw (`SPECIALS`).
const SPECIALS: usize = 16;

/// `struct Draw`; `None` where it has more specials than the kernel takes.
pub(super) fn draw(plan: &DrawPlan, out: u64) -> Option<Vec<u8>> {
    if plan.specials.len() > SPECIALS {
        return None;
    }
    let dist = match plan.dist {
        Distribution::Normal => 0,
        Distribution::Uniform => 1,
        Distribution::Constant => 2,
        Distribution::Alternating => 3,
        Distribution::Index => 4,
        // A few numbers, which the processor draws.
        Distribution::Ends => return None,
        Distribution::Steps => 5,
        Distribution::File => 6,
        Distribution::Rectified => 7,
        Distribution::Runs => 8,
    };
    let rows = match plan.row_scale {
        RowScale::None => 0,
        RowScale::Mild => 1,
        RowScale::Wide => 2,
        RowScale::Repeated => 3,
    };
    let mut words = Words::default()
        .many([out, plan.elements as u64, plan.columns as u64])
        .f64(plan.scale)
        .f64(plan.shift)
        .many([plan.scale as u64, plan.shift as i64 as u64])
        .many([plan.values.key(), plan.rows.key(), plan.places.key()])
        .u32(dist)
        .u32(rows)
        .u32(number(plan.stored))
        .u32(plan.specials.len() as u32);
    for (special, first) in plan.specials.iter().zip(&plan.first) {
        words = words.f64(special.value).u64(special.value as i64 as u64).many([
            special.count.unwrap_or(u64::MAX),
            special.every,
            u64::from(special.run),
            *first,
        ]);
    }
    Some(words.padded(10 * 8 + 4 * 4 + SPECIALS * 48))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_know_their_first_chunk() {
        let one = |bytes| Stretch { at: 256, bytes, exponent: 7, key: 9 };
        let (bytes, chunks) = stretches(&[one(1), one(CHUNK), one(CHUNK + 1)]);
        assert_eq!((bytes.len(), chunks), (8 + 64 * 40, 4));
        let word = |index: usize| u64::from_ne_bytes(bytes[index * 8..][..8].try_into().unwrap_or_default());
        assert_eq!([word(0), word(5), word(10), word(15)], [3, 0, 1, 2]);
    }
}
