//! How long the parts of a compiled pass take, and what of it is no part's.

use super::account::{Account, account};
use super::compiled::Compiled;
use crate::torch::model::{Kind, Ran, Region};

impl Compiled {
    /// Time of all calls of a region in a pass, µs; 0 where it could not be timed.
    #[must_use]
    pub fn us_of(&self, region: &Region) -> f64 {
        let calls = f64::from(region.calls);
        match region.kind {
            Kind::Joined => {
                let parts =
                    region.parts.iter().filter_map(|key| self.captured.regions.iter().find(|it| it.key == *key));
                calls * parts.filter_map(|part| self.call_us(part)).sum::<f64>()
            }
            _ => calls * self.call_us(region).unwrap_or(0.0),
        }
    }

    /// Time of one call of a region that is not joined, µs: of its kernels in the pass, where it is known which these are; else of its kernels alone,
    /// where what lies between kernels is known.
    fn call_us(&self, region: &Region) -> Option<f64> {
        match &region.ran {
            Some(ran) if self.captured.others.is_some() => Some(sum_us(ran) / f64::from(region.calls.max(1))),
            _ if self.between_us().is_some() => region.busy_us,
            _ => region.us,
        }
    }

    /// Kernels of the pass that are of no region, µs; none where nobody knows of which one each kernel is.
    #[must_use]
    pub fn others_us(&self) -> Option<f64> {
        self.captured.others.as_deref().map(sum_us)
    }

    /// How much longer all regions take alone than in the pass, µs: each with its weights in no cache, and between none of its neighbours. None where
    /// their time in the pass is not known.
    #[must_use]
    pub fn longer_alone_us(&self) -> Option<f64> {
        self.captured.others.as_ref()?;
        let own = self.captured.regions.iter().filter(|region| region.kind != Kind::Joined);
        own.map(|region| Some(f64::from(region.calls) * region.busy_us? - self.us_of(region))).sum()
    }

    /// What lies between the kernels of the pass, µs: of a CUDA graph each begins a little after the one before has ended; where the pass can be
    /// none, the device waits there for the host. None where not every kernel's own time is known.
    #[must_use]
    pub fn between_us(&self) -> Option<f64> {
        let it = &self.captured;
        let alone = |region: &Region| region.us.is_none() || region.busy_us.is_some();
        let known = it.others.is_some() || it.regions.iter().all(alone);
        it.busy_us.filter(|_| known).map(|busy_us| (self.device_us() - busy_us).max(0.0))
    }

    /// Whether the parts have as many kernels together as the pass: what they take longer there than alone is then no other's time.
    #[must_use]
    pub fn has_the_same_kernels(&self) -> bool {
        let of = |region: &Region| region.kernels.map_or(0.0, |kernels| kernels * f64::from(region.calls));
        let parts: f64 = self.captured.regions.iter().filter(|it| it.kind != Kind::Joined).map(of).sum();
        self.between_us().is_some() && self.captured.kernels.is_some_and(|kernels| (kernels - parts).abs() < 0.5)
    }

    /// What the pass takes, and what is left of it beside its parts and what lies between kernels.
    pub(super) fn account(&self) -> Account {
        let named_us = self.between_us().unwrap_or(0.0) + self.others_us().unwrap_or(0.0);
        account(self.device_us(), self.parts_us() + named_us)
    }

    /// All parts together, µs.
    #[must_use]
    pub fn parts_us(&self) -> f64 {
        self.captured.regions.iter().filter(|region| region.kind != Kind::Joined).map(|region| self.us_of(region)).sum()
    }

    /// The part of a pass that kernels can shorten, µs: the pass as a CUDA graph, where it could be captured, else as it is compiled.
    #[must_use]
    pub fn device_us(&self) -> f64 {
        let compiled_us = self.captured.compiled_us;
        self.captured.graph_us.map_or(compiled_us, |us| us.min(compiled_us))
    }

    /// What the compiled pass takes beyond what the device computes, µs: launches and the host's own work. None where the pass could not be
    /// replayed without them.
    #[must_use]
    pub fn gaps_us(&self) -> Option<f64> {
        self.captured.graph_us.map(|us| (self.captured.compiled_us - us).max(0.0))
    }
}

/// µs of all of these; of none 0, where `sum` has -0.
fn sum_us(ran: &[Ran]) -> f64 {
    ran.iter().fold(0.0, |us, kernel| us + kernel.us)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::profile::compiled::tests::sample;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn where_every_kernels_own_time_is_known_what_lies_between_them_is_a_row_and_the_rows_are_the_pass() {
        let mut profile = sample();
        (profile.captured.graph_us, profile.captured.busy_us) = (Some(90.0), Some(75.0));
        profile.captured.kernels = Some(30.0);
        assert_eq!(profile.between_us(), None, "of the parts nobody knows");
        for region in &mut profile.captured.regions {
            region.busy_us = region.us.map(|us| 0.9 * us);
        }
        assert!(near(profile.between_us().unwrap(), 15.0) && near(profile.parts_us(), 72.0));
        let account = profile.account();
        assert!(near(account.base_us, 90.0) && near(account.other_us, 3.0));
        assert!(near(profile.rows()[0].share, 0.5), "the product's 45 of 90 µs");
        assert!(near(profile.predict(&BTreeMap::from([("mm".to_owned(), 2.0)])), 67.5));
        let text = profile.table();
        assert!(text.contains("between kernels") && text.contains("0.50 µs a kernel"), "{text}");
        // As many kernels in the parts as in the pass.
        assert!(!profile.has_the_same_kernels() && text.contains("not explained"), "{text}");
        for (region, kernels) in profile.captured.regions.iter_mut().zip([10.0, 10.0, 99.0, 0.0]) {
            region.kernels = Some(kernels);
        }
        let text = profile.table();
        assert!(profile.has_the_same_kernels() && text.contains("longer in the pass"), "{text}");
        assert!(!text.contains("not explained"), "{text}");
        // Parts whose own times are longer than the pass has are still all there is.
        profile.captured.regions[1].busy_us = Some(60.0);
        assert!(near(profile.account().overlap_us, 12.0));
    }

    #[test]
    fn where_a_pass_can_be_no_graph_what_lies_between_its_kernels_is_the_hosts() {
        let mut profile = sample();
        (profile.captured.busy_us, profile.captured.kernels) = (Some(40.0), Some(4.0));
        profile.captured.others = Some(vec![Ran { name: "Memcpy DtoH".into(), count: 1, us: 2.0 }]);
        for (region, us) in profile.captured.regions.iter_mut().zip([8.0, 30.0, 0.0, 0.0]) {
            region.ran = Some(vec![Ran { name: "kernel".into(), count: 1, us }]);
        }
        assert!(near(profile.between_us().unwrap(), 60.0) && near(profile.account().other_us, 0.0));
        let text = profile.table();
        for part in ["between kernels", "the device waits for the host", "60.0%", "in 60 % of the compiled pass"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("µs a kernel"), "{text}");
    }

    #[test]
    fn where_it_is_known_of_which_part_a_kernel_is_each_part_has_its_time_in_the_pass_and_what_it_takes_alone_is_a_row()
    {
        let mut profile = sample();
        (profile.captured.graph_us, profile.captured.busy_us) = (Some(90.0), Some(75.0));
        profile.captured.kernels = Some(4.0);
        let ran = |name: &str, count, us| Some(vec![Ran { name: name.into(), count, us }]);
        profile.captured.others = ran("Memset (Device)", 1, 1.0);
        let found = [ran("triton_norm", 2, 24.0), ran("gemm", 1, 50.0), None, Some(Vec::new())];
        for (region, (ran, busy_us)) in
            profile.captured.regions.iter_mut().zip(found.into_iter().zip([15.0, 47.0, 0.0, 0.0]))
        {
            (region.busy_us, region.ran) = (Some(busy_us), ran);
        }
        assert!(near(profile.parts_us(), 74.0) && near(profile.between_us().unwrap(), 15.0));
        let account = profile.account();
        assert!(near(account.base_us, 90.0) && near(account.other_us, 0.0) && near(account.overlap_us, 0.0));
        assert!(near(profile.longer_alone_us().unwrap(), 3.0), "30 of 24 for the norm, 47 of 50 for the product");
        assert!(near(profile.ranked_targets(&BTreeMap::new())[0].us, 62.0), "both of the whole's parts, once");
        let text = profile.table();
        for part in ["1 kernel of no part", "Memset (Device)", "longer alone", "3.3%", "not explained"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("longer in the pass") && !text.contains("-0"), "{text}");
        // What could not be run alone is still a part of the pass.
        profile.captured.regions[0].busy_us = None;
        assert!(profile.longer_alone_us().is_none() && near(profile.parts_us(), 74.0));
    }
}
