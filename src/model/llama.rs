//! The graph of a Llama-like decoder's prefill (Touvron et al. 2023; Mistral and Qwen2 differ in biases only).

use std::collections::BTreeMap;

use super::{Binding, Glue, Graph, ModelConfig, ModelError, Node, Pass, Tensor, TensorKind, Work};
use crate::op::Shape;

/// Most tokens in a pass: keeps every product of sizes within 63 bits for all configurations that are accepted.
const MOST_TOKENS: u64 = 1 << 24;

pub(super) fn build(config: &ModelConfig, pass: Pass) -> Result<Graph, ModelError> {
    let layers = check(config, pass)?;
    let mut notes = config.notes.clone();
    if layers < config.layers {
        notes.push(format!("the first {layers} of {} layers are run", config.layers));
    }
    if pass.seq > config.max_positions {
        notes.push(format!("{} tokens are more than the {} the model was made for", pass.seq, config.max_positions));
    }
    let mut decoder = Decoder { config, pass, tensors: Vec::new(), nodes: Vec::new() };
    let output = decoder.whole(layers);
    let Decoder { tensors, nodes, .. } = decoder;
    let model = config.name.clone();
    Ok(Graph { model, pass, layers, layers_of_model: config.layers, tensors, nodes, output, notes })
}

fn check(config: &ModelConfig, pass: Pass) -> Result<u64, ModelError> {
    let refuse = |why: String| Err(ModelError::Pass(why));
    if pass.batch == 0 || pass.seq == 0 {
        return refuse(format!(
            "a pass of {} sequences of {} tokens runs nothing: both must be 1 or more",
            pass.batch, pass.seq
        ));
    }
    if pass.batch.checked_mul(pass.seq).is_none_or(|tokens| tokens > MOST_TOKENS) {
        return refuse(format!("{} x {} tokens are too many: a pass has at most {MOST_TOKENS}", pass.batch, pass.seq));
    }
    if let Some(window) = config.sliding_window.filter(|window| pass.seq > *window) {
        return refuse(format!(
            "{} attends to a sliding window of {window} tokens, which flash_attention does not compute: a sequence has at most {window}, not {}",
            config.name, pass.seq
        ));
    }
    match pass.layers {
        Some(0) => refuse("0 layers run nothing: ask for 1 or more".to_owned()),
        Some(n) if n > config.layers => refuse(format!("{} has {} layers, not {n}", config.name, config.layers)),
        asked => Ok(asked.unwrap_or(config.layers)),
    }
}

/// A graph as it grows.
struct Decoder<'a> {
    config: &'a ModelConfig,
    pass: Pass,
    tensors: Vec<Tensor>,
    nodes: Vec<Node>,
}

/// The rotary tables, shared by all layers.
#[derive(Clone, Copy)]
struct Tables {
    cos: usize,
    sin: usize,
}

impl Decoder<'_> {
    fn whole(&mut self, layers: u64) -> usize {
        let &ModelConfig { hidden, vocab, head_dim, rope_theta: theta, tie_word_embeddings: tied, .. } = self.config;
        let tokens = self.tokens();
        let half = vec![self.pass.seq, head_dim / 2];
        let tables = Tables {
            cos: self.tensor("rotary.cos", half.clone(), TensorKind::RotaryCos { theta }),
            sin: self.tensor("rotary.sin", half, TensorKind::RotarySin { theta }),
        };
        // A tied table must suit the output projection, where sums have `hidden` terms.
        let sigma = if tied { inverse_root(hidden) } else { 1.0 };
        let table = self.tensor("embed_tokens.weight", vec![vocab, hidden], TensorKind::Weight { sigma });
        let ids = self.tensor("tokens", vec![self.pass.batch, self.pass.seq], TensorKind::Tokens { vocab });
        let mut stream = self.activation("embed_tokens.out", vec![tokens, hidden]);
        let work = Work::Glue(Glue::Embedding { tokens, width: hidden });
        self.node("embed_tokens", work, &[("tokens", ids), ("table", table), ("y", stream)]);
        for layer in 0..layers {
            let attended = self.attention(&format!("layers.{layer}"), stream, tables);
            stream = self.mlp(&format!("layers.{layer}"), attended);
        }
        let normed = self.norm("norm", stream, tokens);
        let head = if tied { table } else { self.matrix("lm_head", vocab, hidden) };
        self.linear("lm_head", normed, head, None, vocab, hidden)
    }

    /// `stream + o(attention(rotary(q(norm(stream))), …))`
    fn attention(&mut self, at: &str, stream: usize, tables: Tables) -> usize {
        let config = self.config;
        let (hidden, q_width, kv_width) = (config.hidden, config.q_width(), config.kv_width());
        let normed = self.norm(&format!("{at}.input_norm"), stream, self.tokens());
        let q = self.projection(&format!("{at}.q_proj"), normed, q_width, hidden, config.qkv_bias);
        let k = self.projection(&format!("{at}.k_proj"), normed, kv_width, hidden, config.qkv_bias);
        let v = self.projection(&format!("{at}.v_proj"), normed, kv_width, hidden, config.qkv_bias);
        let q = self.rotary(&format!("{at}.rotary_q"), q, config.heads, tables);
        let k = self.rotary(&format!("{at}.rotary_k"), k, config.kv_heads, tables);
        let out = self.activation(&format!("{at}.attention.out"), vec![self.tokens(), q_width]);
        let shape = self.shape(&[
            ("B", self.pass.batch),
            ("H", config.heads),
            ("H_kv", config.kv_heads),
            ("S_q", self.pass.seq),
            ("S_kv", self.pass.seq),
            ("D", config.head_dim),
            ("causal", 1),
            ("bshd", 1),
        ]);
        self.op(&format!("{at}.attention"), "flash_attention", shape, &[("q", q), ("k", k), ("v", v), ("o", out)]);
        let projected = self.projection(&format!("{at}.o_proj"), out, hidden, q_width, config.o_bias);
        self.add(&format!("{at}.attention_residual"), stream, projected)
    }

    /// `stream + mlp(norm(stream))`
    fn mlp(&mut self, at: &str, stream: usize) -> usize {
        let &ModelConfig { hidden, intermediate, .. } = self.config;
        let normed = self.norm(&format!("{at}.post_attention_norm"), stream, self.tokens());
        let gate = self.matrix(&format!("{at}.mlp.gate_proj"), intermediate, hidden);
        let up = self.matrix(&format!("{at}.mlp.up_proj"), intermediate, hidden);
        let down = self.matrix(&format!("{at}.mlp.down_proj"), hidden, intermediate);
        let y = self.activation(&format!("{at}.mlp.out"), vec![self.tokens(), hidden]);
        let shape = self.shape(&[("B", self.tokens()), ("D", hidden), ("H", intermediate)]);
        let tensors = [("x", normed), ("w_gate", gate), ("w_up", up), ("w_down", down), ("y", y)];
        self.op(&format!("{at}.mlp"), "fused_mlp", shape, &tensors);
        self.add(&format!("{at}.mlp_residual"), stream, y)
    }

    fn norm(&mut self, site: &str, x: usize, rows: u64) -> usize {
        let cols = self.config.hidden;
        let weight = self.tensor(&format!("{site}.weight"), vec![cols], TensorKind::NormWeight);
        let y = self.activation(&format!("{site}.out"), vec![rows, cols]);
        let shape = self.shape(&[("rows", rows), ("cols", cols)]);
        let scalars = BTreeMap::from([("eps".to_owned(), self.config.rms_norm_eps as f32)]);
        let work = Work::Op { op: "rmsnorm", shape, scalars };
        self.node(site, work, &[("x", x), ("weight", weight), ("y", y)]);
        y
    }

    fn projection(&mut self, site: &str, x: usize, out: u64, width: u64, biased: bool) -> usize {
        let weight = self.matrix(site, out, width);
        let sigma = inverse_root(width);
        let bias = biased.then(|| self.tensor(&format!("{site}.bias"), vec![out], TensorKind::Weight { sigma }));
        self.linear(site, x, weight, bias, out, width)
    }

    /// `x W^T + bias`, W stored `[out, width]` as in linear layers.
    fn linear(&mut self, site: &str, x: usize, weight: usize, bias: Option<usize>, out: u64, width: u64) -> usize {
        let rows = self.tokens();
        let y = self.activation(&format!("{site}.out"), vec![rows, out]);
        let has_bias = u64::from(bias.is_some());
        let shape =
            self.shape(&[("batch", 1), ("M", rows), ("N", out), ("K", width), ("trans_b", 1), ("has_bias", has_bias)]);
        let mut tensors = vec![("a", x), ("b", weight)];
        tensors.extend(bias.map(|bias| ("bias", bias)));
        tensors.push(("c", y));
        self.op(site, "matmul", shape, &tensors);
        y
    }

    fn rotary(&mut self, site: &str, x: usize, heads: u64, tables: Tables) -> usize {
        let head_dim = self.config.head_dim;
        let y = self.activation(&format!("{site}.out"), vec![self.tokens(), heads * head_dim]);
        let shape = self.shape(&[
            ("B", self.pass.batch),
            ("H", heads),
            ("S", self.pass.seq),
            ("D", head_dim),
            ("bshd", 1),
            ("interleaved", 0),
        ]);
        let tensors = [("x", x), ("cos", tables.cos), ("sin", tables.sin), ("y", y)];
        self.op(site, "rotary_embedding", shape, &tensors);
        y
    }

    fn add(&mut self, site: &str, a: usize, b: usize) -> usize {
        let dims = vec![self.tokens(), self.config.hidden];
        let y = self.activation(&format!("{site}.out"), dims);
        let elements = self.tensors[y].elements();
        self.node(site, Work::Glue(Glue::Add { elements }), &[("a", a), ("b", b), ("y", y)]);
        y
    }

    fn op(&mut self, site: &str, op: &'static str, shape: Shape, tensors: &[(&'static str, usize)]) {
        self.node(site, Work::Op { op, shape, scalars: BTreeMap::new() }, tensors);
    }

    fn node(&mut self, site: &str, work: Work, tensors: &[(&'static str, usize)]) {
        let tensors = tensors.iter().map(|&(name, tensor)| Binding { name, tensor }).collect();
        self.nodes.push(Node { site: site.to_owned(), work, tensors });
    }

    fn matrix(&mut self, site: &str, out: u64, width: u64) -> usize {
        // Variance 1 / fan-in keeps every layer's outputs of order one.
        let sigma = inverse_root(width);
        self.tensor(&format!("{site}.weight"), vec![out, width], TensorKind::Weight { sigma })
    }

    fn activation(&mut self, name: &str, dims: Vec<u64>) -> usize {
        self.tensor(name, dims, TensorKind::Activation)
    }

    fn tensor(&mut self, name: &str, dims: Vec<u64>, kind: TensorKind) -> usize {
        self.tensors.push(Tensor { name: name.to_owned(), dims, kind });
        self.tensors.len() - 1
    }

    fn shape(&self, symbols: &[(&str, u64)]) -> Shape {
        // `check` and the bounds of a configuration keep every size far below 2^63.
        Shape(symbols.iter().map(|&(symbol, value)| (symbol.to_owned(), value as i64)).collect())
    }

    const fn tokens(&self) -> u64 {
        self.pass.batch * self.pass.seq
    }
}

fn inverse_root(width: u64) -> f64 {
    1.0 / (width as f64).sqrt()
}
