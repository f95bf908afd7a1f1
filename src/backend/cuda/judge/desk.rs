//! The judge's place on a device: its kernels, its own memory, and the memory it lends to cases.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use super::super::driver::{Access, Arguments, CudaError, Function, Geometry, Gpu, Vault};
use super::cublas::Cublas;
use super::folders::library_folders;
use super::ground::{Ground, OnlyReading};
use super::pool::Pool;
use super::words::{STRETCHES, Stretch, stretches};
use crate::backend::{Placing, Region};
use crate::defence::Defence;

/// The device code, in the order in which it is compiled as one text.
const SOURCES: [&str; 5] = [
    include_str!("device/common.cuh"),
    include_str!("device/memory.cu"),
    include_str!("device/draw.cu"),
    include_str!("device/compare.cu"),
    include_str!("device/product.cu"),
];

/// Kernels of the device code.
const KERNELS: [&str; 20] = [
    "ws_poison",
    "ws_disturbed",
    "ws_zero",
    "ws_not_zero",
    "ws_digest",
    "ws_gather",
    "ws_poke",
    "ws_exchange",
    "ws_flush",
    "ws_dirty",
    "ws_registers",
    "ws_stack",
    "ws_nothing",
    "ws_draw",
    "ws_row_squares",
    "ws_compare",
    "ws_compare_all",
    "ws_decode",
    "ws_product",
    "ws_agree",
];

/// A warp, and a block of usual size.
pub(super) const WARP: Geometry = Geometry::linear(1, 32);
pub(super) const ONE_BLOCK: Geometry = Geometry::linear(1, THREADS);

/// Threads of a block where nothing else is said.
pub(super) const THREADS: u32 = 256;

/// Words of a thread's stack that are overwritten (`STACK`).
const STACK: i32 = 256;

/// Bytes kept for arenas that other processes would miss. Less is not worth what it takes to have it again.
const MISSED: usize = 1 << 30;

/// Places in the judge's small memory, in bytes.
pub(super) mod place {
    /// Results of `ws_disturbed` and `ws_not_zero`.
    pub(in super::super) const FOUND: u64 = 0;
    /// Digests on their way to the host.
    pub(in super::super) const SUMS: u64 = 4 << 10;
    /// What comparing found, an output after the other.
    pub(in super::super) const STATS: u64 = 8 << 10;
    /// Where product and header disagree, a product after the other; directly after `STATS` so that both are read at once.
    pub(in super::super) const DISAGREE: u64 = 12 << 10;
    /// One more than the last of it.
    pub(in super::super) const READ_END: u64 = 16 << 10;
    /// Gathered elements.
    pub(in super::super) const GATHER: u64 = 16 << 10;
    /// What a checker found for a sample: values, then terms.
    pub(in super::super) const SLOTS: u64 = 32 << 10;
    /// Digests of inputs as the judge left them.
    pub(in super::super) const RECORDED: u64 = 128 << 10;
    /// How many of them there may be.
    pub(in super::super) const MOST_RECORDED: usize = 1 << 18;
    /// Expected values where there are few: opened and sealed together with the rest.
    pub(super) const FEW: u64 = RECORDED + 16 * MOST_RECORDED as u64;
    /// How many bytes of them.
    pub(super) const MOST_FEW: usize = 56 << 20;
    /// All of it.
    pub(super) const END: u64 = FEW + MOST_FEW as u64;
}

/// Compiles one trusted text (a name for messages, the text) for the device to a cubin.
pub type Build<'a> = &'a dyn Fn(&str, &str) -> Result<Vec<u8>, String>;

/// The judge's kernels and memory on one device; shared by arenas, oracles and hosts.
#[derive(Debug)]
pub struct Desk {
    gpu: Gpu,
    kernels: BTreeMap<&'static str, Function>,
    /// Results and digests.
    papers: Vault,
    /// Expected values; made when first wanted, and larger when more is wanted.
    store: RefCell<Option<Vault>>,
    /// What libraries work with.
    others: RefCell<Vec<Weak<Vault>>>,
    /// Memory for arenas, not in use.
    pool: Rc<Pool>,
    /// What the arenas stand on.
    grounds: RefCell<Vec<Weak<Ground>>>,
    /// Whether memory can be left to be only read.
    only_reading: OnlyReading,
    /// A buffer twice as large as the cache, which nobody writes to.
    flush: Vault,
    /// What digests are mixed with: nobody can make two inputs alike without it.
    key: u64,
    /// cuBLAS, once it was looked for; why not, where it is not there.
    cublas: OnceCell<Result<Cublas, String>>,
    /// Places of digests that no arena has, below the first that none ever had.
    free_slots: RefCell<(BTreeSet<usize>, usize)>,
    /// The first failure of a call that has no way to say so.
    failed: RefCell<Option<CudaError>>,
}

/// All device code that is the judge's own, by name, as it is compiled.
#[must_use]
pub fn device_sources() -> [(&'static str, String); 3] {
    [
        ("judge", judge_source()),
        ("library", super::library::SOURCE.to_owned()),
        ("calibrate", super::calibrate::SOURCE.to_owned()),
    ]
}

fn judge_source() -> String {
    SOURCES.join("\n")
}

impl Desk {
    /// Compiles the device code through `build` and takes the memory it needs.
    ///
    /// # Errors
    /// A sentence: the compiler's or the driver's.
    pub fn new(gpu: &Gpu, build: Build<'_>) -> Result<Rc<Self>, String> {
        let text = |error: CudaError| error.to_string();
        let module = gpu.module(&build("judge", &judge_source())?).map_err(text)?;
        let kernels = KERNELS
            .iter()
            .map(|name| Ok((*name, module.function(name)?)))
            .collect::<Result<_, CudaError>>()
            .map_err(text)?;
        let flush_bytes = (2 * gpu.facts().l2_bytes as usize).max(64 << 20);
        let desk = Self {
            gpu: gpu.clone(),
            kernels,
            papers: gpu.vault(place::END as usize).map_err(text)?,
            store: RefCell::new(None),
            others: RefCell::default(),
            pool: Rc::new(Pool::new(gpu).map_err(text)?),
            grounds: RefCell::default(),
            only_reading: OnlyReading::default(),
            flush: gpu.vault(flush_bytes).map_err(text)?,
            key: crate::rng::secret_seed(),
            cublas: OnceCell::new(),
            free_slots: RefCell::default(),
            failed: RefCell::default(),
        };
        gpu.memset(desk.flush.ptr(), 0x3c, desk.flush.bytes()).map_err(text)?;
        // Where the driver cannot, a candidate could leave notes there; a kernel that knows where does not find it by chance.
        if let Err(CudaError::Lost(why)) = desk.flush.only_read() {
            return Err(why);
        }
        Ok(Rc::new(desk))
    }

    /// The device.
    #[must_use]
    pub const fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// cuBLAS on this device; looked for when first asked, which takes a tenth of a second.
    #[must_use]
    pub fn cublas(&self) -> Option<&Cublas> {
        self.find_cublas().ok()
    }

    /// The same, with the reason where there is none.
    ///
    /// # Errors
    /// A sentence.
    pub fn find_cublas(&self) -> Result<&Cublas, &String> {
        self.cublas.get_or_init(|| Cublas::load(&self.gpu, &library_folders())).as_ref()
    }

    /// Takes everything out of a candidate's reach but what `ground` has for it: its inputs, to read, and its outputs and scratch.
    /// Whatever the judge does next gives it back to the judge.
    ///
    /// # Errors
    /// What the driver refused.
    pub(in super::super) fn seal(&self, ground: &Rc<Ground>) -> Result<(), CudaError> {
        self.fill_rests(ground)?;
        if !Defence::Sealing.stands() {
            return ground.seal(&self.only_reading);
        }
        self.papers.seal()?;
        self.store.borrow().as_ref().map_or(Ok(()), Vault::seal)?;
        if let Some(Ok(cublas)) = self.cublas.get() {
            cublas.workspace().seal()?;
        }
        self.others.borrow().iter().filter_map(Weak::upgrade).try_for_each(|vault| vault.seal())?;
        let grounds = self.grounds.borrow();
        let elsewhere = grounds.iter().filter_map(Weak::upgrade).filter(|other| !Rc::ptr_eq(other, ground));
        elsewhere.into_iter().try_for_each(|other| other.shut())?;
        ground.seal(&self.only_reading)
    }

    /// Writes rubbish behind the buffers of an arena, as far as a kernel can reach there, unless it is there.
    fn fill_rests(&self, ground: &Ground) -> Result<(), CudaError> {
        ground.fit()?;
        for region in [Region::Inputs, Region::Outputs] {
            let guarded = region == Region::Outputs || self.only_reading.get() != Some(true);
            if guarded && ground.filled(region) != ground.rest(region) {
                ground.reach(region, Access::Write)?;
                ground.set_filled(region, ground.rest(region));
                let rest = self.rest(ground, region);
                self.on_stretches("ws_poison", &[rest], &mut |_, _, arguments| Ok(arguments))?;
            }
        }
        Ok(())
    }

    /// The rubbish behind the buffers of a region.
    pub(super) fn rest(&self, ground: &Ground, region: Region) -> Stretch {
        let (begin, end) = ground.filled(region);
        Stretch { at: ground.begin(region) + begin as u64, bytes: (end - begin) as u64, exponent: 0, key: self.key }
    }

    /// Two ranges of addresses for an arena.
    pub(super) fn ground(&self, bytes: [usize; 2], placing: Placing) -> Result<Rc<Ground>, CudaError> {
        let ground = || Ground::new(&self.gpu, &self.pool, bytes, placing);
        let ground = Rc::new(ground().or_else(|error| {
            // What was expected of an earlier case is not needed any more.
            if !error.is_out_of_memory() || self.store.borrow_mut().take().is_none() {
                return Err(error);
            }
            ground()
        })?);
        let mut grounds = self.grounds.borrow_mut();
        grounds.retain(|known| known.strong_count() > 0);
        grounds.push(Rc::downgrade(&ground));
        Ok(ground)
    }

    /// What memory is mapped in, bytes.
    pub(super) fn granule(&self) -> usize {
        self.pool.granule()
    }

    /// Memory for a library to work with: sealed with everything else, opened by whoever launches the library.
    ///
    /// # Errors
    /// What the driver refused.
    pub(super) fn vault(&self, bytes: usize) -> Result<Rc<Vault>, CudaError> {
        let vault = Rc::new(self.large(bytes)?);
        let mut others = self.others.borrow_mut();
        others.retain(|known| known.strong_count() > 0);
        others.push(Rc::downgrade(&vault));
        Ok(vault)
    }

    /// A vault for which what is kept for arenas makes room.
    fn large(&self, bytes: usize) -> Result<Vault, CudaError> {
        self.gpu.vault(bytes).or_else(|error| {
            if !error.is_out_of_memory() {
                return Err(error);
            }
            self.pool.clear();
            self.gpu.vault(bytes)
        })
    }

    /// What went wrong where no error could be returned: nothing judged since is worth anything.
    #[must_use]
    pub fn failure(&self) -> Option<CudaError> {
        self.failed.borrow().clone()
    }

    /// Keeps the first failure; gives the value of a success.
    pub(super) fn keep<V>(&self, result: Result<V, CudaError>) -> Option<V> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.borrow_mut().get_or_insert(error);
                None
            }
        }
    }

    /// A place for the digest of an input, which no other arena has.
    pub(super) fn take_slot(&self) -> usize {
        let (free, next) = &mut *self.free_slots.borrow_mut();
        free.pop_first().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        })
    }

    /// Takes places back.
    pub(super) fn give_slots(&self, slots: impl Iterator<Item = usize>) {
        self.free_slots.borrow_mut().0.extend(slots);
    }

    /// What digests are drawn from.
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// The address of a place of the small memory, open.
    pub(super) fn paper(&self, place: u64) -> Result<u64, CudaError> {
        self.papers.open()?;
        Ok(self.papers.ptr() + place)
    }

    /// The address of `bytes` bytes for expected values, open. What was there before may be gone.
    pub(super) fn store(&self, bytes: usize) -> Result<u64, CudaError> {
        if bytes <= place::MOST_FEW {
            return self.paper(place::FEW);
        }
        let mut store = self.store.borrow_mut();
        if store.as_ref().is_none_or(|vault| vault.bytes() < bytes) {
            // The old one goes first: both together might not fit.
            *store = None;
            // Some more, so that slightly larger cases need no other.
            *store = Some(self.gpu.vault(bytes + bytes / 4).or_else(|_| self.large(bytes))?);
        }
        match store.as_ref() {
            Some(vault) => {
                vault.open()?;
                Ok(vault.ptr())
            }
            None => Ok(0),
        }
    }

    /// Gives back what is kept for arenas, where that is so much that others would miss it.
    pub fn give_back_memory(&self) {
        if self.pool.kept_bytes() > MISSED {
            self.pool.clear();
        }
    }

    /// Bytes of memory that could still be lent.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        Ok(self.gpu.memory()?.0 + self.pool.kept_bytes() as u64)
    }

    /// Launches a kernel of the device code.
    pub(super) fn launch(&self, kernel: &'static str, blocks: u32, arguments: &Arguments) -> Result<(), CudaError> {
        self.launch_as(kernel, &Geometry::linear(blocks, THREADS), arguments)
    }

    /// The same, with any geometry.
    pub(super) fn launch_as(
        &self,
        kernel: &'static str,
        geometry: &Geometry,
        arguments: &Arguments,
    ) -> Result<(), CudaError> {
        let Some(function) = self.kernels.get(kernel) else {
            return Err(CudaError::Launch(format!("there is no kernel `{kernel}`")));
        };
        self.gpu.launch(function, geometry, arguments)
    }

    /// Blocks for `threads` threads of work that a grid takes in strides: enough to fill the device.
    pub(super) fn blocks(&self, threads: u64) -> u32 {
        let most = u64::from(self.gpu.facts().multiprocessors) * 16;
        threads.div_ceil(THREADS.into()).clamp(1, most) as u32
    }

    /// Launches a kernel on stretches, as many as it takes at a time; `results`, if any, gives the argument after them and is
    /// called with the number of the first stretch of each launch.
    pub(super) fn on_stretches(
        &self,
        kernel: &'static str,
        all: &[Stretch],
        after: &mut dyn FnMut(&Desk, usize, Arguments) -> Result<Arguments, CudaError>,
    ) -> Result<(), CudaError> {
        for (number, group) in all.chunks(STRETCHES).enumerate() {
            let (bytes, blocks) = stretches(group);
            let arguments = after(self, number * STRETCHES, Arguments::new().bytes(&bytes))?;
            if blocks > 0 {
                self.launch(kernel, blocks, &arguments)?;
            }
        }
        Ok(())
    }

    /// Reads twice the cache's size: nothing of earlier work is left in it, and no dirty lines. What earlier work left in shared
    /// memory is overwritten by the way, with rubbish drawn from `key`.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn flush(&self, key: u64) -> Result<(), CudaError> {
        let (ptr, bytes) = (self.flush.ptr(), self.flush.bytes() as i64);
        let shared = if Defence::SharedRubbish.stands() { self.gpu.facts().shared_per_block } else { 0 };
        // A block has a multiprocessor to itself, so that each has one.
        let geometry = Geometry { shared, ..Geometry::linear(self.gpu.facts().multiprocessors, 1024) };
        let arguments =
            Arguments::new().pointer(ptr).long(bytes / 16).long(key as i64).int((shared / 4) as i32).pointer(0);
        self.launch_as("ws_flush", &geometry, &arguments)
    }

    /// Leaves rubbish in all shared memory.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn dirty(&self, key: u64) -> Result<(), CudaError> {
        let facts = self.gpu.facts();
        let shared = facts.shared_per_block;
        let geometry = Geometry { shared, ..Geometry::linear(facts.multiprocessors * 4, 1024) };
        let arguments = Arguments::new().long(key as i64).int((shared / 4) as i32).pointer(0);
        self.launch_as("ws_dirty", &geometry, &arguments)
    }

    /// Leaves rubbish in all shared memory, in the registers, and where threads keep their stacks.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn litter(&self, key: u64) -> Result<(), CudaError> {
        self.dirty(key)?;
        let facts = self.gpu.facts();
        let all = |number: i32| Arguments::new().long(key as i64).int(number).pointer(0);
        // Twice as many blocks as fit at once, so that none is left out.
        let fit = facts.multiprocessors * (facts.threads_per_multiprocessor / THREADS).max(1);
        self.launch("ws_stack", 2 * fit, &all(STACK))?;
        self.launch("ws_registers", 2 * facts.multiprocessors, &all(1))
    }

    /// A kernel that does nothing.
    pub(super) fn nothing(&self) -> Result<(), CudaError> {
        self.launch_as("ws_nothing", &Geometry::linear(1, 32), &Arguments::new())
    }
}
