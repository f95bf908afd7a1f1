//! The machine a kernel runs on: what it is, and its measured ceilings.

mod cache;
mod catalogue;
mod detect;
mod folder;
mod opening;
mod roofline;
#[cfg(test)]
pub(crate) mod samples;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::op::Dtype;
pub use cache::{cached_card, store_card};
pub use catalogue::{Nameplate, nameplate};
pub use detect::{CpuFacts, detect_cpu};
pub use folder::kernel_folder;
pub use opening::Opening;
pub use roofline::{Bound, Roofline, roofline};

/// A device as kernels see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceCard {
    /// Backend that drives it: `cpu` (later `cuda`).
    pub backend: String,
    /// Product name, as the machine says it.
    pub name: String,
    /// What identifies this very device for caches and locks (letters, digits, `-`).
    pub key: String,
    /// Cores used (CPU) or multiprocessors (GPU).
    pub cores: u32,
    /// Widest vector in bits (CPU).
    pub vector_bits: u32,
    /// Bytes of a core's own L1 data cache.
    pub l1_bytes: u64,
    /// Bytes of L2, all cores together.
    pub l2_bytes: u64,
    /// Bytes of the last-level cache (0 where there is none beyond L2).
    pub l3_bytes: u64,
    /// Bytes to walk through so that nothing of a buffer is left in L2: rotation and bandwidth are measured over this much.
    pub cold_bytes: u64,
    /// Facts for front matter: `CORES`, `L1`, `L2`, `VECTOR_BYTES`.
    pub facts: BTreeMap<String, i64>,
    /// Measured ceilings.
    pub ceilings: Ceilings,
}

impl DeviceCard {
    /// The device as a call meets it that follows another without a hand-shake, in a batch or within a model's pass:
    /// starting it is no ceiling there.
    #[must_use]
    pub fn back_to_back(&self) -> Self {
        let mut card = self.clone();
        card.ceilings.launch_us = 0.0;
        card
    }
}

/// What the device can do, measured once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Reading, all cores, over `cold_bytes`, GB/s (1e9 bytes).
    pub read_gb_s: f64,
    /// Writing, all cores, over `cold_bytes`, GB/s.
    pub write_gb_s: f64,
    /// Multiply-adds counted as two, by dtype of the operands, GFLOP/s.
    pub gflops: BTreeMap<Dtype, f64>,
    /// One launch of a kernel that does nothing, µs.
    pub launch_us: f64,
    /// Figures that nothing is decided by, only shown; names end with the unit.
    #[serde(default)]
    pub shown: BTreeMap<String, f64>,
}
