"""Regions that are attention, in all the ways in which its tensors may lie and be hidden, as candidates for `shipped`."""

import itertools
import math

import torch

def attentions(inputs, out, order, region):
    """Attention over tensors of four sizes as they are, and over those that the region itself has there, however many sizes they have outside."""
    if len(order) != 3 or any(0 in inputs[name] for name in order):
        return
    shapes = [inputs[name] for name in order]
    if all(len(shape) == 4 for shape in shapes):
        yield from attention(*shapes, inputs, out, order, region)
    for within in (*attended(region), *decomposed(region, shapes)):
        if [math.prod(shape) for shape in within] == [math.prod(shape) for shape in shapes]:
            for swapped in (False, True):
                yield from attention(*([one[0], one[2], one[1], one[3]] if swapped else one for one in within), inputs, out, order, region)


def attended(region):
    """Sizes of queries, keys and values of each attention, heads before positions."""
    for node in filter(is_attention, region.nodes):
        yield [list(argument(node, name).meta["val"].shape) for name in ("query", "key", "value")]


def decomposed(region, shapes):
    """The same for attention as two products of batches, between which scores have four sizes; there may be fewer heads of keys and values."""
    products = [node for node in region.nodes if packet(node) == "bmm"]
    if len(products) != 2:
        return
    (batch, rows, keys), depth = products[0].meta["val"].shape, products[1].meta["val"].shape[2]
    values = [node.meta["val"] for node in region.nodes]
    many = {tuple(one.shape[:2]) for one in values if isinstance(one, torch.Tensor) and list(one.shape[2:]) == [rows, keys]}
    for outer, heads in many:
        if outer * heads == batch:
            few = math.prod(shapes[1]) // (outer * keys * depth)
            yield [[outer, heads, rows, depth], *[[outer, few, keys, depth]] * 2]


def side_by_side(inputs, out, region):
    """Attention whose queries, keys and values are heads within the rows of tensors that have others too, as one product gives all three."""
    for node in filter(is_attention, region.nodes):
        within = [argument(node, name) for name in ("query", "key", "value")]
        roots = [root_within(one, region) for one in within]
        if None in roots:
            continue
        shapes = [list(one.meta["val"].transpose(1, 2).shape) for one in within]
        order = [list(inputs)[region.inputs.index(root)] for root in roots]
        parts, lets = {}, {}
        for own, name, one, root, (batch, places, heads, depth) in zip("qkv", order, within, roots, shapes):
            begin = one.meta["val"].storage_offset() - root.meta["val"].storage_offset()
            if 0 in (batch, places, depth):
                break
            first, row = begin // depth, math.prod(inputs[name]) // (batch * places * depth)
            if first * depth != begin or row * batch * places * depth != math.prod(inputs[name]) or first + heads > row:
                break
            parts[own] = ((batch, places, row, depth), first, heads)
            if row != heads:
                lets.update({f"{own.upper()}_HEADS": row, f"{own.upper()}_FIRST": first})
        if len(parts) < 3:
            continue
        for op, tensors, symbols, scalars, compute in attention(*shapes, inputs, out, order, region):
            if symbols["bshd"]:

                def of_parts(given, compute=compute, parts=parts):
                    taken = {own: given[own].reshape(rows)[:, :, first : first + heads] for own, (rows, first, heads) in parts.items()}
                    return compute(given | taken)

                yield op, tensors, symbols, scalars, of_parts, lets


def attention(q, k, v, inputs, out, order, region):
    if k != v or q[0] != k[0] or q[3] != k[3] or math.prod(out) != math.prod(q):
        return
    shapes = dict(zip("qkv", (q, k, v)))
    # Heads before positions, or behind them.
    for bshd in (0, 1):
        head, place = (2, 1) if bshd else (1, 2)
        if q[head] % k[head] or q[place] > k[place]:
            continue
        for causal, scale in itertools.product((0, 1), scales_of(region, q[3])):

            def compute(given, bshd=bshd, causal=causal, scale=scale):
                tensors = (given[name].reshape(shape) for name, shape in shapes.items())
                result = attend(*(one.transpose(1, 2) if bshd else one for one in tensors), causal, scale, given.get("added", 0.0))
                return (result.transpose(1, 2) if bshd else result).contiguous()

            symbols = {"B": q[0], "H": q[head], "H_kv": k[head], "S_q": q[place], "S_kv": k[place], "D": q[3], "causal": causal, "bshd": bshd}
            yield "flash_attention", dict(zip("qkv", order), o="out"), symbols, {"scale": scale}, compute


def attend(q, k, v, causal, scale, added):
    """Attention of tensors in which heads come before positions, and each of keys and values may be one for several. Where all is hidden the result is zero."""
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    scores = q @ k.transpose(2, 3) * scale + added
    if causal:
        # Aligned to the end.
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, -1)
    return torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights) @ v


# Positions before heads, or behind them, as kernels for GPUs have it for each tensor (`Q_LIES`).
POSITIONS_FIRST, HEADS_FIRST = 1, 2


def lying_apart(inputs, out, region):
    """Attention whose queries, keys and values lie each in a way of its own; keys may be written for every head of queries, and values not."""
    for node in filter(is_attention, region.nodes):
        within = [argument(node, name) for name in ("query", "key", "value")]
        roots = [copied_from(one, region) for one in within]
        batch, heads, places, depth = within[0].meta["val"].shape
        if None in roots or len(set(roots)) < 3 or math.prod(out) != batch * heads * places * depth or 0 in out:
            continue
        order = [list(inputs)[region.inputs.index(root)] for root in roots]
        many = [one.meta["val"].shape[2] for one in within]
        few = [math.prod(inputs[name]) // (batch * rows * depth) for name, rows in zip(order, many)]
        fits = all(math.prod(inputs[name]) == batch * rows * own * depth for name, rows, own in zip(order, many, few))
        if not fits or few[0] != heads or 0 in few or heads % few[1] or few[1] % few[2]:
            continue
        for bshd, causal, scale, *ways in itertools.product((1, 0), (1, 0), scales_of(region, depth), *[(POSITIONS_FIRST, HEADS_FIRST)] * 3):
            usual = POSITIONS_FIRST if bshd else HEADS_FIRST
            lets = {f"{own}_LIES": way for own, way in zip("QKV", ways) if way != usual}
            lets |= {"V_SHARE": few[1] // few[2]} if few[1] != few[2] else {}

            def compute(given, bshd=bshd, causal=causal, scale=scale, ways=ways):
                tensors = []
                for own, rows, count, way in zip("qkv", many, few, ways):
                    first, second = (rows, count) if way == POSITIONS_FIRST else (count, rows)
                    one = given[own].reshape(batch, first, second, depth)
                    tensors.append(one.transpose(1, 2) if way == POSITIONS_FIRST else one)
                result = attend(*tensors, causal, scale, given.get("added", 0.0))
                return (result.transpose(1, 2) if bshd else result).contiguous()

            symbols = {"B": batch, "H": heads, "H_kv": few[1], "S_q": places, "S_kv": many[1], "D": depth, "causal": causal, "bshd": bshd}
            yield "flash_attention", dict(zip("qkv", order), o="out"), symbols, {"scale": scale}, compute, lets


def copied_from(node, region):
    """The input of a region from which a node has its numbers, be they moved or repeated; none where something is computed in between."""
    while node not in region.inputs:
        if not is_moved(node) and packet(node) != "clone":
            return None
        node = node.all_input_nodes[0]
    return node


def scales_of(region, depth):
    """What scores may be multiplied by."""
    said = (argument(node, "scale") for node in region.nodes if is_attention(node))
    return list(dict.fromkeys((1 / math.sqrt(depth), *(one for one in said if one), 1.0)))


# What is added where a key is not seen, by the whole number that kernels have for it (`HIDDEN`): what is infinitely far below, the lowest of a type, and what PyTorch has for cuDNN.
HIDDEN = {0: lambda dtype: -math.inf, 1: lambda dtype: torch.finfo(dtype).min, -65536: lambda dtype: -65536.0}


def biased(inputs, out, hiding, region, device):
    """Attention with a tensor that is added to its scores, or with one of truth values that hides some, or both: `hiding` are the names of truth values."""
    for names, lets, added, full in biases(inputs, hiding, region):
        others = itertools.permutations(one for one in inputs if one not in names.values())
        found = [*(attentions(inputs, out, order, region) for order in others), side_by_side(inputs, out, region)]
        # Only kernels for GPUs have it.
        found += [lying_apart(inputs, out, region)] if torch.device(device).type == "cuda" else []
        for op, tensors, symbols, scalars, compute, *more in itertools.chain(*found):
            if [symbols[one] for one in ("B", "H", "S_q", "S_kv")] != full:
                continue
            both = lambda given, compute=compute: compute(given | {"added": added(given)})
            yield op, tensors | names, symbols, scalars, both, (more[0] if more else {}) | lets


def biases(inputs, hiding, region):
    """What may be added to scores: the names of its tensors, the constants that kernels have for it, a function from their values to what is added, and the sizes of scores."""
    whole = list(filter(is_attention, region.nodes)) or (region.nodes if is_decomposed_attention(region.nodes) else [])
    for node in whole:
        for given, full in added_to_scores(node):
            told = {}
            for one in told_by(given, region):
                name = list(inputs)[region.inputs.index(root_within(one, region))]
                steps = steps_over(one.meta["val"], root_within(one, region).meta["val"], full)
                if steps is not None:
                    told.setdefault("SEEN" if name in hiding else "BIAS", []).append((name, steps))
            kinds = [kind for kind in ("SEEN", "BIAS") if kind in told]
            if not kinds or (hiding and "SEEN" not in kinds):
                continue
            for parts in itertools.product(*(told[kind] for kind in kinds)):
                part = dict(zip(kinds, parts))
                names = {f"{kind}_TENSOR": name for kind, (name, _) in part.items()}
                lets = {kind: 1 for kind in part} | {f"{kind}_{own}": step for kind, (_, steps) in part.items() for own, step in zip("BHQK", steps)}
                for number, lowest in HIDDEN.items() if "SEEN" in part else ((0, None),):

                    def added(given, part=part, full=full, lowest=lowest):
                        values = {kind: torch.as_strided(given[f"{kind}_TENSOR"], full, steps) for kind, (_, steps) in part.items()}
                        bias = values.get("BIAS", 0.0)
                        return bias if lowest is None else torch.where(values["SEEN"], bias, lowest(region_type(region))).to(torch.float64)

                    yield names, lets | ({"HIDDEN": number} if number else {}), added, full


def region_type(region):
    """The floating-point type of what a region takes."""
    return next(one.meta["val"].dtype for one in region.inputs if one.meta["val"].is_floating_point())


def steps_over(value, root, full):
    """Elements from one sequence, head, query and key of a tensor to the next, where it is spread over scores of these sizes; none where it is not."""
    missing = len(full) - value.dim()
    if missing < 0 or value.storage_offset() != root.storage_offset():
        return None
    sizes, steps = [*[1] * missing, *value.shape], [*[0] * missing, *value.stride()]
    if any(size not in (1, whole) for size, whole in zip(sizes, full)):
        return None
    return [0 if size == 1 else step for size, step in zip(sizes, steps)]


def added_to_scores(node):
    """What a node of attention adds to scores, and their sizes: a sequence's, heads, queries, keys."""
    if is_attention(node):
        given = next((one for one in (argument(node, "attn_mask"), argument(node, "attn_bias")) if one is not None), None)
        q, k = (argument(node, name).meta["val"].shape for name in ("query", "key"))
        return [] if given is None else [(given, [*q[:3], k[2]])]
    value = node.meta.get("val")
    if packet(node) != "add" or not isinstance(value, torch.Tensor) or value.dim() != 4:
        return []
    return [(one, list(value.shape)) for one in node.args if isinstance(one, torch.fx.Node)]


def told_by(node, region):
    """The views of inputs that decide what a node has: of one that picks by truth values these, and what it picks from."""
    if root_within(node, region) is not None:
        return [node]
    picks = packet(node) in ("where", "convert_element_type")
    return [found for one in node.all_input_nodes for found in told_by(one, region)] if picks else []
