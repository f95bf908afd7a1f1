//! Operations made small enough to test on.
#![allow(dead_code)]

use std::path::Path;

use warpsmith::op::{Dtype, OpSource, Shape, TargetShape};

/// Multiply-adds and elements of a case in these tests.
const MAX_MACS: u64 = 1 << 20;
const MAX_ELEMENTS: u64 = 1 << 17;

/// Elements of a hostile input: all but the largest stay as they are.
const MAX_HOSTILE: u64 = 1 << 20;

/// A file of the repository.
pub fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// An operation as it ships, with ordinary shapes shrunk, and hostile inputs where they are very large.
pub fn source(name: &str) -> OpSource {
    let mut source = OpSource::read(name, &read).unwrap();
    let op = source.operation().unwrap();
    let mut file: toml::Table = source.toml.parse().unwrap();
    for (key, shapes) in [("sweep", &op.sweep), ("edges", &op.edges), ("decode", &op.decode)] {
        let small = shapes.iter().map(|shape| {
            let (shape, _) = op.shrink_to(&op.complete(shape).unwrap(), MAX_MACS, MAX_ELEMENTS).unwrap();
            toml::Value::try_from(shape).unwrap()
        });
        file.insert(key.into(), small.collect::<Vec<_>>().into());
    }
    for (hostile, table) in op.adversarial.iter().zip(file["adversarial"].as_array_mut().unwrap()) {
        let (shape, _) = op.shrink_to(&op.complete(&hostile.shape).unwrap(), u64::MAX, MAX_HOSTILE).unwrap();
        table["shape"] = toml::Value::try_from(shape).unwrap();
    }
    if let Some(toml::Value::Table(random)) = file.get_mut("random") {
        for (_, bounds) in random.iter_mut() {
            let [low, high] = [0, 1].map(|at| bounds[at].as_integer().unwrap());
            *bounds = vec![low, high.min(70)].into();
        }
    }
    source.toml = toml::to_string(&file).unwrap();
    source
}

/// Where a kernel is timed: long enough for the clock, and more work than anything before.
pub fn target(op: &str) -> Vec<TargetShape> {
    let shape = match op {
        "rmsnorm" => Shape::from([("rows", 96), ("cols", 1000)]),
        "matmul" => Shape::from([("M", 40), ("N", 96), ("K", 300), ("trans_b", 1)]),
        "softmax" => Shape::from([("rows", 96), ("cols", 1000)]),
        "layernorm" => Shape::from([("batch", 96), ("dim", 1000)]),
        "rotary_embedding" => Shape::from([("B", 1), ("H", 8), ("S", 100), ("D", 64)]),
        "flash_attention" => Shape::from([("B", 1), ("H", 4), ("S_q", 90), ("S_kv", 90), ("D", 32), ("causal", 1)]),
        "fused_mlp" => Shape::from([("B", 10), ("D", 100), ("H", 300)]),
        "cross_entropy" => Shape::from([("batch", 70), ("vocab", 1000)]),
        "reduce" => Shape::from([("rows", 200), ("cols", 1000)]),
        other => panic!("no target for {other}"),
    };
    vec![TargetShape { shape, dtype: Dtype::F32, calls: 1 }]
}
