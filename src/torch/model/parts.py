"""Times the parts of a pass: each called by itself, in turns."""

import torch

# Copies of weights are together so many times the L2 cache, and no more than so many; below so many bytes there are none.
COLD, MOST_COPIES, LEAST_COPIED = 2, 128, 1 << 20
# One graph of a region has so many calls, since starting a graph costs as much as a short kernel takes; fewer where they are long (µs).
GRAPH_CALLS, GRAPH_US = 16, 2000.0


def alone(region, whole, device):
    """A call of a region by itself, on values like those it had (`whole` are those of its inputs that are whole numbers): as torch.compile runs it, or, for a library, as PyTorch does. It takes the
    number of the call: what the pass does not compute itself, weights above all, is in no cache when the pass comes to it, so that there
    are copies of it on a GPU."""
    places = [like(node, value, device) for node, value in zip(region.inputs, whole)]
    weights = [at for at, node in enumerate(region.inputs) if root_of(node).op == "placeholder"]
    copies = [places]
    if torch.device(device).type == "cuda" and weights:
        size = sum(places[at].nbytes for at in weights)
        wanted = -(-COLD * torch.cuda.get_device_properties(device).L2_cache_size // max(size, 1))
        for _ in range(1, min(wanted, MOST_COPIES) if size >= LEAST_COPIED else 1):
            copies.append([like(node, whole[at], device) if at in weights else place for at, (node, place) in enumerate(zip(region.inputs, places))])

    call, masks = graph_of(region, in_place=True, masks_given=True), masks_of(region)
    if region.kind == "fusible":
        call = torch.compile(call, dynamic=False, fullgraph=True)
    return lambda number=0: call(*copies[number % len(copies)], *masks), len(copies)


def masks_of(region):
    """The masks that a region reads, which the pass has made before."""
    if not region.masks:
        return []
    graph, known = torch.fx.Graph(), {}
    for node in region.making:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[node] for node in region.masks))
    return list(torch.fx.GraphModule({}, graph)())


def graph_of(region, in_place=False, masks_given=False):
    """It as a module of its own: dynamo does not look into what walks over nodes. The masks that it reads are made there, or given behind its inputs. What the pass writes over what the region reads, as a step does with a cache, is
    written there where `in_place` says so, and not given: torch.compile writes no more than what is new then."""
    graph, known = torch.fx.Graph(), {}
    for at, node in enumerate(region.inputs):
        known[node] = graph.placeholder(f"x{at}")
    if masks_given:
        known.update({node: graph.placeholder(f"m{at}") for at, node in enumerate(region.masks)})
    for node in (*(() if masks_given else region.making), *region.nodes):
        known[node] = graph.node_copy(node, known.__getitem__)
    over = {node: written_over(node) for node in region.outputs} if in_place else {}
    over = {node: place for node, place in over.items() if place in known}
    for node, place in over.items():
        graph.call_function(torch.ops.aten.copy_.default, (known[place], known[node]))
    graph.output(tuple(known[node] for node in region.outputs if node not in over))
    return torch.fx.GraphModule({}, graph)


def replayed(call, copies, device):
    """A replay of several calls, and how many; or the call itself where there is no replay, and 0."""
    if torch.device(device).type != "cuda":
        return call, 0
    once_us = min(clock(call, device, 0.0, least=1))
    count = max(copies, min(GRAPH_CALLS, int(GRAPH_US / max(once_us, 1.0))), 1)

    def several():
        for number in range(count):
            call(number)

    replay = graphed(several, device)
    return (call, 0) if replay is None else (replay, count)


def like(node, known, device):
    """Normal values; whole numbers as they were, where they are `known`: a divisor of zero ends the process, and rows that are looked up
    are not all the first one."""
    value = node.meta["val"]
    made = torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device=device)
    if value.is_complex() or value.is_floating_point():
        # Numbers of eight bits cannot be drawn.
        return made.normal_() if value.itemsize > 1 else made.copy_(torch.randn(value.shape, device=device))
    return made.zero_() if known is None else made.copy_(known)


def small(device):
    """A call of something compiled that does next to nothing."""
    nothing = torch.zeros(4, device=device)
    call = torch.compile(lambda x: x + 1, dynamic=False)
    return lambda: call(nothing)


def in_turns(calls, device, seconds, rounds=3):
    """µs of each call by its name, and how many were timed: all of them in turns, so that a bad moment is everybody's."""
    times, failed = {name: [] for name in calls}, {}
    for number in range(rounds):
        tell(f"timing, round {number + 1} of {rounds}")
        for name, (call, share) in calls.items():
            if name in failed:
                continue
            try:
                with torch.no_grad():
                    times[name] += clock(call, device, seconds * share / rounds)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {first_line(error)}"
    return {name: quartile(some) for name, some in times.items() if name not in failed}, {name: len(some) for name, some in times.items()}, failed


# Two times of a pass that differ by no more are told as one.
ALIKE = 1.05


def one_pass(model, arguments, device, seconds):
    """µs of the compiled pass by itself; it is compiled anew afterwards."""
    compiled = torch.compile(model, dynamic=False)
    with torch.no_grad():
        compiled(*arguments)
        taken = quartile(clock(lambda: compiled(*arguments), device, seconds / 3))
    torch._dynamo.reset()
    return taken


def timed_first(model, arguments, device, seconds):
    """µs of the pass as a CUDA graph, and the seconds that compiling it takes, where nothing else was compiled and captured before, as in the
    process of who runs the model. After a few graphs more a GPU may take 0.45 µs from one kernel to the next where it took 0.12 µs, in all
    graphs of the process, each kernel for the same time as before (seen on an H100 and an H200, driver 580: 6 % of GPT-2's pass)."""
    if torch.device(device).type != "cuda":
        return None, None
    tell("compiling it")
    began = time.perf_counter()
    try:
        compiled = torch.compile(model, dynamic=False)
        with torch.no_grad():
            compiled(*arguments)
        compile_s = time.perf_counter() - began
        replay = graphed(lambda: compiled(*arguments), device)
        return None if replay is None else quartile(clock(replay, device, seconds / 3)), compile_s
    except Exception:
        # What is wrong with it is said where it is timed beside the rest.
        return None, None
    finally:
        torch._dynamo.reset()
