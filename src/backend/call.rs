//! What is launched: a call of an image on stretches of an arena.

use serde::{Deserialize, Serialize};

/// Which half of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Region {
    /// What kernels read only.
    Inputs,
    /// Outputs and scratch.
    Outputs,
}

/// A stretch of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The region.
    pub region: Region,
    /// Offset of its first byte.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// One launch of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Index into the images the host was started with.
    pub image: usize,
    /// Tensors, then scratch; `None` is an absent tensor, NULL for the kernel.
    pub pointers: Vec<Option<Span>>,
    /// Symbols.
    pub ints: Vec<i64>,
    /// Scalars.
    pub floats: Vec<f32>,
    /// What is filled with zeros first, as a part of the launch: its time is the kernel's own.
    pub zeroed: Vec<Span>,
}

/// How many calls one sample should hold so that it lasts `sample_us`, from the *incumbent's* time alone: a candidate
/// that is slow while warming up must not shrink its own repetitions. Between 1 and `most`.
#[must_use]
pub fn calls_per_sample(incumbent_us: f64, sample_us: f64, most: u32) -> u32 {
    let wanted = (sample_us / incumbent_us).ceil();
    // A time of zero or NaN asks for as many as allowed; the cast saturates.
    if wanted.is_nan() { most.max(1) } else { (wanted as u32).clamp(1, most.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_last_as_long_as_asked_within_limits() {
        assert_eq!(calls_per_sample(30.0, 100.0, 1000), 4);
        assert_eq!(calls_per_sample(500.0, 100.0, 1000), 1);
        assert_eq!(calls_per_sample(1e-9, 100.0, 1000), 1000);
        assert_eq!(calls_per_sample(0.0, 100.0, 1000), 1000);
        assert_eq!(calls_per_sample(f64::NAN, 100.0, 50), 50);
    }
}
