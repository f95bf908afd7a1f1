//! The problem's own `Model` in a process like a candidate's: what its time is compared with, measured in the same way.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::confine::trusted;
use super::files::{Mode, TimeStats};
use super::judge::{Judge, Layout, Memory};
use super::link::{Link, Silence};
use super::pace::Idle;
use crate::rng::secret_seed;

/// What it and every candidate runs.
pub(super) const STUB: &str =
    concat!(include_str!("channel.py"), "\n", include_str!("protocol.py"), "\n", include_str!("stub.py"));

/// max-autotune tries many kernels.
const COMPILING: Duration = Duration::from_secs(600);

/// Calls before the first that counts: every slot has been touched once then.
pub(super) const WARM: usize = 4;

/// What a problem's times are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// Those of samples, whose calls are compared: the same is done here, for it leaves a processor's caches and cores colder.
    Samples,
    /// Nothing: comparing tensors of gigabytes takes some 0.4 s a call, and tells nothing.
    Nothing,
}

/// Why there is no time by the strict clock.
const UNRESOLVED: &str =
    "it takes less than what calls that do nothing differ by: too little, or other programs keep this machine busy";

/// A problem's times.
#[derive(Debug)]
pub(super) struct Times {
    pub idle: Idle,
    pub modes: Vec<(Mode, Timed)>,
}

/// What a problem takes in a mode; or why it could not be timed.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// By the strict clock.
    pub strict: Result<TimeStats, String>,
    /// By the benchmark's, on inputs as it has them.
    pub clocked: Result<TimeStats, String>,
}

/// A call that is timed from outside: a processor is quiet once the process is, a device once the judge has copied the results out.
pub(super) fn timed(
    link: &mut Link,
    judge: &mut Judge,
    memory: &Memory,
    (unit, slot): (&str, usize),
    limit: Duration,
) -> Result<f64, Silence> {
    let took = link.ask_stopped(&json!({"ask": "go", "unit": unit, "slot": slot}), limit)?;
    let began = Instant::now();
    judge.take(memory, slot).map_err(|silence| Silence::Talk(silence.words("the judge")))?;
    let copied = if judge.on_gpu() { began.elapsed() } else { Duration::ZERO };
    Ok((took + copied).as_secs_f64() * 1e3)
}

/// What a problem takes as it is, in each mode, `calls` times by the strict clock and `trials` by the benchmark's.
pub(super) fn measure(
    python: &Path,
    setup: &Value,
    judge: &mut Judge,
    (layout, slots): (&Layout, usize),
    (file, source): (&str, &str),
    (modes, calls, trials): (&[Mode], usize, u32),
    beside: Beside,
) -> Result<Times, Silence> {
    let mut link = Link::start(trusted(python, STUB), setup)?;
    let _: Value = link.hello()?;
    let memory = judge.memory("twin", layout, slots)?;
    let _: Value = link.ask(&layout.told(&memory), &memory.files(), COMPILING)?;
    let run = |link: &mut Link, judge: &mut Judge, unit: &str| {
        link.stop()?;
        let mut times = Vec::new();
        for call in 0..WARM + calls {
            let slot = (call % slots) * layout.bytes;
            // The judge looks so before and after it fills a sample's slot: what a device's caches hold is the same for both.
            judge.idle()?;
            judge.fill(&memory, slot, "ordinary", Some(secret_seed() >> 2))?;
            judge.idle()?;
            times.push(timed(link, judge, &memory, (unit, slot), COMPILING)?);
            if beside == Beside::Samples {
                judge.check(layout, &memory, slot)?;
            }
        }
        link.go_on()?;
        Ok::<_, Silence>(times.split_off(WARM))
    };
    let load = |link: &mut Link, unit: &str, way: &str| {
        let question = json!({"ask": "load", "unit": unit, "way": way, "file": file, "problem": source, "seed": 42});
        link.ask::<Value>(&question, &[], COMPILING).map(|_| ())
    };
    load(&mut link, "empty", "empty")?;
    let idle = Idle::of(&run(&mut link, judge, "empty")?);
    let mut found = Vec::new();
    for mode in modes {
        let unit = mode.name();
        let clock = json!({"ask": "clock", "unit": unit, "file": file, "problem": source, "trials": trials});
        let hardware = judge.hello.hardware.clone();
        let words = |silence: Silence| silence.words("PyTorch");
        let mut outside = || {
            load(&mut link, unit, mode.way())?;
            let net = idle.off(&run(&mut link, judge, unit)?, &hardware);
            Ok(if net.unresolved { Err(UNRESOLVED.to_owned()) } else { Ok(net.stats) })
        };
        let strict = outside().map_err(words).and_then(|told| told);
        // A call that raised leaves it stopped.
        link.go_on()?;
        let mut inside = || {
            let answer: Value = link.ask(&clock, &[], COMPILING)?;
            serde_json::from_value(answer["stats"].clone()).map_err(|error| Silence::Talk(error.to_string()))
        };
        let clocked = inside().map_err(words);
        found.push((*mode, Timed { strict, clocked }));
    }
    Ok(Times { idle, modes: found })
}
