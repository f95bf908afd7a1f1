//! Triton kernels through the real compiler, in its real process, for GPUs that are not here. Where there is no NVRTC, or no Python
//! with triton, the tests say so and pass.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use warpsmith::backend::BuildError;
use warpsmith::backend::cuda::{Compiled, Compiler, KernelImage, Search, TritonFound};
use warpsmith::kernel::{Argument, Facts, KernelFile, Resolution};
use warpsmith::op::{Dtype, Operation, Shape};
use warpsmith::workspace::python;

/// Compute capability, multiprocessors, bytes of shared memory a block may have.
const GPUS: [(u32, i64, i64); 2] = [(80, 108, 166_912), (90, 132, 232_448)];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn facts((cc, sms, shared): (u32, i64, i64)) -> Facts {
    [("SMS", sms), ("SMEM_MAX", shared), ("CC", i64::from(cc)), ("L2", 40 << 20)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

fn compiler(cache: &Path, named: Option<PathBuf>) -> Option<Compiler> {
    let skipped = |why: String| eprintln!("skipped: {why}");
    let toolkit = Search::of_this_machine().find(None).map_err(skipped).ok()?;
    if named.is_none() {
        TritonFound::of(&python(None)).map_err(skipped).ok()?;
    }
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
    Some(Compiler::with(toolkit, cache, Some(executable)).unwrap().with_python(named))
}

fn operation(name: &str) -> Operation {
    Operation::load(&|path: &str| std::fs::read_to_string(root().join(path)).ok(), name).unwrap()
}

/// The Triton files of a folder, with their texts.
fn files(folder: &str) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "py"));
    paths.sort();
    let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

fn at(kernel: &KernelFile, op: &Operation, shape: &Shape, dtype: Dtype, facts: &Facts) -> Resolution {
    let shape = op.complete(shape).unwrap();
    let resolution = kernel.resolve(&shape, dtype, facts).unwrap();
    kernel.launches(op, &op.ints(&shape).unwrap(), &resolution, facts).unwrap();
    resolution
}

fn compile(
    compiler: &Compiler,
    text: &str,
    gpu: (u32, i64, i64),
    dtypes: &[Dtype],
) -> Result<Vec<Compiled>, BuildError> {
    let kernel = KernelFile::parse(text).map_err(|error| BuildError::Kernel(error.to_string()))?;
    let op = operation(&kernel.front.op);
    let facts = facts(gpu);
    let resolutions: Vec<Resolution> = dtypes.iter().map(|dtype| at(&kernel, &op, &op.smoke, *dtype, &facts)).collect();
    compiler.candidate(&op, &kernel, &resolutions, gpu.0, &facts, &AtomicBool::new(false))
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn starters_compile_for_two_generations_in_every_dtype() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), None) else { return };
    let starters = files("kernels/triton");
    assert_eq!(starters.len(), 9);
    for (name, text) in &starters {
        for gpu in GPUS {
            let all = compile(&compiler, text, gpu, &Dtype::ALL)
                .unwrap_or_else(|error| panic!("{name} sm_{}: {error}", gpu.0));
            for compiled in &all {
                assert!(!compiled.jit.is_empty() && compiled.names.is_empty(), "{name}: {compiled:?}");
                for (launch, code) in &compiled.jit {
                    assert!(code.cubin.starts_with(b"\x7fELF") && code.num_warps > 0 && code.hidden <= 2, "{name}");
                    let resources = compiled.resources.iter().find(|resources| resources.kernel == *launch);
                    assert!(resources.is_some_and(|resources| resources.registers > 0), "{name}: {compiled:?}");
                }
                assert!(compiled.log.contains("registers"), "{name}: {}", compiled.log);
            }
        }
    }
    // What was made once is taken as it is.
    let (name, text) = &starters[0];
    let again = compile(&compiler, text, GPUS[1], &[Dtype::F16]).unwrap();
    let first = compile(&compiler, text, GPUS[1], &Dtype::ALL).unwrap();
    assert_eq!(again[0], first[0], "{name}");
}

#[test]
fn what_is_no_kernel_is_refused_before_anything_of_it_runs() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), None) else { return };
    let parts = [
        ("annotation", "the only annotation in a kernel's head is tl.constexpr"),
        ("autotune", "write the choices as `[tune]`"),
        ("clock", "reads no clock"),
        ("clock_by_assembler", "it reads the clock (`%clock`)"),
        ("clock_behind_comment", "a string in assembler that no compiler writes"),
        ("decorator", "a decorator that is not `@triton.jit`"),
        ("default_reads_a_file", "a constant is a number"),
        ("device_assert", "it needs the host's support"),
        ("front_end_by_a_constant", "is nothing that a kernel's values have"),
        ("front_end_calls_python", "is nothing that a kernel's values have"),
        ("host_code", "nothing else runs in it"),
        ("imports_os", "imports triton and triton.language, and nothing else"),
    ];
    let files = files("tests/gpu/wrong");
    for (name, part) in parts {
        let (_, text) = files.iter().find(|(file, _)| *file == format!("triton_{name}.py")).unwrap();
        assert!(text.contains("# expect: error"), "{name}");
        match compile(&compiler, text, GPUS[1], &[Dtype::F16]) {
            Err(BuildError::Kernel(what)) => assert!(what.contains(part), "{name}: {what}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(!Path::new("/tmp/warpsmith-was-here").exists());
}

#[test]
fn wrong_kernels_that_only_a_judge_can_tell_compile_and_honest_ones_do() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), None) else { return };
    let wrong = files("tests/gpu/wrong").into_iter().filter(|(_, text)| !text.contains("# expect: error"));
    for (name, text) in wrong.chain(files("tests/gpu/honest")) {
        let dtype = if text.contains("# dtype: f32") { Dtype::F32 } else { Dtype::F16 };
        compile(&compiler, &text, GPUS[1], &[dtype]).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

const COPY: &str = "\"\"\"\n---\nop = \"softmax\"\ndtypes = [\"f16\"]\n[[launch]]\nkernel = \"copy\"\ngrid = [\"rows\"]\n\
                    constexprs = { BLOCK = 64 }\nargs = [\"x\", \"y\", \"cols\"]\n---\n\"\"\"\nimport triton\nimport triton.language as tl\n\n\
                    @triton.jit\ndef copy(x, y, cols, BLOCK: tl.constexpr):\n    at = tl.program_id(0) * cols + tl.arange(0, BLOCK)\n    \
                    tl.store(y + at, tl.load(x + at))\n";

#[test]
fn a_mistake_is_told_with_its_line_and_no_path_of_the_machine() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), None) else { return };
    compile(&compiler, COPY, GPUS[1], &[Dtype::F16]).unwrap();
    for (from, to, part) in [
        ("tl.load(x + at)", "tl.load(x + nowhere)", "`nowhere` is nothing that a kernel knows"),
        ("tl.load(x + at)", "tl.load(tl.arange(0, 64))", "Unsupported ptr type"),
        ("tl.load(x + at)", "tl.load(x + at", "line 18: it is not Python"),
        ("BLOCK = 64", "BLOCK = 60", "power of 2"),
        ("BLOCK = 64", "BLOCKS = 64", "has no parameter `BLOCKS`"),
        ("constexprs = { BLOCK = 64 }\n", "", "do not give `BLOCK`"),
        (
            "\"x\", \"y\", \"cols\"",
            "\"x\", \"y\"",
            "takes 3 arguments beside its constexprs (x, y, cols), and the launch gives 2",
        ),
        ("kernel = \"copy\"", "kernel = \"other\"", "there is no @triton.jit function `other`"),
        ("dtypes = [\"f16\"]", "dtypes = [\"f16\"]\noptions = [\"fast_math\"]", "is not one of maxnreg=N"),
    ] {
        match compile(&compiler, &COPY.replace(from, to), GPUS[1], &[Dtype::F16]) {
            Err(BuildError::Kernel(what)) => {
                assert!(what.contains(part), "{to}: {what}");
                assert!(!what.contains("site-packages"), "{to}: {what}");
            }
            other => panic!("{to}: {other:?}"),
        }
    }
}

#[test]
fn a_machine_without_triton_is_told_so_in_a_sentence() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), Some("/nowhere/python3".into())) else { return };
    match compile(&compiler, COPY, GPUS[1], &[Dtype::F16]) {
        Err(BuildError::Machine(what)) => {
            assert!(
                what.contains("a kernel in Triton needs a Python with triton") && what.contains("--python"),
                "{what}"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// What a kernel takes to compile in a process that is warm: printed, because it is the machine's affair.
#[test]
fn seconds_of_a_warm_compilation_are_told() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), None) else { return };
    compile(&compiler, COPY, GPUS[1], &[Dtype::F16]).unwrap();
    let mut all = Vec::new();
    for (name, text) in files("kernels/triton") {
        let began = std::time::Instant::now();
        let compiled = compile(&compiler, &text, GPUS[1], &[Dtype::F16]).unwrap();
        let kernels = compiled.iter().map(|compiled| compiled.jit.len()).sum::<usize>();
        all.push(began.elapsed().as_secs_f64() / kernels as f64);
        eprintln!("{name}: {:.2} s a kernel", all[all.len() - 1]);
    }
    all.sort_by(f64::total_cmp);
    eprintln!("warm compilation: median {:.2} s a kernel", all[all.len() / 2]);
}

#[test]
fn descriptors_made_in_a_kernel_ask_for_memory_where_a_gpu_copies_by_them() {
    let cache = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(cache.path(), None) else { return };
    let text = std::fs::read_to_string(root().join("tests/gpu/honest/triton_descriptors.py")).unwrap();
    let (kernel, op) = (KernelFile::parse(&text).unwrap(), operation("matmul"));
    for gpu in GPUS {
        let facts = facts(gpu);
        for (shape, launch) in [
            (Shape::from([("M", 100), ("N", 72), ("K", 48)]), "by_descriptors"),
            (Shape::from([("M", 100), ("N", 72), ("K", 48), ("batch", 3), ("trans_b", 1)]), "by_descriptors"),
            (Shape::from([("M", 100), ("N", 71), ("K", 48)]), "by_pointers"),
        ] {
            for dtype in Dtype::ALL {
                let resolution = at(&kernel, &op, &shape, dtype, &facts);
                let never = AtomicBool::new(false);
                let compiled = compiler
                    .candidate(&op, &kernel, std::slice::from_ref(&resolution), gpu.0, &facts, &never)
                    .unwrap_or_else(|error| panic!("{shape} {dtype} sm_{}: {error}", gpu.0))
                    .remove(0);
                let code = compiled.jit[launch].clone();
                let by_copy_engine = launch == "by_descriptors" && gpu.0 == 90;
                assert_eq!(code.scratch > 0, by_copy_engine, "{shape} {dtype} sm_{}: {code:?}", gpu.0);
                assert_eq!(compiled.log.contains("bytes of device memory for each block"), by_copy_engine);
                let planned = image(&op, &kernel, &resolution, &facts, compiled);
                let shape = op.complete(&shape).unwrap();
                let ints = op.ints(&shape).unwrap();
                let args = planned.launches(&ints).unwrap().remove(0).args;
                // Four tensors and three sizes, then the address of the memory that it asks for, then NULL.
                let blocks = 2 * 2 * shape.get("batch").unwrap() as usize;
                let (own, memory) = match by_copy_engine {
                    true => (vec![blocks * code.scratch], Argument::Scratch(0)),
                    false => (vec![], Argument::Constant(0)),
                };
                assert_eq!(planned.own_scratch(&ints), own);
                assert_eq!(args.len(), 7 + code.hidden);
                assert_eq!((&args[7], args.last()), (&memory, Some(&Argument::Constant(0))));
            }
        }
    }
}

fn image(
    op: &Operation,
    kernel: &KernelFile,
    resolution: &Resolution,
    facts: &Facts,
    compiled: Compiled,
) -> KernelImage {
    let (op, kernel, resolution) = (op.clone(), kernel.clone(), resolution.clone());
    KernelImage { compiled, op, kernel, resolution, facts: facts.clone() }
}
