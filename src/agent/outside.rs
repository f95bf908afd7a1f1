//! An agent for whoever proposes on their own account: it has a name and nothing to say.

use serde_json::Value;

use super::{Agent, AgentError, BoxFuture, Brief, Offer, Outcome, Screen};

/// Someone who proposes from outside.
#[derive(Debug, Clone)]
pub struct Outside {
    /// What they come through, such as `mcp`.
    pub name: String,
}

impl Agent for Outside {
    fn name(&self) -> &str {
        &self.name
    }

    fn propose<'a>(
        &'a mut self,
        _brief: &'a Brief,
        _screen: &'a mut dyn Screen,
    ) -> BoxFuture<'a, Result<Offer, AgentError>> {
        let why = format!("proposals come through {}", self.name);
        Box::pin(async move { Ok(Offer::Exhausted { why }) })
    }

    fn learn(&mut self, _outcome: &Outcome) {}

    fn save(&self) -> Value {
        Value::Null
    }

    fn restore(&mut self, _state: &Value) -> Result<(), AgentError> {
        Ok(())
    }
}
