//! Inputs that travel to PyTorch, and what it is told of them.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use super::TorchError;
use super::bound::row_length;
use super::files::Files;
use super::wire::{Out, Tensor, type_name};
use crate::backend::{Arena, CaseMemory, Device, Lent, MemoryError, Piece, Placing, Region};
use crate::op::{Case, OpError, Operation, Role};

/// Inputs of a case, lent.
#[derive(Debug)]
pub(super) struct Inputs {
    pub lent: Lent,
    places: Places,
}

/// First byte of each input in the operation's order, `None` where absent.
#[derive(Debug)]
pub(super) struct Places(Vec<Option<usize>>);

impl Places {
    /// Those of a copy of a case's memory.
    pub(super) fn of(memory: &CaseMemory, copy: usize) -> Self {
        Self(memory.inputs(copy).iter().map(|span| span.map(|span| span.offset)).collect())
    }

    /// What PyTorch is told of them.
    pub(super) fn tensors<'b>(&self, op: &'b Operation, case: &Case) -> Result<Vec<Tensor<'b>>, TorchError> {
        let inputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        let tensor = |(tensor, place): (&'b crate::op::TensorSpec, &Option<usize>)| {
            let shape = place.map(|_| op.dimensions(tensor, &case.shape)).transpose()?;
            let dtype = type_name(tensor.dtype.stored(case.dtype));
            Ok(Tensor { name: &tensor.name, dtype, shape, at: place.unwrap_or(0) })
        };
        inputs.zip(&self.0).map(tensor).collect::<Result<_, _>>().map_err(words)
    }
}

impl Inputs {
    /// Those of a copy of a case's memory.
    pub(super) fn of<A: Arena>(memory: &CaseMemory, arena: &mut A, copy: usize) -> Result<Self, TorchError> {
        Ok(Self { lent: lend(arena)?, places: Places::of(memory, copy) })
    }

    /// Inputs of a case that are drawn from `seed` for PyTorch alone, as a judge would draw them, in an arena of their own.
    pub(super) fn drawn<B: Device>(
        backend: &B,
        op: &Operation,
        case: &Case,
        seed: u64,
        files: &Files,
    ) -> Result<Drawn<B>, TorchError> {
        let mut wanted = Vec::new();
        for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
            let there = op.present(tensor, &case.shape).map_err(words)?;
            let bytes = op.elements(tensor, &case.shape).map_err(words)? * tensor.dtype.bytes(case.dtype);
            wanted.push((tensor, there.then_some(bytes)));
        }
        let footprint = |bytes: &Option<usize>| bytes.map_or(0, |bytes| B::Arena::footprint(bytes, Placing::Packed));
        let all = wanted.iter().map(|(_, bytes)| footprint(bytes)).sum();
        let mut arena = backend.arena(all, 0, Placing::Packed).map_err(memory)?;
        let mut spans = Vec::new();
        for (tensor, bytes) in wanted {
            let span = bytes.map(|bytes| arena.place(Region::Inputs, bytes)).transpose().map_err(memory)?;
            if let (Some(span), None) = (&span, op.draw_of(tensor, case).map_err(words)?) {
                arena.zero(span);
            }
            spans.push(span);
        }
        files.draw_at(op, case, &mut arena, &spans, seed)?;
        let places = Places(spans.iter().map(|span| span.map(|span| span.offset)).collect());
        let lent = lend(&mut arena)?;
        Ok(Drawn { inputs: Self { lent, places }, _arena: arena })
    }

    /// What PyTorch is told of them.
    pub(super) fn tensors<'b>(&self, op: &'b Operation, case: &Case) -> Result<Vec<Tensor<'b>>, TorchError> {
        self.places.tensors(op, case)
    }
}

/// Inputs that were drawn, in memory that stays as long as this does.
pub(super) struct Drawn<B: Device> {
    pub(super) inputs: Inputs,
    _arena: B::Arena,
}

/// What PyTorch is told of the outputs.
pub(super) fn outs(op: &Operation, case: &Case) -> Result<Vec<Out>, TorchError> {
    let outputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Output);
    let out = |tensor| {
        let stored = tensor_type(tensor, case);
        let dtype = stored.dtype().unwrap_or(case.dtype);
        Ok(Out {
            name: tensor.name.clone(),
            dtype: type_name(stored),
            elements: op.elements(tensor, &case.shape)?,
            row: row_length(&op.dimensions(tensor, &case.shape)?),
            u: dtype.roundoff(),
            largest: dtype.largest(),
            underflow: dtype.underflow(),
        })
    };
    outputs.map(out).collect::<Result<_, _>>().map_err(words)
}

const fn tensor_type(tensor: &crate::op::TensorSpec, case: &Case) -> crate::op::Stored {
    tensor.dtype.stored(case.dtype)
}

/// Outputs of a candidate, for PyTorch to compare.
#[derive(Debug)]
pub(super) struct Outputs {
    pub lent: Lent,
    /// First byte of each.
    pub places: Vec<usize>,
}

impl Outputs {
    /// Copies, which no candidate has ever reached.
    pub(super) fn copied(outputs: &[Vec<u8>]) -> Result<Self, TorchError> {
        let refused = |error: io::Error| TorchError::Talk(format!("memory for outputs: {error}"));
        let file = memfd_create("warpsmith-outputs", MemfdFlags::CLOEXEC).map_err(|error| refused(error.into()))?;
        let file = std::fs::File::from(file);
        let (mut places, mut end) = (Vec::new(), 0);
        for bytes in outputs {
            file.write_all_at(bytes, end as u64).map_err(refused)?;
            places.push(end);
            end += bytes.len().next_multiple_of(ALIGNMENT);
        }
        // Mapping nothing is an error.
        file.set_len(end.max(1) as u64).map_err(refused)?;
        let pieces = vec![Piece { file: OwnedFd::from(file), at: 0, bytes: end }];
        Ok(Self { lent: Lent { device: false, pieces }, places })
    }

    /// Those that stand in the outputs of `copy` now; copied where a kernel may still write to them.
    pub(super) fn of<A: Arena>(memory: &CaseMemory, arena: &mut A, copy: usize) -> Result<Self, TorchError> {
        let spans = memory.outputs(copy);
        match arena.lend(Region::Outputs).map_err(self::memory)? {
            Some(lent) => Ok(Self { lent, places: spans.iter().map(|span| span.offset).collect() }),
            None => Self::copied(&spans.iter().map(|span| arena.read(span)).collect::<Vec<_>>()),
        }
    }
}

/// Where copied outputs begin, as PyTorch likes it.
const ALIGNMENT: usize = 64;

/// Symbols and floating-point arguments, in order.
pub(super) fn numbers(op: &Operation, case: &Case) -> Result<Vec<(String, Value)>, TorchError> {
    let symbols = op.symbols.iter().cloned().zip(op.ints(&case.shape).map_err(words)?.into_iter().map(Value::from));
    let scalars = op.scalars.iter().map(|scalar| scalar.name.clone());
    let values = op.scalars_of(case).map_err(words)?.into_iter().map(|value| Value::from(f64::from(value)));
    Ok(symbols.chain(scalars.zip(values)).collect())
}

pub(super) fn lend<A: Arena>(arena: &mut A) -> Result<Lent, TorchError> {
    arena.lend(Region::Inputs).map_err(memory)?.ok_or_else(|| TorchError::Talk("this device lends no inputs".into()))
}

pub(super) fn words(error: OpError) -> TorchError {
    TorchError::Code(error.to_string())
}

fn memory(error: MemoryError) -> TorchError {
    TorchError::Talk(error.to_string())
}
