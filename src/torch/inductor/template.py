"""Products of matrices and convolutions as Triton of Inductor's own, from its templates: what is around them becomes a part of them."""

import itertools
import math
import re


class NoTemplate(BaseException):
    """Inductor would call a library. No `Exception`, since those are wrapped on their way."""


# Templates alone: a library's kernel is nobody's text.
TEMPLATES = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON", "max_autotune_conv_backends": "TRITON"}

# Block sizes of a template, which it has as constants inside, and what they may be. Rows and columns of the result, terms of its sums,
# and how many rows of blocks are worked on together.
TILES = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (16, 32, 64, 128, 256),
    "BLOCK_K": (16, 32, 64, 128),
    "GROUP_M": (1, 4, 8, 16),
}

# Channels of a group that a template's blocks, of 16 and more, would be mostly empty for.
THIN = 8

# Elements of a kernel that a sum over them may have: each is a load.
MOST_TAPS = 64


def take_templates():
    """Has Inductor take one template where it would time them beside its libraries: a search begins there, and times them itself."""
    from torch._inductor import pattern_matcher, select_algorithm
    from torch._inductor.scheduler import Scheduler

    def chosen(self, name, choices, inputs, layout, *_, **__):
        own = [one for one in choices if isinstance(one, select_algorithm.TritonTemplateCaller)]
        tiles = [(tile_of(one.description), one) for one in own]
        tiles = [(tile, one) for tile, one in tiles if tile]
        size, groups = [int(one) for one in layout.size], 1
        rows, columns = size[-2:] if len(size) > 1 else (1, size[-1])
        if tiles and "convolution" in name:
            # Channels are the columns of a convolution, each group's for itself.
            groups = int(inputs[0].get_size()[1]) // int(inputs[1].get_size()[1])
            columns = size[1] // groups
            rows = elements(size) // max(1, size[1])
            thin = groups > 1 and min(columns, int(inputs[1].get_size()[1])) < THIN
            tiles = [] if thin else tiles
        if not tiles:
            raise NoTemplate(f"Inductor calls a library for `{name}` of these sizes, and has no template")
        sizes = rows, columns, elements(size) // max(1, rows * columns)
        return min(tiles, key=lambda pair: cost(pair[0], sizes, layout.dtype.itemsize))[1].output_node()

    select_algorithm.AlgorithmSelectorCache.__call__ = chosen
    usual = Scheduler.check_prologue_fusion_heuristics_fusable

    def fused(self, prologue, *rest):
        # Weights in single precision, which autocast converts in each pass, are read once, and need not be written.
        origins = {one for node in prologue.get_nodes() if node.node is not None for one in node.node.get_origins() if one.op == "call_function"}
        return all(is_moved_or_converted(one) for one in origins) or usual(self, prologue, *rest)

    Scheduler.check_prologue_fusion_heuristics_fusable = fused
    # Nor are there kernels of a library's for what Inductor has a pattern for, such as products with weights of eight bits.
    pattern_matcher.LoweringPatternEntry.apply = lambda self, match, graph, node: None


def is_moved_or_converted(node):
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or target == torch.ops.prims.convert_element_type.default)


def rewritten():
    """What templates do not fit, as what Inductor has kernels for, by operator."""
    return {torch.ops.aten.convolution.default: as_other_steps, torch.ops.aten.addmm.default: with_bias_behind, torch.ops.aten.mm.default: as_a_sum}


def with_bias_behind(bias, a, b, beta=1, alpha=1):
    """A template reads its bias from memory, as somebody has to write it there first; what follows a product is computed in its kernel."""
    return NotImplemented if (beta, alpha) != (1, 1) else torch.mm(a, b) + bias


def as_a_sum(a, b):
    """A product with one row is a sum over what it reads; blocks of a template have sixteen rows."""
    if a.shape[0] != 1 or not a.is_floating_point():
        return NotImplemented
    kind = torch.promote_types(a.dtype, torch.float32)
    return (a.reshape(-1, 1).to(kind) * b.to(kind)).sum(0, keepdim=True).to(a.dtype)


def as_other_steps(x, w, bias, stride, padding, dilation, transposed, output_padding, groups):
    dims = x.dim() - 2
    stride, padding, dilation = ([*one] * dims if len(one) == 1 else [*one] for one in (stride, padding, dilation))
    kernel = [*w.shape[2:]]
    if not transposed and groups > 1 and w.shape[1] == 1 and math.prod(kernel) <= MOST_TAPS:
        return with_bias(by_taps(x, w, stride, padding, dilation), bias)
    patches = transposed and groups == 1 and kernel == stride and not any((*padding, *output_padding))
    if patches and all(one == 1 for one in dilation):
        return with_bias(in_patches(x, w, kernel), bias)
    if dims == 1 and not transposed:
        flat = torch.ops.aten.convolution.default(
            x.unsqueeze(2), w.unsqueeze(2), bias, [1, *stride], [0, *padding], [1, *dilation], False, [0, 0], groups
        )
        return flat.squeeze(2)
    return NotImplemented


def with_bias(y, bias):
    return y if bias is None else y + bias.view(-1, *[1] * (y.dim() - 2))


def by_taps(x, w, stride, padding, dilation):
    """A convolution of each channel by itself, as a sum over the kernel's elements: one pass over memory for Inductor."""
    kind = torch.promote_types(x.dtype, torch.float32)
    many = w.shape[0] // x.shape[1]
    source = x.repeat_interleave(many, 1) if many > 1 else x
    source = torch.nn.functional.pad(source, [one for both in reversed(padding) for one in (both, both)]).to(kind)
    sizes = [*w.shape[2:]]
    counts = [(size - far * (taps - 1) - 1) // step + 1 for size, taps, step, far in zip(source.shape[2:], sizes, stride, dilation)]
    total = None
    for place in itertools.product(*map(range, sizes)):
        part = source
        for dim, (at, count, step, far) in enumerate(zip(place, counts, stride, dilation)):
            part = part[(slice(None),) * (dim + 2) + (slice(at * far, at * far + (count - 1) * step + 1, step),)]
        part = part * w[(slice(None), 0, *place)].to(kind).view(-1, *[1] * len(sizes))
        total = part if total is None else total + part
    return total.to(x.dtype)


def in_patches(x, w, kernel):
    """A transposed convolution whose patches do not overlap: a product of matrices."""
    dims = len(kernel)
    rows = x.movedim(1, -1)
    y = rows.reshape(-1, x.shape[1]) @ w.reshape(w.shape[0], -1)
    y = y.view(*rows.shape[:-1], w.shape[1], *kernel)
    order = [0, dims + 1, *(one for dim in range(dims) for one in (dim + 1, dims + 2 + dim))]
    return y.permute(order).reshape(x.shape[0], w.shape[1], *(size * many for size, many in zip(x.shape[2:], kernel)))


def tile_of(description):
    """Block sizes, warps and stages of a choice."""
    found = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", description)}
    return found if all(name in found for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")) else None


def cost(tile, sizes, width):
    """What a choice takes, roughly, to begin with the one that takes the least: waves of blocks, each as long as it multiplies and reads."""
    rows, columns, others = sizes
    high, wide, deep = tile["BLOCK_M"], tile["BLOCK_N"], tile["BLOCK_K"]
    properties = torch.cuda.get_device_properties(0)
    blocks = -(-rows // high) * -(-columns // wide) * others
    waves = -(-blocks // properties.multi_processor_count)
    held = (high + wide) * deep * width * tile["num_stages"]
    fits = held <= properties.shared_memory_per_block_optin and high * wide <= 256 * 32 * tile["num_warps"]
    # Of those that are alike: loads of 128 bytes, and several of them on their way.
    return not fits, waves * (high * wide + 64 * (high + wide)), abs(deep * width - 128), abs(tile["num_stages"] - 3)


def is_template(meta):
    return meta.get("grid_type") == "FixedGrid" and all(name in meta.get("config_args", {}) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))


def numbers_in(function):
    """Names that a function gives a whole number, by itself."""
    single = [node for node in function.body if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)]
    return {node.targets[0].id: node.value.value for node in single if isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)}


def choices_of(config, known):
    """What each block size of a template may be."""
    found = {name: list(values) for name, values in TILES.items() if name in config}
    # It was written without a mask where each slice is whole, and with one otherwise.
    if config.get("EVEN_K") and "K" in known:
        found["BLOCK_K"] = [one for one in found["BLOCK_K"] if known["K"] % one == 0]
    for name, size in (("BLOCK_M", known.get("M")), ("BLOCK_N", known.get("N") or known.get("OUT_C"))):
        if size:
            found[name] = [one for one in found[name] if one < 2 * size] or [16]
    return {name: sorted({*values, config[name]}) for name, values in found.items()}


def grid_of(name, config, known, started):
    """How many blocks there are in each direction, by block sizes; as many as Inductor `started`."""
    ceil = lambda size, block: f"ceil_div({size}, {block})"
    count = lambda size, block: -(-size // config[block])
    if "M" in known and "N" in known:
        rows, columns = known["M"], known["N"]
        grid = [f"{ceil(rows, 'BLOCK_M')} * {ceil(columns, 'BLOCK_N')}", *map(str, started[1:])]
        expected = [count(rows, "BLOCK_M") * count(columns, "BLOCK_N"), *started[1:]]
    elif "OUT_C" in known and "BATCH" in known:
        rows = known["BATCH"] * known.get("OUT_D", 1) * known["OUT_H"] * known["OUT_W"]
        grid = [ceil(rows, "BLOCK_M"), ceil(known["OUT_C"], "BLOCK_N"), str(started[2])]
        expected = [count(rows, "BLOCK_M"), count(known["OUT_C"], "BLOCK_N"), started[2]]
    else:
        raise NoStart(f"`{name}` is of a template that is not known here")
    if expected != list(started):
        raise NoStart(f"`{name}` is started with {started} blocks, where {expected} were expected")
    return grid


# What a step of a template's loop costs a multiprocessor of a Hopper GPU, in its cycles: until what it waits for has come, a byte of what it reads,
# and a product of two numbers, of 16 bits, and wider. From convolutions of 32 to 128 channels timed on an H200 with fourteen tiles each; they
# order those as the times do, within a fifth.
WAIT, BYTE, NARROW_PRODUCT, WIDE_PRODUCT = 240, 1 / 43, 1 / 1024, 1 / 128
BEGIN_STAGES = 3


def begins_with(config, choices, known, started, width):
    """The block sizes, warps and stages that should take the least time; a search goes on from there."""
    rows, columns = known.get("M"), known.get("N")
    terms, others = known.get("K") or known.get("IN_C", 1), math.prod(started[1:])
    if rows is None:
        rows = known["BATCH"] * known.get("OUT_D", 1) * known["OUT_H"] * known["OUT_W"]
        columns, others = known["OUT_C"], started[2]
    properties = torch.cuda.get_device_properties(0)
    product = NARROW_PRODUCT if width == 2 else WIDE_PRODUCT

    def takes(tile):
        high, wide, deep = tile
        if (high + wide) * deep * width * BEGIN_STAGES > properties.shared_memory_per_block_optin or high * wide < 256:
            return math.inf
        blocks = -(-rows // high) * -(-columns // wide) * others
        each = (high + wide) * deep * width * BYTE + high * wide * deep * product
        return -(-terms // deep) * (WAIT + max(1, blocks / properties.multi_processor_count) * each)

    high, wide, deep = min(itertools.product(*(choices[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))), key=takes)
    warps = 8 if high * wide >= 128 * 64 else 4 if high * wide >= 32 * 32 else 2
    blocks = {**{name: config[name] for name in choices}, "BLOCK_M": high, "BLOCK_N": wide, "BLOCK_K": deep}
    return {"blocks": blocks, "num_warps": warps, "num_stages": BEGIN_STAGES}


def worth_trying(width):
    """What fits: operands of a few slices in shared memory, and a block's sums in its threads' registers, with work for each."""
    held = f"(BLOCK_M + BLOCK_N) * BLOCK_K * {width} * STAGES <= SMEM_MAX"
    return [held, "BLOCK_M * BLOCK_N <= 8192 * WARPS", "BLOCK_M * BLOCK_N >= 128 * WARPS"]
