//! The strict judge of a sample. Each call gets inputs that nobody has seen, in memory of the judge's, while the candidate stands still;
//! it is woken, answers, and stands still again before anything is looked at. Every call is compared in full, and every ordinary call
//! is timed: there is nothing by which a candidate could tell one from another.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;

use super::busy::{Busy, quiet_beside};
use super::confine::children;
use super::judge::{Compared, Judge, Layout, Memory};
use super::link::{Link, Silence};
use super::pace::{Idle, Net};
use super::twin::{WARM, timed};
use super::verdict::Output;
use crate::rng::{Stream, secret_seed};
use crate::torch::bound::Parts;
use crate::torch::counts::{Allowed, Counts};

/// Draws of one kind whose worst eager error is the yardstick: of small outputs more, because chance has more to say there.
const DRAWS: [(usize, usize); 3] = [(1 << 12, 16), (1 << 20, 4), (usize::MAX, 2)];

/// One call may take so long.
const CALL: Duration = Duration::from_secs(60);

/// Ordinary inputs, as `get_inputs` draws them.
const ORDINARY: &str = "ordinary";

/// PyTorch's own error on inputs of one kind.
#[derive(Debug, Clone)]
struct Yard {
    eager: Vec<Parts>,
    split: Vec<Option<Parts>>,
    counts: Vec<Counts>,
    /// Why it is none.
    useless: Option<String>,
}

/// What is the same for all samples of a problem.
#[derive(Debug)]
pub(super) struct Measures {
    pub layout: Layout,
    pub memory: Memory,
    pub idle: Idle,
    slots: usize,
    results: Vec<Output>,
    yards: HashMap<String, Yard>,
}

/// What came of a sample that is not wrong.
#[derive(Debug)]
pub(super) enum Examined {
    /// It is right.
    Right(Right),
    /// After so many calls the device was at work while it stood still. Whose work that is shows when it has ended.
    Busy(Busy, u32),
}

/// A sample that is right.
#[derive(Debug)]
pub(super) struct Right {
    pub net: Net,
    pub calls: u32,
}

/// Why a sample is not judged right.
#[derive(Debug)]
pub(super) enum Refused {
    /// Its own doing, after so many calls.
    Sample(String, u32),
    /// The judge's process failed.
    Judge(Silence),
}

impl From<Silence> for Refused {
    fn from(silence: Silence) -> Self {
        Self::Judge(silence)
    }
}

impl Measures {
    /// Of a problem; the sentence is why it cannot be judged.
    pub(super) fn new(judge: &mut Judge, layout: Layout, idle: Idle, slots: usize) -> Result<Self, Refused> {
        let memory = judge.memory("candidate", &layout, slots)?;
        let results = layout.results();
        let mut it = Self { layout, memory, idle, slots, results, yards: HashMap::new() };
        if let Some(why) = it.yard(judge, ORDINARY)?.useless.clone() {
            return Err(Refused::Sample(format!("the problem tests nothing: {why}"), 0));
        }
        for guess in judge.guesses(&it.layout, [secret_seed() >> 2, secret_seed() >> 2])? {
            let eager = guess.outputs.iter().map(|it| it.eager.parts());
            let limits = it.limits(ORDINARY, eager);
            let passes = |(place, compared): (usize, &Compared)| {
                it.results[place].failure(&compared.made, &limits[place], Allowed::default()).is_none()
            };
            if guess.outputs.iter().enumerate().all(passes) {
                return Err(Refused::Sample(format!("the problem tests nothing: {} would pass", guess.what), 0));
            }
        }
        // Before any sample's process is there: one that takes all memory would have the reference raise on what is hostile.
        for kind in it.layout.kinds.clone() {
            it.yard(judge, &kind)?;
        }
        Ok(it)
    }

    /// PyTorch's own error on inputs of a kind, measured once.
    fn yard(&mut self, judge: &mut Judge, kind: &str) -> Result<&Yard, Silence> {
        if !self.yards.contains_key(kind) {
            let largest = self.results.iter().map(|it| it.elements).max().unwrap_or(0);
            let draws = DRAWS.iter().find(|(most, _)| largest <= *most).map_or(2, |(_, draws)| *draws);
            let draws = if kind == ORDINARY { draws } else { draws.min(2) };
            let seeds: Vec<u64> = (0..draws).map(|_| secret_seed() >> 2).collect();
            let blank = (vec![Parts::default(); self.results.len()], vec![None; self.results.len()]);
            let counts = vec![Counts::default(); self.results.len()];
            let mut yard = Yard { eager: blank.0, split: blank.1, counts, useless: None };
            let draws = match judge.yard(&self.layout, kind, &seeds) {
                Err(silence) if kind != ORDINARY && silence.raised() => {
                    yard.useless = Some(silence.words("the reference"));
                    Vec::new()
                }
                answer => answer?,
            };
            for draw in draws {
                for (place, it) in draw.iter().enumerate() {
                    yard.eager[place] = yard.eager[place].worst(it.eager.parts());
                    yard.counts[place] = yard.counts[place].worst(it.eager.counts());
                    let split: Option<Parts> = it.split.map(|split| split.parts());
                    yard.split[place] = split.map(|split| yard.split[place].map_or(split, |known| known.worst(split)));
                    let undefined = it.undefined.then(|| "its result is NaN in double precision".to_owned());
                    yard.useless = yard.useless.take().or_else(|| it.eager.useless()).or(undefined);
                }
            }
            self.yards.insert(kind.to_owned(), yard);
        }
        // It was put there above.
        self.yards.get(kind).ok_or_else(|| Silence::Talk("no yardstick".into()))
    }

    /// What each output may be off by, where PyTorch itself is off by `eager` on these inputs.
    fn limits(&self, kind: &str, eager: impl Iterator<Item = Parts>) -> Vec<Parts> {
        let yard = self.yards.get(kind);
        eager
            .enumerate()
            .map(|(place, own)| {
                let worst = yard.map_or(own, |yard| yard.eager[place].worst(own));
                self.results[place].limits(worst, yard.and_then(|yard| yard.split[place]))
            })
            .collect()
    }

    /// Judges a candidate that waits to be told where its memory is.
    pub(super) fn examine(
        &mut self,
        judge: &mut Judge,
        link: &mut Link,
        load: &Value,
        (calls, limit): (usize, Duration),
    ) -> Result<Examined, Refused> {
        let fault = |silence: Silence, done: u32| Refused::Sample(silence.words("it"), done);
        // Before anything of its text runs.
        let quiet = quiet_beside(judge, link, limit).map_err(|it| fault(it, 0))?;
        let _: Value =
            link.ask(&self.layout.told(&self.memory), &self.memory.files(), limit).map_err(|it| fault(it, 0))?;
        let _: Value = link.ask(load, &[], limit).map_err(|it| fault(it, 0))?;
        link.stop().map_err(|it| fault(it, 0))?;
        let (mut times, mut done) = (Vec::new(), 0);
        for (round, kind) in plan(&self.layout.kinds, calls, secret_seed()).iter().enumerate() {
            if self.yard(judge, kind)?.useless.is_some() {
                continue;
            }
            let slot = (round % self.slots) * self.layout.bytes;
            // Before, so that nothing waits on the device for these inputs; and after, so that nothing has begun with them.
            if let Some(busy) = Busy::seen(judge, quiet)? {
                return Ok(Examined::Busy(busy, done));
            }
            judge.fill(&self.memory, slot, kind, Some(secret_seed() >> 2))?;
            if let Some(busy) = Busy::seen(judge, quiet)? {
                return Ok(Examined::Busy(busy, done));
            }
            let took = timed(link, judge, &self.memory, ("candidate", slot), CALL);
            let took = took.map_err(|it| fault(it, done))?;
            done += 1;
            let checked = judge.check(&self.layout, &self.memory, slot)?;
            if let Some(why) = self.wrong(kind, &checked) {
                return Err(Refused::Sample(why, done));
            }
            if kind == ORDINARY {
                times.push(took);
            }
        }
        if children(link.id()).is_ok_and(|children| !children.is_empty()) {
            return Err(Refused::Sample("it started another process".into(), done));
        }
        let net = self.idle.off(&times.split_off(WARM.min(times.len())), &judge.hello.hardware);
        Ok(Examined::Right(Right { net, calls: done }))
    }

    fn wrong(&self, kind: &str, checked: &super::judge::Checked) -> Option<String> {
        let on = if kind == ORDINARY { String::new() } else { format!("on inputs of the kind `{kind}`: ") };
        if let Some(place) = checked.changed.first() {
            return Some(format!("{on}it changes its input {place}"));
        }
        // Where PyTorch itself is no yardstick for these very inputs nothing is.
        if kind != ORDINARY && checked.outputs.iter().any(|it| it.undefined || it.eager.useless().is_some()) {
            return None;
        }
        let limits = self.limits(kind, checked.outputs.iter().map(|it| it.eager.parts()));
        let known = self.yards.get(kind).filter(|_| kind == ORDINARY);
        let failures = checked.outputs.iter().zip(&limits).zip(&self.results).enumerate();
        let failure = |(place, ((it, limits), output)): (usize, ((&Compared, &Parts), &Output))| {
            let counts = known.map(|yard| yard.counts[place].worst(it.eager.counts()));
            let allowed = counts.map_or_else(Allowed::default, |eager| output.allowed(eager, limits));
            output.failure(&it.made, limits, allowed)
        };
        failures.filter_map(failure).next().map(|why| on + &why)
    }
}

/// The calls: a few ordinary ones first, which warm it, then ordinary and hostile ones in an order that nobody can foresee.
fn plan(kinds: &[String], calls: usize, seed: u64) -> Vec<String> {
    let mut rest: Vec<String> = kinds.to_vec();
    rest.extend(std::iter::repeat_n(ORDINARY.to_owned(), calls));
    let stream = Stream::new(seed, "calls");
    for last in (1..rest.len()).rev() {
        let other = stream.bits(last as u64) % (last as u64 + 1);
        rest.swap(last, other as usize);
    }
    let mut all = vec![ORDINARY.to_owned(); WARM];
    all.append(&mut rest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_once_among_ordinary_calls_in_an_order_that_depends_on_the_seed() {
        let kinds: Vec<String> = ["large", "nan", "few"].map(str::to_owned).to_vec();
        let plans: Vec<Vec<String>> = (0..20).map(|seed| plan(&kinds, 10, seed)).collect();
        for plan in &plans {
            assert_eq!(plan.len(), WARM + 10 + 3);
            assert!(plan[..WARM].iter().all(|kind| kind == ORDINARY));
            assert!(kinds.iter().all(|kind| plan.iter().filter(|it| *it == kind).count() == 1));
        }
        assert!(plans.iter().any(|plan| *plan != plans[0]));
    }
}
