//! Weights of eight bits and masks: a product with what widens its weights before and a mask behind, where Inductor itself would call a
//! library by a pattern of its own.

use serde_json::{Value, json};

use crate::Place;

const MODEL: &str = "
import torch
from torch import nn
from torch.nn import functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('weight', torch.randint(-128, 128, (48, 64), dtype=torch.int8))
        self.register_buffer('other', torch.randint(-128, 128, (48, 64), dtype=torch.int8))
        self.scale = nn.Parameter(torch.rand(48) * 0.01)

    def forward(self, x, kept):
        y = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return torch.where(kept[:, :, None], torch.tanh(y), 0.0), F.linear(x.neg(), self.other.to(x.dtype)) * self.scale

def get_inputs():
    return [torch.randn(8, 16, 64), torch.rand(8, 16) < 0.8]
";

const KERNEL: &str = r#"/*---
op = "NAME"
dtypes = ["bf16"]
arch = ["native"]
---*/

struct job {
    const uint8_t *kept;
    const T *x, *scale;
    const int8_t *weight;
    T *out;
};

static void rows(int64_t begin, int64_t end, void *context) {
    const struct job *job = context;
    float scale[48], x[64], y[48];
    ws_load_n(scale, job->scale, 48);
    for (int64_t row = begin; row < end; row++) {
        ws_load_n(x, job->x + row * 64, 64);
        for (int64_t column = 0; column < 48; column++) {
            float sum = 0;
            for (int64_t k = 0; k < 64; k++) sum += x[k] * (float)job->weight[column * 64 + k];
            y[column] = job->kept[row] ? tanhf(sum * scale[column]) : 0;
        }
        ws_store_n(job->out + row * 48, y, 48);
    }
}

void NAME(const uint8_t *x0, const T *x1, const int8_t *w0, const T *w1, T *out) {
    struct job job = {x0, x1, w1, w0, out};
    ws_parallel(128, rows, &job);
}
"#;

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_product_takes_along_what_widens_its_weights_and_is_placed_before_inductors_own_pattern_for_it() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), MODEL).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--dtype", "bf16", "--json"])).unwrap();
    let all = profile["captured"]["regions"].as_array().unwrap();
    let with_the_mask = |it: &&Value| it["kind"] == "joined" && it["parts"].as_array().unwrap().len() == 3;
    let whole = all.iter().find(with_the_mask).unwrap();
    assert_eq!(whole["why_not"], Value::Null, "{profile}");
    let types: Vec<&str> = whole["inputs"].as_array().unwrap().iter().map(|it| it["dtype"].as_str().unwrap()).collect();
    assert_eq!(types, ["bool", "bfloat16", "int8", "bfloat16"]);
    assert!(
        all.iter().any(|it| it["why_not"].as_str().is_some_and(|why| why.contains("whole numbers alone"))),
        "{profile}"
    );

    let name = whole["name"].as_str().unwrap();
    std::fs::create_dir(place.path("mine")).unwrap();
    std::fs::write(place.path(&format!("mine/{name}.c")), KERNEL.replace("NAME", name)).unwrap();
    let run = ["run", "model", "--dtype", "bf16", "--kernels", "mine", "--only", name, "--seed", "7"];
    // Whether it is faster is the machine's.
    place.said(&[&run[..], &["--budget", "20s", "--examination", "2s"]].concat());
    // What there is to beat is the faster of both: with the pattern, as torch.compile comes, and without, as the model has it around a kernel.
    let judged: Value = serde_json::from_str(&place.said(&["show", "1", "--json", "--dir", "model"])).unwrap();
    let ways: Vec<&str> =
        judged["baselines"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(ways, ["torch.compile", "torch.compile without its patterns"], "{judged}");
    assert!(judged["baselines"].as_array().unwrap().iter().all(|it| it["us"].as_f64() > Some(0.0)), "{judged}");
    let made = place.said(&["export", "--dir", "model", "-o", "my_kernels", "--all"]);
    assert!(made.contains("wrote my_kernels (1 kernels"), "{made}");
    let (seen, said) = place.python(
        "
import json, sys, torch
sys.path.insert(0, '.'); sys.path.insert(0, 'model')
import model as user, my_kernels
torch.manual_seed(1)
net, (x, kept) = user.Model().eval().to(torch.bfloat16), user.get_inputs()
x = x.to(torch.bfloat16)
called = lambda: sum(my_kernels.status()['called'].values())
matched = lambda: torch._dynamo.utils.counters['inductor']['woq_matcher_count']
near = lambda ours, right: all(torch.allclose(one, other, 0.02, 0.02) for one, other in zip(ours, right))
plans = next(module for name, module in sys.modules.items() if name.startswith('my_kernels') and name.endswith('.plans')).PLANS
found = []
with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
    want = net(x, kept)
    def tried(y):
        found.append([near(y, want), called()])
    my_kernels.patch(net)
    tried(net(x, kept))
    my_kernels.unpatch(net)
    # What the kernel leaves is Inductor's pattern's, unless the pass was longer with it.
    for plans['without_lowerings'] in (False, True):
        my_kernels.enable()
        compiled = torch.compile(net, dynamic=False)
        before = matched()
        tried(compiled(x, kept))
        found.append(matched() - before)
        # Another shape, which is Inductor's as it always was.
        found.append(near(compiled(x[:4], kept[:4]), [one[:4] for one in want]))
        found.append([called(), matched() - before])
        my_kernels.disable()
    torch._dynamo.reset()
    before = matched()
    found.append(near(torch.compile(net)(x, kept), want))
    found.append([called(), matched() - before])
print(json.dumps(found))
",
    );
    let with_patterns = json!([[true, 2], 1, true, [2, 3]]);
    let without = json!([[true, 3], 0, true, [3, 2]]);
    let as_it_was = json!([true, [3, 2]]);
    let all = [json!([[true, 1]]), with_patterns, without, as_it_was];
    assert_eq!(seen, json!(all.iter().flat_map(|it| it.as_array().unwrap()).collect::<Vec<_>>()), "{said}");
}
