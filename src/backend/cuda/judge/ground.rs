//! What an arena stands on: two ranges of addresses, each with an access of its own, and memory exactly where it is needed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::super::driver::{Access, Addresses, CudaError, Gpu, Mapping};
use super::pool::Pool;
use crate::backend::{Piece, Placing, Region};
use crate::defence::Defence;

/// Granules that a region may have beyond twice what it needs: less is not worth another mapping.
const SPARE: usize = 8;

/// Addresses behind each region that lead nowhere, bytes: what reads far past the end does not find another region.
const NOWHERE: usize = 64 << 20;

/// Both regions of an arena, as the arena, its hosts and the desk see them.
#[derive(Debug)]
pub(in super::super) struct Ground {
    inputs: Space,
    outputs: Space,
    placing: Placing,
}

/// One region.
#[derive(Debug)]
struct Space {
    gpu: Gpu,
    pool: Rc<Pool>,
    range: Rc<Addresses>,
    /// Bytes that may be mapped, from the beginning of the range.
    bytes: usize,
    /// In the order of their addresses.
    mapped: RefCell<Vec<Mapping>>,
    /// Bytes from its beginning that buffers and their red zones take.
    used: Cell<usize>,
    /// What is behind them, up to the end of the last piece that holds any of them: where rubbish was last written.
    rest: Cell<(usize, usize)>,
    /// Whether nothing was written since all buffers were forgotten: other memory would do as well.
    fresh: Cell<bool>,
}

/// Whether this process's driver lets memory be only read; asked of it once.
#[derive(Debug, Default)]
pub(super) struct OnlyReading(Cell<Option<bool>>);

impl OnlyReading {
    /// What the driver said; `None` before it was asked.
    pub(super) const fn get(&self) -> Option<bool> {
        self.0.get()
    }
}

impl Ground {
    /// Ranges of these bytes. Where buffers lie side by side, memory for all of it is mapped at once, so that a lack of it shows;
    /// where each is fenced, with its buffer.
    pub(super) fn new(
        gpu: &Gpu,
        pool: &Rc<Pool>,
        [inputs, outputs]: [usize; 2],
        placing: Placing,
    ) -> Result<Self, CudaError> {
        let space = |bytes| Space::new(gpu, pool, bytes, placing == Placing::Packed);
        Ok(Self { inputs: space(inputs)?, outputs: space(outputs)?, placing })
    }

    /// How buffers lie in it.
    pub(super) const fn placing(&self) -> Placing {
        self.placing
    }

    /// Where a region begins.
    pub(in super::super) fn begin(&self, region: Region) -> u64 {
        self.space(region).range.ptr()
    }

    /// Bytes of a region.
    pub(super) fn bytes(&self, region: Region) -> usize {
        self.space(region).bytes
    }

    /// Bytes of a region that are used.
    pub(super) fn used(&self, region: Region) -> usize {
        self.space(region).used.get()
    }

    /// Says how many are used.
    pub(super) fn set_used(&self, region: Region, bytes: usize) {
        self.space(region).used.set(bytes);
    }

    /// Maps memory for a fenced buffer.
    pub(super) fn map(&self, region: Region, offset: usize, bytes: usize) -> Result<(), CudaError> {
        self.space(region).map(offset, bytes)
    }

    /// Forgets all buffers.
    pub(super) fn reset(&self) {
        for space in [&self.inputs, &self.outputs] {
            if self.placing == Placing::Fenced {
                space.unmap();
            }
            space.used.set(0);
            space.rest.set((0, 0));
            space.fresh.set(true);
        }
    }

    /// Maps as much as the buffers need.
    pub(super) fn fit(&self) -> Result<(), CudaError> {
        self.inputs.fit(self.placing)?;
        self.outputs.fit(self.placing)
    }

    /// Lets the judge do in a region what `least` says, at least.
    pub(super) fn reach(&self, region: Region, least: Access) -> Result<(), CudaError> {
        let space = self.space(region);
        space.fit(self.placing)?;
        let short = |mapping: &Mapping| mapping.access() < least;
        if space.needed(self.placing) == 0 || !space.mapped.borrow().iter().take(space.needed(self.placing)).any(short)
        {
            return Ok(());
        }
        space.protect(self.placing, least)
    }

    /// Leaves a candidate what is its own: inputs to read, outputs and scratch to write, and nothing behind them.
    pub(super) fn seal(&self, only_reading: &OnlyReading) -> Result<(), CudaError> {
        self.fit()?;
        if Defence::ReadOnlyInputs.stands() && only_reading.0.get() != Some(false) {
            match self.inputs.protect(self.placing, Access::Read) {
                Ok(()) => only_reading.0.set(Some(true)),
                Err(error @ CudaError::Lost(_)) => return Err(error),
                // This driver has no such thing; inputs are then compared with what was drawn, as everywhere.
                Err(_) => only_reading.0.set(Some(false)),
            }
        }
        if !Defence::ReadOnlyInputs.stands() || only_reading.0.get() == Some(false) {
            self.inputs.protect(self.placing, Access::Write)?;
        }
        self.outputs.protect(self.placing, Access::Write)
    }

    /// Leaves nobody anything: another arena's candidate runs.
    pub(super) fn shut(&self) -> Result<(), CudaError> {
        [&self.inputs, &self.outputs].into_iter().try_for_each(Space::shut)
    }

    /// Files by which another process can map what the buffers of a region need, each with its place and length.
    pub(super) fn lend(&self, region: Region) -> Result<Vec<Piece>, CudaError> {
        let space = self.space(region);
        space.fit(self.placing)?;
        let mapped = space.mapped.borrow();
        let piece = |mapping: &Mapping| {
            let at = (mapping.ptr() - space.range.ptr()) as usize;
            Ok(Piece { file: mapping.file()?, at, bytes: mapping.bytes() })
        };
        mapped.iter().take(space.needed(self.placing)).map(piece).collect()
    }

    /// What lies behind the buffers of a region and can be touched: first byte and one more than the last.
    pub(super) fn rest(&self, region: Region) -> (usize, usize) {
        let space = self.space(region);
        if self.placing == Placing::Fenced || !Defence::BehindBuffers.stands() {
            return (0, 0);
        }
        let mapped = space.mapped.borrow();
        let last = space.needed(self.placing).checked_sub(1).and_then(|last| mapped.get(last));
        let end = last.map_or(0, |last| (last.end() - space.range.ptr()) as usize);
        (space.used.get().min(end), end)
    }

    /// Where rubbish was written behind the buffers of a region.
    pub(super) fn filled(&self, region: Region) -> (usize, usize) {
        self.space(region).rest.get()
    }

    /// Says where it was.
    pub(super) fn set_filled(&self, region: Region, rest: (usize, usize)) {
        self.space(region).rest.set(rest);
    }

    fn space(&self, region: Region) -> &Space {
        match region {
            Region::Inputs => &self.inputs,
            Region::Outputs => &self.outputs,
        }
    }
}

impl Space {
    fn new(gpu: &Gpu, pool: &Rc<Pool>, bytes: usize, mapped: bool) -> Result<Self, CudaError> {
        let bytes = bytes.max(1).next_multiple_of(pool.granule());
        let space = Self {
            gpu: gpu.clone(),
            pool: Rc::clone(pool),
            range: gpu.addresses(bytes + NOWHERE.next_multiple_of(pool.granule()))?,
            bytes,
            mapped: RefCell::default(),
            used: Cell::new(0),
            rest: Cell::default(),
            fresh: Cell::new(true),
        };
        if mapped {
            space.map(0, bytes)?;
        }
        Ok(space)
    }

    /// Maps `bytes`, a multiple of the granule, from `offset` on, behind everything that is mapped.
    fn map(&self, offset: usize, bytes: usize) -> Result<(), CudaError> {
        let mapping = self.pool.take(&(bytes..=bytes))?.map(&self.range, offset)?;
        self.mapped.borrow_mut().push(mapping);
        Ok(())
    }

    /// Maps as much as buffers side by side need. What was mapped for other buffers stays unless it is much more.
    fn fit(&self, placing: Placing) -> Result<(), CudaError> {
        let needed = self.used.get().next_multiple_of(self.pool.granule());
        if placing == Placing::Fenced || needed == 0 {
            return Ok(());
        }
        let there = self.mapped.borrow().iter().map(Mapping::bytes).sum::<usize>();
        let most = (2 * needed + SPARE * self.pool.granule()).min(self.bytes);
        if self.fresh.replace(false) && !(needed..=most).contains(&there) {
            self.unmap();
            let mapping = self.pool.take(&(needed..=most))?.map(&self.range, 0)?;
            self.mapped.borrow_mut().push(mapping);
        } else if there < needed {
            self.map(there, needed - there)?;
        }
        Ok(())
    }

    fn unmap(&self) {
        for physical in self.mapped.borrow_mut().drain(..).filter_map(Mapping::unmap) {
            self.pool.keep(physical);
        }
    }

    /// How many of the mappings hold something, the first.
    fn needed(&self, placing: Placing) -> usize {
        let mapped = self.mapped.borrow();
        match placing {
            Placing::Fenced => mapped.len(),
            Placing::Packed => {
                let end = self.range.ptr() + self.used.get() as u64;
                mapped.partition_point(|mapping| mapping.ptr() < end)
            }
        }
    }

    /// Gives what is needed this access, and nothing to the others.
    fn protect(&self, placing: Placing, access: Access) -> Result<(), CudaError> {
        let needed = self.needed(placing);
        let mapped = self.mapped.borrow();
        let (used, others) = mapped.split_at(needed);
        self.each(used, access)?;
        self.each(others, Access::None)
    }

    fn shut(&self) -> Result<(), CudaError> {
        self.each(&self.mapped.borrow(), Access::None)
    }

    /// Gives mappings an access, neighbours together.
    fn each(&self, mapped: &[Mapping], access: Access) -> Result<(), CudaError> {
        for neighbours in mapped.chunk_by(|one, next| one.end() == next.ptr() && one.access() == next.access()) {
            self.gpu.protect(&neighbours.iter().collect::<Vec<_>>(), access)?;
        }
        Ok(())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.unmap();
    }
}
