//! Bytes that cannot be mistaken for a result.

use super::share::share_slice;
use crate::op::Stored;
use crate::rng::Stream;

/// Bytes of poison a thread writes at a time, in pieces.
const BLOCK: usize = 8 * PIECE;

/// Bytes that are copied from the pattern at once; it is twice as long, so that pieces differ.
const PIECE: usize = 1 << 12;

/// Bytes of a random word, and of the largest element.
const WORD: usize = 8;

/// Fills `bytes` (whole elements) with poison that `key` determines.
///
/// Each piece is a copy of a pattern of random words from a random place on, which runs at the speed of memory; the
/// high bits of the exponent are set. The lowest bit of the exponent stays random: with it an element is NaN or
/// infinite, without it within a factor of four of the largest.
pub(super) fn fill(bytes: &mut [u8], stored: Stored, key: u64) {
    let exponent: u64 = match stored {
        Stored::F16 => 0x7800_7800_7800_7800,
        Stored::Bf16 => 0x7f00_7f00_7f00_7f00,
        Stored::F32 => 0x7f00_0000_7f00_0000,
        Stored::I64 => 0x4000_0000_0000_0000,
        Stored::I32 => 0x4000_0000_4000_0000,
        Stored::U8 | Stored::I8 => 0xf0f0_f0f0_f0f0_f0f0,
    };
    let stream = Stream::new(key, "pattern");
    let count = if bytes.len() <= PIECE { bytes.len().div_ceil(WORD) } else { 2 * PIECE / WORD };
    let words: Vec<[u8; WORD]> = (0..count as u64).map(|index| (stream.bits(index) | exponent).to_ne_bytes()).collect();
    let pattern = words.as_flattened();
    let places = Stream::new(key, "place");
    share_slice(bytes, BLOCK, &|offset, block| {
        for (piece, index) in block.chunks_mut(PIECE).zip(offset / PIECE..) {
            let choice = ((pattern.len() - piece.len()) / WORD) as u64 + 1;
            let begin = (places.bits(index as u64) % choice) as usize * WORD;
            piece.copy_from_slice(&pattern[begin..begin + piece.len()]);
        }
    });
}
