"""What a model computes from nothing but its sizes, and then hides scores with: transformers' masks above all.

A region that reads such a tensor makes it itself: a kernel for it need not read which keys it may see, it knows. Where PyTorch is timed it is
made beforehand, as a pass makes it once for all layers."""

import torch

# What makes a mask has so many nodes at the most.
MOST_MAKING = 128
# A node with this mark is a mask's: of one that is read, it has the nodes that make it, itself the last; none of others.
MARK = "making"


def own_masks(graph):
    """Marks what only makes masks, and gives everything else that reads of it nodes of its own."""
    made, hiding, ancestors = {}, set(), {}
    for node in graph.nodes:
        node.meta.pop(MARK, None)
        if is_made(node, made):
            made[node] = node.meta["val"]
            ancestors[node] = {node}.union(*(ancestors[one] for one in node.all_input_nodes))
            if made[node].dtype == torch.bool or any(one in hiding for one in node.all_input_nodes):
                hiding.add(node)
    own = lambda node: node in hiding and (made[node].dtype == torch.bool or made[node].is_floating_point())
    read_outside = lambda node: any(user.op == "call_function" and user not in made for user in node.users)
    read = {node for node in hiding if own(node) and len(ancestors[node]) <= MOST_MAKING and read_outside(node)}
    making = set().union(*(ancestors[node] for node in read))
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in sorted(making, key=order.get, reverse=True):
        others = [user for user in node.users if user not in making]
        node.meta[MARK] = list(steps_to(node, {})) if node in read else []
        if node in read or not others:
            continue
        with graph.inserting_before(node):
            copy = graph.node_copy(node)
        del copy.meta[MARK]
        for user in others:
            user.replace_input_with(node, copy)


def steps_to(node, found):
    """The nodes that lead to one, each behind what it reads, in the order in which it reads them: where they stand in a graph depends on which of its
    copies it is."""
    for one in node.all_input_nodes:
        if one not in found:
            steps_to(one, found)
    found[node] = None
    return found


def is_made(node, made):
    """Whether a node computes a tensor of known sizes from what is computed from nothing itself."""
    if node.op != "call_function" or not (is_pure(node) or is_moved(node)) or "empty" in packet(node):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in (*value.shape, *value.stride())):
        return False
    return all(one in made for one in node.all_input_nodes)


def without_unread(graph):
    """Leaves out what makes masks that nobody reads any more."""
    for node in reversed(list(graph.nodes)):
        if is_making(node) and not node.users:
            graph.erase_node(node)


def is_making(node):
    """Whether a node does nothing but make a mask."""
    return MARK in node.meta
