"""The judge's side: it draws inputs, says what is right in double precision, and measures how far results are from it. No candidate
ever runs here, and none can reach this process's memory."""

import copy
import inspect
import struct

ALIGNMENT = 4096


def needle(one, draws):
    spikes = torch.rand(one.shape, generator=draws, device=one.device) < 1e-3
    return torch.where(spikes, one * 1000, one)


def wide(one, draws):
    rows = torch.randint(-6, 7, (one.shape[0],) + (1,) * (one.dim() - 1), generator=draws, device=one.device)
    return one * torch.exp2(rows.to(torch.float32)).to(one.dtype)


def spoiled(value):
    def spoil(one, draws):
        place = int(torch.randint(0, one.numel(), (1,), generator=draws, device=one.device))
        one = one.clone(memory_format=torch.contiguous_format)
        one.view(-1)[place] = value
        return one

    return spoil


def alternating(one, draws):
    signs = torch.ones(one.numel(), dtype=one.dtype, device=one.device)
    signs[1::2] = -1
    return one * signs.reshape(one.shape)


def few(one, draws):
    kept = torch.rand(one.shape, generator=draws, device=one.device) < 4 / max(4, one.shape[-1] if one.dim() else 4)
    return torch.where(kept, one, torch.zeros_like(one))


# What is made of ordinary values. Those that keep what is zero where it is are given to problems with structure too.
KINDS = {
    "large": lambda one, draws: one * 30,
    "small": lambda one, draws: one * 2.0**-10,
    "wide": wide,
    "shifted": lambda one, draws: one + 8,
    # Inputs that are drawn from 0 to 1 are never negative else.
    "alternating": alternating,
    "negated": lambda one, draws: -one,
    "constant": lambda one, draws: torch.full_like(one, 0.75),
    "needle": needle,
    "few": few,
    "nan": spoiled(float("nan")),
    "infinity": spoiled(float("inf")),
    "below_all": spoiled(float("-inf")),
}

# One value that is not finite is enough.
NOT_FINITE = ("nan", "infinity", "below_all")


def numeric(one):
    """Whether values may be others: those of a tensor of whole numbers or of many zeros mean something."""
    if not (isinstance(one, torch.Tensor) and one.is_floating_point()) or one.numel() < 2:
        return False
    some = one.reshape(-1)[:: max(1, one.numel() >> 22)]
    return not bool((some == some.round()).all()) and float((some == 0).double().mean()) < 0.02


def in_two_parts(one):
    """What is left of values of 32 bits in two of bfloat16, in double precision."""
    high = one.to(torch.bfloat16).to(torch.float64)
    return high + (one.to(torch.float64) - high).to(torch.bfloat16).to(torch.float64)


def watching():
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    generator = torch.cuda.get_rng_state if DEVICE.type == "cuda" else torch.get_rng_state

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
            seeded = torch.Tag.nondeterministic_seeded in func.tags
            before = generator() if seeded else None
            out = func(*args, **(kwargs or {}))
            # Recurrent layers and attention are marked so for a dropout that they need not have.
            if seeded and not torch.equal(before, generator()):
                raise Refused("problem", f"it draws random numbers ({func}), so that nothing is right or wrong")
            wide_in = any(isinstance(one, torch.Tensor) and one.dtype == torch.float64 for one in tree_leaves((args, kwargs)))
            for one in tree_leaves(out):
                if isinstance(one, torch.Tensor) and wide_in and one.is_floating_point() and one.dtype != torch.float64:
                    raise Refused("problem", f"it names a type ({func} gives {one.dtype}), so that float64 cannot say what is right")
            return out

    return Watch()


class Grader:
    def __init__(self):
        self.arenas, self.masters, self.taken = {}, None, None

    def problem(self, request, files):
        """Reads a problem: its arguments, its results, and where they lie in a slot."""
        from torch.utils.flop_counter import FlopCounterMode

        self.arenas, self.masters, self.taken = {}, None, None
        self.module = module_of(request["source"], request["file"])
        log = []
        with recorder(log):
            given = self.draw(request["seed"])
        self.structured = bool(log)
        self.weights(request, files)
        with torch.no_grad():
            before = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
            made = self.eager(given)
            settle()
            counter = FlopCounterMode(display=False)
            with watching(), counter:
                self.exact(before)
        self.writes = [
            not self.same(one, other) for one, other in zip(given, before) if isinstance(one, torch.Tensor)
        ]
        inputs, pattern = [], []
        for one in given:
            if isinstance(one, torch.Tensor):
                pattern.append({"tensor": len(inputs)})
                inputs.append(one)
            elif one is None or isinstance(one, (bool, int, float, str)):
                pattern.append({"value": one})
            else:
                raise Refused("problem", f"get_inputs() gives {type(one).__name__}")
        self.pattern = pattern
        self.numeric = [numeric(one) for one in before if isinstance(one, torch.Tensor)]
        end, places = 0, []
        for one in inputs + made:
            if one.dtype not in NAMES:
                raise Refused("problem", f"it has a tensor of {one.dtype}")
            size = one.numel() * one.element_size()
            places.append({"at": end, "bytes": size, "dtype": NAMES[one.dtype], "shape": list(one.shape)})
            end = (end + size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        self.inputs, self.outputs = places[: len(inputs)], places[len(inputs) :]
        kinds = list(KINDS) if not self.structured else ["large", "small"]
        usable = any(self.numeric) and all(one.is_floating_point() for one in made)
        return {
            "inputs": self.inputs, "outputs": self.outputs, "pattern": pattern, "bytes": end, "kinds": kinds if usable else [],
            "terms": max((one.numel() for one in inputs), default=1), "structured": sorted(set(log)),
            "products": counter.get_total_flops() > 0,
        }

    def weights(self, request, files):
        """Makes the problem's model anew, with what its weights are drawn from."""
        arguments = initial(self.module, request["seed"])
        with torch.no_grad():
            torch.manual_seed(request["seed"])
            self.model = self.module.Model(*arguments).to(device=DEVICE, dtype=PRECISION)
        return {}

    def draw(self, seed):
        return as_drawn(self.module, seed)

    def inputs_of(self, kind, seed):
        given = self.draw(seed)
        if kind == "ordinary":
            return given
        draws = torch.Generator(device=DEVICE)
        draws.manual_seed(seed ^ 0x5EED)
        place, changed = 0, []
        for one in given:
            if isinstance(one, torch.Tensor):
                apt = self.numeric[place] and not (kind in NOT_FINITE and any(self.numeric[:place]))
                changed.append(KINDS[kind](one, draws).to(one.dtype) if apt else one)
                place += 1
            else:
                changed.append(one)
        return changed

    def eager(self, given):
        return results(copy.deepcopy(self.model)(*given))

    def exact(self, given, change=lambda one: one.to(torch.float64)):
        model = copy.deepcopy(self.model).double()
        return results(model(*[change(one) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in given]))

    def same(self, one, other):
        if not isinstance(one, torch.Tensor):
            return True
        # Bit for bit: NaN is like itself, and -0 is not 0.
        return bool(torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8)))

    def arena(self, request, files):
        """Memory for slots that another process has too."""
        size = request["bytes"]
        if DEVICE.type != "cuda":
            self.arenas[request["arena"]] = torch.frombuffer(mmap.mmap(files[0], size), dtype=torch.uint8)
            return {"handle": ""}
        runtime, address, handle = cudart(), ctypes.c_void_p(), IpcHandle()
        device_call("memory for tensors", runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)))
        device_call("sharing it", runtime.cudaIpcGetMemHandle(ctypes.byref(handle), address))
        self.arenas[request["arena"]] = torch.as_tensor(DeviceBytes(address.value, size), device=DEVICE)
        self.allocated = getattr(self, "allocated", []) + [address]
        return {"handle": bytes(handle.reserved).hex()}

    def forget(self, request, files):
        """Gives a problem's memory back."""
        self.arenas, self.masters, self.taken = {}, None, None
        for address in getattr(self, "allocated", []):
            device_call("giving memory back", cudart().cudaFree(address))
        self.allocated = []
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
        return {}

    def fill(self, request, files):
        """Fresh inputs in a slot, and in its outputs what no result is: bytes of 0xff, NaN in every floating type."""
        arena, slot = self.arenas[request["arena"]], request["slot"]
        with torch.no_grad():
            if request["seed"] is not None:
                self.kind = request["kind"]
                self.masters = self.inputs_of(request["kind"], request["seed"])
            tensors = [one for one in self.masters if isinstance(one, torch.Tensor)]
            for room, one in zip(slices(arena, slot, self.inputs), tensors):
                room.copy_(one)
            for place in self.outputs:
                arena[slot + place["at"] : slot + place["at"] + place["bytes"]].fill_(0xFF)
        settle()
        return {}

    def take(self, request, files):
        """Copies the outputs out of a slot."""
        self.taken = [one.clone() for one in slices(self.arenas[request["arena"]], request["slot"], self.outputs)]
        settle()
        return {}

    def check(self, request, files):
        """What was taken against double precision, and whether inputs are as they were."""
        rooms = slices(self.arenas[request["arena"]], request["slot"], self.inputs)
        tensors = [one for one in self.masters if isinstance(one, torch.Tensor)]
        changed = [
            place for place, (room, one) in enumerate(zip(rooms, tensors)) if not self.writes[place] and not self.same(room, one)
        ]
        return {"changed": changed, "outputs": self.compared(self.taken, self.masters, request["forms"])}

    def compared(self, candidates, given, forms):
        with torch.no_grad():
            right = self.exact([one.clone() if isinstance(one, torch.Tensor) else one for one in given])
            eager = self.eager([one.clone() if isinstance(one, torch.Tensor) else one for one in given])
        finite = all(bool(torch.isfinite(one).all()) for one in given if isinstance(one, torch.Tensor) and one.is_floating_point())
        found = []
        for made, truth, usual, form in zip(candidates, right, eager, forms):
            undefined = finite and truth.is_floating_point() and bool(torch.isnan(truth).any())
            found.append({"made": parts_of(made, truth, form), "eager": parts_of(usual, truth, form), "undefined": undefined})
        return found

    def yard(self, request, files):
        """PyTorch's own error on inputs of a kind, once for each seed; of two parts of bfloat16 where that shows."""
        answers = []
        for seed in request["seeds"]:
            given = self.inputs_of(request["kind"], seed)
            with torch.no_grad():
                right = self.exact([one.clone() if isinstance(one, torch.Tensor) else one for one in given])
                eager = self.eager([one.clone() if isinstance(one, torch.Tensor) else one for one in given])
                split = self.exact(given, in_two_parts) if request["kind"] == "few" and PRECISION == torch.float32 else None
            answers.append([
                {
                    "eager": parts_of(usual, truth, form),
                    "split": parts_of(split[place], truth, form) if split else None,
                    "undefined": truth.is_floating_point() and request["kind"] not in NOT_FINITE and bool(torch.isnan(truth).any()),
                }
                for place, (usual, truth, form) in enumerate(zip(eager, right, request["forms"]))
            ])
        return {"draws": answers}

    def guesses(self, request, files):
        """How right answers are that have nothing to do with the inputs: zeros, the mean, the result of other inputs."""
        first, second = [self.draw(seed) for seed in request["seeds"]]
        with torch.no_grad():
            known = self.eager([one.clone() if isinstance(one, torch.Tensor) else one for one in first])
        mean = [torch.full_like(one, one.double().nanmean().to(one.dtype).item()) for one in known]
        tried = {"zeros": [torch.zeros_like(one) for one in known], "the mean everywhere": mean, "the result of other inputs": known}
        return {"guesses": [{"what": what, "outputs": self.compared(made, second, request["forms"])} for what, made in tried.items()]}

    def idle(self, request, files):
        """Milliseconds of work that is always the same, on the device's clock: more than ever before where somebody else uses the device."""
        if DEVICE.type != "cuda":
            return {"ms": 0.0}
        if not hasattr(self, "busy"):
            self.busy = torch.randn(4096, 4096, device=DEVICE)
            self.product = torch.empty_like(self.busy)
            self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        # A device that had nothing to do has a slow clock: it wakes before anything is timed.
        for _ in range(8):
            torch.mm(self.busy, self.busy, out=self.product)
        self.events[0].record()
        for _ in range(4):
            torch.mm(self.busy, self.busy, out=self.product)
        self.events[1].record()
        settle()
        return {"ms": self.events[0].elapsed_time(self.events[1])}


def parts_of(made, right, form):
    """How far a result is, as `measure.py` has it. Integers are alike or not."""
    y, r = made.reshape(-1), right.reshape(-1)
    if right.is_floating_point():
        # What a model makes of a comparison is of single precision whatever goes in.
        r = r.to(torch.float64)
    else:
        off = y.to(torch.int64) != r.to(torch.int64)
        wrong = int(off.sum())
        at = int(off.to(torch.uint8).argmax()) if wrong else 0
        return {**BLANK, "misplaced": wrong, "at": at, "got": float(y[at]), "want": float(r[at])}

    def doubles(bits):
        return [bounded(struct.unpack("<d", struct.pack("<Q", one))[0]) for one in bits]

    found = measure(y, r, form)
    parts = dict(zip(("tensor", "row", "element", "bias"), doubles(found["parts"])))
    got, want = doubles(found["values"])
    counts = {name: found[name] for name in ("misplaced", "lost", "strayed")}
    return {**parts, **counts, "relative": doubles(found["rms"])[0], "at": found["at"], "got": got, "want": want}


BLANK = {"tensor": 0.0, "row": 0.0, "element": 0.0, "bias": 0.0, "misplaced": 0, "lost": 0, "strayed": 0}
BLANK |= {"relative": 0.0, "at": 0, "got": 0.0, "want": 0.0}


def bounded(value):
    """What JSON can hold: anything that is not finite is as large as can be."""
    if isinstance(value, int) or value == value and abs(value) < 1e300:
        return value
    return 1e300 if value != value or value > 0 else -1e300


def serve():
    channel, setup = begin()
    # As the reference and samples have it: a convolution that a sample keeps may be in tf32 by PyTorch's default, and is right.
    torch.backends.cuda.matmul.allow_tf32 = False
    # Nobody of the same user may look into this process.
    ctypes.CDLL(None).prctl(4, 0)
    paths = [sys.executable, os.path.realpath(sys.executable), sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(torch.__file__)]
    channel.send({
        "torch": torch.__version__, "python": sys.version.split()[0], "threads": torch.get_num_threads(),
        "paths": sorted({os.path.realpath(one) for one in paths + sys.path if os.path.exists(one)} | set(paths)),
        "hardware": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
    })
    grader = Grader()
    names = ("problem", "weights", "arena", "forget", "fill", "take", "check", "yard", "guesses", "idle")
    answer_all(channel, {name: getattr(grader, name) for name in names})


serve()
