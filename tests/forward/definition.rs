//! Each family in doubles, straight from its definition: no graph, no operation, one row at a time.

use std::collections::BTreeMap;

use warpsmith::backend::cpu::Cpu;
use warpsmith::forward::Forward;
use warpsmith::model::{BertHead, Graph, Kind, Llama, ModelConfig, Phase};

/// What `config` says in this pass, on the weights, ids and caches that `forward` was given.
pub fn output(config: &ModelConfig, graph: &Graph, forward: &mut Forward<'_, Cpu>) -> Vec<f64> {
    let given = |(at, tensor): (usize, &warpsmith::model::Tensor)| {
        (!tensor.kind.is_activation()).then(|| (tensor.name.clone(), forward.values(at)))
    };
    let values = graph.tensors.iter().enumerate().filter_map(given).collect();
    let model = Model { config, graph, values };
    let sequences = 0..graph.pass.batch as usize;
    match &config.kind {
        Kind::Llama(own) => sequences.flat_map(|b| model.llama(own, b)).collect(),
        Kind::Gpt2 => sequences.flat_map(|b| model.gpt2(b)).collect(),
        Kind::Bert(own) => sequences.flat_map(|b| model.bert(own.head, b)).collect(),
    }
}

/// A row of each token of a sequence.
type Rows = Vec<Vec<f64>>;

struct Model<'a> {
    config: &'a ModelConfig,
    graph: &'a Graph,
    /// By name.
    values: BTreeMap<String, Vec<f64>>,
}

impl Model<'_> {
    fn get(&self, name: &str) -> &[f64] {
        self.values.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Where the tokens of this pass stand.
    fn positions(&self) -> std::ops::Range<usize> {
        let seq = self.graph.pass.seq as usize;
        if self.graph.pass.phase == Phase::Decode { seq - 1..seq } else { 0..seq }
    }

    /// The ids of sequence `b`.
    fn ids(&self, name: &str, b: usize) -> Vec<usize> {
        let count = self.positions().len();
        self.get(name)[b * count..(b + 1) * count].iter().map(|id| *id as usize).collect()
    }

    fn row(&self, table: &str, at: usize) -> Vec<f64> {
        let width = self.config.hidden as usize;
        self.get(&format!("{table}.weight"))[at * width..(at + 1) * width].to_vec()
    }

    /// W x + b, a row of W for each output.
    fn linear(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{site}.weight"));
        self.biased(site, weight.chunks(x.len()).map(|row| dot(row, x)).collect())
    }

    /// x W + b, a row of W for each input.
    fn conv1d(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{site}.weight"));
        let out = weight.len() / x.len();
        let column = |j: usize| x.iter().enumerate().map(|(i, x)| x * weight[i * out + j]).sum();
        self.biased(site, (0..out).map(column).collect())
    }

    fn biased(&self, site: &str, y: Vec<f64>) -> Vec<f64> {
        match self.values.get(&format!("{site}.bias")) {
            Some(bias) => sum(&y, bias),
            None => y,
        }
    }

    fn rmsnorm(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let scale = 1.0 / (dot(x, x) / x.len() as f64 + self.config.norm_eps).sqrt();
        x.iter().zip(self.get(&format!("{site}.weight"))).map(|(x, w)| x * scale * w).collect()
    }

    fn layernorm(&self, site: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (variance + self.config.norm_eps).sqrt();
        let y: Vec<f64> =
            x.iter().zip(self.get(&format!("{site}.weight"))).map(|(x, w)| (x - mean) * scale * w).collect();
        self.biased(site, y)
    }

    /// The keys or values that sequence `b` attends to: the new ones, behind those in the cache.
    fn with_earlier(&self, cache: &str, b: usize, new: Rows) -> Rows {
        if self.graph.pass.phase == Phase::Prefill {
            return new;
        }
        let (width, seq) = (new[0].len(), self.graph.pass.seq as usize);
        let earlier = self.get(cache)[b * seq * width..].chunks(width).take(seq - 1).map(<[f64]>::to_vec);
        earlier.chain(new).collect()
    }

    /// Each head's queries weigh the values of the keys they see, causal ones those up to their own position.
    fn attend(&self, q: &Rows, k: &Rows, v: &Rows, kv_heads: usize, causal: bool) -> Rows {
        let (heads, d) = (self.config.heads as usize, self.config.head_dim as usize);
        let positions = self.positions();
        let head = |row: &[f64], of: usize| row[of * d..(of + 1) * d].to_vec();
        let query = |(q, position): (&Vec<f64>, usize)| {
            let seen = if causal { position + 1 } else { k.len() };
            let of_head = |h: usize| {
                let (q, shared) = (head(q, h), h / (heads / kv_heads));
                let weights: Vec<f64> =
                    k[..seen].iter().map(|k| (dot(&q, &head(k, shared)) / (d as f64).sqrt()).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut out = vec![0.0; d];
                for (weight, v) in weights.iter().zip(v) {
                    out.iter_mut().zip(head(v, shared)).for_each(|(out, v)| *out += weight / total * v);
                }
                out
            };
            (0..heads).flat_map(of_head).collect()
        };
        q.iter().zip(positions).map(query).collect()
    }

    fn llama(&self, own: &Llama, b: usize) -> Vec<f64> {
        let embedded = |id: usize| self.row("embed_tokens", id);
        let mut stream: Rows = self.ids("tokens", b).into_iter().map(embedded).collect();
        for layer in 0..self.graph.layers {
            let at = |name: &str| format!("layers.{layer}.{name}");
            let normed = each(&stream, |x| self.rmsnorm(&at("input_norm"), x));
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"].map(|name| each(&normed, |x| self.linear(&at(name), x)));
            let [q, k] = [q, k].map(|rows| {
                let turned = rows.iter().zip(self.positions()).map(|(row, at)| self.rotate(row, at, own.rope_theta));
                turned.collect::<Rows>()
            });
            let (k, v) = (self.with_earlier(&at("k_cache"), b, k), self.with_earlier(&at("v_cache"), b, v));
            let attended = self.attend(&q, &k, &v, own.kv_heads as usize, true);
            stream = both(&stream, &each(&attended, |x| self.linear(&at("o_proj"), x)));
            let mlp = |x: &[f64]| {
                let normed = self.rmsnorm(&at("post_attention_norm"), x);
                let gate = self.linear(&at("mlp.gate_proj"), &normed);
                let up = self.linear(&at("mlp.up_proj"), &normed);
                let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                self.linear(&at("mlp.down_proj"), &inner)
            };
            stream = both(&stream, &each(&stream, mlp));
        }
        let head = if self.config.tie_word_embeddings { "embed_tokens" } else { "lm_head" };
        stream.iter().flat_map(|x| self.linear(head, &self.rmsnorm("norm", x))).collect()
    }

    /// The pairs (j, j + d/2) of each head, by the angle position × theta^(-2j / d).
    fn rotate(&self, row: &[f64], position: usize, theta: f64) -> Vec<f64> {
        let d = self.config.head_dim as usize;
        let turned = |head: &[f64]| {
            let mut out = head.to_vec();
            for j in 0..d / 2 {
                let (sin, cos) = (position as f64 * theta.powf(-2.0 * j as f64 / d as f64)).sin_cos();
                out[j] = head[j] * cos - head[j + d / 2] * sin;
                out[j + d / 2] = head[j + d / 2] * cos + head[j] * sin;
            }
            out
        };
        row.chunks(d).flat_map(turned).collect()
    }

    fn gpt2(&self, b: usize) -> Vec<f64> {
        let ids = self.ids("tokens", b).into_iter().zip(self.positions());
        let mut stream: Rows = ids.map(|(id, at)| sum(&self.row("wte", id), &self.row("wpe", at))).collect();
        let hidden = self.config.hidden as usize;
        for layer in 0..self.graph.layers {
            let at = |name: &str| format!("layers.{layer}.{name}");
            let fused = each(&stream, |x| self.conv1d(&at("attn.c_attn"), &self.layernorm(&at("ln_1"), x)));
            let [q, k, v] = [0, 1, 2].map(|part| each(&fused, |x| x[part * hidden..(part + 1) * hidden].to_vec()));
            let (k, v) = (self.with_earlier(&at("k_cache"), b, k), self.with_earlier(&at("v_cache"), b, v));
            let attended = self.attend(&q, &k, &v, self.config.heads as usize, true);
            stream = both(&stream, &each(&attended, |x| self.conv1d(&at("attn.c_proj"), x)));
            let mlp = |x: &[f64]| {
                let inner = self.conv1d(&at("mlp.c_fc"), &self.layernorm(&at("ln_2"), x));
                let root = (2.0 / std::f64::consts::PI).sqrt();
                let gelu = |x: f64| 0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh());
                self.conv1d(&at("mlp.c_proj"), &inner.into_iter().map(gelu).collect::<Vec<_>>())
            };
            stream = both(&stream, &each(&stream, mlp));
        }
        let head = if self.config.tie_word_embeddings { "wte" } else { "lm_head" };
        stream.iter().flat_map(|x| self.linear(head, &self.layernorm("ln_f", x))).collect()
    }

    fn bert(&self, head: BertHead, b: usize) -> Vec<f64> {
        let named = |name: &str| format!("embeddings.{name}_embeddings");
        let types = self.ids(&format!("{}.ids", named("token_type")), b);
        let embedded = |((id, kind), at): ((usize, usize), usize)| {
            let words = sum(&self.row(&named("word"), id), &self.row(&named("token_type"), kind));
            self.layernorm("embeddings.norm", &sum(&words, &self.row(&named("position"), at)))
        };
        let tokens = self.ids("tokens", b).into_iter().zip(types).zip(self.positions());
        let mut stream: Rows = tokens.map(embedded).collect();
        for layer in 0..self.graph.layers {
            let at = |name: &str| format!("layers.{layer}.{name}");
            let [q, k, v] = ["query", "key", "value"]
                .map(|name| each(&stream, |x| self.linear(&at(&format!("attention.{name}")), x)));
            let attended = self.attend(&q, &k, &v, self.config.heads as usize, false);
            let projected = each(&attended, |x| self.linear(&at("attention.output"), x));
            stream = each(&both(&stream, &projected), |x| self.layernorm(&at("attention.norm"), x));
            let mlp = |x: &[f64]| {
                let inner = self.linear(&at("intermediate"), x).into_iter().map(gelu).collect::<Vec<_>>();
                self.linear(&at("output"), &inner)
            };
            stream = each(&both(&stream, &each(&stream, mlp)), |x| self.layernorm(&at("output.norm"), x));
        }
        match head {
            BertHead::Pooler => self.linear("pooler.dense", &stream[0]).into_iter().map(f64::tanh).collect(),
            BertHead::MaskedLm => {
                let said = |x: &Vec<f64>| {
                    let bent = self.linear("mlm.dense", x).into_iter().map(gelu).collect::<Vec<_>>();
                    let normed = self.layernorm("mlm.norm", &bent);
                    let scores = self.get("embeddings.word_embeddings.weight").chunks(normed.len());
                    self.biased("mlm.decoder", scores.map(|row| dot(row, &normed)).collect())
                };
                stream.iter().flat_map(said).collect()
            }
        }
    }
}

fn each(rows: &Rows, of: impl Fn(&[f64]) -> Vec<f64>) -> Rows {
    rows.iter().map(|row| of(row)).collect()
}

fn both(a: &Rows, b: &Rows) -> Rows {
    a.iter().zip(b).map(|(a, b)| sum(a, b)).collect()
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / 2f64.sqrt()))
}

/// The error function: 2/√π Σ (-1)^n x^(2n+1) / (n! (2n+1)), which beyond 5 is 1 to twelve places.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..120 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    2.0 / std::f64::consts::PI.sqrt() * sum
}
