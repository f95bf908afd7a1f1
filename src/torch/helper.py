"""The process in which PyTorch says what is right. It needs torch and nothing else.

It is started by Warpsmith with a socket as standard input, over which requests and answers travel as lines of JSON, and files of
memory beside them. Whatever user code prints goes nowhere, so that it cannot be taken for an answer. Inputs are mapped read-only
and handed to user code as copies. A candidate never runs here.
"""

import ctypes
import gc
import inspect
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time
import traceback
import types
import warnings

MOST_FILES = 2


class Refused(Exception):
    """Something that is told in a sentence: `kind` says whose fault it is."""

    def __init__(self, kind, what):
        super().__init__(what)
        self.kind = kind


class Channel:
    """Lines of JSON, with files."""

    def __init__(self):
        self.socket = socket.socket(fileno=os.dup(0))
        self.rest = b""

    def receive(self):
        files = []
        while b"\n" not in self.rest:
            part, some, _, _ = socket.recv_fds(self.socket, 1 << 16, MOST_FILES)
            files += some
            if not part:
                os._exit(0)
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\n")
        return json.loads(line), files

    def send(self, answer):
        self.socket.sendall(json.dumps(answer).encode() + b"\n")


def leave_nothing_behind(parent):
    """Dies with whoever started it, also while user code is running."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def limit_memory(allowed):
    """Allows so many bytes beyond what PyTorch itself has taken."""
    with open("/proc/self/status") as status:
        own = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    most = own + allowed
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def where(error, file):
    """`softmax.py, line 3: ValueError: ...`, in one line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines = [error.lineno]
    place = f"{file}, line {lines[-1]}" if lines else file
    text = str(error).strip().splitlines()
    return f"{place}: {type(error).__name__}" + (f": {text[0][:300]}" if text else "")


def refusal(error, file):
    """What an exception of user code means."""
    if isinstance(error, Refused):
        return error
    text = str(error)
    starved = isinstance(error, MemoryError) or "can't allocate memory" in text or "CUDA out of memory" in text
    if starved:
        return Refused("memory", f"{file}: it wants more memory than it may have ({text.splitlines()[0][:200] if text else 'MemoryError'})")
    return Refused("raised", where(error, file))


def module_of(source, file):
    """User code as a module."""
    module = types.ModuleType("problem")
    module.__file__ = file
    sys.modules["problem"] = module
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def results(value):
    """The tensors that a call gave."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return [torch.tensor(value, dtype=torch.float64)]
    if isinstance(value, (tuple, list)) and value and all(isinstance(one, torch.Tensor) for one in value):
        return list(value)
    raise Refused("raised", f"it gives {type(value).__name__}, and not a tensor or a tuple of tensors")


class Function:
    """`reference(...)`: tensors, symbols and scalars by their names."""

    def __init__(self, module, file):
        self.run, self.file = module.reference, file
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

    def compiled(self, tensors, numbers, mode):
        run = torch.compile(self.run, dynamic=False, mode=mode) if mode else self.run
        known = {**dict(tensors), **numbers}
        chosen = known if self.all else {name: known[name] for name in self.names if name in known}
        return lambda: run(**chosen)


class Problem:
    """`Model`, `get_inputs` and `get_init_inputs`: inputs in their order, then parameters and buffers in theirs."""

    def __init__(self, module, file):
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.file = file
        init = list(getattr(module, "get_init_inputs", list)())
        torch.manual_seed(0)
        self.model = module.Model(*init)
        with FakeTensorMode():
            self.pattern = list(module.get_inputs())

    def place(self, tensors, numbers):
        """The arguments of a call, and the state, from what the judge has."""
        given, arguments, numbers = [tensor for _, tensor in tensors], [], list(numbers.values())
        for one in self.pattern:
            if isinstance(one, torch.Tensor):
                arguments.append(given.pop(0).reshape(one.shape))
            elif isinstance(one, float):
                arguments.append(numbers.pop(0))
            else:
                arguments.append(one)
        state = {name: given.pop(0).reshape(old.shape) for name, old in state_of(self.model)}
        return arguments, state

    def call(self, tensors, numbers):
        arguments, state = self.place(tensors, numbers)
        rest = {name: one.clone() for name, one in self.model.named_buffers() if name not in state}
        return results(torch.func.functional_call(self.model, {**rest, **state}, tuple(arguments)))

    def compiled(self, tensors, numbers, mode):
        import copy

        arguments, state = self.place(tensors, numbers)
        model = copy.deepcopy(self.model)
        for name, one in list(model.named_parameters()) + list(model.named_buffers()):
            one.data = state.get(name, one.data)
        model = torch.compile(model, dynamic=False, mode=mode) if mode else model
        return lambda: model(*arguments)


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


def watching(file):
    """Finds what a function in double precision must not do."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if torch.Tag.nondeterministic_seeded in func.tags:
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
        return one if one is None else one.to(torch.float64) if one.is_floating_point() else one.clone()
    high = one.to(torch.bfloat16).to(torch.float64)
    return high + (one.to(torch.float64) - high).to(torch.bfloat16).to(torch.float64)


class Judge:
    """Answers requests; keeps what was loaded."""

    def __init__(self):
        self.units = {}
        self.watched = set()

    def load(self, request, files):
        unit_ = unit(request["source"], request["file"])
        self.units[request["id"]] = unit_
        return {}

    def mapped(self, request, file):
        """The inputs as they are, each by its name; they cannot be written to."""
        view = mmap.mmap(file, 0, prot=mmap.PROT_READ)
        tensors = []
        for one in request["tensors"]:
            if one["shape"] is None:
                tensors.append((one["name"], None))
                continue
            count = 1
            for size in one["shape"]:
                count *= size
            whole = torch.frombuffer(view, dtype=TYPES[one["dtype"]], count=count, offset=one["at"])
            tensors.append((one["name"], whole.reshape(one["shape"])))
        return tensors

    def evaluate(self, request, files):
        """Every output in float64, and as eager PyTorch has it in the types at hand."""
        unit_ = self.units[request["id"]]
        tensors = self.mapped(request, files[0])
        view = mmap.mmap(files[1], 0)

        def wide(one):
            return one if one is None else one.to(torch.float64) if one.is_floating_point() else one.clone()

        with torch.no_grad():
            exact = [(name, wide(one)) for name, one in tensors]
            if request["id"] in self.watched:
                right = unit_.call(exact, dict(request["numbers"]))
            else:
                with watching(unit_.file):
                    right = unit_.call(exact, dict(request["numbers"]))
                self.watched.add(request["id"])
            del exact
            self.write(view, right, request["outputs"], "right", unit_.file)
            del right
            if request["outputs"][0]["split"] is not None:
                halves = [(name, in_two_parts(one)) for name, one in tensors]
                self.write(view, unit_.call(halves, dict(request["numbers"])), request["outputs"], "split", unit_.file)
                del halves
            own = [(name, one if one is None else one.clone()) for name, one in tensors]
            try:
                eager = unit_.call(own, dict(request["numbers"]))
            except (NotImplementedError, RuntimeError) as error:
                if "not implemented for" in str(error):
                    raise Refused("eager", f"PyTorch cannot compute it in this type here: {str(error).splitlines()[0][:200]}") from None
                raise
            self.write(view, eager, request["outputs"], "eager", unit_.file)
        return {}

    def write(self, view, values, outputs, side, file):
        if len(values) != len(outputs):
            raise Refused("shape", f"{file}: it gives {len(values)} tensors, and the operation has {len(outputs)} outputs")
        for value, out in zip(values, outputs):
            name, shape = out["name"], list(value.shape)
            if value.numel() != out["elements"]:
                raise Refused("shape", f"{file}: `{name}` has {value.numel()} elements {shape}, not {out['elements']}")
            if not value.is_floating_point():
                kind = str(value.dtype).removeprefix("torch.")
                raise Refused("dtype", f"{file}: `{name}` is a tensor of {kind}; outputs are floating-point")
            if side != "eager" and value.dtype != torch.float64:
                kind = str(value.dtype).removeprefix("torch.")
                raise Refused("dtype", f"{file}: of inputs in float64 it makes `{name}` in {kind}; write x.dtype, or leave the type out")
            kind = torch.float64 if side != "eager" else TYPES[out["dtype"]]
            whole = torch.frombuffer(view, dtype=kind, count=out["elements"], offset=out[side])
            whole.copy_(value.detach().reshape(-1))

    def time(self, request, files):
        """µs of a call, the median of many, caches as the calls before leave them."""
        unit_ = self.units[request["id"]]
        own = [(name, one if one is None else one.clone()) for name, one in self.mapped(request, files[0])]
        with torch.no_grad():
            call = unit_.compiled(own, dict(request["numbers"]), request["mode"])
            for _ in range(3):
                call()
            end, times = time.perf_counter() + request["seconds"], []
            while len(times) < 5 or (time.perf_counter() < end and len(times) < 10000):
                began = time.perf_counter_ns()
                call()
                times.append((time.perf_counter_ns() - began) / 1e3)
        times.sort()
        return {"us": times[len(times) // 2], "calls": len(times)}

    def describe(self, request, files):
        return describe(request["source"], request["file"], request["values"])


def serve():
    channel = Channel()
    setup, _ = channel.receive()
    leave_nothing_behind(setup["parent"])
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    sys.path[:] = [folder for folder in sys.path if folder]
    # On some virtual machines the processor lists AMX, and its instructions are illegal.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    try:
        import torch as imported
    except BaseException as error:
        channel.send({"error": {"kind": "torch", "what": f"{sys.executable} has no PyTorch: {type(error).__name__}: {error}"}})
        return
    global torch, TYPES
    torch = imported
    TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i64": torch.int64}
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, setup["threads"]))
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    limit_memory(setup["memory"])
    channel.send({"torch": torch.__version__, "python": sys.version.split()[0], "threads": torch.get_num_threads()})
    judge = Judge()
    asked = {"load": judge.load, "evaluate": judge.evaluate, "time": judge.time, "describe": judge.describe}
    while True:
        request, files = channel.receive()
        try:
            answer = asked[request["ask"]](request, files)
        except BaseException as error:
            refused = refusal(error, request.get("file", "the operation"))
            answer = {"error": {"kind": refused.kind, "what": str(refused)}}
            del error
        for file in files:
            os.close(file)
        # What is mapped is unmapped once no tensor refers to it.
        gc.collect(0)
        channel.send(answer)


serve()
