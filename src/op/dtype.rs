//! Element types of tensors.

use serde::{Deserialize, Serialize};

/// A floating-point type an operation is asked for; every kernel must serve all three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// IEEE half precision, 11 significant bits.
    F16,
    /// bfloat16, 8 significant bits.
    Bf16,
    /// IEEE single precision, 24 significant bits.
    F32,
}

impl Dtype {
    /// All of them, in the order of the sweep.
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::F32];

    /// Bytes an element takes in memory.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// Unit roundoff u: half the spacing at 1 (2^-11, 2^-8, 2^-24).
    #[must_use]
    pub fn roundoff(self) -> f64 {
        match self {
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
            Self::F32 => 2f64.powi(-24),
        }
    }

    /// What a result near zero may lose. A half loses half its smallest subnormal, 2^-25: it is rounded from single
    /// precision, in which its subnormals are normal. The other two have the exponents of single precision, and
    /// instructions that flush what is below its normal range to zero (`ex2.approx.ftz`) may lose that: 2^-126.
    #[must_use]
    pub fn underflow(self) -> f64 {
        match self {
            Self::F16 => 2f64.powi(-25),
            Self::Bf16 | Self::F32 => f64::from(f32::MIN_POSITIVE),
        }
    }

    /// Largest finite value.
    #[must_use]
    pub fn largest(self) -> f64 {
        match self {
            Self::F16 => half::f16::MAX.to_f64(),
            Self::Bf16 => half::bf16::MAX.to_f64(),
            Self::F32 => f64::from(f32::MAX),
        }
    }

    /// The name in files, the ledger and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What a tensor's elements are: the case's dtype, or a fixed type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ElementType {
    /// The dtype of the case.
    #[serde(rename = "T")]
    Case,
    /// Always single precision.
    #[serde(rename = "f32")]
    F32,
    /// Always a 64-bit integer.
    #[serde(rename = "i64")]
    I64,
    /// Always a 32-bit integer.
    #[serde(rename = "i32")]
    I32,
    /// Always a byte: a truth value is 0 or 1.
    #[serde(rename = "u8")]
    U8,
    /// Always a byte with a sign: quantised weights.
    #[serde(rename = "i8")]
    I8,
}

impl ElementType {
    /// Bytes an element takes when the case has dtype `dtype`.
    #[must_use]
    pub const fn bytes(self, dtype: Dtype) -> usize {
        match self {
            Self::Case => dtype.bytes(),
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
            Self::U8 | Self::I8 => 1,
        }
    }

    /// Whether it holds whole numbers, which are not rounded.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::I64 | Self::I32 | Self::U8 | Self::I8)
    }

    /// Its name in C, where the case's type is called `T`.
    #[must_use]
    pub const fn c_name(self) -> &'static str {
        match self {
            Self::Case => "T",
            Self::F32 => "float",
            Self::I64 => "int64_t",
            Self::I32 => "int32_t",
            Self::U8 => "uint8_t",
            Self::I8 => "int8_t",
        }
    }
}

/// What a tensor's bytes hold once the case's dtype is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stored {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
    /// 64-bit integers.
    I64,
    /// 32-bit integers.
    I32,
    /// Bytes.
    U8,
    /// Bytes with a sign.
    I8,
}

impl ElementType {
    /// What the bytes hold when the case has dtype `dtype`.
    #[must_use]
    pub const fn stored(self, dtype: Dtype) -> Stored {
        match (self, dtype) {
            (Self::I64, _) => Stored::I64,
            (Self::I32, _) => Stored::I32,
            (Self::U8, _) => Stored::U8,
            (Self::I8, _) => Stored::I8,
            (Self::F32, _) | (Self::Case, Dtype::F32) => Stored::F32,
            (Self::Case, Dtype::F16) => Stored::F16,
            (Self::Case, Dtype::Bf16) => Stored::Bf16,
        }
    }
}

impl Stored {
    /// Bytes an element takes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
            Self::U8 | Self::I8 => 1,
        }
    }

    /// The number of this type nearest to a double, ties to even: itself for integers.
    #[must_use]
    pub fn nearest(self, value: f64) -> f64 {
        match self {
            Self::F16 => half::f16::from_f32(rounded_to_odd(value)).to_f64(),
            Self::Bf16 => half::bf16::from_f32(rounded_to_odd(value)).to_f64(),
            Self::F32 => f64::from(value as f32),
            Self::I64 | Self::I32 | Self::U8 | Self::I8 => value,
        }
    }

    /// The floating-point type it is; `None` for integers.
    #[must_use]
    pub const fn dtype(self) -> Option<Dtype> {
        match self {
            Self::F16 => Some(Dtype::F16),
            Self::Bf16 => Some(Dtype::Bf16),
            Self::F32 => Some(Dtype::F32),
            Self::I64 | Self::I32 | Self::U8 | Self::I8 => None,
        }
    }
}

/// A double in single precision, with what is lost in its last bit, so that rounding once more to fewer bits is right. `half` goes from doubles to
/// 16 bits by way of 20 bits of the fraction, or of single precision: of 8192 numbers one is taken for a tie that is none, and half of these
/// come out wrong.
fn rounded_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || value.is_nan() {
        return nearest;
    }
    let further = u32::from(f64::from(nearest).abs() > value.abs());
    f32::from_bits((nearest.to_bits() - further) | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_number_is_told_by_every_bit_of_a_double() {
        let number = |stored, bits| match stored {
            Stored::F16 => half::f16::from_bits(bits).to_f64(),
            _ => half::bf16::from_bits(bits).to_f64(),
        };
        for stored in [Stored::F16, Stored::Bf16] {
            // Small ones below the normal range as well, in half precision up to the largest finite one.
            for bits in (0..0x7bff).step_by(7) {
                let (below, above) = (number(stored, bits), number(stored, bits + 1));
                let middle = (below + above) / 2.0;
                let (less, more) = (middle * (1.0 - f64::EPSILON), middle * (1.0 + f64::EPSILON));
                for sign in [1.0, -1.0] {
                    assert_eq!(stored.nearest(sign * less), sign * below, "{stored:?} {less:e}");
                    assert_eq!(stored.nearest(sign * more), sign * above, "{stored:?} {more:e}");
                    let even = if bits % 2 == 0 { below } else { above };
                    assert_eq!(stored.nearest(sign * middle), sign * even, "{stored:?} {middle:e}");
                }
            }
            assert_eq!(stored.nearest(1e300), f64::INFINITY);
            assert_eq!(stored.nearest(f64::NEG_INFINITY), f64::NEG_INFINITY);
            assert!(stored.nearest(f64::NAN).is_nan());
        }
    }
}
