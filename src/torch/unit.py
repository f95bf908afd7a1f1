"""The user's code: a function, or a problem file, as something to be called with the judge's tensors."""


# More variants of a function than a night has.
MOST_COMPILED = 1 << 20
# torch.compile without the patterns of Inductor's that `without_lowerings` leaves out.
WITHOUT_LOWERINGS = "without lowerings"


# The function of a region's file by which it makes masks (`model/source.py`).
MASKS = "masks_of_the_pass"


class Function:
    """`reference(...)`: tensors, symbols and scalars by their names."""

    def __init__(self, module, file):
        self.run, self.file, self.lowerings = module.reference, file, set()
        # A region's file draws its inputs as well, and makes masks that it reads.
        self.get_inputs, self.masks = getattr(module, "get_inputs", None), getattr(module, MASKS, None)
        parameters = inspect.signature(self.run).parameters.values()
        self.all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self.names = [one.name for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        self.needed = [one.name for one in parameters if one.default is one.empty and one.name in self.names]

    def call(self, tensors, numbers):
        known = {**dict(tensors), **numbers}
        missing = [name for name in self.needed if name not in known]
        if missing:
            raise Refused("raised", f"{self.file}: reference() takes `{missing[0]}`, and the operation has {', '.join(known)}")
        chosen = known if self.all else {name: known[name] for name in self.names if name in known}
        return results(self.run(**chosen))

    def hides(self, device):
        """Whether a mask that it makes hides anything: what is added to scores is then not zero somewhere, and what chooses is not true."""
        masks = self.masks(device, lambda dtype: dtype) if self.masks else ()
        return any(not bool((one if one.dtype == torch.bool else one == 0).all()) for one in masks)

    def calls(self, copies, numbers, mode):
        """A call on each of these copies of its tensors. Masks are made before, as a pass makes them once for all its layers."""
        run = by_compiling(self.run, mode) if mode else self.run
        made = {"masks": self.masks(device_of(copies[0]), lambda dtype: dtype)} if self.masks else {}

        def on(tensors):
            known = {**dict(tensors), **numbers, **made}
            chosen = known if self.all else {name: known[name] for name in self.names if name in known}
            return lambda: run(**chosen)

        return [on(tensors) for tensors in copies]


def drawn_by(get_inputs, seed):
    """What the file draws: the same for the same seed."""
    import random

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))
    with torch.no_grad(), torch.device(DEVICE) if DEVICE != "cpu" else contextlib.nullcontext():
        return list(get_inputs())


def forms_of(get_inputs):
    """What a file draws, without its values."""
    try:
        with torch.device("meta"):
            return [one.to("meta") if isinstance(one, torch.Tensor) else one for one in get_inputs()]
    except Exception:
        # It looks at what it draws; importing this takes five seconds on some machines.
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True):
            return list(get_inputs())


class Problem:
    """`Model`, `get_inputs` and `get_init_inputs`: inputs in their order, then parameters and buffers in theirs."""

    def __init__(self, module, file):
        self.file, self.lowerings = file, set()
        init = list(getattr(module, "get_init_inputs", list)())
        torch.manual_seed(0)
        self.model = module.Model(*init)
        self.get_inputs = module.get_inputs
        self.pattern = forms_of(module.get_inputs)

    def hides(self, _device):
        """It makes no masks that anybody knows of."""
        return False

    def check(self, drawn):
        """That it is what was drawn before, but for the values."""
        forms = [one.shape if isinstance(one, torch.Tensor) else None for one in drawn]
        if forms != [one.shape if isinstance(one, torch.Tensor) else None for one in self.pattern]:
            raise Refused("shape", f"{self.file}: get_inputs() draws other shapes each time")

    def place(self, tensors, numbers):
        """The arguments of a call, and the state, from what the judge has."""
        given, arguments, numbers = [tensor for _, tensor in tensors], [], list(numbers.values())
        for one in self.pattern:
            if isinstance(one, torch.Tensor):
                tensor = given.pop(0).reshape(one.shape)
                arguments.append(tensor if one.is_floating_point() else tensor.to(one.dtype))
            elif isinstance(one, float):
                arguments.append(numbers.pop(0))
            else:
                arguments.append(one)
        state = {name: given.pop(0).reshape(old.shape) for name, old in state_of(self.model)}
        return arguments, state

    def call(self, tensors, numbers):
        arguments, state = self.place(tensors, numbers)
        at = device_of(tensors)
        rest = {name: one.to(at, copy=True) for name, one in self.model.named_buffers() if name not in state}
        return results(torch.func.functional_call(self.model, {**rest, **state}, tuple(arguments)))

    def calls(self, copies, numbers, mode):
        """A call on each of these copies of its tensors; on the first alone where it has parameters, which would be in the caches for others."""
        import copy

        placed = [self.place(tensors, numbers) for tensors in copies]
        _, state = placed[0]
        if state:
            placed = placed[:1]
        model = copy.deepcopy(self.model).to(device_of(copies[0]))
        for name, one in list(model.named_parameters()) + list(model.named_buffers()):
            one.data = state.get(name, one.data)
        model = by_compiling(model, mode) if mode else model
        return [lambda arguments=arguments: model(*arguments) for arguments, _ in placed]


def by_compiling(call, mode):
    """It by torch.compile. Each shape, type and mode has code of its own, and beyond eight of one function dynamo would run it eagerly, without a
    word, under the name of that mode."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MOST_COMPILED
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if mode == WITHOUT_LOWERINGS:
        # PyTorch's cache on disk would give the code that has them, and give this to others.
        return torch.compile(call, dynamic=False, options={"fx_graph_cache": False})
    return torch.compile(call, dynamic=False, mode=mode)


def state_of(model):
    """Parameters and buffers that a kernel is given: all but counters, which are integers."""
    both = list(model.named_parameters()) + list(model.named_buffers())
    return [(name, one) for name, one in both if one.is_floating_point()]


def unit(source, file):
    """The function or problem of a text."""
    module = module_of(source, file)
    if hasattr(module, "reference"):
        return Function(module, file)
    if hasattr(module, "Model") and hasattr(module, "get_inputs"):
        return Problem(module, file)
    raise Refused("raised", f"{file}: it defines neither `reference` nor `Model` with `get_inputs`")


def without_dropout(func, args, kwargs):
    """Whether it would draw random numbers, attention for instance, and is asked not to."""
    names = [one.name for one in func._schema.arguments]
    given = {**{one.name: one.default_value for one in func._schema.arguments}, **dict(zip(names, args)), **kwargs}
    return any(given.get(name, 1.0) == 0.0 for name in ("dropout_p", "dropout")) or given.get("train") is False


def noticing(found):
    """Adds to `found` whether attention hides some of its keys. What is behind its mask and not finite is NaN or nothing, by the algorithm."""
    from torch.overrides import TorchFunctionMode

    class Notice(TorchFunctionMode):
        def __torch_function__(self, func, kinds, args=(), kwargs=None):
            if func is torch.nn.functional.scaled_dot_product_attention:
                given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args), **(kwargs or {}))
                found.update(["masked"] if given.get("is_causal") or given.get("attn_mask") is not None else [])
            return func(*args, **(kwargs or {}))

    return Notice()


def watching(file):
    """Finds what a function in double precision must not do."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded in func.tags and not without_dropout(func, args, kwargs or {}):
                raise Refused("random", f"{file}: it draws random numbers ({func}), so that nothing is right or wrong")
            tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            made = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
            narrow = [one for one in made if one.is_floating_point() and one.dtype != torch.float64]
            if narrow and any(one.dtype == torch.float64 for one in tensors):
                raise Refused(
                    "dtype",
                    f"{file}: it names a type ({func} gives {str(narrow[0].dtype).removeprefix('torch.')}), so that it cannot be "
                    "evaluated in float64; write x.dtype, or leave the conversion out",
                )
            return out

    return Watch()


def in_two_parts(one):
    """What is left of values of 32 bits in two of bfloat16, which must show."""
    if one is None or one.dtype != torch.float32:
        return wide(one)
    both = one.to(torch.float64)
    # Some at a time: beside results of several GB there may be no room for what is in between.
    for some in both.view(-1).split(AT_ONCE):
        high = some.to(torch.bfloat16).to(torch.float64)
        some.sub_(high).copy_(some.to(torch.bfloat16)).add_(high)
    return both


def wide(one):
    return one if one is None else one.to(torch.float64) if one.is_floating_point() else one.clone()


def rounded(one, form):
    """Results as an output of this form has them."""
    return one.to(TYPES[form["dtype"]])


def copied(one):
    return one if one is None else one.clone()


