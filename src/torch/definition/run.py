

# What follows is not the definition's: it has `run` compute in the type of the tensors that the judge gives. In double precision all
# types that `run` names become double, so that what it does is followed exactly; in single and half precision its own become theirs.
import torch as _torch
from torch.overrides import TorchFunctionMode as _TorchFunctionMode

_CASTS = {"float": _torch.float32, "half": _torch.float16, "bfloat16": _torch.bfloat16}


class _Named(_TorchFunctionMode):
    """Puts other types in the place of those that code names."""

    def __init__(self, types):
        super().__init__()
        self.types = types

    def other(self, one):
        return self.types.get(one, one) if isinstance(one, _torch.dtype) else one

    def __torch_function__(self, function, kinds, args=(), kwargs=None):
        cast = _CASTS.get(getattr(function, "__name__", None))
        if cast in self.types and args and isinstance(args[0], _torch.Tensor):
            return args[0].to(self.types[cast])
        return function(*map(self.other, args), **{name: self.other(one) for name, one in (kwargs or {}).items()})


def _results(found):
    if isinstance(found, dict):
        found = [found[name] for name in _OUTPUTS]
    if not isinstance(found, (tuple, list)):
        found = [found]
    return [one if isinstance(one, _torch.Tensor) else _torch.tensor(one, dtype=_torch.float64) for one in found]


def reference(**given):
    arguments = _arguments(given)
    floating = [one.dtype for one in given.values() if isinstance(one, _torch.Tensor) and one.is_floating_point()]
    if _torch.float64 in floating:
        types = dict.fromkeys(_CASTS.values(), _torch.float64)
    elif _IN and given[_IN].dtype != _STATED and _STATED != _torch.float32:
        types = {_STATED: given[_IN].dtype}
    else:
        return _results(run(*arguments))
    usual = _torch.get_default_dtype()
    try:
        _torch.set_default_dtype(types.get(usual, usual))
        with _Named(types):
            return _results(run(*arguments))
    finally:
        _torch.set_default_dtype(usual)
