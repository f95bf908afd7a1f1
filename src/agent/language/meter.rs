//! What was used, added up by all requests in flight: since the run last asked, and for each proposal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::agent::Usage;

/// A ticket that no proposal has.
const NOBODYS: u64 = 0;

/// Usage that many requests add to.
#[derive(Debug, Default)]
pub struct Meter {
    inner: Mutex<Inner>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    usage: Usage,
    /// What each proposal took and nobody has asked for yet, by operation and ticket; under [`NOBODYS`], what came to nothing.
    tickets: BTreeMap<(String, u64), Usage>,
    /// What is said once in a target and no more.
    said: BTreeSet<String>,
    /// What requests wait for at present, and how many of them.
    waits: BTreeMap<String, usize>,
    /// Those of them that nobody has heard of yet.
    unheard: VecDeque<String>,
}

impl Meter {
    /// Adds what one request for a proposal used.
    pub fn add(&self, op: &str, ticket: u64, usage: &Usage) {
        let mut inner = self.inner();
        inner.usage.add(usage);
        inner.tickets.entry((op.to_owned(), ticket)).or_default().add(usage);
    }

    /// Nothing comes of a proposal: what it took is the next one's to bear.
    pub fn came_to_nothing(&self, op: &str, ticket: u64) {
        let mut inner = self.inner();
        if let Some(lost) = inner.tickets.remove(&(op.to_owned(), ticket)) {
            inner.tickets.entry((op.to_owned(), NOBODYS)).or_default().add(&lost);
        }
    }

    /// What a proposal took since this was last asked, with what had come to nothing by then.
    pub fn take(&self, op: &str, ticket: u64) -> Usage {
        let mut inner = self.inner();
        let mut usage = Usage::default();
        for ticket in [NOBODYS, ticket] {
            if let Some(used) = inner.tickets.remove(&(op.to_owned(), ticket)) {
                usage.add(&used);
            }
        }
        usage
    }

    /// A sentence for the run; the same one is said once until the run has read it.
    pub fn trouble(&self, sentence: String) {
        let mut inner = self.inner();
        if !inner.usage.troubles.contains(&sentence) {
            inner.usage.troubles.push(sentence);
        }
    }

    /// A sentence that is true for the whole target: said once.
    pub fn note(&self, sentence: String) {
        if self.inner().said.insert(sentence.clone()) {
            self.trouble(sentence);
        }
    }

    /// What a request waits for, once that is worth hearing before it ends.
    pub const fn wait(&self) -> Wait<'_> {
        Wait { meter: self, what: None }
    }

    /// The next sentence about what is waited for. Dropped halfway, it loses nothing.
    pub async fn hear(&self) -> String {
        loop {
            if let Some(sentence) = self.inner().unheard.pop_front() {
                return sentence;
            }
            self.news.notified().await;
        }
    }

    /// Everything so far; the meter begins anew.
    pub fn drain(&self) -> Usage {
        std::mem::take(&mut self.inner().usage)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one request waits for; it waits no more when this is dropped.
#[derive(Debug)]
pub struct Wait<'a> {
    meter: &'a Meter,
    what: Option<String>,
}

impl Wait<'_> {
    /// From now on it waits for this. The same sentence is said once, until the last request that waits for it ends.
    pub fn is_for(&mut self, sentence: String) {
        if self.what.as_ref() == Some(&sentence) {
            return;
        }
        self.end();
        let mut inner = self.meter.inner();
        let requests = inner.waits.entry(sentence.clone()).or_default();
        *requests += 1;
        if *requests == 1 {
            inner.unheard.push_back(sentence.clone());
            self.meter.news.notify_one();
        }
        self.what = Some(sentence);
    }

    fn end(&mut self) {
        let Some(sentence) = self.what.take() else { return };
        let mut inner = self.meter.inner();
        let others = inner.waits.get(&sentence).map_or(0, |requests| requests - 1);
        if others > 0 {
            inner.waits.insert(sentence, others);
        } else {
            inner.waits.remove(&sentence);
            inner.unheard.retain(|unheard| *unheard != sentence);
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_drained_once() {
        let meter = Meter::default();
        meter.add("a", 1, &Usage { requests: 1, tokens_in: 5, ..Usage::default() });
        meter.add("a", 2, &Usage { requests: 1, tokens_out: 7, ..Usage::default() });
        assert_eq!(meter.drain().tokens(), 12);
        assert!(meter.drain().is_empty());
    }

    #[test]
    fn a_proposal_bears_what_it_took_and_what_came_to_nothing_before_it() {
        let meter = Meter::default();
        let used = |op: &str, ticket, tokens_in| meter.add(op, ticket, &Usage { tokens_in, ..Usage::default() });
        used("a", 1, 1);
        used("a", 2, 10);
        used("b", 2, 100);
        used("a", 3, 1000);
        meter.came_to_nothing("a", 3);
        assert_eq!(meter.take("a", 2).tokens(), 1010);
        used("a", 2, 10_000);
        assert_eq!((meter.take("a", 1).tokens(), meter.take("a", 2).tokens()), (1, 10_000));
        assert!(meter.take("a", 2).is_empty());
        assert_eq!((meter.take("b", 2).tokens(), meter.drain().tokens()), (100, 11_111));
    }

    #[tokio::test]
    async fn what_requests_wait_for_is_heard_once_until_the_last_of_them_ends() {
        let meter = Meter::default();
        let (mut first, mut second) = (meter.wait(), meter.wait());
        first.is_for("silent".into());
        first.is_for("silent".into());
        second.is_for("silent".into());
        assert_eq!(meter.hear().await, "silent");
        drop(first);
        let mut third = meter.wait();
        third.is_for("silent".into());
        second.is_for("limited".into());
        assert_eq!(meter.hear().await, "limited");
        drop(third);
        second.is_for("silent".into());
        assert_eq!(meter.hear().await, "silent");
        second.is_for("gone before anyone heard".into());
        drop(second);
        let nothing = tokio::time::timeout(std::time::Duration::from_millis(1), meter.hear()).await;
        assert!(nothing.is_err() && meter.drain().troubles.is_empty());
    }

    #[test]
    fn troubles_repeat_after_they_were_read_and_notes_never() {
        let meter = Meter::default();
        for _ in 0..3 {
            meter.trouble("broken".into());
            meter.note("no price".into());
        }
        assert_eq!(meter.drain().troubles, ["broken", "no price"]);
        meter.trouble("broken".into());
        meter.note("no price".into());
        assert_eq!(meter.drain().troubles, ["broken"]);
    }
}
