//! A Llama in doubles, straight from the definition of each step.

use warpsmith::backend::cpu::Cpu;
use warpsmith::forward::Forward;
use warpsmith::model::{Glue, Graph, TensorKind, Work};
use warpsmith::op::Shape;

/// The logits of `graph` on the values that `forward` was given.
pub fn logits(graph: &Graph, forward: &mut Forward<'_, Cpu>) -> Vec<f64> {
    let drawn = |at: usize| if graph.tensors[at].kind == TensorKind::Activation { vec![] } else { forward.values(at) };
    let mut values: Vec<Vec<f64>> = (0..graph.tensors.len()).map(drawn).collect();
    for node in &graph.nodes {
        let of = |name: &str| &values[node.tensor(name).unwrap()];
        let (out, result) = match &node.work {
            Work::Glue(Glue::Embedding { width, .. }) => {
                let row = |id: &f64| &of("table")[*id as usize * *width as usize..][..*width as usize];
                ("y", of("tokens").iter().flat_map(row).copied().collect())
            }
            Work::Glue(Glue::Add { .. }) => ("y", of("a").iter().zip(of("b")).map(|(a, b)| a + b).collect()),
            Work::Op { op: "matmul", shape, .. } => {
                let bias = node.tensor("bias").map(|bias| &values[bias]);
                ("c", linear(of("a"), of("b"), bias, size(shape, "K")))
            }
            Work::Op { op: "rmsnorm", shape, scalars } => {
                ("y", rmsnorm(of("x"), of("weight"), size(shape, "cols"), f64::from(scalars["eps"])))
            }
            Work::Op { op: "rotary_embedding", shape, .. } => ("y", rotary(of("x"), of("cos"), of("sin"), shape)),
            Work::Op { op: "flash_attention", shape, .. } => ("o", attention(of("q"), of("k"), of("v"), shape)),
            Work::Op { op: "fused_mlp", shape, .. } => {
                let (d, h) = (size(shape, "D"), size(shape, "H"));
                let (gate, up) = (linear(of("x"), of("w_gate"), None, d), linear(of("x"), of("w_up"), None, d));
                let hidden: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                ("y", linear(&hidden, of("w_down"), None, h))
            }
            Work::Op { op, .. } => panic!("no definition of {op}"),
        };
        values[node.tensor(out).unwrap()] = result;
    }
    values.swap_remove(graph.output)
}

fn size(shape: &Shape, symbol: &str) -> usize {
    shape.get(symbol).unwrap() as usize
}

fn linear(x: &[f64], w: &[f64], bias: Option<&Vec<f64>>, k: usize) -> Vec<f64> {
    let mut y = Vec::new();
    for row in x.chunks(k) {
        for (j, column) in w.chunks(k).enumerate() {
            let dot: f64 = row.iter().zip(column).map(|(a, b)| a * b).sum();
            y.push(dot + bias.map_or(0.0, |bias| bias[j]));
        }
    }
    y
}

fn rmsnorm(x: &[f64], weight: &[f64], cols: usize, eps: f64) -> Vec<f64> {
    let row = |row: &[f64]| {
        let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / cols as f64 + eps).sqrt();
        row.iter().zip(weight).map(|(v, w)| v * scale * w).collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

/// `[B, S, H, D]`, pairs `(j, j + D/2)`.
fn rotary(x: &[f64], cos: &[f64], sin: &[f64], shape: &Shape) -> Vec<f64> {
    let [h, s, d] = ["H", "S", "D"].map(|symbol| size(shape, symbol));
    let half = d / 2;
    let mut y = vec![0.0; x.len()];
    for (head, (x, y)) in x.chunks(d).zip(y.chunks_mut(d)).enumerate() {
        let position = head / h % s;
        for j in 0..half {
            let (c, s) = (cos[position * half + j], sin[position * half + j]);
            y[j] = x[j] * c - x[j + half] * s;
            y[j + half] = x[j + half] * c + x[j] * s;
        }
    }
    y
}

/// Causal, `[B, S, H, D]`, grouped heads.
fn attention(q: &[f64], k: &[f64], v: &[f64], shape: &Shape) -> Vec<f64> {
    let [b, h, g, s, d] = ["B", "H", "H_kv", "S_q", "D"].map(|symbol| size(shape, symbol));
    let mut o = vec![0.0; q.len()];
    for at in 0..b * s * h {
        let (batch, query, head) = (at / (s * h), at / h % s, at % h);
        let key = |j: usize| ((batch * s + j) * g + head / (h / g)) * d;
        let score = |j: usize| (0..d).map(|e| q[at * d + e] * k[key(j) + e]).sum::<f64>() / (d as f64).sqrt();
        let p: Vec<f64> = (0..=query).map(|j| score(j).exp()).collect();
        let sum: f64 = p.iter().sum();
        for (j, p) in p.iter().enumerate() {
            (0..d).for_each(|e| o[at * d + e] += p / sum * v[key(j) + e]);
        }
    }
    o
}
