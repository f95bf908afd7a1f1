"""Regions of a post-grad graph: what Inductor fuses into kernels of its own, and what it hands to libraries.

The same text cuts the graph when a model is profiled and when an exported package looks for the places of its kernels, so that
both find the same regions under the same hashes. It needs torch and nothing else.
"""

import hashlib
import math
import operator

import torch

# Arguments that are sizes: left out of the hash of a family, which does not know sizes.
SIZED = {
    "view", "reshape", "_unsafe_view", "expand", "full", "empty", "as_strided", "iota", "slice", "repeat", "zeros", "ones", "select",
    "constant_pad_nd", "split_with_sizes", "split", "unfold", "empty_strided", "new_full", "new_zeros", "new_ones", "arange",
}

# What Inductor calls, or writes as a product, though it has no entry among those whose work PyTorch counts; and where such operators are by themselves.
CALLED = {
    "_int_mm", "_grouped_mm", "_scaled_grouped_mm", "_sparse_semi_structured_mm", "_weight_int4pack_mm_for_cpu", "_weight_int8pack_mm", "mkldnn_rnn_layer",
}
CALLED_IN = {"_c10d_functional", "mkldnn", "mkl", "onednn"}

# So many products of one tensor are one region at the most: as many as the kernels that ship have places for. Where they are of several
# widths these have a common part of so many columns, or a multiple, of which there are so many at the most in all.
MOST_SIBLINGS, LEAST_COMMON, MOST_PARTS = 3, 64, 32


class Region:
    """Nodes of a graph in its order; `kind` is "fusible", "library" (one call), or "joined" (several)."""

    def __init__(self, nodes, kind):
        self.nodes, self.kind = nodes, kind
        # Its key by the strides that the graph has by itself, where others were found (`lay_out`).
        self.plain = None
        inside = set(nodes)
        self.inputs = []
        # Masks that it reads, which it makes itself: by which nodes, in order.
        self.masks, making = [], {}
        for node in nodes:
            for one in node.all_input_nodes:
                if one in inside or one in self.inputs or one in self.masks:
                    continue
                if is_making(one) and not is_making(node):
                    self.masks.append(one)
                    making.update(dict.fromkeys(one.meta[MARK]))
                else:
                    self.inputs.append(one)
        self.making = list(making)
        self.outputs = [node for node in nodes if any(user not in inside for user in node.users)]

    def values(self):
        return [node.meta.get("val") for node in self.inputs], [node.meta.get("val") for node in self.outputs]

    @property
    def key(self):
        """Operators, wiring, constants, and every size, stride and type."""
        return digest(canonical(self, sizes=True))

    @property
    def family(self):
        """The same without sizes."""
        return digest(canonical(self, sizes=False))


def digest(lines):
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def canonical(region, sizes):
    """A text that is the same for equal regions of any two graphs."""
    number = {node: f"i{at}" for at, node in enumerate(region.inputs)}
    number.update({node: f"m{at}" for at, node in enumerate(region.making)})
    number.update({node: f"n{at}" for at, node in enumerate(region.nodes)})

    def text(value, masked):
        if isinstance(value, torch.fx.Node):
            return number[value]
        if isinstance(value, (list, tuple)):
            return "[" + ",".join(text(one, masked) for one in value) + "]"
        if isinstance(value, bool) or value is None:
            return str(value)
        if isinstance(value, float):
            return value.hex()
        if isinstance(value, int):
            return "*" if masked else str(value)
        if isinstance(value, torch.device):
            return value.type
        return str(value)

    lines = []
    for node in region.inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            lines.append(form(value) if sizes else f"{value.dtype} {value.dim()}")
        else:
            lines.append(type(value).__name__)
    for node in (*region.making, *region.nodes):
        name = str(node.target)
        masked = not sizes and packet(node) in SIZED
        arguments = [text(one, masked) for one in node.args]
        arguments += [f"{key}={text(one, masked)}" for key, one in sorted(node.kwargs.items())]
        lines.append(f"{number[node]} = {name}({', '.join(arguments)})")
    lines.append("return " + ", ".join(number[node] for node in region.outputs))
    return lines


def form(value):
    return f"{value.dtype} {list(map(size_of, value.shape))} {list(map(size_of, value.stride()))} {value.device.type}"


def size_of(size):
    """A size that the graph is for; by its name where only the values tell."""
    try:
        return int(size)
    except Exception:
        return str(size)


def written_over(node):
    """The graph's input over which a pass writes what a node gives, as a step does with a cache; none where it does not."""
    for user in node.users:
        if user.target is torch.ops.aten.copy_.default and user.args[1] is node and user.args[0].op == "placeholder":
            return user.args[0]
    return None


def packet(node):
    return named(node.target)


def named(target):
    """An operator's name, whatever it is called with."""
    return target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def is_view(node):
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view and target.namespace in ("aten", "prims")


def is_pure(node):
    """Neither random nor changing its arguments."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    # PyTorch calls attention random whether it drops anything or not.
    random = torch.Tag.nondeterministic_seeded in target.tags and not (is_attention(node) and argument(node, "dropout_p") == 0)
    random = random or "inductor_random" in str(target) or "inductor_seed" in str(target)
    return not (target._schema.is_mutable or random)


def is_attention(node):
    """One of PyTorch's own kernels for attention, whichever it chose."""
    return isinstance(node.target, torch._ops.OpOverload) and packet(node).startswith("_scaled_dot_product_") and "backward" not in packet(node)


def is_grouped(node):
    """Products of groups of rows with a matrix each."""
    return packet(node) == "_grouped_mm"


def is_of_compiler(node):
    """An operator of the compiler's own, as for a softmax in one go, that PyTorch has once the compiler is imported."""
    import torch._inductor.inductor_prims as own

    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "prims" and hasattr(own, packet(node))


def is_unusual(node):
    """A library's call that is neither a product, nor a convolution, nor attention."""
    from torch.utils.flop_counter import flop_registry

    return is_library(node) and node.target.overloadpacket not in flop_registry and not is_attention(node)


def argument(node, name):
    """An argument of an operator's call by its name, or what stands for it; none where the operator has no such argument."""
    for at, one in enumerate(node.target._schema.arguments):
        if one.name == name:
            return node.kwargs.get(name, node.args[at] if at < len(node.args) else one.default_value)
    return None


def is_fusible(node):
    """Whether Inductor writes the code of it itself."""
    if node.op != "call_function" or not is_pure(node) or node.target.namespace in CALLED_IN or packet(node) in CALLED:
        return False
    from torch._inductor.lowering import fallbacks, lowerings
    from torch.utils.flop_counter import flop_registry

    target = node.target
    if target not in lowerings or target in fallbacks or target.overloadpacket in flop_registry:
        return False
    if target == torch.ops.aten.cat.default:
        return len(node.args[0]) <= torch._inductor.config.max_pointwise_cat_inputs
    return True


def is_library(node):
    """What Inductor calls and does not write: products, convolutions, attention, sorting, operators of others."""
    if node.op != "call_function" or not is_pure(node) or is_fusible(node) or is_moved(node):
        return False
    value = node.meta.get("val")
    return any(isinstance(one, torch.Tensor) for one in (value if isinstance(value, (list, tuple)) else [value]))


def is_static(region):
    """Whether every size is known, and everything that goes in and out is a tensor."""
    for side in region.values():
        for value in side:
            if not isinstance(value, torch.Tensor):
                return False
            if any(not isinstance(size, int) for size in (*value.shape, *value.stride())):
                return False
    return True


def fusible_regions(gm):
    """Convex sets of nodes that Inductor can fuse, each connected."""

    def is_supported(node):
        if node.op != "call_function":
            return False
        if node.target is operator.getitem:
            return isinstance(node.args[0], torch.fx.Node) and is_supported(node.args[0])
        return is_pure(node) and (is_fusible(node) or is_view(node))

    order = {node: at for at, node in enumerate(gm.graph.nodes)}
    # What makes masks is by itself: whoever reads one makes it.
    parts = partitions(gm.graph, lambda node: is_supported(node) and not is_making(node))
    if any(map(is_making, gm.graph.nodes)):
        parts += partitions(gm.graph, lambda node: is_supported(node) and is_making(node))
    found = []
    for nodes in parts:
        # A view that nobody inside reads is its reader's: a transposed weight is no output.
        while True:
            outside = {node for node in nodes if is_moved(node) and not any(user in nodes for user in node.users)}
            if not outside:
                break
            nodes -= outside
        for part in connected(nodes):
            if any(not is_moved(node) for node in part):
                region = Region(sorted(absorbed(part), key=order.get), "fusible")
                # What nobody reads is never computed.
                found += [region] if region.outputs else []
    return sorted(found, key=lambda region: order[region.nodes[0]])


def is_moved(node):
    """A view, or a part of one: it computes nothing."""
    if node.target is operator.getitem:
        return is_moved(node.args[0])
    return is_view(node)


# What reads memory by steps of its own, and other elements where a tensor lies otherwise.
STEPPING = {"as_strided", "as_strided_scatter", "as_strided_copy", "resize", "resize_as"}


def is_stepped_over(node):
    """Whether something reads what a node gives, or a view of that, by steps of its own."""
    return any(packet(user) in STEPPING or (is_moved(user) and is_stepped_over(user)) for user in node.users if user.op == "call_function")


def own_views(graph):
    """Gives every reader of a view one of its own, so that no region has to give away a view that it reads. Which reader gets which does not depend on the order in which
    they came to read it, which another copy of the graph has otherwise."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and is_moved(node):
            for user in sorted(node.users, key=order.get)[1:]:
                with graph.inserting_before(node):
                    mine = graph.node_copy(node)
                order[mine] = order[node]
                user.replace_input_with(node, mine)


def absorbed(nodes):
    """With the views through which it reads what others computed."""
    nodes = set(nodes)
    more = list(nodes)
    while more:
        for one in more.pop().all_input_nodes:
            if one not in nodes and one.op == "call_function" and is_moved(one) and not is_making(one) and all(user in nodes for user in one.users):
                nodes.add(one)
                more.append(one)
    return nodes


def connected(nodes):
    left, parts = set(nodes), []
    while left:
        part, more = set(), [left.pop()]
        while more:
            node = more.pop()
            part.add(node)
            for one in (*node.all_input_nodes, *node.users):
                if one in left:
                    left.discard(one)
                    more.append(one)
        parts.append(part)
    return parts


def library_calls(gm):
    """Every call of a library, with the parts that are taken of its results."""
    order = {node: at for at, node in enumerate(gm.graph.nodes)}
    calls = []
    for node in filter(is_library, gm.graph.nodes):
        nodes = absorbed([node, *(user for user in node.users if user.target is operator.getitem)])
        calls.append(Region(sorted(nodes, key=order.get), "library"))
    return calls


def joined(gm, fusible, calls):
    """Calls together with the fusible region that takes all they give; and, before each of these, the same with the call that alone takes
    what the region gives: both halves of an MLP. A call brings along what only widens or converts its arguments, such as weights of eight bits, or
    autocast's in single precision: what it reads would never have to be written."""
    order = {node: at for at, node in enumerate(gm.graph.nodes)}
    home = {node: region for region in (*fusible, *calls) for node in region.nodes}
    before = {}
    widened = {id(call): call for call in calls}
    for region in fusible:
        call = only_reader(region, home)
        if call is not None and call.kind == "library" and is_conversion(region) and is_convex({*region.nodes, *widened[id(call)].nodes}):
            widened[id(call)] = Region(sorted({*region.nodes, *widened[id(call)].nodes}, key=order.get), "joined")
    for call in calls:
        reader = only_reader(call, home)
        if reader is not None and reader.kind == "fusible":
            before.setdefault(id(reader), []).append(call)
    found = []
    for region in fusible:
        nodes = set(region.nodes)
        for call in before.get(id(region), []):
            more = nodes | set(widened[id(call)].nodes)
            if is_convex(more):
                nodes = more
                del widened[id(call)]
        if len(nodes) == len(region.nodes):
            continue
        behind = only_reader(region, home)
        whole = nodes
        if behind is not None and behind.kind == "library":
            whole = nodes | set(widened.get(id(behind), behind).nodes)
        if len(whole) > len(nodes) and is_convex(whole):
            found.append(Region(sorted(whole, key=order.get), "joined"))
            attention = scaled_and_moved(whole, fusible, home) if is_decomposed_attention(whole) else set()
            if len(attention) > len(whole) and is_convex(attention):
                found.append(Region(sorted(attention, key=order.get), "joined"))
        found.append(Region(sorted(nodes, key=order.get), "joined"))
    return found + [call for call in widened.values() if call.kind == "joined"]


# What gives the same numbers elsewhere, or as another type.
MOVING = {"clone", "convert_element_type"}


def is_decomposed_attention(nodes):
    """Whether scores of one product go through a softmax into another, which is how PyTorch runs attention that none of its kernels takes."""
    counts = [packet(node) for node in nodes]
    return counts.count("bmm") == 2 and any(one in ("exp", "_softmax") for one in counts)


def scaled_and_moved(nodes, fusible, home):
    """With what does nothing but scale, convert and move what nodes alone read, or convert and move what they give."""
    whole = set(nodes)
    for region in fusible:
        readers = {user for node in region.nodes for user in node.users} - set(region.nodes)
        if readers <= nodes and all(is_moved(node) or torch.Tag.pointwise in node.target.tags for node in region.nodes) and len(region.inputs) == 1:
            whole |= set(region.nodes)
    behind = only_reader(Region(list(nodes), "joined"), home)
    if behind is not None and behind.kind == "fusible" and all(is_moved(node) or packet(node) in MOVING for node in behind.nodes):
        whole |= set(behind.nodes)
    return whole


def is_conversion(region):
    """Whether it writes more bytes than it reads, or nothing but the same numbers as another type."""
    if not is_static(region):
        return False
    taken, made = (sum(value.numel() * value.itemsize for value in side) for side in region.values())
    return taken < made or all(is_moved(node) or packet(node) == "convert_element_type" for node in region.nodes)


# Products of matrices by the place of their first factor; a bias comes before it.
PRODUCTS = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}


def siblings(gm, calls):
    """Products of one tensor by several that lie alike, such as attention's queries, keys and values, of which the last two may be narrower: what one
    kernel can compute at once. Of more than MOST_SIBLINGS each so many."""
    order = {node: at for at, node in enumerate(gm.graph.nodes)}
    alike, width = {}, {}
    for call in calls:
        product = next(node for node in call.nodes if not is_moved(node))
        if product.target not in PRODUCTS or product.kwargs or not is_static(call):
            continue
        # What is read as the same numbers in the same order is the same tensor, whoever's view it is.
        at = PRODUCTS[product.target]
        left, right = (one.meta["val"] for one in product.args[at : at + 2])
        read = (root_of(product.args[at]), form(left), left.storage_offset())
        terms, width[call] = right.shape
        lies = next((way for way, strides in (("turned", (1, terms)), ("rows", (width[call], 1))) if right.stride() == strides), form(right))
        bias = [(one.meta["val"].dtype, one.meta["val"].stride()) for one in product.args[:at]]
        alike.setdefault((product.target, *read, right.dtype, lies, *bias), []).append(call)
    found = []
    for some in alike.values():
        while len(some) > 1:
            together, others = [], []
            for call in some:
                nodes = {node for one in (*together, call) for node in one.nodes}
                fits = not together or (len(together) < MOST_SIBLINGS and has_common(width[one] for one in (*together, call)) and is_convex(nodes))
                (together if fits else others).append(call)
            if len(together) > 1:
                nodes = {node for one in together for node in one.nodes}
                found.append(Region(sorted(nodes, key=order.get), "joined"))
            some = others
    return found


def has_common(widths):
    """Whether products of so many columns each are some of one width, side by side."""
    widths = list(widths)
    common = math.gcd(*widths)
    return len(set(widths)) == 1 or (common % LEAST_COMMON == 0 and sum(widths) <= common * MOST_PARTS)


def root_of(node):
    """What a view is a view of."""
    while node.op == "call_function" and is_moved(node):
        node = node.all_input_nodes[0]
    return node


def only_reader(region, home):
    """The region that alone takes what one gives; none where several do, or something that is in none."""
    readers = {user for node in region.nodes for user in node.users} - set(region.nodes)
    homes = {id(home.get(user)): home.get(user) for user in readers}
    return next(iter(homes.values())) if len(homes) == 1 else None


def is_convex(nodes):
    """Whether no path leaves the set and comes back."""
    seen, more = set(), [user for node in nodes for user in node.users if user not in nodes]
    while more:
        node = more.pop()
        if node in seen:
            continue
        seen.add(node)
        for user in node.users:
            if user in nodes:
                return False
            more.append(user)
    return True


def is_acyclic(graph, regions):
    """Whether each of some regions can be one node: two that are convex by themselves may read of each other."""
    home = {node: at for at, region in enumerate(regions) for node in region.nodes}
    before, after = {}, {}
    for node in graph.nodes:
        own = home.get(node, node)
        before.setdefault(own, set())
        for one in node.all_input_nodes:
            other = home.get(one, one)
            if other != own and other not in before[own]:
                before[own].add(other)
                after.setdefault(other, []).append(own)
    waiting = {own: len(some) for own, some in before.items()}
    ready = [own for own, count in waiting.items() if count == 0]
    done = 0
    while ready:
        done += 1
        for own in after.get(ready.pop(), ()):
            waiting[own] -= 1
            if waiting[own] == 0:
                ready.append(own)
    return done == len(waiting)


def cut(gm):
    """All regions of a graph: fusible ones, calls of libraries, and several of these together, those of most first. The graph gets more views
    (own_views), and what makes masks for them alone (own_masks)."""
    own_views(gm.graph)
    own_masks(gm.graph)
    fusible, calls = fusible_regions(gm), library_calls(gm)
    home = {node: region for region in (*fusible, *calls) for node in region.nodes}
    parts = lambda region: len({id(home[node]) for node in region.nodes if node in home})
    others = [[region for region in some if not any(map(is_making, region.nodes))] for some in (fusible, calls)]
    wholes = sorted([*joined(gm, *others), *siblings(gm, others[1])], key=parts, reverse=True)
    return fusible, calls, wholes
