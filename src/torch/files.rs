//! Values that a problem file draws by itself.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};

use super::TorchError;
use super::inputs::{lend, words};
use super::oracle::files;
use super::service::{Service, Unit};
use super::wire::{Ask, Place, Region, type_name};
use crate::backend::{Arena, CaseMemory, Lent, Piece, Span, input_plans};
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
    /// Draws a copy's inputs from `seed`, as the case's kind of input says.
    ///
    /// # Errors
    /// PyTorch's or the file's; an expression of a draw that fails.
    pub fn draw<A: Arena>(&self, memory: &CaseMemory, arena: &mut A, copy: usize, seed: u64) -> Result<(), TorchError> {
        self.draw_at(memory.operation(), memory.case(), arena, &memory.inputs(copy), seed)
    }

    /// The same where `spans` has the places of all inputs. PyTorch draws what the file does, and the plan of the case makes of it what it
    /// asks for.
    pub(super) fn draw_at<A: Arena>(
        &self,
        op: &Operation,
        case: &Case,
        arena: &mut A,
        spans: &[Option<Span>],
        seed: u64,
    ) -> Result<(), TorchError> {
        let mut wanted = Vec::with_capacity(spans.len());
        for (tensor, span) in op.tensors.iter().filter(|tensor| tensor.role == Role::Input).zip(spans) {
            let how = op.draw_of(tensor, case).map_err(words)?;
            let drawn = span.filter(|_| how.is_some_and(|how| how.dist == Distribution::File));
            let elements = op.elements(tensor, &case.shape).map_err(words)?;
            let dtype = type_name(tensor.dtype.stored(case.dtype));
            wanted.push(drawn.map(|span| (span, Place { at: span.offset, dtype, elements })));
        }
        if wanted.iter().any(Option::is_some) {
            let lent = lend(arena)?;
            match lent.device {
                true => self.ask(seed, &lent, wanted.into_iter().map(|it| Some(it?.1)).collect())?,
                // The judge's own inputs are sealed: nobody else ever writes to them.
                false => self.copy_in(arena, seed, wanted)?,
            }
        }
        for (span, plan) in input_plans(op, case, spans, seed).map_err(words)? {
            arena.draw(&span, &plan);
        }
        Ok(())
    }

    /// Has the file write what it draws to their places in this memory.
    fn ask(&self, seed: u64, lent: &Lent, places: Vec<Option<Place>>) -> Result<(), TorchError> {
        let (id, file) = (&self.unit.id, &self.unit.file);
        let ask = Ask::Draw { id, file, seed, memory: Region::of(lent), places };
        let _: serde_json::Value = self.service.ask(Some(&self.unit), &ask, &files(&[lent]))?;
        Ok(())
    }

    /// The same by way of memory of its own.
    fn copy_in<A: Arena>(
        &self,
        arena: &mut A,
        seed: u64,
        wanted: Vec<Option<(Span, Place)>>,
    ) -> Result<(), TorchError> {
        let failed = |error: io::Error| TorchError::Talk(format!("memory for inputs: {error}"));
        let mut end = 0;
        let mut pack = |(span, place): &(Span, Place)| {
            let at = end;
            end += span.bytes.next_multiple_of(ALIGNMENT);
            Place { at, ..place.clone() }
        };
        let packed: Vec<Option<Place>> = wanted.iter().map(|it| it.as_ref().map(&mut pack)).collect();
        let file = memfd_create("warpsmith-drawn", MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let file = std::fs::File::from(file);
        file.set_len(end as u64).map_err(failed)?;
        let piece = Piece { file: file.try_clone().map_err(failed)?.into(), at: 0, bytes: end };
        self.ask(seed, &Lent { device: false, pieces: vec![piece] }, packed.clone())?;
        for ((span, _), place) in wanted.into_iter().zip(packed).filter_map(|(it, place)| Some((it?, place?))) {
            let mut read = Ok(());
            arena.fill(&span, &mut |bytes| read = file.read_exact_at(bytes, place.at as u64));
            read.map_err(failed)?;
        }
        Ok(())
    }
}
