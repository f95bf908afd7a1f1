//! A PyTorch model from its profile to a package in a fresh Python, on a processor. Where `$WARPSMITH_PYTHON` has no PyTorch this is said,
//! and nothing is tested.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod checkpoint;
mod compared;
mod convolved;
mod eight;
mod grouped;
mod guilty;
mod masked;
mod mixed;
mod together;
mod traced;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::Value;
use tempfile::TempDir;
use warpsmith::torch::{PYTHON, Python, Service};

/// The sizes of the model here: its own are for a look at times.
const ROWS: &str = "96";
const HIDDEN: &str = "128";
const WIDTH: &str = "64";

const MODEL: &str = include_str!("../../models/torch/tiny/model.py");
const GATE: &str = include_str!("kernels/gate.c");
const NORM: &str = include_str!("kernels/norm.c");
const THREE: &str = include_str!("kernels/three.c");

/// The folder of kernels to begin with, where there are any.
const OF_MINE: &str = "kernels-of-mine";

/// As many models at a time, each on a core of its own: most of a test is compilers, which take one. A device is locked in its cache's
/// folder, so each lane has one.
static LANES: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];

/// A workspace with the model in it; none where there is no PyTorch.
struct Place {
    folder: TempDir,
    lane: usize,
    _held: MutexGuard<'static, ()>,
}

impl Place {
    fn new() -> Option<Self> {
        let Some(python) = std::env::var_os(PYTHON) else {
            println!("skipped: ${PYTHON} names no Python");
            return None;
        };
        if let Err(error) = Service::new(Python::chosen(Some(Path::new(&python)))).hello() {
            println!("skipped, as nothing can be asked of PyTorch: {error}");
            return None;
        }
        let (lane, held) = free_lane();
        on_a_core_of_its_own(lane);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("model")).unwrap();
        let small = MODEL.replace("width=256, hidden=512", &format!("width={WIDTH}, hidden={HIDDEN}"));
        let small = small.replace("torch.randn(512, 256)", &format!("torch.randn({ROWS}, {WIDTH})"));
        assert!(small.contains(ROWS) && small.contains(HIDDEN), "the model has other sizes now");
        std::fs::write(folder.path().join("model/model.py"), small).unwrap();
        Some(Self { folder, lane, _held: held })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let cache = format!("{}/cache-torch-{}", env!("CARGO_TARGET_TMPDIR"), self.lane);
        command
            .current_dir(self.folder.path())
            .env("WARPSMITH_CACHE", cache)
            .env("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16");
        // Its own, so that a graph of an earlier run cannot stand for one of this.
        command.env("TORCHINDUCTOR_CACHE_DIR", self.path("inductor"))
    }

    fn warpsmith(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warpsmith"));
        self.prepare(command.args(arguments)).output().unwrap()
    }

    /// What it says, where it succeeds.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.warpsmith(arguments);
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// A run of these targets, each until a trial is not kept: which targets a plan has and how many trials a budget holds are a matter
    /// of how busy the machine is.
    fn begun(&self, targets: &[&str]) -> String {
        let only = targets.join(",");
        let mut arguments = vec!["run", "model", "--only", &only, "--seed", "3", "--max-reverts", "1"];
        if self.path(OF_MINE).exists() {
            arguments.extend(["--kernels", OF_MINE]);
        }
        self.said(&arguments)
    }

    /// What a fresh Python prints as JSON, and what it says beside.
    fn python(&self, program: &str) -> (Value, String) {
        self.python_with(program, &[])
    }

    fn python_with(&self, program: &str, arguments: &[&str]) -> (Value, String) {
        let mut command = Command::new(std::env::var_os(PYTHON).unwrap());
        let output = self.prepare(command.args(["-c", program]).args(arguments)).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (serde_json::from_slice(&output.stdout).unwrap(), text(&output.stderr))
    }
}

/// One of [`LANES`], as soon as there is one that nobody has.
fn free_lane() -> (usize, MutexGuard<'static, ()>) {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let free = LANES.iter().enumerate().find_map(|(lane, held)| match held.try_lock() {
        Ok(held) => Some((lane, held)),
        Err(TryLockError::Poisoned(held)) => Some((lane, held.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    });
    free.unwrap_or_else(|| {
        let lane = NEXT.fetch_add(1, Ordering::Relaxed) % LANES.len();
        (lane, LANES[lane].lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// This thread, and what it starts, computes on one core. PyTorch's threads wait for each other in loops: two on a core that something
/// else computes on take many times as long.
fn on_a_core_of_its_own(lane: usize) {
    static ALL: OnceLock<CpuSet> = OnceLock::new();
    let all = ALL.get_or_init(|| sched_getaffinity(None).unwrap());
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| all.is_set(*core)).collect();
    let mut mine = CpuSet::new();
    mine.set(cores[lane % cores.len()]);
    sched_setaffinity(None, &mine).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The names of the two fused regions: of the gate and of the norm.
fn regions(profile: &Value) -> BTreeMap<&'static str, String> {
    let mut names = BTreeMap::new();
    for region in profile["captured"]["regions"].as_array().unwrap() {
        let has = |operator: &str| region["operators"].as_array().unwrap().iter().any(|one| one == operator);
        if region["kind"] == "fusible" {
            let which = if has("rsqrt") { "norm" } else { "gate" };
            assert_eq!(names.insert(which, region["name"].as_str().unwrap().to_owned()), None);
        }
    }
    assert_eq!(names.keys().copied().collect::<Vec<_>>(), ["gate", "norm"]);
    names
}

const START: &str = "
import json, sys, torch
sys.path.insert(0, '.'); sys.path.insert(0, 'model')
import model as user
torch.manual_seed(5)
net, x = user.Model().eval(), user.get_inputs()[0]
with torch.no_grad():
    want = net(x)
import my_kernels
off = lambda y, r: float((y - r).abs().max())
called = lambda: sum(my_kernels.status()['called'].values())
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_model_goes_from_its_profile_to_a_package_that_torch_compile_uses() {
    let Some(place) = Place::new() else { return };
    let profile: Value =
        serde_json::from_str(&place.said(&["profile", "model", "--json", "--write", "regions"])).unwrap();
    let names = regions(&profile);
    let table = profile["captured"]["regions"].as_array().unwrap();
    assert!(table.iter().any(|it| it["kind"] == "library" && it["calls"] == 2), "two products of one size are one row");
    assert!(table.iter().any(|it| it["kind"] == "joined"));
    assert!(profile["captured"]["compiled_us"].as_f64().unwrap() > 0.0);

    std::fs::create_dir(place.path(OF_MINE)).unwrap();
    for (which, name) in &names {
        let (body, cols) = if *which == "norm" { (NORM, WIDTH) } else { (GATE, HIDDEN) };
        let body = body.replace("NAME", name).replace("ROWS_OF_IT", ROWS).replace("COLS_OF_IT", cols);
        std::fs::write(place.path(&format!("{OF_MINE}/{name}.c")), body).unwrap();
        let region = place.path(&format!("regions/{name}"));
        let python = std::fs::read_to_string(region.join(format!("{name}.py"))).unwrap();
        assert!(python.contains("def reference(") && python.contains("# model.py:"), "{python}");
        assert!(std::fs::read_to_string(region.join(format!("{name}.c"))).unwrap().contains("To be written"));
    }
    let only = names.values().cloned().collect::<Vec<_>>().join(",");
    let run = place.said(&["run", "model", "--kernels", OF_MINE, "--only", &only, "--seed", "7", "--budget", "5m"]);
    // What was kept is measured in the whole.
    assert!(!run.contains("OUTPUTS DIFFER") && !run.contains("could not be measured"), "{run}");
    if run.contains("keep    ") {
        // With both kernels alone it may be slower, and then nothing is left to be measured.
        let told = ["patched and compiled", "is left out of what is exported"].iter().any(|words| run.contains(words));
        assert!(run.contains("verifying the whole model") && told, "{run}");
    }
    // The file that a target starts from is its baseline, or its first keep where it beats PyTorch: which, is the machine's.
    for name in names.values() {
        let started = ["base    ", "keep    "].iter().any(|row| run.contains(&format!("{row}{name}")));
        assert!(started, "{run}");
    }

    let made = place.said(&["export", "--dir", "model", "-o", "my_kernels", "--all"]);
    assert!(made.contains("wrote my_kernels (2 kernels"), "{made}");

    placed_under_torch_compile(&place);
    patched_without_it(&place);
    a_changed_file_is_never_run(&place);

    let verified: Value =
        serde_json::from_str(&place.said(&["verify", "my_kernels", "--model", "model", "--json", "--sessions", "1"]))
            .unwrap();
    let calls = &verified["called"]["patched and compiled"];
    assert!(names.values().all(|name| calls[name].as_u64().unwrap() > 0), "{verified}");
    assert_eq!(verified["second_shape"]["still"], true, "{verified}");
    assert!(verified["nan"].as_array().unwrap().iter().all(|it| it["wrong"].is_null()), "{verified}");

    let again = place.said(&["recheck", "my_kernels"]);
    assert_eq!(again.matches("correct again").count(), 2, "{again}");

    guilty::the_kernel_that_is_wrong_is_named(&place, &names);
}

fn placed_under_torch_compile(place: &Place) {
    let (seen, said) = place.python(&format!(
        "{START}
my_kernels.enable()
compiled = torch.compile(net)
with torch.no_grad():
    first = off(compiled(x), want)
    calls = called()
    other = off(compiled(x[:40]), want[:40])
    between = called()
    again = off(compiled(x), want)
    back = called()
compiled(x).sum().backward()
trained = called()
grad = net.weight.grad is not None
my_kernels.disable()
with torch.no_grad():
    torch.compile(net)(x)
print(json.dumps(dict(first=first, calls=calls, other=other, between=between, again=again, back=back, trained=trained, grad=grad,
    ended=called(), placed=my_kernels.status()['placed'])))
"
    ));
    let number = |name: &str| seen[name].as_f64().unwrap();
    assert!(number("first") < 1e-4 && number("other") < 1e-4 && number("again") < 1e-4, "{seen}");
    // Each once; the other shape the original way, which is said; the first shape on the kernels again; training and `disable` without.
    assert_eq!([number("calls"), number("between"), number("back")], [2.0, 2.0, 4.0], "{seen}");
    assert_eq!([number("trained"), number("ended")], [4.0, 4.0], "{seen}");
    assert_eq!(seen["grad"], true);
    assert_eq!(seen["placed"].as_object().unwrap().len(), 2, "{seen}");
    assert!(said.contains("2 of 2 kernels are in this graph") && said.contains("that were not judged"), "{said}");
    assert!(said.contains("a graph that wants gradients is left as it is"), "{said}");
}

fn patched_without_it(place: &Place) {
    let (seen, said) = place.python(&format!(
        "{START}
my_kernels.patch(net)
with torch.no_grad():
    first, other, wide = off(net(x), want), off(net(x[:40]), want[:40]), None
    calls = called()
with_grad = off(net(x), want)
same = called()
my_kernels.unpatch(net)
with torch.no_grad():
    net(x)
ended, left, before = called(), 'forward' in vars(net), my_kernels.status()['called']
one = my_kernels.KERNELS[1]['name']
my_kernels.patch(net, only=[one])
with torch.no_grad():
    net(x)
alone = [name for name, count in my_kernels.status()['called'].items() if count > before[name]] == [one]
try:
    my_kernels.enable(only='nobody')
    unknown = ''
except ValueError as error:
    unknown = str(error)
import copy
my_kernels.unpatch(net)
net.forward = own = lambda given: type(net).forward(net, given)
my_kernels.unpatch(my_kernels.patch(net))
kept = net.forward is own
del net.forward
twin = copy.deepcopy(my_kernels.patch(net))
with torch.no_grad():
    net(x)
    for weight in twin.parameters():
        weight.mul_(0.5)
    before = sum(my_kernels.status()['called'].values())
    halved = twin(x)
    by_kernels = sum(my_kernels.status()['called'].values()) > before
    twin_off, far = off(halved, my_kernels.unpatch(twin)(x)), off(halved, want)
print(json.dumps(dict(first=first, other=other, calls=calls, with_grad=with_grad, same=same, ended=ended, left=left, alone=alone,
    unknown=unknown, kept=kept, by_kernels=by_kernels, twin=twin_off, far=far)))
"
    ));
    let number = |name: &str| seen[name].as_f64().unwrap();
    assert!(number("first") < 1e-4 && number("other") < 1e-4 && number("with_grad") < 1e-4, "{seen}");
    assert_eq!([number("calls"), number("same"), number("ended")], [2.0; 3], "{seen}");
    assert_eq!(seen["left"], false);
    assert_eq!(seen["alone"], true, "{seen}");
    assert!(seen["unknown"].as_str().unwrap().contains("has no kernel nobody"), "{seen}");
    assert!(said.contains("where gradients are wanted"), "{said}");
    assert_eq!(seen["kept"], true, "a model's own `forward` comes back: {seen}");
    assert_eq!(seen["by_kernels"], true, "{seen}");
    assert!(number("twin") < 1e-4 && number("far") > 1e-2, "a copy computes with its own weights: {seen}");
}

fn a_changed_file_is_never_run(place: &Place) {
    let folder = place.path("my_kernels/build/torch-cpu");
    let plans: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("plans.json")).unwrap()).unwrap();
    let image = folder.join(plans["kernels"][0]["image"]["path"].as_str().unwrap());
    let bytes = std::fs::read(&image).unwrap();
    std::fs::write(&image, [&bytes[..], b"more"].concat()).unwrap();
    let (seen, said) = place.python(&format!(
        "{START}
my_kernels.enable()
with torch.no_grad():
    first = off(torch.compile(net)(x), want)
print(json.dumps(dict(first=first, calls=called(), unusable=my_kernels.status()['unusable'])))
"
    ));
    std::fs::write(&image, bytes).unwrap();
    assert!(seen["first"].as_f64().unwrap() < 1e-4 && seen["calls"] == 1, "{seen}");
    assert!(said.contains("is left out") && said.contains("digest"), "{said}");
}

const MLP: &str = "
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(64, 176, bias=False), nn.Linear(64, 176, bias=False), nn.Linear(176, 64, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def get_inputs():
    return [torch.randn(3, 32, 64)]
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn both_halves_of_an_mlp_are_one_target_that_begins_with_the_kernel_that_ships() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), MLP).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let rows = profile["captured"]["regions"].as_array().unwrap().iter();
    let joined: Vec<&Value> = rows.filter(|row| row["kind"] == "joined" && !row["shipped"].is_null()).collect();
    assert_eq!(joined.len(), 1, "{profile}");
    assert_eq!(joined[0]["shipped"]["op"], "fused_mlp");
    let whole = joined[0]["name"].as_str().unwrap();
    let run = place.begun(&[whole]);
    assert!(run.contains(&format!("base    {whole}")) || run.contains(&format!("keep    {whole}")), "{run}");

    exported_and_called_once(&place, &[whole]);
}

/// The run's package has kernels of these names, and torch.compile calls each in a pass with the same result.
fn exported_and_called_once(place: &Place, names: &[&str]) {
    let made = place.said(&["export", "--dir", "model", "-o", "my_kernels", "--all"]);
    assert!(made.contains("wrote my_kernels"), "{made}");
    let (seen, said) = place.python(&format!(
        "{START}
my_kernels.enable()
with torch.no_grad():
    first = off(torch.compile(net)(x), want)
print(json.dumps(dict(first=first, called=my_kernels.status()['called'])))
"
    ));
    let called = names.iter().all(|name| seen["called"][name] == 1);
    assert!(seen["first"].as_f64().unwrap() < 1e-4 && called, "{seen} {said}");
}

/// Heads from three products, heads from one, and a call that Inductor hands on like them.
const ATTENTION: &str = "
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(96, 96) for _ in range(3))
        self.qkv = nn.Linear(96, 288)

    def heads(self, x):
        return x.view(2, 40, 6, 16).transpose(1, 2)

    def forward(self, x):
        mixed = scaled_dot_product_attention(*(self.heads(one(x)) for one in (self.q, self.k, self.v)), is_causal=True)
        q, k, v = (self.heads(one) for one in self.qkv(mixed.transpose(1, 2).reshape(2, 40, 96)).split(96, dim=2))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.sort(mixed, dim=-1).values

def get_inputs():
    return [torch.randn(2, 40, 96)]
";

/// The name of the joined region that gives so many tensors.
fn joined_with_results(profile: &Value, count: usize) -> &str {
    let mut rows = profile["captured"]["regions"].as_array().unwrap().iter();
    let row = rows.find(|row| row["kind"] == "joined" && row["outputs"].as_array().unwrap().len() == count);
    row.unwrap_or_else(|| panic!("no region gives {count} tensors: {profile}"))["name"].as_str().unwrap()
}

#[test]
#[ignore = "the full suite: .ci/run"]
fn everything_that_inductor_calls_is_a_row_and_attention_begins_with_the_kernel_that_ships() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), ATTENTION).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let calls = |name: &str| -> Vec<&Value> {
        let rows = profile["captured"]["regions"].as_array().unwrap().iter();
        rows.filter(|row| row["kind"] == "library" && row["name"].as_str().unwrap().starts_with(name)).collect()
    };
    assert_eq!(calls("sort").len(), 1, "{profile}");
    let attention = calls("attention");
    assert_eq!(attention.len(), 2, "{profile}");
    assert!(attention.iter().all(|row| row["us"].as_f64().unwrap() > 0.0 && row["why_not"].is_null()), "{profile}");
    let with_inputs =
        |count: usize| *attention.iter().find(|row| row["inputs"].as_array().unwrap().len() == count).unwrap();
    let (apart, side_by_side) = (with_inputs(3), with_inputs(1));
    for row in [apart, side_by_side] {
        assert_eq!(row["shipped"]["op"], "flash_attention");
        let symbols =
            [("B", 2), ("H", 6), ("H_kv", 6), ("S_q", 40), ("S_kv", 40), ("D", 16), ("bshd", 1), ("causal", 1)];
        assert!(symbols.iter().all(|(symbol, size)| row["shipped"]["symbols"][symbol] == *size), "{profile}");
    }
    assert!(apart["shipped"]["lets"].is_null(), "{profile}");
    let lets = [("Q_HEADS", 18), ("Q_FIRST", 0), ("K_HEADS", 18), ("K_FIRST", 6), ("V_HEADS", 18), ("V_FIRST", 12)];
    assert!(lets.iter().all(|(name, value)| side_by_side["shipped"]["lets"][name] == *value), "{profile}");
    // The products that give the first one's heads are of one tensor: a region with three results.
    let three = joined_with_results(&profile, 3);
    let kernel = THREE.replace("NAME", three);
    std::fs::create_dir(place.path(OF_MINE)).unwrap();
    std::fs::write(place.path(&format!("{OF_MINE}/{three}.c")), kernel).unwrap();
    let names = [apart["name"].as_str().unwrap(), side_by_side["name"].as_str().unwrap(), three];
    place.begun(&names);
    exported_and_called_once(&place, &names);
}

#[test]
fn what_cannot_be_a_model_is_told_in_a_sentence() {
    let Some(place) = Place::new() else { return };
    let refusal = |model: &str| {
        std::fs::write(place.path("model/model.py"), model).unwrap();
        let output = place.warpsmith(&["profile", "model"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        text(&output.stderr)
    };
    assert!(refusal("import torch\n").contains("has no `Model`"));
    let broken = format!("{MODEL}\ndef get_inputs():\n    return [1 / 0]\n");
    let said = refusal(&broken);
    assert!(said.contains("model.py, line") && said.contains("ZeroDivisionError: division by zero"), "{said}");
    let pass = place.warpsmith(&["profile", "model", "--seq", "5"]);
    assert!(text(&pass.stderr).contains("get_inputs()"), "{pass:?}");
}
