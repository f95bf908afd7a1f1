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
    /// A file that is missing in the workspace and in the binary.
    pub fn read(name: &str, read: &dyn Fn(&str) -> Option<String>) -> Result<Self, OpError> {
        let file = |extension: &str| {
            let path = format!("reference/{name}.{extension}");
            read(&path).ok_or_else(|| OpError::Invalid { file: path, what: "no such file".to_owned() })
        };
        Ok(Self { name: name.to_owned(), toml: file("toml")?, header: file("h")? })
    }

    /// The operation.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn operation(&self) -> Result<Operation, OpError> {
        Operation::parse(&self.toml, &self.header, &self.name)
    }
}
