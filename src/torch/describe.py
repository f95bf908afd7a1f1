"""What there is to know of a problem file before a kernel is written for it: tensors, how they are drawn, work."""

# How inputs may come about: values that are drawn one by one, and moved or scaled alike.
DRAWN = {
    "rand", "randn", "rand_like", "randn_like", "randint", "ones", "zeros", "full", "empty", "uniform_", "normal_", "random_",
    "ones_like", "zeros_like", "empty_like", "fill_", "zero_", "_to_copy", "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze",
    "detach", "clone", "scalar_tensor", "lift_fresh", "device", "t", "transpose", "permute",
}
SCALED = {"add", "sub", "mul", "div", "neg", "rsub", "add_", "mul_", "sub_", "div_"}


def recorder(log):
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.dim() > 0]
            out = func(*args, **(kwargs or {}))
            # Whole numbers and masks are as the file draws them anyway.
            made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor) and one.is_floating_point()]
            if made and name not in DRAWN and not (name in SCALED and len(tensors) < 2):
                log.append(name)
            if name == "_to_copy" and out.is_floating_point() and not tensors[0].is_floating_point():
                log.append("whole numbers made floating-point")
            return out

    return Record()


def kind_of(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def alike(one, other):
    """Whether two draws of an argument have the same form."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype
    return type(one) is type(other) and (isinstance(one, torch.Tensor) or one == other)


def form(one):
    return f"{list(one.shape)} of {kind_of(one)}" if isinstance(one, torch.Tensor) else repr(one)[:40]


def figures(tensor):
    """What a draw is made like: of at most four million values, evenly taken."""
    flat = tensor.detach().reshape(-1)
    flat = flat[:: max(1, flat.numel() >> 22)].to(torch.float64)
    whole = bool((flat == flat.round()).all())
    low, high = float(flat.min()), float(flat.max())
    deviation = float(flat.std()) if flat.numel() > 1 else 0.0
    zeros = float((flat == 0).double().mean())
    return {"min": low, "max": high, "mean": float(flat.mean()), "deviation": deviation, "zeros": zeros, "whole": whole, "count": flat.numel()}


def names_of(model, arguments):
    parameters = list(inspect.signature(model.forward).parameters.values())
    plain = [one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    return [plain[place] if place < len(plain) else f"input{place}" for place in range(len(arguments))]


def describe(source, file, values):
    """Of a function only that it is one. Without `values` nothing is allocated; with them they are drawn on the GPU, if there is one."""
    with torch.device(DEVICE) if values and DEVICE != "cpu" else contextlib.nullcontext():
        return described(source, file, values)


def described(source, file, values):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    module = module_of(source, file)
    if not (hasattr(module, "Model") and hasattr(module, "get_inputs")):
        if hasattr(module, "reference"):
            raise Refused("raised", f"{file}: it defines `reference`, which belongs into reference/ beside a .toml; a problem file has `Model` and `get_inputs`")
        raise Refused("raised", f"{file}: it defines neither `reference` nor `Model` with `get_inputs`")
    init = list(getattr(module, "get_init_inputs", list)())
    log = []
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        with recorder(log):
            pattern = list(module.get_inputs())
        again = list(module.get_inputs())
    if len(pattern) != len(again) or not all(map(alike, pattern, again)):
        pairs = [f"{form(one)}, then {form(other)}" for one, other in zip(pattern, again) if not alike(one, other)]
        raise Refused("shape", f"{file}: get_inputs() draws other shapes each time: {pairs[0] if pairs else 'other numbers of tensors'}")
    torch.manual_seed(0)
    drawn = list(module.get_inputs()) if values else pattern
    if values and not all(map(alike, pattern, drawn)):
        raise Refused("shape", f"{file}: get_inputs() draws other shapes each time")
    torch.manual_seed(0)
    with torch.no_grad(), mode if not values else torch.no_grad():
        model = module.Model(*init)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), mode, counter:
        fake = [mode.from_tensor(one) if isinstance(one, torch.Tensor) and values else one for one in drawn]
        state = {name: (mode.from_tensor(one) if values else one) for name, one in list(model.named_parameters()) + list(model.named_buffers())}
        made = results(torch.func.functional_call(model, state, tuple(fake)))
    inputs = []
    for name, one in zip(names_of(model, drawn), drawn):
        if isinstance(one, torch.Tensor):
            inputs.append(tensor_of(name, "input", one, values))
        elif isinstance(one, float):
            inputs.append({"name": name, "role": "scalar", "value": one})
        else:
            inputs.append({"name": name, "role": "constant", "text": repr(one)[:60]})
    state = [tensor_of(name, "state", one, values) for name, one in state_of(model)]
    outputs = [{"shape": list(one.shape), "dtype": kind_of(one)} for one in made]
    return {"inputs": inputs + state, "outputs": outputs, "flops": int(counter.get_total_flops()), "structure": sorted(set(log))}


def tensor_of(name, role, one, values):
    found = {"name": name, "role": role, "shape": list(one.shape), "dtype": kind_of(one)}
    readable = values and one.numel() > 0 and one.is_floating_point()
    return {**found, "figures": figures(one) if readable else None}


