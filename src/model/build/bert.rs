//! The graph of BERT (Devlin et al. 2018).

use super::{Answer, BIAS_SIGMA, Builder, Glue, Product, Stored, TensorKind, inverse_root};
use crate::model::config::{Bert, BertHead};

/// The whole pass: the tensor of the logits, `[tokens, vocab]`, or of the pooled sequences, `[batch, hidden]`.
pub(super) fn whole(b: &mut Builder<'_>, own: &Bert, layers: u64) -> (usize, Answer) {
    let (hidden, vocab, positions) = (b.config.hidden, b.config.vocab, b.config.max_positions);
    // A tied table must suit the output projection, where sums have `hidden` terms; the others weigh as much as it.
    let sigma = inverse_root(hidden);
    let at = "embeddings";
    let word = format!("{at}.word_embeddings");
    let (table, words) = b.embedding(&word, TensorKind::Tokens { vocab }, "tokens", vocab, sigma);
    let types = TensorKind::Tokens { vocab: own.type_vocab };
    let typed = b.added_embedding(&format!("{at}.token_type_embeddings"), words, types, own.type_vocab, sigma);
    let first = TensorKind::Positions { first: b.pass.first() };
    let placed = b.added_embedding(&format!("{at}.position_embeddings"), typed, first, positions, sigma);
    let mut stream = b.layernorm(&format!("{at}.norm"), placed);
    for layer in 0..layers {
        let attended = attention(b, &format!("layers.{layer}"), stream);
        stream = mlp(b, &format!("layers.{layer}"), attended);
    }
    match own.head {
        BertHead::MaskedLm => (masked_lm(b, stream, table), Answer::TokenHere),
        BertHead::Pooler => (pooler(b, stream), Answer::Vector),
    }
}

/// `norm(stream + output(attention(query(stream), …)))`
fn attention(b: &mut Builder<'_>, at: &str, stream: usize) -> usize {
    let heads = b.config.heads;
    let parts = ["query", "key", "value"].map(|part| square(b, &format!("{at}.attention.{part}"), stream));
    let out = b.attention(at, parts, heads, false);
    let projected = square(b, &format!("{at}.attention.output"), out);
    let sum = b.add(&format!("{at}.attention_residual"), projected, stream);
    b.layernorm(&format!("{at}.attention.norm"), sum)
}

/// `norm(stream + output(gelu(intermediate(stream))))`
fn mlp(b: &mut Builder<'_>, at: &str, stream: usize) -> usize {
    let (hidden, intermediate) = (b.config.hidden, b.config.intermediate);
    let product = b.over_tokens(hidden, intermediate, Stored::Transposed);
    let inner = b.projection(&format!("{at}.intermediate"), stream, product, Some(BIAS_SIGMA));
    let bent = b.map(&format!("{at}.intermediate.act"), inner, |elements| Glue::Gelu { elements });
    let product = b.over_tokens(intermediate, hidden, Stored::Transposed);
    let projected = b.projection(&format!("{at}.output"), bent, product, Some(BIAS_SIGMA));
    let sum = b.add(&format!("{at}.mlp_residual"), projected, stream);
    b.layernorm(&format!("{at}.output.norm"), sum)
}

/// A projection from the stream's width to the same.
fn square(b: &mut Builder<'_>, site: &str, x: usize) -> usize {
    let product = b.over_tokens(b.config.hidden, b.config.hidden, Stored::Transposed);
    b.projection(site, x, product, Some(BIAS_SIGMA))
}

/// `decoder(norm(gelu(dense(stream))))`
fn masked_lm(b: &mut Builder<'_>, stream: usize, table: usize) -> usize {
    let (hidden, vocab) = (b.config.hidden, b.config.vocab);
    let dense = square(b, "mlm.dense", stream);
    let bent = b.map("mlm.act", dense, |elements| Glue::Gelu { elements });
    let normed = b.layernorm("mlm.norm", bent);
    let product = b.over_tokens(hidden, vocab, Stored::Transposed);
    let head = if b.config.tie_word_embeddings { table } else { b.matrix("mlm.decoder", product) };
    let bias = b.tensor("mlm.decoder.bias", vec![vocab], TensorKind::Weight { sigma: BIAS_SIGMA });
    b.product("mlm.decoder", normed, head, Some(bias), product)
}

/// `tanh(dense(stream at each first token))`
fn pooler(b: &mut Builder<'_>, stream: usize) -> usize {
    let (width, batch, seq) = (b.config.hidden, b.pass.batch, b.pass.seq);
    let first = b.activation("pooler.first", vec![batch, width]);
    b.glue("pooler.first", Glue::FirstToken { batch, seq, width }, &[("x", stream), ("y", first)]);
    let product = Product { rows: batch, width, out: width, stored: Stored::Transposed };
    let dense = b.projection("pooler.dense", first, product, Some(BIAS_SIGMA));
    b.map("pooler.act", dense, |elements| Glue::Tanh { elements })
}
