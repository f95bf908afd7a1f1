"""Has Inductor write kernels for operations, and says how they are kernel files: reads a request from standard input, and writes its
answers, JSON both, to the file that the request names."""

import contextlib
import inspect
import json
import os
import sys
import types

import torch


class Refused(Exception):
    """What is wrong with user code, in a sentence."""

    def __init__(self, kind, what):
        super().__init__(what)


DEVICE = "cpu"


def module_of(source, file):
    module = types.ModuleType("problem")
    module.__file__ = file
    sys.modules["problem"] = module
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def results(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)) and value and all(isinstance(one, torch.Tensor) for one in value):
        return list(value)
    raise Refused("raised", f"it gives {type(value).__name__}, and not a tensor or a tuple of tensors")


def device_of(tensors):
    return next(one.device for _, one in tensors)


WHOLE = {"i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "i8": torch.int8}
POINTERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int64": "*i64", "int32": "*i32", "uint8": "*u8", "int8": "*i8", "bool": "*i1"}


def type_of(kind, dtype):
    """PyTorch's type of a tensor of a kernel's."""
    return WHOLE[kind] if kind in WHOLE else torch.float32 if kind == "f32" else dtype


def kind_of(name, dtype):
    """A kernel's type of a buffer between kernels."""
    names = {"float32": "f32", str(dtype).removeprefix("torch."): "T", "int64": "i64", "int32": "i32", "uint8": "u8", "int8": "i8", "bool": "u8"}
    if name == "float32":
        return "f32"
    if name not in names:
        raise NoStart(f"Inductor keeps values of {name} between kernels, and a kernel file has no such buffers")
    return names[name]


def code_for(request, dtype):
    """Inductor's code for the operation, and the tensors that it is for."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    device = torch.device(request["device"])
    # Operators of several parts ask the driver on their way, and a GPU that is not here has none.
    traced_on = torch.device("cpu") if request["pretend"] else device
    unit_ = unit(request["source"], request["file"])
    outputs = [one for one in request["tensors"] if one["role"] == "output"]
    given = [one for one in request["tensors"] if one["role"] == "input"]
    names = [one["name"] for one in given]
    numbers_ = [one["name"] for one in request["scalars"]]

    def call(tensors):
        # A number is a tensor without dimensions on the processor: Inductor hands it to kernels by value.
        named, free = list(zip(names, tensors)), dict(zip(numbers_, tensors[len(names):]))
        try:
            made = unit_.call(named, free)
        except Exception as error:
            if not free or type(error).__name__ not in ("TypeError", "DataDependentOutputException"):
                raise
            raise NoStart(f"it uses `{', '.join(free)}` where nothing but a number that is fixed will do: {first_line(error)}") from None
        if len(made) != len(outputs):
            raise NoStart(f"it gives {len(made)} tensors, and the operation has {len(outputs)} outputs")
        return [one.to(device=traced_on, dtype=type_of(form["dtype"], dtype)) for one, form in zip(made, outputs)]

    without_counters(unit_)
    forms = [(one["shape"], type_of(one["dtype"], dtype)) for one in given]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        # What user code makes anew is where its inputs are.
        with traced_on:
            free = [torch.empty((), dtype=torch.float32, device="cpu") for _ in numbers_]
            graph = traced(call, [torch.empty(shape, dtype=kind) for shape, kind in forms] + free)
        tensors = [torch.empty(shape, dtype=kind, device=device) for shape, kind in forms] + free
        return code_of(moved(graph, traced_on, device), tensors, request["bar"]), forms


def without_counters(unit_):
    """Norms count the batches that they have seen, in a tensor that is nobody's result."""
    for module in unit_.model.modules() if isinstance(unit_, Problem) else ():
        if "num_batches_tracked" in module._buffers:
            module.num_batches_tracked = None


def start(request):
    """The answer: the code of a kernel file, and its launches."""
    dtype = getattr(torch, request["dtype"])
    code, forms = code_for(request, dtype)
    plan = Plan(code)
    if not plan.launches:
        raise NoStart("Inductor starts no kernel for it")
    if len(plan.inputs) != len(forms) + len(request["scalars"]):
        raise NoStart("Inductor's code takes other tensors than the operation has")
    kernels = {name: Kernel(name, plan.kernels[name]) for name, _ in plan.launches}
    own = memory_of(request, plan)
    chosen = {} if request["pretend"] else chosen_by_inductor(code, forms, request, kernels)
    launches = [launched(kernels[name], arguments, own, dtype, plan) for name, arguments in plan.launches]
    for launch in launches:
        kernel = kernels[launch["kernel"]]
        launch["constants"] |= {at_name(name): launch["offsets"].get(name, 0) for name in kernel.offsets}
        launch["chosen"] = launch.pop("begin") or chosen.get(kernel.name)
        del launch["offsets"]
    helpers = Helpers()
    text = text_of([kernel.text(helpers) for kernel in kernels.values()], helpers)
    said = read_as_a_kernel_file(request["reader"], text)
    if said is not None:
        raise NoStart(f"what Inductor writes is no text that a kernel file may have: line {said[0]}: {said[1]}")
    scratch = [
        {"name": own[name]["name"], "dtype": kind_of(form["dtype"], dtype), "elements": form["elements"]}
        for name, form in plan.buffers.items()
        if own[name]["scratch"]
    ]
    return {
        "torch": torch.__version__,
        "code": text,
        "launches": launches,
        "scratch": scratch,
        "order_free": "tl.atomic_" in text,
    }


def read_as_a_kernel_file(reader, text):
    """Why the compiler's reader would refuse a text, as (line, sentence); None where it would not."""
    module = {"__name__": "reader"}
    exec(compile(reader, "reader.py", "exec"), module)
    return module["refusal"](text)


def memory_of(request, plan):
    """What the operation calls each piece of memory."""
    given = [one["name"] for one in request["tensors"] if one["role"] == "input"] + [one["name"] for one in request["scalars"]]
    taken = {one["name"] for one in request["tensors"] + request["scalars"]}
    own = {name: {"name": given[place], "scratch": False} for name, place in plan.inputs.items()}
    outputs = [one for one in request["tensors"] if one["role"] == "output"]
    if len(plan.results) != len(outputs):
        raise NoStart("Inductor's code gives other tensors than the operation has")
    for (whose, offset, dense), form in zip(plan.results, outputs):
        if whose in plan.inputs:
            raise NoStart(f"`{form['name']}` is an input as it is, for which Inductor starts no kernel")
        if whose in own or offset or not dense or plan.buffers[whose]["elements"] != elements(form["shape"]):
            raise NoStart(f"Inductor makes `{form['name']}` a part of a larger tensor, or one that is not row-major")
        own[whose] = {"name": form["name"], "scratch": False}
    for name in plan.buffers:
        if name not in own:
            free = name if name not in taken else f"{name}_between"
            own[name] = {"name": free, "scratch": True}
    return own


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def launched(kernel, arguments, own, dtype, plan):
    """A launch: arguments by name, sizes, and where it begins in tensors."""
    tiled = begin = None
    if kernel.tiles:
        arguments, started = arguments[:-3], arguments[-3:]
        tiled = {
            "grid": grid_of(kernel.name, kernel.tiles, kernel.known, started),
            "choices": choices_of(kernel.tiles, kernel.known),
            "tried": worth_trying(dtype.itemsize),
        }
        begin = begins_with(kernel.tiles, tiled["choices"], kernel.known, started, dtype.itemsize)
    passed = [name for name in kernel.parameters if name not in kernel.blocks]
    if len(passed) != len(arguments):
        raise NoStart(f"`{kernel.name}` is launched with {len(arguments)} arguments, and takes {len(passed)}")
    names, sizes, offsets, fixed = [], {}, {}, {}
    for parameter, argument in zip(passed, arguments):
        if isinstance(argument, tuple):
            whose, offset, _ = argument
            kind = plan.buffers[whose]["dtype"] if whose in plan.buffers else None
            if kind is not None and POINTERS.get(kind) != kernel.signature.get(parameter):
                raise NoStart(f"`{kernel.name}` takes `{parameter}` as another type than its memory has")
            if offset:
                kernel.offsets.add(parameter)
                offsets[parameter] = offset
            names.append(own[whose]["name"])
        elif isinstance(argument, Number):
            if kernel.signature.get(parameter) != "fp32":
                raise NoStart(f"`{kernel.name}` takes `{parameter}` as another type than a number has")
            names.append(own[argument.whose]["name"])
        elif isinstance(argument, int):
            if parameter.endswith("numel"):
                sizes[parameter] = argument
            if parameter not in kernel.set_inside:
                kernel.fixed[parameter] = fixed[parameter] = argument
        else:
            raise NoStart(f"`{kernel.name}` is launched with a number that is not whole")
    return {
        "kernel": kernel.name,
        "args": names,
        "grid": kernel.grid,
        "tiled": tiled,
        "sizes": sizes,
        "offsets": offsets,
        "constants": fixed,
        "blocks": kernel.blocks,
        "loops": kernel.loops,
        "turns": kernel.turns,
        "configs": kernel.configs,
        "begin": begin,
        "most": most(kernel.blocks),
    }


def most(blocks):
    """What a block may not exceed: masks are left out where a size is a multiple of that."""
    from torch._inductor.runtime.hints import TRITON_MAX_BLOCK

    return {block: TRITON_MAX_BLOCK[block.removesuffix("BLOCK")] for block in blocks if block.endswith("BLOCK")}


# Said of a kernel whose configuration is the first that Inductor has.
UNCHOSEN = "Inductor's own choice of block sizes cannot be had"


def chosen_by_inductor(code, forms, request, kernels):
    """The configuration of each kernel that Inductor's own timing chooses on this device; empty where it cannot be asked."""

    from torch._inductor import config
    from torch._inductor.codecache import PyCodeCache

    try:
        with torch.device(request["device"]):
            tensors = [torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype) for shape, dtype in forms]
        tensors += [torch.tensor(one["value"], dtype=torch.float32, device="cpu") for one in request["scalars"]]
        with torch.no_grad(), config.patch(compile_threads=1):
            module = PyCodeCache.load(code)
            module.call(tensors)
            torch.cuda.synchronize()
        found = {}
        for name in kernels:
            launchers = getattr(module, name).launchers
            if len(launchers) == 1:
                found[name] = config_form(launchers[0].config)
        return found
    except Exception as error:
        name = request["file"].removesuffix(".py")
        print(f"@{name}: {UNCHOSEN}: {type(error).__name__}: {first_line(error)}", file=sys.stderr, flush=True)
        return {}


def first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]


def answered(asked, device):
    """The answer about one operation: why there is none is one, too."""
    try:
        return start(asked | device)
    except (NoStart, Refused) as error:
        return {"none": str(error)}
    except Exception as error:
        return {"none": f"{type(error).__name__}: {first_line(error)}"}


def is_lost():
    """Whether a kernel went astray: the process can have nothing of the GPU any more."""
    try:
        torch.cuda.synchronize()
        return False
    except Exception:
        return True


def main():
    import warnings

    warnings.simplefilter("ignore")
    # A kernel is held against single precision, in convolutions too.
    torch.backends.cudnn.allow_tf32 = False
    request = json.loads(sys.stdin.read())
    if request["device"]["pretend"]:
        pretend(request["device"]["pretend"])
    take_templates()
    answers, lost = [], False
    for asked in request["asked"]:
        print(f"@asking Inductor for {asked['file'].removesuffix('.py')}", file=sys.stderr, flush=True)
        answers.append(answered(asked, request["device"]))
        torch._dynamo.reset()
        lost = not request["device"]["pretend"] and is_lost()
        if lost:  # the rest is asked of another process
            break
    with open(request["answer"], "w") as file:
        json.dump(answers, file)
    if lost:  # what ends in order would ask the GPU once more
        os._exit(0)


main()
