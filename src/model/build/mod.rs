//! From a configuration to the calls of one pass.

mod bert;
mod gpt2;
mod llama;

use std::collections::BTreeMap;

use super::{Answer, Binding, Glue, Graph, Kind, ModelConfig, ModelError, Node, Pass, Phase, Tensor, TensorKind, Work};
use crate::op::Shape;

/// Most tokens in a pass: keeps every product of sizes within 63 bits for all configurations that are accepted.
const MOST_TOKENS: u64 = 1 << 24;

/// Spread of a bias: small beside the sums it joins, which are of order one, and large enough to be missed.
const BIAS_SIGMA: f64 = 0.1;

pub(super) fn graph(config: &ModelConfig, pass: Pass) -> Result<Graph, ModelError> {
    let layers = check(config, pass)?;
    let mut notes = config.notes.clone();
    if layers < config.layers {
        notes.push(format!("the first {layers} of {} layers are run", config.layers));
    }
    if pass.seq > config.max_positions {
        notes.push(format!("{} tokens are more than the {} the model was made for", pass.seq, config.max_positions));
    }
    let mut builder = Builder { config, pass, tensors: Vec::new(), nodes: Vec::new() };
    let (output, answer) = match &config.kind {
        Kind::Llama(own) => (llama::whole(&mut builder, own, layers), Answer::NextToken),
        Kind::Gpt2 => (gpt2::whole(&mut builder, layers), Answer::NextToken),
        Kind::Bert(own) => bert::whole(&mut builder, own, layers),
    };
    let Builder { tensors, nodes, .. } = builder;
    let model = config.name.clone();
    Ok(Graph { model, pass, layers, layers_of_model: config.layers, tensors, nodes, output, answer, notes })
}

fn check(config: &ModelConfig, pass: Pass) -> Result<u64, ModelError> {
    let refuse = |why: String| Err(ModelError::Pass(why));
    let Pass { batch, seq, .. } = pass;
    if batch == 0 || seq == 0 {
        return refuse(format!("a pass of {batch} sequences of {seq} tokens runs nothing: both must be 1 or more"));
    }
    if batch.checked_mul(seq).is_none_or(|tokens| tokens > MOST_TOKENS) {
        return refuse(format!("{batch} x {seq} tokens are too many: a pass has at most {MOST_TOKENS}"));
    }
    match &config.kind {
        Kind::Llama(own) => {
            if let Some(window) = own.sliding_window.filter(|window| seq > *window) {
                return refuse(format!(
                    "{} attends to a sliding window of {window} tokens, which flash_attention does not compute: a sequence has at most {window}, not {seq}",
                    config.name
                ));
            }
        }
        Kind::Bert(_) if pass.phase == Phase::Decode => {
            return refuse(format!(
                "{} is an encoder: it reads all tokens at once and has no decode phase; use --phase prefill",
                config.name
            ));
        }
        Kind::Gpt2 | Kind::Bert(_) if seq > config.max_positions => {
            return refuse(format!(
                "{} has a table of {} positions: a sequence has at most so many tokens, not {seq}",
                config.name, config.max_positions
            ));
        }
        Kind::Gpt2 | Kind::Bert(_) => {}
    }
    match pass.layers {
        Some(0) => refuse("0 layers run nothing: ask for 1 or more".to_owned()),
        Some(n) if n > config.layers => refuse(format!("{} has {} layers, not {n}", config.name, config.layers)),
        asked => Ok(asked.unwrap_or(config.layers)),
    }
}

/// A graph as it grows. Tensors are named after the site that they belong to.
struct Builder<'a> {
    config: &'a ModelConfig,
    pass: Pass,
    tensors: Vec<Tensor>,
    nodes: Vec<Node>,
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// `[out, width]`, as in linear layers.
    Transposed,
    /// `[width, out]`, as GPT-2 has it.
    Plain,
}

/// A matrix product with a weight: `[rows, width]` to `[rows, out]`.
#[derive(Clone, Copy)]
struct Product {
    rows: u64,
    width: u64,
    out: u64,
    stored: Stored,
}

impl Builder<'_> {
    /// Token ids and their rows of a table.
    fn embedding(&mut self, site: &str, kind: TensorKind, ids: &str, rows: u64, sigma: f64) -> (usize, usize) {
        let (table, ids) = self.table(site, kind, ids, rows, sigma);
        let (tokens, width) = (self.pass.tokens(), self.config.hidden);
        let y = self.activation(&format!("{site}.out"), vec![tokens, width]);
        self.glue(site, Glue::Embedding { tokens, width }, &[("ids", ids), ("table", table), ("y", y)]);
        (table, y)
    }

    /// `x` plus rows of a table.
    fn added_embedding(&mut self, site: &str, x: usize, kind: TensorKind, rows: u64, sigma: f64) -> usize {
        let (table, ids) = self.table(site, kind, &format!("{site}.ids"), rows, sigma);
        let (tokens, width) = (self.pass.tokens(), self.config.hidden);
        let y = self.activation(&format!("{site}.out"), vec![tokens, width]);
        let tensors = [("x", x), ("ids", ids), ("table", table), ("y", y)];
        self.glue(site, Glue::AddedEmbedding { tokens, width }, &tensors);
        y
    }

    fn table(&mut self, site: &str, kind: TensorKind, ids: &str, rows: u64, sigma: f64) -> (usize, usize) {
        let dims = vec![rows, self.config.hidden];
        let table = self.tensor(&format!("{site}.weight"), dims, TensorKind::Weight { sigma });
        (table, self.tensor(ids, vec![self.pass.batch, self.pass.queries()], kind))
    }

    /// `flash_attention` of this pass's queries. Where it decodes, `k` and `v` join those of earlier tokens first.
    fn attention(&mut self, at: &str, [q, k, v]: [usize; 3], kv_heads: u64, causal: bool) -> usize {
        let &ModelConfig { heads, head_dim, .. } = self.config;
        let &Pass { phase, batch, seq, .. } = &self.pass;
        // The last token sees every key: nothing is masked.
        let (k, v, causal) = match phase {
            Phase::Prefill => (k, v, causal),
            Phase::Decode => {
                let width = kv_heads * head_dim;
                (
                    self.append(&format!("{at}.k_cache"), k, width),
                    self.append(&format!("{at}.v_cache"), v, width),
                    false,
                )
            }
        };
        let out = self.activation(&format!("{at}.attention.out"), vec![self.pass.tokens(), heads * head_dim]);
        let shape = sizes(&[
            ("B", batch),
            ("H", heads),
            ("H_kv", kv_heads),
            ("S_q", self.pass.queries()),
            ("S_kv", seq),
            ("D", head_dim),
            ("causal", u64::from(causal)),
            ("bshd", 1),
        ]);
        self.op(&format!("{at}.attention"), "flash_attention", shape, &[("q", q), ("k", k), ("v", v), ("o", out)]);
        out
    }

    fn append(&mut self, site: &str, x: usize, width: u64) -> usize {
        let &Pass { batch, seq, .. } = &self.pass;
        let cache = self.tensor(site, vec![batch, seq, width], TensorKind::Cache);
        self.glue(site, Glue::Append { batch, seq, width }, &[("x", x), ("y", cache)]);
        cache
    }

    fn layernorm(&mut self, site: &str, x: usize) -> usize {
        let dim = self.config.hidden;
        let weight = self.tensor(&format!("{site}.weight"), vec![dim], TensorKind::NormWeight);
        let bias = self.tensor(&format!("{site}.bias"), vec![dim], TensorKind::Weight { sigma: BIAS_SIGMA });
        let y = self.activation(&format!("{site}.out"), vec![self.pass.tokens(), dim]);
        let shape = sizes(&[("batch", self.pass.tokens()), ("dim", dim)]);
        self.normed("layernorm", site, shape, &[("x", x), ("weight", weight), ("bias", bias), ("y", y)]);
        y
    }

    /// A norm with the model's ε.
    fn normed(&mut self, op: &'static str, site: &str, shape: Shape, tensors: &[(&'static str, usize)]) {
        let scalars = BTreeMap::from([("eps".to_owned(), self.config.norm_eps as f32)]);
        self.node(site, Work::Op { op, shape, scalars }, tensors);
    }

    /// A product with a weight of the site's own, plus a bias where there is one.
    fn projection(&mut self, site: &str, x: usize, product: Product, sigma: Option<f64>) -> usize {
        let weight = self.matrix(site, product);
        let kind = |sigma| TensorKind::Weight { sigma };
        let bias = sigma.map(|sigma| self.tensor(&format!("{site}.bias"), vec![product.out], kind(sigma)));
        self.product(site, x, weight, bias, product)
    }

    fn product(&mut self, site: &str, x: usize, weight: usize, bias: Option<usize>, product: Product) -> usize {
        let Product { rows, width, out, stored } = product;
        let y = self.activation(&format!("{site}.out"), vec![rows, out]);
        let shape = sizes(&[
            ("batch", 1),
            ("M", rows),
            ("N", out),
            ("K", width),
            ("trans_b", u64::from(stored == Stored::Transposed)),
            ("has_bias", u64::from(bias.is_some())),
        ]);
        let mut tensors = vec![("a", x), ("b", weight)];
        tensors.extend(bias.map(|bias| ("bias", bias)));
        tensors.push(("c", y));
        self.op(site, "matmul", shape, &tensors);
        y
    }

    /// A product over all tokens of the pass.
    const fn over_tokens(&self, width: u64, out: u64, stored: Stored) -> Product {
        Product { rows: self.pass.tokens(), width, out, stored }
    }

    /// A step from `x` to as many elements.
    fn map(&mut self, site: &str, x: usize, glue: fn(u64) -> Glue) -> usize {
        let dims = self.tensors[x].dims.clone();
        let y = self.activation(&format!("{site}.out"), dims);
        self.glue(site, glue(self.tensors[y].elements()), &[("x", x), ("y", y)]);
        y
    }

    fn add(&mut self, site: &str, a: usize, b: usize) -> usize {
        let dims = vec![self.pass.tokens(), self.config.hidden];
        let y = self.activation(&format!("{site}.out"), dims);
        let elements = self.tensors[y].elements();
        self.glue(site, Glue::Add { elements }, &[("a", a), ("b", b), ("y", y)]);
        y
    }

    fn glue(&mut self, site: &str, glue: Glue, tensors: &[(&'static str, usize)]) {
        self.node(site, Work::Glue(glue), tensors);
    }

    fn op(&mut self, site: &str, op: &'static str, shape: Shape, tensors: &[(&'static str, usize)]) {
        self.node(site, Work::Op { op, shape, scalars: BTreeMap::new() }, tensors);
    }

    fn node(&mut self, site: &str, work: Work, tensors: &[(&'static str, usize)]) {
        let tensors = tensors.iter().map(|&(name, tensor)| Binding { name, tensor }).collect();
        self.nodes.push(Node { site: site.to_owned(), work, tensors });
    }

    fn matrix(&mut self, site: &str, Product { width, out, stored, .. }: Product) -> usize {
        let dims = match stored {
            Stored::Transposed => vec![out, width],
            Stored::Plain => vec![width, out],
        };
        // Variance 1 / fan-in keeps every layer's outputs of order one.
        self.tensor(&format!("{site}.weight"), dims, TensorKind::Weight { sigma: inverse_root(width) })
    }

    fn activation(&mut self, name: &str, dims: Vec<u64>) -> usize {
        self.tensor(name, dims, TensorKind::Activation)
    }

    fn tensor(&mut self, name: &str, dims: Vec<u64>, kind: TensorKind) -> usize {
        self.tensors.push(Tensor { name: name.to_owned(), dims, kind });
        self.tensors.len() - 1
    }
}

/// A shape. `check` and the bounds of a configuration keep every size far below 2^63.
fn sizes(symbols: &[(&str, u64)]) -> Shape {
    Shape(symbols.iter().map(|&(symbol, value)| (symbol.to_owned(), value as i64)).collect())
}

fn inverse_root(width: u64) -> f64 {
    1.0 / (width as f64).sqrt()
}
