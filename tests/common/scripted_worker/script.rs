//! What the script says: tables of rules, of which the first that applies to a kernel counts.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use warpsmith::evaluation::{Stage, Verdict};
use warpsmith::expr::Expr;
use warpsmith::kernel::KernelFile;
use warpsmith::op::{Dtype, Shape};

/// The whole script.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Whether each worker has a device of its own: else they take turns, as all do that share one.
    pub own_devices: bool,
    /// The kind of device that it stands for: `cpu` where nothing is said.
    pub backend: Option<String>,
    /// What PyTorch takes over the roofline's time, for operations that are written in it.
    pub pytorch: Option<f64>,
    /// What makes a kernel wrong; one that no rule is for is right.
    fault: Vec<Fault>,
    /// How long a call takes.
    cost: Vec<Cost>,
    /// What happens to the worker while it judges.
    event: Vec<Event>,
}

/// Which kernels a rule is for: those for which everything that is given holds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Kernels {
    /// The operation; for an event, also `model` for a pass through one.
    op: Option<String>,
    /// A part of the text; for an event in a model, of what is asked: `compare Outputs`, with ` changed` where a kernel goes in.
    text: Option<String>,
    /// A condition over tunables, the symbols of the shape where there is one, and for a fault `SEED`, the question's (without its
    /// sign).
    when: Option<Expr>,
}

/// Why a kernel is refused.
#[derive(Debug, Deserialize)]
pub struct Fault {
    #[serde(flatten)]
    kernels: Kernels,
    /// The verdict's word: `reject`, `crash`, `timeout` or `error`.
    status: Status,
    /// Where it is found out; `model`: the judge does not, only the whole model is wrong with it.
    stage: Stage,
    /// The judge's sentence.
    why: String,
    /// Whether it shows in types only that are not timed: a kernel that does not compile then is still screened.
    #[serde(default)]
    hidden: bool,
}

impl Fault {
    /// Whether only a whole model shows it.
    pub fn is_seen_by_the_judge(&self) -> bool {
        self.stage != Stage::Model
    }

    /// Whether a kernel with it cannot be timed at all.
    pub fn keeps_from_timing(&self) -> bool {
        self.stage <= Stage::Smoke && !self.hidden
    }

    /// The verdict on such a kernel.
    pub fn verdict(&self) -> Verdict {
        let (stage, why) = (self.stage, self.why.clone());
        match self.status {
            Status::Reject => Verdict::Reject { stage, why },
            Status::Crash => Verdict::Crash { stage, why },
            Status::Timeout => Verdict::Timeout { stage, why },
            Status::Error => Verdict::Error { stage, why },
        }
    }
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Reject,
    Crash,
    Timeout,
    Error,
}

/// A kernel's speed.
#[derive(Debug, Deserialize)]
struct Cost {
    #[serde(flatten)]
    kernels: Kernels,
    /// The time of a call over the roofline's at its shape, as an expression over tunables and the shape's symbols.
    times_roofline: Expr,
    /// How many times as long it takes in a model.
    in_model: Option<f64>,
}

/// What a kernel that no rule is for takes, over the roofline's time.
const USUAL_COST: f64 = 5.0;

/// What happens while a kernel is judged, before its verdict.
#[derive(Debug, Deserialize)]
struct Event {
    #[serde(flatten)]
    kernels: Kernels,
    /// The verdict waits so long, or until it is taken back.
    #[serde(default)]
    delay_ms: u64,
    /// The verdict waits until this file is there, or until it is taken back.
    #[serde(default)]
    until: Option<std::path::PathBuf>,
    /// The worker ends without an answer.
    #[serde(default)]
    dies: bool,
    /// The operation's definition turns out to be at fault, in these words.
    #[serde(default)]
    undefined: Option<String>,
    /// It happens as often as this file has bytes, each time one less.
    #[serde(default)]
    left: Option<std::path::PathBuf>,
}

impl Event {
    /// Whether it happens once more, which is then taken off.
    fn is_left(&self) -> bool {
        let Some(path) = &self.left else { return true };
        let Ok(bytes) = std::fs::read(path) else { return false };
        !bytes.is_empty() && std::fs::write(path, &bytes[1..]).is_ok()
    }
}

/// What a worker goes through before it answers.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ordeal {
    pub delay_ms: u64,
    pub until: Option<std::path::PathBuf>,
    pub dies: bool,
    pub undefined: Option<String>,
}

/// A kernel at a shape: what a rule looks at.
pub struct Asked<'a> {
    text: &'a str,
    op: &'a str,
    known: BTreeMap<String, i64>,
}

impl<'a> Asked<'a> {
    /// The kernel with the constants that it has at this shape; without a shape, as it stands.
    pub fn new(text: &'a str, op: &'a str, at: Option<(&Shape, Dtype)>) -> Self {
        let mut known = BTreeMap::new();
        if let Ok(kernel) = KernelFile::parse(text) {
            known.extend(kernel.values());
            if let Some((shape, dtype)) = at {
                known.extend(shape.0.clone());
                let facts = BTreeMap::from([("CORES".to_owned(), 2), ("L1".to_owned(), 32 << 10)]);
                known.extend(
                    kernel.resolve(shape, dtype, &facts).map_or_else(|_| BTreeMap::new(), |found| found.macros),
                );
            }
        }
        Self { text, op, known }
    }

    /// The same, asked with this seed.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.known.insert("SEED".to_owned(), (seed & i64::MAX as u64) as i64);
        self
    }

    fn value(&self, name: &str) -> Option<i64> {
        self.known.get(name).copied()
    }
}

impl Kernels {
    /// A condition over a name that the kernel does not have is not met.
    fn hold(&self, asked: &Asked<'_>) -> bool {
        self.op.as_ref().is_none_or(|op| op == asked.op)
            && self.text.as_ref().is_none_or(|text| asked.text.contains(text))
            && self.when.as_ref().is_none_or(|when| when.int(&|name| asked.value(name)).is_ok_and(|value| value != 0))
    }
}

impl Script {
    /// Reads a script.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// What is wrong with a kernel.
    pub fn fault(&self, asked: &Asked<'_>) -> Option<&Fault> {
        self.fault.iter().find(|fault| fault.kernels.hold(asked))
    }

    /// The time of a call over the roofline's.
    pub fn times_roofline(&self, asked: &Asked<'_>) -> f64 {
        self.cost(asked).map_or(USUAL_COST, |(_, times)| times)
    }

    /// The time of a call in a model over that of one by itself.
    pub fn in_model(&self, asked: &Asked<'_>) -> f64 {
        self.cost(asked).and_then(|(cost, _)| cost.in_model).unwrap_or(1.0)
    }

    /// The rule for a kernel, and what it says of the time over the roofline's.
    fn cost(&self, asked: &Asked<'_>) -> Option<(&Cost, f64)> {
        let value = |cost: &Cost| cost.times_roofline.float(&|name| asked.value(name).map(|value| value as f64)).ok();
        self.cost.iter().filter(|cost| cost.kernels.hold(asked)).find_map(|cost| Some((cost, value(cost)?)))
    }

    /// What the worker goes through.
    pub fn ordeal(&self, asked: &Asked<'_>) -> Ordeal {
        let event = self.event.iter().find(|event| event.kernels.hold(asked) && event.is_left());
        event.map_or_else(Ordeal::default, |event| Ordeal {
            delay_ms: event.delay_ms,
            until: event.until.clone(),
            dies: event.dies,
            undefined: event.undefined.clone(),
        })
    }
}
