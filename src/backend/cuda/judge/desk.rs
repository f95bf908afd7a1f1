//! The judge's place on a device: its kernels, its own memory, and the memory it lends to cases.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::super::driver::{Arguments, CudaError, DeviceMemory, Function, Geometry, Gpu, Vault};
use super::cublas::Cublas;
use super::folders::library_folders;
use super::words::{STRETCHES, Stretch, stretches};

/// The device code, in the order in which it is compiled as one text.
const SOURCES: [&str; 5] = [
    include_str!("device/common.cuh"),
    include_str!("device/memory.cu"),
    include_str!("device/draw.cu"),
    include_str!("device/compare.cu"),
    include_str!("device/product.cu"),
];

/// Kernels of the device code.
const KERNELS: [&str; 16] = [
    "ws_poison",
    "ws_disturbed",
    "ws_zero",
    "ws_not_zero",
    "ws_digest",
    "ws_gather",
    "ws_flush",
    "ws_dirty",
    "ws_nothing",
    "ws_draw",
    "ws_row_squares",
    "ws_compare",
    "ws_compare_all",
    "ws_decode",
    "ws_product",
    "ws_agree",
];

/// Threads of a block where nothing else is said.
pub(super) const THREADS: u32 = 256;

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
    /// All of it.
    pub(super) const END: u64 = RECORDED + 16 * MOST_RECORDED as u64;
}

/// Memory kept for the next arena, at most so many pieces.
const SPARES: usize = 2;
/// No more than this is taken in advance, bytes.
const MOST_IN_ADVANCE: u64 = 16 << 30;

/// Compiles one trusted text (a name for messages, the text) for the device to a cubin.
pub type Build<'a> = &'a dyn Fn(&str, &str) -> Result<Vec<u8>, String>;

/// The judge's kernels and memory on one device; shared by arenas, oracles and hosts.
#[derive(Debug)]
pub struct Desk {
    gpu: Gpu,
    kernels: BTreeMap<&'static str, Function>,
    /// Results and digests.
    papers: RefCell<Vault>,
    /// Expected values; made when first wanted, and larger when more is wanted.
    store: RefCell<Option<Vault>>,
    /// Memory for arenas, not in use.
    spares: RefCell<Vec<DeviceMemory>>,
    /// A buffer twice as large as the cache.
    flush: DeviceMemory,
    /// What digests are mixed with: nobody can make two inputs alike without it.
    key: u64,
    /// cuBLAS, once it was looked for; why not, where it is not there.
    cublas: OnceCell<Result<Cublas, String>>,
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
            papers: RefCell::new(gpu.vault(place::END as usize).map_err(text)?),
            store: RefCell::new(None),
            spares: RefCell::default(),
            flush: gpu.alloc(flush_bytes).map_err(text)?,
            key: crate::rng::secret_seed(),
            cublas: OnceCell::new(),
            failed: RefCell::default(),
        };
        gpu.memset(desk.flush.ptr(), 0x3c, flush_bytes).map_err(text)?;
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

    /// Takes the judge's own memory out of every kernel's reach. Whatever the judge does next gives it back.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn seal(&self) -> Result<(), CudaError> {
        self.papers.borrow_mut().seal()?;
        self.store.borrow_mut().as_mut().map_or(Ok(()), Vault::seal)
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

    /// What digests are drawn from.
    pub(super) const fn key(&self) -> u64 {
        self.key
    }

    /// The address of a place of the small memory, open.
    pub(super) fn paper(&self, place: u64) -> Result<u64, CudaError> {
        let mut papers = self.papers.borrow_mut();
        papers.open()?;
        Ok(papers.ptr() + place)
    }

    /// The address of `bytes` bytes for expected values, open. What was there before may be gone.
    pub(super) fn store(&self, bytes: usize) -> Result<u64, CudaError> {
        let mut store = self.store.borrow_mut();
        if store.as_ref().is_none_or(|vault| vault.bytes() < bytes) {
            // The old one goes first: both together might not fit.
            *store = None;
            // Some more, so that slightly larger cases need no other.
            *store = Some(self.gpu.vault(bytes + bytes / 4).or_else(|_| self.gpu.vault(bytes))?);
        }
        match store.as_mut() {
            Some(vault) => {
                vault.open()?;
                Ok(vault.ptr())
            }
            None => Ok(0),
        }
    }

    /// Memory of at least `bytes`: some that an arena gave back, else new.
    pub(super) fn lend(&self, bytes: usize) -> Result<DeviceMemory, CudaError> {
        let mut spares = self.spares.borrow_mut();
        if let Some(fits) = spares.iter().position(|memory| memory.bytes() >= bytes) {
            return Ok(spares.swap_remove(fits));
        }
        spares.clear();
        let (free, _) = self.gpu.memory()?;
        let ahead = (free / 4).min(MOST_IN_ADVANCE) as usize;
        self.gpu.alloc(bytes.max(ahead)).or_else(|_| self.gpu.alloc(bytes))
    }

    /// Takes lent memory back.
    pub(super) fn give_back(&self, memory: DeviceMemory) {
        let mut spares = self.spares.borrow_mut();
        spares.push(memory);
        // The largest serve most.
        spares.sort_by_key(DeviceMemory::bytes);
        let excess = spares.len().saturating_sub(SPARES);
        spares.drain(..excess);
    }

    /// Bytes of memory that could still be lent.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        let spare = self.spares.borrow().iter().map(|memory| memory.bytes() as u64).sum::<u64>();
        Ok(self.gpu.memory()?.0 + spare)
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

    /// Reads twice the cache's size: nothing of earlier work is left in it, and no dirty lines.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn flush(&self) -> Result<(), CudaError> {
        let (ptr, bytes) = (self.flush.ptr(), self.flush.bytes() as i64);
        let blocks = self.gpu.facts().multiprocessors * 8;
        self.launch("ws_flush", blocks, &Arguments::new().pointer(ptr).long(bytes / 16).pointer(ptr))
    }

    /// Leaves rubbish in all shared memory.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn dirty(&self, key: u64) -> Result<(), CudaError> {
        let facts = self.gpu.facts();
        let shared = facts.shared_per_block;
        let geometry = Geometry { shared, ..Geometry::linear(facts.multiprocessors * 4, 1024) };
        let arguments = Arguments::new().long(key as i64).int((shared / 4) as i32).pointer(self.flush.ptr());
        self.launch_as("ws_dirty", &geometry, &arguments)
    }

    /// A kernel that does nothing.
    pub(super) fn nothing(&self) -> Result<(), CudaError> {
        self.launch_as("ws_nothing", &Geometry::linear(1, 32), &Arguments::new())
    }
}
