//! What was used, added up by all requests in flight: since the run last asked, and for each proposal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::agent::Bill;

/// A ticket that no proposal has.
const NOBODYS: u64 = 0;

/// A bill that many write to.
#[derive(Debug, Default)]
pub struct Tab {
    inner: Mutex<Inner>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    bill: Bill,
    /// What each proposal took and nobody has asked for yet, by operation and ticket; under [`NOBODYS`], what came to nothing.
    tickets: BTreeMap<(String, u64), Bill>,
    /// What is said once in a target and no more.
    said: BTreeSet<String>,
    /// What requests wait for at present, and how many of them.
    waits: BTreeMap<String, usize>,
    /// Those of them that nobody has heard of yet.
    unheard: VecDeque<String>,
}

impl Tab {
    /// Adds what one request for a proposal used.
    pub fn add(&self, op: &str, ticket: u64, bill: &Bill) {
        let mut inner = self.inner();
        inner.bill.add(bill);
        inner.tickets.entry((op.to_owned(), ticket)).or_default().add(bill);
    }

    /// Nothing comes of a proposal: what it took is the next one's to bear.
    pub fn came_to_nothing(&self, op: &str, ticket: u64) {
        let mut inner = self.inner();
        if let Some(lost) = inner.tickets.remove(&(op.to_owned(), ticket)) {
            inner.tickets.entry((op.to_owned(), NOBODYS)).or_default().add(&lost);
        }
    }

    /// What a proposal took since this was last asked, with what had come to nothing by then.
    pub fn take(&self, op: &str, ticket: u64) -> Bill {
        let mut inner = self.inner();
        let mut bill = Bill::default();
        for ticket in [NOBODYS, ticket] {
            if let Some(used) = inner.tickets.remove(&(op.to_owned(), ticket)) {
                bill.add(&used);
            }
        }
        bill
    }

    /// A sentence for the run; the same one is said once until the run has read it.
    pub fn trouble(&self, sentence: String) {
        let mut inner = self.inner();
        if !inner.bill.troubles.contains(&sentence) {
            inner.bill.troubles.push(sentence);
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
        Wait { tab: self, what: None }
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

    /// Everything so far; the tab begins anew.
    pub fn drain(&self) -> Bill {
        std::mem::take(&mut self.inner().bill)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one request waits for; it waits no more when this is dropped.
#[derive(Debug)]
pub struct Wait<'a> {
    tab: &'a Tab,
    what: Option<String>,
}

impl Wait<'_> {
    /// From now on it waits for this. The same sentence is said once, until the last request that waits for it ends.
    pub fn is_for(&mut self, sentence: String) {
        if self.what.as_ref() == Some(&sentence) {
            return;
        }
        self.end();
        let mut inner = self.tab.inner();
        let requests = inner.waits.entry(sentence.clone()).or_default();
        *requests += 1;
        if *requests == 1 {
            inner.unheard.push_back(sentence.clone());
            self.tab.news.notify_one();
        }
        self.what = Some(sentence);
    }

    fn end(&mut self) {
        let Some(sentence) = self.what.take() else { return };
        let mut inner = self.tab.inner();
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
        let tab = Tab::default();
        tab.add("a", 1, &Bill { requests: 1, tokens_in: 5, ..Bill::default() });
        tab.add("a", 2, &Bill { requests: 1, tokens_out: 7, ..Bill::default() });
        assert_eq!(tab.drain().tokens(), 12);
        assert!(tab.drain().is_empty());
    }

    #[test]
    fn a_proposal_bears_what_it_took_and_what_came_to_nothing_before_it() {
        let tab = Tab::default();
        let used = |op: &str, ticket, tokens_in| tab.add(op, ticket, &Bill { tokens_in, ..Bill::default() });
        used("a", 1, 1);
        used("a", 2, 10);
        used("b", 2, 100);
        used("a", 3, 1000);
        tab.came_to_nothing("a", 3);
        assert_eq!(tab.take("a", 2).tokens(), 1010);
        used("a", 2, 10_000);
        assert_eq!((tab.take("a", 1).tokens(), tab.take("a", 2).tokens()), (1, 10_000));
        assert!(tab.take("a", 2).is_empty());
        assert_eq!((tab.take("b", 2).tokens(), tab.drain().tokens()), (100, 11_111));
    }

    #[tokio::test]
    async fn what_requests_wait_for_is_heard_once_until_the_last_of_them_ends() {
        let tab = Tab::default();
        let (mut first, mut second) = (tab.wait(), tab.wait());
        first.is_for("silent".into());
        first.is_for("silent".into());
        second.is_for("silent".into());
        assert_eq!(tab.hear().await, "silent");
        drop(first);
        let mut third = tab.wait();
        third.is_for("silent".into());
        second.is_for("limited".into());
        assert_eq!(tab.hear().await, "limited");
        drop(third);
        second.is_for("silent".into());
        assert_eq!(tab.hear().await, "silent");
        second.is_for("gone before anyone heard".into());
        drop(second);
        let nothing = tokio::time::timeout(std::time::Duration::from_millis(1), tab.hear()).await;
        assert!(nothing.is_err() && tab.drain().troubles.is_empty());
    }

    #[test]
    fn troubles_repeat_after_they_were_read_and_notes_never() {
        let tab = Tab::default();
        for _ in 0..3 {
            tab.trouble("broken".into());
            tab.note("no price".into());
        }
        assert_eq!(tab.drain().troubles, ["broken", "no price"]);
        tab.trouble("broken".into());
        tab.note("no price".into());
        assert_eq!(tab.drain().troubles, ["broken"]);
    }
}
