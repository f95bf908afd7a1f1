//! Of which part each kernel of a pass is: what torch.compile writes on a processor, and names as a GPU's trace would have them.

use serde_json::json;
use warpsmith::torch::model::CAPTURE;

use crate::Place;

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
counts = dict.fromkeys(regions, 2)
parts, left_over = (
    taken.attributed(written, graphs, [(name, 1.0) for name in names], known)
    for names, known in ((ran, counts), ([*ran, 'triton_x'], counts | {'no kernel': 2}))
)
graphs[0].runs = 2
print(json.dumps(dict(
    kinds=[('fusible' if name else 'library') == regions.get(key) for name, key in calls],
    all=set(regions) == {key for _, key in calls},
    libraries=sum(name is None for name, _ in calls),
    same=taken.aligned(calls, ran, counts) == ([key for name, key in calls for _ in range(1 if name else 2)], set()),
    parts=all(parts[0].values()),
    left_over=left_over,
    several_runs=taken.owned(written, graphs),
    other_graphs=taken.owned(written, []),
)))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_torch_compile_calls_is_of_the_parts_that_the_capture_has() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("taken.py"), CAPTURE).unwrap();
    let (seen, _) = place.python(PROGRAM);
    assert_eq!(seen["libraries"], json!(4), "{seen}");
    assert!(seen["kinds"].as_array().unwrap().iter().all(|kind| kind == true), "{seen}");
    assert_eq!((&seen["all"], &seen["same"]), (&json!(true), &json!(true)), "{seen}");
    assert_eq!(seen["parts"], json!(true), "{seen}");
    // What has no kernel may have the one that is left over.
    assert_eq!(seen["left_over"][0]["no kernel"], json!(null), "{seen}");
    assert_eq!(seen["left_over"][1], json!([{"name": "triton_x", "count": 1, "us": 1.0}]), "{seen}");
    assert_eq!((&seen["several_runs"], &seen["other_graphs"]), (&json!(null), &json!(null)), "{seen}");
}

const NAMES: &str = "
import json
import taken

calls = [(None, 'q'), (None, 'k'), ('soft', 's'), (None, 'o'), ('soft', 's'), ('norm', 'n'), (None, 'last')]
# By themselves all but what is told have two kernels.
of = lambda names, **counts: taken.aligned(calls, names.split(), dict(q=2, k=2, o=2, last=2) | counts)
say = lambda found: [found[0], sorted(found[1])]
ran = [('soft', 2.0), ('gemm', 5.0), ('soft', 3.0), ('copy', 1.0)]
print(json.dumps(dict(
    by_itself=say(of('a b c soft d e soft norm f g', k=1.0)),
    nobody_knows=say(of('a b c soft d soft norm f')),
    one_each=say(of('a b soft d soft norm f', q=4)),
    too_many=say(of('a b soft c d e soft norm f', q=1, k=1)),
    never_alone=say(of('a b soft d soft norm f', q=None)),
    not_said=say(of('a b soft d triton_other soft norm f', q=1, k=1)),
    others=say(of('a b soft d soft x norm f', q=1, k=1)),
    missing=of('a b soft norm f'),
    out_of_turn=of('a b soft norm soft f'),
    averaged=taken.averaged([('a', 1.0), ('b', 2.0), ('a', 3.0), ('b', 4.0)], 2),
    one_lost=taken.averaged([('a', 1.0), ('b', 2.0), ('b', 3.0), ('a', 4.0)], 2),
    shared=taken.shared(ran, ['s', 'o', 's', None]).get('s'),
    left=list(taken.shared(ran, ['s', 'o', 's', None])[None][0].values()),
)))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn a_librarys_kernels_are_of_the_call_between_two_kernels_that_are_known_or_of_nobody() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("taken.py"), CAPTURE).unwrap();
    let (seen, _) = place.python(NAMES);
    let is =
        |name: &str, keys: &[Option<&str>], unknown: &[&str]| assert_eq!(seen[name], json!([keys, unknown]), "{name}");
    let (q, k, s, o, n, last) = (Some("q"), Some("k"), Some("s"), Some("o"), Some("n"), Some("last"));
    let lost = Some("unknown");
    is("by_itself", &[q, q, k, s, o, o, s, n, last, last], &[]);
    is("nobody_knows", &[lost, lost, lost, s, o, s, n, last], &["k", "q"]);
    is("one_each", &[q, k, s, o, s, n, last], &[]);
    // More than a library has by itself are not all its own.
    is("too_many", &[q, k, s, lost, lost, lost, s, n, last], &["o"]);
    is("never_alone", &[lost, lost, s, o, s, n, last], &["k", "q"]);
    is("not_said", &[q, k, s, o, None, s, n, last], &[]);
    is("others", &[q, k, s, o, s, None, n, last], &[]);
    assert_eq!((&seen["averaged"], &seen["one_lost"]), (&json!([["a", 2.0], ["b", 3.0]]), &json!(null)), "{seen}");
    assert_eq!((&seen["missing"], &seen["out_of_turn"]), (&json!(null), &json!(null)), "{seen}");
    assert_eq!(seen["shared"], json!([{"name": "soft", "count": 2, "us": 5.0}]), "{seen}");
    assert_eq!(seen["left"], json!(["copy", 1, 1.0]), "{seen}");
}
