//! Which nodes make a region together, in graphs that no model here has.

use serde_json::json;
use warpsmith::torch::model::{CAPTURE, REGIONS};

use crate::Place;

const PROGRAM: &str = "
import json, torch
from torch.fx.experimental.proxy_tensor import make_fx
import regions

@torch.library.custom_op('mine::mm', mutates_args=())
def mm(x: torch.Tensor, w: torch.Tensor, n: int) -> torch.Tensor:
    return x @ w

mm.register_fake(lambda x, w, n: x @ w)

def several(function, count, widths=()):
    widths = list(widths) or [16] * count
    gm = make_fx(function, tracing_mode='fake')(*(torch.randn(16, width) for width in widths))
    return gm.graph, [one for one in regions.cut(gm)[2] if len(one.outputs) > 1]

def sizes(function, count):
    return [len(one.outputs) for one in several(function, count)[1]]

def of_widths(*widths):
    regions_ = several(lambda x, *w: [x @ one for one in w], 0, (16, *widths))[1]
    return [[node.meta['val'].shape[1] for node in one.outputs] for one in regions_]

def dependent(x, a, b, c):
    q, k = x @ a, x @ b
    return q, k, x @ torch.sin(q @ k), x @ c

def crossed(x, y, a, b):
    q = x @ a
    r = y @ b
    return y @ q, x @ r

graph, both = several(crossed, 4)
print(json.dumps(dict(
    five=sizes(lambda x, *w: [x @ one for one in w], 6),
    behind=sizes(dependent, 4),
    others=sizes(lambda x, a, b: [mm(x, a, 1), mm(x, b, 1)], 3),
    narrower=[of_widths(256, 64, 64), of_widths(192, 128), of_widths(128, 50, 64), of_widths(64 * 40, 64)],
    apart=[regions.is_acyclic(graph, [one]) for one in both],
    together=regions.is_acyclic(graph, both),
)))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn products_of_one_tensor_are_taken_together_where_nothing_lies_between_them() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("regions.py"), REGIONS).unwrap();
    let (seen, _) = place.python(PROGRAM);
    assert_eq!(seen["five"], json!([3, 2]), "three at the most");
    assert_eq!(seen["behind"], json!([3]), "what reads two of them is left out");
    assert_eq!(seen["others"], json!([]), "somebody's own operator of that name");
    // Queries of four heads to keys and values of one; widths whose common part is narrower than either; none; and far too many parts.
    assert_eq!(seen["narrower"], json!([[[256, 64, 64]], [[192, 128]], [[128, 64]], []]));
    // Each could be one call; both cannot, since either reads of the other.
    assert_eq!((&seen["apart"], &seen["together"]), (&json!([true, true]), &json!(false)), "{seen}");
}

const ORDERED: &str = "
import json, torch
from torch.fx.experimental.proxy_tensor import make_fx
import capture

capture.MOST_DRAWN = 0

def back_in_order(x, order):
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    return torch.sin(x)[place]

def told(function):
    gm = make_fx(torch.func.functionalize(function), tracing_mode='fake')(torch.randn(64, 8), torch.randperm(64))
    region, = capture.fusible_regions(gm)
    return capture.refused(region, dict(described=dict(inputs=[dict(shape=[64, 8])], flops=0), source=''))

print(json.dumps(dict(back=told(back_in_order), read=told(lambda x, order: torch.sin(x)[order]))))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_put_where_an_order_says_is_no_target_though_it_is_too_large_to_be_tried() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("capture.py"), CAPTURE).unwrap();
    let (seen, _) = place.python(ORDERED);
    assert!(seen["back"].as_str().is_some_and(|why| why.ends_with("what nobody has written is read")), "{seen}");
    assert!(seen["read"].is_null(), "rows are read that are there, whichever they are: {seen}");
}

const DRAWN: &str = "
import json, operator, random, torch
import regions
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

def some(*given):
    return given

def drawn(seed):
    pick = random.Random(seed)
    graph = torch.fx.Graph()
    nodes, pairs, known = [graph.placeholder(f'x{at}') for at in range(3)], [], set()
    for _ in range(pick.randint(1, 40)):
        if pairs and pick.random() < 0.3:
            node = graph.call_function(operator.getitem, (pick.choice(pairs), pick.randint(0, 1)))
        else:
            near = nodes[-pick.choice([3, 8, 40]):]
            node = graph.call_function(some, tuple(pick.choice(near) for _ in range(pick.randint(1, 3))))
            pairs += [node] * (pick.random() < 0.3)
        if pick.random() < 0.7:
            known.add(node.name)
        nodes.append(node)
    graph.output(nodes[-1])
    return torch.fx.GraphModule({}, graph), known

def names(sets):
    return sorted(sorted(node.name for node in one) for one in sets if one)

different, sets = [], 0
for seed in range(200):
    gm, known = drawn(seed)

    class Support(OperatorSupportBase):
        def is_node_supported(self, modules, node):
            return node.name in known

    wanted = names(one.nodes for one in CapabilityBasedPartitioner(gm, Support(), allows_single_node_partition=True).propose_partitions())
    sets += len(wanted)
    if names(regions.partitions(gm.graph, lambda node: node.name in known)) != wanted:
        different.append(seed)
print(json.dumps(dict(different=different, sets=sets)))
";

#[test]
#[ignore = "the full suite: .ci/run"]
fn what_is_fused_together_is_what_pytorchs_own_partitioner_finds() {
    let Some(place) = Place::new() else { return };
    std::fs::write(place.path("regions.py"), REGIONS).unwrap();
    let (seen, _) = place.python(DRAWN);
    assert_eq!(seen["different"], json!([]), "{seen}");
    assert!(seen["sets"].as_u64() > Some(300), "{seen}");
}
