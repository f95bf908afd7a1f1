//! An operation's files by value, so that they can travel to a worker elsewhere.

use serde::{Deserialize, Serialize};

use super::{OpError, Operation};

/// An operation's two files.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpSource {
    /// The operation's name.
    pub name: String,
    /// `reference/<op>.toml`.
    pub toml: String,
    /// `reference/<op>.h`.
    pub header: String,
}

impl OpSource {
    /// Reads an operation's files through `read` (path below the workspace → text).
    ///
    /// # Errors
    /// [`OpError::Unknown`] where the workspace and the binary have no `reference/<op>.toml`, [`OpError::Invalid`] where
    /// they have no `reference/<op>.h`.
    pub fn read(name: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<Self, OpError> {
        let unknown = || OpError::Unknown { name: name.to_owned() };
        // The name becomes part of a path and of C source: nothing but an identifier is looked up.
        if !super::check::is_identifier(name) {
            return Err(unknown());
        }
        let toml = read(&format!("reference/{name}.toml")).ok_or_else(unknown)?;
        let header = read(&format!("reference/{name}.h")).ok_or_else(|| OpError::Invalid {
            file: format!("reference/{name}.h"),
            what: "there is no such file: the operation has no oracle".into(),
        })?;
        Ok(Self { name: name.to_owned(), toml, header })
    }

    /// The operation.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn operation(&self) -> Result<Operation, OpError> {
        Operation::parse(&self.toml, &self.header, &self.name)
    }
}
