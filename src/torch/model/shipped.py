"""Regions that are one of the operations that come with Warpsmith. What a region computes says it, on values drawn for it, in double
precision; how its operators are called does not matter. The judge has the last word on the kernel that is made of it."""

import itertools
import math

# An activation that is cut off somewhere shows it in values so many times as large.
FAR = 1e3

# Operations beyond which nobody looks: a region is evaluated twice here.
MOST_WORK = {"cpu": 1 << 36, "cuda": 1 << 42}


def shipped(row, region, device):
    """How the kernel of an operation is called for the region, as `Call` in Rust has it; none where it is no such operation."""
    described = row["described"]
    if not described or described["flops"] > MOST_WORK[torch.device(device).type]:
        return None
    inputs, outputs = described["inputs"], described["outputs"]
    if (held := grouped_product(inputs, region) or patch_product(inputs, outputs, region, device)) is not None:
        return held
    hiding = [one["name"] for one in inputs if one["dtype"] == "bool"]
    types = {one["dtype"] for one in (*inputs, *outputs)} - {"bool"}
    if len(types) > 1 or not all("float" in one for one in types) or not all(math.prod(one["shape"]) for one in outputs):
        return None
    shapes, made = {one["name"]: one["shape"] for one in inputs}, [one["shape"] for one in outputs]
    trial = Trial(row["source"], shapes, hiding, device)
    if len(made) > 1:
        return side_products(shapes, made, region, trial) if not hiding and torch.device(device).type == "cuda" else None
    if (found := next(filter(trial.holds, biased(shapes, made[0], hiding, region, device)), None)) is not None:
        return of_precision(call_of(*found), region, device)
    # Nothing else takes truth values.
    if hiding:
        return None
    if not 1 <= len(inputs) <= 4:
        return None
    if (found := next(filter(trial.holds, candidates(shapes, made[0], region)), None)) is not None:
        return of_precision(call_of(*found), region, device)
    # Only kernels for GPUs have what follows.
    if torch.device(device).type != "cuda":
        return None
    if (found := next(filter(trial.holds, lying_apart(shapes, made[0], region)), None)) is not None:
        return call_of(*found)
    if region.kind == "joined":
        for order in itertools.permutations(shapes):
            for candidate in activated_products(shapes, made[0], order):
                if trial.holds(candidate) and trial.holds(candidate, scale=FAR):
                    return call_of(*candidate)
    return None


class Trial:
    """What a region gives for values drawn once, when somebody first asks."""

    def __init__(self, source, shapes, hiding, device):
        self.source, self.shapes, self.hiding, self.device, self.values = source, shapes, hiding, device, None

    def holds(self, candidate, which=0, scale=1.0):
        """Whether a candidate computes the region's result of this number, for the values times a scale."""
        if self.values is None:
            drawn = torch.Generator(self.device).manual_seed(1)
            ask = lambda shape: torch.randn(shape, generator=drawn, dtype=torch.float64, device=self.device)
            self.values, written = {name: ask(shape) for name, shape in self.shapes.items()}, {}
            for name in self.hiding:
                # One row hides everything: what that means differs.
                self.values[name] = self.values[name] > 0
                self.values[name].view(-1, self.shapes[name][-1])[0] = False
            exec(self.source, written)
            self.reference, self.right = written["reference"], {}
        values = self.values if scale == 1.0 else {name: one * scale for name, one in self.values.items()}
        if scale not in self.right:
            right = self.reference(*values.values())
            self.right[scale] = [one.reshape(-1) for one in (right if isinstance(right, tuple) else (right,))]
        _, tensors, _, _, compute, *_ = candidate
        tried = compute({own: values[name] for own, name in tensors.items() if name in values}).reshape(-1)
        right = self.right[scale][which]
        return tried.numel() == right.numel() and bool((tried - right).abs().max() <= 1e-9 * (1 + right.abs().max()))


def call_of(op, tensors, symbols, scalars, compute, lets=None):
    return {"op": op, "tensors": tensors, "symbols": symbols, "scalars": scalars, "lets": lets or {}}


def of_precision(call, region, device):
    """The call of attention whose scores are in single precision while its tensors are not: kernels for GPUs would round its weights, and are not to."""
    single = any(packet(node) == "bmm" and node.meta["val"].dtype == torch.float32 for node in region.nodes)
    narrow = all(one.meta["val"].dtype != torch.float32 for one in region.inputs)
    if call["op"] == "flash_attention" and single and narrow and torch.device(device).type == "cuda":
        call["lets"]["WEIGHT_PARTS"] = 2
    return call


def grouped_product(inputs, region):
    """A product of groups of rows by itself: a kernel for it ships, though it is no operation."""
    computed = [node for node in region.nodes if not is_moved(node)]
    if len(computed) != 1 or not is_grouped(computed[0]) or len(region.outputs) != 1:
        return None
    node = computed[0]
    names = ("self", "mat2", "offs")
    if any(argument(node, name) is None for name in names) or argument(node, "bias") is not None:
        return None
    a, b, ends = (argument(node, name) for name in names)
    roots = [root_within(one, region) for one in (a, b, ends)]
    sizes = [list(one.meta["val"].shape) for one in (a, b)]
    if None in roots or [len(one) for one in sizes] != [2, 3]:
        return None
    (m, k), (groups, _, n) = sizes
    if k % 8 or n % 8 or any(root.meta["val"].numel() != one.meta["val"].numel() for root, one in zip(roots, (a, b, ends))):
        return None
    tensors = {own: inputs[region.inputs.index(root)]["name"] for own, root in zip(("a", "b", "ends"), roots)}
    # Rows of b, or of what it is turned from, are contiguous: regions take tensors row by row.
    turned = list(roots[1].meta["val"].shape) != sizes[1] or any(packet(one) in ("permute", "transpose") for one in region.nodes if one.args[0] is roots[1])
    symbols = {"groups": groups, "M": m, "N": n, "K": k, "trans_b": int(turned)}
    return call_of("grouped_mm", {**tensors, "c": "out"}, symbols, {}, None)


def patch_product(inputs, outputs, region, device):
    """A convolution whose patches lie side by side, as a product of channels and patches: a kernel for GPUs ships, for rows of a patch that are copied 16 bytes
    at a time."""
    node = region.nodes[0]
    if torch.device(device).type != "cuda" or len(region.nodes) > 1 or packet(node) != "convolution":
        return None
    x, w, bias, stride, padding, dilation, transposed, _, groups = node.args
    sizes, (out_channels, _, *patch) = list(x.meta["val"].shape), w.meta["val"].shape
    types = {one["dtype"] for one in (*inputs, *outputs)}
    if len(patch) != 2 or types not in ({"float16"}, {"bfloat16"}) or transposed or groups != 1 or list(stride) != patch or any(padding) or set(dilation) != {1}:
        return None
    # Rows lie as PyTorch has them: a kernel's sizes are those of the convolution.
    given = dict(zip(region.inputs, inputs))
    lies = all(form["shape"] == list(one.meta["val"].shape) for one, form in ((x, given[x]), (w, given[w]), (node, outputs[0])))
    if not lies or sizes[3] % 8 or patch[1] % 8 or 0 in sizes:
        return None
    tensors = {own: given[one]["name"] if one is not None else None for own, one in (("x", x), ("w", w), ("bias", bias))} | {"out": "out"}
    symbols = dict(zip(("B", "C", "H", "W", "O", "KH", "KW"), (*sizes, out_channels, *patch)))
    return call_of("patch_mm", tensors, symbols, {}, None)


def side_products(shapes, made, region, trial):
    """Several products of one tensor as one: of as many matrices b, each a tensor of its own, and one a. Where they are of several widths, each is some
    of the widest width that is in all, side by side."""
    calls = []
    for at, (node, out) in enumerate(zip(region.outputs, made)):
        if packet(node) not in ("mm", "addmm"):
            return None
        roots = [root_within(one, region) for one in node.args]
        if None in roots:
            return None
        names = [list(shapes)[region.inputs.index(root)] for root in roots]
        order = names if len(names) == 2 else [*names[1:], names[0]]
        held = next((one for one in products(shapes, out, order) if trial.holds(one, at)), None)
        if held is None:
            return None
        calls.append(call_of(*held))
    first, widths = calls[0], [one["symbols"].pop("N") for one in calls]
    if any(one["symbols"] != first["symbols"] or one["tensors"]["a"] != first["tensors"]["a"] for one in calls) or first["symbols"]["batch"] != 1:
        return None
    common = math.gcd(*widths)
    spans = [one // common for one in widths]
    lets = {"PARTS": len(calls)}
    if sum(spans) > len(calls):
        lets.update(zip(("SPAN", "SPAN_1", "SPAN_2"), spans))
    for at, one in enumerate(calls):
        one["tensors"]["c"] = f"out{at}"
    beside = [{own: name for own, name in one["tensors"].items() if own != "a"} for one in calls[1:]]
    return {**first, "symbols": {**first["symbols"], "batch": sum(spans), "N": common}, "lets": lets, "beside": beside}


def candidates(inputs, out, region):
    """Operations that a region with inputs and an output of these sizes may be, the plainest first."""
    names, constants = list(inputs), constants_of(region)
    for order in itertools.permutations(names):
        yield from products(inputs, out, order)
    for order in itertools.permutations(names):
        yield from rows(inputs, out, order, constants)
    for order in itertools.permutations(names):
        yield from attentions(inputs, out, order, region)
    yield from side_by_side(inputs, out, region)
    for order in itertools.permutations(names):
        yield from swiglu(inputs, out, order)


def products(inputs, out, order):
    if len(order) not in (2, 3):
        return
    a, b = inputs[order[0]], inputs[order[1]]
    batch = a[0] if len(b) == 3 else 1
    if not a or len(b) not in (2, 3) or (len(b) == 3 and (len(a) != 3 or b[0] != batch)) or 0 in a or 0 in b:
        return
    # Sizes before the last may be one or several, as views have it: in memory that is the same.
    for trans_b in (1, 0):
        n, k = (b[-2], b[-1]) if trans_b else (b[-1], b[-2])
        m = math.prod(a) // k // batch
        if batch * m * k != math.prod(a) or batch * m * n != math.prod(out):
            continue
        bias = order[2] if len(order) == 3 else None
        if bias and inputs[bias] != [n]:
            continue

        def compute(given, trans_b=trans_b, n=n, k=k, m=m, bias=bias):
            right = given["b"].reshape(batch, *given["b"].shape[-2:])
            product = given["a"].reshape(batch, m, k) @ (right.transpose(1, 2) if trans_b else right)
            return product + given["bias"] if bias else product

        tensors = {"a": order[0], "b": order[1], "bias": bias, "c": "out"}
        symbols = {"batch": batch, "M": m, "N": n, "K": k, "trans_b": trans_b, "has_bias": int(bool(bias))}
        yield "matmul", tensors, symbols, {}, compute


# What the kernels for products can do to each element at last, by the number that they have for it (`ACT`).
ACTIVATIONS = {
    1: lambda x: torch.nn.functional.gelu(x),
    2: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    3: lambda x: torch.nn.functional.silu(x),
    4: lambda x: torch.nn.functional.relu(x),
}


def activated_products(inputs, out, order):
    for op, tensors, symbols, scalars, compute in products(inputs, out, order):
        for number, activation in ACTIVATIONS.items():
            yield op, tensors, symbols, scalars, lambda given, act=activation: act(compute(given)), {"ACT": number}


def root_within(node, region):
    """The input of a region that a node is a view of; none where something is computed in between."""
    while node not in region.inputs:
        if not is_moved(node):
            return None
        node = node.all_input_nodes[0]
    return node


def swiglu(inputs, out, order):
    if len(order) != 4 or any(0 in inputs[name] for name in order):
        return
    x, gate, up, down = (inputs[name] for name in order)
    if len(gate) != 2 or up != gate or down != gate[::-1] or not x or math.prod(x) % gate[1] or math.prod(out) != math.prod(x):
        return

    def compute(given):
        x = given["x"].reshape(-1, gate[1])
        hidden = torch.nn.functional.silu(x @ given["w_gate"].T) * (x @ given["w_up"].T)
        return hidden @ given["w_down"].T

    symbols = {"B": math.prod(x) // gate[1], "D": gate[1], "H": gate[0]}
    yield "fused_mlp", dict(zip(("x", "w_gate", "w_up", "w_down"), order), y="out"), symbols, {}, compute


def rows(inputs, out, order, constants):
    x = inputs[order[0]]
    if not x or 0 in x or any(inputs[name] != x[-1:] for name in order[1:]):
        return
    many, cols = math.prod(x) // x[-1], x[-1]
    tensors = dict(zip(("x", "weight", "bias"), order), y="out")
    if len(order) == 1:
        sizes = {"rows": many, "cols": cols}
        if math.prod(out) == many * cols:
            yield "softmax", tensors, sizes, {}, lambda given: torch.softmax(given["x"], -1)
        elif math.prod(out) == many:
            yield "reduce", tensors, sizes, {}, lambda given: given["x"].sum(-1)
    for eps in constants if math.prod(out) == many * cols else ():
        if len(order) == 2:

            def rms(given, eps=eps):
                return given["x"] * torch.rsqrt(given["x"].pow(2).mean(-1, keepdim=True) + eps) * given["weight"]

            yield "rmsnorm", tensors, {"rows": many, "cols": cols}, {"eps": eps}, rms
        if len(order) == 3:

            def norm(given, eps=eps):
                return torch.nn.functional.layer_norm(given["x"], (cols,), given["weight"], given["bias"], eps)

            yield "layernorm", tensors, {"batch": many, "dim": cols}, {"eps": eps}, norm


def constants_of(region):
    """Numbers that are written in a region and may be an epsilon, each once."""
    found = []
    for node in region.nodes:
        for one in (*node.args, *node.kwargs.values()):
            if isinstance(one, float) and math.isfinite(one) and one > 0 and one not in found:
                found.append(one)
    return found[:8]
