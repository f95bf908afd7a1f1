//! GPT-2 (Radford et al. 2019). Absent keys have the values of Hugging Face's `GPT2Config`, but for the sizes.

use super::super::ModelError;
use super::super::json::Keys;
use super::{Kind, ModelConfig, most, notes, published_dtype};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelError> {
    // Three names of one formula.
    let same = ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"];
    keys.only("activation_function", &same, "GPT-2's graph has the tanh form of GELU (gelu_new)")?;
    keys.must_be("scale_attn_weights", true, "flash_attention divides scores by the root of a head's width")?;
    keys.must_be("scale_attn_by_inverse_layer_idx", false, "flash_attention scales every layer alike")?;
    keys.must_be("add_cross_attention", false, "there is no encoder to attend to")?;
    let hidden = keys.required_size("n_embd", most::HIDDEN, "the width of the residual stream")?;
    let heads = keys.required_size("n_head", most::HEADS, "the number of heads")?;
    let positions = keys.required_size("n_positions", most::VOCAB, "the longest sequence")?;
    // An older name for the same size.
    if let Some(other) = keys.size("n_ctx", most::VOCAB)?.filter(|other| *other != positions) {
        return Err(keys.value("n_ctx", other, format!("{positions}, as n_positions says")));
    }
    Ok(ModelConfig {
        name: keys.model.to_owned(),
        hidden,
        intermediate: keys.size("n_inner", most::INTERMEDIATE)?.unwrap_or(4 * hidden),
        layers: keys.required_size("n_layer", most::LAYERS, "the number of layers")?,
        heads,
        head_dim: keys.even_heads(("n_embd", hidden), ("n_head", heads))?,
        vocab: keys.required_size("vocab_size", most::VOCAB, "the number of tokens")?,
        norm_eps: keys.number("layer_norm_epsilon", 1e-5, 1e-12, 1.0)?,
        max_positions: positions,
        tie_word_embeddings: keys.flag("tie_word_embeddings", true)?,
        dtype: published_dtype(keys)?,
        weights: None,
        kind: Kind::Gpt2,
        notes: notes(keys),
    })
}
