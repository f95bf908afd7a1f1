//! CUDA kernels through the real compiler, in its real process. No GPU is needed; where there is no NVRTC the tests say so and
//! pass.
#![allow(clippy::print_stderr)]

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use warpsmith::backend::cuda::judge::{device_sources, oracle_source};
use warpsmith::backend::cuda::{Compiled, Compiler, Search, Unit, prelude};
use warpsmith::backend::{BuildError, Step};
use warpsmith::kernel::{Facts, KernelFile, Resolution};
use warpsmith::op::{Dtype, Operation, Shape};

struct Bench {
    compiler: Compiler,
    op: Operation,
    cache: tempfile::TempDir,
}

impl Bench {
    fn new() -> Option<Self> {
        let toolkit = match Search::of_this_machine().find(None) {
            Ok(toolkit) => toolkit,
            Err(why) => {
                eprintln!("skipped: {why}");
                return None;
            }
        };
        let cache = tempfile::tempdir().expect("a folder");
        let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
        let compiler = Compiler::with(toolkit, cache.path(), Some(executable)).expect("NVRTC starts");
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let read = |name: &str| std::fs::read_to_string(root.join(name)).ok();
        let op = Operation::load(&read, "rmsnorm").expect("the operation loads");
        Some(Self { compiler, op, cache })
    }

    fn compile(&self, file: &KernelFile, resolutions: &[Resolution]) -> Result<Vec<Compiled>, BuildError> {
        self.compiler.candidate(&self.op, file, resolutions, 90, &facts(), &AtomicBool::new(false))
    }

    /// Compiles `code` for rmsnorm in fp16.
    fn code(&self, code: &str) -> Result<Compiled, BuildError> {
        self.at(code, Dtype::F16)
    }

    fn at(&self, code: &str, dtype: Dtype) -> Result<Compiled, BuildError> {
        let file = KernelFile::parse(&kernel(code)).expect("front matter");
        let resolution = resolve(&file, dtype);
        self.compile(&file, &[resolution]).map(|mut all| all.remove(0))
    }

    fn refusal(&self, code: &str) -> String {
        match self.code(code) {
            Err(BuildError::Kernel(what)) => what,
            other => panic!("{code}: {other:?}"),
        }
    }
}

fn facts() -> Facts {
    [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 60 << 20)].map(|(name, n)| (name.to_owned(), n)).into()
}

fn resolve(file: &KernelFile, dtype: Dtype) -> Resolution {
    let shape = Shape([("rows".to_owned(), 4), ("cols".to_owned(), 64)].into());
    file.resolve(&shape, dtype, &facts()).expect("resolves")
}

fn kernel(code: &str) -> String {
    format!(
        "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\narch = [\"sm_80+\"]\n[tune]\nVEC = {{ value = 4, choices = [4, 8] }}\n\
         [[launch]]\nkernel = \"norm<VEC>\"\ngrid = [\"rows\"]\nblock = [\"128\"]\nargs = [\"x\", \"weight\", \"y\", \"rows\", \"cols\", \"eps\"]\n---*/\n{code}"
    )
}

const HEAD: &str = "template<int N> __global__ void norm(const T *x, const T *weight, T *y, long long rows, long long cols, float eps) {\n";

fn body(code: &str) -> String {
    format!("{HEAD}{code}\n}}\n")
}

#[test]
fn an_honest_template_compiles_in_all_dtypes_and_reports_what_it_needs() {
    let Some(bench) = Bench::new() else { return };
    for dtype in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
        let code = body(
            "__shared__ float s[32]; s[threadIdx.x % 32] = ws_load(x[threadIdx.x]); __syncthreads();\n\
             static_assert(sizeof(T) == WS_DTYPE_BYTES && WS_SM == 90 && N == VEC, \"\"); uint64_t z = INT_MAX; assert(z); printf(\"%d\", 3);\n\
             y[threadIdx.x] = ws_store(s[(threadIdx.x + N) % 32] + INFINITY);",
        );
        let compiled = bench.at(&code, dtype).expect("compiles");
        assert_eq!(compiled.names.keys().collect::<Vec<_>>(), ["norm<4>"]);
        assert!(compiled.cubin.starts_with(b"\x7fELF"));
        let resources = &compiled.resources[0];
        assert_eq!((resources.kernel.as_str(), resources.shared), ("norm<4>", 128), "{compiled:?}");
        assert!(resources.registers > 0 && compiled.log.starts_with("norm<4>: "), "{}", compiled.log);
    }
}

#[test]
fn a_second_time_comes_from_the_cache_and_many_compile_at_once() {
    let Some(bench) = Bench::new() else { return };
    let text = kernel(&body("y[0] = ws_store(VEC);"));
    let file = KernelFile::parse(&text).expect("front matter");
    let resolutions = [Dtype::F16, Dtype::Bf16, Dtype::F32].map(|dtype| resolve(&file, dtype));
    let start = Instant::now();
    let first = bench.compile(&file, &resolutions).expect("compiles");
    let compiling = start.elapsed();
    assert_eq!(first.len(), 3);
    let start = Instant::now();
    assert_eq!(bench.compile(&file, &resolutions).expect("compiles"), first);
    let looking_up = start.elapsed();
    assert!(looking_up < compiling / 3, "{looking_up:?} after {compiling:?}");
    assert!(bench.cache.path().join("cuda").join(format!("{}.cubin", first[0].key)).is_file());
}

#[test]
fn constants_that_the_code_does_not_name_are_no_compilation_of_their_own() {
    let Some(bench) = Bench::new() else { return };
    let compile = |code: &str| {
        let file = KernelFile::parse(&kernel(&body(code))).expect("front matter");
        let resolutions = [4, 8].map(|value| {
            let mut resolution = resolve(&file, Dtype::F32);
            resolution.macros.insert("PIECES".into(), value);
            resolution
        });
        let compiled = bench.compile(&file, &resolutions).expect("compiles");
        [0, 1].map(|index| compiled[index].key.clone())
    };
    let [unnamed, also] = compile("y[0] = ws_store(1.0f); /* PIECE */");
    assert_eq!(unnamed, also);
    let [four, eight] = compile("y[0] = ws_store(PIECES);");
    assert_ne!(four, eight);
    // A name that is put together.
    let [four, eight] = compile("#define OF(a, b) a##b\n    y[0] = ws_store(OF(PIE, CES));");
    assert_ne!(four, eight);
}

#[test]
fn messages_point_into_the_file_and_name_no_path() {
    let Some(bench) = Bench::new() else { return };
    let text = kernel(&body("nonsense;"));
    let line = 1 + text.lines().position(|line| line == "nonsense;").expect("is there");
    let what = bench.refusal(&body("nonsense;"));
    assert!(what.contains(&format!("rmsnorm.cu({line}): error")), "{what}");
    let what = bench.refusal("__global__ void other(float *x) { x[0] = 1; }\n");
    assert!(what.contains("norm"), "{what}");
    let what = bench.refusal(&format!("#include <cuda/nothing_of_that_name>\n{}", body("")));
    assert!(!what.contains("/work") && !what.contains("/home") && !what.contains("site-packages"), "{what}");
}

#[test]
fn memory_that_outlives_a_launch_is_refused_and_tables_are_not() {
    let Some(bench) = Bench::new() else { return };
    for (code, name) in [
        (format!("__device__ int counter;\n{}", body("if (atomicAdd(&counter, 1) > 3) y[0] = 0;")), "counter"),
        (
            format!(
                "__device__ float kept[64] = {{1}};\n{}",
                body("kept[threadIdx.x] += 1; y[0] = ws_store(kept[3]);")
            ),
            "kept",
        ),
        (body("static __device__ float hidden; y[0] = ws_store(hidden); hidden = eps;"), "hidden"),
        (body("static int calls; y[0] = ws_store(calls++);"), "calls"),
        (
            format!(
                "__device__ const int table[2] = {{1, 2}};\n{}",
                body("*(int *)&table[rows & 1] = 5; y[0] = ws_store(table[cols & 1]);")
            ),
            "table",
        ),
        (
            body("const char *text = \"flag\"; *(char *)&text[rows & 3] = 'x'; y[0] = ws_store(text[cols & 3]);"),
            "outlives",
        ),
        (body("asm volatile(\".global .u32 asm_kept; st.global.u32 [asm_kept], 5;\");"), "asm_kept"),
    ] {
        let what = bench.refusal(&code);
        assert!(what.contains("outlives a launch") && what.contains(name), "{code}: {what}");
    }
    for code in [
        format!("__constant__ float table[4] = {{1, 2, 3, 4}};\n{}", body("y[0] = ws_store(table[rows & 3]);")),
        format!("__device__ const float table[4] = {{1, 2, 3, 4}};\n{}", body("y[0] = ws_store(table[rows & 3]);")),
        body("static constexpr float table[4] = {1, 2, 3, 4}; y[0] = ws_store(table[rows & 3] + table[cols & 3]);"),
        body("const float table[4] = {1, 2, 3, 4}; y[0] = ws_store(table[rows & 3]);"),
    ] {
        bench.code(&code).unwrap_or_else(|error| panic!("{code}: {error}"));
    }
}

#[test]
fn clocks_are_refused_however_they_are_spelled() {
    let Some(bench) = Bench::new() else { return };
    for code in [
        body("y[0] = (T)clock();"),
        format!("#define READ(x) clock##x\n{}", body("y[0] = (T)READ(64)();")),
        format!(
            "#define S(...) #__VA_ARGS__\n{}",
            body(
                "unsigned long long t; asm volatile(S(mov.u64 %0, %%) \"glob\" \"altimer;\" : \"=l\"(t)); y[0] = (T)t;"
            )
        ),
        body("y[0] = (T)__nvvm_read_ptx_sreg_clock64();"),
        body("unsigned t; asm volatile(\"mov.u32 %0, %\" \"clock_hi;\" : \"=r\"(t)); y[0] = (T)t;"),
    ] {
        let what = bench.refusal(&code);
        assert!(what.contains("clock"), "{code}: {what}");
    }
    bench.code(&body("__nanosleep(20); y[0] = 0;")).expect("waiting is no clock");
}

#[test]
fn what_would_be_linked_is_refused() {
    let Some(bench) = Bench::new() else { return };
    let what = bench.refusal(&format!(
        "extern \"C\" __device__ int vprintf(const char *, va_list);\n#undef printf\n{}",
        body("printf(\"x\");")
    ));
    assert!(!what.is_empty());
    let what = bench.refusal(&format!(
        "extern \"C\" __device__ void *malloc(size_t);\n{}",
        body("((float **)y)[0] = (float *)malloc(64);")
    ));
    assert!(what.contains("malloc"), "{what}");
}

#[test]
fn files_of_the_machine_cannot_be_read_even_without_the_reader_of_text() {
    let Some(bench) = Bench::new() else { return };
    let unit = |source: &str| Unit {
        name: "x.cu".into(),
        source: format!("{source}\nextern \"C\" __global__ void k() {{}}\n"),
        arch: "sm_90".into(),
        options: vec![],
        names: vec!["k".into()],
        numbers: Default::default(),
    };
    bench.compiler.trusted(&[unit("")]).expect("compiles");
    if !warpsmith::sandbox::protections()[0].available {
        eprintln!("skipped: no landlock here");
        return;
    }
    let secret = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(secret.path(), "#define SECRET 42\nhush hush;\n").expect("writes");
    let refused = bench.compiler.trusted(&[unit(&format!("#include \"{}\"", secret.path().display()))]);
    let Err(BuildError::Kernel(what)) = refused else { panic!("{refused:?}") };
    assert!(what.contains("cannot open") && !what.contains("hush"), "{what}");
    let environment = bench.compiler.trusted(&[unit("#include \"/proc/self/environ\"")]);
    assert!(environment.is_err(), "{environment:?}");
}

#[test]
fn headers_compile_with_the_prelude() {
    let Some(bench) = Bench::new() else { return };
    if bench.compiler.includes().is_empty() {
        eprintln!("skipped: no headers beside NVRTC");
        return;
    }
    for header in [
        "cuda_fp16.h",
        "cuda_bf16.h",
        "cstdint",
        "cuda_runtime.h",
        "cooperative_groups.h",
        "cuda/ptx",
        "cuda/std/cstdint",
    ] {
        bench
            .code(&format!("#include <{header}>\n{}", body("y[0] = 0;")))
            .unwrap_or_else(|error| panic!("{header}: {error}"));
    }
}

#[test]
fn a_header_of_ours_is_found_by_its_name_alone_and_only_by_who_names_it() {
    let Some(bench) = Bench::new() else { return };
    let with = |header: &str, arch: &str| {
        let text =
            kernel(&format!("#include \"{header}\"\nusing namespace ws;\n{}", body("y[0] = (T)shared_address(&y);")));
        KernelFile::parse(&text.replace("sm_80+", arch)).expect("front matter")
    };
    for (header, arch) in [("ws/ampere.cuh", "sm_80+"), ("ws/hopper.cuh", "sm_90a")] {
        let file = with(header, arch);
        let resolutions = [Dtype::F16, Dtype::Bf16, Dtype::F32].map(|dtype| resolve(&file, dtype));
        bench.compile(&file, &resolutions).unwrap_or_else(|error| panic!("{header}: {error}"));
    }
    let what = bench.refusal(&format!("#include \"ws/none.cuh\"\n{}", body("y[0] = 0;")));
    assert!(what.contains("`none.cuh`") && what.contains("\"ws/ampere.cuh\", \"ws/hopper.cuh\""), "{what}");
    // Without the reader of text there is no such name either, and no path to what has it.
    for include in ["ws/none.cuh", "kernels/cuda/include/ws/hopper.cuh", "ws/./hopper.cuh"] {
        let source = format!("#include \"{include}\"\nextern \"C\" __global__ void k() {{}}\n");
        let (name, arch, names) = ("x.cu".into(), "sm_90".into(), vec!["k".into()]);
        let unit = Unit { name, source, arch, options: vec![], names, numbers: Default::default() };
        let Err(BuildError::Kernel(what)) = bench.compiler.trusted(&[unit]) else { panic!("{include}") };
        assert!(what.contains("cannot open"), "{include}: {what}");
    }
}

#[test]
fn neither_a_macro_nor_a_tunable_nor_a_second_include_changes_what_a_header_means() {
    let Some(bench) = Bench::new() else { return };
    let asks = body(
        "__shared__ T s[8]; ws::copy_async<16>(s, x); ws::end_of_copies(); ws::wait_for_copies<0>(); y[0] = s[0];",
    );
    let plain = bench.code(&format!("#include \"ws/ampere.cuh\"\n{asks}")).expect("compiles");
    // What would count in a header that is read where it is included: its words, and the name of a constant.
    let before = "#define asm static_assert(0, \"never\"); asm\n#define PENDING 7\n#define volatile\n#include \"ws/ampere.cuh\"\n\
        #undef asm\n#undef PENDING\n#undef volatile\n#include \"ws/ampere.cuh\"\n";
    assert_eq!(bench.code(&format!("{before}{asks}")).expect("compiles").cubin, plain.cubin);
    let text = kernel(&format!("#include \"ws/ampere.cuh\"\n{asks}")).replace("VEC", "BYTES");
    let file = KernelFile::parse(&text.replace("copy_async<16>", "copy_async<BYTES * 4>")).expect("front matter");
    assert_eq!(
        bench.compile(&file, &[resolve(&file, Dtype::F16)]).expect("compiles")[0].resources[0].registers,
        plain.resources[0].registers
    );
    // A macro behind the include is the kernel's own word, and what it comes to is read.
    let clock = "#include \"ws/ampere.cuh\"\n#define AT(x) clock##x\n#define power_of_two(x) (float)AT(64)()\n";
    let what = bench.refusal(&format!("{clock}{}", body("using namespace ws; y[0] = ws_store(power_of_two(1.0f));")));
    assert!(what.contains("clock"), "{what}");
}

#[test]
fn behind_a_header_messages_still_point_into_the_file() {
    let Some(bench) = Bench::new() else { return };
    let code = format!("#include \"ws/hopper.cuh\"\n{}", body("nonsense;"));
    let line = 1 + kernel(&code).lines().position(|line| line == "nonsense;").expect("is there");
    let what = bench.refusal(&code);
    assert!(what.contains(&format!("rmsnorm.cu({line}): error")), "{what}");
}

#[test]
fn a_compilation_that_does_not_end_is_ended_when_nobody_wants_it() {
    let Some(bench) = Bench::new() else { return };
    // Doubles at every level: far more than any limit of nesting allows for in time.
    let bomb = "template<int N, int M> struct B { static constexpr long v = B<N - 1, 2 * M>::v + B<N - 1, 2 * M + 1>::v; };\n\
        template<int M> struct B<0, M> { static constexpr long v = M; };\n";
    let text = kernel(&format!("{bomb}{}", body("y[0] = (T)B<27, 1>::v;")));
    let file = KernelFile::parse(&text).expect("front matter");
    let resolution = resolve(&file, Dtype::F16);
    let cancelled = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        bench.compiler.candidate(&bench.op, &file, &[resolution], 90, &facts(), &cancelled)
    });
    assert!(matches!(result, Err(BuildError::Cancelled)), "{result:?}");
    bench.code(&body("y[0] = 0;")).expect("the next one compiles");
}

#[test]
fn a_file_for_another_device_is_refused_with_a_sentence() {
    let Some(bench) = Bench::new() else { return };
    let text = kernel(&body("y[0] = 0;")).replace("sm_80+", "sm_100a");
    let file = KernelFile::parse(&text).expect("front matter");
    let Err(BuildError::Kernel(what)) = bench.compile(&file, &[resolve(&file, Dtype::F16)]) else { panic!() };
    assert!(what.contains("sm_100a") && what.contains("sm_90"), "{what}");
}

#[test]
fn the_judges_own_code_and_every_oracle_compile_for_three_kinds_of_gpu() {
    let Some(bench) = Bench::new() else { return };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(root.join(name)).ok();
    let mut sources: Vec<(String, String)> =
        device_sources().into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
    for name in [
        "matmul",
        "rmsnorm",
        "rotary_embedding",
        "flash_attention",
        "fused_mlp",
        "softmax",
        "layernorm",
        "cross_entropy",
        "reduce",
    ] {
        let op = Operation::load(&read, name).expect("the operation loads");
        sources.push((format!("oracle_{name}"), oracle_source(&op).expect("an oracle")));
    }
    let units: Vec<Unit> = sources
        .iter()
        .flat_map(|(name, source)| {
            ["sm_80", "sm_90a", "sm_100"].map(|arch| Unit {
                name: format!("{name}.cu"),
                source: source.clone(),
                arch: arch.into(),
                options: vec![],
                names: vec![],
                numbers: Default::default(),
            })
        })
        .collect();
    assert_eq!(bench.compiler.trusted(&units).expect("compiles").len(), 3 * sources.len());
}

#[test]
fn the_forward_passs_own_code_has_a_kernel_for_every_step_in_every_dtype() {
    let Some(bench) = Bench::new() else { return };
    for capability in [80, 90, 100] {
        let unit = |dtype| Unit {
            name: "glue.cu".into(),
            source: format!("{}{}", prelude(dtype, capability), include_str!("../src/backend/cuda/launch/glue.cu")),
            arch: format!("sm_{capability}"),
            options: vec![],
            names: Step::ALL.map(|step| step.function().to_owned()).to_vec(),
            numbers: Default::default(),
        };
        for compiled in bench.compiler.trusted(&Dtype::ALL.map(unit)).expect("compiles") {
            let kernels: Vec<&str> = compiled.resources.iter().map(|kernel| kernel.kernel.as_str()).collect();
            for step in Step::ALL {
                assert!(kernels.contains(&step.function()), "{step:?} in {kernels:?}");
            }
        }
    }
}
