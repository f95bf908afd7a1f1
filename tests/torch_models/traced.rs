//! Of which part each kernel of a pass is: what torch.compile writes on a processor, and names as a GPU's trace would have them.

use serde_json::json;

use crate::Place;

/// The program that takes a model apart, as a module.
const CAPTURE: &str = concat!(
    include_str!("../../src/torch/model/partition.py"),
    "\n\n",
    include_str!("../../src/torch/model/regions.py"),
    "\n\n",
    include_str!("../../src/torch/model/source.py"),
    "\n\n",
    include_str!("../../src/torch/model/load.py"),
    "\n\n",
    include_str!("../../src/torch/model/trace.py"),
    "\n\n",
    include_str!("../../src/torch/model/capture.py"),
);

const PROGRAM: &str = "
import json, torch
import taken

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, x):
        return x + torch.tanh(self.b(torch.nn.functional.mish(self.a(x)))) * x.mean(-1, keepdim=True)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x)

model, x = Model().eval(), torch.randn(8, 16)
graphs = taken.capture(model, (x,))
torch._dynamo.reset()
with taken.noting() as written, torch.no_grad():
    torch.compile(model, dynamic=False)(x)
calls = taken.owned(written, graphs)
regions = {region.key: region.kind for part in graphs[0].cut[:2] for region in part}
ran = []
for name, key in calls:
    ran += [name] if name else ['gemm', 'splitKreduce'] if 'gemm' not in ran[-1:] else ['gemm']
graphs[0].runs = 2
print(json.dumps(dict(
    kinds=[('fusible' if name else 'library') == regions.get(key) for name, key in calls],
    all=set(regions) == {key for _, key in calls},
    libraries=sum(name is None for name, _ in calls),
    same=taken.aligned(calls, ran, {}) == [key for name, key in calls for _ in range(1 if name else 2)],
    several_runs=taken.owned(written, graphs),
    other_graphs=taken.owned(written, []),
)))
";

#[test]
#[ignore = "full suite"]
fn what_torch_compile_calls_is_of_the_parts_that_the_capture_has() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("taken.py"), CAPTURE).unwrap();
    let (seen, _) = place.python(PROGRAM);
    assert_eq!(seen["libraries"], json!(4), "{seen}");
    assert!(seen["kinds"].as_array().unwrap().iter().all(|kind| kind == true), "{seen}");
    assert_eq!((&seen["all"], &seen["same"]), (&json!(true), &json!(true)), "{seen}");
    assert_eq!((&seen["several_runs"], &seen["other_graphs"]), (&json!(null), &json!(null)), "{seen}");
}

const NAMES: &str = "
import json
import taken

calls = [(None, 'q'), (None, 'k'), ('soft', 's'), (None, 'o'), ('soft', 's'), ('norm', 'n'), (None, 'last')]
of = lambda names, counts: taken.aligned(calls, names.split(), counts)
ran = [('soft', 2.0), ('gemm', 5.0), ('soft', 3.0), ('copy', 1.0)]
print(json.dumps(dict(
    by_itself=of('a b c soft d e soft norm f g', {'q': 2, 'k': 1.0}),
    nobody_knows=of('a b c soft d soft norm f', {'q': 1, 'k': 1}),
    one_each=of('a b soft d soft norm f', {'q': 4, 'k': 2}),
    nothing_there=of('soft soft norm', {}),
    others=of('a b soft soft x norm f', {'q': 1, 'k': 1}),
    missing=of('a b soft norm f', {}),
    out_of_turn=of('a b soft norm soft f', {}),
    shared=taken.shared(ran, ['s', 'o', 's', None]).get('s'),
    left=list(taken.shared(ran, ['s', 'o', 's', None])[None][0].values()),
)))
";

#[test]
#[ignore = "full suite"]
fn a_librarys_kernels_are_of_the_call_between_two_kernels_that_are_known_or_of_nobody() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("taken.py"), CAPTURE).unwrap();
    let (seen, _) = place.python(NAMES);
    assert_eq!(seen["by_itself"], json!(["q", "q", "k", "s", "o", "o", "s", "n", "last", "last"]), "{seen}");
    assert_eq!(seen["nobody_knows"], json!([null, null, null, "s", "o", "s", "n", "last"]), "{seen}");
    assert_eq!(
        seen["one_each"],
        json!(["q", "k", "s", "o", "s", "n", "last"]),
        "fewer than by itself, and each has one"
    );
    assert_eq!(seen["nothing_there"], json!(["s", "s", "n"]), "{seen}");
    assert_eq!(seen["others"], json!(["q", "k", "s", "s", null, "n", "last"]), "nothing of a library is called there");
    assert_eq!((&seen["missing"], &seen["out_of_turn"]), (&json!(null), &json!(null)), "{seen}");
    assert_eq!(seen["shared"], json!([{"name": "soft", "count": 2, "us": 5.0}]), "{seen}");
    assert_eq!(seen["left"], json!(["copy", 1, 1.0]), "{seen}");
}
