"""A region as readable PyTorch: `reference(...)`, which Warpsmith's judge evaluates in any floating type."""

import math
import os

import torch

HEAD = '''"""{title}

{places}
A kernel takes {names}, row-major, and writes {outs}.
"""

import torch
{imports}
aten, prims = torch.ops.aten, torch.ops.prims
{helpers}

def reference({names}{given}):
    # Evaluated in double precision, nothing inside is narrower.
    exact = any(one.dtype == torch.float64 for one in ({names},))

    def kind(dtype):
        return torch.float64 if exact and dtype.is_floating_point else dtype

    device = {first}.device
'''

TAIL = '''

class Model(torch.nn.Module):
    def forward(self, {names}):
        return reference({names})


def get_inputs():
    """Values like those that the model had."""
    return [
{draws}
    ]


def get_init_inputs():
    return []
'''

# Rows in groups, each with a matrix of its own: the experts of a model. PyTorch's own is compiled in bfloat16 alone.
GROUPED = """

def grouped(a, b, ends):
    if a.dtype == torch.bfloat16:
        return aten._grouped_mm.default(a, b, ends)
    parts, begin = [], 0
    for end, matrix in zip(ends.tolist(), b):
        parts.append(a[begin:end] @ matrix)
        begin = end
    return torch.cat(parts)
"""

# What hides scores, from sizes alone.
MASKS = """

def masks_of_the_pass(device, kind):
    # Always the same: the model makes it once a pass for all layers, so that it is no part of what PyTorch is timed for.
    # A kernel need not read it: it knows what it hides.
{steps}
    return {masks},
"""


class Unwritable(Exception):
    """Why a region cannot be written as a function of tensors."""


# Texts of more elements or products than these are not tried on drawn values.
MOST_DRAWN, MOST_TRIED = 1 << 26, 1 << 32


MEANING = "its whole numbers mean what drawn ones do not, such as an order, or where rows begin"
UNWRITTEN = "what nobody has written is read"


def refused(region, row):
    """Why nothing can be drawn from which a region gives a result; none where something can, or where it is too large to be tried and nothing speaks against it."""
    given = row["described"]["inputs"]
    if not any(node.meta["val"].dtype in WHOLE for node in region.inputs) and not any(map(is_unusual, region.nodes)):
        return None
    if sum(math.prod(one["shape"]) for one in given) <= MOST_DRAWN and row["described"]["flops"] <= MOST_TRIED:
        return refused_when_drawn(row["source"])
    # Rows are put where an order says: all of them, or some are nobody's.
    return f"{MEANING}: {UNWRITTEN}" if any("empty" in packet(node) for node in region.nodes) else None


def refused_when_drawn(text):
    """Why a text gives no result for values drawn as its own were, or none in double precision: whole numbers may be an order, or say where rows begin, which
    no draw does, and some libraries have single precision alone. None where it gives both."""
    tried = {}
    exec(text, tried)
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        # Memory that nobody has written is then full of NaN, and of indices that lead nowhere.
        torch.use_deterministic_algorithms(True, warn_only=True)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            values = tried["get_inputs"]()
            try:
                given = tried["reference"](*values)
            except NotImplementedError:
                # A library of another device than this one.
                return None
            except Exception as error:
                return f"{MEANING}: {UNWRITTEN if 'aten.empty' in text else told_first(error)}"
            try:
                tried["reference"](*(one.double() if one.is_floating_point() else one for one in values))
            except Exception as error:
                return f"it cannot be computed in double precision, which kernels are compared with: {told_first(error)}"
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    given = given if isinstance(given, tuple) else (given,)
    if "aten.empty" in text and any(bool(one.isnan().any()) for one in given):
        return f"{MEANING}: a part of what it gives is never written"
    return None


def told_first(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:120]


def permutation(value):
    """The order of dimensions in which a tensor is row-major without gaps; none where there is no such order."""
    order = list(range(value.dim()))
    if not value.is_contiguous():
        order.sort(key=lambda at: (-value.stride(at), at))
    expected = 1
    for at in reversed(order):
        if value.shape[at] != 1 and value.stride(at) != expected:
            return None
        expected *= value.shape[at]
    return order


def inverse(order):
    return [order.index(at) for at in range(len(order))]


def names_of(region, is_parameter):
    """`w0`, `w1`: parameters; `x0`, `x1`: what was computed before."""
    counts, names = {"x": 0, "w": 0}, []
    for node in region.inputs:
        letter = "w" if is_parameter(node) else "x"
        names.append(f"{letter}{counts[letter]}")
        counts[letter] += 1
    return names


def written(region, title, places, names, figures):
    """The text, and the forms of tensors as a kernel sees them: (inputs, outputs), each a permutation and a shape."""
    inputs, outputs = region.values()
    forms = [formed(value) for value in inputs], [formed(value) for value in outputs]
    outs = ["out"] if len(outputs) == 1 else [f"out{at}" for at in range(len(outputs))]
    lines = []
    local = {}
    for node, name, value, (order, shape) in zip(region.inputs, names, inputs, forms[0]):
        local[node] = name
        if value.dtype == torch.bool:
            # Kernels have bytes.
            lines.append(f"    {name} = {name}.to(torch.bool)")
        if value.dim() == 0:
            lines.append(f"    {name} = {name}.reshape([])")
        elif order != sorted(order):
            lines.append(f"    {name} = {name}.permute({inverse(order)})")
    imports = "import torch._inductor.inductor_prims\n" if any(map(is_of_compiler, region.nodes)) else ""
    helpers = GROUPED if any(map(is_grouped, region.nodes)) else ""
    if region.masks:
        made = {}
        steps = "\n".join(steps_of(region.making, made, "m"))
        masks = ", ".join(made[node] for node in region.masks)
        helpers += MASKS.format(steps=steps, masks=masks)
        lines.append(f"    {masks}, = masks_of_the_pass(device, kind) if masks is None else masks")
        local.update(made)
    lines += steps_of(region.nodes, local, "t")
    given = []
    for node, value, (order, _) in zip(region.outputs, outputs, forms[1]):
        given.append(local[node] if order == sorted(order) else f"{local[node]}.permute({order})")
    lines.append("    return " + ", ".join(given))
    joined = ", ".join(names)
    places = "".join(f"{place}\n" for place in places)
    text = HEAD.format(title=title, places=places, imports=imports, helpers=helpers, given=", masks=None" * bool(region.masks), names=joined, outs=", ".join(outs), first=names[0])
    draws = "\n".join(f"        {draw(shape, value, found)}," for (_, shape), value, found in zip(forms[0], inputs, figures))
    return text + "\n".join(lines) + "\n" + TAIL.format(names=joined, draws=draws), forms


def steps_of(nodes, local, letter):
    """What nodes compute, a line each, with the lines of the model that they come from; adds their names, of this letter, to `local`."""
    lines, last = [], None
    for at, node in enumerate(nodes):
        origin = origin_of(node)
        if origin and origin != last:
            lines.append(f"    # {origin}")
            last = origin
        local[node] = f"{letter}{at}"
        lines.append(f"    {letter}{at} = {call(node, local)}")
    return lines


def formed(value):
    order = permutation(value)
    if order is None:
        raise Unwritable(f"a tensor of sizes {list(value.shape)} and strides {list(value.stride())} has gaps or overlaps")
    return order, [value.shape[at] for at in order]


# Whole numbers that a region may take.
WHOLE = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)


def figures(tensor):
    """What values are like: of at most a million, evenly taken."""
    if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.dtype in WHOLE):
        return None
    flat = tensor.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() >> 20)].to(torch.float64)
    flat, hidden = without_hidden(flat) if tensor.is_floating_point() else (flat, None)
    flat = flat[flat.isfinite()]
    if flat.numel() == 0:
        return None
    found = {
        "min": float(flat.min()),
        "max": float(flat.max()),
        "mean": float(flat.mean()),
        "deviation": float(flat.std()) if flat.numel() > 1 else 0.0,
        "zeros": float((flat == 0).double().mean()),
        "whole": bool((flat == flat.round()).all()),
        "count": flat.numel(),
    }
    return {**found, "rectified": rectified(**found), "hidden": hidden}


# What hides a score takes at least so much from it: of an exponential nothing is left then. So large a share of the values does, where it may as well be
# one that is large by itself.
HIDES, BY_ITSELF, LEAST_HIDDEN = -88.0, -1e30, 0.02


def without_hidden(flat):
    """Values without the one number, far below all others, that hides scores as they are added to them, and that number: 0 stands for -infinity; none where there is none."""
    low = float(flat.min())
    rest = flat[flat != low]
    share = 1 - rest.numel() / flat.numel()
    if low > HIDES or share < (LEAST_HIDDEN if low > BY_ITSELF else 0) or rest.numel() == 0 or float(rest.min()) <= HIDES:
        return flat, None
    return rest, low if math.isfinite(low) else 0.0


# What is computed from whole numbers by these tells no more than how they compare.
COMPARED = {"eq", "ne", "lt", "le", "gt", "ge"}
# These give them as they are, from other places.
CARRIED = {"index", "gather", "index_select", "clone", "convert_element_type", "_to_copy"}


def figures_in(region, node, found):
    """Figures of an input, as a region's values are drawn. Whole numbers that were one and the same, and that a region only compares, such as which of several
    packed sequences a token is of, may be any: two more of them are drawn. Where groups of rows end is drawn in order."""
    kind = node.meta["val"].dtype
    if divided := rows_divided(region, node):
        if not found or found["max"] != divided:
            raise Unwritable("there are rows behind those of the last group, and nothing is known of what they give")
        return {**found, "ends": True}
    if not found or kind.is_floating_point or kind == torch.bool or found["min"] != found["max"] or not only_compared(region, node):
        return found
    return {**found, "max": min(found["max"] + 2, torch.iinfo(kind).max)}


def rows_divided(region, node):
    """How many rows of products an input divides into groups by saying where each ends; none where it does not."""
    users = [user for user in region.nodes if node in user.all_input_nodes]
    dividing = [user for user in users if is_grouped(user) and argument(user, "offs") is node]
    rows = {user.args[0].meta["val"].shape[0] for user in dividing}
    if dividing and (len(dividing) < len(users) or len(rows) > 1):
        raise Unwritable("where groups of rows end is read for something else too")
    return rows.pop() if rows else None


def only_compared(region, node):
    left, inside = [node], set(region.nodes)
    while left:
        one = left.pop()
        for user in inside.intersection(one.users):
            if packet(user) in COMPARED:
                continue
            others = []
            torch.fx.map_arg((user.args[1:], user.kwargs), others.append)
            # Which place is read is more than a comparison.
            if not (is_moved(user) or packet(user) in CARRIED) or user.args[0] is not one or one in others:
                return False
            left.append(user)
    return True


def rectified(min, mean, deviation, zeros, whole, **_):
    """Scale and shift of normal values that look so where those below zero are made zero, as behind a ReLU; none where no such values do. The
    share of zeros and the mean tell both; the deviation must be what these give, within a half: a few large values among zeros are none."""
    if min != 0 or mean <= 0 or whole or not 0.02 < zeros < 0.98:
        return None
    cut = torch.special.ndtri(torch.tensor(zeros, dtype=torch.float64)).item()
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi)
    scale = mean / (density - cut * (1 - zeros))
    squares = scale * scale * ((1 + cut * cut) * (1 - zeros) - cut * density)
    expected = math.sqrt(max(squares - mean * mean, 0))
    return [scale, -cut * scale] if expected / 1.5 < deviation < 1.5 * expected else None


def draw(shape, value, found):
    if value.dtype == torch.bool:
        return f"torch.randint(0, 2, {shape}, dtype=torch.bool)"
    if found and found.get("ends"):
        rows = int(found["max"])
        shares = f"(torch.rand([{value.numel() - 1}]) ** 2 ** torch.randint(0, 4, [1])).sort().values"
        return f"torch.cat(({shares} * {rows}, torch.tensor([{rows}]))).to({value.dtype})"
    if not value.is_floating_point():
        low, high = (int(found["min"]), int(found["max"]) + 1) if found else (0, 2)
        return f"torch.randint({low}, {high}, {shape}, dtype={value.dtype})"
    if found and found["hidden"] is not None:
        low = found["hidden"] or "float('-inf')"
        return f"torch.where(torch.rand({shape}) < 0.5, {draw(shape, value, {**found, 'hidden': None})}, {low})"
    mean, deviation = (found["mean"], found["deviation"]) if found else (0.0, 1.0)
    if found and found["rectified"]:
        scale, shift = found["rectified"]
        return f"torch.relu(torch.randn({shape}) * {scale:.3g} + {shift:.3g}).to({value.dtype})"
    if found and found["min"] >= 0:
        return f"(torch.rand({shape}) * {found['max'] - found['min']:.3g} + {found['min']:.3g}).to({value.dtype})"
    return f"(torch.randn({shape}) * {deviation:.3g} + {mean:.3g}).to({value.dtype})"


def call(node, local):
    import operator

    if node.target is operator.getitem:
        return f"{local[node.args[0]]}[{node.args[1]}]"
    target = node.target
    if target.namespace not in ("aten", "prims"):
        raise Unwritable(f"it calls {target}, which is no operator of PyTorch itself")
    if is_attention(node):
        return said_attention(node, local)
    if is_grouped(node):
        return said_grouped(node, local)
    arguments = [said(one, local) for one in node.args]
    arguments += [f"{key}={said(one, local)}" for key, one in node.kwargs.items()]
    return f"{target}({', '.join(arguments)})"


def said_grouped(node, local):
    """As a function of the text's own, which knows every precision."""
    a, b, ends = (argument(node, name) for name in ("self", "mat2", "offs"))
    dtype = argument(node, "out_dtype")
    if argument(node, "bias") is not None or dtype not in (None, a.meta["val"].dtype):
        raise Unwritable("products of groups of rows are understood without a bias, and in the type of their factors")
    if ends is None or ends not in local or not local[ends].startswith(("x", "w")) or a.meta["val"].dim() != 2 or b.meta["val"].dim() != 3:
        raise Unwritable("where groups of rows end is not known to be in order")
    return f"grouped({local[a]}, {local[b]}, {local[ends]})"


def said_attention(node, local):
    """As PyTorch offers it to everybody, since its kernels for one device know neither the other nor double precision. A tuple, as theirs is."""
    import operator

    if any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users):
        raise Unwritable("somebody reads more of attention than its result")
    q, k, v, mask = (argument(node, name) for name in ("query", "key", "value", "attn_mask"))
    mask = argument(node, "attn_bias") if mask is None else mask
    more = "" if mask is None else f", attn_mask={local[mask]}"
    more += ", is_causal=True" if argument(node, "is_causal") else ""
    scale = argument(node, "scale")
    more += "" if scale is None else f", scale={scale!r}"
    more += ", enable_gqa=True" if q.meta["val"].shape[1] != k.meta["val"].shape[1] else ""
    return f"(torch.nn.functional.scaled_dot_product_attention({local[q]}, {local[k]}, {local[v]}{more}),)"


def said(value, local):
    """An argument as Python writes it."""
    if isinstance(value, torch.fx.Node):
        return local[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(said(one, local) for one in value) + "]"
    if isinstance(value, torch.dtype):
        return f"kind({value})" if value.is_floating_point and value.itemsize > 1 else str(value)
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"float('{value}')"
    if isinstance(value, (int, float, bool, str)) or value is None:
        return repr(value)
    if isinstance(value, (torch.layout, torch.memory_format)):
        return str(value)
    raise Unwritable(f"an argument is a {type(value).__name__}")


def module_of_node(node):
    """The path of the module that a node comes from: `layers.0.norm`."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return clean(paths[-1]) if paths else ""


def clean(path):
    for noise in ("L['self']", "L['fn']", "L['model']", "_modules", "self."):
        path = path.replace(noise, "")
    path = path.replace("['", ".").replace("']", "").replace("[", ".").replace("]", "")
    while ".." in path:
        path = path.replace("..", ".")
    return path.strip(".")


# The folder of PyTorch's own lines; others may lie below a folder of that name.
TORCH = os.path.join(os.path.dirname(torch.__file__), "")


def line_of(node):
    """`model.py:12` and the text of that line."""
    trace = node.meta.get("stack_trace")
    frames = [line.strip() for line in trace.splitlines()] if trace else []
    found = [at for at, line in enumerate(frames) if line.startswith("File ")]
    own = [at for at in found if TORCH not in frames[at]] or found
    if not own:
        return None
    at = own[-1]
    parts = frames[at].split('"')
    number = frames[at].split("line ")[1].split(",")[0] if "line " in frames[at] else "?"
    text = frames[at + 1] if at + 1 < len(frames) and not frames[at + 1].startswith("File ") else ""
    return f"{parts[1].rsplit('/', 1)[-1]}:{number}", text


def origin_of(node):
    line = line_of(node)
    if line is None:
        return ""
    module = module_of_node(node)
    return f"{line[0]}" + (f" ({module})" if module else "") + (f": {line[1]}" if line[1] else "")
