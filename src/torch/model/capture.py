"""Profiles a model as torch.compile runs it: the whole pass, and every region of its post-grad graphs by itself.

Reads a request from standard input and writes its answer, JSON both, to the file that the request names.
"""

import ctypes
import json
import math
import os
import signal
import sys
import time

import torch


# Whole numbers and truth values are kept up to so many elements: indices, divisors and masks mean something.
MOST_WHOLE = 1 << 22


class Captured:
    """One graph, with the values that its nodes had in one pass."""

    def __init__(self, gm):
        self.gm = gm
        # Times that it ran in the pass.
        self.runs = 0
        self.seen, self.whole = {}, {}
        self.roots = {}
        # What patterns of Inductor's own would have replaced in it.
        self.lowered = set()


def copied(gm):
    """The graph as it is now, apart from the one that will change."""
    graph = torch.fx.Graph()
    known = {}
    given = graph.graph_copy(gm.graph, known)
    graph.output(given)
    last = next(node for node in graph.nodes if node.op == "output")
    last.meta = dict(next(node for node in gm.graph.nodes if node.op == "output").meta)
    return torch.fx.GraphModule(gm, graph)


def capture(model, arguments):
    """The post-grad graphs of a pass, without any code generated; they are run by PyTorch itself, so that values can be seen."""
    from torch._inductor import compile_fx, config
    from torch._inductor.virtualized import V

    found = []

    def inner(gm, inputs, **options):
        compile_fx.view_to_reshape(gm)
        with torch.no_grad():
            mode = compile_fx.fake_tensor_prop(gm, inputs)
        lowered = set()
        with V.set_fake_mode(mode), without_lowerings(lowered):
            compile_fx._recursive_post_grad_passes(gm, is_inference=options.get("is_inference", False))
        captured = Captured(state["gm"])
        captured.lowered = lowered
        with torch.no_grad(), V.set_fake_mode(mode):
            compile_fx.fake_tensor_prop(captured.gm, inputs)
        found.append(captured)

        def run(values):
            mine = list(values)
            values.clear()
            # Blocks that are alike share one graph where dynamo stops in each.
            captured.runs += 1
            captured.roots = dict(zip((node for node in captured.gm.graph.nodes if node.op == "placeholder"), mine))
            result = Recorder(captured).run(*mine)
            return list(result) if isinstance(result, tuple) else result

        run._boxed_call = True
        return run

    state = {}

    def keep(graph):
        # Cut from the graph as the package's pass will see it.
        state["gm"] = copied(graph.owning_module)

    torch._dynamo.reset()
    with config.patch(post_grad_custom_post_pass=keep, shape_padding=False, fx_graph_cache=False):
        compiled = torch.compile(model, backend=lambda gm, inputs: compile_fx.compile_fx(gm, inputs, inner_compile=inner), dynamic=False)
        with torch.no_grad():
            compiled(*arguments)
    return found


class Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps what the wanted nodes gave."""

    def __init__(self, captured):
        super().__init__(captured.gm, garbage_collect_values=True)
        self.captured = captured
        if not hasattr(captured, "cut"):
            captured.cut = cut(captured.gm)
        regions = [region for part in captured.cut for region in part]
        self.wanted = {node for region in regions for node in region.inputs}

    def run_node(self, node):
        value = super().run_node(node)
        if node in self.wanted and isinstance(value, torch.Tensor):
            self.captured.seen[node] = figures(value)
            if not (value.is_floating_point() or value.is_complex()) and value.numel() <= MOST_WHOLE:
                self.captured.whole[node] = value.detach().clone()
        return value


def described(captured, region, parameters, device):
    """A region as a row: what it is called, where it comes from, its text; why it can be no target, if so."""
    def parameter(node):
        root = root_of(node)
        value = captured.roots.get(root) if root.op == "placeholder" else None
        return parameters.get(value.untyped_storage().data_ptr()) if isinstance(value, torch.Tensor) else None

    work = [packet(node) for node in region.nodes if not (is_moved(node) or node.target is operator.getitem)]
    modules, lines = [], []
    for node in region.nodes:
        if is_moved(node):
            continue
        module, line = module_of_node(node), line_of(node)
        if module and module not in modules:
            modules.append(module)
        if line and line not in lines:
            lines.append(line)
    key, family = region.key, region.family
    row = {
        "name": f"{slug(work, region.kind)}_{key[:8]}",
        "kind": region.kind,
        "key": key,
        "plain": region.plain if region.plain != key else None,
        "family": family,
        "operators": work,
        "modules": modules,
        "lines": [f"{place}: {text}" if text else place for place, text in lines],
        "why_not": None,
        "source": None,
        "described": None,
        "inputs": None,
        "outputs": None,
    }
    try:
        if not is_static(region):
            raise Unwritable("sizes are not known beforehand, or something else than a tensor goes in or out")
        sides = region.values()
        row["inputs"], row["outputs"] = [[tensor_form(value) for value in side] for side in sides]
        if not region.outputs:
            raise Unwritable("nobody reads what it gives")
        if any(written_over(node) is not None for node in region.outputs):
            raise Unwritable("it changes a tensor in place, such as a cache, and a kernel writes tensors of its own")
        if not region.inputs:
            raise Unwritable("it takes no tensor: what it gives is always the same")
        elsewhere = {value.device.type for side in sides for value in side} - {torch.device(device).type}
        if elsewhere:
            raise Unwritable(f"a tensor of it is on {elsewhere.pop()}, and the model on {torch.device(device).type}")
        floating = {value.dtype for side in sides for value in side if value.is_floating_point()}
        if len(floating) != 1 and floating != {torch.float32, torch.bfloat16}:
            names = " and ".join(sorted(str(one).removeprefix("torch.") for one in floating)) or "no floating-point type"
            raise Unwritable(f"its tensors are of {names}; a kernel has one floating-point type so far, or float32 beside bfloat16")
        if not any(value.is_floating_point() for value in sides[0]):
            raise Unwritable("it takes whole numbers alone, from which nobody can tell that double precision is wanted")
        kinds = lambda side, known: sorted({str(one.dtype).removeprefix("torch.") for one in side if not known(one)})
        if made := kinds(sides[1], lambda one: one.is_floating_point()):
            raise Unwritable(f"its result is a tensor of {made[0]}; those of regions are floating-point")
        if taken := kinds(sides[0], lambda one: one.is_floating_point() or one.dtype in WHOLE):
            raise Unwritable(f"it takes a tensor of {taken[0]}, and regions take floating-point, int64, int32, int8, uint8 and bool")
        row["dtype"] = str(min(floating, key=lambda one: one.itemsize)).removeprefix("torch.")
        names = names_of(region, parameter)
        places = [f"{name}: {parameter(node)}" for name, node in zip(names, region.inputs) if parameter(node)]
        places += [f"at {one}" for one in row["lines"][:6]]
        seen = [figures_in(region, node, captured.seen.get(node)) for node in region.inputs]
        title = f"{' '.join(modules[:3]) or 'the model'}: {', '.join(work[:8])}"
        row["source"], (given, made) = written(region, title, places, names, seen)
        forms = []
        for node, name, value, (_, shape), found in zip(region.inputs, names, sides[0], given, seen):
            role = "state" if parameter(node) else "input"
            dtype = str(value.dtype).removeprefix("torch.")
            forms.append({"name": name, "role": role, "shape": shape, "dtype": dtype, "contiguous": True, "figures": found})
        results = [{"shape": shape, "dtype": str(value.dtype).removeprefix("torch.")} for value, (_, shape) in zip(sides[1], made)]
        row["described"] = {"inputs": forms, "outputs": results, "flops": flops(region), "structure": []}
        if why := refused(region, row):
            raise Unwritable(why)
    except Unwritable as error:
        row["why_not"] = str(error)
        row["source"] = row["described"] = None
    return row


def slug(work, kind):
    """A few of its operators, as a name in C."""
    dull = {"convert_element_type", "clone", "full", "iota", "scalar_tensor", "getitem"}
    telling = [one.strip("_").lower() for one in work if one not in dull]
    names = list(dict.fromkeys(telling)) or ["copy"]
    if kind == "joined" and len(names) == 1 and len(telling) > 1:
        names = [f"{names[0]}_x{len(telling)}"]
    names = ["attention" if "attention" in one else one for one in names]
    return "_".join(names[:3])[:32].strip("_")


def tensor_form(value):
    return {
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "dtype": str(value.dtype).removeprefix("torch."),
        "device": value.device.type,
    }


def flops(region):
    from torch.utils.flop_counter import FlopCounterMode

    def attention(q, k, v, *_, **__):
        return 2 * math.prod(q[:3]) * k[2] * (q[3] + v[3])

    def grouped(a, b, *_, **__):
        return 2 * math.prod(a) * b[-1]

    # PyTorch does not count the processor's attention, and raises where several heads of queries share one of keys; nor products of groups.
    ours = {node.target.overloadpacket: attention for node in region.nodes if is_attention(node)}
    ours |= {node.target.overloadpacket: grouped for node in region.nodes if is_grouped(node)}
    counter = FlopCounterMode(display=False, custom_mapping=ours)
    values = [node.meta["val"] for node in region.inputs]
    mode = next((one.fake_mode for one in values if hasattr(one, "fake_mode")), None)
    if mode is None:
        return 0
    try:
        with torch.no_grad(), mode, counter:
            graph_of(region)(*values)
    except Exception as error:
        raise Unwritable(f"it cannot be run by itself on tensors as they lie there: {first_line(error)}") from error
    return int(counter.get_total_flops())


def holders_in(regions, wholes):
    """For each key the keys of wholes of which one holds every region of that key, and more."""
    held = {}
    nodes = [(whole.key, set(whole.nodes)) for whole in wholes]
    for region in regions:
        own = set(region.nodes)
        found = [key for key, all_nodes in nodes if own < all_nodes]
        key = region.key
        held[key] = sorted(set(found) if key not in held else set(found) & set(held[key]))
    return held


def breaks(model, arguments):
    """Why dynamo stops, a sentence each."""
    try:
        torch._dynamo.reset()
        with torch.no_grad():
            said = torch._dynamo.explain(model)(*arguments)
        found = []
        for one in said.break_reasons:
            frames = [frame for frame in one.user_stack if not frame.filename.startswith(TORCH)]
            frame = frames[-1] if frames else None
            place = f"{os.path.basename(frame.filename)}:{frame.lineno}: " if frame else ""
            first = next((line.strip() for line in str(one.reason).splitlines() if line.strip()), "")
            found.append(f"graph break at {place}{first}"[:300])
        return said.graph_count, found
    except Exception as error:
        return None, [f"the graph breaks could not be listed: {type(error).__name__}"]


def profile(request):
    device, seconds = request["device"], request["seconds"]
    # As its users have it: by itself PyTorch takes a thread a physical core, or as many as $OMP_NUM_THREADS says.
    torch.set_num_threads(min(request["threads"], torch.get_num_threads()))
    model, draw = load(request["folder"], device, request["dtype"], request["seed"], request["load"])
    arguments = draw(request["seed"])
    notes, answer = [], {}
    tell("running it eagerly")
    changing = [*model.named_buffers(), *((f"input {at}", one) for at, one in enumerate(tensors_of(arguments)))]
    versions = [(name, one, one._version) for name, one in changing if not one.is_inference()]
    try:
        with torch.no_grad():
            results = tensors_of(model(*arguments))
    except Exception as error:
        if not getattr(model, "first", False):
            raise
        raise SystemExit(
            f"{type(model.model).__name__} does not run on drawn {' and '.join(model.names)}; --load names a function that gives the model and its inputs "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error
    now = dict(model.named_buffers())
    if changed := [name for name, one, version in versions if one._version != version or now.get(name, one) is not one]:
        notes.append(f"every pass changes {', '.join(changed[:4])}{' and others' if len(changed) > 4 else ''}; the next one begins with that")
    if torch.device(device).type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        notes.append(
            "this model lets PyTorch round products of single precision (torch.set_float32_matmul_precision); kernels are judged, and what they must beat is "
            "timed, without that, so that gains in such products may not be gains here"
        )
    fresh_us, fresh_compile_s = timed_first(model, arguments, device, seconds)
    parameters = {}
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        parameters.setdefault(one.untyped_storage().data_ptr(), name)
    tell("capturing its graphs")
    began = time.perf_counter()
    count, broken = breaks(model, arguments)
    torch._dynamo.utils.counters["unimplemented"].clear()
    graphs = capture(model, arguments)
    # `explain` tells nothing of a frame that is skipped as a whole, and nothing behind its first break.
    skipped = [" ".join(str(why).split()).split(" Hint: ")[0][:200] for why in torch._dynamo.utils.counters["unimplemented"]]
    skipped = [why for why in skipped if not any(why[:40] in one for one in broken)]
    answer["capture_s"] = time.perf_counter() - began
    torch._dynamo.reset()
    lowered = sum(len(captured.lowered) for captured in graphs)
    if lowered:
        usual_us = fresh_us or one_pass(model, arguments, device, seconds)
        # What they compute is seen, and timed, as the parts that it is made of; until this process ends.
        held = contextlib.ExitStack()
        held.enter_context(without_lowerings())
        fresh_us = None
    tell("compiling it")
    began = time.perf_counter()
    compiled = torch.compile(model, dynamic=False)
    with noting() as written, torch.no_grad():
        compiled(*arguments)
    answer["compile_s"] = fresh_compile_s or time.perf_counter() - began
    rows, ones, whole = {}, {}, {}
    if not graphs:
        notes.append("torch.compile takes no part of this model: what it calls the compiled pass is the eager one")
    notes += [f"torch.compile leaves a part to Python: {why}" for why in dict.fromkeys(skipped)]
    for captured in graphs:
        if not hasattr(captured, "cut"):
            notes.append("a graph was not run, and nothing is known of its values")
            captured.cut = cut(captured.gm)
    lay_out(graphs, written)
    for captured in graphs:
        for part in captured.cut:
            for region in part:
                key = region.key
                if key not in rows:
                    rows[key] = described(captured, region, parameters, device)
                    rows[key]["calls"] = 0
                    rows[key]["parts"], rows[key]["within"] = [], None
                    ones[key] = region
                    whole[key] = [captured.whole.get(node) for node in region.inputs]
                row = rows[key]
                row["calls"] += max(1, captured.runs)
                for module in (module_of_node(node) for node in region.nodes if not is_moved(node)):
                    if module and module not in row["modules"]:
                        row["modules"].append(module)
        fusible, calls, pairs = captured.cut
        held = holders_in((*fusible, *calls, *pairs), pairs)
        for key, holders in held.items():
            rows[key]["within"] = holders if rows[key]["within"] is None else [one for one in rows[key]["within"] if one in holders]
        home = {node: region for region in (*fusible, *calls) for node in region.nodes}
        for region in pairs:
            parts = {id(home[node]): home[node].key for node in region.nodes if node in home}
            rows[region.key]["parts"] = sorted(parts.values())
    if max(count or 0, len(graphs)) > 1:
        notes.append(f"dynamo makes {max(count or 0, len(graphs))} graphs of it; the Python between them is of no part, and in `between kernels` or `not explained`")
    notes += broken
    tell("looking for operations that ship")
    for key, row in rows.items():
        try:
            with torch.no_grad():
                row["shipped"] = shipped(row, ones[key], device)
        except Exception as error:
            notes.append(f"{row['name']} could not be compared with the operations that ship: {type(error).__name__}: {first_line(error)}")
    # What is asked for by its place has a share of the time; regions are many.
    calls = {"eager": (lambda: model(*arguments), 1.0), "compiled": (lambda: compiled(*arguments), 1.0), "small": (small(device), 0.1)}
    if request["max_autotune"]:
        tell("compiling it again, with max-autotune")
        tuned = torch.compile(model, dynamic=False, mode="max-autotune")
        calls["autotune"] = (lambda: tuned(*arguments), 1.0)
    replay = graphed(lambda: compiled(*arguments), device)
    if replay is not None:
        calls["graph"] = (replay, 1.0)
    replays = {}
    for key, row in rows.items():
        row["us"] = row["busy_us"] = row["kernels"] = row["ran"] = None
        if row["kind"] != "joined" and is_static(ones[key]):
            tell(f"compiling {row['name']} by itself")
            try:
                call, copies = alone(ones[key], whole[key], device)
                with torch.no_grad():
                    call()
                    call, replays[key] = replayed(call, copies, device)
                calls[key] = (call, 0.25)
            except Exception as error:
                notes.append(f"{row['name']} could not be run alone: {type(error).__name__}: {first_line(error)}")
    times, counts, failed = in_turns(calls, device, seconds)
    # After the parts: it holds what a whole pass needs, and where it cannot be captured PyTorch may be left unfit to draw numbers.
    eager = graphed(lambda: model(*arguments), device)
    answer["eager_graph_us"] = None if eager is None else quartile(clock(eager, device, seconds / 3))
    del eager
    # After all that is timed: who traces launches lengthens them, and may go on doing so.
    answer["kernels"] = answer["busy_us"] = answer["others"] = None
    # A pass that no graph can hold is traced as it is called, with the host between its kernels.
    with torch.no_grad():
        running = traced(replay if "graph" in times else calls["compiled"][0]) if torch.device(device).type == "cuda" else None
    if running:
        tell("tracing its kernels")
        answer["kernels"], answer["busy_us"] = len(running), sum(us for _, us in running)
        for key, count in replays.items():
            if count and key in times and (ran := traced(calls[key][0])) is not None:
                rows[key]["kernels"], rows[key]["busy_us"] = len(ran) / count, sum(us for _, us in ran) / count
        try:
            found = attributed(written, graphs, running, {key: row["kernels"] for key, row in rows.items() if row["kind"] != "joined"})
        except Exception:
            found = None
        if found:
            kernels, answer["others"] = found
            for key, ran in kernels.items():
                rows[key]["ran"] = ran
        if not found or None in found[0].values():
            notes.append("which kernels of the pass are of which part is not known of all here; the others have the time that they take alone")
    for name, why in failed.items():
        notes.append(f"{rows[name]['name'] if name in rows else name} could not be timed: {why}")
    for needed in ("eager", "compiled"):
        if needed not in times:
            raise SystemExit(f"the model could not be run {needed}: {failed[needed]}")
    answer.update(eager_us=times["eager"], compiled_us=times["compiled"], rounds=counts["compiled"], autotune_us=times.get("autotune"))
    answer["call_us"] = times.get("small", 0.0)
    answer["graph_us"] = min(times["graph"], fresh_us or times["graph"]) if "graph" in times else None
    without_us = answer["graph_us"] or times["compiled"]
    answer["lowerings_us"] = usual_us if lowered else None
    if lowered and not without_us / ALIKE < usual_us < without_us * ALIKE:
        package = "leaves them out of a graph in which it has kernels" if usual_us > without_us else "has its kernels come before them"
        notes.append(
            f"torch.compile has patterns of its own for {lowered} steps, such as products with weights of eight bits: with them the pass takes {usual_us / 1e3:.3f} ms, "
            f"and without, as all is shown here, {without_us / 1e3:.3f}. A package {package}; `verify` times the original with them"
        )
    for key, row in rows.items():
        if key in times:
            # What it costs to call a compiled function is no part of the region: in the model it is paid once.
            one_us = times[key] / max(replays[key], 1)
            fused = row["kind"] == "fusible" and not replays[key]
            row["us"] = max(one_us - answer["call_us"], 0.05 * one_us) if fused else one_us
    answer.update(
        regions=list(rows.values()),
        graphs=len(graphs),
        parameters=sum(one.numel() for one in model.parameters()),
        dtype=common([*model.parameters(), *results]),
        inputs=[tensor_form(one) for one in tensors_of(arguments)],
        outputs=[tensor_form(one) for one in results],
        torch=torch.__version__,
        python=sys.version.split()[0],
        threads=torch.get_num_threads(),
        device_name=torch.cuda.get_device_name() if torch.device(device).type == "cuda" else "",
        notes=notes,
    )
    return answer


def common(tensors):
    """The floating-point type of most."""
    counts = {}
    for one in tensors:
        if one.is_floating_point():
            counts[one.dtype] = counts.get(one.dtype, 0) + one.numel()
    return str(max(counts, key=counts.get)).removeprefix("torch.") if counts else "float32"


def first_line(error):
    """What an error says, in a line; with the one behind it where that has the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:200]


def tell(what):
    print(f"@{what}", file=sys.stderr, flush=True)


def main():
    request = json.loads(sys.stdin.read())
    # Ends with whoever asked.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    answer_file = request["answer"]
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    import warnings

    warnings.simplefilter("ignore")
    try:
        answer = profile(request)
    except BaseException as error:
        import traceback

        folder = request["folder"]
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)]
        place = f"{os.path.basename(lines[-1].filename)}, line {lines[-1].lineno}: " if lines else ""
        kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
        answer = {"error": f"{place}{kind}{first_line(error)}"}
        if os.environ.get("WARPSMITH_TRACEBACK"):
            traceback.print_exc()
    with open(answer_file, "w") as file:
        json.dump(answer, file)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
