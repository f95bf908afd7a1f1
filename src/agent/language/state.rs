//! What the agent remembers over a restart.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::agent::tuner::Tuner;

/// Characters of a fingerprint.
const FINGERPRINT: usize = 16;

/// What the agent remembers over a restart. Requests in flight are not among it: their tickets are used up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The last ticket that was given out.
    tickets: u64,
    /// Fingerprints of texts that were proposed.
    proposed: BTreeSet<String>,
    /// Those among them that the tuner proposed.
    tuned: BTreeSet<String>,
}

impl State {
    /// A ticket that no other proposal has, from 1.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Takes note of a proposal: `false` where its text was proposed before.
    pub fn propose(&mut self, text: &str) -> bool {
        self.proposed.insert(fingerprint(text))
    }

    /// Takes note of a proposal of the tuner's.
    pub fn tuned(&mut self, text: &str) {
        self.proposed.insert(fingerprint(text));
        self.tuned.insert(fingerprint(text));
    }

    /// Whether the tuner proposed a text.
    pub fn was_tuned(&self, text: &str) -> bool {
        self.tuned.contains(&fingerprint(text))
    }

    /// Everything, with the tuner's memory.
    pub fn save(&self, tuner: &Tuner) -> Value {
        json!({"language": self, "tuner": tuner.save()})
    }

    /// What [`Self::save`] gave, and the tuner's part of it.
    ///
    /// # Errors
    /// It is not of this agent's making.
    pub fn restore(saved: &Value) -> Result<(Self, Value), serde_json::Error> {
        let state = Self::deserialize(saved.get("language").unwrap_or(&Value::Null))?;
        Ok((state, saved.get("tuner").cloned().unwrap_or(Value::Null)))
    }
}

/// A short name of a text.
pub fn fingerprint(text: &str) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(FINGERPRINT);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_a_restart_and_nothing_else_is_taken_for_it() {
        let mut state = State::default();
        assert_eq!((state.ticket(), state.ticket()), (1, 2));
        assert!(state.propose("a") && !state.propose("a"));
        state.tuned("b");
        let saved = state.save(&Tuner::new());
        let (mut again, tuner) = State::restore(&saved).expect("its own");
        assert_eq!(again, state);
        assert_eq!(tuner, Tuner::new().save());
        assert_eq!(again.ticket(), 3);
        assert!(again.was_tuned("b") && !again.was_tuned("a") && !again.propose("b"));
        for other in [json!(null), json!([]), json!({"language": 3}), json!({"targets": {}})] {
            assert!(State::restore(&other).is_err(), "{other}");
        }
    }
}
