//! Elements as doubles, and back.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::op::Stored;

/// Elements converted at a time, so that the conversion is a loop of its own.
const BLOCK: usize = 512;

/// Every element as a double, exactly (integers beyond 2^53 to nearest), in `out`, which has as many.
pub(crate) fn decode_into(bytes: &[u8], stored: Stored, out: &mut [f64]) {
    match stored {
        Stored::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let mut singles = [0f32; BLOCK];
            for (bytes, out) in bytes.chunks(2 * BLOCK).zip(out.chunks_mut(BLOCK)) {
                for (half, two) in halves.iter_mut().zip(bytes.as_chunks().0) {
                    *half = f16::from_ne_bytes(*two);
                }
                let n = out.len();
                halves[..n].convert_to_f32_slice(&mut singles[..n]);
                out.iter_mut().zip(&singles).for_each(|(out, single)| *out = f64::from(*single));
            }
        }
        Stored::Bf16 => {
            for (out, two) in out.iter_mut().zip(bytes.as_chunks().0) {
                let bits = u32::from(u16::from_ne_bytes(*two)) << 16;
                *out = f64::from(f32::from_bits(bits));
            }
        }
        Stored::F32 => {
            for (out, four) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f64::from(f32::from_ne_bytes(*four));
            }
        }
        Stored::I64 => {
            for (out, eight) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = i64::from_ne_bytes(*eight) as f64;
            }
        }
        Stored::I32 => {
            for (out, four) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f64::from(i32::from_ne_bytes(*four));
            }
        }
        Stored::U8 => out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = f64::from(*byte)),
        Stored::I8 => out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = f64::from(byte.cast_signed())),
    }
}

/// The bytes of one element of the value nearest to `value` (through single precision, to nearest even).
pub(super) fn encode_one(value: f64, stored: Stored, out: &mut [u8]) {
    match stored {
        Stored::F16 => out.copy_from_slice(&f16::from_f32(value as f32).to_ne_bytes()),
        Stored::Bf16 => out.copy_from_slice(&bf16::from_f32(value as f32).to_ne_bytes()),
        Stored::F32 => out.copy_from_slice(&(value as f32).to_ne_bytes()),
        Stored::I64 => out.copy_from_slice(&(value as i64).to_ne_bytes()),
        Stored::I32 => out.copy_from_slice(&(value as i32).to_ne_bytes()),
        Stored::U8 => out.copy_from_slice(&[value as u8]),
        Stored::I8 => out.copy_from_slice(&(value as i8).to_ne_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_element_encodes_to_what_it_decodes_from() {
        for stored in [Stored::F16, Stored::Bf16, Stored::F32, Stored::I64, Stored::I32, Stored::I8] {
            let mut bytes = vec![0; stored.bytes()];
            encode_one(-24.0, stored, &mut bytes);
            let mut value = [9.0];
            decode_into(&bytes, stored, &mut value);
            assert_eq!(value, [-24.0], "{stored:?}");
        }
        let mut byte = [0];
        encode_one(1.0, Stored::U8, &mut byte);
        assert_eq!(byte, [1]);
    }
}
