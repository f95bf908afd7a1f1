//! Values that a problem file draws by itself.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};

use super::TorchError;
use super::inputs::words;
use super::service::{Service, Unit};
use super::wire::{Ask, Place, type_name};
use crate::backend::{Arena, CaseMemory, FileValues};
use crate::op::{Case, Distribution, Operation, Role};

/// Where each tensor begins, as PyTorch likes it.
const ALIGNMENT: usize = 64;

/// The `get_inputs` of an operation's file, asked in PyTorch's process: no candidate is ever there.
#[derive(Debug, Clone)]
pub struct Files {
    pub(super) service: Arc<Service>,
    pub(super) unit: Unit,
}

impl Files {
    /// What the file draws from `seed` for a case, in the case's types; `None` where it draws nothing of it.
    ///
    /// # Errors
    /// PyTorch's or the file's.
    pub fn values(&self, op: &Operation, case: &Case, seed: u64) -> Result<Option<FileValues>, TorchError> {
        let (mut wanted, mut places, mut end) = (Vec::new(), Vec::new(), 0);
        for tensor in op.tensors.iter().filter(|tensor| tensor.role == Role::Input) {
            let how = op.draw_of(tensor, case).map_err(words)?;
            let drawn = how.is_some_and(|how| how.dist == Distribution::File);
            places.push(drawn.then_some(end));
            let elements = op.elements(tensor, &case.shape).map_err(words)?;
            let stored = tensor.dtype.stored(case.dtype);
            wanted.push(drawn.then(|| Place { at: end, dtype: type_name(stored), elements }));
            if drawn {
                end += (elements * stored.bytes()).next_multiple_of(ALIGNMENT);
            }
        }
        if wanted.iter().all(Option::is_none) {
            return Ok(None);
        }
        let failed = |error: std::io::Error| TorchError::Talk(format!("memory for inputs: {error}"));
        let file = memfd_create("warpsmith-drawn", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let file = std::fs::File::from(file);
        // Mapping nothing is an error.
        file.set_len(end.max(1) as u64).map_err(failed)?;
        let ask = Ask::Draw { id: &self.unit.id, file: &self.unit.file, seed, places: wanted };
        let _: serde_json::Value = self.service.ask(Some(&self.unit), &ask, &[file.as_fd()])?;
        Ok(Some(FileValues::new(file, places)))
    }

    /// Draws a copy's inputs from `seed`, as the case's kind of input says.
    ///
    /// # Errors
    /// PyTorch's or the file's; an expression of a draw that fails.
    pub fn draw<A: Arena>(&self, memory: &CaseMemory, arena: &mut A, copy: usize, seed: u64) -> Result<(), TorchError> {
        let values = self.values(memory.operation(), memory.case(), seed)?;
        memory.draw_with(arena, copy, seed, values.as_ref()).map_err(words)
    }
}
