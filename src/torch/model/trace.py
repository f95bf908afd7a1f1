"""Traces the kernels of a pass, and says of which part each is."""

import collections
import contextlib
import time

import torch

# Replays of which every kernel's own time is taken, behind others for so long (s), since long work lowers a GPU's clocks; no more kernels
# than so many are traced, which takes the host 50 µs each.
TRACED, WARM_S, MOST_TRACED = 5, 0.2, 2000


def traced(replay):
    """Kernels and copies of a replay in order: the name of each, and µs that it runs, without what lies between them; none where the device does
    not tell."""
    try:
        ran, took_s = ran_in(replay, TRACED)
        before = min(int(WARM_S * TRACED / took_s), MOST_TRACED * TRACED // len(ran)) if ran and took_s < WARM_S else 0
        if before:
            last = len(ran)
            ran = ran_in(replay, before + TRACED)[0][-last:]
        count = len(ran) // TRACED
        passes = [ran[at * count : (at + 1) * count] for at in range(TRACED)]
        return [(one[0][0], sum(us for _, us in one) / TRACED) for one in zip(*passes)]
    except Exception:
        return None


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
    """What the code calls that torch.compile writes meanwhile: for each graph, in order, the name of a kernel that Inductor writes, or none for a
    library's, and the names of the nodes that it computes."""
    from torch._inductor import config, debug
    from torch._inductor.codegen import cpp, triton
    from torch._inductor.virtualized import V

    original, graphs = debug.set_kernel_post_grad_provenance_tracing, {}

    def note(schedule, name, is_extern=False):
        if is_extern:
            nodes = [schedule.origin_node] if schedule.origin_node else list(schedule.origins)
        else:
            nodes = [origin for one in schedule if getattr(one, "node", None) is not None for origin in one.node.origins]
        calls = graphs.setdefault(id(V.graph), (V.graph, []))[1]
        calls.append((None if is_extern else name, [node.name for node in nodes]))
        return original(schedule, name, is_extern)

    found = []
    places = (debug, triton, cpp)
    try:
        for place in places:
            place.set_kernel_post_grad_provenance_tracing = note
        # A graph from the cache is not written.
        with config.patch(fx_graph_cache=False):
            yield found
    finally:
        for place in places:
            place.set_kernel_post_grad_provenance_tracing = original
        found += [calls for _, calls in graphs.values()]


def owned(written, graphs):
    """What [`noting`] found as one list: the name of each call, and the key of the part that it computes most of. None where graphs run several
    times, or others were written than those that were captured."""
    if len(written) != len(graphs) or any(captured.runs > 1 for captured in graphs):
        return None
    calls = []
    for lines, captured in zip(written, graphs):
        home = {node.name: region for part in captured.cut[:2] for region in part for node in region.nodes}
        for name, nodes in lines:
            regions = [home[node] for node in nodes if node in home]
            # What a library is called with is among its nodes, too.
            regions = [one for one in regions if name or one.kind == "library"] or regions
            keys = collections.Counter(one.key for one in regions)
            calls.append((name, keys.most_common(1)[0][0] if keys else None))
    return calls


def aligned(calls, names, counts):
    """The key of the part that each kernel of a pass is of, none where nobody can tell; none at all where the kernels that Inductor wrote are not
    those that ran. Between two of these are the kernels of the libraries that are called there: of one library's call all of them, of
    several as many each as it has by itself (`counts`, by the part's key), or one each."""
    own = {name for name, _ in calls if name}
    if [name for name, _ in calls if name] != [name for name in names if name in own]:
        return None
    keys, at = [None] * len(names), 0

    def settle(waiting, libraries):
        expected = [round(counts.get(key) or 0) for key in libraries]
        if len(set(libraries)) == 1:
            given = libraries[:1] * len(waiting)
        elif sum(expected) == len(waiting):
            given = [key for key, count in zip(libraries, expected) for _ in range(count)]
        elif len(libraries) == len(waiting) and all(expected):
            given = libraries
        else:
            given = []
        for place, key in zip(waiting, given):
            keys[place] = key

    waiting = []
    for place, name in enumerate(names):
        if name not in own:
            waiting.append(place)
            continue
        libraries = []
        while calls[at][0] is None:
            libraries.append(calls[at][1])
            at += 1
        settle(waiting, libraries)
        keys[place], waiting, at = calls[at][1], [], at + 1
    settle(waiting, [key for _, key in calls[at:]])
    return keys


def shared(ran, keys):
    """What runs of each key: the name of each kernel, how often a pass has it, and µs of all of these."""
    found = {}
    for (name, us), key in zip(ran, keys):
        one = found.setdefault(key, {}).setdefault(name, {"name": name, "count": 0, "us": 0.0})
        one["count"] += 1
        one["us"] += us
    return {key: sorted(some.values(), key=lambda one: -one["us"]) for key, some in found.items()}
