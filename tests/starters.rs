//! The operations, starters and models that ship: they load, agree with each other, and leave the tuner a space to search.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use warpsmith::backend::cpu::{Arena, Compiler, Host, Image, Limits, Oracle, Unit, compare};
use warpsmith::backend::{CaseMemory, Placing, ScratchBuffer};
use warpsmith::kernel::{Facts, KernelError, KernelFile, Resolution, fits_arch, nvrtc_options};
use warpsmith::model::{Graph, Kind, ModelConfig, Pass, Phase};
use warpsmith::op::{Case, Dtype, Operation, Shape, TargetShape};

const OPERATIONS: &[&str] = &[
    "matmul",
    "rmsnorm",
    "rotary_embedding",
    "flash_attention",
    "fused_mlp",
    "softmax",
    "layernorm",
    "cross_entropy",
    "reduce",
];

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

fn operation(name: &str) -> Operation {
    Operation::load(&read, name).unwrap_or_else(|error| panic!("{error}"))
}

fn starter(name: &str) -> KernelFile {
    let text = read(&format!("kernels/cpu/{name}.c")).unwrap();
    KernelFile::parse(&text).unwrap_or_else(|error| panic!("kernels/cpu/{name}.c: {error}"))
}

fn facts() -> Facts {
    [("CORES", 2), ("L1", 32 << 10), ("L2", 1 << 20), ("VECTOR_BYTES", 32)].map(|(k, v)| (k.to_owned(), v)).into()
}

fn listed(op: &Operation) -> Vec<Shape> {
    let hostile = op.adversarial.iter().map(|input| &input.shape);
    let all = op.sweep.iter().chain(&op.edges).chain(&op.decode).chain(hostile).chain([&op.smoke]);
    all.map(|shape| op.complete(shape).unwrap()).collect()
}

#[test]
fn every_operation_loads_and_every_shape_it_lists_is_complete() {
    for &name in OPERATIONS {
        let op = operation(name);
        assert!(listed(&op).iter().all(|shape| op.symbols.iter().all(|symbol| shape.get(symbol).is_some())), "{name}");
        assert!(op.sweep.len() >= 7 && op.edges.len() >= 5, "{name}");
    }
}

#[test]
fn every_hostile_input_says_why_it_is_there() {
    for &name in OPERATIONS {
        let op = operation(name);
        assert!((4..=16).contains(&op.adversarial.len()), "{name} has {}", op.adversarial.len());
        for input in &op.adversarial {
            assert!(input.why.len() > 30, "{name}: {}", input.name);
        }
    }
}

#[test]
fn useful_work_is_counted_as_the_field_counts_it() {
    let flops = |name: &str, shape: Shape| {
        let op = operation(name);
        op.flops(&op.complete(&shape).unwrap()).unwrap()
    };
    assert_eq!(flops("matmul", Shape::from([("M", 3), ("N", 5), ("K", 7)])), 2 * 3 * 5 * 7);
    assert_eq!(flops("rmsnorm", Shape::from([("rows", 3), ("cols", 5)])), 6 * 15);
    assert_eq!(flops("fused_mlp", Shape::from([("B", 3), ("D", 5), ("H", 7)])), 6 * 105);
    assert_eq!(flops("cross_entropy", Shape::from([("batch", 3), ("vocab", 5)])), 4 * 15);
    assert_eq!(flops("reduce", Shape::from([("rows", 3), ("cols", 5)])), 15);
    assert_eq!(flops("rotary_embedding", Shape::from([("B", 2), ("H", 3), ("S", 5), ("D", 8)])), 3 * 2 * 3 * 5 * 8);
    assert_eq!(flops("softmax", Shape::from([("rows", 3), ("cols", 5)])), 5 * 15);
    assert_eq!(flops("layernorm", Shape::from([("batch", 3), ("dim", 5)])), 8 * 15);
    let attention = Shape::from([("B", 2), ("H", 3), ("S_q", 10), ("S_kv", 10), ("D", 8)]);
    let full = flops("flash_attention", attention.clone());
    assert_eq!(full, 4 * 2 * 3 * 10 * 10 * 8);
    assert_eq!(flops("flash_attention", attention.with("causal", 1)), full / 2);
}

#[test]
fn a_causal_decode_step_counts_nearly_every_pair() {
    let op = operation("flash_attention");
    let step = Shape::from([("B", 1), ("H", 4), ("S_q", 1), ("S_kv", 2048), ("D", 64), ("causal", 1)]);
    let all = op.flops(&op.complete(&step.clone().with("causal", 0)).unwrap()).unwrap();
    let causal = op.flops(&op.complete(&step).unwrap()).unwrap();
    assert!(causal <= all && causal * 1000 > all * 999, "{causal} of {all}");
}

#[test]
fn every_starter_serves_every_dtype_at_every_listed_shape() {
    for &name in OPERATIONS {
        let (op, kernel) = (operation(name), starter(name));
        assert_eq!(kernel.front.op, name);
        for shape in listed(&op) {
            for dtype in Dtype::ALL {
                assert!(kernel.front.dtypes.contains(&dtype), "{name} {dtype}");
                let resolution =
                    kernel.resolve(&shape, dtype, &facts()).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(resolution.scratch_elements.len(), kernel.front.scratch.len());
            }
        }
    }
}

#[test]
fn every_starter_leaves_a_space_to_search() {
    for &name in OPERATIONS {
        let size = starter(name).space_size();
        assert!((60..=400).contains(&size), "{name} has {size} points");
    }
}

#[test]
fn shipped_models_call_operations_that_are_there_at_shapes_that_starters_serve() {
    let folders = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models")).unwrap();
    let mut seen = 0;
    for folder in folders.map(|folder| folder.unwrap().path()).filter(|it| it.join("config.json").exists()) {
        let config = ModelConfig::load(&folder).unwrap();
        for phase in [Phase::Prefill, Phase::Decode] {
            let pass = Pass { phase, batch: 1, seq: 128, dtype: Dtype::F32, layers: None };
            let Ok(graph) = Graph::build(&config, pass) else {
                // An encoder does not decode; everything else does everything.
                assert!(matches!((&config.kind, phase), (Kind::Bert(_), Phase::Decode)), "{}", config.name);
                continue;
            };
            for target in graph.targets() {
                let kernel = starter(&target.op);
                for TargetShape { shape, dtype, .. } in &target.shapes {
                    let fits = kernel.resolve(shape, *dtype, &facts());
                    assert!(fits.is_ok(), "{} {}: {fits:?}", config.name, target.op);
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
}

/// What runs a starter in its own process and judges it as a candidate is judged.
struct Judge {
    op: Operation,
    kernel: KernelFile,
    compiler: Compiler,
    oracle: Oracle,
}

impl Judge {
    fn new(name: &str) -> Self {
        // What was compiled by an earlier run need not be compiled again.
        let compiler = Compiler::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("starters")).unwrap();
        let op = operation(name);
        let build = |name: &str, source: &str, flags: &[&str]| {
            compiler.compile_trusted(name, source, flags).map(|image| image.path).map_err(|error| error.to_string())
        };
        let oracle = Oracle::compile(&build, &op).unwrap_or_else(|error| panic!("{error}"));
        Self { kernel: starter(name), op, compiler, oracle }
    }

    fn compile(&self, case: &Case) -> (Resolution, Image) {
        let resolution = self.kernel.resolve(&case.shape, case.dtype, &facts()).unwrap();
        let unit = Unit { op: &self.op, kernel: &self.kernel, resolution: &resolution };
        let image = self.compiler.compile(&unit).unwrap_or_else(|error| panic!("{}: {error}", self.op.name));
        (resolution, image)
    }

    /// Runs the case twice on poisoned memory: the output must be right, and the same bits both times.
    fn judge(&self, case: &Case) {
        let place = format!("{} {} {} {:?}", self.op.name, self.op.label(&case.shape), case.dtype, case.input);
        let (resolution, image) = self.compile(case);
        let scratch = ScratchBuffer::of(&self.kernel, &resolution);
        let (inputs, outputs) = CaseMemory::footprint::<Arena>(&self.op, case, &scratch, 1, Placing::Packed).unwrap();
        let mut arena = Arena::new(inputs, outputs).unwrap();
        let mut memory = CaseMemory::place(&mut arena, &self.op, case, &scratch, 1).unwrap();
        let limits = Limits { executable: Some(env!("CARGO_BIN_EXE_warpsmith").into()), ..Limits::default() };
        memory.draw(&mut arena, 0, 11).unwrap();
        let mut taken = Vec::new();
        for poison in [5, 6] {
            memory.poison(&mut arena, 0, poison);
            let mut host = Host::start(&[&image], &arena, &limits).unwrap();
            host.launch(&memory.call(0, 0), Duration::from_secs(60)).unwrap_or_else(|fault| panic!("{place}: {fault}"));
            memory.check_zones(&mut arena, 0).unwrap_or_else(|what| panic!("{place}: {what}"));
            taken.push(arena.outputs(&memory, 0).concat());
        }
        assert!(taken[0] == taken[1], "{place}: other bits the second time");
        let expected = self.oracle.expected(case, &arena.inputs(&memory, 0), 3).unwrap();
        let stats = compare(&self.op, case, &arena.outputs(&memory, 0), &expected).unwrap();
        assert_eq!(stats.failure(), None, "{place}");
    }

    /// The same with another kernel: the starter's text after these edits.
    fn edited(mut self, edits: &[(&str, &str)]) -> Self {
        let mut text = read(&format!("kernels/cpu/{}.c", self.op.name)).unwrap();
        for (from, to) in edits {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text = text.replace(from, to);
        }
        self.kernel = KernelFile::parse(&text).unwrap();
        self
    }

    /// Smoke and edges, shrunk until hundreds of them take a second.
    fn small_cases(&self) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for shape in [&self.op.smoke].into_iter().chain(&self.op.edges) {
            let (shape, _) = self.op.shrink_to(&self.op.complete(shape).unwrap(), 1 << 15, 1 << 12).unwrap();
            cases.extend(Dtype::ALL.map(|dtype| Case { shape: shape.clone(), dtype, input: None, setting: 0 }));
        }
        let mut seen = std::collections::HashSet::new();
        cases.retain(|case| seen.insert(case.clone()));
        cases
    }

    /// Judges the case under each seed, as drawn and with one element changed; says which verdicts were rejections.
    fn rejections(&self, case: &Case, seeds: std::ops::Range<u64>) -> Vec<String> {
        let (resolution, image) = self.compile(case);
        let scratch = ScratchBuffer::of(&self.kernel, &resolution);
        let (inputs, outputs) = CaseMemory::footprint::<Arena>(&self.op, case, &scratch, 1, Placing::Packed).unwrap();
        let mut arena = Arena::new(inputs, outputs).unwrap();
        let mut memory = CaseMemory::place(&mut arena, &self.op, case, &scratch, 1).unwrap();
        let limits = Limits { executable: Some(env!("CARGO_BIN_EXE_warpsmith").into()), ..Limits::default() };
        let mut host = Host::start(&[&image], &arena, &limits).unwrap();
        let mut rejections = Vec::new();
        for seed in seeds {
            memory.draw(&mut arena, 0, seed).unwrap();
            memory.poison(&mut arena, 0, seed);
            for changed in [false, true] {
                let change = changed.then(|| memory.change_one(&mut arena, 0, seed));
                host.launch(&memory.call(0, 0), Duration::from_secs(60)).unwrap_or_else(|fault| panic!("{fault}"));
                let expected = self.oracle.expected(case, &arena.inputs(&memory, 0), seed).unwrap();
                let stats = compare(&self.op, case, &arena.outputs(&memory, 0), &expected).unwrap();
                if let Some(why) = stats.failure() {
                    let place = format!("{} {} {}", self.op.name, self.op.label(&case.shape), case.dtype);
                    rejections.push(format!("{place}, seed {seed}, change {change:?}: {why}"));
                }
            }
        }
        rejections
    }

    /// All that stages 1, 2, 3 and 5 ask, at sizes that a test has time for.
    fn judge_all(&self) {
        let ordinary = [&self.op.smoke].into_iter().chain(&self.op.sweep).chain(&self.op.edges).chain(&self.op.decode);
        let mut cases: Vec<Case> = Vec::new();
        for shape in ordinary {
            let complete = self.op.complete(shape).unwrap();
            let (shape, _) = self.op.shrink_to(&complete, 1 << 21, 1 << 20).unwrap();
            cases.extend(Dtype::ALL.map(|dtype| Case { shape: shape.clone(), dtype, input: None, setting: 0 }));
        }
        for hostile in &self.op.adversarial {
            let complete = self.op.complete(&hostile.shape).unwrap();
            let (shape, _) = self.op.shrink_to(&complete, u64::MAX, 1 << 20).unwrap();
            let dtypes: &[Dtype] = if hostile.dtypes.is_empty() { &Dtype::ALL } else { &hostile.dtypes };
            let input = Some(hostile.name.clone());
            cases.extend(dtypes.iter().map(|&dtype| Case {
                shape: shape.clone(),
                dtype,
                input: input.clone(),
                setting: 0,
            }));
        }
        let mut seen = std::collections::HashSet::new();
        cases.retain(|case| seen.insert(case.clone()));
        assert!(cases.len() > 50, "{} cases", cases.len());
        cases.iter().for_each(|case| self.judge(case));
    }
}

#[test]
fn the_matmul_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("matmul").judge_all();
}

#[test]
fn the_rmsnorm_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("rmsnorm").judge_all();
}

#[test]
fn the_rotary_embedding_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("rotary_embedding").judge_all();
}

#[test]
fn the_flash_attention_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("flash_attention").judge_all();
}

#[test]
fn the_fused_mlp_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("fused_mlp").judge_all();
}

#[test]
fn the_softmax_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("softmax").judge_all();
}

#[test]
fn the_layernorm_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("layernorm").judge_all();
}

#[test]
fn the_cross_entropy_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("cross_entropy").judge_all();
}

#[test]
fn the_reduce_starter_is_right_at_every_size_dtype_and_hostile_input() {
    Judge::new("reduce").judge_all();
}

/// Draws of each small case in the full suite; STARTER_SEEDS asks for another number of them.
fn seeds() -> u64 {
    std::env::var("STARTER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(24)
}

#[test]
fn no_starter_is_rejected_at_its_smallest_shape_under_any_of_some_seeds() {
    for &name in OPERATIONS {
        let judge = Judge::new(name);
        let cases = judge.small_cases();
        let rejections: Vec<_> =
            cases[..Dtype::ALL.len()].iter().flat_map(|case| judge.rejections(case, 0..8)).collect();
        assert!(rejections.is_empty(), "{rejections:#?}");
    }
}

/// What cancels in the only hidden value is lost in the whole row.
#[test]
fn a_fused_mlp_of_few_hidden_values_is_not_rejected() {
    let judge = Judge::new("fused_mlp");
    for hidden in [1, 4, 16] {
        let shape = judge.op.complete(&Shape::from([("B", 104), ("D", 364), ("H", hidden)])).unwrap();
        let case = Case { shape, dtype: Dtype::F32, input: None, setting: 0 };
        let rejections = judge.rejections(&case, 0..8);
        assert!(rejections.is_empty(), "{rejections:#?}");
    }
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn no_starter_is_rejected_under_any_of_many_seeds() {
    let (mut judged, mut rejections) = (0, Vec::new());
    let seeds = seeds();
    for &name in OPERATIONS {
        let judge = Judge::new(name);
        for case in judge.small_cases() {
            rejections.extend(judge.rejections(&case, 0..seeds));
            judged += 2 * seeds;
        }
    }
    assert!(rejections.is_empty(), "{} of {judged}: {rejections:#?}", rejections.len());
    assert!(judged >= 370 * seeds, "{judged}");
}

#[test]
fn a_softmax_that_flushes_what_is_below_the_normal_range_is_not_rejected() {
    flushed_under(60);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_softmax_that_flushes_what_is_below_the_normal_range_is_never_rejected() {
    flushed_under(300);
}

fn flushed_under(seeds: u64) {
    let edit = (
        "*(vec *)(part + j) = exponential(*(const vec *)(part + j) - shift) * share;",
        "{ const vec p = exponential(*(const vec *)(part + j) - shift);\n\
           *(vec *)(part + j) = pick(p < 1.17549435e-38f, (vec){0}, p) * share; }",
    );
    let judge = Judge::new("softmax").edited(&[edit]);
    let shape = judge.op.complete(&judge.op.smoke).unwrap();
    for dtype in Dtype::ALL {
        let rejections = judge.rejections(&Case { shape: shape.clone(), dtype, input: None, setting: 0 }, 0..seeds);
        assert!(rejections.is_empty(), "{} of {}: {rejections:#?}", rejections.len(), 2 * seeds);
    }
}

#[test]
fn a_fused_mlp_that_keeps_a_quarter_of_each_hidden_value_in_the_storage_type_is_not_rejected() {
    quartered_under(60);
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_fused_mlp_that_keeps_a_quarter_of_each_hidden_value_in_the_storage_type_is_never_rejected() {
    quartered_under(300);
}

fn quartered_under(seeds: u64) {
    let edit = (
        "to[j] = g / (1.0f + exponential(-g)) * up[i * TILE_N + j];",
        "const T kept = ws_store(g / (1.0f + exponential(-g)) * up[i * TILE_N + j] * 0.25f);\n\
                to[j] = ws_load(kept) * 4;",
    );
    let judge = Judge::new("fused_mlp").edited(&[edit]);
    for sizes in [[1, 1, 1], [3, 16, 2], [4, 32, 48]] {
        let shape = Shape::from([("B", sizes[0]), ("D", sizes[1]), ("H", sizes[2])]);
        for dtype in Dtype::ALL {
            let rejections = judge.rejections(&Case { shape: shape.clone(), dtype, input: None, setting: 0 }, 0..seeds);
            assert!(rejections.is_empty(), "{} of {}: {rejections:#?}", rejections.len(), 2 * seeds);
        }
    }
}

/// GPUs by compute capability, multiprocessors, and bytes of shared memory a block can have: A100, H200, B200.
const GPUS: [(u32, i64, i64); 3] = [(80, 108, 163 << 10), (90, 132, 227 << 10), (100, 148, 227 << 10)];

/// The kernel files for CUDA that ship, by path.
fn cuda_files() -> Vec<String> {
    let mut files = Vec::new();
    for folder in ["kernels/cuda", "kernels/examples"] {
        let Ok(entries) = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) else { continue };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        files.extend(names.filter(|name| name.ends_with(".cu")).map(|name| format!("{folder}/{name}")));
    }
    files.sort();
    files
}

#[test]
fn every_cuda_file_plans_its_launches_at_every_shape_on_the_gpus_it_is_for() {
    let mut wrong = std::collections::BTreeSet::new();
    for file in cuda_files() {
        let kernel = KernelFile::parse(&read(&file).unwrap()).unwrap_or_else(|error| panic!("{file}: {error}"));
        let op = operation(&kernel.front.op);
        kernel.front.check_backend("cuda").unwrap_or_else(|error| panic!("{file}: {error}"));
        kernel.check_against(&op).unwrap_or_else(|error| panic!("{file}: {error}"));
        nvrtc_options(&kernel.front.options).unwrap_or_else(|error| panic!("{file}: {error}"));
        for (cc, sms, shared) in GPUS {
            if !fits_arch(&kernel.front.arch, cc) {
                continue;
            }
            kernel.front.check_arch(cc).unwrap_or_else(|error| panic!("{file}: {error}"));
            let facts: Facts = [("SMS", sms), ("SMEM_MAX", shared), ("CC", i64::from(cc)), ("L2", 40 << 20)]
                .map(|(name, value)| (name.to_owned(), value))
                .into();
            for shape in listed(&op) {
                for dtype in Dtype::ALL {
                    let resolution = match kernel.resolve(&shape, dtype, &facts) {
                        Err(KernelError::OutsideDomain { .. }) => continue,
                        other => other.unwrap_or_else(|error| panic!("{file}: {error}")),
                    };
                    let planned = match kernel.launches(&op, &op.ints(&shape).unwrap(), &resolution, &facts) {
                        Ok(planned) => planned,
                        Err(error) => {
                            wrong.insert(format!("{file} on sm_{cc}, {dtype} at {shape}: {error}"));
                            continue;
                        }
                    };
                    let compiled = kernel.kernel_names(&resolution, &facts);
                    assert!(!planned.is_empty(), "{file} at {shape} {dtype}: nothing to launch");
                    assert!(planned.iter().all(|launch| compiled.contains(&launch.kernel)), "{file} at {shape}");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
