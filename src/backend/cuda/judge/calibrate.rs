//! The device's ceilings, measured: what no kernel can be faster than, or hardly.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::driver::{Arguments, CudaError, DeviceMemory, Event, Function, Geometry, Gpu, GpuFacts};
use super::cublas::{Cublas, Gemms, Precision, Side};
use super::desk::{Build, Desk};
use crate::device::{Ceilings, DeviceCard};
use crate::op::Dtype;

pub(super) const SOURCE: &str = concat!(include_str!("device/common.cuh"), "\n", include_str!("device/calibrate.cu"));

/// Bytes that bandwidth is measured over; an eighth of the memory where that is less.
const BYTES: usize = 2 << 30;
/// A ceiling is the best of at least so many trials: noise only ever slows down.
const TRIALS: u32 = 12;
/// And of as many as fit in this time.
const ENOUGH: Duration = Duration::from_millis(400);
/// No trial takes so long.
const LIMIT: Duration = Duration::from_secs(20);
/// Turns of the chains in one trial: some milliseconds.
const TURNS: i64 = 4096;
/// Rows and columns of the products that rates are measured by: 16-bit ones, and others.
const SIZES: [usize; 2] = [8192, 4096];
/// Launches of a graph.
const NODES: u32 = 200;

/// What identifies a device for caches and locks.
#[must_use]
pub fn key(facts: &GpuFacts) -> String {
    facts.uuid.to_ascii_lowercase().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

/// Measures the device, in some seconds. It should have nothing else to do meanwhile.
///
/// # Errors
/// A sentence: the compiler's or the driver's.
pub fn calibrate(desk: &Desk, build: Build<'_>) -> Result<DeviceCard, String> {
    let text = |error: CudaError| error.to_string();
    let cubin = build("calibrate", SOURCE)?;
    let bench = Bench::new(desk, &cubin).map_err(text)?;
    let [read, write, copy] = bench.bandwidths().map_err(text)?;
    let rates = bench.rates(desk.cublas()).map_err(text)?;
    let (launch_us, graph_us) = (bench.launch_us().map_err(text)?, bench.graph_us().map_err(text)?);
    let rate = |name: &str| rates.get(name).copied().unwrap_or(0.0);
    // A kernel may always widen to single precision, so no ceiling is below that.
    let gflops = [Dtype::F16, Dtype::Bf16, Dtype::F32].map(|dtype| (dtype, rate(dtype.name()).max(rate("f32"))));
    let shown = [
        ("copy_gb_s", copy),
        ("tf32_gflops", rate("tf32")),
        ("f64_gflops", rate("f64")),
        ("event_launch_us", launch_us),
    ];
    let facts = desk.gpu().facts();
    Ok(DeviceCard {
        backend: "cuda".into(),
        name: facts.name.clone(),
        key: key(facts),
        cores: facts.multiprocessors,
        vector_bits: 0,
        l1_bytes: facts.shared_per_multiprocessor.into(),
        l2_bytes: facts.l2_bytes,
        l3_bytes: 0,
        // Rotated over so much, nothing of a buffer is left in the cache.
        cold_bytes: 3 * facts.l2_bytes,
        facts: front_matter_facts(facts),
        ceilings: Ceilings {
            read_gb_s: read,
            write_gb_s: write,
            gflops: gflops.into(),
            // In a graph, which is how short kernels are timed.
            launch_us: graph_us.min(launch_us),
            shown: shown.map(|(name, value)| (name.to_owned(), value)).into(),
        },
    })
}

/// Names that front matter may use: `SMS`, `SMEM_MAX` (bytes a block may have), `CC` (as 90), `L2` (bytes).
#[must_use]
pub fn front_matter_facts(facts: &GpuFacts) -> BTreeMap<String, i64> {
    [
        ("SMS", i64::from(facts.multiprocessors)),
        ("SMEM_MAX", i64::from(facts.shared_per_block)),
        ("CC", i64::from(facts.capability)),
        ("L2", facts.l2_bytes as i64),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Operations of one thread's or warp's turn of a kernel of chains.
struct Chain {
    kernel: &'static str,
    name: &'static str,
    /// Floating-point operations that a block of 256 threads does in a turn.
    operations: f64,
}

/// 16 chains of a multiply-add each for 256 threads; 8 products of 16 x 8 x 16 (tf32: 8) for 8 warps.
const CHAINS: [Chain; 5] = [
    Chain { kernel: "ws_fma_32", name: "f32", operations: 2.0 * 16.0 * 256.0 },
    Chain { kernel: "ws_fma_64", name: "f64", operations: 2.0 * 16.0 * 256.0 },
    Chain { kernel: "ws_mma_f16", name: "f16", operations: 2.0 * 8.0 * 8.0 * 2048.0 },
    Chain { kernel: "ws_mma_bf16", name: "bf16", operations: 2.0 * 8.0 * 8.0 * 2048.0 },
    Chain { kernel: "ws_mma_tf32", name: "tf32", operations: 2.0 * 8.0 * 8.0 * 1024.0 },
];

struct Bench<'a> {
    desk: &'a Desk,
    gpu: &'a Gpu,
    kernels: BTreeMap<&'static str, Function>,
    events: [Event; 2],
    memory: [DeviceMemory; 2],
    bytes: usize,
}

impl<'a> Bench<'a> {
    fn new(desk: &'a Desk, cubin: &[u8]) -> Result<Self, CudaError> {
        let gpu = desk.gpu();
        let module = gpu.module(cubin)?;
        let names = ["ws_read", "ws_write", "ws_copy"].into_iter().chain(CHAINS.iter().map(|chain| chain.kernel));
        let kernels = names.map(|name| Ok((name, module.function(name)?))).collect::<Result<_, CudaError>>()?;
        let bytes = BYTES.min(gpu.facts().memory_bytes as usize / 8).next_multiple_of(4096);
        let memory = [gpu.alloc(bytes)?, gpu.alloc(bytes)?];
        // Random bits: those that change cost power, and power costs clock. Halves of ordinary size are finite in every type.
        for one in &memory {
            desk.halves(one.ptr(), bytes / 2)?;
        }
        Ok(Self { desk, gpu, kernels, events: [gpu.event()?, gpu.event()?], memory, bytes })
    }

    /// The least seconds of `work`.
    fn best(&self, work: &dyn Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        work()?;
        self.gpu.settle()?;
        let (begin, mut best) = (Instant::now(), f64::INFINITY);
        let mut trial = 0;
        while trial < TRIALS || begin.elapsed() < ENOUGH {
            best = best.min(self.time(work)?);
            trial += 1;
            if begin.elapsed() > LIMIT {
                break;
            }
        }
        Ok(best)
    }

    fn time(&self, work: &dyn Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
        self.events[0].record()?;
        work()?;
        self.events[1].record()?;
        self.gpu.settle()?;
        Ok(self.gpu.elapsed_us(&self.events[0], &self.events[1])? / 1e6)
    }

    fn launch(&self, kernel: &str, blocks: u32, threads: u32, arguments: &Arguments) -> Result<(), CudaError> {
        let Some(function) = self.kernels.get(kernel) else {
            return Err(CudaError::Launch(format!("there is no kernel `{kernel}`")));
        };
        self.gpu.launch(function, &Geometry::linear(blocks, threads), arguments)
    }

    /// Reading, writing and copying (bytes read and written together), GB/s.
    fn bandwidths(&self) -> Result<[f64; 3], CudaError> {
        let mut found = [0.0; 3];
        for (number, (kernel, moved)) in [("ws_read", 1.0), ("ws_write", 1.0), ("ws_copy", 2.0)].into_iter().enumerate()
        {
            let arguments = Arguments::new()
                .pointer(self.memory[0].ptr())
                .pointer(self.memory[1].ptr())
                .long((self.bytes / 16) as i64);
            // How many blocks are best depends on the device.
            for each in [4, 8, 32] {
                let blocks = self.gpu.facts().multiprocessors * each;
                let seconds = self.best(&|| self.launch(kernel, blocks, 512, &arguments))?;
                found[number] = f64::max(found[number], moved * self.bytes as f64 / seconds / 1e9);
            }
        }
        Ok(found)
    }

    /// GFLOP/s by name, the better of cuBLAS's products and our own chains.
    fn rates(&self, cublas: Option<&Cublas>) -> Result<BTreeMap<&'static str, f64>, CudaError> {
        let mut found = BTreeMap::new();
        let mut take = |name: &'static str, rate: f64| {
            let best = found.entry(name).or_insert(0.0);
            *best = rate.max(*best);
        };
        for chain in &CHAINS {
            let blocks = self.gpu.facts().multiprocessors * 8;
            // Doubles are 64 times slower where a device is not made for them.
            let turns = if chain.name == "f64" { TURNS / 8 } else { TURNS };
            let arguments = Arguments::new().pointer(self.memory[0].ptr()).long(turns);
            let seconds = self.best(&|| self.launch(chain.kernel, blocks, 256, &arguments))?;
            take(chain.name, chain.operations * f64::from(blocks) * turns as f64 / seconds / 1e9);
        }
        let Some(cublas) = cublas else { return Ok(found) };
        let products = [
            ("f16", Precision::Of(Dtype::F16), SIZES[0], 2),
            ("bf16", Precision::Of(Dtype::Bf16), SIZES[0], 2),
            ("f32", Precision::Of(Dtype::F32), SIZES[1], 4),
            ("tf32", Precision::Tf32, SIZES[0], 4),
            ("f64", Precision::Double, SIZES[1], 8),
        ];
        for (name, precision, size, bytes) in products {
            let one = size * size * bytes;
            if 2 * one > self.bytes || one > self.bytes {
                continue;
            }
            let side = |at: u64| Side { at, step: size as i64, next: 0 };
            let (a, out) = (self.memory[0].ptr(), self.memory[1].ptr());
            let (m, n, k) = (size, size, size);
            let gemms = Gemms { batch: 1, m, n, k, trans_b: true, a: side(a), b: side(a + one as u64), out: side(out) };
            // A type that this architecture does not have leaves the rate as it is.
            let Ok(seconds) = self.best(&|| cublas.multiply(&gemms, precision, false)) else {
                self.gpu.settle()?;
                continue;
            };
            take(name, 2.0 * (size as f64).powi(3) / seconds / 1e9);
        }
        Ok(found)
    }

    /// A launch between two events, µs.
    fn launch_us(&self) -> Result<f64, CudaError> {
        let mut times = Vec::new();
        for _ in 0..401 {
            times.push(self.time(&|| self.desk.nothing())? * 1e6);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// A launch among others of a graph, µs.
    fn graph_us(&self) -> Result<f64, CudaError> {
        let graph = self.gpu.capture(|| (0..NODES).try_for_each(|_| self.desk.nothing()))?;
        Ok(self.best(&|| graph.launch())? * 1e6 / f64::from(NODES))
    }
}

/// The card of this device: from `folder` where it was measured before, unless `again`; else measured now and stored.
///
/// # Errors
/// A sentence. A folder that cannot be written is none: it is then measured each time.
pub fn device_card(folder: &std::path::Path, desk: &Desk, build: Build<'_>, again: bool) -> Result<DeviceCard, String> {
    if !again && let Some(card) = crate::device::cached_card(folder, &key(desk.gpu().facts())) {
        return Ok(card);
    }
    let card = calibrate(desk, build)?;
    let _ = crate::device::store_card(folder, &card);
    Ok(card)
}
