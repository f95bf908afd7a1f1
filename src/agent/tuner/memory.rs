//! What the tuner knows of a target: the points it touched and what came of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::space::{Point, Values, label};
use crate::agent::Brief;
use crate::kernel::{FrontMatter, KernelFile};

/// A setting of a kernel file: the tunables' own values and the variant rows, by which it is recognised.
pub type Key = String;

/// Everything known of one kernel on one target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Every setting that was touched, by key.
    pub seen: BTreeMap<Key, Seen>,
    /// The incumbent's logarithm of time on each shape, against the first incumbent's.
    pub level: Vec<f64>,
}

/// A change of an incumbent, before its text is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idea {
    /// Other values for the tunables.
    Base(Point),
    /// A variant row that puts a point in force on the shapes where the condition holds.
    Row(String, Point),
}

/// What came of a setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// How it came about; from another incumbent the same idea may be another setting.
    pub idea: Idea,
    /// The point in force on each shape.
    pub points: Vec<Point>,
    /// Logarithm of time on each shape, against the first incumbent's; `None` where it failed.
    pub times: Option<Vec<f64>>,
    /// How far it came.
    pub touch: Touch,
}

/// How a setting was touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// An incumbent that was there before.
    Found,
    /// It cannot be built for these shapes; nothing was spent on it.
    Unfit,
    /// Screened, and free to be proposed.
    Screened,
    /// Proposed: judged, or about to be.
    Proposed,
}

impl Memory {
    /// Settings that time was spent on: screened or proposed.
    #[must_use]
    pub fn touched(&self) -> usize {
        self.seen.values().filter(|seen| matches!(seen.touch, Touch::Screened | Touch::Proposed)).count()
    }

    /// A shape's data for the surrogate: point in force and time. A failure counts as slow as the slowest seen, so
    /// that its neighbourhood is avoided but not for ever.
    #[must_use]
    pub fn data(&self, shape: usize) -> Vec<(&Point, f64)> {
        let known = |seen: &Seen| seen.times.as_ref().and_then(|times| times.get(shape).copied());
        let slowest = self.seen.values().filter_map(known).fold(f64::NEG_INFINITY, f64::max);
        self.seen
            .values()
            .filter(|seen| seen.touch != Touch::Unfit)
            .filter_map(|seen| Some((seen.points.get(shape)?, known(seen).unwrap_or(slowest))))
            .filter(|(_, time)| time.is_finite())
            .collect()
    }
}

/// A logarithm of time to six places: short decimals come back from JSON bit by bit, so that a resumed search goes on
/// as it would have.
#[must_use]
pub fn rounded(log: f64) -> f64 {
    (log * 1e6).round() / 1e6
}

/// A setting's key.
#[must_use]
pub fn key(values: &Values, rows: &[(String, Values)]) -> Key {
    let mut key = label(values);
    for (when, values) in rows {
        key.push_str(&format!("; {when}: {}", label(values)));
    }
    key
}

/// The variant rows of a front matter.
#[must_use]
pub fn rows(front: &FrontMatter) -> Vec<(String, Values)> {
    front.variants.iter().map(|row| (row.when.text().to_owned(), row.tune.clone())).collect()
}

/// What identifies a target and the code that is tuned for it: operation, backend, shapes, and the kernel file without
/// the values in force and the variant rows. Points seen under other code say nothing about this one.
#[must_use]
pub fn identity(brief: &Brief, kernel: &KernelFile) -> String {
    let mut front = kernel.front.clone();
    front.variants.clear();
    for tunable in front.tune.values_mut() {
        tunable.value = tunable.choices.first().copied().unwrap_or_default();
    }
    let mut hash = blake3::Hasher::new();
    let data = |data: Result<String, serde_json::Error>| data.unwrap_or_default();
    for part in
        [data(serde_json::to_string(&brief.shapes)), data(serde_json::to_string(&front)), kernel.code().to_owned()]
    {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    format!("{}/{}/{}", brief.backend, brief.op, &hash.finalize().to_hex()[..16])
}
