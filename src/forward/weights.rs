//! Drawing a model's weights, tables and inputs: the same for every kernel, from one seed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::model::{Tensor, TensorKind};
use crate::op::Dtype;
use crate::rng::{SUM4_SIGMA, Stream};

/// Elements a thread takes at a time.
const GRAIN: usize = 1 << 16;
/// Elements computed before they are converted, so that each is a loop that vectorises.
const BLOCK: usize = 1024;
/// How far the weights of a norm lie from 1.
const NORM_SPREAD: f64 = 0.1;

/// Fills `out` with the values of `tensor`, element `i` from the seed, the tensor's name and `i` alone.
pub(super) fn fill(tensor: &Tensor, dtype: Dtype, seed: u64, out: &mut [u8]) {
    let values = Stream::new(seed, &tensor.name);
    if let TensorKind::Tokens { vocab } = tensor.kind {
        return in_parts(out, 8 * GRAIN, &|part, bytes| {
            for (slot, i) in bytes.chunks_exact_mut(8).zip((part * GRAIN) as u64..) {
                slot.copy_from_slice(&values.below(i, vocab).to_ne_bytes());
            }
        });
    }
    let half = tensor.dims.last().map_or(1, |half| (*half).max(1));
    let size = dtype.bytes();
    in_parts(out, GRAIN * size, &|part, bytes| {
        let mut block = [0f32; BLOCK];
        for (at, bytes) in bytes.chunks_mut(BLOCK * size).enumerate() {
            let block = &mut block[..bytes.len() / size];
            let first = (part * GRAIN + at * BLOCK) as u64;
            compute(tensor.kind, half, values, first, block);
            store(dtype, block, bytes);
        }
    });
}

/// The elements from `first` on; `half` is the number of frequencies in a row of a rotary table.
fn compute(kind: TensorKind, half: u64, values: Stream, first: u64, block: &mut [f32]) {
    let indexed = block.iter_mut().zip(first..);
    // Computed as in Su et al. 2021: position × theta^(-2j / dim), where dim = 2 half.
    let angle = |theta: f64, i: u64| (i / half) as f64 * theta.powf(-((i % half) as f64) / half as f64);
    let normal = |i: u64, sigma: f64| f64::from(values.sum4(i)) * sigma;
    match kind {
        TensorKind::Weight { sigma } => {
            let sigma = sigma / SUM4_SIGMA;
            indexed.for_each(|(v, i)| *v = normal(i, sigma) as f32);
        }
        TensorKind::NormWeight => {
            indexed.for_each(|(v, i)| *v = (1.0 + normal(i, NORM_SPREAD / SUM4_SIGMA)) as f32);
        }
        TensorKind::RotaryCos { theta } => indexed.for_each(|(v, i)| *v = angle(theta, i).cos() as f32),
        TensorKind::RotarySin { theta } => indexed.for_each(|(v, i)| *v = angle(theta, i).sin() as f32),
        TensorKind::Tokens { .. } | TensorKind::Activation => block.fill(0.0),
    }
}

fn store(dtype: Dtype, block: &[f32], bytes: &mut [u8]) {
    match dtype {
        Dtype::F32 => {
            for (slot, v) in bytes.chunks_exact_mut(4).zip(block) {
                slot.copy_from_slice(&v.to_ne_bytes());
            }
        }
        Dtype::F16 => {
            let mut halves = [f16::ZERO; BLOCK];
            let halves = &mut halves[..block.len()];
            halves.convert_from_f32_slice(block);
            for (slot, v) in bytes.chunks_exact_mut(2).zip(halves) {
                slot.copy_from_slice(&v.to_ne_bytes());
            }
        }
        Dtype::Bf16 => {
            for (slot, v) in bytes.chunks_exact_mut(2).zip(block) {
                slot.copy_from_slice(&bf16::from_f32(*v).to_ne_bytes());
            }
        }
    }
}

/// All elements as doubles.
pub(super) fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    match dtype {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f64::from(f32::from_ne_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f64()).collect(),
        Dtype::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f64()).collect(),
    }
}

/// Token ids as doubles, exactly.
pub(super) fn decode_ids(bytes: &[u8]) -> Vec<f64> {
    let id = |b: &[u8]| u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f64;
    bytes.chunks_exact(8).map(id).collect()
}

/// Hands parts of `size` bytes with their numbers to `body`, over all cores.
fn in_parts(out: &mut [u8], size: usize, body: &(dyn Fn(usize, &mut [u8]) + Sync)) {
    let parts: Vec<Mutex<&mut [u8]>> = out.chunks_mut(size).map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(at) else { return };
            // Each part is taken once, so nobody else can have poisoned its lock.
            body(at, &mut part.lock().unwrap_or_else(PoisonError::into_inner));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(parts.len());
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(kind: TensorKind, dims: Vec<u64>, dtype: Dtype, seed: u64) -> Vec<f64> {
        let tensor = Tensor { name: "w".into(), dims, kind };
        let mut bytes = vec![0xaa; tensor.bytes(dtype) as usize];
        fill(&tensor, dtype, seed, &mut bytes);
        decode(&bytes, dtype)
    }

    #[test]
    fn weights_have_the_spread_asked_for_and_depend_on_the_seed_alone() {
        for dtype in Dtype::ALL {
            let w = values(TensorKind::Weight { sigma: 0.125 }, vec![300, 700], dtype, 1);
            let rms = (w.iter().map(|v| v * v).sum::<f64>() / w.len() as f64).sqrt();
            assert!((rms - 0.125).abs() < 1e-3, "{rms}");
            assert!(w.iter().sum::<f64>().abs() / (w.len() as f64) < 1e-3);
            assert_eq!(w, values(TensorKind::Weight { sigma: 0.125 }, vec![300, 700], dtype, 1));
            assert_ne!(w, values(TensorKind::Weight { sigma: 0.125 }, vec![300, 700], dtype, 2));
        }
    }

    #[test]
    fn an_element_does_not_depend_on_the_part_it_is_drawn_in() {
        let long = values(TensorKind::Weight { sigma: 1.0 }, vec![3 * GRAIN as u64 + 17], Dtype::F32, 5);
        let stream = Stream::new(5, "w");
        for i in [0, BLOCK - 1, BLOCK, GRAIN - 1, GRAIN, 3 * GRAIN + 16] {
            assert!((long[i] - stream.normal(i as u64)).abs() < 1e-6, "{i}");
        }
    }

    #[test]
    fn norm_weights_lie_near_one() {
        let w = values(TensorKind::NormWeight, vec![4096], Dtype::F16, 1);
        assert!(w.iter().all(|v| (v - 1.0).abs() < 0.36) && w.iter().any(|v| (v - 1.0).abs() > 0.1));
    }

    #[test]
    fn rotary_tables_are_those_of_the_paper() {
        let (dims, theta) = (vec![5, 4], 10_000.0);
        let cos = values(TensorKind::RotaryCos { theta }, dims.clone(), Dtype::F32, 1);
        let sin = values(TensorKind::RotarySin { theta }, dims, Dtype::F32, 1);
        for position in 0..5 {
            for j in 0..4 {
                let angle = f64::from(position) * 10_000f64.powf(-2.0 * f64::from(j) / 8.0);
                let at = (position * 4 + j) as usize;
                assert!((cos[at] - angle.cos()).abs() < 1e-6 && (sin[at] - angle.sin()).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn tokens_are_of_the_vocabulary() {
        let tensor = Tensor { name: "tokens".into(), dims: vec![2, 5000], kind: TensorKind::Tokens { vocab: 7 } };
        let mut bytes = vec![0xff; tensor.bytes(Dtype::F16) as usize];
        fill(&tensor, Dtype::F16, 3, &mut bytes);
        let mut seen = [0; 7];
        for id in decode_ids(&bytes) {
            seen[id as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }
}
