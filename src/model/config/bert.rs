//! BERT (Devlin et al. 2018). Absent keys have the values of Hugging Face's `BertConfig`, but for the sizes.

use serde::{Deserialize, Serialize};

use super::super::ModelError;
use super::super::json::Keys;
use super::{Kind, ModelConfig, most, notes, published_dtype};

/// What only BERT has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bert {
    /// Kinds of segments that tokens can belong to.
    pub type_vocab: u64,
    /// What follows the last layer.
    pub head: BertHead,
}

/// What follows BERT's last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BertHead {
    /// `BertForMaskedLM`: a projection with GELU and layernorm, then the vocabulary.
    MaskedLm,
    /// `BertModel`: a projection of each sequence's first token, and tanh.
    Pooler,
}

pub(super) fn read(keys: &Keys<'_>, head: BertHead) -> Result<ModelConfig, ModelError> {
    keys.only("hidden_act", &["gelu"], "BERT's graph has GELU by the error function (gelu)")?;
    keys.only("position_embedding_type", &["absolute"], "flash_attention adds nothing to scores")?;
    keys.must_be("is_decoder", false, "BERT's graph is an encoder's, whose tokens see each other")?;
    keys.must_be("add_cross_attention", false, "there is no encoder to attend to")?;
    let hidden = keys.required_size("hidden_size", most::HIDDEN, "the width of the residual stream")?;
    let heads = keys.required_size("num_attention_heads", most::HEADS, "the number of heads")?;
    Ok(ModelConfig {
        name: keys.model.to_owned(),
        hidden,
        intermediate: keys.required_size("intermediate_size", most::INTERMEDIATE, "the width of the MLP")?,
        layers: keys.required_size("num_hidden_layers", most::LAYERS, "the number of layers")?,
        heads,
        head_dim: keys.even_heads(("hidden_size", hidden), ("num_attention_heads", heads))?,
        vocab: keys.required_size("vocab_size", most::VOCAB, "the number of tokens")?,
        norm_eps: keys.number("layer_norm_eps", 1e-12, 1e-12, 1.0)?,
        max_positions: keys.required_size("max_position_embeddings", most::VOCAB, "the longest sequence")?,
        tie_word_embeddings: keys.flag("tie_word_embeddings", true)?,
        dtype: published_dtype(keys)?,
        weights: None,
        kind: Kind::Bert(Bert { type_vocab: keys.size("type_vocab_size", most::HEADS)?.unwrap_or(2), head }),
        notes: notes(keys),
    })
}
