//! The names under which checkpoints keep a model's weights.

use super::Kind;

/// Sites of a graph and modules of a checkpoint; `{}` is the number of a layer. A row with the name of a tensor serves that
/// one alone.
struct Names {
    /// What a checkpoint of the bare model leaves out.
    base: &'static str,
    rows: &'static [(&'static str, &'static str)],
}

const LLAMA: Names = Names {
    base: "model.",
    rows: &[
        ("embed_tokens", "model.embed_tokens"),
        ("layers.{}.input_norm", "model.layers.{}.input_layernorm"),
        ("layers.{}.q_proj", "model.layers.{}.self_attn.q_proj"),
        ("layers.{}.k_proj", "model.layers.{}.self_attn.k_proj"),
        ("layers.{}.v_proj", "model.layers.{}.self_attn.v_proj"),
        ("layers.{}.o_proj", "model.layers.{}.self_attn.o_proj"),
        ("layers.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
        ("layers.{}.mlp.gate_proj", "model.layers.{}.mlp.gate_proj"),
        ("layers.{}.mlp.up_proj", "model.layers.{}.mlp.up_proj"),
        ("layers.{}.mlp.down_proj", "model.layers.{}.mlp.down_proj"),
        ("norm", "model.norm"),
        ("lm_head", "lm_head"),
    ],
};

const GPT2: Names = Names {
    base: "transformer.",
    rows: &[
        ("wte", "transformer.wte"),
        ("wpe", "transformer.wpe"),
        ("layers.{}.ln_1", "transformer.h.{}.ln_1"),
        ("layers.{}.attn.c_attn", "transformer.h.{}.attn.c_attn"),
        ("layers.{}.attn.c_proj", "transformer.h.{}.attn.c_proj"),
        ("layers.{}.ln_2", "transformer.h.{}.ln_2"),
        ("layers.{}.mlp.c_fc", "transformer.h.{}.mlp.c_fc"),
        ("layers.{}.mlp.c_proj", "transformer.h.{}.mlp.c_proj"),
        ("ln_f", "transformer.ln_f"),
        ("lm_head", "lm_head"),
    ],
};

const BERT: Names = Names {
    base: "bert.",
    rows: &[
        ("embeddings.word_embeddings", "bert.embeddings.word_embeddings"),
        ("embeddings.token_type_embeddings", "bert.embeddings.token_type_embeddings"),
        ("embeddings.position_embeddings", "bert.embeddings.position_embeddings"),
        ("embeddings.norm", "bert.embeddings.LayerNorm"),
        ("layers.{}.attention.query", "bert.encoder.layer.{}.attention.self.query"),
        ("layers.{}.attention.key", "bert.encoder.layer.{}.attention.self.key"),
        ("layers.{}.attention.value", "bert.encoder.layer.{}.attention.self.value"),
        ("layers.{}.attention.output", "bert.encoder.layer.{}.attention.output.dense"),
        ("layers.{}.attention.norm", "bert.encoder.layer.{}.attention.output.LayerNorm"),
        ("layers.{}.intermediate", "bert.encoder.layer.{}.intermediate.dense"),
        ("layers.{}.output", "bert.encoder.layer.{}.output.dense"),
        ("layers.{}.output.norm", "bert.encoder.layer.{}.output.LayerNorm"),
        ("pooler.dense", "bert.pooler.dense"),
        ("mlm.dense", "cls.predictions.transform.dense"),
        ("mlm.norm", "cls.predictions.transform.LayerNorm"),
        ("mlm.decoder.bias", "cls.predictions.bias"),
        ("mlm.decoder", "cls.predictions.decoder"),
    ],
};

/// The names that a checkpoint may have for the graph's tensor `name`, the usual one first; none for what is no weight.
#[must_use]
pub fn stored_names(kind: &Kind, name: &str) -> Vec<String> {
    let Names { base, rows } = match kind {
        Kind::Llama(_) => LLAMA,
        Kind::Gpt2 => GPT2,
        Kind::Bert(_) => BERT,
    };
    let (general, layer) = without_layer(name);
    let mut names = Vec::new();
    for (ours, theirs) in rows {
        let Some(suffix) = general.strip_prefix(ours).filter(|rest| ["", ".weight", ".bias"].contains(rest)) else {
            continue;
        };
        // Files converted from TensorFlow call a norm's weight and bias gamma and beta.
        let older = match suffix {
            ".weight" if theirs.ends_with("LayerNorm") => Some(".gamma"),
            ".bias" if theirs.ends_with("LayerNorm") => Some(".beta"),
            _ => None,
        };
        let module = theirs.replace("{}", layer);
        for suffix in std::iter::once(suffix).chain(older) {
            let full = format!("{module}{suffix}");
            let bare = full.strip_prefix(base).map(str::to_owned);
            names.push(full);
            names.extend(bare);
        }
    }
    names
}

/// The name with the layer's number as `{}`, and the number.
fn without_layer(name: &str) -> (String, &str) {
    let split = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.'));
    match split {
        Some((layer, rest)) => (format!("layers.{{}}.{rest}"), layer),
        None => (name.to_owned(), ""),
    }
}
