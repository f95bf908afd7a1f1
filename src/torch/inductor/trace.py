"""What torch.compile would run for an operation: Inductor's code, taken where it is written and before anything of it is compiled."""

# What would make kernels depend on what is around them, or on a run before, or that no launch plan can say.
SETTINGS = {
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "fx_graph_cache": False,
    "size_asserts": False,
    "nan_asserts": False,
    "alignment_asserts": False,
    "assert_indirect_indexing": False,
    "shape_padding": False,
    "compile_threads": 1,
    "graph_partition": False,
    "combo_kernels": False,
    "benchmark_combo_kernel": False,
    "cpp_wrapper": False,
    "triton.cudagraphs": False,
    "triton.cooperative_reductions": False,
    "triton.mix_order_reduction": False,
    "triton.split_scan": False,
    "triton.autotune_at_compile_time": False,
}

# As max-autotune chooses block sizes, for the kernels that Inductor writes itself.
AUTOTUNED = {"max_autotune_pointwise": True, "coordinate_descent_tuning": True}


# What follows a convolution in memory that is channels-last is a part of its kernel only while its loops stay as they are.
CONVOLVED = {"pick_loop_orders": False}

# What is around a product of matrices becomes a part of its kernel where both go over memory in one order, whatever the shapes are by which they do.
MULTIPLIED = {"loop_ordering_after_fusion": False}
PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.baddbmm.")


def settings(bar, graph):
    """Those of them that this PyTorch has, for kernels that begin where the way of torch.compile ends which is to be beaten."""
    from torch._inductor import config

    def there(name):
        place = config
        for part in name.split("."):
            place = getattr(place, part, None)
        return place is not None

    has = lambda names: any(str(node.target).startswith(names) for node in graph.graph.nodes)
    wanted = SETTINGS | TEMPLATES | (AUTOTUNED if bar == "fastest" else {})
    wanted |= CONVOLVED if has("aten.convolution") else MULTIPLIED if has(PRODUCTS) else {}
    return {name: value for name, value in wanted.items() if there(name)}


class Written(BaseException):
    """Inductor has written its code; nothing that follows is wanted. No `Exception`, since those are wrapped on their way."""


def traced(call, tensors):
    """A graph of `call`, of which each result is row-major."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def whole(*given):
        # What the function changes is its own affair: its inputs are not.
        made = call([one.clone() if at in changed else one for at, one in enumerate(given)])
        return tuple(one.contiguous() for one in made)

    changed = set()
    graph = make_fx(whole, decomposition_table=rewritten())(*tensors)
    found = {at for at, node in enumerate(one for one in graph.graph.nodes if one.op == "placeholder") if is_changed(node)}
    if found:
        changed |= found
        graph = make_fx(whole, decomposition_table=rewritten())(*tensors)
    return converted_last(graph)


# Operators that give the same numbers as another type.
CONVERSIONS = ("aten._to_copy.default", "prims.convert_element_type.default")
TURNS = ("aten.t.default", "aten.permute.default", "aten.transpose.int")


def converted_last(graph):
    """The graph with what is turned and converted, such as a product's weights, turned first: so it is computed in the order in which it is read."""
    for node in list(graph.graph.nodes):
        if str(node.target) not in TURNS:
            continue
        before = node.args[0]
        if str(before.target) not in CONVERSIONS or len(before.users) > 1:
            continue
        with graph.graph.inserting_before(node):
            turned = graph.graph.call_function(node.target, (before.args[0], *node.args[1:]))
            converted = graph.graph.call_function(before.target, (turned, *before.args[1:]), dict(before.kwargs))
        node.replace_all_uses_with(converted)
        graph.graph.erase_node(node)
        graph.graph.erase_node(before)
    graph.recompile()
    return graph


def moved(graph, here, there):
    """The graph with another device in the place of the one on which it was traced."""
    from torch.utils._pytree import tree_map

    def other(value):
        return there if isinstance(value, torch.device) and value == here else value

    for node in graph.graph.nodes:
        node.args, node.kwargs = tree_map(other, node.args), tree_map(other, dict(node.kwargs))
    graph.recompile()
    return graph


def is_changed(node):
    """Whether an operator writes to it."""
    for user in node.users:
        # Its schema does not say that it writes running averages in training.
        if str(user.target) in ("aten.native_batch_norm.default", "aten.cudnn_batch_norm.default") and node in user.args[3:5]:
            return True
        schema = getattr(user.target, "_schema", None)
        if schema is None:
            continue
        arguments = {one.name: value for one, value in zip(schema.arguments, user.args)} | dict(user.kwargs)
        for one in schema.arguments:
            if one.alias_info is not None and one.alias_info.is_write and arguments.get(one.name) is node:
                return True
        # What is written to a view is written to it.
        if any(one.alias_info is not None and not one.alias_info.is_write for one in schema.arguments) and is_changed(user):
            return True
    return False


def code_of(graph, tensors, bar):
    """The Python that Inductor writes for a graph of tensors on a GPU."""
    from torch._inductor import compile_fx, config
    from torch._inductor.graph import GraphLowering

    found = []

    def written(self):
        code = self.codegen()
        code = code[0] if isinstance(code, tuple) else code
        found.append(getattr(code, "value", code))
        raise Written

    usual, GraphLowering.compile_to_module = GraphLowering.compile_to_module, written
    try:
        with config.patch(settings(bar, graph)), torch.no_grad():
            compile_fx.compile_fx(graph, list(tensors))
    except Written:
        pass
    except NoTemplate as why:
        raise NoStart(str(why)) from None
    finally:
        GraphLowering.compile_to_module = usual
    if len(found) != 1:
        raise NoStart("Inductor writes no code for it" if not found else "Inductor writes several graphs for it")
    return found[0]
