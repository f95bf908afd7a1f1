//! Llama, Mistral and Qwen2: one graph, with other defaults and biases.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::ModelError;
use super::super::family::Family;
use super::super::json::Keys;
use super::{Kind, ModelConfig, most, notes, published_dtype};

/// What only decoders of the Llama kind have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Llama {
    /// Key and value heads; divides the query heads.
    pub kv_heads: u64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// A query sees at most this many keys, where the model says so.
    pub sliding_window: Option<u64>,
}

pub(super) fn read(keys: &Keys<'_>, family: Family) -> Result<ModelConfig, ModelError> {
    keys.only("hidden_act", &["silu", "swish"], "fused_mlp computes SwiGLU, whose activation is silu")?;
    keys.must_be("mlp_bias", false, "fused_mlp has no bias")?;
    let hidden = keys.required_size("hidden_size", most::HIDDEN, "the width of the residual stream")?;
    let heads = keys.required_size("num_attention_heads", most::HEADS, "the number of query heads")?;
    let head_dim = match keys.size("head_dim", most::HEAD_DIM)? {
        Some(size) => size,
        None if hidden % heads == 0 => hidden / heads,
        None => {
            let expected = format!("a divisor of hidden_size {hidden}, unless head_dim is given");
            return Err(keys.value("num_attention_heads", heads, expected));
        }
    };
    let kv_heads = keys.size("num_key_value_heads", most::HEADS)?.unwrap_or(heads);
    if heads % kv_heads != 0 {
        return Err(keys.value("num_key_value_heads", kv_heads, format!("a divisor of num_attention_heads {heads}")));
    }
    if head_dim % 2 != 0 {
        return Err(keys.value("head_dim", head_dim, "even: rotary embedding turns pairs".to_owned()));
    }
    if heads * head_dim > most::INTERMEDIATE {
        let expected = format!("at most {} with {heads} heads", most::INTERMEDIATE / heads);
        return Err(keys.value("head_dim", head_dim, expected));
    }
    let attention_bias = keys.flag("attention_bias", false)?;
    let mut notes = notes(keys);
    if keys.says("rope_scaling") {
        notes.push("rope_scaling is not followed: it changes numbers in the rotary tables, not the work".to_owned());
    }
    Ok(ModelConfig {
        name: keys.model.to_owned(),
        hidden,
        intermediate: keys.required_size("intermediate_size", most::INTERMEDIATE, "the width of the MLP")?,
        layers: keys.required_size("num_hidden_layers", most::LAYERS, "the number of layers")?,
        heads,
        head_dim,
        vocab: keys.required_size("vocab_size", most::VOCAB, "the number of tokens")?,
        norm_eps: keys.number("rms_norm_eps", 1e-6, 1e-12, 1.0)?,
        max_positions: keys.size("max_position_embeddings", most::POSITIONS)?.unwrap_or(match family {
            Family::Mistral => 131_072,
            Family::Qwen2 => 32_768,
            _ => 2048,
        }),
        tie_word_embeddings: keys.flag("tie_word_embeddings", false)?,
        dtype: published_dtype(keys)?,
        weights: None,
        kind: Kind::Llama(Llama {
            kv_heads,
            rope_theta: rope_theta(keys)?,
            qkv_bias: match family {
                Family::Mistral => false,
                Family::Qwen2 => true,
                _ => attention_bias,
            },
            o_bias: attention_bias && family == Family::Llama,
            sliding_window: sliding_window(keys, family)?,
        }),
        notes,
    })
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
    let window = keys.size("sliding_window", most::POSITIONS)?;
    Ok(match family {
        Family::Mistral if !keys.map.contains_key("sliding_window") => Some(4096),
        Family::Mistral => window,
        Family::Qwen2 if keys.flag("use_sliding_window", false)? => window,
        _ => None,
    })
}
