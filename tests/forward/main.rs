//! Whole models on the starters: what they compute, how they are timed and compared, and what is refused.
#![allow(clippy::unwrap_used)]

mod checkpoint;
mod definition;
mod families;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use warpsmith::backend::cpu::{Compiler, Cpu, Limits};
use warpsmith::device::{Ceilings, DeviceCard};
use warpsmith::forward::{Effort, Forward, ForwardError, KernelSet, Recipe, Sessions, compare, rounds};
use warpsmith::kernel::KernelFile;
use warpsmith::model::{Graph, ModelConfig, Pass, Phase};
use warpsmith::op::{Dtype, Operation};
use warpsmith::verify::{Change, Report};

const OPS: [&str; 6] = ["matmul", "rmsnorm", "layernorm", "rotary_embedding", "flash_attention", "fused_mlp"];
static GO: AtomicBool = AtomicBool::new(false);

type Kernels = BTreeMap<String, KernelFile>;

fn graph(architecture: &str, dtype: Dtype) -> Graph {
    let text = format!(
        r#"{{"architectures": ["{architecture}"], "hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 301, "rms_norm_eps": 1e-3}}"#
    );
    let config = ModelConfig::parse("tiny", &text).unwrap();
    Graph::build(&config, Pass { phase: Phase::Prefill, batch: 2, seq: 37, dtype, layers: None }).unwrap()
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

struct Bench {
    cpu: Cpu,
    ops: BTreeMap<String, Operation>,
    starters: Kernels,
}

impl Bench {
    fn new() -> Self {
        // Shared by the tests and kept between runs: results are cached by content, and compiling is most of the time.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        let facts = [("CORES", 2), ("L1", 32 << 10), ("L2", 1 << 20), ("VECTOR_BYTES", 32)];
        // What only the judge looks at is not measured.
        let card = DeviceCard {
            backend: "cpu".into(),
            name: "a processor".into(),
            key: "cpu-1".into(),
            cores: 2,
            vector_bits: 256,
            l1_bytes: 32 << 10,
            l2_bytes: 1 << 20,
            l3_bytes: 0,
            cold_bytes: 32 << 20,
            facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
            ceilings: Ceilings {
                read_gb_s: 1.0,
                write_gb_s: 1.0,
                gflops: BTreeMap::new(),
                launch_us: 1.0,
                shown: BTreeMap::new(),
            },
        };
        let limits = Limits { executable: Some(env!("CARGO_BIN_EXE_warpsmith").into()), ..Limits::default() };
        let kernel = |op: &str| KernelFile::parse(&read(&format!("kernels/cpu/{op}.c")).unwrap()).unwrap();
        Self {
            cpu: Cpu::new(Compiler::new(&cache).unwrap(), card, limits),
            ops: OPS.map(|op| (op.to_owned(), Operation::load(&read, op).unwrap())).into(),
            starters: OPS.map(|op| (op.to_owned(), kernel(op))).into(),
        }
    }

    /// The model on the starters, with weights of its files where it has any.
    fn starters(&self, config: &ModelConfig, graph: &Graph) -> Result<Forward<'_, Cpu>, ForwardError> {
        let weights = config.weights.as_deref().map(|dir| (dir, &config.kind));
        let recipe = Recipe { graph, ops: &self.ops, weights, seed: 7 };
        Forward::prepare(&self.cpu, &recipe, &[KernelSet::today(&self.starters)], &GO)
    }

    fn prepare(&self, graph: &Graph, kernels: &[&Kernels]) -> Result<Forward<'_, Cpu>, ForwardError> {
        let sets: Vec<KernelSet<'_>> = kernels.iter().map(|kernels| KernelSet::today(kernels)).collect();
        Forward::prepare(&self.cpu, &Recipe { graph, ops: &self.ops, weights: None, seed: 7 }, &sets, &GO)
    }

    fn refusal(&self, graph: &Graph, kernels: &Kernels) -> String {
        self.prepare(graph, &[kernels]).map(|_| ()).unwrap_err().to_string()
    }

    /// The starters, with an rmsnorm of this body and more front matter.
    fn with_rmsnorm(&self, front: &str, body: &str) -> Kernels {
        let text = format!(
            "/*---\nop = \"rmsnorm\"\ndtypes = [\"f16\", \"bf16\", \"f32\"]\n{front}\n---*/\n\
             void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {{ {body} }}\n"
        );
        let mut kernels = self.starters.clone();
        kernels.insert("rmsnorm".to_owned(), KernelFile::parse(&text).unwrap());
        kernels
    }
}

/// An rmsnorm of `ROWS` rows with `EPS`.
const PLAIN: &str = "for (int64_t r = 0; r < ROWS; r++) { float s = 0; \
    for (int64_t j = 0; j < cols; j++) s += ws_load(x[r * cols + j]) * ws_load(x[r * cols + j]); \
    s = 1 / sqrtf(s / cols + EPS); \
    for (int64_t j = 0; j < cols; j++) y[r * cols + j] = ws_store(ws_load(x[r * cols + j]) * s * ws_load(weight[j])); }";

fn plain(rows: &str, eps: &str) -> String {
    PLAIN.replace("ROWS", rows).replace("EPS", eps)
}

#[test]
fn a_pass_is_the_same_whole_in_parts_and_in_a_fresh_process() {
    let bench = Bench::new();
    let graph = graph("LlamaForCausalLM", Dtype::F32);
    let mut forward = bench.prepare(&graph, &[&bench.starters]).unwrap();
    forward.run(0).unwrap();
    let whole = forward.output();
    forward.poison();
    assert!(forward.output().iter().all(|v| v.is_nan()));
    assert_eq!(forward.run_timed(0).unwrap().len(), graph.nodes.len());
    assert_eq!(forward.output(), whole);
    forward.poison();
    forward.restart().unwrap();
    forward.run(0).unwrap();
    assert_eq!(forward.output(), whole);
}

#[test]
fn rounds_time_every_node() {
    let bench = Bench::new();
    let graph = graph("LlamaForCausalLM", Dtype::Bf16);
    let mut forward = bench.prepare(&graph, &[&bench.starters]).unwrap();
    let rounds = rounds(&mut forward, &Effort { budget: Duration::ZERO, least: 5, most: 5 }, &GO).unwrap();
    assert_eq!((rounds.whole_us.len(), rounds.node_us.len()), (5, 5));
    assert!(rounds.node_us.iter().all(|round| round.len() == graph.nodes.len()));
    assert!(rounds.launch_us > 0.0 && rounds.whole() > 0.0 && rounds.sum(&graph.calls_of("fused_mlp")) > 0.0);
}

#[test]
fn a_changed_kernel_that_is_right_agrees_and_one_that_is_wrong_does_not() {
    let bench = Bench::new();
    let graph = graph("LlamaForCausalLM", Dtype::F32);
    let sessions = Sessions { count: 2, least: 3, most: 3, budget: Duration::ZERO };
    let effort = Effort { budget: Duration::ZERO, least: 2, most: 2 };
    let wrong = |after: &Kernels| {
        let mut contest = bench.prepare(&graph, &[&bench.starters, after]).unwrap();
        let comparison = compare(&mut contest, &graph, &sessions, Some(&effort), 1, &GO).unwrap();
        let changes = [Change { op: "rmsnorm".to_owned(), vs_user: 1.5 }];
        let report = Report::new(&graph, &comparison, &changes, "here");
        assert!(report.measured.median > 0.0 && report.predicted >= 1.0 && report.parts[0].after_us > 0.0);
        report.output.wrong
    };
    assert_eq!(wrong(&bench.starters), None);
    assert_eq!(wrong(&bench.with_rmsnorm("", &plain("rows", "eps"))), None);
    // Another ε; nothing written, where the side before has just left its own; half of it written.
    assert!(wrong(&bench.with_rmsnorm("", &plain("rows", "0.1f"))).unwrap().contains("of their rms"));
    assert!(wrong(&bench.with_rmsnorm("", "")).unwrap().contains("NaN"));
    assert!(wrong(&bench.with_rmsnorm("", &plain("rows / 2", "eps"))).is_some());
}

#[test]
fn scratch_is_zeroed_for_each_call_that_asks_for_it() {
    let bench = Bench::new();
    let graph = graph("LlamaForCausalLM", Dtype::F32);
    // Adds what the scratch held to the output, and leaves it dirty.
    let body = format!("{} y[0] += counter[0]; counter[0] += 1;", plain("rows", "eps"));
    let output = |init: &str, passes: usize| {
        let front = format!("[[scratch]]\nname = \"counter\"\ndtype = \"f32\"\nshape = [\"1\"]\ninit = \"{init}\"");
        let text =
            bench.with_rmsnorm(&front, &body)["rmsnorm"].text.replace("T *y, int64_t", "T *y, float *counter, int64_t");
        let mut kernels = bench.starters.clone();
        kernels.insert("rmsnorm".to_owned(), KernelFile::parse(&text).unwrap());
        let mut forward = bench.prepare(&graph, &[&kernels]).unwrap();
        for _ in 0..passes {
            forward.run(0).unwrap();
        }
        forward.output()
    };
    assert_eq!(output("zero", 1), output("zero", 3));
    assert_ne!(output("zero_kept", 1), output("zero_kept", 3));
}

#[test]
fn a_kernel_that_ends_its_process_is_named_by_its_site() {
    let bench = Bench::new();
    let graph = graph("LlamaForCausalLM", Dtype::F32);
    let crashing = bench.with_rmsnorm("", "*(volatile int *)8 = 1;");
    let mut forward = bench.prepare(&graph, &[&crashing]).unwrap();
    let said = forward.run_timed(0).unwrap_err().to_string();
    assert!(said.contains("layers.0.input_norm") && said.contains("SIGSEGV"), "{said}");
    assert!(forward.run(0).is_err());
    forward.restart().unwrap();
    forward.run_nothing(0).unwrap();
}

#[test]
fn what_is_missing_or_does_not_fit_is_named_with_its_site() {
    let mut bench = Bench::new();
    let graph = graph("LlamaForCausalLM", Dtype::F32);
    let mut fewer = bench.starters.clone();
    fewer.remove("fused_mlp");
    assert!(bench.refusal(&graph, &fewer).contains("layers.0.mlp needs a kernel for `fused_mlp`"));
    let elsewhere = bench.with_rmsnorm("domain = \"cols > 1000\"", "");
    let said = bench.refusal(&graph, &elsewhere);
    assert!(said.contains("layers.0.input_norm: shape cols=96 rows=74 is outside"), "{said}");
    let said = bench.refusal(&graph, &bench.with_rmsnorm("", "this is not C;"));
    assert!(said.starts_with("layers.0.input_norm: ") && said.contains("compiler"), "{said}");
    let mut other = bench.ops["rmsnorm"].clone();
    other.tensors[1].name = "gain".to_owned();
    bench.ops.insert("rmsnorm".to_owned(), other);
    let said = bench.refusal(&graph, &bench.starters);
    assert!(said.contains("the model has no tensor `gain`"), "{said}");
    bench.ops.remove("rmsnorm");
    assert!(bench.refusal(&graph, &bench.starters).contains("needs the operation `rmsnorm`"));
}

#[test]
fn a_model_larger_than_the_machine_is_refused_before_anything_is_allocated() {
    let bench = Bench::new();
    let huge = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 1048576, "intermediate_size": 4194304,
        "num_hidden_layers": 100, "num_attention_heads": 1024, "vocab_size": 1000}"#;
    let config = ModelConfig::parse("huge", huge).unwrap();
    let graph =
        Graph::build(&config, Pass { phase: Phase::Prefill, batch: 1, seq: 8, dtype: Dtype::F16, layers: None })
            .unwrap();
    let said = bench.refusal(&graph, &bench.starters);
    assert!(said.starts_with("huge with 1x8 tokens in f16 needs") && said.contains("free"), "{said}");
}
