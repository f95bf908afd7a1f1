//! What there is to beat: the ways in which PyTorch computes an operation, timed a block at a time beside a kernel.

use serde_json::Value;

use super::TorchError;
use super::inputs::{Inputs, Places, numbers};
use super::oracle::{Oracle, files};
use super::wire::{Ask, Region, Timed};
use crate::backend::{Arena, CaseMemory};

/// A way in which PyTorch computes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// An operator after the other.
    Eager,
    /// `torch.compile` as it comes.
    Compiled,
    /// The same without those patterns of Inductor's that leave a function of its code generator's in a graph, as a model has it around
    /// a kernel: one for weights of eight bits was seen to take a hundred times what it stands for.
    WithoutLowerings,
    /// `torch.compile` with everything tried.
    MaxAutotune,
}

impl Way {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Compiled => "torch.compile",
            Self::WithoutLowerings => "torch.compile without its patterns",
            Self::MaxAutotune => "torch.compile max-autotune",
        }
    }

    const fn mode(self) -> Option<&'static str> {
        match self {
            Self::Eager => None,
            Self::Compiled => Some("default"),
            Self::WithoutLowerings => Some("without lowerings"),
            Self::MaxAutotune => Some("max-autotune"),
        }
    }
}

/// How a way that is ready goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Whether it is replayed as a CUDA graph, of a call on each copy of the inputs.
    pub graph: bool,
    /// Whether Inductor has such patterns for it. Of [`Way::Compiled`] it may have; [`Way::WithoutLowerings`] knows.
    pub lowers: bool,
}

impl Oracle {
    /// Gets a way ready for shape number `shape` of a target, on the inputs of the first `copies`. `cold_bytes` of memory are read before, so that nothing of earlier calls is in the caches.
    ///
    /// # Errors
    /// The way does not work, or PyTorch cannot be asked.
    pub fn prepare<A: Arena>(
        &self,
        (way, shape): (Way, usize),
        memory: &CaseMemory,
        arena: &mut A,
        copies: usize,
        cold_bytes: u64,
    ) -> Result<Ready, TorchError> {
        let (op, case) = (memory.operation(), memory.case());
        let inputs = Inputs::of(memory, arena, 0)?;
        let copies = (0..copies).map(|copy| Places::of(memory, copy).tensors(op, case));
        let ask = Ask::Prepare {
            id: &self.unit.id,
            file: &self.unit.file,
            inputs: Region::of(&inputs.lent),
            copies: copies.collect::<Result<_, _>>()?,
            numbers: &numbers(op, case)?,
            way: &key(way, shape),
            mode: way.mode(),
            cold_bytes,
        };
        let timed: Timed = self.service.ask(Some(&self.unit), &ask, &files(&[&inputs.lent]))?;
        tracing::info!(us = timed.us, way = way.name(), graph = timed.graph, "PyTorch is ready to be timed");
        Ok(Ready { graph: timed.graph, lowers: timed.lowers })
    }

    /// What a call of a way takes that is ready, in µs: the mean of `calls`, each by itself, or of those of its graph.
    ///
    /// # Errors
    /// PyTorch's.
    pub fn block(&self, (way, shape): (Way, usize), calls: usize) -> Result<f64, TorchError> {
        let ask = Ask::Block { file: &self.unit.file, way: &key(way, shape), calls };
        let timed: Timed = self.service.ask(Some(&self.unit), &ask, &[])?;
        Ok(timed.us)
    }

    /// Waits until nothing of PyTorch's runs on the processor, where that is what is timed.
    ///
    /// # Errors
    /// PyTorch's.
    pub fn rest(&self) -> Result<(), TorchError> {
        self.service.rest()
    }

    /// Gives up what was got ready.
    ///
    /// # Errors
    /// PyTorch's.
    pub fn forget(&self) -> Result<(), TorchError> {
        let _: Value = self.service.ask(Some(&self.unit), &Ask::Forget { file: &self.unit.file }, &[])?;
        Ok(())
    }

    /// Versions, and where and how PyTorch is timed.
    ///
    /// # Errors
    /// PyTorch's.
    pub fn how(&self) -> Result<String, TorchError> {
        let hello = self.service.hello()?;
        let place = hello.gpu.unwrap_or_else(|| format!("{} threads", hello.threads));
        Ok(format!("PyTorch {}, {place}; in pairs with the kernel, caches cold", hello.torch))
    }
}

fn key(way: Way, shape: usize) -> String {
    format!("{} at {shape}", way.name())
}
