"""Puts kernels in the place of the regions that they were judged for."""

import contextlib
import copy
import operator
import types
from functools import partial
from typing import NamedTuple

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from . import direct, regions
from .launch import alike, ready
from .operators import LOADED, UNUSABLE, operator_of
from .plans import KERNELS, NAME, PLANS, TORCH, VERSION, say

# Graphs that one function may have: one for each form of its inputs.
GRAPHS = 64

# Kernels for strides that a graph does not have by itself, by the key that it has.
PLAIN = {}
for _kernel in KERNELS:
    if _kernel.get("plain"):
        PLAIN.setdefault(_kernel["plain"], []).append(_kernel["key"])

_before = None
# What `enable` was asked for.
_asked = None
# While enabled, patterns in which no region would be seen come after the kernels: what undoes that, and how Inductor applies one.
_held = contextlib.ExitStack()
_lowers = None
_placed = {}
_graphs = 0


def training():
    """Whether the graph at hand is one of training: what it saves for the way back was never judged."""
    try:
        context = torch._guards.TracingContext.try_get()
        return bool(context.fw_metadata.is_train) if context is not None and context.fw_metadata is not None else False
    except AttributeError:
        return True


class Pass(CustomGraphPass):
    """After Inductor's own patterns, before it writes code."""

    def __init__(self, asked=None):
        super().__init__()
        self.asked = asked or ALL

    def __call__(self, graph):
        placed = NOTHING
        try:
            placed = place(graph, self.asked)
            count(placed)
        finally:
            # Where the pass was seen to take longer with them, a graph that has kernels goes without.
            if _lowers is not None and not (placed.kernels and PLANS.get("without_lowerings")):
                regions.lowered(graph, _lowers)

    def uuid(self):
        # Inductor's cache would else have the graph of all kernels stand for that of some.
        return ["warpsmith", NAME, VERSION, self.asked.unjudged, *sorted(wanted(self.asked.only))]


class Asked(NamedTuple):
    """What is to be placed: kernels of these names, where there are any; and whether those for other devices may be, which nobody has judged."""

    only: frozenset = None
    unjudged: bool = False


ALL = Asked()


def asked_for(only, unjudged):
    """A name that no kernel has is an error, since nothing would come of it."""
    if only is None:
        return Asked(None, unjudged)
    only = frozenset([only] if isinstance(only, str) else only)
    names = [kernel["name"] for kernel in KERNELS]
    unknown = sorted(only.difference(names))
    if unknown:
        raise ValueError(f"{NAME} has no kernel {', '.join(unknown)}; its kernels are {', '.join(names)}")
    return Asked(only, unjudged)


def wanted(only):
    """Kernels that can be used here by their keys, of those that are asked for."""
    return {key: kernel for key, kernel in LOADED.items() if only is None or kernel.name in only}


class Placed(NamedTuple):
    """How often each kernel is in a graph, and which operators of PyTorch's were taken apart in their places."""

    kernels: dict
    apart: set


NOTHING = Placed({}, set())


def place(graph, asked=ALL, lays_out=True, tells=True):
    """Replaces what is known, and gives what that is; leaves a graph untouched of which nothing is known. `lays_out` says whether what follows can
    have tensors lie in memory as the kernels want them, `tells` whether the user hears what is in it."""
    only = asked.only
    kernels = wanted(only)
    if training():
        say(
            "a graph that wants gradients is left as it is, because the kernels were judged without; call the model under torch.no_grad() or "
            "torch.inference_mode() (eval() alone does not do that)"
        )
        return NOTHING
    gm = graph.owning_module
    if any(isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat)) for node in graph.nodes if node.op == "placeholder"):
        say("a graph with dynamic shapes is left as it is; torch.compile(..., dynamic=False) keeps a graph for each shape")
        return NOTHING
    # First on a copy: where nothing is placed nothing is changed.
    known = len(KERNELS if only is None else only)
    if not chosen(copied(gm), kernels, asked, lays_out):
        families = {kernel["family"] for kernel in KERNELS if only is None or kernel["name"] in only}
        others = {region.family for region in all_regions(copied(gm))} & families
        if others and tells:
            say(f"a graph has {len(others)} of the {known} computations at shapes, strides or types that were not judged; it stays as it is")
        return NOTHING
    found = chosen(gm, kernels, asked, lays_out)
    apart = {regions.named(node.meta["original_aten"]) for region in found for node in region.nodes if node.meta.get("original_aten")}
    for region in found:
        replace(graph, region)
    regions.without_unread(graph)
    names = {}
    for region in found:
        name = LOADED[region.key_].name
        names[name] = names.get(name, 0) + 1
    left = sorted(kernel.name for kernel in kernels.values() if kernel.name not in names)
    text = f"{len(names)} of {known} kernels are in this graph, in {len(found)} places"
    if tells:
        say(text + (f"; not in it: {', '.join(left)}" if left else ""))
    return Placed(names, apart)


def count(placed):
    """One graph more, with these kernels in it."""
    global _graphs
    _graphs += 1
    for name, times in placed.kernels.items():
        _placed[name] = _placed.get(name, 0) + times


def copied(gm):
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return torch.fx.GraphModule(gm, graph)


def all_regions(gm):
    fusible, calls, pairs = regions.cut(gm)
    return [*pairs, *fusible, *calls]


def chosen(gm, kernels, asked, lays_out):
    """Regions with one of the kernels; the larger ones first, and none that share a node, or read of each other in a circle."""
    taken, found = set(), []
    for region in all_regions(gm):
        if not regions.is_static(region) or taken & set(region.nodes):
            continue
        region.key_ = key_of(region, kernels, lays_out)
        if region.key_ is not None and is_for(kernels[region.key_], region, asked):
            taken |= set(region.nodes)
            found.append(region)
    if regions.is_acyclic(gm.graph, found):
        return found
    without = []
    for region in found:
        if regions.is_acyclic(gm.graph, [*without, region]):
            without.append(region)
    return without


def key_of(region, kernels, lays_out):
    """The key of the kernel for it: its own, or that of one for strides that Inductor is asked for; none where there is none. What the graph returns
    lies as the model says."""
    own = region.key
    fitting = {key: differing(kernels[key], region) for key in (own, *PLAIN.get(own, ())) if key in kernels}
    # Of several the one for which least has to lie otherwise.
    for key, others in sorted(fitting.items(), key=lambda one: len(one[1])):
        made = [node for node in others if node in region.outputs]
        is_free = lays_out and not any(user.op == "output" for node in made for user in node.users) and not any(map(regions.is_stepped_over, made))
        if not others or is_free:
            return key
    return None


def differing(kernel, region):
    """What a region reads and gives that does not lie in memory as the kernel has it."""
    sides = (*zip(region.inputs, kernel.forms), *zip(region.outputs, kernel.made))
    return [node for node, (_, stride, _) in sides if not has_strides(node.meta["val"], stride)]


def is_for(kernel, region, asked):
    """Whether a kernel was judged for the device that a region is on, or is asked for without that."""
    device = region.inputs[0].meta["val"].device
    why = kernel.why_not(device, asked.unjudged)
    if why:
        say(f"{kernel.name} is left out: {why}")
    elif notice := kernel.notice(device):
        say(notice)
    return why is None


def replace(graph, region):
    """One call for the nodes of a region, with everything about it that Inductor asks for."""
    # What stood before it may have been replaced meanwhile.
    inside, inputs = set(region.nodes), []
    for node in region.nodes:
        for one in node.all_input_nodes:
            # A mask is made by whoever reads it.
            if one not in inside and one not in inputs and not regions.is_making(one):
                inputs.append(one)
    kernel, last = LOADED[region.key_], region.nodes[-1]
    values = [laid_out(node.meta["val"], stride) for node, (_, stride, _) in zip(region.outputs, kernel.made)]
    with graph.inserting_before(last.next):
        inputs = [in_strides(graph, one, stride) for one, (_, stride, _) in zip(inputs, kernel.forms)]
        call = graph.call_function(operator_of(region.key_), tuple(inputs))
    single = len(values) == 1
    call.meta["val"] = values[0] if single else tuple(values)
    # Without these Inductor gives inputs any strides it likes, and a kernel would read them wrongly.
    call.meta["eager_input_vals"] = (tuple(one.meta["val"] for one in inputs), {})
    for key in ("stack_trace", "nn_module_stack"):
        if key in last.meta:
            call.meta[key] = last.meta[key]
    results, at = [], call
    for index, value in enumerate(values):
        if single:
            results.append(call)
            break
        with graph.inserting_after(at):
            at = graph.call_function(operator.getitem, (call, index))
        at.meta["val"] = value
        results.append(at)
    for node, result in zip(region.outputs, results):
        node.replace_all_uses_with(result)
    for node in reversed(region.nodes):
        graph.erase_node(node)
    in_order(graph)


def has_strides(value, stride):
    return value.stride() == stride or alike(value, stride)


def laid_out(value, stride):
    """The same tensor with these strides; itself where it has them."""
    return value if has_strides(value, stride) else value.new_empty_strided(value.shape, stride)


def in_strides(graph, node, stride):
    """A node's value as it is judged. Inductor has whoever computes it write it so where nothing else was promised, and copies it elsewhere."""
    value = node.meta["val"]
    wanted = laid_out(value, stride)
    if wanted is value:
        return node
    forced = graph.call_function(torch.ops.prims.inductor_force_stride_order.default, (node, list(stride)))
    forced.meta["val"] = wanted
    return forced


def in_order(graph):
    """Every node behind what it reads, as Inductor does again later."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    stable_topological_sort(graph)


def enable(only=None, unjudged=False):
    """Has torch.compile place the kernels from now on; those of the names in `only`, where there are any. `unjudged` places those too that
    were compiled for the GPU at hand and judged on another. What was compiled before is compiled again when it is called next: torch.compile
    would else use it for the same model."""
    global _before, _asked, _lowers
    from torch._inductor import config

    asked = asked_for(only, unjudged)
    if _before is not None:
        if asked != _asked:
            _asked = asked
            config.post_grad_custom_post_pass = Pass(asked)
            torch._dynamo.reset()
        return
    if config.post_grad_custom_post_pass is not None:
        raise RuntimeError(f"{NAME}: another pass is set in torch._inductor.config.post_grad_custom_post_pass already; disable that first")
    for name, why in UNUSABLE.items():
        say(f"{name} is left out: {why}")
    if torch.__version__ != TORCH:
        say(f"exported with PyTorch {TORCH}, and this is {torch.__version__}: regions may be cut differently; what is placed is said with every graph")
    ready()
    direct.prepare()
    dynamo = torch._dynamo.config
    _before = (dynamo.automatic_dynamic_shapes, dynamo.recompile_limit, config.shape_padding)
    # A second shape would else make one dynamic graph for both, in which no kernel has a place.
    dynamo.automatic_dynamic_shapes = False
    # So each shape has a graph of its own, and behind the limit nothing is compiled any more.
    dynamo.recompile_limit = max(dynamo.recompile_limit, GRAPHS)
    # Pads products after a measurement: the graph would differ from run to run.
    config.shape_padding = False
    config.post_grad_custom_post_pass = Pass(asked)
    _lowers = _held.enter_context(regions.without_lowerings())
    _asked = asked
    torch._dynamo.reset()


def disable():
    """Everything as it was before `enable()`; graphs compiled meanwhile are dropped."""
    global _before, _asked, _lowers
    from torch._inductor import config

    if _before is None:
        return
    dynamo = torch._dynamo.config
    dynamo.automatic_dynamic_shapes, dynamo.recompile_limit, config.shape_padding = _before
    config.post_grad_custom_post_pass = None
    _held.close()
    _before = _asked = _lowers = None
    torch._dynamo.reset()


def is_enabled():
    return _before is not None


def patch(model, only=None, unjudged=False):
    """The model with the kernels in it (those that `enable` would place) and without torch.compile: its graphs are run by
    PyTorch operator by operator, those with a kernel's place in them as Inductor would cut them, all others as they were written."""
    asked = asked_for(only, unjudged)
    before = patched_by_us(model)
    if before is not None:
        if before.asked == asked:
            return model
        unpatch(model)
    ready()
    model._warpsmith = Patched(vars(model).get("forward"), asked)
    model.forward = types.MethodType(forward, model)
    return model


class Patched:
    """What a model had for its `forward`, if that was an attribute of its own, and what was asked for. A copy of the model compiles its own."""

    def __init__(self, forward, asked):
        self.package, self.forward, self.asked, self.compiled = NAME, forward, asked, None

    def original(self, model):
        return type(model).forward.__get__(model) if self.forward is None else self.forward

    def __deepcopy__(self, known):
        return Patched(copy.deepcopy(self.forward, known), self.asked)


def forward(model, *arguments, **named):
    """What a patched model calls."""
    patched = model._warpsmith
    if torch.is_grad_enabled() and (any(one.requires_grad for one in model.parameters()) or any_grad(arguments) or any_grad(named)):
        say("patched models take the original way where gradients are wanted; torch.no_grad() or torch.inference_mode() avoids that")
        return patched.original(model)(*arguments, **named)
    if patched.compiled is None:
        ours = backend if patched.asked == ALL else partial(backend, asked=patched.asked)
        patched.compiled = torch.compile(patched.original(model), backend=ours, dynamic=False)
    return patched.compiled(*arguments, **named)


def patched_by_us(model):
    """What `patch` left, if it did; no two packages have their kernels in one model."""
    before = vars(model).get("_warpsmith")
    if before is not None and before.package != NAME:
        raise RuntimeError(f"{NAME}: this model is patched by {before.package}; unpatch it there first")
    return before


def any_grad(arguments):
    from torch.utils._pytree import tree_leaves

    return any(isinstance(one, torch.Tensor) and one.requires_grad for one in tree_leaves(arguments))


def unpatch(model):
    """Takes `patch` back."""
    before = patched_by_us(model)
    if before is not None:
        del model._warpsmith, model.forward
        if before.forward is not None:
            model.forward = before.forward
    return model


def eager_functions():
    """Operators that are written in Python, for compilers, and take much longer than what they do when called by themselves (a conversion a hundred times as long); each
    with a function that does the same."""
    from torch._inductor import inductor_prims as own

    conversion = torch.ops.prims.convert_element_type.default  # It always makes a tensor.
    return {conversion: lambda one, dtype: one.to(dtype, copy=True), own.prepare_softmax_online: own.eager_prepare_softmax}


# What PyTorch has a kernel for, and Inductor takes apart.
WHOLE = {
    "native_layer_norm", "native_group_norm", "_native_batch_norm_legit_no_training", "_fused_rms_norm", "_softmax", "_log_softmax", "gelu", "silu", "mish", "elu", "softplus",
    "leaky_relu", "hardswish", "hardsigmoid", "hardtanh", "upsample_bilinear2d", "upsample_nearest2d",
}


def backend(gm, inputs, asked=ALL):
    """A backend of torch.compile that generates no code: operators are PyTorch's own, and those into which Inductor takes them apart only where a
    kernel has its place among these."""
    from torch._inductor.decomposition import select_decomp_table

    small = Steps(gm, inputs, asked)
    if not small.placed.kernels:
        count(small.placed)
        return gm.forward
    whole = WHOLE - small.placed.apart
    large = Steps(gm, inputs, asked, {operator: parts for operator, parts in select_decomp_table().items() if regions.named(operator) not in whole})
    better = large if large.placed.kernels == small.placed.kernels else small
    count(better.placed)
    return better.run


class Steps:
    """A graph run operator by operator, with the kernels in it that `placed` has."""

    def __init__(self, gm, inputs, asked, decompositions=None):
        from torch._inductor import compile_fx, config

        self.asked, self.tells, self.placed = asked, decompositions is None, NOTHING
        mine = copied(gm)
        mine.meta = dict(gm.meta)
        with config.patch(fx_graph_cache=False):
            self.run = compile_fx.compile_fx(mine, inputs, inner_compile=self.inner, decompositions=decompositions)

    def place(self, graph):
        self.placed = place(graph, self.asked, lays_out=False, tells=self.tells)

    def inner(self, lowered, values, **options):
        from torch._inductor import compile_fx, config
        from torch._inductor.virtualized import V

        compile_fx.view_to_reshape(lowered)
        with torch.no_grad():
            mode = compile_fx.fake_tensor_prop(lowered, values)
        placing = config.patch(post_grad_custom_post_pass=self.place, shape_padding=False)
        with V.set_fake_mode(mode), regions.without_lowerings(), placing:
            compile_fx._recursive_post_grad_passes(lowered, is_inference=options.get("is_inference", False))
        functions = {operator_of(key): function for key, function in direct.FUNCTIONS.items()} | eager_functions()
        for node in lowered.graph.nodes:
            node.target = functions.get(node.target, node.target)
        lowered.recompile()

        def run(given):
            mine = list(given)
            given.clear()
            return lowered(*mine)

        run._boxed_call = True
        return run


def status():
    """What was placed (in graphs that were compiled in this process), how often each kernel was called, and what cannot be used."""
    return {
        "enabled": is_enabled(),
        "graphs": _graphs,
        "placed": dict(_placed),
        "called": {kernel.name: kernel.calls for kernel in LOADED.values()},
        "unusable": dict(UNUSABLE),
    }
