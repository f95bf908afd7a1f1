//! Bytes that cannot be mistaken for a result.

use std::ops::Range;

use super::share::share_slice;
use crate::op::Stored;
use crate::rng::Stream;

/// Bytes of poison a thread writes at a time; also how far the base pattern goes before it is varied.
const BLOCK: usize = 1 << 15;

/// Fills `bytes` (whole elements) with poison that `key` determines.
///
/// Each block is one base pattern of random words with another random word mixed in, which runs at
/// the speed of memory; the high bits of the exponent are then set. The lowest bit of the exponent stays
/// random: with it an element is NaN or infinite, without it within a factor of four of the largest.
pub(super) fn fill(bytes: &mut [u8], stored: Stored, key: u64) {
    let exponent: u64 = match stored {
        Stored::F16 => 0x7800_7800_7800_7800,
        Stored::Bf16 => 0x7f00_7f00_7f00_7f00,
        Stored::F32 => 0x7f00_0000_7f00_0000,
        Stored::I64 => 0x4000_0000_0000_0000,
    };
    let stream = Stream::new(key, "pattern");
    let words = (bytes.len().min(BLOCK) / 8 + 1) as u64;
    let base: Vec<u64> = (0..words).map(|index| stream.bits(index)).collect();
    let blocks = Stream::new(key, "block");
    share_slice(bytes, BLOCK, &|offset, block| {
        let vary = blocks.bits((offset / BLOCK) as u64);
        let word = |index: usize| ((base[index] ^ vary) | exponent).to_ne_bytes();
        let whole: Range<usize> = 0..block.len() / 8;
        let (words, rest) = block.split_at_mut(whole.end * 8);
        for (bytes, index) in words.chunks_exact_mut(8).zip(whole.clone()) {
            bytes.copy_from_slice(&word(index));
        }
        let length = rest.len();
        rest.copy_from_slice(&word(whole.end)[..length]);
    });
}
