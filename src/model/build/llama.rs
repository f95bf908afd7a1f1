//! The graph of a Llama-like decoder (Touvron et al. 2023; Mistral and Qwen2 differ in biases only).

use super::{Builder, Stored, TensorKind, inverse_root, sizes};
use crate::model::config::Llama;

/// The rotary tables, shared by all layers.
#[derive(Clone, Copy)]
struct Tables {
    cos: usize,
    sin: usize,
}

/// The whole pass; the tensor of the logits, `[tokens, vocab]`.
pub(super) fn whole(b: &mut Builder<'_>, own: &Llama, layers: u64) -> usize {
    let (hidden, vocab, tied) = (b.config.hidden, b.config.vocab, b.config.tie_word_embeddings);
    let (theta, first) = (own.rope_theta, b.pass.first());
    let half = vec![b.pass.queries(), b.config.head_dim / 2];
    let tables = Tables {
        cos: b.tensor("rotary.cos", half.clone(), TensorKind::RotaryCos { theta, first }),
        sin: b.tensor("rotary.sin", half, TensorKind::RotarySin { theta, first }),
    };
    // A tied table must suit the output projection, where sums have `hidden` terms.
    let sigma = if tied { inverse_root(hidden) } else { 1.0 };
    let (table, mut stream) = b.embedding("embed_tokens", TensorKind::Tokens { vocab }, "tokens", vocab, sigma);
    for layer in 0..layers {
        let attended = attention(b, own, &format!("layers.{layer}"), stream, tables);
        stream = mlp(b, &format!("layers.{layer}"), attended);
    }
    let normed = norm(b, "norm", stream);
    let product = b.over_tokens(hidden, vocab, Stored::Transposed);
    let head = if tied { table } else { b.matrix("lm_head", product) };
    b.product("lm_head", normed, head, None, product)
}

/// `stream + o(attention(rotary(q(norm(stream))), …))`
fn attention(b: &mut Builder<'_>, own: &Llama, at: &str, stream: usize, tables: Tables) -> usize {
    let (hidden, heads, head_dim, q_width) = (b.config.hidden, b.config.heads, b.config.head_dim, b.config.q_width());
    let normed = norm(b, &format!("{at}.input_norm"), stream);
    let [wide, narrow] = [q_width, own.kv_heads * head_dim].map(|out| b.over_tokens(hidden, out, Stored::Transposed));
    let sigma = own.qkv_bias.then(|| inverse_root(hidden));
    let q = b.projection(&format!("{at}.q_proj"), normed, wide, sigma);
    let k = b.projection(&format!("{at}.k_proj"), normed, narrow, sigma);
    let v = b.projection(&format!("{at}.v_proj"), normed, narrow, sigma);
    let q = rotary(b, &format!("{at}.rotary_q"), q, heads, tables);
    let k = rotary(b, &format!("{at}.rotary_k"), k, own.kv_heads, tables);
    let out = b.attention(at, [q, k, v], own.kv_heads, true);
    let product = b.over_tokens(q_width, hidden, Stored::Transposed);
    let projected = b.projection(&format!("{at}.o_proj"), out, product, own.o_bias.then(|| inverse_root(q_width)));
    b.add(&format!("{at}.attention_residual"), stream, projected)
}

/// `stream + mlp(norm(stream))`
fn mlp(b: &mut Builder<'_>, at: &str, stream: usize) -> usize {
    let (hidden, intermediate) = (b.config.hidden, b.config.intermediate);
    let normed = norm(b, &format!("{at}.post_attention_norm"), stream);
    let mut weight = |name: &str, width, out| {
        let product = b.over_tokens(width, out, Stored::Transposed);
        b.matrix(&format!("{at}.mlp.{name}"), product)
    };
    let gate = weight("gate_proj", hidden, intermediate);
    let up = weight("up_proj", hidden, intermediate);
    let down = weight("down_proj", intermediate, hidden);
    let tokens = b.pass.tokens();
    let y = b.activation(&format!("{at}.mlp.out"), vec![tokens, hidden]);
    let shape = sizes(&[("B", tokens), ("D", hidden), ("H", intermediate)]);
    let tensors = [("x", normed), ("w_gate", gate), ("w_up", up), ("w_down", down), ("y", y)];
    b.op(&format!("{at}.mlp"), "fused_mlp", shape, &tensors);
    b.add(&format!("{at}.mlp_residual"), stream, y)
}

fn norm(b: &mut Builder<'_>, site: &str, x: usize) -> usize {
    let (rows, cols) = (b.pass.tokens(), b.config.hidden);
    let weight = b.tensor(&format!("{site}.weight"), vec![cols], TensorKind::NormWeight);
    let y = b.activation(&format!("{site}.out"), vec![rows, cols]);
    b.normed("rmsnorm", site, sizes(&[("rows", rows), ("cols", cols)]), &[("x", x), ("weight", weight), ("y", y)]);
    y
}

fn rotary(b: &mut Builder<'_>, site: &str, x: usize, heads: u64, tables: Tables) -> usize {
    let (batch, queries, head_dim) = (b.pass.batch, b.pass.queries(), b.config.head_dim);
    let y = b.activation(&format!("{site}.out"), vec![b.pass.tokens(), heads * head_dim]);
    let shape = sizes(&[("B", batch), ("H", heads), ("S", queries), ("D", head_dim), ("bshd", 1), ("interleaved", 0)]);
    let tensors = [("x", x), ("cos", tables.cos), ("sin", tables.sin), ("y", y)];
    b.op(site, "rotary_embedding", shape, &tensors);
    y
}
