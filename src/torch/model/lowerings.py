"""Inductor's own patterns that leave a function of its code generator's in a graph."""

import contextlib


@contextlib.contextmanager
def without_lowerings(left=None):
    """Inductor has patterns that leave a function of its code generator's in a graph, such as for a product with weights of eight bits, which nobody else
    can call and in which no region is seen. Here they are left out; `left` is a set that gets the names of nodes which they would have replaced."""
    from torch._inductor.pattern_matcher import LoweringPatternEntry

    def apply(self, match, graph, node):
        if left is not None:
            left.add(node.name)

    usual, LoweringPatternEntry.apply = LoweringPatternEntry.apply, apply
    try:
        yield usual
    finally:
        LoweringPatternEntry.apply = usual


def lowered(graph, usual):
    """The graph with what `without_lowerings` left out."""
    from torch._inductor import config
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.pattern_matcher import LoweringPatternEntry

    if not config.pattern_matcher:
        return
    none, LoweringPatternEntry.apply = LoweringPatternEntry.apply, usual
    try:
        for patterns in post_grad.pass_patterns:
            patterns.apply(graph)
    finally:
        LoweringPatternEntry.apply = none
