//! Packages for several architectures of GPUs: which cubins are written, and which of them a GPU gets. No GPU is needed: its name and
//! capability are pretended. Where there is no NVRTC, or no PyTorch, this is said, and nothing is tested.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use warpsmith::backend::cuda::{Compiler, Search};
use warpsmith::evaluation::Evaluation;
use warpsmith::export::{self, Chosen, Maker, Plans, Wanted};
use warpsmith::kernel::Facts;
use warpsmith::op::{Dtype, Shape, TargetShape};
use warpsmith::profile::Compiled;
use warpsmith::torch::PYTHON;
use warpsmith::torch::model::Region;

/// Doubles 256 numbers.
const KERNEL: &str = "/*---
op = \"NAME\"
dtypes = [\"f32\"]
arch = [\"ARCH\"]
[[launch]]
kernel = \"twice\"
grid   = [\"GRID\"]
block  = [\"256\"]
args   = [\"x0\", \"out\"]
---*/

__global__ void twice(const T *x0, T *out) {
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < 256; at += gridDim.x * blockDim.x) out[at] = 2 * x0[at];
}
";

fn region(name: &str) -> Region {
    let place = json!({"shape": [8, 32], "stride": [32, 1], "dtype": "float32", "device": "cuda"});
    let tensor = json!({
        "role": "input", "name": "x0", "shape": [8, 32], "dtype": "float32", "contiguous": true,
        "figures": {"min": -3.0, "max": 3.1, "mean": 0.0, "deviation": 1.0, "zeros": 0.0, "whole": false, "count": 256},
    });
    serde_json::from_value(json!({
        "name": name, "kind": "fusible", "key": name, "family": name, "operators": ["mul"], "modules": [], "lines": [],
        "why_not": null, "source": "def reference(x0):\n    return x0 * 2\n",
        "described": {
            "inputs": [tensor], "outputs": [{"shape": [8, 32], "dtype": "float32"}], "flops": 0, "structure": [],
        },
        "inputs": [place], "outputs": [place], "dtype": "float32", "calls": 1, "us": 3.0,
    }))
    .unwrap()
}

fn compiled() -> Compiled {
    serde_json::from_value(json!({
        "model": "model", "device": "NVIDIA H200", "torch_device": "cuda:0",
        "captured": {
            "eager_us": 2.0, "compiled_us": 1.0, "autotune_us": null, "call_us": 0.0, "capture_s": 0.0, "compile_s": 0.0,
            "rounds": 1, "graphs": 1, "parameters": 0, "dtype": "float32", "inputs": [], "outputs": [], "torch": "2.11.0",
            "python": "3", "threads": 1, "notes": [], "regions": [],
        },
    }))
    .unwrap()
}

/// What is exported of a kernel that any GPU can run, one for Hopper, and one with a block for every multiprocessor.
fn exported(folder: &Path, compiler: &Compiler) -> Plans {
    let facts: Facts = [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
    let kinds = [("everywhere", "sm_80+", "1"), ("hopper", "sm_90a", "1"), ("persistent", "sm_80+", "SMS")];
    let regions = kinds.map(|(name, ..)| region(name));
    let chosen = kinds.iter().zip(&regions).map(|((name, arch, grid), region)| Chosen {
        region,
        operation: region.operation(warpsmith::op::Bar::Compiled).unwrap(),
        text: KERNEL.replace("NAME", name).replace("ARCH", arch).replace("GRID", grid),
        target: vec![TargetShape { shape: Shape::default(), dtype: Dtype::F32, calls: 1 }],
        evaluation: Evaluation::unjudged(name, "cuda", String::new(), 1),
        speedup: 2.0,
        commit: None,
    });
    let compiled = compiled();
    let wanted = Wanted {
        folder,
        run: "1",
        compiled: &compiled,
        device_key: "key",
        judge: "judge",
        facts: &facts,
        kernels: chosen.collect(),
    };
    export::package(&wanted, &Maker::Cuda { compiler, capability: 90, others: &[80, 90] }).unwrap()
}

const PRETEND: &str = "
import json, sys, torch
sys.path.insert(0, '.')
name, capability = None, None
torch.cuda.get_device_name = lambda device=None: name
torch.cuda.get_device_capability = lambda device=None: capability
import my_kernels
from my_kernels._variant import launch, operators, place
code = {kernel.name: kernel.code for kernel in operators.LOADED.values()}
seen = {}
for title, name, capability in [('judged', 'NVIDIA H200', (9, 0)), ('sibling', 'NVIDIA H100 PCIe', (9, 0)), ('older', 'NVIDIA A100', (8, 0)),
                                ('other', 'NVIDIA L4', (8, 9))]:
    seen[title] = {}
    for kernel, one in code.items():
        without, with_it = one.why_not('cuda:0'), one.why_not('cuda:0', True)
        path = one.launches_for('cuda:0')[0]['cubin']['path'] if with_it is None else None
        seen[title][kernel] = dict(without=without, unjudged=with_it, path=path, notice=one.notice('cuda:0') if with_it is None else None)
print(json.dumps(dict(seen=seen, unusable=my_kernels.status()['unusable'])))
";

const SCRATCH: &str = "
import ctypes, json, sys, threading, torch
sys.path.insert(0, '.')
capturing = False
torch.cuda.get_device_name = lambda device=None: 'NVIDIA H200'
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_isCurrentStreamCapturing = lambda: capturing
torch._C._cuda_getCurrentRawStream = lambda index: 0
import my_kernels
from my_kernels._variant import cuda, launch, plans

class Driver:
    seen, cleared, next = [], 0, 1 << 50

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        pointers = (ctypes.c_void_p * 4).from_address(pointers)
        self.seen.append([ctypes.c_uint64.from_address(one).value for one in pointers[2:]])
        return 0

    def cuMemAlloc_v2(self, at, size):
        at._obj.value, self.next = self.next, self.next + (1 << 30)
        return 0

    def cuMemsetD8Async(self, *all):
        self.cleared += 1
        return 0

    cuModuleLoadData = cuModuleGetFunction = cuMemsetD8_v2 = lambda self, *all: 0
    cuCtxSynchronize = lambda self: 0

class Tensor:
    next = 0

    class device:
        index = 0

    def __init__(self, *form):
        Tensor.next += 1 << 30
        self.at = Tensor.next

    def data_ptr(self):
        return self.at

launch.empty = Tensor
answer = {}
for size in (4, 700000, 5 << 20):
    cuda._driver = driver = Driver()
    Driver.seen = []
    first = plans.KERNELS[0]
    one = {**first['launches'][0], 'args': [{'buffer': at} for at in range(4)]}
    scratch = [{'bytes': size, 'zero': False, 'kept': False}, {'bytes': 8, 'zero': True, 'kept': True}]
    kernel = launch.Kernel({**first, 'scratch': scratch, 'launches': [one]})
    call = lambda: kernel.call([Tensor()])
    call(), call()
    other = threading.Thread(target=call)
    other.start(), other.join()
    capturing = True
    call(), call()
    capturing = False
    answer[str(size)] = dict(seen=Driver.seen, cleared=driver.cleared)
print(json.dumps(answer))
";

const STARTED: &str = "
import ctypes, json, sys, torch
sys.path.insert(0, '.')
capturing = False
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_isCurrentStreamCapturing = lambda: capturing
torch._C._cuda_getCurrentRawStream = lambda index: 7
import my_kernels
from my_kernels._variant import cuda, operators

class Driver:
    started, allocated = [], 0

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        pointers = (ctypes.c_void_p * 5).from_address(pointers)
        read = lambda at, kind: kind.from_address(pointers[at]).value
        kinds = [ctypes.c_uint64] * 3 + [ctypes.c_int64, ctypes.c_float]
        self.started.append([read(at, kind) for at, kind in enumerate(kinds)] + [cuda.Config.from_address(config).stream])
        return 0

    def cuTensorMapEncodeTiled(self, at, element, rank, address, *rest):
        assert at % 64 == 0
        ctypes.c_uint64.from_address(at).value = address
        return 0

    def cuMemAlloc_v2(self, at, size):
        at._obj.value = self.allocated = 1 << 30
        return 0

    cuModuleGetFunction = cuMemsetD8_v2 = lambda self, *all: 0
    cuCtxSynchronize = lambda self: 0

cuda._driver = Driver()
map = lambda buffer: {'map': {'buffer': buffer, 'element': 9, 'dims': [8], 'strides': [], 'extent': [8], 'steps': [1], 'swizzle': 0}}
plan = {'function': 'f', 'shared': 0, 'cluster': None, 'cooperative': False, 'pdl': False, 'grid': [1, 1, 1], 'block': [1, 1, 1],
        'args': [{'buffer': 1}, map(0), map(2), {'long': -5}, {'float': 0.5}]}
launch = cuda.Launch(plan, None)
# As where more places have been seen than are kept.
for cuda.MOST_MAPS in (4096, 0):
    for first in (1 << 20, 2 << 20, 1 << 20):
        launch([first, first + 256, first + 512], first)
started = list(cuda._driver.started)
code = next(iter(operators.LOADED.values())).code
class Device:
    index = 0
lasting = lambda: code.lasting(Device, 7, 256, 256, code.is_capturing())
streams = [lasting() for _ in range(2)]
capturing = True
captured = [lasting() for _ in range(2)]
code.slots[0, 256].free = iter(())
print(json.dumps(dict(started=started, streams=streams, captured=captured, none=lasting())))
";

/// What a program says that imports the package, as JSON; none where there is no PyTorch.
fn python(place: &Path, program: &str) -> Option<Value> {
    let Some(python) = std::env::var_os(PYTHON) else {
        println!("skipped: ${PYTHON} names no Python");
        return None;
    };
    let output = Command::new(python).current_dir(place).args(["-c", program]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No module named 'torch'") {
        println!("skipped: no PyTorch");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// A launch is given addresses, maps and numbers as they are now; scratch that stays is one place for a stream, another for each call in a
/// graph, and none where there are none left.
fn launches_are_told_what_is_theirs(place: &Path) {
    let Some(seen) = python(place, STARTED) else { return };
    let one = |first: u64| json!([first + 256, first, first + 512, -5, 0.5, first]);
    let (near, far) = (one(1 << 20), one(2 << 20));
    assert_eq!(seen["started"], json!([near, far, near, near, far, near]), "{seen}");
    let zeros: u64 = 1 << 30;
    assert_eq!(seen["streams"], json!([zeros, zeros]));
    assert_eq!((&seen["captured"], &seen["none"]), (&json!([zeros + 256, zeros + 512]), &Value::Null));
}

/// Of two buffers, one that the kernel leaves as zeros: a thread finds both again where it left them, and no other thread does, since two launches of one
/// kernel may take turns with another's on a stream that all share; calls in a graph have zeros of their own; none is cleared on a call.
fn scratch_is_one_threads_and_one_graphs(place: &Path) {
    let Some(seen) = python(place, SCRATCH) else { return };
    for (size, stays) in [("4", true), ("700000", true), ("5242880", false)] {
        let case = &seen[size];
        assert_eq!(case["cleared"], 0, "{size}: {case}");
        let calls: Vec<[u64; 2]> = serde_json::from_value(case["seen"].clone()).unwrap();
        let [first, again, thread, graph, next] = calls[..] else { panic!("{calls:?}") };
        assert_eq!(first[0] == again[0], stays, "{size}: {calls:x?}");
        assert_eq!(first[1], again[1], "{size}: {calls:x?}");
        for (one, other) in [(first, thread), (first, graph), (thread, graph), (graph, next)] {
            assert!(one[0] != other[0] && one[1] != other[1], "{size}: {calls:x?}");
        }
    }
}

#[test]
fn a_package_has_cubins_for_other_architectures_which_are_used_only_when_asked_for() {
    let toolkit = match Search::of_this_machine().find(None) {
        Ok(toolkit) => toolkit,
        Err(why) => return println!("skipped: {why}"),
    };
    let place = tempfile::tempdir().unwrap();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
    let compiler = Compiler::with(toolkit, &place.path().join("cache"), Some(executable)).unwrap();
    let folder = place.path().join("my_kernels");
    let plans = exported(&folder, &compiler);
    let told = |kernel: usize, other: usize| &plans.kernels[kernel].unjudged[other];
    let cubin = |launches: &[export::Launch]| launches[0].cubin.path.clone();
    let root = folder.join("build/torch-cuda");
    // Any GPU: one file for 8.0, and the judged one for others of the judged one's architecture.
    let export::Code::Launches { launches } = &plans.kernels[0].code else { panic!("launches") };
    let (judged, older) = (cubin(launches), cubin(&told(0, 0).launches));
    assert_eq!((told(0, 0).arch.as_str(), cubin(&told(0, 1).launches)), ("sm_80", judged.clone()));
    assert!(older != judged && root.join(&older).is_file() && root.join(&judged).is_file());
    assert_eq!(told(1, 1).arch, "sm_90a");
    assert!(told(1, 0).why_not.as_ref().unwrap().contains("it is for sm_90a"), "{:?}", told(1, 0));
    for other in 0..2 {
        let why = told(2, other).why_not.as_ref().unwrap();
        assert!(why.contains("number of multiprocessors"), "{why}");
    }
    // The receipt tells what was judged from what was not; all of it is looked at.
    let receipts = export::receipts(&folder).unwrap();
    assert_eq!(receipts[0].image_sha256, plans.kernels[0].code.digest());
    assert_eq!(receipts[0].unjudged.keys().collect::<Vec<_>>(), ["sm_80", "sm_90"]);
    assert!(receipts[2].unjudged.is_empty() && export::altered(&folder, &plans.kernels[0], &receipts[0]).is_empty());
    assert!(std::fs::read_to_string(folder.join("CARD.md")).unwrap().contains("Nobody has judged these"));

    let Some(answer) = python(place.path(), PRETEND) else { return };
    launches_are_told_what_is_theirs(place.path());
    scratch_is_one_threads_and_one_graphs(place.path());
    let of = |device: &str, kernel: &str| answer["seen"][device][kernel].clone();
    assert_eq!(answer["unusable"], json!({}));
    for kernel in ["everywhere", "hopper", "persistent"] {
        assert!(of("judged", kernel)["without"].is_null() && of("judged", kernel)["notice"].is_null(), "{answer}");
        assert!(of("other", kernel)["unjudged"].is_string(), "nothing is compiled for 8.9: {answer}");
    }
    assert_eq!(of("judged", "everywhere")["path"], judged);
    assert_eq!(of("sibling", "everywhere")["path"], judged);
    assert_eq!(of("older", "everywhere")["path"], older);
    let without = of("older", "everywhere")["without"].as_str().unwrap().to_owned();
    assert!(without.contains("judged on NVIDIA H200") && without.contains("enable(unjudged=True)"), "{without}");
    assert!(of("older", "everywhere")["notice"].as_str().unwrap().contains("nobody has judged"), "{answer}");
    assert!(of("older", "hopper")["unjudged"].as_str().unwrap().contains("it is for sm_90a"), "{answer}");
    assert!(of("sibling", "persistent")["unjudged"].as_str().unwrap().contains("multiprocessors"), "{answer}");

    // A file that is another one is seen, judged or not.
    std::fs::write(root.join(&older), "another").unwrap();
    assert_eq!(export::altered(&folder, &plans.kernels[0], &receipts[0]).len(), 1);
}
