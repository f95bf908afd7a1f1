//! A model directory: its `config.json`, and the graph of operations that one pass through it runs.
//!
//! [`ModelConfig`] reads the Hugging Face file, [`Graph::build`] turns it into calls at their real
//! shapes, [`Memory`] says what a pass needs before anything is allocated, [`Header`] reads that of a file of weights.

mod build;
mod config;
mod family;
mod glue;
mod graph;
mod json;
mod memory;
mod safetensors;
mod stored;
#[cfg(test)]
mod tests;

pub use config::{Bert, BertHead, Kind, Llama, ModelConfig};
pub use glue::Glue;
pub use graph::{Answer, Binding, Graph, Node, Pass, Phase, Target, Tensor, TensorKind, Work};
pub use memory::{Memory, Slots};
pub use safetensors::{Header, Stored, parse_index};
pub use stored::stored_names;

/// What can be wrong with a model directory, or with the pass asked of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The path is not a directory.
    #[error("{path} is not a directory here; name the one that holds the model's Hugging Face `config.json`")]
    NotADirectory {
        /// The path as it was given.
        path: String,
    },
    /// The configuration cannot be read.
    #[error("{path}: {why}; a model directory holds a Hugging Face `config.json`")]
    Unreadable {
        /// The file.
        path: String,
        /// The system's words.
        why: String,
    },
    /// The configuration is not a JSON object.
    #[error("{model}/config.json is not a JSON object ({why}); it should be the model's Hugging Face configuration")]
    NotJson {
        /// The model.
        model: String,
        /// What the parser met, with its place.
        why: String,
    },
    /// An architecture there is no graph for.
    #[error("{model} is a {found}; supported architectures are {supported}")]
    Architecture {
        /// The model.
        model: String,
        /// What the configuration calls itself.
        found: String,
        /// The names there are.
        supported: String,
        /// Whether the configuration says at all what it is.
        stated: bool,
    },
    /// A feature of a supported architecture that no operation computes.
    #[error("{model}/config.json: {what} is not supported: {why}")]
    Unsupported {
        /// The model.
        model: String,
        /// The key and its value.
        what: String,
        /// What is missing.
        why: String,
    },
    /// A key that must be there is not.
    #[error("{model}/config.json has no `{key}`, {meaning}")]
    Missing {
        /// The model.
        model: String,
        /// The key.
        key: &'static str,
        /// What it would say.
        meaning: &'static str,
    },
    /// A value that no model can have.
    #[error("{model}/config.json: `{key}` is {found}; it must be {expected}")]
    Value {
        /// The model.
        model: String,
        /// The key.
        key: String,
        /// The value there, shortened.
        found: String,
        /// The values allowed.
        expected: String,
    },
    /// A file of weights that is not what it should be.
    #[error("{file}: {what}")]
    Weights {
        /// The file's name.
        file: String,
        /// What is wrong, with the tensor where it is one's.
        what: String,
    },
    /// The pass asked for does not fit the model.
    #[error("{0}")]
    Pass(String),
    /// More memory than the machine has free.
    #[error("{0}")]
    Memory(String),
}
