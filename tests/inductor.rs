//! Inductor's kernels as kernel files, by the way that a run takes, for a GPU that is not here; compiled, and not run. Where there is no
//! NVRTC, or no Python with PyTorch and Triton, the tests say so and pass.
#![allow(clippy::print_stderr, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use warpsmith::backend::cuda::{Compiler, Search, TritonFound};
use warpsmith::kernel::{Facts, KernelFile, set_tunables};
use warpsmith::op::{Dtype, OpSource, Shape};
use warpsmith::torch::inductor::{Gpu, Start, start};
use warpsmith::torch::{Python, Service};
use warpsmith::workspace::python;

/// A tensor: name, sizes, type.
type Tensor = (&'static str, &'static [usize], &'static str);

/// The operation of a function in PyTorch.
fn source(name: &str, python: &str, inputs: &[Tensor], outputs: &[Tensor]) -> OpSource {
    let mut toml = format!(
        "name = \"{name}\"\nsummary = \"s\"\noracle = \"torch\"\nsymbols = []\nflops = \"1\"\nshrink = []\nprimary = 0\nsmoke = {{}}\nsweep = [{{}}]\n\
         edges = []\nrandom = {{}}\n"
    );
    for (role, tensors) in [("input", inputs), ("output", outputs)] {
        for (name, shape, dtype) in tensors {
            let sizes: Vec<String> = shape.iter().map(|size| format!("\"{size}\"")).collect();
            let draw = match (role, *dtype) {
                ("input", "T" | "f32") => "draw = { dist = \"normal\" }\n",
                ("input", _) => "draw = { dist = \"index\", scale = \"9\", shift = \"0\" }\n",
                _ => "",
            };
            toml += &format!(
                "[[tensors]]\nname = \"{name}\"\nrole = \"{role}\"\nshape = [{}]\ndtype = \"{dtype}\"\n{draw}",
                sizes.join(", ")
            );
        }
    }
    let python = format!("import torch\nimport torch.nn.functional as F\n\n\n{python}");
    OpSource { name: name.into(), toml, header: String::new(), python }
}

/// The same with a number beside its tensors, which may be another one in each call.
fn with_a_number(source: OpSource) -> OpSource {
    let toml = source.toml.replacen(
        "[[tensors]]",
        "[[scalars]]\nname = \"s\"\nvalue = \"0.5\"\nothers = [\"2\"]\n[[tensors]]",
        1,
    );
    OpSource { toml, ..source }
}

/// What there is to ask with; none where something is missing.
fn tools(cache: &Path) -> Option<(Python, Compiler)> {
    let skipped = |why: String| eprintln!("skipped: {why}");
    let toolkit = Search::of_this_machine().find(None).map_err(skipped).ok()?;
    TritonFound::of(&python(None)).map_err(skipped).ok()?;
    let torch = Python::chosen(None);
    Service::new(torch.clone()).hello().map_err(|error| skipped(error.to_string())).ok()?;
    let executable = PathBuf::from(env!("CARGO_BIN_EXE_warpsmith"));
    Some((torch, Compiler::with(toolkit, cache, Some(executable)).unwrap()))
}

fn facts() -> Facts {
    let known = [("SMS", 132), ("SMEM_MAX", 232_448), ("CC", 90), ("L2", 50 << 20)];
    known.map(|(name, value)| (name.to_owned(), value)).into()
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn functions_of_each_kind_become_kernel_files_that_compile() {
    let cache = tempfile::tempdir().unwrap();
    let Some((torch, compiler)) = tools(cache.path()) else { return };
    let x: Tensor = ("x", &[512, 3000], "T");
    let out: Tensor = ("out", &[512, 3000], "T");
    let sources = [
        source("soft", "def reference(x):\n    return torch.softmax(x, -1)\n", &[x], &[out]),
        source(
            "rms",
            "def reference(x, w):\n    return F.rms_norm(x, (x.shape[-1],), w, 1e-6)\n",
            &[("x", &[64, 1024], "T"), ("w", &[1024], "T")],
            &[("out", &[64, 1024], "T")],
        ),
        source("gate", "def reference(x, y):\n    return F.gelu(x) * y\n", &[x, ("y", &[512, 3000], "T")], &[out]),
        source(
            "loss",
            "def reference(x, y):\n    return (x - y).square().mean()\n",
            &[("x", &[4096, 4096], "T"), ("y", &[4096, 4096], "T")],
            &[("out", &[1], "T")],
        ),
        source(
            "turned",
            "def reference(x, y):\n    return (x.permute(0, 2, 1) + y).permute(2, 0, 1)\n",
            &[("x", &[8, 300, 200], "T"), ("y", &[200, 300], "T")],
            &[("out", &[300, 8, 200], "T")],
        ),
        source(
            "entropy",
            "def reference(x, labels):\n    return F.cross_entropy(x, labels, reduction='none')\n",
            &[("x", &[512, 3000], "T"), ("labels", &[512], "i64")],
            &[("out", &[512], "T")],
        ),
        source(
            "best",
            "def reference(x):\n    return x.argmax(-1), x > 0\n",
            &[x],
            &[("out0", &[512], "i64"), ("out1", &[512, 3000], "u8")],
        ),
        source(
            "added",
            "def reference(x, at):\n    return torch.zeros_like(x).index_add_(0, at, x)\n",
            &[x, ("at", &[512], "i64")],
            &[out],
        ),
        source(
            "batch",
            "def reference(x, mean, var, w):\n    return F.batch_norm(x, mean, var, w, None, True, 0.1, 1e-5)\n",
            &[("x", &[16, 64, 32, 32], "T"), ("mean", &[64], "T"), ("var", &[64], "T"), ("w", &[64], "T")],
            &[("out", &[16, 64, 32, 32], "T")],
        ),
        source(
            "linear",
            "def reference(x, w, b):\n    return F.gelu(F.linear(x, w, b))\n",
            &[("x", &[200, 1024], "T"), ("w", &[768, 1024], "T"), ("b", &[768], "T")],
            &[("out", &[200, 768], "T")],
        ),
        source(
            "gated",
            "def reference(x, w, v):\n    return F.silu(x @ w) * (x @ v)\n",
            &[("x", &[128, 320], "T"), ("w", &[320, 512], "T"), ("v", &[320, 512], "T")],
            &[("out", &[128, 512], "T")],
        ),
        source(
            "convolved",
            "def reference(x, w, b):\n    x, w = x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)\n    \
             return F.relu(F.conv2d(x, w, b, stride=2, padding=1)).permute(0, 2, 3, 1)\n",
            &[("x", &[8, 28, 28, 64], "T"), ("w", &[128, 3, 3, 64], "T"), ("b", &[128], "T")],
            &[("out", &[8, 14, 14, 128], "T")],
        ),
        source(
            "apart",
            "def reference(x, w):\n    return F.conv2d(x, w, padding=3, groups=96).sigmoid()\n",
            &[("x", &[2, 96, 28, 28], "T"), ("w", &[96, 1, 7, 7], "T")],
            &[("out", &[2, 96, 28, 28], "T")],
        ),
        source(
            "larger",
            "def reference(x, w, b):\n    return F.conv_transpose2d(x, w, b, stride=2)\n",
            &[("x", &[2, 64, 16, 16], "T"), ("w", &[64, 32, 2, 2], "T"), ("b", &[32], "T")],
            &[("out", &[2, 32, 32, 32], "T")],
        ),
        source(
            "eight",
            "def reference(x, w, s):\n    return F.linear(x, w.to(x.dtype)) * s\n",
            &[("x", &[1, 1024], "T"), ("w", &[768, 1024], "i8"), ("s", &[768], "T")],
            &[("out", &[1, 768], "T")],
        ),
        source(
            "eights",
            "def reference(x, w, s, kept):\n    return F.gelu(F.linear(x, w.to(x.dtype)) * s) * (kept != 0)[:, :, None]\n",
            &[("x", &[4, 32, 1024], "T"), ("w", &[768, 1024], "i8"), ("s", &[768], "T"), ("kept", &[4, 32], "u8")],
            &[("out", &[4, 32, 768], "T")],
        ),
        source(
            "cast",
            "def reference(x, w, b):\n    return F.gelu(F.linear(x, w.to(x.dtype), b.to(x.dtype)))\n",
            &[("x", &[128, 768], "T"), ("w", &[512, 768], "f32"), ("b", &[512], "f32")],
            &[("out", &[128, 512], "T")],
        ),
        with_a_number(source(
            "numbered",
            "def reference(x, s):\n    return x * torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + s)\n",
            &[x],
            &[out],
        )),
    ];
    let dtype = |source: &OpSource| match source.name.as_str() {
        "rms" | "linear" | "eight" | "eights" | "cast" => Dtype::Bf16,
        "gate" | "convolved" | "apart" | "larger" => Dtype::F16,
        _ => Dtype::F32,
    };
    let wanted: Vec<(&OpSource, Dtype)> = sources.iter().map(|source| (source, dtype(source))).collect();
    let starts = start(&torch, &wanted, Gpu::Pretended(90), &mut |_| {}).unwrap();
    assert_eq!(starts.len(), sources.len());
    for ((source, dtype), start) in wanted.iter().zip(&starts) {
        let Start::Kernel(text) = start else { panic!("{}: {start:?}", source.name) };
        let kernel = KernelFile::parse(text).unwrap();
        let op = source.operation().unwrap();
        kernel.check_against(&op).unwrap();
        assert_eq!(kernel.front.dtypes, [*dtype]);
        assert!(kernel.space_size() > 3, "the tuner has something to do: {text}");
        assert!(!text.contains("torch._inductor") && !text.contains("triton_helpers.m"), "{text}");
        let resolution = kernel.resolve(&Shape::default(), *dtype, &facts()).unwrap();
        kernel.launches(&op, &[], &resolution, &facts()).unwrap();
        let compiled = compiler.candidate(&op, &kernel, &[resolution], 90, &facts(), &AtomicBool::new(false));
        compiled.unwrap_or_else(|error| panic!("{}: {error}\n{text}", source.name));
        match source.name.as_str() {
            "loss" => assert!(kernel.front.launches.len() > 1 && !kernel.front.scratch.is_empty(), "{text}"),
            // By value: the judge asks with other numbers too.
            "numbered" => {
                assert!(kernel.front.launches.iter().any(|it| it.args.iter().any(|name| name == "s")), "{text}")
            }
            // Running averages, which PyTorch changes, are inputs.
            "batch" => {
                let written = |name: &String| ["mean", "var"].contains(&name.as_str());
                assert!(!kernel.front.launches.iter().any(|it| it.args.iter().any(written)), "{text}");
            }
            "added" => assert!(kernel.front.order_free, "{text}"),
            // What follows is a part of the product, whatever the blocks' sizes are.
            "linear" | "convolved" => {
                assert!(kernel.front.launches.len() == 1 && text.contains("tl.dot("), "{text}");
                let tunable = |name: &str| kernel.front.tune[name].choices.contains(&64);
                assert!(["BLOCK_M", "BLOCK_N", "BLOCK_K"].into_iter().all(tunable), "{text}");
                let chosen = |name: &str, value: i64| (name.to_owned(), value);
                let values =
                    [chosen("BLOCK_M", 16), chosen("BLOCK_N", 128), chosen("BLOCK_K", 64), chosen("STAGES", 4)];
                let other = KernelFile::parse(&set_tunables(text, &values.into()).unwrap()).unwrap();
                let resolution = other.resolve(&Shape::default(), *dtype, &facts()).unwrap();
                let launches = other.launches(&op, &[], &resolution, &facts()).unwrap();
                let grid = if source.name == "linear" { [13 * 6, 1, 1] } else { [8 * 14 * 14 / 16, 1, 1] };
                assert_eq!(launches[0].grid, grid, "{text}");
                compiler.candidate(&op, &other, &[resolution], 90, &facts(), &AtomicBool::new(false)).unwrap();
            }
            // Weights are read as they are: nobody writes them wider.
            "eight" => assert!(kernel.front.launches.len() == 1 && !text.contains("tl.dot("), "{text}"),
            "eights" | "cast" => assert!(kernel.front.launches.len() == 1 && text.contains("tl.dot("), "{text}"),
            "apart" => assert!(kernel.front.launches.len() == 1 && !text.contains("tl.dot("), "{text}"),
            "larger" => assert!(text.contains("tl.dot("), "{text}"),
            "gated" => {
                assert!(kernel.front.launches.len() == 2 && text.contains("BLOCK_M_2"), "{text}");
                assert!(kernel.is_worth_trying(&Shape::default(), *dtype, &facts()), "{text}");
            }
            "soft" => {
                assert!(text.contains("BSD-3-Clause, Copyright") && text.contains("STAGES"), "{text}");
                // Its second loop may begin with what the first has read last.
                let turned = text.replace("BACKWARDS = { value = 0", "BACKWARDS = { value = 1");
                assert_ne!(turned, *text);
                let kernel = KernelFile::parse(&turned).unwrap();
                let resolution = kernel.resolve(&Shape::default(), *dtype, &facts()).unwrap();
                compiler.candidate(&op, &kernel, &[resolution], 90, &facts(), &AtomicBool::new(false)).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn what_inductor_has_no_kernels_for_is_said_in_a_sentence() {
    let cache = tempfile::tempdir().unwrap();
    let Some((torch, _)) = tools(cache.path()) else { return };
    let x: Tensor = ("x", &[512, 512], "T");
    let out: Tensor = ("out", &[512, 512], "T");
    let sources = [
        source("inverse", "def reference(x):\n    return torch.linalg.inv(x)\n", &[x], &[out]),
        source("same", "def reference(x):\n    return x\n", &[x], &[out]),
        source("several", "def reference(x):\n    return x + 1, x + 2\n", &[x], &[out]),
        source("raises", "def reference(x):\n    return x[1000, 0] + x\n", &[x], &[out]),
        source(
            "constant",
            "TABLE = torch.arange(512.0)\n\n\ndef reference(x):\n    return x + TABLE.to(x)\n",
            &[x],
            &[out],
        ),
        with_a_number(source(
            "fixed",
            "def reference(x, s):\n    return F.layer_norm(x, (512,), eps=s)\n",
            &[x],
            &[out],
        )),
        source(
            "turned",
            "def reference(x, w):\n    return F.conv_transpose2d(x, w, stride=2)\n",
            &[("x", &[2, 16, 8, 8], "T"), ("w", &[16, 32, 3, 3], "T")],
            &[("out", &[2, 32, 17, 17], "T")],
        ),
    ];
    let wanted: Vec<(&OpSource, Dtype)> = sources.iter().map(|source| (source, Dtype::F32)).collect();
    let starts = start(&torch, &wanted, Gpu::Pretended(90), &mut |_| {}).unwrap();
    let why = |place: usize| match &starts[place] {
        Start::Nothing(why) => why.clone(),
        Start::Kernel(text) => panic!("{}: {text}", sources[place].name),
    };
    assert!(why(0).ends_with("which is no kernel of its own"), "{}", why(0));
    assert_eq!(why(6), "Inductor calls a library for `convolution` of these sizes, and has no template");
    assert!(why(1).contains("no code"), "{}", why(1));
    assert!(why(2).contains("gives 2 tensors"), "{}", why(2));
    assert!(why(3).contains("IndexError"), "{}", why(3));
    assert!(!why(4).is_empty());
    assert!(why(5).contains("it uses `s` where nothing but a number that is fixed will do"), "{}", why(5));
}

#[test]
fn init_writes_what_inductor_writes_for_a_problem_and_leaves_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    if tools(&cache).is_none() {
        return;
    }
    let problem = "import torch\n\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
                   self.norm = torch.nn.LayerNorm(2048)\n\n    def forward(self, x):\n        return self.norm(x)\n\n\ndef get_inputs():\n    \
                   return [torch.randn(64, 2048)]\n\n\ndef get_init_inputs():\n    return []\n";
    std::fs::write(folder.path().join("1_Norm.py"), problem).unwrap();
    let warpsmith = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpsmith"));
        command.args(arguments).current_dir(folder.path()).env("WARPSMITH_CACHE", &cache);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let init = ["init", "--problem", "1_Norm.py", "--from-inductor=sm_90", "--dtype", "bf16"];
    let (code, said) = warpsmith(&init);
    assert_eq!(code, Some(0), "{said}");
    let file = folder.path().join("kernels/triton/p1_norm.py");
    let kernel = KernelFile::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(kernel.front.dtypes, [Dtype::Bf16]);
    let (code, said) = warpsmith(&["bench", "--compile=sm_90", "kernels/triton/p1_norm.py"]);
    assert!(code == Some(0) && said.contains("compiles for sm_90 with Triton"), "{said}");
    std::fs::write(&file, "mine").unwrap();
    let (code, said) = warpsmith(&init);
    assert!(code == Some(0) && said.contains("is there already"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let (code, said) = warpsmith(&["init", "--problem", "1_Norm.py", "--from-inductor=h200"]);
    assert!(code == Some(2) && said.contains("a GPU is named as"), "{said}");
}
