//! Drawing a model's weights, tables and inputs: the same for every kernel, from one seed.

use half::{bf16, f16};

use crate::backend::{Arena, Span};
use crate::model::{Tensor, TensorKind};
use crate::op::{Distribution, DrawPlan, Dtype, ElementType, RowScale, Stored};
use crate::rng::Stream;

/// How far the weights of a norm lie from 1.
const NORM_SPREAD: f64 = 0.1;

/// Fills a tensor's span with its values, element `i` from the seed, the tensor's name and `i` alone. What holds
/// nothing before a node writes it is left as it is.
pub(super) fn draw<A: Arena>(arena: &mut A, span: &Span, tensor: &Tensor, dtype: Dtype, seed: u64) {
    match tensor.kind {
        TensorKind::Weight { sigma } => {
            arena.draw(span, &plan(tensor, dtype, seed, (Distribution::Normal, sigma, 0.0)))
        }
        TensorKind::NormWeight => {
            arena.draw(span, &plan(tensor, dtype, seed, (Distribution::Normal, NORM_SPREAD, 1.0)));
        }
        TensorKind::Tokens { vocab } => {
            let ids = plan(tensor, dtype, seed, (Distribution::Index, vocab as f64, 0.0));
            arena.draw(span, &DrawPlan { stored: Stored::I64, ..ids });
        }
        TensorKind::Positions { first } => positions(arena, span, tensor, first),
        TensorKind::RotaryCos { theta, first } => {
            rotary(arena, span, tensor, dtype, &|i| angle(tensor, theta, first, i).cos());
        }
        TensorKind::RotarySin { theta, first } => {
            rotary(arena, span, tensor, dtype, &|i| angle(tensor, theta, first, i).sin());
        }
        TensorKind::Cache => arena.draw(span, &plan(tensor, dtype, seed, (Distribution::Normal, 1.0, 0.0))),
        TensorKind::Activation => {}
    }
}

fn plan(tensor: &Tensor, dtype: Dtype, seed: u64, (dist, scale, shift): (Distribution, f64, f64)) -> DrawPlan {
    let values = Stream::new(seed, &tensor.name);
    DrawPlan {
        elements: tensor.elements() as usize,
        stored: ElementType::Case.stored(dtype),
        columns: columns(tensor),
        dist,
        scale,
        shift,
        row_scale: RowScale::None,
        specials: Vec::new(),
        first: Vec::new(),
        values,
        rows: values,
        places: values,
    }
}

/// Elements in a row.
fn columns(tensor: &Tensor) -> usize {
    tensor.dims.last().map_or(1, |columns| (*columns).max(1) as usize)
}

/// Element `i` of a rotary table before its cosine or sine: position × theta^(-2j / dim), where dim is twice a row
/// (Su et al. 2021).
fn angle(tensor: &Tensor, theta: f64, first: u64, i: usize) -> f64 {
    let half = columns(tensor);
    (first + (i / half) as u64) as f64 * theta.powf(-((i % half) as f64) / half as f64)
}

/// `first`, `first + 1`, … in each row.
fn positions<A: Arena>(arena: &mut A, span: &Span, tensor: &Tensor, first: u64) {
    let columns = columns(tensor);
    arena.fill(span, &mut |bytes| {
        for (i, slot) in bytes.chunks_exact_mut(8).enumerate() {
            slot.copy_from_slice(&(first + (i % columns) as u64).to_ne_bytes());
        }
    });
}

/// Tables are small, and their powers and angles are not the same to the last bit everywhere.
fn rotary<A: Arena>(arena: &mut A, span: &Span, tensor: &Tensor, dtype: Dtype, value: &dyn Fn(usize) -> f64) {
    let elements = tensor.elements() as usize;
    arena.fill(span, &mut |bytes| {
        for (slot, i) in bytes.chunks_exact_mut(dtype.bytes()).zip(0..elements) {
            let value = value(i) as f32;
            match dtype {
                Dtype::F32 => slot.copy_from_slice(&value.to_ne_bytes()),
                Dtype::F16 => slot.copy_from_slice(&f16::from_f32(value).to_ne_bytes()),
                Dtype::Bf16 => slot.copy_from_slice(&bf16::from_f32(value).to_ne_bytes()),
            }
        }
    });
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

#[cfg(test)]
mod tests {
    use crate::backend::{Region, cpu};

    use super::*;

    fn drawn(tensor: &Tensor, dtype: Dtype, seed: u64) -> Vec<u8> {
        let bytes = tensor.bytes(dtype) as usize;
        let mut arena = cpu::Arena::new(cpu::Arena::footprint(bytes), 0).expect("memory");
        let span = arena.place(Region::Inputs, bytes).expect("it fits");
        draw(&mut arena, &span, tensor, dtype, seed);
        arena.read(&span)
    }

    fn values(kind: TensorKind, dims: Vec<u64>, dtype: Dtype, seed: u64) -> Vec<f64> {
        let tensor = Tensor { name: "w".into(), dims, kind };
        decode(&drawn(&tensor, dtype, seed), dtype)
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
    fn an_element_depends_on_its_index_alone() {
        let long = values(TensorKind::Weight { sigma: 1.0 }, vec![200_017], Dtype::F32, 5);
        let stream = Stream::new(5, "w");
        for i in [0, 1023, 1024, 65_535, 65_536, 200_016] {
            assert!((long[i] - stream.normal(i as u64)).abs() < 1e-6, "{i}");
        }
    }

    #[test]
    fn norm_weights_lie_near_one() {
        let w = values(TensorKind::NormWeight, vec![4096], Dtype::F16, 1);
        assert!(w.iter().all(|v| (v - 1.0).abs() < 0.36) && w.iter().any(|v| (v - 1.0).abs() > 0.1));
    }

    #[test]
    fn rotary_tables_are_those_of_the_paper_from_any_position_on() {
        for first in [0, 7] {
            let (dims, theta) = (vec![5, 4], 10_000.0);
            let cos = values(TensorKind::RotaryCos { theta, first }, dims.clone(), Dtype::F32, 1);
            let sin = values(TensorKind::RotarySin { theta, first }, dims, Dtype::F32, 1);
            for row in 0..5u32 {
                for j in 0..4u32 {
                    let angle = (f64::from(row) + first as f64) * 10_000f64.powf(-2.0 * f64::from(j) / 8.0);
                    let at = (row * 4 + j) as usize;
                    assert!((cos[at] - angle.cos()).abs() < 1e-6 && (sin[at] - angle.sin()).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn positions_count_on_in_each_row() {
        let tensor = Tensor { name: "ids".into(), dims: vec![2, 3], kind: TensorKind::Positions { first: 5 } };
        assert_eq!(decode_ids(&drawn(&tensor, Dtype::F16, 3)), [5.0, 6.0, 7.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn tokens_are_of_the_vocabulary() {
        let tensor = Tensor { name: "tokens".into(), dims: vec![2, 5000], kind: TensorKind::Tokens { vocab: 7 } };
        let mut seen = [0; 7];
        for id in decode_ids(&drawn(&tensor, Dtype::F16, 3)) {
            seen[id as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 1000), "{seen:?}");
    }
}
