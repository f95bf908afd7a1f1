//! A tensor's bytes as doubles.

use super::share::share_slice;
use crate::backend::values::decode_into;
use crate::op::Stored;

/// Every element as a double, exactly (integers beyond 2^53 to nearest), in `out`, whose memory is used again.
pub(super) fn decode(bytes: &[u8], stored: Stored, mut out: Vec<f64>) -> Vec<f64> {
    let size = stored.bytes();
    out.resize(bytes.len() / size, 0.0);
    share_slice(&mut out, 1 << 16, &|offset, part| {
        decode_into(&bytes[offset * size..(offset + part.len()) * size], stored, part);
    });
    out
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_sixteen_bit_pattern_decodes_to_its_value() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
        let halves = decode(&bytes, Stored::F16, vec![]);
        let brains = decode(&bytes, Stored::Bf16, vec![]);
        for bits in 0..=u16::MAX {
            let same = |got: f64, want: f64| got == want || (got.is_nan() && want.is_nan());
            assert!(same(halves[usize::from(bits)], f16::from_bits(bits).to_f64()), "{bits:#x}");
            assert!(same(brains[usize::from(bits)], bf16::from_bits(bits).to_f64()), "{bits:#x}");
        }
    }
}
