//! `config.json` of the Llama, Mistral and Qwen2 kind.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ModelError;
use super::family::{self, Family};
use super::json::{Keys, shorten};
use crate::op::Dtype;

/// A configuration has some dozen keys; what is larger is another file.
const MAX_BYTES: u64 = 1 << 20;

/// What a decoder's configuration says, with the defaults of its family filled in and checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// The directory's name.
    pub name: String,
    /// Which kind.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the MLP.
    pub intermediate: u64,
    /// Number of decoder layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Width of a head; even.
    pub head_dim: u64,
    /// Number of tokens.
    pub vocab: u64,
    /// ε of every rmsnorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// Longest sequence it was made for.
    pub max_positions: u64,
    /// A query sees at most this many keys, where the model says so.
    pub sliding_window: Option<u64>,
    /// The dtype of its weights as published.
    pub dtype: Option<Dtype>,
    /// What the configuration says that a run with drawn weights does not follow, a sentence each.
    pub notes: Vec<String>,
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
        Self::parse(&name, &text)
    }

    /// Reads the text of a `config.json`; `name` is the model's, for errors.
    ///
    /// # Errors
    /// What is not JSON, another architecture, a missing key, a value no model can have, a feature no operation
    /// computes: each names the key.
    pub fn parse(name: &str, text: &str) -> Result<Self, ModelError> {
        let model = name.to_owned();
        // Editors on Windows put a mark before the text, which JSON does not allow.
        let parsed: Value = serde_json::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|error| ModelError::NotJson { model: model.clone(), why: error.to_string() })?;
        let Value::Object(map) = &parsed else {
            return Err(ModelError::NotJson { model, why: format!("it is {}", shorten(&parsed.to_string())) });
        };
        let keys = Keys { model: name, map };
        let family = family::of(&keys)?;
        let config = Self::read(&keys, family)?;
        config.check()?;
        Ok(config)
    }

    /// The bounds keep every product of sizes within 63 bits, far above any model there is.
    fn read(keys: &Keys<'_>, family: Family) -> Result<Self, ModelError> {
        let hidden = keys.required_size("hidden_size", 1 << 20, "the width of the residual stream")?;
        let heads = keys.required_size("num_attention_heads", 1 << 16, "the number of query heads")?;
        let head_dim = match keys.size("head_dim", 1 << 12)? {
            Some(size) => size,
            None if hidden % heads == 0 => hidden / heads,
            None => {
                return Err(keys.inconsistent(
                    "num_attention_heads",
                    heads,
                    format!("a divisor of hidden_size {hidden}, unless head_dim is given"),
                ));
            }
        };
        let kv_heads = keys.size("num_key_value_heads", 1 << 16)?.unwrap_or(heads);
        let attention_bias = keys.flag("attention_bias", false)?;
        Ok(Self {
            name: keys.model.to_owned(),
            family,
            hidden,
            intermediate: keys.required_size("intermediate_size", 1 << 22, "the width of the MLP")?,
            layers: keys.required_size("num_hidden_layers", 1 << 12, "the number of layers")?,
            heads,
            kv_heads,
            head_dim,
            vocab: keys.required_size("vocab_size", 1 << 24, "the number of tokens")?,
            rms_norm_eps: keys.number("rms_norm_eps", 1e-6, 1e-12, 1.0)?,
            rope_theta: rope_theta(keys)?,
            tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
            qkv_bias: match family {
                Family::Llama => attention_bias,
                Family::Mistral => false,
                Family::Qwen2 => true,
            },
            o_bias: attention_bias && family == Family::Llama,
            max_positions: keys.size("max_position_embeddings", 1 << 32)?.unwrap_or(match family {
                Family::Llama => 2048,
                Family::Mistral => 131_072,
                Family::Qwen2 => 32_768,
            }),
            sliding_window: sliding_window(keys, family)?,
            dtype: published_dtype(keys)?,
            notes: notes(keys),
        })
    }

    fn check(&self) -> Result<(), ModelError> {
        let bad = |key: &str, found: u64, expected: String| {
            let (model, key) = (self.name.clone(), key.to_owned());
            Err(ModelError::Value { model, key, found: found.to_string(), expected })
        };
        if !self.heads.is_multiple_of(self.kv_heads) {
            return bad(
                "num_key_value_heads",
                self.kv_heads,
                format!("a divisor of num_attention_heads {}", self.heads),
            );
        }
        if !self.head_dim.is_multiple_of(2) {
            return bad("head_dim", self.head_dim, "even: rotary embedding turns pairs".to_owned());
        }
        if self.heads * self.head_dim > 1 << 22 {
            return bad(
                "head_dim",
                self.head_dim,
                format!("at most {} with {} heads", (1 << 22) / self.heads, self.heads),
            );
        }
        Ok(())
    }

    /// Width of the queries, all heads together.
    #[must_use]
    pub const fn q_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of the keys, all heads together; the values' too.
    #[must_use]
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }
}

impl Keys<'_> {
    fn inconsistent(&self, key: &str, found: u64, expected: String) -> ModelError {
        ModelError::Value { model: self.model.to_owned(), key: key.to_owned(), found: found.to_string(), expected }
    }
}

/// The base stands at the top, or in `rope_parameters` in files written by transformers 5.
fn rope_theta(keys: &Keys<'_>) -> Result<f64, ModelError> {
    let (default, low, high) = (10_000.0, 1.0, 1e12);
    match keys.map.get("rope_parameters") {
        Some(Value::Object(map)) if !keys.says("rope_theta") => {
            Keys { model: keys.model, map }.number("rope_theta", default, low, high)
        }
        _ => keys.number("rope_theta", default, low, high),
    }
}

/// Mistral's class has a window of 4096 unless the file says `null`; Qwen2 writes one that it does not use unless
/// it says so.
fn sliding_window(keys: &Keys<'_>, family: Family) -> Result<Option<u64>, ModelError> {
    let window = keys.size("sliding_window", 1 << 32)?;
    Ok(match family {
        Family::Llama => None,
        Family::Mistral if !keys.map.contains_key("sliding_window") => Some(4096),
        Family::Mistral => window,
        Family::Qwen2 if keys.flag("use_sliding_window", false)? => window,
        Family::Qwen2 => None,
    })
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

fn notes(keys: &Keys<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if keys.says("quantization_config") {
        notes.push("quantization_config is not followed: weights are drawn in the pass's own dtype".to_owned());
    }
    if keys.says("rope_scaling") {
        notes.push("rope_scaling is not followed: it changes numbers in the rotary tables, not the work".to_owned());
    }
    notes
}
