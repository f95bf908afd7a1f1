//! Files of memory that travel to PyTorch: inputs, and room for results.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::TorchError;
use super::wire::{Out, Tensor, type_name};
use crate::backend::{CaseMemory, decode_into};
use crate::op::{Case, DrawPlan, OpError, Operation, Role, Stored};

/// Where tensors begin, as PyTorch likes it.
const ALIGNMENT: usize = 64;

/// Inputs of a case in a file.
pub(super) struct Inputs<'a> {
    pub file: BorrowedFd<'a>,
    /// First byte of each input in the operation's order, `None` where absent.
    pub places: Vec<Option<usize>>,
}

impl<'a> Inputs<'a> {
    /// Those of a copy of a case's memory, of which `file` is the part with the inputs.
    pub(super) fn of(memory: &CaseMemory, copy: usize, file: BorrowedFd<'a>) -> Self {
        Self { file, places: memory.inputs(copy).iter().map(|span| span.map(|span| span.offset)).collect() }
    }

    /// What PyTorch is told of them.
    pub(super) fn tensors<'b>(&self, op: &'b Operation, case: &Case) -> Result<Vec<Tensor<'b>>, OpError> {
        let inputs = op.tensors.iter().filter(|tensor| tensor.role == Role::Input);
        inputs
            .zip(&self.places)
            .map(|(tensor, place)| {
                let shape = place.map(|_| op.dimensions(tensor, &case.shape)).transpose()?;
                let dtype = type_name(tensor.dtype.stored(case.dtype));
                Ok(Tensor { name: &tensor.name, dtype, shape, at: place.unwrap_or(0) })
            })
            .collect()
    }
}

/// Inputs that are drawn for PyTorch alone.
pub(super) struct Drawn {
    file: File,
    places: Vec<Option<usize>>,
    /// The bytes of each input, for outputs that would be a copy of one.
    pub contents: Vec<(Stored, Vec<u8>)>,
}

impl Drawn {
    /// Draws a case's inputs from `seed`, as a judge would.
    pub(super) fn new(op: &Operation, case: &Case, seed: u64) -> Result<Self, TorchError> {
        let words = |error: OpError| TorchError::Code(error.to_string());
        let (mut places, mut contents, mut end) = (Vec::new(), Vec::new(), 0);
        for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
            if !op.present(tensor, &case.shape).map_err(words)? {
                places.push(None);
                continue;
            }
            let stored = tensor.dtype.stored(case.dtype);
            let mut bytes = vec![0; op.elements(tensor, &case.shape).map_err(words)? * stored.bytes()];
            if let Some(how) = op.draw_of(tensor, case).map_err(words)? {
                DrawPlan::new(op, tensor, &case.shape, case.dtype, how, seed).map_err(words)?.fill(&mut bytes);
            }
            places.push(Some(end));
            end += bytes.len().next_multiple_of(ALIGNMENT);
            contents.push((stored, bytes));
        }
        let file = room("warpsmith-draws", end)?;
        for (place, (_, bytes)) in places.iter().flatten().zip(&contents) {
            file.write_all_at(bytes, *place as u64).map_err(|error| memory(&error))?;
        }
        // A kernel without this seal leaves the file writable; user code gets copies all the same.
        let _ = fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
        Ok(Self { file, places, contents })
    }

    /// Whether every value is finite.
    pub(super) fn is_finite(&self) -> bool {
        self.contents.iter().all(|(stored, bytes)| {
            let mut values = vec![0.0; bytes.len() / stored.bytes()];
            decode_into(bytes, *stored, &mut values);
            values.iter().all(|value: &f64| value.is_finite())
        })
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs { file: self.file.as_fd(), places: self.places.clone() }
    }
}

/// Room for what PyTorch answers.
pub(super) struct Results<'a> {
    file: File,
    pub outs: Vec<Out<'a>>,
    stored: Vec<Stored>,
}

/// An output as it should be, and as eager PyTorch has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub right: Vec<f64>,
    pub eager: Vec<f64>,
    /// As it is of inputs in two parts of bfloat16, where that was asked for.
    pub split: Option<Vec<f64>>,
}

impl<'a> Results<'a> {
    pub(super) fn new(op: &'a Operation, case: &Case, split: bool) -> Result<Self, TorchError> {
        let (mut outs, mut kinds, mut end) = (Vec::new(), Vec::new(), 0);
        for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Output) {
            let stored = tensor.dtype.stored(case.dtype);
            let elements = op.elements(tensor, &case.shape).map_err(|error| TorchError::Code(error.to_string()))?;
            let right = end;
            let eager = right + (8 * elements).next_multiple_of(ALIGNMENT);
            end = eager + (stored.bytes() * elements).next_multiple_of(ALIGNMENT);
            let split = split.then_some(end);
            end += split.map_or(0, |_| (8 * elements).next_multiple_of(ALIGNMENT));
            outs.push(Out { name: &tensor.name, dtype: type_name(stored), elements, right, eager, split });
            kinds.push(stored);
        }
        Ok(Self { file: room("warpsmith-results", end)?, outs, stored: kinds })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// What stands there now.
    pub(super) fn read(&self) -> Result<Vec<Answer>, TorchError> {
        let read = |at: usize, elements: usize, stored: Option<Stored>| {
            let mut bytes = vec![0; elements * stored.map_or(8, Stored::bytes)];
            self.file.read_exact_at(&mut bytes, at as u64).map_err(|error| memory(&error))?;
            let mut values = vec![0.0; elements];
            match stored {
                Some(stored) => decode_into(&bytes, stored, &mut values),
                None => values.iter_mut().zip(bytes.as_chunks().0).for_each(|(v, b)| *v = f64::from_ne_bytes(*b)),
            }
            Ok(values)
        };
        let pairs = self.outs.iter().zip(&self.stored);
        pairs
            .map(|(out, stored)| {
                Ok(Answer {
                    right: read(out.right, out.elements, None)?,
                    eager: read(out.eager, out.elements, Some(*stored))?,
                    split: out.split.map(|at| read(at, out.elements, None)).transpose()?,
                })
            })
            .collect()
    }
}

/// Memory of so many bytes, zero.
fn room(name: &str, bytes: usize) -> Result<File, TorchError> {
    let file =
        memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(|error| memory(&error.into()))?;
    let file = File::from(file);
    // Mapping nothing is an error.
    file.set_len(bytes.max(1) as u64).map_err(|error| memory(&error))?;
    Ok(file)
}

fn memory(error: &io::Error) -> TorchError {
    TorchError::Talk(format!("memory for tensors: {error}"))
}
