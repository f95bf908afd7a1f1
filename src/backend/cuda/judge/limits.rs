//! How large a case may be on a device.

use std::num::NonZeroU64;

use crate::backend::CaseLimits;
use crate::device::DeviceCard;

/// The longest that asking the oracle may take, s.
const ORACLE: f64 = 0.06;
/// Beyond this a case is compared once instead of twice, s.
const ORACLE_TWICE: f64 = 0.005;
/// Double-precision operations of the oracle for a multiply-add of the case: values and terms, two each.
const OPERATIONS: f64 = 4.0;
/// Rate where nothing is known, GFLOP/s: that of devices that are not made for doubles.
const SLOW: f64 = 300.0;
/// The plainest kernel, a thread an output, does more operations a second on the smallest GPU.
const LEAST_FLOPS: u64 = 10_000_000_000;
/// Bytes of the oracle's memory for a multiply-add of the case: three doubles for each pair of attention at the smallest
/// head dimension of the sweeps.
const MEMORY: f64 = 0.2;

/// Limits for the device of `card`, of whose `total` bytes of memory `free` are to be had.
///
/// An H200 judges every listed shape as it stands; devices with slow doubles shrink the large ones. What others have on the device shrinks none:
/// a kernel that is wrong at a large shape alone would then be right beside a neighbour. Where memory does not suffice that is an error, no verdict.
#[must_use]
pub fn case_limits(card: &DeviceCard, total: u64, free: u64) -> CaseLimits {
    let rate = card.ceilings.shown.get("f64_gflops").copied().filter(|rate| *rate > 0.0).unwrap_or(SLOW) * 1e9;
    let macs = |seconds: f64| (rate * seconds / OPERATIONS) as u64;
    CaseLimits {
        macs: macs(ORACLE).min((total as f64 / MEMORY) as u64),
        macs_twice: macs(ORACLE_TWICE),
        // Two doubles of values and terms, the tensor's own, and half as much again: 80 GB hold 2^31 elements.
        elements: total / 32,
        // Some milliseconds each, at most, and then one of each input.
        hostile_share: NonZeroU64::MIN,
        sample_macs: 1 << 31,
        timed_bytes: (free / 4).min(8 << 30),
        repeats: 24,
        again: 0,
        least_flops: LEAST_FLOPS,
        threads_vary: false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::Ceilings;

    fn card(f64_gflops: f64) -> DeviceCard {
        DeviceCard {
            backend: "cuda".into(),
            name: "a GPU".into(),
            key: "gpu-1".into(),
            cores: 132,
            vector_bits: 0,
            l1_bytes: 1 << 18,
            l2_bytes: 50 << 20,
            l3_bytes: 0,
            cold_bytes: 150 << 20,
            facts: BTreeMap::new(),
            ceilings: Ceilings {
                read_gb_s: 4600.0,
                write_gb_s: 4000.0,
                gflops: BTreeMap::new(),
                launch_us: 2.0,
                shown: [("f64_gflops".to_owned(), f64_gflops)].into(),
            },
        }
    }

    #[test]
    fn a_fast_device_judges_the_largest_listed_shape_and_a_slow_one_shrinks_it() {
        // fused_mlp at 4096, 4096, 11008.
        let largest = 3 * 4096 * 4096 * 11008;
        assert!(case_limits(&card(50_000.0), 139 << 30, 139 << 30).macs > largest);
        let slow = case_limits(&card(1_300.0), 24 << 30, 24 << 30);
        assert!(slow.macs < largest && slow.macs > 2048 * 2048 * 2048);
        assert!(slow.macs_twice < slow.macs && slow.elements > 1 << 29);
    }

    #[test]
    fn a_neighbour_on_the_device_takes_timed_copies_and_makes_no_case_smaller() {
        let [alone, beside] = [139, 2].map(|free: u64| case_limits(&card(50_000.0), 139 << 30, free << 30));
        assert_eq!((alone.macs, alone.elements), (beside.macs, beside.elements));
        assert!(beside.timed_bytes < alone.timed_bytes);
    }
}
