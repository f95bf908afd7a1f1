//! PyTorch as this program asks it: problem files, and files that are none. Where `$WARPSMITH_PYTHON` has no PyTorch this is said, and
//! nothing else is tested.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod benchmark_run;
mod definitions;
mod eval;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use warpsmith::torch::{PYTHON, Problem, Python, Service, TorchError};

/// One process for all tests: starting one takes seconds. None where there is no PyTorch.
fn service() -> Option<MutexGuard<'static, Service>> {
    static SERVICE: OnceLock<Option<Mutex<Service>>> = OnceLock::new();
    let service = SERVICE.get_or_init(|| {
        let Some(python) = std::env::var_os(PYTHON) else {
            println!("skipped: ${PYTHON} names no Python");
            return None;
        };
        // Short, so that what hangs does not take long.
        let service = Service::new(Python::chosen(Some(Path::new(&python))).within(Duration::from_secs(20)));
        match service.hello() {
            Ok(_) => Some(Mutex::new(service)),
            Err(error) => {
                println!("skipped, as nothing can be asked of PyTorch: {error}");
                None
            }
        }
    });
    service.as_ref().map(|service| service.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What is said of a file with these inputs and this `forward`.
fn problem(service: &Service, inputs: &str, forward: &str) -> Result<Problem, TorchError> {
    let text = format!(
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        \
         self.norm = nn.BatchNorm1d(8)\n    def forward(self, x, *rest):\n        {forward}\n\
         def get_inputs():\n    {inputs}\ndef get_init_inputs():\n    return []\n"
    );
    let described = service.describe("tried.py", &text, true)?;
    Problem::new("tried.py", &text, described)
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_module_is_an_operation_over_its_inputs_and_its_state() {
    let Some(service) = service() else { return };
    let found =
        problem(&service, "return [torch.randn(16, 8), 0.5, 3]", "return self.norm(x) * rest[0], x.sum()").unwrap();
    let op = found.source.operation().unwrap();
    assert_eq!(
        op.c_function(),
        "void tried(const T *x, const T *norm_weight, const T *norm_bias, const T *norm_running_mean, const T *norm_running_var, \
         T *out0, T *out1, float input1);"
    );
    assert_eq!(op.adversarial.iter().filter(|it| it.draw.contains_key("x")).count(), 15);
    // A variance stays one.
    let variance = op.tensors.iter().find(|it| it.name == "norm_running_var").unwrap().draw.as_ref().unwrap();
    assert!(variance.shift.as_ref().is_some_and(|shift| shift.text() == "0.5"), "{variance:?}");
}

/// What is compiled for twelve shapes of one function, with the fastest of PyTorch's compilers.
const SHAPES: &str = concat!(
    "import functools, inspect, torch\n",
    include_str!("../../src/torch/unit.py"),
    "
torch.compile = functools.partial(torch.compile, backend='eager')

def double(x):
    return x * 2

for size in range(2, 14):
    by_compiling(double, None)(torch.ones(size))
print(torch._dynamo.utils.counters['stats']['unique_graphs'])
"
);

#[test]
fn each_of_many_shapes_is_compiled_and_none_runs_eagerly_under_that_name() {
    if service().is_none() {
        return;
    }
    let python = std::env::var_os(PYTHON).unwrap();
    let output = Command::new(python).args(["-c", SHAPES]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "12", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_a_file_must_not_do_is_told_in_a_sentence_and_the_next_file_is_read() {
    let Some(service) = service() else { return };
    let plain = "return [torch.randn(4, 8)]";
    for (inputs, forward, part) in [
        ("raise ValueError('no inputs today')", "return x", "tried.py, line 10: ValueError: no inputs today"),
        (plain, "return x + nothing", "line 8: NameError: name 'nothing' is not defined"),
        (plain, "return {'x': x}", "gives dict, and not a tensor"),
        ("import random\n    return [torch.randn(random.randint(1, 10**6), 8)]", "return x", "other shapes each time"),
        ("return [torch.randn(1 << 45)[:8].reshape(1, 8)]", "return x", "more memory than it may have"),
        ("exit(3)", "return x", "SystemExit: 3"),
        ("return [torch.randn(4, 8, dtype=torch.float64)]", "return x", "`x` is a tensor of float64"),
        (plain, "return torch.fft.rfft(x)", "a tensor of complex64"),
    ] {
        let error = problem(&service, inputs, forward).unwrap_err().to_string();
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
    }
    let printing = "print('{\"error\": null}', flush=True)\n    return [torch.randn(4, 8)]";
    assert!(problem(&service, printing, "return x * 2").is_ok(), "what is printed is no answer");
    let error = service.describe("broken.py", "def get_inputs(:\n", true).unwrap_err().to_string();
    assert!(error.contains("broken.py, line 1: SyntaxError"), "{error}");
    let error = service.describe("other.py", "x = 1\n", true).unwrap_err().to_string();
    assert!(error.contains("neither `reference` nor `Model`"), "{error}");
}

#[test]
fn what_hangs_or_dies_is_ended_and_the_next_file_is_read() {
    let Some(_turn) = service() else { return };
    let python = std::env::var_os(PYTHON).unwrap();
    let python = Python::chosen(Some(Path::new(&python)));
    let hurried = Service::new(python.clone().within(Duration::from_secs(3)));
    hurried.hello().unwrap();
    let error = problem(&hurried, "while True: pass", "return x").unwrap_err().to_string();
    assert!(error.contains("tried.py did not end within 3 s"), "{error}");
    // On a busy machine a process takes longer than that to come back.
    let service = Service::new(python);
    let killed = "import os, sys\n    print('the last words', file=sys.stderr, flush=True)\n    os.abort()";
    let error = problem(&service, killed, "return x").unwrap_err().to_string();
    assert!(
        error.contains("PyTorch died, describing it (tried.py): signal 6") && error.contains("the last words"),
        "{error}"
    );
    assert!(problem(&service, "return [torch.randn(4, 8)]", "return x * 2").is_ok());
}

#[test]
fn others_are_answered_by_the_process_that_is_there_as_long_as_it_is() {
    // It has one of its own, which ends with the test.
    let Some(python) = service().and_then(|_| std::env::var_os(PYTHON)) else { return };
    let first = Arc::new(Service::new(Python::chosen(Some(Path::new(&python)))));
    let hello = first.hello().unwrap();
    let socket = first.socket();
    assert!(socket.is_some() && socket == first.socket());
    // They could not start one.
    let other = || Service::new(Python::chosen(Some(Path::new("/no/such/python")))).sharing(socket.clone());
    let (second, third) = (other(), other());
    assert_eq!(second.hello().unwrap(), hello);
    for service in [&*first, &second, &third, &second] {
        assert!(problem(service, "return [torch.randn(4, 8)]", "return x * 2").is_ok());
    }
    drop(second);
    assert!(problem(&first, "return [torch.randn(4, 8)]", "return x * 3").is_ok());
    assert_eq!(third.hello().unwrap(), hello);
    drop(first);
    let alone = other().hello().unwrap_err().to_string();
    assert!(alone.contains("/no/such/python cannot be started"), "{alone}");
    assert!(problem(&third, "return [torch.randn(4, 8)]", "return x * 2").is_err());
}

#[test]
fn a_python_that_is_missing_or_has_no_pytorch_is_told_in_a_sentence() {
    let asked = |python: &Path| Service::new(Python::chosen(Some(python))).hello().unwrap_err().to_string();
    let missing = asked(Path::new("/no/such/python"));
    assert!(missing.contains("/no/such/python cannot be started") && missing.lines().count() == 1, "{missing}");
    let other = asked(Path::new("/bin/true"));
    assert!(other.contains("did not get ready"), "{other}");
    let folder = tempfile::tempdir().unwrap();
    let bare = folder.path().join("bare");
    // Isolated, without the folders in which a PyTorch would be.
    std::fs::write(&bare, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    std::fs::set_permissions(&bare, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let without = asked(&bare);
    assert!(
        without.contains("has no PyTorch: ModuleNotFoundError") || without.contains("cannot be started"),
        "{without}"
    );
}

const PROBLEM: &str = "import torch
class Model(torch.nn.Module):
    def forward(self, x, scale):
        return torch.relu(x) * scale
def get_inputs():
    return [torch.randn(48, 512), 3.0]
def get_init_inputs():
    return []
";

const BODY: &str = "for (int64_t i = 0; i < 48 * 512; i++) {
        const float v = ws_load(x[i]);
        out[i] = ws_store((v > 0 || v != v ? v : 0) * scale);
    }";

/// What the program says in a folder.
fn warpsmith(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warpsmith"));
    command.current_dir(folder).env("WARPSMITH_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache-torch"));
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_problem_file_goes_from_an_empty_kernel_to_a_right_one() {
    let Some(_turn) = service() else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::write(root.join("1_Scaled_Relu.py"), PROBLEM).unwrap();
    let made = warpsmith(root, &["init", "--problem", "1_Scaled_Relu.py"]);
    assert!(made.status.success() && text(&made.stdout).contains("it is to be written by you"), "{made:?}");
    let kernel = root.join("kernels/cpu/p1_scaled_relu.c");
    let empty = std::fs::read_to_string(&kernel).unwrap();
    assert!(empty.contains("void p1_scaled_relu(const T *x, T *out, float scale) {"), "{empty}");
    let judged = warpsmith(root, &["bench", "kernels/cpu/p1_scaled_relu.c", "--smoke"]);
    assert!(judged.status.code() == Some(1) && text(&judged.stdout).contains("NaN where"), "{judged:?}");
    let right = empty.replace("/* To be written. */", BODY);
    std::fs::write(&kernel, &right).unwrap();
    let bench = ["bench", "kernels/cpu/p1_scaled_relu.c", "--problem", "1_Scaled_Relu.py"];
    let judged = warpsmith(root, &bench);
    let said = text(&judged.stdout);
    assert!(judged.status.success() && said.starts_with("p1_scaled_relu: correct\n"), "{judged:?}");
    assert!(said.contains("eager f32: ") && said.contains("in pairs with the kernel"), "{said}");
    benchmark_run::level(root);
    let listed = text(&warpsmith(root, &["kernelbench", "--root", ".", "list"]).stdout);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 7, "{listed}");
    for (line, part) in
        [(0, "1 1_Relu"), (1, "a target"), (2, "2_Large"), (3, "takes about"), (4, "10_Worst"), (5, "complex64")]
    {
        assert!(lines[line].contains(part), "{listed}");
    }
    assert_eq!(lines[6], "3 problems, 1 of them targets here");
}
