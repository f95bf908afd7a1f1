//! Attention whose mask the model makes from sizes alone, as transformers does.

use std::collections::BTreeSet;

use serde_json::Value;
use warpsmith::torch::model::{CAPTURE, REGIONS};

use crate::{OF_MINE, Place, START, exported_and_called_once};

/// Nothing is hidden, in a way that few of PyTorch's kernels take; what comes later, and in another sequence, is hidden; and the same as two products. Something
/// else reads what makes the masks.
const MODEL: &str = "
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.ModuleList(nn.Linear(96, 96) for _ in range(3)) for _ in range(3))
        self.norm = nn.LayerNorm(96)

    def heads(self, x):
        return x.view(2, 40, 6, 16).transpose(1, 2)

    def forward(self, x):
        at = torch.arange(x.shape[1], device=x.device)
        all_ = (at[:, None] >= 0).expand(2, 1, 40, 40)
        places = at[None]
        packed = (torch.diff(places, prepend=places[:, :1] - 1) != 1).cumsum(-1)
        first, queries, keys = torch.arange(1)[:, None, None, None], at[None, None, :, None], at[None, None, None, :]
        before = (keys <= queries) & (packed[first, queries] == packed[first, keys])
        mixed = scaled_dot_product_attention(*(self.heads(one(x)) for one in self.first), attn_mask=all_)
        x = torch.sort(mixed.transpose(1, 2).reshape(2, 40, 96), dim=-1).values
        mixed = scaled_dot_product_attention(*(self.heads(one(x)) for one in self.second), attn_mask=before)
        x = torch.sort(mixed.transpose(1, 2).reshape(2, 40, 96), dim=-1).values
        q, k, v = (self.heads(one(x)) for one in self.third)
        scores = (q * 0.5) @ (k * 0.5).transpose(2, 3)
        mixed = torch.softmax(scores.masked_fill(~before, float('-inf')), -1) @ v
        x = torch.sort(mixed.transpose(1, 2).reshape(2, 40, 96), dim=-1).values
        return self.norm(x) * (1 + places[:, :, None] / 40)

def get_inputs():
    return [torch.randn(2, 40, 96)]
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_mask_that_sizes_alone_make_is_made_by_who_reads_it_and_attention_begins_with_the_kernel_that_ships() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), MODEL).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let rows = || profile["captured"]["regions"].as_array().unwrap().iter();
    let attention: Vec<&Value> = rows().filter(|row| row["shipped"]["op"] == "flash_attention").collect();
    let hides = |row: &&Value| row["shipped"]["symbols"]["causal"].as_i64().unwrap();
    assert_eq!(attention.len(), 3, "{profile}");
    assert_eq!(attention.iter().map(hides).sum::<i64>(), 2, "{profile}");
    assert!(attention.iter().all(|row| row["inputs"].as_array().unwrap().len() == 3), "no mask goes in: {profile}");
    let scale = |row: &Value| row["shipped"]["scalars"]["scale"].as_f64().unwrap();
    assert!(attention.iter().all(|row| scale(row) == 0.25), "{profile}");
    let source = attention[0]["source"].as_str().unwrap();
    assert!(source.contains("def masks_of_the_pass(device, kind):"), "{source}");
    let makes_masks = |row: &&Value| row["why_not"].as_str().is_some_and(|why| why.starts_with("it takes no tensor"));
    assert!(rows().any(|row| makes_masks(&row)), "making them is a row of its own: {profile}");

    std::fs::create_dir(place.path(OF_MINE)).unwrap();
    let names: Vec<&str> = attention.iter().map(|row| row["name"].as_str().unwrap()).collect();
    place.begun(&names);
    exported_and_called_once(&place, &names);
    patched_in_large_steps(&place, names.len());
}

/// Keys that nobody sees depend on what comes in: there a number far below is added, or stands in place of those that the model has learnt. Such numbers as they lie, and turned;
/// in PyTorch's attention and as two products.
const GIVEN: &str = "
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.ModuleList(nn.Linear(96, 96) for _ in range(3)) for _ in range(3))
        self.learnt, self.turned = nn.Parameter(torch.randn(6, 40, 40)), nn.Parameter(torch.randn(40, 40, 6))
        self.norm = nn.LayerNorm(96)

    def heads(self, x):
        return x.view(2, 40, 6, 16).transpose(1, 2)

    def forward(self, x):
        at = torch.arange(x.shape[1], device=x.device)
        seen = (x[:, :, 0] < 1)[:, None, None, :] & (at[:, None] >= 0)
        hides = torch.where(seen, 0.0, -65536.0).to(x.dtype)
        x = x + hides.mean() * 1e-9
        mixed = scaled_dot_product_attention(*(self.heads(one(x)) for one in self.first), attn_mask=hides)
        x = torch.sort(mixed.transpose(1, 2).reshape(2, 40, 96), dim=-1).values
        chosen = torch.sort(x[:, :, 28:68] < 0, dim=-1).values
        mixed = scaled_dot_product_attention(*(self.heads(one(x)) for one in self.second), attn_mask=torch.where(chosen[:, None], self.learnt, torch.finfo(x.dtype).min))
        x = torch.sort(mixed.transpose(1, 2).reshape(2, 40, 96), dim=-1).values
        q, k, v = (self.heads(one(x)) for one in self.third)
        scores = (q * 0.5) @ (k * 0.5).transpose(2, 3) + self.turned.permute(2, 0, 1)
        mixed = torch.softmax(scores, -1) @ v
        x = torch.sort(mixed.transpose(1, 2).reshape(2, 40, 96), dim=-1).values
        return self.norm(x)

def get_inputs():
    return [torch.randn(2, 40, 96)]
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_added_to_scores_is_read_by_the_kernel_that_ships_however_it_lies_and_kept_kernels_are_called() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), GIVEN).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let rows = || profile["captured"]["regions"].as_array().unwrap().iter();
    let attention: Vec<&Value> = rows().filter(|row| row["shipped"]["op"] == "flash_attention").collect();
    let of = |row: &Value, name: &str| row["shipped"]["tensors"][name].is_string();
    assert!(attention.len() == 4 && attention.iter().all(|row| of(row, "BIAS_TENSOR")), "{profile}");
    assert_eq!(attention.iter().filter(|row| of(row, "SEEN_TENSOR")).count(), 1, "{profile}");
    let steps: BTreeSet<i64> = attention.iter().filter_map(|row| row["shipped"]["lets"]["BIAS_K"].as_i64()).collect();
    assert_eq!(steps, BTreeSet::from([1, 6]), "{profile}");
    let hides = |row: &&Value| {
        let inputs = row["described"]["inputs"].as_array().unwrap();
        inputs.iter().any(|input| input["figures"]["hidden"] == -65536.0)
    };
    assert_eq!(attention.iter().filter(|row| hides(row)).count(), 1, "{profile}");

    std::fs::create_dir(place.path(OF_MINE)).unwrap();
    // One of them is a part of another.
    let whole = |row: &&&Value| {
        row["within"].as_array().unwrap().iter().all(|key| attention.iter().all(|one| one["key"] != *key))
    };
    let names: Vec<&str> = attention.iter().filter(whole).map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3, "{profile}");
    place.begun(&names);
    exported_and_called_once(&place, &names);
}

/// Without torch.compile the kernels are called, what has none is run as the model has it, and no mask is made for nobody.
fn patched_in_large_steps(place: &Place, kernels: usize) {
    let (seen, said) = place.python(&format!(
        "{START}
my_kernels.patch(net)
with torch.no_grad():
    patched = off(net(x), want)
    with torch.profiler.profile() as ran:
        net(x)
names = [one.key for one in ran.key_averages()]
print(json.dumps(dict(patched=patched, status=my_kernels.status(), whole='aten::native_layer_norm' in names, small='aten::var_mean' in names, made='aten::cumsum' in names)))
"
    ));
    assert!(seen["patched"].as_f64().unwrap() < 1e-4, "{seen} {said}");
    assert_eq!(
        seen["status"]["placed"].as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>(),
        kernels as u64
    );
    assert_eq!((&seen["whole"], &seen["small"], &seen["made"]), (&true.into(), &false.into(), &false.into()), "{seen}");
}

const PROGRAM: &str = "
import json, torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import scaled_dot_product_attention
import regions

def attend(q, k, v):
    places = torch.arange(16)[None]
    packed = torch.cat((places[:, :1] - 1, places), -1).cumsum(-1)
    mask = (places[:, None, None, :] <= places[:, None, :, None]) & (packed[:, None, None, 1:] >= packed[:, None, 1:, None])
    return scaled_dot_product_attention(q, k, v, attn_mask=mask), k * places[..., None]

def keys(turned):
    gm = make_fx(attend, tracing_mode='fake')(*(torch.randn(1, 2, 16, 8) for _ in range(3)))
    for node in gm.graph.nodes:
        node.users = dict(reversed(node.users.items())) if turned else node.users
    found = [one for part in regions.cut(gm) for one in part]
    return [one.key for one in found if one.masks], [len(one.inputs) for one in found if one.masks]

print(json.dumps([keys(False), keys(True)]))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_mask_has_one_key_whoever_came_to_read_its_views_first() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("regions.py"), REGIONS).unwrap();
    let (seen, _) = place.python(PROGRAM);
    assert_eq!(seen[0][1], serde_json::json!([3]), "the mask is made inside: {seen}");
    assert_eq!(seen[0], seen[1]);
}

const SOFTMAX: &str = "
import json, sys, torch
from torch.fx.experimental.proxy_tensor import make_fx
import capture
from torch._inductor.inductor_prims import prepare_softmax_online

def rows(x):
    largest, sums = prepare_softmax_online(x, -1)
    return torch.exp(x - largest) / sums

gm = make_fx(rows, tracing_mode='fake')(torch.randn(8, 32))
region = capture.cut(gm)[0][0]
text, _ = capture.written(region, 'rows', [], ['x0'], [None])
ask = '''
import json, sys, torch
written = {}
exec(sys.stdin.read(), written)
x = torch.randn(8, 32, dtype=torch.float64)
print(json.dumps((written['reference'](x) - torch.softmax(x, -1)).abs().max().item()))
'''
import subprocess
print(subprocess.run([sys.executable, '-c', ask], input=text, capture_output=True, text=True, check=True).stdout)
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_the_compiler_alone_knows_can_be_evaluated_where_nothing_is_compiled() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("capture.py"), CAPTURE).unwrap();
    let (off, _) = place.python(SOFTMAX);
    assert!(off.as_f64().unwrap() < 1e-12, "{off}");
}
