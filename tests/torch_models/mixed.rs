//! A model that is in part what kernels can be had for: graph breaks, an operator of its own, whole numbers, sizes that values tell.

use serde_json::Value;

use crate::Place;

const MIXED: &str = include_str!("models/mixed.py");

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_not_supported_stays_as_it_is_and_what_is_gets_its_kernels() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), MIXED).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let captured = &profile["captured"];
    let has = |one: &Value, word: &str| one.as_str().unwrap().contains(word);
    let breaks = |text: &str| captured["notes"].as_array().unwrap().iter().filter(|note| has(note, text)).count();
    assert_eq!(breaks("graph break at model.py:"), 2, "{captured}");
    let regions = captured["regions"].as_array().unwrap();
    let why =
        |word: &str| regions.iter().filter(|it| it["why_not"].as_str().is_some_and(|why| why.contains(word))).count();
    assert_eq!(why("a tensor of bool"), 1, "the condition of the break: {captured}");
    assert!(why("no floating-point type") >= 2, "whole numbers: {captured}");
    let of_products = regions.iter().filter(|it| it["kind"] == "library" && it["why_not"].is_null());
    let product = of_products.map(|it| it["name"].as_str().unwrap()).next().unwrap();

    let run = place.begun(&[product]);
    assert!(run.contains(&format!("left {product}")), "{run}");
    place.said(&["export", "--dir", "model", "-o", "my_kernels", "--all"]);
    let verified: Value =
        serde_json::from_str(&place.said(&["verify", "my_kernels", "--model", "model", "--json", "--sessions", "1"]))
            .unwrap();
    let outputs = verified["outputs"].as_array().unwrap();
    assert!(outputs.iter().any(|it| it["output"] == 2) && outputs.iter().all(|it| it["wrong"].is_null()), "{verified}");
    assert!(verified["called"]["patched and compiled"][product].as_u64() > Some(0), "{verified}");

    let (seen, said) = place.python(
        "
import json, sys, torch
sys.path.insert(0, '.'); sys.path.insert(0, 'model')
import model as user, my_kernels
net, x = user.Model().eval(), user.get_inputs()[0]
my_kernels.enable()
with torch.no_grad():
    same = [bool(torch.allclose(one.double(), other.double(), 1e-4, 1e-4)) for one, other in zip(net(x), torch.compile(net, dynamic=True)(x))]
print(json.dumps(dict(same=same)))
",
    );
    assert_eq!(seen["same"], serde_json::json!([true, true, true]), "{seen}");
    assert!(said.contains("dynamic shapes"), "{said}");
}

const REPEATED: &str = r#"
import collections, torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        if x.sum() > 1e9:
            return x
        return x * torch.sigmoid(self.up(x))

class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 64, bias=False)
        self.register_buffer("cache", torch.zeros(512, 64))

    def forward(self, x, sequence, place):
        self.cache[3:4] = F.gelu(x[:1]) * 2
        # Which of several packed sequences a token is of, and which row is read: a zero of each.
        seen = torch.where(sequence[:, None] == sequence[None], x @ x.mT, -1e9).softmax(-1)
        return self.out(F.relu(x)) + self.cache[:32], seen, torch.sin(self.out.weight[place])

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = nn.ModuleList(Block() for _ in range(3)), Last()

    def forward(self, x, sequence, place):
        for block in self.blocks:
            x = block(x)
        return self.last(x, sequence, place)

def get_inputs():
    nothing = torch.zeros(32, dtype=torch.int64)
    return collections.UserDict(x=torch.randn(32, 64), sequence=nothing, place=nothing.clone())
"#;

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_graph_that_runs_for_each_block_counts_for_each_and_what_is_no_target_says_why() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("model/model.py"), REPEATED).unwrap();
    let profile: Value = serde_json::from_str(&place.said(&["profile", "model", "--json"])).unwrap();
    let captured = &profile["captured"];
    let regions = captured["regions"].as_array().unwrap();
    let in_blocks = |it: &&Value| it["lines"].to_string().contains("self.up(x)");
    let calls: Vec<_> = regions.iter().filter(in_blocks).map(|it| it["calls"].as_u64().unwrap()).collect();
    assert!(!calls.is_empty() && calls.iter().all(|calls| *calls == 3), "{calls:?} of {captured}");
    let why = |word: &str| regions.iter().any(|it| it["why_not"].as_str().is_some_and(|why| why.contains(word)));
    assert!(why("in place, such as a cache"), "{captured}");
    assert!(why("are zeros, which a draw would lose"), "{captured}");
    // Any number will do to be compared, but not to read a row.
    let named = |name: &str| regions.iter().find(|it| it["name"].as_str().unwrap().starts_with(name)).unwrap();
    assert!(named("eq_where_amax")["why_not"].is_null(), "{captured}");
    assert!(named("index_sin")["why_not"].as_str().unwrap().contains("is 0 everywhere"), "{captured}");
    assert!(captured["notes"].to_string().contains("last.cache; the next one begins with that"), "{captured}");
}
