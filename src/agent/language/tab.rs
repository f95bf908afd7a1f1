//! What was used since the run last asked, added up by all requests in flight.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::agent::Bill;

/// A bill that many write to.
#[derive(Debug, Default)]
pub struct Tab {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    bill: Bill,
    /// What is said once in a target and no more.
    said: BTreeSet<String>,
}

impl Tab {
    /// Adds what one request used.
    pub fn add(&self, bill: &Bill) {
        self.inner().bill.add(bill);
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

    /// Everything so far; the tab begins anew.
    pub fn drain(&self) -> Bill {
        std::mem::take(&mut self.inner().bill)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_drained_once() {
        let tab = Tab::default();
        tab.add(&Bill { requests: 1, tokens_in: 5, ..Bill::default() });
        tab.add(&Bill { requests: 1, tokens_out: 7, ..Bill::default() });
        assert_eq!(tab.drain().tokens(), 12);
        assert!(tab.drain().is_empty());
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
