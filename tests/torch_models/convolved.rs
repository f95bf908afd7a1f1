//! Convolutions, and what lies between them: torch.compile runs them channels-last, whatever the model says.

use serde_json::{Value, json};
use warpsmith::torch::model::CAPTURE;

use crate::Place;

const MODEL: &str = "
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.Conv2d(16, 8, 3, padding=1, bias=False)
        self.scale, self.shift = nn.Parameter(torch.rand(16) + 0.5), nn.Parameter(torch.randn(16))

    def forward(self, x):
        y = self.first(x) * self.scale[:, None, None] + self.shift[:, None, None]
        return self.second(torch.relu(y))

def get_inputs():
    return [torch.randn(4, 8, 24, 24)]
";

/// A scale and a shift of each channel, and what is above zero.
const KERNEL: &str = r#"/*---
op = "NAME"
dtypes = ["f32"]
arch = ["native"]
---*/

struct job {
    const T *scale, *x, *shift;
    T *out;
};

static void places(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    for (int64_t at = begin * 16; at < end * 16; at += 16)
        for (int64_t c = 0; c < 16; c++) {
            const float v = job->x[at + c] * job->scale[c] + job->shift[c];
            job->out[at + c] = v > 0 ? v : v != v ? v : 0;
        }
}

void NAME(const T *w0, const T *x0, const T *w1, T *out) {
    struct job job = {w0, x0, w1, out};
    ws_parallel(4 * 24 * 24, places, &job);
}
"#;

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_lies_between_convolutions_is_judged_as_it_lies_in_memory_there_and_finds_its_place_in_the_model_as_it_is_written()
 {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), MODEL).unwrap();
    let profile: Value =
        serde_json::from_str(&place.said(&["profile", "model", "--json", "--write", "regions"])).unwrap();
    let all = profile["captured"]["regions"].as_array().unwrap();
    let fused = all.iter().find(|it| it["kind"] == "fusible").unwrap();
    assert_eq!(
        fused["inputs"][1],
        json!({"shape": [4, 16, 24, 24], "stride": [9216, 1, 384, 16], "dtype": "float32", "device": "cpu"})
    );
    assert_eq!(fused["inputs"][1], fused["outputs"][0], "as the next convolution reads it");
    assert!(fused["plain"].is_string() && fused["plain"] != fused["key"], "{fused}");
    // What the model takes lies as the user has it.
    let reads = |stride: Value| all.iter().find(|it| it["kind"] == "library" && it["inputs"][0]["stride"] == stride);
    assert!(reads(json!([4608, 576, 24, 1])).is_some(), "{profile}");
    let second = reads(json!([9216, 1, 384, 16])).unwrap();
    assert_eq!(second["why_not"], Value::Null, "half of its input is zeros, and drawn so");
    let name = |it: &Value| it["name"].as_str().unwrap().to_owned();
    let drawn = std::fs::read_to_string(place.path(&format!("regions/{0}/{0}.toml", name(second)))).unwrap();
    assert!(drawn.contains("dist = \"rectified\""), "{drawn}");

    let name = name(fused);
    std::fs::create_dir(place.path("mine")).unwrap();
    std::fs::write(place.path(&format!("mine/{name}.c")), KERNEL.replace("NAME", &name)).unwrap();
    // Whether it is faster is the machine's.
    place.said(&[
        "run",
        "model",
        "--kernels",
        "mine",
        "--only",
        &name,
        "--seed",
        "7",
        "--budget",
        "20s",
        "--examination",
        "2s",
    ]);
    let made = place.said(&["export", "--dir", "model", "-o", "my_kernels", "--all"]);
    assert!(made.contains("wrote my_kernels (1 kernels"), "{made}");
    let (seen, said) = place.python(
        "
import json, sys, torch
sys.path.insert(0, '.'); sys.path.insert(0, 'model')
import model as user, my_kernels
net, x = user.Model().eval(), user.get_inputs()[0]
called = lambda: sum(my_kernels.status()['called'].values())
found = []
with torch.no_grad():
    want = net(x)
    def tried(y):
        found.append([bool(torch.allclose(y, want, 1e-4, 1e-4)), y.stride() == want.stride(), called()])
    my_kernels.patch(net)
    tried(net(x))
    my_kernels.unpatch(net)
    my_kernels.enable()
    tried(torch.compile(net)(x))
    my_kernels.disable()
    my_kernels.patch(net.to(memory_format=torch.channels_last))
    found.append([bool(torch.allclose(net(x.to(memory_format=torch.channels_last)), want, 1e-4, 1e-4)), called()])
print(json.dumps(found))
",
    );
    // Without torch.compile tensors lie as the model says, which is not what was judged, unless it says so.
    assert_eq!(seen, json!([[true, true, 0], [true, true, 1], [true, 2]]), "{said}");
    assert!(said.contains("1 of 1 kernels are in this graph"), "{said}");
}

const PATCHES: &str = "
import json, torch
from torch.fx.experimental.proxy_tensor import make_fx
import capture

def call_of(x, w, stride, turned=False, dtype=torch.bfloat16):
    bias = torch.zeros(w[0], dtype=dtype)
    program = lambda x, w, bias: torch.ops.aten.convolution.default(x, w, bias, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1)
    given = [torch.zeros(x, dtype=dtype), torch.zeros(w, dtype=dtype), bias]
    if turned:
        given[:2] = [one.to(memory_format=torch.channels_last) for one in given[:2]]
    gm = make_fx(program, tracing_mode='fake')(*given)
    region = capture.cut(gm)[1][0]
    forms = [[dict(name=name, dtype=str(dtype)[6:], shape=capture.formed(one)[1]) for name, one in zip(names, side)] for names, side in zip((['x0', 'w0', 'w1'], ['out']), region.values())]
    return capture.patch_product(*forms, region, 'cuda'), capture.patch_product(*forms, region, 'cpu')

print(json.dumps([
    call_of([2, 3, 32, 64], [40, 3, 16, 16], 16),
    call_of([2, 3, 32, 64], [40, 3, 16, 16], 8),
    call_of([2, 3, 32, 64], [40, 3, 4, 4], 4),
    call_of([2, 3, 32, 64], [40, 3, 16, 16], 16, turned=True),
    call_of([2, 3, 32, 64], [40, 3, 16, 16], 16, dtype=torch.float32),
]))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_convolution_whose_patches_lie_side_by_side_begins_with_the_kernel_that_ships_for_it_on_a_gpu() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("capture.py"), CAPTURE).unwrap();
    let (seen, _) = place.python(PATCHES);
    let call = &seen[0][0];
    let symbols = serde_json::json!({ "B": 2, "C": 3, "H": 32, "W": 64, "O": 40, "KH": 16, "KW": 16 });
    assert_eq!((&call["op"], &call["symbols"]), (&"patch_mm".into(), &symbols), "{seen}");
    assert_eq!(call["tensors"], serde_json::json!({ "x": "x0", "w": "w0", "bias": "w1", "out": "out" }));
    let others = seen.as_array().unwrap().iter().skip(1).all(|one| one[0].is_null());
    assert!(others, "patches that overlap, narrow ones, those whose channels come last, and single precision: {seen}");
    assert!(seen[0][1].is_null(), "a processor has no kernel for it: {seen}");
}
