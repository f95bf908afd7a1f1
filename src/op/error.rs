//! What can be wrong with an operation, a shape, or a draw.

use crate::expr::ExprError;

/// What can be wrong with an operation's files, or with a shape given for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Neither the workspace nor the binary has it.
    #[error(
        "no operation `{name}`: `reference/{name}.toml` is neither in the workspace nor built in; `warpsmith ops` lists them"
    )]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The file does not parse, or contradicts itself.
    #[error("{file}: {what}")]
    Invalid {
        /// File name.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// An expression of the operation failed for a shape.
    #[error("operation `{op}`, {place}: {source}")]
    Expression {
        /// The operation.
        op: String,
        /// The key in its file, and the shape.
        place: String,
        /// What failed.
        source: ExprError,
    },
    /// A shape the operation does not have.
    #[error("operation `{op}`, shape {shape}: {what}")]
    Shape {
        /// The operation.
        op: String,
        /// The shape.
        shape: String,
        /// What is wrong with it.
        what: String,
    },
}

/// What is wrong with a text in TOML, with the line it is in; a key missing at the top is in no line.
#[must_use]
pub fn toml_reason(error: &toml::de::Error) -> String {
    let of_the_whole = error.span().is_none_or(|span| span.start == 0);
    let reason = if of_the_whole { error.message().to_owned() } else { error.to_string() };
    reason.trim().to_owned()
}
