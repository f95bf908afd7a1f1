"""Kernels as operators of PyTorch, which torch.compile and its caches know by name."""

import torch

from .launch import KIND, Kernel
from .plans import KERNELS, NAME, VERSION, Unusable

NAMESPACE = f"warpsmith_{NAME}_{VERSION}"

_library = torch.library.Library(NAMESPACE, "DEF")
LOADED, UNUSABLE = {}, {}


def _register(kernel):
    count, results = len(kernel.forms), len(kernel.made)
    arguments = ", ".join(f"Tensor a{at}" for at in range(count))
    given = "Tensor" if results == 1 else "(" + ", ".join(["Tensor"] * results) + ")"
    _library.define(f"{kernel.name}({arguments}) -> {given}", tags=(torch.Tag.needs_exact_strides,))
    _library.impl(kernel.name, kernel, KIND.upper())

    def fake(*tensors):
        made = [tensors[0].new_empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in kernel.made]
        return made[0] if results == 1 else tuple(made)

    torch.library.register_fake(f"{NAMESPACE}::{kernel.name}", fake, lib=_library)


# At import, so that a graph out of torch.compile's cache finds them.
for _plan in KERNELS:
    try:
        _kernel = Kernel(_plan)
        _register(_kernel)
        LOADED[_plan["key"]] = _kernel
    except (Unusable, OSError) as _error:
        UNUSABLE[_plan["name"]] = str(_error)


def operator_of(key):
    return getattr(getattr(torch.ops, NAMESPACE), LOADED[key].name).default
