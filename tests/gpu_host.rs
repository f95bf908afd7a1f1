//! The driver's layer and the host on a real GPU. Each case runs in a process of its own, because a kernel that faults or hangs
//! costs the process its device. Where no device opens, the test says why and passes.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use warpsmith::backend::cuda::judge::{Arena, Desk, Oracle, compare, front_matter_facts};
use warpsmith::backend::cuda::{
    Arguments, Compiler, CudaError, Function, Geometry, Gpu, Host, Image, MapElement, MapSpec, MapSwizzle, Unit,
};
use warpsmith::backend::{Arena as _, CaseMemory, Conditions, Fault, Host as _, Placing};
use warpsmith::kernel::KernelFile;
use warpsmith::op::{Case, Dtype, Operation, Shape};

const LIMIT: Duration = Duration::from_secs(5);
#[path = "gpu_host/overlap.rs"]
mod overlap;
#[path = "gpu_host/reach.rs"]
mod reach;

use overlap::what_begins_early_has_waited;
use reach::{a_note_behind_the_last_buffer, an_input_is_only_read, inside_its_fences, past_a_fence, what_access_costs};

/// How a case that runs alone is chosen.
const ONE: &str = "WARPSMITH_TEST_CASE";

/// A name that is a sentence, and what it does.
type TestCase = (&'static str, fn(&Device));

const CASES: [TestCase; 18] = [
    ("copies arrive and fills fill", copies_arrive),
    ("an endless kernel is given up in time, and ending the process does not wait for it", an_endless_kernel),
    ("an illegal address is a crash with its name", an_illegal_address),
    ("a misaligned access is a crash with its name", a_misaligned_access),
    ("a sealed vault cannot be read, and an open one can", a_sealed_vault),
    ("a launch that does not fit the kernel's parameters is refused", parameters_are_compared),
    ("shared memory above 48 KB, clusters, and cooperative launches work", sizes_beyond_the_usual),
    ("the copy engine reads through a tensor map", a_tensor_map),
    ("a graph of launches costs less than as many launches", a_graph),
    ("an honest kernel's results are right, from a plan of two dependent launches", an_honest_kernel),
    ("a candidate that hangs or faults is a fault of the host", a_dishonest_candidate),
    ("times are plausible, single and in batches", times_are_plausible),
    ("a write to an input is a crash that says so", an_input_is_only_read),
    ("a read just past a fenced buffer is a crash", past_a_fence),
    ("a fenced kernel that stays inside is right, with rubbish between its launches", inside_its_fences),
    ("a note behind the last buffer is seen", a_note_behind_the_last_buffer),
    ("giving and taking access costs little", what_access_costs),
    ("of calls recorded together one begins early only where it waits for what it uses", what_begins_early_has_waited),
];

#[test]
fn the_driver_and_the_host_do_what_they_say() {
    if let Ok(name) = std::env::var(ONE) {
        let (_, case) = CASES.iter().find(|(known, _)| *known == name).unwrap();
        case(&Device::open().unwrap());
        return;
    }
    if let Err(why) = Device::open() {
        eprintln!("skipped: {why}");
        return;
    }
    let mut failed = Vec::new();
    for (name, _) in CASES {
        let start = Instant::now();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output =
            command.args(["--exact", "the_driver_and_the_host_do_what_they_say", "--nocapture"]).env(ONE, name);
        let output = output.output().unwrap();
        let passed = output.status.success();
        eprintln!("{} {:6.2} s  {name}", if passed { "ok    " } else { "FAILED" }, start.elapsed().as_secs_f64());
        if !passed {
            eprintln!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn the_honest_kernel_of_these_tests_compiles_without_a_gpu() {
    let cache = tempfile::tempdir().unwrap();
    let compiler = match Compiler::new(cache.path(), None, Some(env!("CARGO_BIN_EXE_warpsmith").into())) {
        Ok(compiler) => compiler,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let op = rmsnorm();
    let facts = [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 1 << 20)];
    let facts = facts.map(|(name, n)| (name.to_owned(), n)).into();
    let file = KernelFile::parse(&HONEST.replace("TRAP", "")).unwrap();
    let shape = Shape([("rows".to_owned(), 4), ("cols".to_owned(), 64)].into());
    let resolution = file.resolve(&op.complete(&shape).unwrap(), Dtype::Bf16, &facts).unwrap();
    compiler.candidate(&op, &file, &[resolution], 90, &facts, &AtomicBool::new(false)).unwrap();
}

fn rmsnorm() -> Operation {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Operation::load(&|name| std::fs::read_to_string(root.join(name)).ok(), "rmsnorm").unwrap()
}

struct Device {
    gpu: Gpu,
    compiler: Compiler,
    _cache: tempfile::TempDir,
}

impl Device {
    fn open() -> Result<Self, String> {
        let gpu = Gpu::open(0).map_err(|error| error.to_string())?;
        let cache = tempfile::tempdir().unwrap();
        let program = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
        let compiler = Compiler::new(cache.path(), Some(gpu.facts().driver), Some(program));
        Ok(Self { gpu, compiler: compiler.map_err(|error| error.to_string())?, _cache: cache })
    }

    fn cubin(&self, name: &str, source: &str) -> Result<Vec<u8>, String> {
        let capability = self.gpu.facts().capability;
        let arch = if capability == 90 { "sm_90a".to_owned() } else { format!("sm_{capability}") };
        let unit = Unit {
            name: format!("{name}.cu"),
            source: source.into(),
            arch,
            options: vec![],
            names: vec![],
            numbers: Default::default(),
        };
        Ok(self.compiler.trusted(&[unit]).map_err(|error| error.to_string())?[0].cubin.to_vec())
    }

    /// The kernel `k` of a text.
    fn kernel(&self, source: &str) -> Function {
        let cubin = self.cubin("test", source).unwrap();
        self.gpu.module(&cubin).unwrap().function("k").unwrap()
    }

    /// Launches `k` with one pointer and waits.
    fn run(&self, source: &str, pointer: u64) -> Result<(), Fault> {
        let arguments = Arguments::new().pointer(pointer);
        self.gpu.launch(&self.kernel(source), &Geometry::linear(1, 32), &arguments).unwrap();
        self.gpu.synchronize(LIMIT)
    }
}

fn crash(result: Result<(), Fault>, gpu: &Gpu) -> String {
    let Err(Fault::Crash { what, .. }) = result else { panic!("{result:?}") };
    assert!(gpu.is_lost());
    assert!(matches!(gpu.alloc(16), Err(CudaError::Lost(_))));
    what
}

fn copies_arrive(device: &Device) {
    let gpu = &device.gpu;
    let facts = gpu.facts();
    assert!(facts.uuid.starts_with("GPU-") && facts.capability >= 75 && facts.multiprocessors > 0, "{facts:?}");
    for bytes in [5, 4096, 1 << 20] {
        let memory = gpu.alloc(bytes).unwrap();
        let sent: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
        gpu.copy_in(memory.ptr(), &sent).unwrap();
        let mut back = vec![0; bytes];
        gpu.copy_out(&mut back, memory.ptr()).unwrap();
        assert_eq!(sent, back);
        gpu.memset(memory.ptr() + 1, 9, bytes - 1).unwrap();
        gpu.copy_out(&mut back, memory.ptr()).unwrap();
        assert!(back[0] == 0 && back[1..].iter().all(|byte| *byte == 9));
    }
    assert!(gpu.alloc(1 << 50).is_err_and(|error| error.is_out_of_memory()));
    assert!(!gpu.is_lost());
}

fn an_endless_kernel(device: &Device) {
    let memory = device.gpu.alloc(4).unwrap();
    device.gpu.memset(memory.ptr(), 0, 4).unwrap();
    let source = "extern \"C\" __global__ void k(volatile int *p) { while (*p == 0) {} }";
    let arguments = Arguments::new().pointer(memory.ptr());
    // Unloading a kernel waits for it, so it lives until the device is lost.
    let kernel = device.kernel(source);
    device.gpu.launch(&kernel, &Geometry::linear(1, 1), &arguments).unwrap();
    let limit = Duration::from_millis(200);
    assert!(matches!(device.gpu.synchronize(limit), Err(Fault::Timeout { .. })));
    assert!(device.gpu.is_lost());
}

fn an_illegal_address(device: &Device) {
    let source = "extern \"C\" __global__ void k(int *p) { *p = 1; }";
    let what = crash(device.run(source, 0x10), &device.gpu);
    assert!(what.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{what}");
}

fn a_misaligned_access(device: &Device) {
    let memory = device.gpu.alloc(64).unwrap();
    let source = "extern \"C\" __global__ void k(char *p) { *(int4 *)(p + 4) = make_int4(1, 2, 3, 4); }";
    let what = crash(device.run(source, memory.ptr()), &device.gpu);
    assert!(what.contains("CUDA_ERROR_MISALIGNED_ADDRESS"), "{what}");
}

fn a_sealed_vault(device: &Device) {
    let vault = device.gpu.vault(1000).unwrap();
    let source = "extern \"C\" __global__ void k(volatile int *p) { p[1] = p[0] + 1; }";
    device.gpu.memset(vault.ptr(), 1, 8).unwrap();
    device.run(source, vault.ptr()).unwrap();
    let start = Instant::now();
    vault.seal().unwrap();
    vault.open().unwrap();
    eprintln!("sealing and opening: {:?}", start.elapsed());
    let mut back = [0; 8];
    device.gpu.copy_out(&mut back, vault.ptr()).unwrap();
    assert_eq!(back, [1, 1, 1, 1, 2, 1, 1, 1]);
    vault.seal().unwrap();
    crash(device.run(source, vault.ptr()), &device.gpu);
}

fn parameters_are_compared(device: &Device) {
    let k = device.kernel("extern \"C\" __global__ void k(int *p, long long n, float s) { *p = n + s; }");
    let geometry = Geometry::linear(1, 1);
    for arguments in [Arguments::new().pointer(0), Arguments::new().pointer(0).float(1.0).long(1)] {
        assert!(matches!(device.gpu.launch(&k, &geometry, &arguments), Err(CudaError::Launch(_))));
    }
    let fits = Arguments::new().pointer(0).long(1).float(1.0);
    let large = Geometry { shared: 10 << 20, ..geometry };
    assert!(matches!(device.gpu.launch(&k, &large, &fits), Err(CudaError::Launch(_))));
    let refused = device.gpu.launch(&k, &Geometry::linear(1, 2048), &fits).unwrap_err();
    assert!(matches!(refused.clone().fault(), Fault::Crash { .. }), "{refused}");
    assert!(!device.gpu.is_lost());
}

fn sizes_beyond_the_usual(device: &Device) {
    let gpu = &device.gpu;
    let memory = gpu.alloc(1024).unwrap();
    gpu.memset(memory.ptr(), 0, 1024).unwrap();
    let arguments = Arguments::new().pointer(memory.ptr());
    let source = "extern __shared__ int s[];\nextern \"C\" __global__ void k(int *p) {\n\
        for (int i = threadIdx.x; i < 24000; i += blockDim.x) s[i] = i;\n__syncthreads();\n\
        if (threadIdx.x == 0) atomicAdd(p, s[23999]); }";
    let k = device.kernel(source);
    let mut geometry = Geometry { shared: 96_000, ..Geometry::linear(8, 256) };
    assert!(gpu.occupancy(&k, &geometry).unwrap() >= 1);
    gpu.launch(&k, &geometry, &arguments).unwrap();
    geometry.cooperative = true;
    gpu.launch(&k, &geometry, &arguments).unwrap();
    let mut launches = 2;
    if gpu.facts().capability >= 90 {
        geometry.cooperative = false;
        for blocks in [4, 8] {
            geometry.cluster = Some([blocks, 1, 1]);
            gpu.launch(&k, &geometry, &arguments).unwrap();
            launches += 1;
        }
        geometry = Geometry { grid: [16, 1, 1], cluster: Some([16, 1, 1]), shared: 96_000, ..geometry };
        gpu.launch(&k, &geometry, &arguments).unwrap();
        launches += 2;
    }
    gpu.synchronize(LIMIT).unwrap();
    let mut sum = [0; 4];
    gpu.copy_out(&mut sum, memory.ptr()).unwrap();
    assert_eq!(i32::from_ne_bytes(sum), launches * 8 * 23_999);
}

fn a_tensor_map(device: &Device) {
    if device.gpu.facts().capability < 90 {
        return;
    }
    let source = "struct alignas(64) Map { unsigned long long opaque[16]; };\n\
        extern \"C\" __global__ void k(const __grid_constant__ Map map, float *y) {\n\
        __shared__ alignas(128) float tile[8 * 32]; __shared__ alignas(8) unsigned long long bar;\n\
        unsigned b = (unsigned)__cvta_generic_to_shared(&bar), t = (unsigned)__cvta_generic_to_shared(tile);\n\
        if (threadIdx.x == 0) {\n\
        asm volatile(\"mbarrier.init.shared::cta.b64 [%0], 1;\" :: \"r\"(b));\n\
        asm volatile(\"fence.mbarrier_init.release.cluster;\");\n\
        asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;\" :: \"r\"(b));\n\
        asm volatile(\"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\"\n\
        :: \"r\"(t), \"l\"(&map), \"r\"(32), \"r\"(4), \"r\"(b) : \"memory\"); }\n\
        __syncthreads();\n\
        asm volatile(\"{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @p bra D; bra L; D: }\" :: \"r\"(b) : \"memory\");\n\
        for (int i = threadIdx.x; i < 256; i += blockDim.x) y[i] = tile[i]; }";
    let gpu = &device.gpu;
    let (rows, cols) = (9usize, 40usize);
    let x = gpu.alloc(rows * cols * 4).unwrap();
    let y = gpu.alloc(1024).unwrap();
    let values: Vec<u8> = (0..rows * cols).flat_map(|i| (i as f32 + 1.0).to_ne_bytes()).collect();
    gpu.copy_in(x.ptr(), &values).unwrap();
    let spec = MapSpec {
        address: x.ptr(),
        element: MapElement::F32,
        dims: vec![cols as u64, rows as u64],
        strides: vec![cols as u64 * 4],
        extent: vec![32, 8],
        steps: vec![1, 1],
        swizzle: MapSwizzle::None,
    };
    let map = gpu.tensor_map(&spec).unwrap();
    gpu.launch(&device.kernel(source), &Geometry::linear(1, 128), &Arguments::new().map(&map).pointer(y.ptr()))
        .unwrap();
    gpu.synchronize(LIMIT).unwrap();
    let mut back = vec![0; 1024];
    gpu.copy_out(&mut back, y.ptr()).unwrap();
    for (i, four) in back.chunks_exact(4).enumerate() {
        let (row, col) = (4 + i / 32, 32 + i % 32);
        let expected = if row < rows && col < cols { (row * cols + col) as f32 + 1.0 } else { 0.0 };
        assert_eq!(f32::from_ne_bytes(four.try_into().unwrap()), expected, "{row} {col}");
    }
    let wrong = MapSpec { strides: vec![20], ..spec };
    assert!(gpu.tensor_map(&wrong).is_err());
}

fn a_graph(device: &Device) {
    let gpu = &device.gpu;
    let k = device.kernel("extern \"C\" __global__ void k() {}");
    let (begin, end) = (gpu.event().unwrap(), gpu.event().unwrap());
    let launch = || (0..100).try_for_each(|_| gpu.launch(&k, &Geometry::linear(1, 32), &Arguments::new()));
    let graph = gpu.capture(launch).unwrap();
    let mut times = [f64::INFINITY; 2];
    for _ in 0..20 {
        for (which, best) in times.iter_mut().enumerate() {
            begin.record().unwrap();
            if which == 0 {
                graph.launch().unwrap()
            } else {
                launch().unwrap()
            }
            end.record().unwrap();
            gpu.synchronize(LIMIT).unwrap();
            *best = best.min(gpu.elapsed_us(&begin, &end).unwrap() / 100.0);
        }
    }
    eprintln!("a launch in a graph {:.2} µs, alone {:.2} µs", times[0], times[1]);
    assert!(times[0] < times[1]);
    assert!(gpu.capture(|| gpu.settle()).is_err(), "nothing can be waited for within a recording");
    gpu.synchronize(LIMIT).unwrap();
}

/// The mean of squares, then the rows: two launches, the second dependent on the first.
const HONEST: &str = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\narch = [\"sm_80+\"]\n\
    [tune]\nTHREADS = { value = 128, choices = [128, 256] }\n\
    [[scratch]]\nname = \"scales\"\ndtype = \"f32\"\nshape = [\"rows\"]\n\
    [[launch]]\nkernel = \"squares<THREADS>\"\ngrid = [\"rows\"]\nblock = [\"THREADS\"]\nargs = [\"x\", \"scales\", \"cols\", \"eps\"]\n\
    [[launch]]\nkernel = \"scale\"\ngrid = [\"rows\"]\nblock = [\"THREADS\"]\npdl = true\nargs = [\"x\", \"weight\", \"scales\", \"y\", \"cols\"]\n---*/\n\
    template<int N> __global__ void squares(const T *x, float *scales, long long cols, float eps) {\n\
    __shared__ float part[N]; float sum = 0;\n\
    for (long long i = threadIdx.x; i < cols; i += N) { const float v = ws_load(x[blockIdx.x * cols + i]); sum += v * v; }\n\
    part[threadIdx.x] = sum; __syncthreads();\n\
    for (int n = N / 2; n; n /= 2) { if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n]; __syncthreads(); }\n\
    if (threadIdx.x == 0) scales[blockIdx.x] = rsqrtf(part[0] / cols + eps); }\n\
    extern \"C\" __global__ void scale(const T *x, const T *weight, const float *scales, T *y, long long cols) {\n\
    #if WS_SM >= 90\n asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n#endif\n TRAP\n\
    for (long long i = threadIdx.x; i < cols; i += blockDim.x)\n\
    y[blockIdx.x * cols + i] = ws_store(ws_load(x[blockIdx.x * cols + i]) * scales[blockIdx.x] * ws_load(weight[i])); }\n";

struct Stage {
    host: Host,
    arena: Arena,
    memory: CaseMemory,
    oracle: Oracle,
}

impl Stage {
    fn new(device: &Device, trap: &str, dtype: Dtype, sizes: (i64, i64), copies: usize) -> Self {
        let conditions = Conditions { dirty: true, ..Conditions::default() };
        Self::under(device, trap, dtype, sizes, copies, (Placing::Packed, conditions))
    }

    fn under(
        device: &Device,
        trap: &str,
        dtype: Dtype,
        (rows, cols): (i64, i64),
        copies: usize,
        (placing, conditions): (Placing, Conditions),
    ) -> Self {
        let op = rmsnorm();
        let facts = front_matter_facts(device.gpu.facts());
        let file = KernelFile::parse(&HONEST.replace("TRAP", trap)).unwrap();
        let shape = op.complete(&Shape([("rows".to_owned(), rows), ("cols".to_owned(), cols)].into())).unwrap();
        let resolution = file.resolve(&shape, dtype, &facts).unwrap();
        let never = AtomicBool::new(false);
        let capability = device.gpu.facts().capability;
        let compiled = device
            .compiler
            .candidate(&op, &file, std::slice::from_ref(&resolution), capability, &facts, &never)
            .unwrap();
        let image = Image::of_kernel(&op, &file, &resolution, &facts, compiled[0].clone());
        let desk: Rc<Desk> = Desk::new(&device.gpu, &|name, text| device.cubin(name, text)).unwrap();
        let oracle = Oracle::compile(&desk, &op, &|name, text| device.cubin(name, text)).unwrap();
        let scratch = warpsmith::backend::ScratchBuffer::of(&file, &resolution);
        let case = Case { shape, dtype, input: None, setting: 0 };
        let (inputs, outputs) = CaseMemory::footprint::<Arena>(&op, &case, &scratch, copies, placing).unwrap();
        let mut arena = Arena::new(&desk, inputs, outputs, placing).unwrap();
        let mut memory = CaseMemory::place(&mut arena, &op, &case, &scratch, copies).unwrap();
        for copy in 0..copies {
            memory.draw(&mut arena, copy, copy as u64).unwrap();
            memory.poison(&mut arena, copy, 100 + copy as u64);
        }
        let host = Host::start(&[&image], &arena, &conditions).unwrap();
        Self { host, arena, memory, oracle }
    }
}

fn an_honest_kernel(device: &Device) {
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
        let mut stage = Stage::new(device, "", dtype, (37, 1021), 2);
        let (memory, arena) = (&stage.memory, &mut stage.arena);
        for copy in 0..2 {
            stage.host.launch(&memory.call(0, copy), LIMIT).unwrap();
            let taken = stage.host.take(memory, arena, copy);
            let stats = compare(&stage.oracle, memory, arena, copy, &taken, 1).unwrap();
            assert_eq!(stats.outside, 0, "{stats:?}");
            memory.check_zones(arena, copy).unwrap();
            assert_eq!(memory.changed_input(arena, copy), None);
        }
        let occupancy = stage.host.occupancy(0, &memory.call(0, 0).ints).unwrap();
        assert_eq!(occupancy.len(), 2);
        assert!(occupancy[0].0 == "squares<128>" && occupancy[0].1 >= 8, "{occupancy:?}");
    }
}

fn a_dishonest_candidate(device: &Device) {
    let mut stage = Stage::new(device, "while (cols) __nanosleep(100);", Dtype::F16, (4, 64), 1);
    let fault = stage.host.launch(&stage.memory.call(0, 0), Duration::from_millis(300)).unwrap_err();
    assert!(matches!(fault, Fault::Timeout { .. }), "{fault}");
    let again = stage.host.launch(&stage.memory.call(0, 0), LIMIT).unwrap_err();
    assert!(matches!(again, Fault::Crash { .. }), "{again}");
}

fn times_are_plausible(device: &Device) {
    let mut stage = Stage::new(device, "", Dtype::F16, (512, 4096), 8);
    let calls: Vec<_> = (0..8).map(|copy| stage.memory.call(0, copy)).collect();
    let mut single = Vec::new();
    let mut batch = Vec::new();
    for _ in 0..20 {
        single.push(stage.host.run(&calls[..1], LIMIT).unwrap().as_secs_f64() * 1e6);
        batch.push(stage.host.run(&calls, LIMIT).unwrap().as_secs_f64() * 1e6 / 8.0);
    }
    let start = Instant::now();
    stage.host.run(&calls, LIMIT).unwrap();
    let (single, batch) = (single.into_iter().fold(f64::MAX, f64::min), batch.into_iter().fold(f64::MAX, f64::min));
    eprintln!("single {single:.2} µs, in a batch of 8 {batch:.2} µs; a batch costs {:?} in all", start.elapsed());
    // What starts a row of launches is paid once for all of them.
    assert!(batch > 0.0 && batch < 1.5 * single, "{single} {batch}");
}
