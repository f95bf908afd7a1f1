//! The proposals of an earlier run, in their order: for tests, for another device, for a colleague's night.

use serde_json::{Value, json};

use super::transcript::{Line, Said};
use super::{Agent, AgentError, BoxFuture, Brief, Failed, Offer, Outcome, Proposal, Screen};

/// Plays a transcript again.
#[derive(Debug, Clone)]
pub struct Replay {
    /// What was proposed, by operation, as it went to the judge.
    proposals: Vec<(String, Proposal)>,
    /// How many of them, counted over all operations, lie behind.
    next: usize,
}

impl Replay {
    /// An agent that proposes what the lines of a transcript say was proposed.
    #[must_use]
    pub fn new(lines: Vec<Line>) -> Self {
        let mut proposals: Vec<(String, Proposal)> = Vec::new();
        for line in lines {
            let Said::Proposed { op, proposal, .. } = line.said else { continue };
            // A run that was killed while judging has judged, and said, the same twice.
            let again = proposals.last().is_some_and(|(last, said)| *last == op && *said == proposal);
            if !again {
                proposals.push((op, proposal));
            }
        }
        Self { proposals, next: 0 }
    }

    fn rest(&self) -> impl Iterator<Item = (usize, &(String, Proposal))> {
        self.proposals.iter().enumerate().skip(self.next)
    }
}

impl Agent for Replay {
    fn name(&self) -> &str {
        "replay"
    }

    fn propose<'a>(
        &'a mut self,
        brief: &'a Brief,
        _screen: &'a mut dyn Screen,
    ) -> BoxFuture<'a, Result<Offer, AgentError>> {
        let found = self.rest().find(|(_, (op, _))| *op == brief.op).map(|(at, (_, said))| (at, said.clone()));
        let offer = match found {
            Some((at, proposal)) => {
                self.next = at + 1;
                Offer::Proposal(proposal)
            }
            None => Offer::Exhausted { why: "the transcript has no more for it".into() },
        };
        Box::pin(async move { Ok(offer) })
    }

    fn learn(&mut self, _outcome: &Outcome) {}

    /// It was mended then; what came of it is further down.
    fn mend(&mut self, failed: &Failed) -> bool {
        let Failed { proposal, .. } = failed;
        self.rest().any(|(_, (_, later))| later.ticket == proposal.ticket && later.repairs == proposal.repairs + 1)
    }

    fn save(&self) -> Value {
        json!(self.next)
    }

    fn restore(&mut self, state: &Value) -> Result<(), AgentError> {
        let next = state.as_u64().and_then(|next| usize::try_from(next).ok());
        let why = || format!("{state} is no place in a transcript");
        self.next = next.ok_or_else(|| AgentError::State { agent: self.name().to_owned(), why: why() })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::evaluation::{Stage, Verdict};

    fn proposed(op: &str, text: &str, ticket: u64, repairs: u32) -> Line {
        let proposal = Proposal { text: text.into(), ticket, repairs, ..Proposal::default() };
        Line { at: jiff::Timestamp::UNIX_EPOCH, said: Said::Proposed { op: op.into(), experiment: 1, proposal } }
    }

    fn judged() -> Line {
        let said = Said::Judged { op: "a".into(), experiment: 1, status: "keep".into(), why: String::new() };
        Line { at: jiff::Timestamp::UNIX_EPOCH, said }
    }

    #[test]
    fn what_was_judged_twice_after_a_kill_is_proposed_once() {
        let lines = vec![proposed("a", "x", 1, 0), proposed("a", "x", 1, 0), judged(), proposed("a", "y", 2, 0)];
        let texts: Vec<String> = Replay::new(lines).proposals.into_iter().map(|(_, said)| said.text).collect();
        assert_eq!(texts, ["x", "y"]);
    }

    #[test]
    fn only_what_was_mended_then_is_taken_back() {
        let mut replay =
            Replay::new(vec![proposed("a", "x", 1, 0), proposed("a", "x2", 1, 1), proposed("a", "y", 2, 0)]);
        replay.next = 1;
        let failed = |ticket, repairs| Failed {
            proposal: Proposal { ticket, repairs, ..Proposal::default() },
            verdict: Verdict::Error { stage: Stage::Compile, why: "no".into() },
        };
        assert!(replay.mend(&failed(1, 0)));
        assert!(!replay.mend(&failed(1, 1)) && !replay.mend(&failed(2, 0)));
        replay.next = 2;
        assert!(!replay.mend(&failed(1, 0)), "it lies behind");
    }

    #[test]
    fn its_memory_is_a_place() {
        let mut replay = Replay::new(vec![]);
        replay.restore(&json!(3)).unwrap();
        assert_eq!(replay.save(), json!(3));
        assert!(replay.restore(&json!("three")).is_err());
    }
}
