//! An operation's files by value, so that they can travel to a worker elsewhere.

use serde::{Deserialize, Serialize};

use super::{OpError, Operation};

/// An operation's two files: what it is, and its oracle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpSource {
    /// The operation's name.
    pub name: String,
    /// `reference/<op>.toml`.
    pub toml: String,
    /// `reference/<op>.h`; empty where PyTorch is the oracle.
    pub header: String,
    /// `reference/<op>.py`, where PyTorch is the oracle.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub python: String,
}

impl OpSource {
    /// Reads an operation's files through `read` (path below the workspace → text).
    ///
    /// # Errors
    /// [`OpError::Unknown`] where the workspace and the binary have no `reference/<op>.toml`, [`OpError::Invalid`] where
    /// they have no `reference/<op>.h` (`.py` where `oracle = "torch"`).
    pub fn read(name: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<Self, OpError> {
        let unknown = || OpError::Unknown { name: name.to_owned() };
        // The name becomes part of a path and of C source: nothing but an identifier is looked up.
        if !super::check::is_identifier(name) {
            return Err(unknown());
        }
        let toml = read(&format!("reference/{name}.toml")).ok_or_else(unknown)?;
        let torch = is_torch(&toml);
        let file = format!("reference/{name}.{}", if torch { "py" } else { "h" });
        let oracle = read(&file).ok_or_else(|| OpError::Invalid {
            file,
            what: "there is no such file: the operation has no oracle".into(),
        })?;
        let (header, python) = if torch { (String::new(), oracle) } else { (oracle, String::new()) };
        Ok(Self { name: name.to_owned(), toml, header, python })
    }

    /// The oracle's text, whatever language it is in.
    #[must_use]
    pub fn oracle(&self) -> &str {
        if self.python.is_empty() { &self.header } else { &self.python }
    }

    /// The operation.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn operation(&self) -> Result<Operation, OpError> {
        Operation::parse(&self.toml, self.oracle(), &self.name)
    }
}

/// Whether a file says that PyTorch is its oracle. What is wrong with the file is told when it is parsed.
fn is_torch(toml: &str) -> bool {
    let table: toml::Table = toml.parse().unwrap_or_default();
    table.get("oracle").and_then(toml::Value::as_str) == Some("torch")
}
