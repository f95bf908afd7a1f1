"""The process in which PyTorch says what is right. It needs torch and nothing else.

It is started by Warpsmith with a socket as standard input, over which requests and answers travel as lines of JSON, and files of
memory beside them: of the machine's, or of a GPU's. Whatever user code prints goes nowhere, so that it cannot be taken for an answer.
Inputs are mapped read-only, unless they are being drawn, and handed to user code as copies. A candidate never runs here, and nothing that is worked out here is
in memory that it can reach.
"""

import sys

# Python looks into the folder that it is started in before it looks anywhere else, and whoever proposes kernels may write there.
sys.path[:] = [folder for folder in sys.path if folder]

import contextlib
import ctypes
import gc
import inspect
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import time
import traceback
import types
import warnings

MOST_FILES = 200

# Seconds after which nobody goes on looking for what reaches a result.
LONG_S = 10

# Of a GPU's memory, the share that is kept between questions.
KEPT = 8


class Refused(Exception):
    """Something that is told in a sentence: `kind` says whose fault it is."""

    def __init__(self, kind, what):
        super().__init__(what)
        self.kind = kind


class Channel:
    """Lines of JSON, with files."""

    def __init__(self, file):
        self.socket = socket.socket(fileno=os.dup(file))
        self.rest = b""

    def fileno(self):
        return self.socket.fileno()

    def receive(self):
        files = []
        while b"\n" not in self.rest:
            part, some, _, _ = socket.recv_fds(self.socket, 1 << 16, MOST_FILES)
            files += some
            if not part:
                raise EOFError
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


def device_of(tensors):
    return next((one.device for _, one in tensors if one is not None), torch.device(DEVICE))


def call(unit_, tensors, numbers):
    """The results of user code, whose own new tensors are where its inputs are."""
    device = device_of(tensors)
    with torch.no_grad(), device if device.type != "cpu" else contextlib.nullcontext():
        return [one.to(device) for one in unit_.call(tensors, numbers)]


def allow_reduced_precision(allowed):
    """Whether libraries may round more than they must where PyTorch lets them by itself."""
    torch.backends.cudnn.allow_tf32 = allowed
    if DEVICE != "cpu":
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = allowed
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = allowed


@contextlib.contextmanager
def as_it_comes():
    """PyTorch as its users have it, who are not asked whether convolutions may be in tf32, or products of 16 bits added up in 16."""
    allow_reduced_precision(True)
    try:
        yield
    finally:
        allow_reduced_precision(False)


def checked(values, outputs, file, eager=False):
    """Results as the operation has them, flat."""
    if len(values) != len(outputs):
        raise Refused("shape", f"{file}: it gives {len(values)} tensors, and the operation has {len(outputs)} outputs")
    flat = []
    for value, out in zip(values, outputs):
        name, kind = out["name"], str(value.dtype).removeprefix("torch.")
        if value.numel() != out["elements"]:
            raise Refused("shape", f"{file}: `{name}` has {value.numel()} elements {list(value.shape)}, not {out['elements']}")
        if out["dtype"] in WHOLE:
            if value.is_floating_point():
                raise Refused("dtype", f"{file}: `{name}` is a tensor of {kind}, and the operation has whole numbers there")
            flat.append(value.detach().reshape(-1).to(torch.int64))
            continue
        if not value.is_floating_point():
            raise Refused("dtype", f"{file}: `{name}` is a tensor of {kind}, and the operation has floating-point numbers there")
        if not eager and value.dtype != torch.float64:
            raise Refused("dtype", f"{file}: of inputs in float64 it makes `{name}` in {kind}; write x.dtype, or leave the type out")
        flat.append(value.detach().reshape(-1).to(TYPES[out["dtype"]] if eager else torch.float64))
    return flat


class Judge:
    """Answers requests; keeps what was loaded, and the latest results for the question that follows."""
    rest = staticmethod(at_rest)

    def __init__(self):
        self.units = {}
        self.watched = set()
        self.noticed = set()
        self.right = None
        self.short = False
        self.ways = {}
        self.sweep = None

    def load(self, request, files):
        unit_ = unit(request["source"], request["file"])
        self.units[request["id"]] = unit_
        return {}

    def where_it_fits(self, tensors, work):
        """Does `work` with these tensors where they are, or on the processor where a GPU's memory is too small."""
        for self.short in (False, True):
            try:
                return work(tensors)
            except torch.OutOfMemoryError:
                if DEVICE == "cpu":
                    raise
            # What refers to itself in a circle is held until somebody looks.
            self.right = None
            gc.collect()
            torch.cuda.empty_cache()
        return work([(name, one if one is None else one.cpu()) for name, one in tensors])

    @contextlib.contextmanager
    def aside(self, results):
        """Has results in the machine's memory meanwhile, where a GPU's was too small for them and what is worked out beside them."""
        places = [one.device for one in results]
        if self.short:
            results[:] = [one.cpu() for one in results]
            torch.cuda.empty_cache()
        yield
        results[:] = [one.to(place) for one, place in zip(results, places)]

    def evaluate(self, request, files):
        """Has every output in float64, and says how far off eager PyTorch is in the types at hand."""
        self.right = None
        with Region(request["inputs"], files) as region:
            answer = self.where_it_fits(region.tensors(request["tensors"]), lambda tensors: self.evaluated(request, tensors))
        return answer

    def evaluated(self, request, tensors):
        unit_, numbers, outputs = self.units[request["id"]], dict(request["numbers"]), request["outputs"]
        right = self.in_double(request, tensors)
        answer = {"undefined": any(bool(torch.isnan(part).any()) for one in right for part in one.split(AT_ONCE)), "finite": all(all_finite(one) for _, one in tensors)}
        answer["masked"] = "masked" in self.noticed or unit_.hides(device_of(tensors))
        if request["split"]:
            with self.aside(right):
                split = [(name, in_two_parts(one)) for name, one in tensors]
                split = checked(call(unit_, split, numbers), outputs, unit_.file)
            answer["split"] = [measure(y, r, form) for y, r, form in zip(split, right, outputs)]
            del split
        own = [(name, copied(one)) for name, one in tensors]
        try:
            with self.aside(right):
                eager = call(unit_, own, numbers)
                del own
        except (NotImplementedError, RuntimeError) as error:
            if "not implemented for" in str(error):
                raise Refused("eager", f"PyTorch cannot compute it in this type here: {str(error).splitlines()[0][:200]}") from None
            raise
        eager = checked(eager, outputs, unit_.file, eager=True)
        answer["eager"] = [measure(y, r, form) for y, r, form in zip(eager, right, outputs)]
        self.right = right
        return answer

    def in_double(self, request, tensors):
        unit_, numbers = self.units[request["id"]], dict(request["numbers"])
        exact = [(name, wide(one)) for name, one in tensors]
        self.noticed = set()
        known = request["id"] in self.watched
        with noticing(self.noticed), contextlib.nullcontext() if known else watching(unit_.file):
            right = call(unit_, exact, numbers)
        self.watched.add(request["id"])
        return checked(right, request["outputs"], unit_.file)

    def compare(self, request, files):
        """How far a candidate's outputs are from what was evaluated just before."""
        right, self.right = self.right, None
        if right is None:
            raise Refused("machine", "there is nothing to compare with")
        with Region(request["given"], files) as region:
            pairs = zip(request["outputs"], request["places"], request["limits"], right)
            return {"given": [self.compared(region, form, at, limit, r) for form, at, limit, r in pairs]}

    def compared(self, region, form, at, limit, r):
        y = region.tensor(at, form["dtype"], [form["elements"]])
        limit = struct.unpack("<d", struct.pack("<Q", limit))[0]
        return measure(y.to(r.device), r, form, limit)

    def reach(self, request, files):
        """Of how many elements of one input an element of each output is made, on average: what one changed element changes tells. And
        whether there are products of matrices or convolutions in it."""
        self.right = None
        with Region(request["inputs"], files) as region:
            return self.where_it_fits(region.tensors(request["tensors"]), lambda tensors: self.reached(request, tensors))

    def reached(self, request, tensors):
        from torch.utils.flop_counter import FlopCounterMode

        counter = FlopCounterMode(display=False)
        with counter:
            right = self.in_double(request, tensors)
        reach, began = [0.0] * len(right), time.monotonic()
        for place in request["changed"]:
            name, one = tensors[place]
            beyond = 2 * float(torch.nan_to_num(one.to(torch.float64)).abs().max()) + 1
            # What one value leaves as it was (a maximum, what is cut off at zero) another does not.
            for turn, value in enumerate((float("nan"), beyond, -beyond)):
                changed = one.clone()
                changed.view(-1)[one.numel() * (2 * turn + 1) // 6] = value
                # What takes so long is not known: too little would refuse an honest sum.
                if time.monotonic() - began > LONG_S:
                    return {"reach": [0.0] * len(right), "products": counter.get_total_flops() > 0}
                try:
                    made = self.in_double(request, [*tensors[:place], (name, changed), *tensors[place + 1 :]])
                except Exception:
                    continue
                for index, (now, before) in enumerate(zip(made, right)):
                    moved = (now != before) & ~(torch.isnan(now) & torch.isnan(before))
                    reach[index] = max(reach[index], one.numel() * int(moved.sum()) / max(1, before.numel()))
        return {"reach": reach, "products": counter.get_total_flops() > 0}

    def trivial(self, request, files):
        """How far off answers are that have nothing to do with the inputs, or are one of them."""
        self.right = None
        with Region(request["inputs"], files) as region:
            guesses = self.where_it_fits(region.tensors(request["tensors"]), lambda tensors: self.guesses_of(request, tensors))
        with Region(request["others"], files) as region:
            return self.where_it_fits(region.tensors(request["tensors"]), lambda tensors: self.guessed(request, tensors, guesses))

    def guesses_of(self, request, tensors):
        """Zeros, the mean and the results of these inputs, as an output has them."""
        results = self.in_double(request, tensors)
        mean = lambda one: torch.nan_to_num(one[torch.isfinite(one)].mean()) if one.numel() else one.sum()
        pairs = list(zip(results, request["outputs"]))
        constant = lambda value, one, form: rounded(value.reshape(1), form).expand(one.numel())
        return [
            [constant(torch.zeros_like(one.sum()), one, form) for one, form in pairs],
            [constant(mean(one.to(torch.float64)), one, form) for one, form in pairs],
            [rounded(one, form) for one, form in pairs],
        ]

    def guessed(self, request, tensors, guesses):
        right = self.in_double(request, tensors)
        copies = [one for _, one in tensors if one is not None and one.is_floating_point() and all(r.numel() == one.numel() for r in right)]
        guesses = [*guesses, *([one.reshape(-1)] * len(right) for one in copies)]
        each = lambda guess: zip(guess, right, request["outputs"])
        return {"guesses": [[measure(y.to(r.device), r, form) for y, r, form in each(guess)] for guess in guesses]}

    def draw(self, request, files):
        """Writes what the problem's file draws from a seed."""
        unit_ = self.units[request["id"]]
        if unit_.get_inputs is None:
            raise Refused("raised", f"{unit_.file}: it has no `Model` and `get_inputs`, by which its inputs are to be drawn")
        drawn = drawn_by(unit_.get_inputs, request["seed"] % (1 << 63))
        if isinstance(unit_, Problem):
            unit_.check(drawn)
        drawn = [one for one in drawn if isinstance(one, torch.Tensor)]
        with Region(request["memory"], files, to_write=True) as region:
            for one, place in zip(drawn, request["places"]):
                if place is None:
                    continue
                if one.numel() != place["elements"]:
                    raise Refused("shape", f"{unit_.file}: get_inputs() draws other shapes than it did")
                region.tensor(place["at"], place["dtype"], [place["elements"]]).copy_(one.detach().reshape(-1))
        return {}

    def prepare(self, request, files):
        """Gets a way of computing it ready, on copies of these inputs, and says what a call takes, µs."""
        self.right = None
        unit_ = self.units[request["id"]]
        self.ways.pop(request["way"], None)
        with Region(request["inputs"], files) as region:
            copies = [[(name, copied(one)) for name, one in region.tensors(tensors)] for tensors in request["copies"]]
        with torch.no_grad(), as_it_comes():
            with noticing_lowerings(unit_, request["mode"]):
                way = self.ways[request["way"]] = Way(unit_, copies, dict(request["numbers"]), request["mode"])
            if self.sweep is None:
                self.sweep = Sweep(request["cold_bytes"])
            us, lowers = sorted(way.us(self.sweep, 1) for _ in range(3))[1], request["mode"] in unit_.lowerings
            return {"us": us, "graph": way.graph is not None, "lowers": lowers}

    def block(self, request, files):
        """µs of a call, the mean of several."""
        way = self.ways.get(request["way"])
        if way is None:
            raise Refused("machine", "PyTorch's process was started again, and this way is not ready in it")
        with torch.no_grad(), as_it_comes():
            return {"us": way.us(self.sweep, request["calls"])}

    def forget(self, request, files):
        self.ways.clear()
        self.sweep = None
        gc.collect()
        if DEVICE != "cpu":
            torch.cuda.empty_cache()
        return {}

    def describe(self, request, files):
        return describe(request["source"], request["file"], request["values"])


def choose(wanted):
    """The GPU of this name among those that PyTorch has, and a context there."""
    global GPU, DEVICE, LIBCUDA
    if wanted is None:
        return None
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise Refused("torch", f"PyTorch {torch.__version__} of {sys.executable}, {built}, cannot use this machine's GPU")
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        if str(properties.uuid) in wanted:
            GPU, DEVICE = number, f"cuda:{number}"
            torch.cuda.set_device(number)
            torch.zeros(1, device=DEVICE)
            LIBCUDA = ctypes.CDLL("libcuda.so.1")
            allow_reduced_precision(False)
            return properties.name
    raise Refused("torch", f"PyTorch of {sys.executable} does not see the GPU {wanted} on which kernels are judged")


def tidy():
    """What is mapped is unmapped once no tensor refers to it; of a GPU's memory others want most."""
    gc.collect(0)
    if DEVICE != "cpu" and torch.cuda.memory_reserved() > torch.cuda.get_device_properties(GPU).total_memory // KEPT:
        torch.cuda.empty_cache()


def serve():
    channel = Channel(0)
    setup, _ = channel.receive()
    leave_nothing_behind(setup["parent"])
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # On some virtual machines the processor lists AMX, and its instructions are illegal.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    if setup["gpu"] is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    global torch, TYPES, DEVICE
    try:
        import torch as imported
    except BaseException as error:
        channel.send({"error": {"kind": "torch", "what": f"{sys.executable} has no PyTorch: {type(error).__name__}: {error}"}})
        return
    torch, DEVICE = imported, "cpu"
    TYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "i8": torch.int8}
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, setup["threads"]))
    torch.backends.cuda.matmul.allow_tf32 = False
    allow_reduced_precision(False)
    try:
        gpu = choose(setup["gpu"])
    except Exception as error:
        channel.send({"error": {"kind": "torch", "what": str(error)}})
        return
    limit_memory(setup["memory"])
    hello = {"torch": torch.__version__, "python": sys.version.split()[0], "threads": torch.get_num_threads(), "gpu": gpu}
    channel.send(hello)
    # Each connection has a state of its own.
    judges = {channel: Judge()}
    while True:
        for one in select.select(list(judges), [], [])[0]:
            try:
                answer_to(one, judges, hello)
            except (EOFError, OSError, ValueError):
                if one is channel:
                    os._exit(0)
                del judges[one]
                one.socket.close()


def is_lost():
    """Whether nothing can be computed on the GPU any more in this process, as after an assertion of PyTorch's own there."""
    try:
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        return False
    except Exception:
        return True


ASKED = {"load", "evaluate", "compare", "trivial", "reach", "prepare", "block", "draw", "forget", "describe", "rest"}


def answer_to(channel, judges, hello):
    """One question, and its answer."""
    request, files = channel.receive()
    judge, left = judges[channel], list(files)
    try:
        if request["ask"] == "join":
            other = Channel(left.pop(0))
            other.send(hello)
            judges[other], answer = Judge(), {}
        elif request["ask"] in ASKED:
            answer = getattr(judge, request["ask"])(request, left)
        else:
            raise Refused("machine", f"nobody knows what {request['ask']} is")
    except BaseException as error:
        refused = refusal(error, request.get("file", "the operation"))
        answer = {"error": {"kind": "lost" if is_lost() else refused.kind, "what": str(refused)}}
        judge.right = None
        del error, refused
    for file in files:
        os.close(file)
    tidy()
    channel.send(answer)


serve()
