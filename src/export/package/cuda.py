"""Cubins of kernels for one GPU, started through the driver in PyTorch's context, on its current stream."""

import ctypes
import threading

import torch

from .plans import PLANS, Unusable, read

# Of `cuda.h`.
COOPERATIVE, CLUSTER, DEPENDENT = 2, 4, 6
MOST_SHARED, LARGE_CLUSTERS = 8, 14
PORTABLE_CLUSTER = 8
# CUDA_ERROR_OUT_OF_MEMORY
OUT_OF_MEMORY = 2
L2_PROMOTION_128B = 2
BUFFER = ctypes.sizeof(ctypes.c_uint64)
MAP, MAP_ALIGNMENT = 128, 64
# Weights of a model have as many places as there are layers, and results come back to the same ones.
MOST_MAPS, MOST_SEEN = 4096, 4096
# Places of lasting scratch for threads and streams; of what is kept as zeros also for calls in CUDA graphs.
MOST_PLACES, MOST_SLOTS, SLOTS_BYTES = 8, 2048, 4 << 20


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16)]


class Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]


def empty(shape, stride, dtype, device):
    """A tensor with no contents on the current device; by the way that torch.compile's own code takes, where it is there, in a quarter of the time."""
    if _empty is not None:
        return _empty(shape, stride, dtype)
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


_empty = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
_driver = None


def driver():
    """The driver's library, which PyTorch has loaded already."""
    global _driver
    if _driver is None:
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unusable(f"there is no NVIDIA driver: {error}") from None
        library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
        library.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        library.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
        library.cuModuleLoadData.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.cuModuleGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
        library.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        library.cuTensorMapEncodeTiled.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 4
        ]
        _driver = library
    return _driver


def check(result, doing):
    if result:
        text = ctypes.c_char_p()
        driver().cuGetErrorName(result, ctypes.byref(text))
        raise RuntimeError(f"{doing}: {text.value.decode() if text.value else result}")


def capability_of(device):
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


class Code:
    """What runs of one kernel: its launches, made ready on each device that it is called on."""

    alignment = 256

    def __init__(self, plan, count):
        self.name = plan["name"]
        self.launches, self.images = plan["launches"], {}
        self.unjudged = {one["capability"]: one for one in plan.get("unjudged", [])}
        self.keep(self.launches)
        self.ready, self.seen, self.slots, self.lock = {}, set(), {}, threading.Lock()

    def keep(self, launches):
        """Reads the files of launches, each once."""
        for launch in launches:
            path = launch["cubin"]["path"]
            if path not in self.images:
                with open(read(launch["cubin"]), "rb") as file:
                    self.images[path] = file.read()

    def why_not(self, device, unjudged=False):
        """Why it is not for a device; `unjudged` has what was compiled for it do as well."""
        why = self.not_judged(device)
        other = self.unjudged.get(capability_of(device)) if why else None
        if other is None:
            return why
        if other["why_not"]:
            return f"{why}, and it is not compiled for {other['arch']}: {other['why_not']}"
        if not unjudged:
            return f"{why}; compiled for {other['arch']} it is here, and nobody has judged that: enable(unjudged=True) uses it all the same"
        return None

    def notice(self, device):
        if self.not_judged(device) is None:
            return None
        return f"{self.name} is used as compiled for {self.unjudged[capability_of(device)]['arch']}, which nobody has judged"

    def not_judged(self, device):
        name = torch.cuda.get_device_name(device)
        if name != PLANS["device"]:
            return f"it was judged on {PLANS['device']}, and {device} is {name}"
        capability = capability_of(device)
        if capability != PLANS["capability"]:
            return f"it is for compute capability {PLANS['capability'] / 10}, and {device} has {capability / 10}"
        return None

    def launches_for(self, device):
        """What was judged; on another device what was compiled for it, which only `unjudged=True` has placed there."""
        why = self.why_not(device, unjudged=True)
        if why:
            raise RuntimeError(f"{self.name}: {why}")
        if self.not_judged(device) is None:
            return self.launches
        launches = self.unjudged[capability_of(device)]["launches"]
        self.keep(launches)
        return launches

    def load(self, device):
        """The launches in a device's context."""
        # Whoever calls this holds the lock, and the device is current.
        modules, made = {}, []
        for launch in self.launches_for(device):
            path = launch["cubin"]["path"]
            if path not in modules:
                modules[path] = ctypes.c_void_p()
                check(driver().cuModuleLoadData(ctypes.byref(modules[path]), self.images[path]), f"loading {self.name}")
            made.append(Launch(launch, modules[path]))
        return made

    def stream(self, device):
        """The current stream there; none where another device is the current one."""
        index = device.index
        return torch._C._cuda_getCurrentRawStream(index) if index == torch._C._cuda_getDevice() else None

    def is_capturing(self):
        """Whether what is started becomes a part of a graph."""
        return torch._C._cuda_isCurrentStreamCapturing()

    def lasting(self, device, stream, size, kept, capturing):
        """The address of scratch of `size` bytes that stays, zeros where the kernel leaves zeros (`kept` bytes are all that): one place for a thread and a
        stream, on which its launches follow each other, and one for each call in a graph; none where there are none left."""
        index = device.index
        slots = self.slots.get((index, size))
        if slots is None:
            if capturing:
                # Clearing them would be a part of the graph.
                return None
            with self.lock:
                # A graph asks for what is kept alone.
                for one, most in ((kept, MOST_SLOTS), (size, MOST_PLACES)):
                    if one and (index, one) not in self.slots:
                        self.slots[index, one] = Slots(one, most)
                slots = self.slots[index, size]
        if capturing:
            # Graphs run on any stream, and beside each other.
            return slots.take()
        key = stream, threading.get_ident()
        place = slots.places.get(key)
        if place is None:
            place = slots.places[key] = slots.take()
        return place

    def run(self, device, stream, addresses, zeroed, look, tensors):
        """Starts it; `look` is called with the tensors where these addresses are new."""
        index = device.index
        launches = self.ready.get(index)
        if launches is None or look and tuple(addresses) not in self.seen:
            if look:
                look(tensors)
            launches = self.prepare(device, addresses)
        for address, size in zeroed:
            if result := driver().cuMemsetD8Async(address, 0, size, stream):
                check(result, f"clearing scratch of {self.name}")
        try:
            for launch in launches:
                launch(addresses, stream)
        except BaseException:
            # What the last launch would have left as zeros.
            for (place, _), slots in list(self.slots.items()):
                if place == index:
                    slots.places.pop((stream, threading.get_ident()), None)
            raise

    def prepare(self, device, addresses):
        with self.lock:
            if device.index not in self.ready:
                self.ready[device.index] = self.load(device)
            if len(self.seen) >= MOST_SEEN:
                self.seen.clear()
            # No two devices have an address in common.
            self.seen.add(tuple(addresses))
            return self.ready[device.index]


class Slots:
    """Memory on the current device that is zeros at first, for so many calls at a time. Not PyTorch's memory: what it allocates while a model of mode="reduce-overhead"
    warms up belongs to the graphs' pool, and it looks for whatever is left there. They stay as long as the process."""

    def __init__(self, size, most):
        count, at = max(1, min(most, SLOTS_BYTES // size)), ctypes.c_uint64()
        result = driver().cuMemAlloc_v2(ctypes.byref(at), count * size)
        if result == OUT_OF_MEMORY:
            # PyTorch may keep what nobody uses.
            torch.cuda.empty_cache()
            result = driver().cuMemAlloc_v2(ctypes.byref(at), count * size)
        if result == OUT_OF_MEMORY:
            # Each call then has memory of PyTorch's, and clears it.
            self.free, self.places = iter(()), {}
            return
        check(result, "allocating scratch")
        check(driver().cuMemsetD8_v2(at, 0, count * size), "clearing it")
        # Whatever stream they are used on.
        check(driver().cuCtxSynchronize(), "clearing it")
        self.free, self.places = iter(range(at.value, at.value + count * size, size)), {}

    def take(self):
        return next(self.free, None)


class Launch:
    """One launch in a context."""

    def __init__(self, plan, module):
        self.name = plan["function"]
        function = ctypes.c_void_p()
        check(driver().cuModuleGetFunction(ctypes.byref(function), module, self.name.encode()), f"finding {self.name}")
        self.function = function.value
        if plan["shared"]:
            self.set(MOST_SHARED, plan["shared"])
        cluster = plan["cluster"]
        if cluster and cluster[0] * cluster[1] * cluster[2] > PORTABLE_CLUSTER:
            self.set(LARGE_CLUSTERS, 1)
        wanted = [(CLUSTER, cluster)] if cluster else []
        wanted += [(COOPERATIVE, [1])] if plan["cooperative"] else []
        wanted += [(DEPENDENT, [1])] if plan["pdl"] else []
        self.attributes = (Attribute * max(len(wanted), 1))()
        for attribute, (number, values) in zip(self.attributes, wanted):
            attribute.id = number
            attribute.value[: len(values)] = values
        self.count, self.plan = len(wanted), plan
        kinds = [next(iter(one.items())) for one in plan["args"]]
        # Which argument has the address of which buffer, as it is, or in a map.
        self.buffers = [(at, value) for at, (kind, value) in enumerate(kinds) if kind == "buffer" and value is not None]
        self.maps = [(at, value["buffer"], map_of(value), {}) for at, (kind, value) in enumerate(kinds) if kind == "map"]
        self.values = [(at, kind, value) for at, (kind, value) in enumerate(kinds) if kind in ("long", "float")]
        self.start, self.blocks = driver().cuLaunchKernelEx, []

    def set(self, attribute, value):
        check(driver().cuFuncSetAttribute(self.function, attribute, value), f"preparing {self.name}")

    def __call__(self, addresses, stream):
        """Starts it. What it is given lies in a block that nobody else has meanwhile; the driver copies it."""
        try:
            block = self.blocks.pop()
        except IndexError:
            block = Block(self)
        values, pointers = block.values, block.pointers
        for at, buffer in self.buffers:
            values[at] = addresses[buffer]
        for at, buffer, form, encoded in self.maps:
            map = encoded.get(addresses[buffer])
            if map is None:
                map = encode(form, encoded, addresses[buffer])
            # Held as long as it is pointed to, where there are too many to be kept.
            pointers[at], block.maps[at] = map[0], map
        block.config.stream = stream
        result = self.start(block.config_at, self.function, block.pointers_at, None)
        self.blocks.append(block)
        if result:
            check(result, f"launching {self.name}")


class Block:
    """What `cuLaunchKernelEx` is called with."""

    def __init__(self, launch):
        plan, count = launch.plan, max(len(launch.plan["args"]), 1)
        self.values, self.maps = (ctypes.c_uint64 * count)(), {}
        at = ctypes.addressof(self.values)
        for place, kind, value in launch.values:
            kind = ctypes.c_int64 if kind == "long" else ctypes.c_float
            kind.from_address(at + place * BUFFER).value = value
        self.pointers = (ctypes.c_void_p * count)(*[at + place * BUFFER for place in range(count)])
        grid, block = (ctypes.c_uint * 3)(*plan["grid"]), (ctypes.c_uint * 3)(*plan["block"])
        self.config = Config(grid, block, plan["shared"], None, ctypes.addressof(launch.attributes), launch.count)
        self.config_at, self.pointers_at = ctypes.addressof(self.config), ctypes.addressof(self.pointers)


def map_of(plan):
    """A tensor map as the driver is told of it, but for the address."""
    rank = len(plan["dims"])
    # A rank of one has no strides, and the driver still wants a pointer.
    sizes = [(ctypes.c_uint64 * rank)(*plan[name]) for name in ("dims", "strides")]
    steps = [(ctypes.c_uint32 * rank)(*plan[name]) for name in ("extent", "steps")]
    return plan["element"], rank, [*sizes, *steps], plan["swizzle"]


def encode(form, encoded, address):
    """The map of a tensor that lies there: its place, and what keeps it."""
    element, rank, forms, swizzle = form
    memory = (ctypes.c_ubyte * (MAP + MAP_ALIGNMENT))()
    at = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    result = driver().cuTensorMapEncodeTiled(at, element, rank, address, *forms, 0, swizzle, L2_PROMOTION_128B, 0)
    check(result, "describing a tensor")
    # Somebody may be starting a kernel with what was encoded before: none of it is dropped.
    map = at, memory
    if len(encoded) < MOST_MAPS:
        encoded[address] = map
    return map
