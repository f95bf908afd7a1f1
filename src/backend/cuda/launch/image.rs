//! What a host can be asked to launch.

use std::rc::Rc;

use super::super::compile::Compiled;
use super::super::judge::Library;
use crate::backend::{Call, Region, Step};
use crate::kernel::{Argument, Facts, KernelError, KernelFile, MapSource, PlannedLaunch, Resolution};
use crate::op::Operation;

/// Threads of a warp.
const WARP: u32 = 32;

/// Code for a device, with what is needed to launch it; cheap to clone.
#[derive(Debug, Clone)]
pub enum Image {
    /// A kernel file at one set of constants.
    Kernel(Rc<KernelImage>),
    /// What the user has today.
    Library(Library),
    /// A step of the forward pass.
    Glue(Step, Rc<[u8]>),
}

/// A kernel file at one set of constants.
#[derive(Debug)]
pub struct KernelImage {
    /// What the compiler made of it.
    pub compiled: Compiled,
    /// The operation it computes.
    pub op: Operation,
    /// The file.
    pub kernel: KernelFile,
    /// Its constants.
    pub resolution: Resolution,
    /// Facts of the device, for its launch plan.
    pub facts: Facts,
}

impl Image {
    /// What the compiler made of `kernel` at `resolution`.
    #[must_use]
    pub fn of_kernel(
        op: &Operation,
        kernel: &KernelFile,
        resolution: &Resolution,
        facts: &Facts,
        compiled: Compiled,
    ) -> Self {
        Self::Kernel(Rc::new(KernelImage {
            compiled,
            op: op.clone(),
            kernel: kernel.clone(),
            resolution: resolution.clone(),
            facts: facts.clone(),
        }))
    }
}

impl KernelImage {
    /// What to start for these values of the operation's symbols, with what Triton's compiler decides filled in: also the arguments
    /// behind those of the file. Memory that a launch's code asks for is scratch, numbered behind the file's own.
    ///
    /// # Errors
    /// As [`KernelFile::launches`].
    pub fn launches(&self, ints: &[i64]) -> Result<Vec<PlannedLaunch>, KernelError> {
        let mut planned = self.kernel.launches(&self.op, ints, &self.resolution, &self.facts)?;
        let mut own = self.kernel.front.scratch.len()..;
        for launch in &mut planned {
            if let Some(code) = self.compiled.jit.get(&launch.kernel) {
                launch.shared = code.shared;
                launch.block = [code.num_warps.saturating_mul(WARP), 1, 1];
                let memory = if code.scratch > 0 { own.next().map(Argument::Scratch) } else { None };
                let nulls = code.hidden.saturating_sub(usize::from(memory.is_some()));
                launch.args.extend(memory.into_iter().chain((0..nulls).map(|_| Argument::Constant(0))));
            }
        }
        Ok(planned)
    }

    /// Whether `call` may begin before what is in front of it has ended: its first launch waits for that. So must those that may begin before
    /// the first has ended, since it lets them begin before it has waited itself.
    #[must_use]
    pub fn may_begin_early(&self, plan: &[PlannedLaunch], call: &Call) -> bool {
        let early = plan.iter().enumerate().filter(|(number, launch)| *number == 0 || launch.pdl);
        // Blocks that must all be there at once are not begun one by one.
        early
            .map(|(_, launch)| launch)
            .all(|launch| !launch.cooperative && self.waits_for_what_is_written(launch, call))
    }

    /// Whether all launches of `plan` have ended when the last has: those that may begin before the one in front of them has ended wait for it.
    #[must_use]
    pub fn ends_with_its_last(&self, plan: &[PlannedLaunch]) -> bool {
        plan.iter().all(|launch| !launch.pdl || self.compiled.waits.contains_key(&launch.kernel))
    }

    /// Whether a launch of `call` waits, on every way through its kernel, for what is in front of it, before it touches anything but
    /// what no kernel writes.
    fn waits_for_what_is_written(&self, launch: &PlannedLaunch, call: &Call) -> bool {
        let Some(early) = self.compiled.waits.get(&launch.kernel) else { return false };
        let is_constant = |tensor: usize| {
            call.pointers.get(tensor).is_some_and(|span| span.is_none_or(|span| span.region == Region::Inputs))
        };
        early.iter().all(|place| match launch.args.get(*place) {
            Some(Argument::Tensor(tensor)) => is_constant(*tensor),
            Some(Argument::TensorMap(map)) => matches!(map.source, MapSource::Tensor(tensor) if is_constant(tensor)),
            Some(Argument::Symbol(_) | Argument::Scalar(_) | Argument::Constant(_) | Argument::Float(_)) => true,
            Some(Argument::Scratch(_)) | None => false,
        })
    }

    /// Bytes of memory that the code of each launch asks for which asks for some, in the order in which [`Self::launches`] counts them.
    #[must_use]
    pub fn own_scratch(&self, ints: &[i64]) -> Vec<usize> {
        if self.compiled.jit.values().all(|code| code.scratch == 0) {
            return Vec::new();
        }
        // Where there is no plan nothing is launched.
        let planned = self.kernel.launches(&self.op, ints, &self.resolution, &self.facts).unwrap_or_default();
        let bytes = |launch: &PlannedLaunch| {
            let code = self.compiled.jit.get(&launch.kernel).filter(|code| code.scratch > 0)?;
            Some(launch.grid.iter().fold(code.scratch, |all, blocks| all.saturating_mul(*blocks as usize)))
        };
        planned.iter().filter_map(bytes).collect()
    }
}

impl crate::backend::Image for Image {
    fn log(&self) -> &str {
        match self {
            Self::Kernel(image) => &image.compiled.log,
            Self::Library(_) | Self::Glue(..) => "",
        }
    }

    fn own_scratch(&self, ints: &[i64]) -> Vec<usize> {
        match self {
            Self::Kernel(image) => image.own_scratch(ints),
            Self::Library(_) | Self::Glue(..) => Vec::new(),
        }
    }
}
