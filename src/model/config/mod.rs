//! `config.json` of every kind of model that is known.

mod bert;
mod gpt2;
mod llama;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ModelError;
use super::family::{self, Family};
use super::json::{Keys, shorten};
use crate::op::Dtype;
pub use bert::{Bert, BertHead};
pub use llama::Llama;

/// A configuration has some dozen keys; what is larger is another file.
const MAX_BYTES: u64 = 1 << 20;

/// What a model's configuration says, with the defaults of its family filled in and checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The directory's name.
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the MLP.
    pub intermediate: u64,
    /// Number of layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Number of tokens.
    pub vocab: u64,
    /// ε of every norm.
    pub norm_eps: f64,
    /// Longest sequence it was made for.
    pub max_positions: u64,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// The dtype of its weights as published.
    pub dtype: Option<Dtype>,
    /// What only its family has.
    pub kind: Kind,
    /// The directory, where it has weights (`*.safetensors`).
    #[serde(default)]
    pub weights: Option<PathBuf>,
    /// What the configuration says that a pass does not follow, a sentence each.
    pub notes: Vec<String>,
}

/// Which graph, and what only that has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Llama, Mistral and Qwen2.
    Llama(Llama),
    /// GPT-2.
    Gpt2,
    /// BERT.
    Bert(Bert),
}

impl ModelConfig {
    /// Reads `dir/config.json`.
    ///
    /// # Errors
    /// A path that is no model directory, and everything [`ModelConfig::parse`] refuses.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        if !dir.is_dir() {
            return Err(ModelError::NotADirectory { path: dir.display().to_string() });
        }
        let path = dir.join("config.json");
        let fail = |why: String| ModelError::Unreadable { path: path.display().to_string(), why };
        let facts = std::fs::metadata(&path).map_err(|error| fail(error.to_string()))?;
        // Reading a pipe or a device would never end.
        if !facts.is_file() {
            return Err(fail("not a regular file".to_owned()));
        }
        if facts.len() > MAX_BYTES {
            return Err(fail(format!("{} bytes is too long for a configuration", facts.len())));
        }
        let text = std::fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
        // `models/x/.` and `.` have no name of their own.
        let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
        let name = whole.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
        let mut config = Self::parse(&name, &text)?;
        config.weights = has_weights(&whole).then_some(whole);
        Ok(config)
    }

    /// Reads the text of a `config.json`; `name` is the model's, for errors.
    ///
    /// # Errors
    /// What is not JSON, another architecture, a missing key, a value no model can have, a feature no operation
    /// computes: each names the key.
    pub fn parse(name: &str, text: &str) -> Result<Self, ModelError> {
        let model = name.to_owned();
        // Editors on Windows put a mark before the text, which JSON does not allow.
        let text = text.trim_start_matches('\u{feff}');
        let parsed: Value = serde_json::from_str(text).map_err(|error| {
            let why = if text.trim().is_empty() { "it is empty".to_owned() } else { error.to_string() };
            ModelError::NotJson { model: model.clone(), why }
        })?;
        let Value::Object(map) = &parsed else {
            return Err(ModelError::NotJson { model, why: format!("it is {}", shorten(&parsed.to_string())) });
        };
        let keys = Keys { model: name, map };
        let family = family::of(&keys)?;
        Self::read(&keys, family)
    }

    /// The bounds keep every product of sizes within 63 bits, far above any model there is.
    fn read(keys: &Keys<'_>, family: Family) -> Result<Self, ModelError> {
        match family {
            Family::Llama | Family::Mistral | Family::Qwen2 => llama::read(keys, family),
            Family::Gpt2 => gpt2::read(keys),
            Family::BertMaskedLm => bert::read(keys, BertHead::MaskedLm),
            Family::Bert => bert::read(keys, BertHead::Pooler),
        }
    }

    /// Width of the queries, all heads together.
    #[must_use]
    pub const fn q_width(&self) -> u64 {
        self.heads * self.head_dim
    }
}

/// Upper bounds of sizes: of the residual stream, the MLP, the layers, the heads, a head, the vocabulary, a sequence.
mod most {
    pub const HIDDEN: u64 = 1 << 20;
    pub const INTERMEDIATE: u64 = 1 << 22;
    pub const LAYERS: u64 = 1 << 12;
    pub const HEADS: u64 = 1 << 16;
    pub const HEAD_DIM: u64 = 1 << 12;
    pub const VOCAB: u64 = 1 << 24;
    pub const POSITIONS: u64 = 1 << 32;
}

fn published_dtype(keys: &Keys<'_>) -> Result<Option<Dtype>, ModelError> {
    let name = match keys.text("torch_dtype")? {
        Some(name) => Some(name),
        None => keys.text("dtype")?,
    };
    Ok(match name {
        Some("float16") => Some(Dtype::F16),
        Some("bfloat16") => Some(Dtype::Bf16),
        Some("float32") => Some(Dtype::F32),
        _ => None,
    })
}

/// Whether there are files of weights, or an index of some.
fn has_weights(dir: &Path) -> bool {
    let named = |name: std::ffi::OsString| {
        let name = name.to_string_lossy();
        name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
    };
    std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(|entry| named(entry.file_name())))
}

/// What every family may say and no pass follows.
fn notes(keys: &Keys<'_>) -> Vec<String> {
    let text = "quantization_config is not followed: the pass has its own dtype";
    if keys.says("quantization_config") { vec![text.to_owned()] } else { Vec::new() }
}
