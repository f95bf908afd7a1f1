//! A PyTorch model's pass as torch.compile runs it, taken apart: what improving each region would give the *compiled* model. Where the pass can
//! be replayed as a CUDA graph, shares and gains are of that: what the host takes to launch kernels no kernel can shorten.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::targets::LEAST_GAIN;
use super::{MOST_OTHER, RankedTarget, amdahl};
use crate::op::{Bar, Shape, TargetShape};
use crate::torch::model::{Captured, Kind, Region};

/// What is run today, and its parts. Times in µs, of one pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    /// The model's directory, as it is shown.
    pub model: String,
    /// The function that gives it, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// PyTorch's name of the type that its weights and floating inputs were made, where one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The device's name.
    pub device: String,
    /// PyTorch's name of the device.
    pub torch_device: String,
    /// Everything that was measured and found.
    pub captured: Captured,
}

/// Two times of a pass that differ by no more are told as one (`parts.py` has the same).
const ALIKE: f64 = 1.05;

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct CompiledRow<'a> {
    /// What it is.
    pub region: &'a Region,
    /// Time of all its calls, µs; a joined one has that of its parts.
    pub us: f64,
    /// The same as a share of [`Compiled::device_us`], or of the sum of its parts where that is the longer.
    pub share: f64,
}

impl Compiled {
    /// The regions with a time of their own, the most time first: together they are the pass, but for what nobody explains.
    #[must_use]
    pub fn rows(&self) -> Vec<CompiledRow<'_>> {
        self.sorted(|region| region.kind != Kind::Joined)
    }

    /// Library calls with the region behind them, each in place of two rows or more.
    #[must_use]
    pub fn joined(&self) -> Vec<CompiledRow<'_>> {
        self.sorted(|region| region.kind == Kind::Joined)
    }

    fn sorted(&self, wanted: impl Fn(&Region) -> bool) -> Vec<CompiledRow<'_>> {
        let base_us = self.account().base_us;
        let row = |region| {
            let us = self.us_of(region);
            CompiledRow { region, us, share: us / base_us }
        };
        let mut rows: Vec<_> = self.captured.regions.iter().filter(|region| wanted(region)).map(row).collect();
        rows.sort_by(|a, b| b.us.total_cmp(&a.us));
        rows
    }

    /// What a kernel for a region must beat: what torch.compile runs there, or, where the pass was compiled with everything tried as well, the fastest
    /// there is.
    #[must_use]
    pub const fn bar(&self) -> Bar {
        if self.captured.autotune_us.is_some() { Bar::Fastest } else { Bar::Compiled }
    }

    /// Whether the pass takes longer with Inductor's own patterns than without, beyond what two times differ by.
    #[must_use]
    pub fn is_slower_with_lowerings(&self) -> bool {
        let without_us = self.captured.graph_us.unwrap_or(self.captured.compiled_us);
        self.captured.lowerings_us.is_some_and(|with_us| with_us > ALIKE * without_us)
    }

    /// The region of a name.
    #[must_use]
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.captured.regions.iter().find(|region| region.name == name)
    }

    /// The joined regions that hold every call of a region, which may be a smaller joined one.
    #[must_use]
    pub fn holders(&self, name: &str) -> Vec<String> {
        let Some(part) = self.region(name) else { return Vec::new() };
        let holders = self.captured.regions.iter().filter(|region| part.within.contains(&region.key));
        holders.map(|region| region.name.clone()).collect()
    }

    /// Time of the calls of a region that are in no joined one that is faster, µs; of one that is faster, of those that no larger one has.
    fn left_us(&self, region: &Region, gained: &BTreeMap<String, f64>) -> f64 {
        let (shares, left) = self.shares(gained);
        let share = match shares.get(region.name.as_str()) {
            Some(share) => *share,
            None => left.get(region.key.as_str()).map_or(1.0, |calls| calls / f64::from(region.calls.max(1))),
        };
        self.us_of(region) * share
    }

    /// Of each joined region that is faster the share of its calls that it gets: where two have a part in common, the one of more parts has it, as
    /// where a package places them. And the calls of each other region, by its key, that are in none of them.
    fn shares(&self, gained: &BTreeMap<String, f64>) -> (BTreeMap<&str, f64>, BTreeMap<&str, f64>) {
        let (joined, others): (Vec<&Region>, Vec<&Region>) =
            self.captured.regions.iter().partition(|region| region.kind == Kind::Joined);
        let mut left: BTreeMap<&str, f64> =
            others.iter().map(|region| (region.key.as_str(), f64::from(region.calls))).collect();
        let is_faster = |whole: &&Region| gained.get(&whole.name).is_some_and(|speedup| *speedup > 1.0);
        let mut wholes: Vec<&Region> = joined.into_iter().filter(is_faster).collect();
        wholes.sort_by_key(|whole| std::cmp::Reverse(whole.parts.len()));
        let mut shares = BTreeMap::new();
        for whole in wholes {
            let mut wanted: BTreeMap<&str, f64> = BTreeMap::new();
            for key in &whole.parts {
                *wanted.entry(key).or_default() += f64::from(whole.calls);
            }
            let of = |(key, calls): (&&str, &f64)| left.get(key).map_or(1.0, |left| (left / calls).clamp(0.0, 1.0));
            let share = wanted.iter().map(of).fold(1.0, f64::min);
            for (key, calls) in wanted {
                if let Some(left) = left.get_mut(key) {
                    *left = (*left - calls * share).max(0.0);
                }
            }
            shares.insert(whole.name.as_str(), share);
        }
        (shares, left)
    }

    /// What [`Compiled::device_us`] becomes with what was `gained` installed, µs.
    #[must_use]
    pub fn predict(&self, gained: &BTreeMap<String, f64>) -> f64 {
        let (whole_us, base_us) = (self.device_us(), self.account().base_us);
        let parts: Vec<(f64, f64)> = self
            .captured
            .regions
            .iter()
            .filter_map(|region| Some((self.left_us(region, gained) / base_us, *gained.get(&region.name)?)))
            .collect();
        whole_us / amdahl::gain_of_parts(&parts)
    }

    /// What can be worked on, the most time first: every region that a kernel can be judged for. The ceiling is that of a kernel that
    /// takes no time at all, since nobody has a roofline of what PyTorch computes.
    #[must_use]
    pub fn ranked_targets(&self, gained: &BTreeMap<String, f64>) -> Vec<RankedTarget> {
        let base_us = self.account().base_us;
        let target = |row: CompiledRow<'_>| {
            let region = row.region;
            let dtype = region.element().filter(|_| region.why_not.is_none())?;
            let us = self.left_us(region, gained)
                / gained.get(&region.name).copied().filter(|speedup| *speedup > 1.0).unwrap_or(1.0);
            let ceiling = amdahl::gain(us / base_us, f64::INFINITY);
            Some(RankedTarget {
                op: region.name.clone(),
                shapes: vec![TargetShape { shape: Shape::default(), dtype, calls: region.calls }],
                us,
                share: us / base_us,
                ceiling,
                skipped: ceiling - 1.0 < LEAST_GAIN,
            })
        };
        // Wholes before their parts, where a whole is as long as one of these in all its calls.
        let mut targets: Vec<_> = self.joined().into_iter().chain(self.rows()).filter_map(target).collect();
        targets.sort_by(|a, b| b.ceiling.total_cmp(&a.ceiling));
        targets
    }

    /// What shares and gains are of.
    pub(super) const fn whole(&self) -> &'static str {
        if self.captured.graph_us.is_some() { "the pass as a CUDA graph" } else { "the compiled pass" }
    }

    /// What a reader should know, a sentence each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.captured.notes.clone();
        let gaps_us = self.gaps_us().unwrap_or(0.0);
        if gaps_us > MOST_OTHER * self.captured.compiled_us {
            notes.push(format!(
                "{:.0} % of the compiled pass is launching, which no kernel shortens: torch.compile(mode=\"reduce-overhead\"), a larger batch, \
                 or CUDA graphs of your own do. Shares and gains are of the pass as a CUDA graph",
                100.0 * gaps_us / self.captured.compiled_us
            ));
        }
        let waits_us = self.between_us().filter(|_| self.captured.graph_us.is_none()).unwrap_or(0.0);
        if waits_us > MOST_OTHER * self.captured.compiled_us {
            notes.push(format!(
                "in {:.0} % of the compiled pass the device waits for the host, which kernels hardly shorten: fewer graph breaks, no value read back from the \
                 device (`.item()`, a mask's count), or a larger batch do. The pass could not be made a CUDA graph",
                100.0 * waits_us / self.captured.compiled_us
            ));
        }
        let account = self.account();
        if account.other_us > MOST_OTHER * account.base_us && !self.has_the_same_kernels() {
            notes.push(format!(
                "the parts do not explain {:.0} % of {}: Python between graphs, launches, copies, or others' work on the machine",
                100.0 * account.other_us / account.base_us,
                self.whole()
            ));
        }
        if self.captured.others.is_none() {
            notes.extend(account.overlap_note(self.captured.regions.iter().map(|region| region.calls as usize).sum()));
        }
        notes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn region(name: &str, kind: Kind, calls: u32, us: Option<f64>) -> Region {
        Region {
            name: name.into(),
            kind,
            key: format!("key of {name}"),
            plain: None,
            family: String::new(),
            operators: vec!["mul".into()],
            modules: vec!["layers.0.norm".into()],
            lines: vec!["model.py:3: return x * w".into()],
            why_not: None,
            source: None,
            described: None,
            inputs: None,
            outputs: None,
            dtype: Some("float32".into()),
            shipped: None,
            calls,
            parts: Vec::new(),
            within: Vec::new(),
            us,
            kernels: None,
            busy_us: None,
            ran: None,
        }
    }

    /// 100 µs: two calls of a norm, a product, and both joined; 20 µs nobody explains.
    pub(crate) fn sample() -> Compiled {
        let joined = Region {
            parts: vec!["key of norm".into(), "key of mm".into()],
            ..region("mm_norm", Kind::Joined, 1, None)
        };
        let refused =
            Region { why_not: Some("a tensor has gaps".into()), ..region("gaps", Kind::Fusible, 1, Some(0.0)) };
        let captured = Captured {
            eager_us: 200.0,
            eager_graph_us: None,
            compiled_us: 100.0,
            autotune_us: None,
            graph_us: None,
            lowerings_us: None,
            kernels: None,
            busy_us: None,
            others: None,
            call_us: 5.0,
            capture_s: 1.0,
            compile_s: 10.0,
            rounds: 50,
            graphs: 1,
            parameters: 1000,
            dtype: "float32".into(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            torch: "2.11.0".into(),
            python: "3.11".into(),
            threads: 2,
            device_name: String::new(),
            notes: vec!["graph break at model.py:9".into()],
            regions: vec![
                region("norm", Kind::Fusible, 2, Some(15.0)),
                Region { within: vec!["key of mm_norm".into()], ..region("mm", Kind::Library, 1, Some(50.0)) },
                joined,
                refused,
            ],
        };
        Compiled {
            model: "models/tiny".into(),
            load: None,
            dtype: None,
            device: "two cores".into(),
            torch_device: "cpu".into(),
            captured,
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn rows_are_parts_of_the_compiled_pass_and_what_is_left_is_said() {
        let profile = sample();
        let rows: Vec<(&str, f64)> = profile.rows().iter().map(|row| (row.region.name.as_str(), row.share)).collect();
        assert_eq!(rows[0].0, "mm");
        assert!(near(rows[0].1, 0.5) && near(rows[1].1, 0.3));
        assert!(near(profile.parts_us(), 80.0));
        assert!(profile.notes().iter().any(|note| note.contains("20 % of the compiled pass")), "{:?}", profile.notes());
    }

    #[test]
    fn targets_are_what_a_kernel_can_be_judged_for_and_joined_ones_have_the_time_of_their_parts() {
        let targets = sample().ranked_targets(&BTreeMap::new());
        let names: Vec<&str> = targets.iter().map(|target| target.op.as_str()).collect();
        assert_eq!(names, ["mm_norm", "mm", "norm"]);
        assert!(near(targets[0].us, 65.0) && near(targets[2].ceiling, 1.0 / 0.7));
        assert_eq!(targets[2].shapes[0].calls, 2);
    }

    #[test]
    fn a_whole_holds_a_part_only_where_it_has_every_call_of_it() {
        let profile = sample();
        assert_eq!(profile.holders("mm"), ["mm_norm"]);
        assert!(profile.holders("norm").is_empty(), "one of its two calls is elsewhere");
        assert!(profile.holders("mm_norm").is_empty() && profile.holders("nothing").is_empty());
    }

    #[test]
    fn shares_are_of_what_the_device_computes_where_the_pass_could_be_replayed_and_launches_are_said_apart() {
        let mut profile = sample();
        assert_eq!(profile.gaps_us(), None);
        profile.captured.graph_us = Some(82.0);
        assert!(near(profile.gaps_us().unwrap(), 18.0) && near(profile.device_us(), 82.0));
        assert!(near(profile.rows()[0].share, 50.0 / 82.0));
        assert!(near(profile.predict(&BTreeMap::from([("mm".to_owned(), 2.0)])), 57.0));
        assert!(near(profile.ranked_targets(&BTreeMap::new())[1].ceiling, 82.0 / 32.0));
        let text = profile.table();
        assert!(text.contains("launch gaps") && text.contains("reduce-overhead"), "{text}");
        assert!(text.contains("not explained") && text.contains("0.002"), "{text}");
    }

    #[test]
    fn a_prediction_takes_what_is_faster_and_nothing_that_is_slower() {
        let profile = sample();
        let gained = |pairs: &[(&str, f64)]| {
            profile.predict(&pairs.iter().map(|(name, k)| ((*name).to_owned(), *k)).collect::<BTreeMap<_, _>>())
        };
        assert!(near(gained(&[]), 100.0) && near(gained(&[("norm", 0.5)]), 100.0));
        assert!(near(gained(&[("norm", 2.0)]), 85.0) && near(gained(&[("norm", 2.0), ("mm", 2.0)]), 60.0));
    }

    #[test]
    fn calls_that_a_faster_whole_has_are_not_counted_again_where_their_part_is_faster_elsewhere() {
        let profile = sample();
        let gained = |pairs: &[(&str, f64)]| -> BTreeMap<String, f64> {
            pairs.iter().map(|(name, speedup)| ((*name).to_owned(), *speedup)).collect()
        };
        // The whole's 65 us become 32.5; of the norm one call of 15 us is left, the product has none.
        let whole = gained(&[("mm_norm", 2.0), ("mm", 5.0), ("norm", 3.0)]);
        assert!(near(profile.predict(&whole), 100.0 - 32.5 - 10.0));
        let us = |name: &str, gained: &BTreeMap<String, f64>| {
            profile.ranked_targets(gained).iter().find(|target| target.op == name).unwrap().us
        };
        assert!(
            near(us("norm", &gained(&[("mm_norm", 2.0)])), 15.0) && near(us("mm", &gained(&[("mm_norm", 2.0)])), 0.0)
        );
        assert!(near(us("norm", &gained(&[("mm_norm", 0.9)])), 30.0), "what is slower is not there");
        // A larger whole with the same product leaves nothing to the smaller one.
        let mut larger = sample();
        let own = larger.region("mm_norm").unwrap().clone();
        let parts = [own.parts.clone(), vec![own.parts[0].clone()]].concat();
        larger.captured.regions.push(Region { name: "mm_norm_mm".into(), key: "larger".into(), parts, ..own });
        let both = gained(&[("mm_norm", 2.0), ("mm_norm_mm", 2.0)]);
        assert!(near(larger.predict(&both), larger.predict(&gained(&[("mm_norm_mm", 2.0)]))));
    }

    #[test]
    fn the_table_names_every_part_and_what_it_could_give() {
        let text = sample().table();
        for part in [
            "compiled 0.100 ms",
            "eager 0.200 ms",
            "mm",
            "1.43x",
            "not explained",
            "a tensor has gaps",
            "graph break",
            "mm_norm",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 130), "{text}");
    }
}
