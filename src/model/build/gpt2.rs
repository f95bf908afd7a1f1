//! The graph of GPT-2 (Radford et al. 2019).

use super::{BIAS_SIGMA, Builder, Glue, Stored, TensorKind, inverse_root};

/// The whole pass; the tensor of the logits, `[tokens, vocab]`.
pub(super) fn whole(b: &mut Builder<'_>, layers: u64) -> usize {
    let (hidden, vocab, positions) = (b.config.hidden, b.config.vocab, b.config.max_positions);
    // A tied table must suit the output projection, where sums have `hidden` terms; positions weigh as much as tokens.
    let sigma = inverse_root(hidden);
    let (table, words) = b.embedding("wte", TensorKind::Tokens { vocab }, "tokens", vocab, sigma);
    let first = b.pass.first();
    let mut stream = b.added_embedding("wpe", words, TensorKind::Positions { first }, positions, sigma);
    for layer in 0..layers {
        let attended = attention(b, &format!("layers.{layer}"), stream);
        stream = mlp(b, &format!("layers.{layer}"), attended);
    }
    let normed = b.layernorm("ln_f", stream);
    let product = b.over_tokens(hidden, vocab, Stored::Transposed);
    let head = if b.config.tie_word_embeddings { table } else { b.matrix("lm_head", product) };
    b.product("lm_head", normed, head, None, product)
}

/// `stream + c_proj(attention(c_attn(norm(stream))))`
fn attention(b: &mut Builder<'_>, at: &str, stream: usize) -> usize {
    let (hidden, heads, tokens) = (b.config.hidden, b.config.heads, b.pass.tokens());
    let normed = b.layernorm(&format!("{at}.ln_1"), stream);
    let product = b.over_tokens(hidden, 3 * hidden, Stored::Plain);
    let fused = b.projection(&format!("{at}.attn.c_attn"), normed, product, Some(BIAS_SIGMA));
    let parts = ["q", "k", "v"].map(|part| b.activation(&format!("{at}.attn.{part}"), vec![tokens, hidden]));
    let [q, k, v] = parts;
    let tensors = [("x", fused), ("q", q), ("k", k), ("v", v)];
    b.glue(&format!("{at}.attn.split"), Glue::Split { tokens, width: hidden }, &tensors);
    let out = b.attention(at, parts, heads, true);
    let product = b.over_tokens(hidden, hidden, Stored::Plain);
    let projected = b.projection(&format!("{at}.attn.c_proj"), out, product, Some(BIAS_SIGMA));
    b.add(&format!("{at}.attention_residual"), stream, projected)
}

/// `stream + c_proj(gelu(c_fc(norm(stream))))`
fn mlp(b: &mut Builder<'_>, at: &str, stream: usize) -> usize {
    let (hidden, intermediate) = (b.config.hidden, b.config.intermediate);
    let normed = b.layernorm(&format!("{at}.ln_2"), stream);
    let product = b.over_tokens(hidden, intermediate, Stored::Plain);
    let inner = b.projection(&format!("{at}.mlp.c_fc"), normed, product, Some(BIAS_SIGMA));
    let bent = b.map(&format!("{at}.mlp.act"), inner, |elements| Glue::GeluTanh { elements });
    let product = b.over_tokens(intermediate, hidden, Stored::Plain);
    let projected = b.projection(&format!("{at}.mlp.c_proj"), bent, product, Some(BIAS_SIGMA));
    b.add(&format!("{at}.mlp_residual"), stream, projected)
}
