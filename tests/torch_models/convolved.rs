//! Convolutions, and what lies between them: torch.compile runs them channels-last, whatever the model says.

use serde_json::{Value, json};

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
