//! The least time a call can take, from measured ceilings.

use serde::{Deserialize, Serialize};

use super::DeviceCard;
use crate::op::Dtype;

/// The least time of a call and what sets it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// µs.
    pub us: f64,
    /// The lowest ceiling.
    pub bound: Bound,
    /// µs that no honest kernel can undercut: reads and arithmetic only, since writes may stay in a cache.
    pub floor_us: f64,
}

/// Which ceiling is the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Bytes over bandwidth.
    Memory,
    /// Operations over rate.
    Compute,
    /// The cost of a launch.
    Launch,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Launch => "launch",
        })
    }
}

/// `max(read / BW_r + write / BW_w, flops / peak, launch)` (docs/how-timing-decides.md, "Roofline and floor").
#[must_use]
pub fn roofline(card: &DeviceCard, read_bytes: f64, write_bytes: f64, flops: f64, dtype: Dtype) -> Roofline {
    let ceilings = &card.ceilings;
    // 1 GB/s is 1000 bytes a µs, 1 GFLOP/s is 1000 operations a µs.
    let read_us = read_bytes / (ceilings.read_gb_s * 1e3);
    let memory_us = read_us + write_bytes / (ceilings.write_gb_s * 1e3);
    let compute_us = ceilings.gflops.get(&dtype).map_or(0.0, |rate| flops / (rate * 1e3));
    let floor_us = read_us.max(compute_us);
    let (us, bound) = [(memory_us, Bound::Memory), (compute_us, Bound::Compute), (ceilings.launch_us, Bound::Launch)]
        .into_iter()
        .fold((0.0, Bound::Launch), |best, next| if next.0 > best.0 { next } else { best });
    Roofline { us, bound, floor_us }
}
