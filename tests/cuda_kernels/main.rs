//! Every CUDA kernel file of the repository without a GPU: the starters and examples compile for three generations, and the
//! files that the judge is tried on are read as what they claim to be. Where NVRTC is not found, compiling is skipped with the
//! reason.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use warpsmith::backend::cuda::{Compiler, Image, Search};
use warpsmith::backend::{self, Region, Span};
use warpsmith::defence::Defence;
use warpsmith::kernel::{Argument, Facts, KernelFile, MapSource, fits_arch};
use warpsmith::op::{Dtype, Operation, Shape};

mod called;

/// A100, H200, B200: compute capability, multiprocessors, bytes of shared memory a block can have.
const GPUS: [(u32, i64, i64); 3] = [(80, 108, 163 << 10), (90, 132, 227 << 10), (100, 148, 227 << 10)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Kernel files in `folder`, with their texts.
fn files(folder: &str) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".cu") || name.ends_with(".diff"));
    names.sort();
    let text = |name: String| {
        let path = format!("{folder}/{name}");
        let text =
            if name.ends_with(".diff") { made(&path) } else { std::fs::read_to_string(root().join(&path)).unwrap() };
        (path, text)
    };
    names.into_iter().map(text).collect()
}

/// The kernel file of a diff against one that ships.
fn made(diff: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let script = root().join("tests/gpu/made.sh");
    let made = Command::new(script).arg(diff).arg(file.path()).current_dir(root()).output().unwrap();
    assert!(made.status.success(), "{diff}: {}", String::from_utf8_lossy(&made.stderr));
    std::fs::read_to_string(file.path()).unwrap()
}

fn operation(name: &str) -> Operation {
    Operation::load(&|path: &str| std::fs::read_to_string(root().join(path)).ok(), name).unwrap()
}

/// NVRTC; none where this machine has none, which is said.
fn compiler(cache: &Path) -> Option<Compiler> {
    let toolkit = match Search::of_this_machine().find(None) {
        Ok(toolkit) => toolkit,
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
    Some(Compiler::with(toolkit, cache, Some(executable)).unwrap())
}

fn facts((cc, sms, shared): (u32, i64, i64)) -> Facts {
    [("SMS", sms), ("SMEM_MAX", shared), ("CC", i64::from(cc)), ("L2", 40 << 20)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

#[test]
fn starters_and_examples_compile_for_three_generations_in_every_dtype() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    for (name, text) in files("kernels/cuda").into_iter().chain(files("kernels/examples")) {
        let kernel = KernelFile::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let op = operation(&kernel.front.op);
        for gpu in GPUS.into_iter().filter(|(cc, ..)| fits_arch(&kernel.front.arch, *cc)) {
            let facts = facts(gpu);
            let primary = op.primary_shape().unwrap();
            let resolutions: Vec<_> =
                Dtype::ALL.into_iter().map(|dtype| kernel.resolve(&primary, dtype, &facts).unwrap()).collect();
            let compiled = compiler
                .candidate(&op, &kernel, &resolutions, gpu.0, &facts, &AtomicBool::new(false))
                .unwrap_or_else(|error| panic!("{name} for sm_{}: {error}", gpu.0));
            for one in compiled {
                assert!(one.resources.iter().all(|kernel| kernel.registers > 0), "{name}: {}", one.log);
                eprintln!("{name} sm_{}: {}", gpu.0, one.log.lines().next().unwrap_or_default());
            }
        }
    }
}

/// Files of `kernels/cuda` whose first launch may begin early in a model, at shapes that take other ways through them.
const BEGIN_EARLY: [(&str, &[&str]); 6] = [
    ("layernorm", &["batch=128,dim=768", "batch=2048,dim=4096", "batch=64,dim=10240", "batch=64,dim=1023"]),
    ("rmsnorm", &["rows=128,cols=4096", "rows=128,cols=256", "rows=128,cols=1023"]),
    ("rotary_embedding", &["B=1,H=32,S=128,D=128"]),
    ("nvidia-h200/flash_attention", &["B=1,H=32,S_q=128,S_kv=128,D=128,causal=1"]),
    (
        "nvidia-h200/fused_mlp",
        &["B=1,D=4096,H=11008", "B=16,D=4096,H=11008", "B=128,D=4096,H=11008", "B=2048,D=4096,H=11008"],
    ),
    (
        "nvidia-h200/matmul",
        &[
            "batch=1,M=1,N=4096,K=4096,trans_b=1",
            "batch=1,M=4,N=4096,K=4096,trans_b=1",
            "batch=1,M=16,N=4096,K=4096,trans_b=1",
            "batch=1,M=128,N=4096,K=4096,trans_b=1,has_bias=1",
            "batch=1,M=2048,N=4096,K=4096,trans_b=1",
            "batch=1,M=2048,N=2048,K=2048,trans_b=1",
        ],
    ),
];

#[test]
fn kernels_of_a_pass_on_hopper_wait_before_they_use_anything_but_weights() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let facts = facts(GPUS[1]);
    for (name, shapes) in BEGIN_EARLY {
        let text = std::fs::read_to_string(root().join(format!("kernels/cuda/{name}.cu"))).unwrap();
        let kernel = KernelFile::parse(&text).unwrap();
        let op = operation(&kernel.front.op);
        for shape in shapes {
            let sizes = shape.split(',').map(|size| size.split_once('=').unwrap());
            let given = sizes.map(|(symbol, size)| (symbol.to_owned(), size.parse().unwrap())).collect();
            let full = op.complete(&Shape(given)).unwrap();
            let resolution = kernel.resolve(&full, Dtype::F16, &facts).unwrap();
            let one = std::slice::from_ref(&resolution);
            let compiled = compiler.candidate(&op, &kernel, one, 90, &facts, &AtomicBool::new(false));
            let compiled = compiled.unwrap_or_else(|error| panic!("{name} at {shape}: {error}"));
            let plan = kernel.launches(&op, &op.ints(&full).unwrap(), &resolution, &facts).unwrap();
            // Those behind the first that may begin before it has ended can begin before it has waited, too.
            for launch in plan.iter().enumerate().filter(|(number, one)| *number == 0 || one.pdl).map(|(_, one)| one) {
                let early = compiled[0].waits.get(&launch.kernel);
                let early = early.unwrap_or_else(|| panic!("{name} at {shape}: `{}` never waits", launch.kernel));
                for place in early {
                    let tensor = match &launch.args[*place] {
                        Argument::Tensor(tensor) => *tensor,
                        Argument::TensorMap(map) => match map.source {
                            MapSource::Tensor(tensor) => tensor,
                            MapSource::Scratch(_) => panic!("{name} at {shape}: {} uses scratch", launch.kernel),
                        },
                        other => panic!("{name} at {shape}: {} uses {other:?} before it waits", launch.kernel),
                    };
                    let tensor = &op.tensors[tensor];
                    // The tables of an embedding are a model's own, as its weights are.
                    let is_written = !tensor.weight && !["cos", "sin"].contains(&tensor.name.as_str());
                    assert!(!is_written, "{name} at {shape}: {} uses {} before it waits", launch.kernel, tensor.name);
                }
            }
        }
    }
}

/// y = x, and beside it a launch of its own, which may begin before; `FIRST` is what that one does first.
const BESIDE: &str = "/*---\nop = \"rmsnorm\"\ndtypes = [\"f32\"]\narch = [\"sm_90+\"]\n\
    [[scratch]]\nname = \"apart\"\ndtype = \"f32\"\nshape = [\"1\"]\n\
    [[launch]]\nkernel = \"step\"\ngrid = [\"rows\"]\nblock = [\"64\"]\nargs = [\"x\", \"y\", \"cols\"]\n\
    [[launch]]\nkernel = \"beside\"\ngrid = [\"1\"]\nblock = [\"64\"]\npdl = true\nargs = [\"weight\", \"apart\"]\n---*/\n\
    extern \"C\" __global__ void step(const T *x, T *y, long long cols) {\n ws_next_may_begin();\n ws_wait_for_previous();\n\
    y[blockIdx.x * cols + threadIdx.x] = x[blockIdx.x * cols + threadIdx.x]; }\n\
    extern \"C\" __global__ void beside(const T *weight, float *apart) { FIRST *apart = weight[0]; }\n";

#[test]
fn what_follows_a_call_begins_early_only_where_the_call_has_ended_with_its_last_launch() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let (op, facts) = (operation("rmsnorm"), facts(GPUS[1]));
    let shape = op.complete(&Shape::from([("rows", 4), ("cols", 64)])).unwrap();
    let ints = op.ints(&shape).unwrap();
    for (first, waits) in [("", false), ("ws_wait_for_previous();", true)] {
        let kernel = KernelFile::parse(&BESIDE.replace("FIRST", first)).unwrap();
        let resolution = kernel.resolve(&shape, Dtype::F32, &facts).unwrap();
        let one = std::slice::from_ref(&resolution);
        let compiled = compiler.candidate(&op, &kernel, one, 90, &facts, &AtomicBool::new(false)).unwrap();
        let Image::Kernel(image) = Image::of_kernel(&op, &kernel, &resolution, &facts, compiled[0].clone()) else {
            panic!("not a kernel")
        };
        let plan = image.launches(&ints).unwrap();
        assert_eq!(image.ends_with_its_last(&plan), waits);
        let [x, weight, y, apart] = [Region::Outputs, Region::Inputs, Region::Outputs, Region::Outputs]
            .map(|region| Some(Span { region, offset: 0, bytes: 1024 }));
        let pointers = vec![x, weight, y, apart];
        let call = backend::Call { image: 0, pointers, ints: ints.clone(), floats: vec![1e-5], zeroed: Vec::new() };
        assert_eq!(image.may_begin_early(&plan, &call), waits);
    }
}

#[test]
fn products_with_rows_that_begin_anywhere_compile_in_every_dtype() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path()) else { return };
    let op = operation("matmul");
    // A vocabulary of 50257: one row of tiles, several, few rows of a.
    let shapes = [128, 1024, 17].map(|rows| Shape::from([("M", rows), ("N", 50257), ("K", 768), ("trans_b", 1)]));
    for (file, gpu) in [("matmul.cu", GPUS[0]), ("nvidia-h200/matmul.cu", GPUS[1])] {
        let kernel =
            KernelFile::parse(&std::fs::read_to_string(root().join("kernels/cuda").join(file)).unwrap()).unwrap();
        let facts = facts(gpu);
        for (shape, dtype) in shapes.iter().flat_map(|shape| Dtype::ALL.map(|dtype| (shape, dtype))) {
            let resolution = kernel.resolve(&op.complete(shape).unwrap(), dtype, &facts).unwrap();
            let compiled = compiler
                .candidate(&op, &kernel, &[resolution], gpu.0, &facts, &AtomicBool::new(false))
                .unwrap_or_else(|error| panic!("{file} {dtype}: {error}"));
            assert!(compiled[0].resources.iter().all(|kernel| kernel.registers > 0), "{file} {dtype}");
            eprintln!("{file} {dtype}: {}", compiled[0].log);
        }
    }
}

#[test]
fn the_kernels_that_the_judge_is_tried_on_are_kernel_files_and_say_what_they_expect() {
    let known: BTreeSet<&str> = ["reject", "crash", "timeout", "error", "revert"].into();
    let wrong = [files("tests/gpu/wrong"), files("tests/gpu/open")].concat();
    let honest = [files("tests/gpu/honest"), files("tests/gpu/slow")].concat();
    assert!(wrong.len() >= 15 && honest.len() >= 3);
    for (name, text) in &wrong {
        let expected = text.lines().find_map(|line| line.strip_prefix("# expect: ")).unwrap_or_default();
        assert!(expected.split('|').all(|status| known.contains(status)), "{name}: {expected}");
        assert!(text.lines().any(|line| line.starts_with("# why: ")), "{name}");
        if let Some(switch) = text.lines().find_map(|line| line.strip_prefix("# switch: ")) {
            assert!(Defence::ALL.iter().any(|defence| defence.name() == switch), "{name}: {switch}");
        }
        if let Some(file) = text.lines().find_map(|line| line.strip_prefix("# against: ")) {
            assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(file).is_file(), "{name}: {file}");
        }
    }
    for (name, text) in wrong.iter().chain(&honest) {
        let kernel = KernelFile::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        kernel.check_against(&operation(&kernel.front.op)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// What is read off the compiled text of files in `tests/gpu/wrong`, by a part of the sentence.
const READ: [(&str, &str); 29] = [
    ("constants_written_through", "the address of the constant `kept`"),
    ("constants_moved_through", "the address of the constant `table`"),
    ("parameters_written_to", "the address of a kernel's parameter"),
    ("last_block_without_fence", "no fence orders the two"),
    ("flags_without_fence", "no fence orders the two"),
    ("dependent_launch_does_not_wait", "with pdl = true `scale` may begin before"),
    ("counts_in_a_call", "no fence orders the two"),
    ("counter_only_looked_at", "no fence orders the two"),
    ("waits_in_a_branch_never_taken", "with pdl = true `scale` may begin before"),
    ("one_warp_waits_alone", "one way through it uses `sums`"),
    ("last_of_a_chain_does_not_wait", "with pdl = true `scale` may begin before"),
    ("cross_entropy_tiles_before_wait", "with pdl = true"),
    ("cross_entropy_tiles_without_fence", "no fence orders the two"),
    ("address_laundered_by_not", "no fence orders the two"),
    ("fence_in_a_string", "a string in assembler that no compiler writes"),
    ("count_behind_a_line_number", "no fence orders the two"),
    ("counts_before_all_stored", "one thread of `sum` counts its block"),
    ("grid_number_in_front_of_parameters", "it reads beside the parameter `rms_param_0`"),
    ("nc_load_of_partials", "what it gets may be stale"),
    ("one_block_of_two_waits", "one way through it uses `factor`"),
    ("waits_and_loads_in_no_order", "or loads it by a way that no wait orders"),
    ("polls_by_plain_loads", "no fence orders the two"),
    ("state_behind_label_entry", "outlives a launch (`kept`)"),
    ("state_behind_predicate_entry", "outlives a launch (`kept`)"),
    ("state_behind_pragma_entry", "a string in assembler that no compiler writes"),
    ("state_behind_pragma_comment", "a string in assembler that no compiler writes"),
    ("tells_graphs", "`%current_graph_exec`"),
    ("wait_in_a_string", "a string in assembler that no compiler writes"),
    ("wrong_from_2030", "a string in assembler that no compiler writes"),
];

#[test]
fn what_can_be_read_off_compiled_code_is_refused_and_honest_look_alikes_are_not() {
    let toolkit = match Search::of_this_machine().find(None) {
        Ok(toolkit) => toolkit,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let cache = tempfile::tempdir().unwrap();
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
    let compiler = Compiler::with(toolkit, cache.path(), Some(executable)).unwrap();
    let facts = facts(GPUS[1]);
    let compile = |name: &str, text: &str| {
        let kernel = KernelFile::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let op = operation(&kernel.front.op);
        let primary = op.primary_shape().unwrap();
        let resolution = kernel.resolve(&primary, Dtype::F16, &facts).unwrap();
        compiler.candidate(&op, &kernel, &[resolution], GPUS[1].0, &facts, &AtomicBool::new(false))
    };
    for (name, text) in files("tests/gpu/honest") {
        compile(&name, &text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for (name, text) in files("tests/gpu/wrong") {
        let Some((_, part)) = READ.iter().find(|(read, _)| name.ends_with(&format!("/{read}.cu"))) else { continue };
        let error = compile(&name, &text).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
}
