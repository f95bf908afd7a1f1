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
pub use detect::{CpuFacts, cpu_flags, detect_cpu};
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

/// Ceilings of devices of one kind differ by no more than this share.
const SAME_CEILINGS: f64 = 0.05;

impl DeviceCard {
    /// Why figures measured on this device and on `other` cannot stand in one run, in a sentence; none where both are of one kind:
    /// the same backend and name, the same facts that kernels are specialised by, ceilings within 5 %.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        if (&self.backend, &self.name) != (&other.backend, &other.name) {
            return Some(format!(
                "it judges on {} ({}), not on {} ({})",
                self.name, self.backend, other.name, other.backend
            ));
        }
        if self.facts != other.facts || self.cores != other.cores {
            return Some(format!("its {} has other cores, caches or limits than the first", self.name));
        }
        self.ceilings.differ_from(&other.ceilings)
    }

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

impl Ceilings {
    /// Why these are not those of a device like the one that has `others`, in a sentence; none where memory is as fast within 5 %.
    #[must_use]
    pub fn differ_from(&self, others: &Self) -> Option<String> {
        let pairs = [("reads", self.read_gb_s, others.read_gb_s), ("writes", self.write_gb_s, others.write_gb_s)];
        let near = |mine: f64, theirs: f64| (mine / theirs - 1.0).abs() <= SAME_CEILINGS;
        let far = pairs.into_iter().find(|(_, mine, theirs)| !near(*mine, *theirs));
        far.map(|(what, mine, theirs)| {
            format!("it {what} {mine:.0} GB/s where the other {what} {theirs:.0}: more than 5 % apart")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_of_one_kind_by_name_facts_and_bandwidth() {
        let card = samples::card();
        assert_eq!(card.differs_from(&card), None);
        let other = DeviceCard { key: "another-of-them".to_owned(), ..card.clone() };
        assert_eq!(other.differs_from(&card), None);
        let named = DeviceCard { name: "Abacus".to_owned(), ..card.clone() };
        assert!(named.differs_from(&card).is_some_and(|why| why.contains("it judges on Abacus")));
        let cores = DeviceCard { cores: card.cores + 1, ..card.clone() };
        assert!(cores.differs_from(&card).is_some_and(|why| why.contains("other cores")));
        let reads = |times: f64| {
            let read_gb_s = card.ceilings.read_gb_s * times;
            DeviceCard { ceilings: Ceilings { read_gb_s, ..card.ceilings.clone() }, ..card.clone() }
        };
        assert_eq!(reads(1.04).differs_from(&card), None);
        for times in [1.06, 0.94, 0.0, f64::NAN] {
            assert!(reads(times).differs_from(&card).is_some_and(|why| why.contains("it reads")), "{times}");
        }
    }
}
