"""Traces the kernels of a pass, and says of which part each is."""

import collections
import contextlib
import time
from typing import NamedTuple

import torch

# Replays of which every kernel's own time is taken, behind others for so long (s), since long work lowers a GPU's clocks; no more kernels
# than so many are traced, which takes the host 50 µs each.
TRACED, WARM_S, MOST_TRACED = 5, 0.2, 2000

# The key of kernels that are of one of several parts.
UNKNOWN = "unknown"


def traced(replay):
    """Kernels and copies of a replay in order: the name of each, and µs that it runs, without what lies between them; none where the device does
    not tell."""
    try:
        ran, took_s = ran_in(replay, TRACED)
        before = min(int(WARM_S * TRACED / took_s), MOST_TRACED * TRACED // len(ran)) if ran and took_s < WARM_S else 0
        if before:
            last = len(ran)
            ran = ran_in(replay, before + TRACED)[0][-last:]
        return averaged(ran, TRACED)
    except Exception:
        return None


def averaged(ran, times):
    """Name and µs of each kernel of a replay, the mean of so many; none where they are not alike, since a kernel may be missing in a trace."""
    count = len(ran) // times
    passes = [ran[at * count : (at + 1) * count] for at in range(times)]
    if count * times != len(ran) or any([name for name, _ in one] != [name for name, _ in passes[0]] for one in passes):
        return None
    return [(one[0][0], sum(us for _, us in one) / times) for one in zip(*passes)]


def ran_in(replay, times):
    """Name and µs of each kernel and copy of so many replays, in order, and the seconds that all took."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as trace

    torch.cuda.synchronize()
    with trace(activities=[ProfilerActivity.CUDA]) as found:
        began = time.perf_counter()
        for _ in range(times):
            replay()
        torch.cuda.synchronize()
        took_s = time.perf_counter() - began
    ran = [one for one in found.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    ran.sort(key=lambda one: one.time_range.start)
    return [(one.name, one.device_time) for one in ran], took_s


@contextlib.contextmanager
def noting():
    """The code that torch.compile writes meanwhile: for each graph, in order, a [`Written`]. Nothing of another PyTorch than those that have these
    places."""
    from torch._inductor import config, debug
    from torch._inductor.codegen import cpp, triton
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    place_name, graphs, made = "set_kernel_post_grad_provenance_tracing", {}, {}
    original, run_node = getattr(debug, place_name, None), GraphLowering.run_node

    def lower(graph, node):
        result = run_node(graph, node)
        # With the graph, so that no other has its place in memory meanwhile.
        made.setdefault(id(graph), (graph, {}))[1][told(node)] = result
        return result

    def note(schedule, name, is_extern=False):
        calls = graphs.setdefault(id(V.graph), (V.graph, []))[1]
        try:
            if is_extern:
                nodes = [schedule.origin_node] if schedule.origin_node else list(schedule.origins)
            else:
                nodes = [origin for one in schedule if getattr(one, "node", None) is not None for origin in one.node.origins]
            calls.append((None if is_extern else name, [told(node) for node in nodes]))
        except Exception:
            calls.append((None if is_extern else name, []))
        return original(schedule, name, is_extern)

    found = []
    places = [place for place in (debug, triton, cpp) if hasattr(place, place_name)]
    try:
        for place in places:
            setattr(place, place_name, note)
        GraphLowering.run_node = lower
        # A graph from the cache is not written.
        with config.patch(fx_graph_cache=False):
            yield found
    finally:
        for place in places:
            setattr(place, place_name, original)
        GraphLowering.run_node = run_node
        for key, (_, calls) in graphs.items():
            strides = {node: strides_of(one) for node, one in made.get(key, (None, {}))[1].items()}
            found.append(Written(calls, {node: some for node, some in strides.items() if some is not None}))


class Written(NamedTuple):
    """A graph as Inductor wrote it: what its code calls, in order, each the name of a kernel that Inductor writes, or none for a library's, and the
    nodes that it computes; and the strides of what nodes give. Nodes are as [`told`] has them."""

    calls: list
    strides: dict


def strides_of(made):
    """How a tensor lies in memory, once all code is written; none for what is computed wherever it is read."""
    from torch._inductor.ir import as_storage_and_layout

    try:
        return tuple(int(one) for one in as_storage_and_layout(made, freeze=False)[1].stride)
    except Exception:
        return None


def lay_out(graphs, written):
    """Gives what nodes compute the strides that Inductor gives it, where these are others than PyTorch's own: convolutions, and what lies between
    them, run channels-last whatever the model says. A region's key is another then; `plain` is the one that the graph by itself has."""
    for captured, one in zip(graphs, written if len(written) == len(graphs) else ()):
        found = {}
        for node in captured.gm.graph.nodes:
            value, strides = node.meta.get("val"), one.strides.get(told(node))
            if strides is None or node.op != "call_function" or is_moved(node) or not isinstance(value, torch.Tensor):
                continue
            # Sizes that only values tell cannot be compared.
            if not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
                continue
            if any(size > 1 and own != other for size, own, other in zip(value.shape, value.stride(), strides)):
                other = value.new_empty_strided(value.shape, strides)
                if permutation(other) is not None and not is_stepped_over(node):
                    found[node] = other
        if found:
            for region in (region for part in captured.cut for region in part):
                region.plain = region.key
        for node, value in found.items():
            node.meta["val"] = value


def told(node):
    """A node as another graph of the same model has it too: names alone differ where one of them pads a product."""
    value = node.meta.get("val")
    sizes = tuple(size if isinstance(size, int) else str(size) for size in value.shape) if isinstance(value, torch.Tensor) else None
    return node.name, str(node.target), sizes


def owned(written, graphs):
    """What [`noting`] found as one list: the name of each call, and the key of the part that it computes most of, none where no part has it. None
    at all where graphs run several times, or others were written than those that were captured."""
    if len(written) != len(graphs) or any(captured.runs > 1 for captured in graphs):
        return None
    calls = []
    for one, captured in zip(written, graphs):
        home = {}
        for region in (region for part in captured.cut[:2] for region in part):
            home.update(dict.fromkeys(map(told, region.nodes), (region.key, region.kind)))
        for name, nodes in one.calls:
            found = [home[node] for node in nodes if node in home]
            # What a library is called with is among its nodes, too.
            found = [one for one in found if name or one[1] == "library"] or found
            keys = collections.Counter(key for key, _ in found)
            calls.append((name, keys.most_common(1)[0][0] if keys else None))
    return calls


def aligned(calls, names, counts):
    """The key of the part that each kernel of a pass is of, none for those of no part, and the keys of parts that have others, which nobody can
    tell; none at all where the kernels that Inductor wrote are not those that ran. Between two of these are the kernels of the libraries that are
    called there: of calls of one part no more than it has by itself (`counts`, by its key), of several as many each as by itself, or one each."""
    own = {name for name, _ in calls if name}
    if [name for name, _ in calls if name] != [name for name in names if name in own]:
        return None
    keys, unknown, at = [None] * len(names), set(), 0

    def settle(waiting, libraries):
        expected = [round(counts.get(key) or 0) for key in libraries]
        if not waiting and not libraries:
            return
        if not all(expected):
            given = []
        elif len(set(libraries)) == 1 and 0 < len(waiting) <= sum(expected):
            given = libraries[:1] * len(waiting)
        elif sum(expected) == len(waiting):
            given = [key for key, count in zip(libraries, expected) for _ in range(count)]
        elif len(libraries) == len(waiting):
            given = libraries
        else:
            given = []
        if not given:
            unknown.update(libraries)
        for place, key in zip(waiting, given or [UNKNOWN if libraries else None] * len(waiting)):
            keys[place] = key

    waiting = []
    for place, name in enumerate(names):
        if name not in own:
            # What Inductor wrote and did not say is no library's.
            if not name.startswith("triton_"):
                waiting.append(place)
            continue
        libraries = []
        while calls[at][0] is None:
            libraries.append(calls[at][1])
            at += 1
        settle(waiting, libraries)
        keys[place], waiting, at = calls[at][1], [], at + 1
    settle(waiting, [key for _, key in calls[at:]])
    return keys, unknown - {None}


def attributed(written, graphs, running, counts):
    """The kernels of each part by its key, as [`shared`] has them, none for a part of which nobody can tell, and those of no part; or nothing."""
    calls = owned(written, graphs)
    found = calls and aligned(calls, [name for name, _ in running], counts)
    if not found:
        return None
    keys, unknown = found
    kernels = shared(running, keys)
    # While kernels are left over, what has none may have these.
    none = None if kernels.get(None) or kernels.get(UNKNOWN) else []
    return {key: None if key in unknown else kernels.get(key, none) for key in counts}, kernels.get(None, [])


def shared(ran, keys):
    """What runs of each key: the name of each kernel, how often a pass has it, and µs of all of these."""
    found = {}
    for (name, us), key in zip(ran, keys):
        one = found.setdefault(key, {}).setdefault(name, {"name": name, "count": 0, "us": 0.0})
        one["count"] += 1
        one["us"] += us
    return {key: sorted(some.values(), key=lambda one: -one["us"]) for key, some in found.items()}
