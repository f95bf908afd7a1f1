//! The default agent: changes of tunables and variants, by a search that learns.
//!
//! It starts with one-at-a-time moves around the incumbent, fits a surrogate to everything screened or judged, screens
//! a small batch of what looks best or is least known, and proposes the best of it. A setting is screened at most once
//! and proposed at most once, over restarts too. Where a target's shapes want different points, it proposes a variant
//! row. It has nothing left when every point was touched, or when no unseen one promises the margin any more; but the
//! judge has seen one setting at least by then.

mod memory;
mod search;
mod space;
mod split;
mod surrogate;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::memory::{Memory, Seen, Touch};
use self::search::{Beliefs, Move, Search};
use super::{Agent, AgentError, BoxFuture, Brief, Offer, Outcome, Proposal, Screen};
use crate::evaluation::Verdict;
use crate::kernel::KernelFile;

/// Batches that are screened for one proposal at most: then the best is proposed even if it promises little, so that
/// the ledger shows what the time went into.
const MOST_BATCHES: usize = 3;

/// What it says of a target without a kernel.
const NOTHING_TO_TUNE: &str = "there is no kernel yet, and the tuner only tunes what is written; `--agent openai`, `--agent command`, \
                               `--agent replay` and `warpsmith mcp` can propose a first one";

/// The techniques of its proposals, by their identifiers in `program.md`.
pub const TECHNIQUES: [&str; 2] = [search::TUNE, search::VARIANT];

/// The built-in tuner.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tuner {
    state: State,
}

/// Everything it remembers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// By [`memory::identity`].
    targets: BTreeMap<String, Memory>,
    /// The target of the last proposal.
    current: String,
}

impl Tuner {
    /// A tuner that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Settings of the current target that time was spent on, screened or proposed.
    #[must_use]
    pub fn touched(&self) -> usize {
        self.state.targets.get(&self.state.current).map_or(0, Memory::touched)
    }

    async fn next(&mut self, brief: &Brief, screen: &mut dyn Screen) -> Result<Offer, AgentError> {
        if brief.unwritten {
            return Ok(Offer::Exhausted { why: NOTHING_TO_TUNE.into() });
        }
        let kernel = KernelFile::parse(&brief.incumbent)
            .map_err(|source| AgentError::Incumbent { op: brief.op.clone(), source })?;
        let identity = memory::identity(brief, &kernel);
        self.state.current.clone_from(&identity);
        let memory = self.state.targets.entry(identity).or_default();
        let search = Search::new(brief, &kernel);
        search.settle(memory);
        let mut beliefs = search.beliefs(memory);
        for batch in 0..MOST_BATCHES {
            if batch > 0 && search.exhausted(memory, &beliefs).is_some() {
                break;
            }
            let moves = search.batch(memory, &beliefs);
            if moves.is_empty() {
                break;
            }
            screen_batch(memory, &moves, screen).await;
            beliefs = search.beliefs(memory);
            if search.best_screened(memory, &beliefs).is_some_and(|(_, gain)| gain > 0.5 * brief.margin) {
                break;
            }
        }
        Ok(offer(&search, memory, &beliefs, brief))
    }
}

/// Screens the moves and remembers what came of them.
async fn screen_batch(memory: &mut Memory, moves: &[Move], screen: &mut dyn Screen) {
    let texts = moves.iter().map(|candidate| candidate.text.clone()).collect();
    let mut results = screen.screen(texts).await.into_iter();
    for candidate in moves {
        let times = results.next().flatten().and_then(|screened| {
            let shapes = if screened.shapes.is_empty() { vec![screened.speedup] } else { screened.shapes };
            times_from(&memory.level, &shapes)
        });
        let seen =
            Seen { idea: candidate.idea.clone(), points: candidate.points.clone(), times, touch: Touch::Screened };
        memory.seen.insert(candidate.key.clone(), seen);
    }
}

/// Logarithms of time from speedups against the incumbent; `None` where one is missing or not a positive number.
fn times_from(level: &[f64], speedups: &[f64]) -> Option<Vec<f64>> {
    let sound = speedups.len() == level.len() && speedups.iter().all(|s| s.is_finite() && *s > 0.0);
    sound.then(|| level.iter().zip(speedups).map(|(level, speedup)| memory::rounded(level - speedup.ln())).collect())
}

/// The best screened setting as a proposal, or why there is none.
fn offer(search: &Search<'_>, memory: &mut Memory, beliefs: &Beliefs, brief: &Brief) -> Offer {
    let exhausted = search.exhausted(memory, beliefs);
    let best = search.best_screened(memory, beliefs);
    let worthwhile = best.as_ref().is_some_and(|(_, gain)| *gain > 0.5 * brief.margin);
    // Screening is a rough look: on a busy machine it may miss a gain. So the judge sees one setting at least.
    let judged = memory.seen.values().any(|seen| seen.touch == Touch::Proposed);
    if let (Some(why), false) = (exhausted, worthwhile || (!judged && best.is_some())) {
        return Offer::Exhausted { why };
    }
    // Nothing screened is left to propose only where every screen failed: then the judge shall say why.
    let chosen = best.and_then(|(key, gain)| Some((search.rebuild(memory, &key)?, Some(gain.exp()))));
    let chosen = chosen.or_else(|| Some((search.batch(memory, beliefs).into_iter().next()?, None)));
    let Some((candidate, predicted)) = chosen else {
        return Offer::Exhausted { why: "no setting is left that can be built for these shapes".into() };
    };
    let times = memory.seen.get(&candidate.key).and_then(|seen| seen.times.clone());
    let seen = Seen { idea: candidate.idea, points: candidate.points, times, touch: Touch::Proposed };
    memory.seen.insert(candidate.key, seen);
    Offer::Proposal(Proposal {
        text: candidate.text,
        technique: candidate.technique.to_owned(),
        description: candidate.description,
        predicted,
        ..Proposal::default()
    })
}

impl Agent for Tuner {
    fn name(&self) -> &str {
        "tuner"
    }

    fn propose<'a>(
        &'a mut self,
        brief: &'a Brief,
        screen: &'a mut dyn Screen,
    ) -> BoxFuture<'a, Result<Offer, AgentError>> {
        Box::pin(self.next(brief, screen))
    }

    fn learn(&mut self, outcome: &Outcome) {
        let Some(memory) = self.state.targets.get_mut(&self.state.current) else { return };
        let Ok(kernel) = KernelFile::parse(&outcome.text) else { return };
        let key = memory::key(&kernel.values(), &memory::rows(&kernel.front));
        let Some(seen) = memory.seen.get_mut(&key) else { return };
        let total = outcome.verdict.speedup().map(|speedup| vec![speedup.ratio]).unwrap_or_default();
        let measured = times_from(&memory.level, &outcome.shapes).or_else(|| times_from(&memory.level, &total));
        match &outcome.verdict {
            // A verdict is measured with more care than a screen.
            Verdict::Keep { .. } | Verdict::Revert { .. } if measured.is_some() => seen.times = measured,
            Verdict::Keep { .. } | Verdict::Revert { .. } | Verdict::Base | Verdict::Start => {}
            _ => seen.times = None,
        }
        seen.touch = Touch::Proposed;
    }

    fn save(&self) -> Value {
        // Maps with string keys and finite numbers: what serde_json cannot fail on.
        serde_json::to_value(&self.state).unwrap_or(Value::Null)
    }

    fn restore(&mut self, state: &Value) -> Result<(), AgentError> {
        self.state = State::deserialize(state)
            .map_err(|error| AgentError::State { agent: self.name().to_owned(), why: error.to_string() })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
