//! A made-up device for tests that need one and do not care which.

use std::collections::BTreeMap;

use super::{Ceilings, DeviceCard};

/// A processor with two cores.
pub(crate) fn card() -> DeviceCard {
    DeviceCard {
        backend: "cpu".into(),
        name: "made up".into(),
        key: "made-up".into(),
        cores: 2,
        vector_bits: 256,
        l1_bytes: 1 << 15,
        l2_bytes: 1 << 20,
        l3_bytes: 0,
        cold_bytes: 1 << 22,
        facts: BTreeMap::new(),
        ceilings: Ceilings {
            read_gb_s: 10.0,
            write_gb_s: 10.0,
            gflops: BTreeMap::new(),
            launch_us: 1.0,
            shown: BTreeMap::new(),
        },
    }
}
