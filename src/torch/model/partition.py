"""Which nodes of a graph can be computed together."""

import operator


def partitions(graph, is_supported):
    """Sets of supported nodes, each as large as it gets without a path that leaves it and comes back, those through other sets included. The sets are those of
    torch.fx's CapabilityBasedPartitioner (`propose_partitions`, single nodes allowed), which walks over every path for each two sets: 47 s for a
    Llama of 32 layers, where nodes and sets are bits of whole numbers here and it takes 0.5."""
    nodes = list(reversed(graph.nodes))
    place = {node: at for at, node in enumerate(nodes)}
    users = [sum(1 << place[user] for user in node.users) for node in nodes]
    # What each leads to; users come before what they use.
    below = []
    for own in users:
        for user in bits(own):
            own |= below[user]
        below.append(own)
    sets, home = {}, {}
    for at, node in enumerate(nodes):
        own = None
        if is_supported(node):
            own = home[at] = Part(len(home), 1 << at, users[at])
            for user in filter(home.__contains__, bits(users[at])):
                own.leads_to |= home[user].bit | home[user].leads_to
            sets[own.first] = own
        tried = sorted((one for one in sets.values() if one is not own), key=lambda one: one.first)
        if own is None and tried:
            own, *tried = tried
        for other in tried:
            if not is_one(own, other, below, sets.values()):
                continue
            first = min(own.first, other.first)
            del sets[own.first], sets[other.first]
            own, gone = (own, other) if own.nodes.bit_count() >= other.nodes.bit_count() else (other, own)
            for member in bits(gone.nodes):
                home[member] = own
            own.take(gone, first)
            sets[first] = own
    return with_results(graph, {nodes[at]: own for at, own in home.items()})


class Part:
    """A set: its nodes, who reads them, and which sets they lead to (by their bits; of sets that are no more, too)."""

    def __init__(self, number, nodes, users):
        self.first, self.bit = number, 1 << number
        self.nodes, self.users, self.leads_to = nodes, users, 0

    def take(self, other, first):
        self.first = first
        self.nodes |= other.nodes
        self.users = (self.users | other.users) & ~self.nodes
        self.leads_to |= other.leads_to


def is_one(own, other, below, sets):
    """Whether nothing that two sets lead to leads back to them."""
    nodes, wanted, reached = own.nodes | other.nodes, own.bit | other.bit, 0
    for user in bits((own.users | other.users) & ~nodes):
        if below[user] & nodes:
            return False
        reached |= below[user]
    return not any(one.leads_to & wanted and one.nodes & reached for one in sets)


def bits(number):
    """The places of the bits that are set."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def with_results(graph, home):
    """The sets, each part of a result in the set of what gives it."""
    while True:
        moved = {}
        for node in graph.nodes:
            if all(user.op == "call_function" and user.target is operator.getitem for user in node.users):
                moved.update((user, home.get(node)) for user in node.users if home.get(user) is not home.get(node))
        if not moved:
            break
        home.update(moved)
        home = {node: own for node, own in home.items() if own is not None}
    found = {}
    for node, own in home.items():
        found.setdefault(own, set()).add(node)
    return list(found.values())
