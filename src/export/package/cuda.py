"""Cubins of kernels for one GPU, started through the driver in PyTorch's context, on its current stream."""

import ctypes
import threading

import torch

from .plans import PLANS, Unusable, read

# Of `cuda.h`.
COOPERATIVE, CLUSTER, DEPENDENT = 2, 4, 6
MOST_SHARED, LARGE_CLUSTERS = 8, 14
PORTABLE_CLUSTER = 8
L2_PROMOTION_128B = 2
BUFFER = ctypes.sizeof(ctypes.c_uint64)
MAP, MAP_ALIGNMENT = 128, 64
# Weights of a model have as many places as there are layers, and results come back to the same ones.
MOST_CALLS = 1024


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
    """A tensor with no contents; by the way that torch.compile's own code takes, where it is there, in a quarter of the time."""
    if _empty is not None and device.index == torch._C._cuda_getDevice():
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
        self.ready, self.calls, self.lock = {}, {}, threading.Lock()

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

    def run(self, device, addresses, zeroed, look, tensors):
        """Starts it; `look` is called with the tensors where these addresses are new."""
        index = device.index
        if index != torch._C._cuda_getDevice():
            with torch.cuda.device(index):
                return self.run(device, addresses, zeroed, look, tensors)
        stream = torch._C._cuda_getCurrentRawStream(index)
        # Everything that a launch is given is packed once for these addresses on this stream, and only read from then on.
        calls = self.calls.get((index, stream, *addresses))
        if calls is None:
            if look:
                look(tensors)
            calls = self.pack(device, stream, addresses)
        for address, size in zeroed:
            if result := driver().cuMemsetD8Async(address, 0, size, stream):
                check(result, f"clearing scratch of {self.name}")
        for launch, config, function, arguments, _ in calls:
            if result := launch(config, function, arguments, None):
                check(result, f"launching {self.name}")

    def pack(self, device, stream, addresses):
        with self.lock:
            launches = self.ready.get(device.index)
            if launches is None:
                launches = self.ready[device.index] = self.load(device)
            if len(self.calls) >= MOST_CALLS:
                self.calls.clear()
            packed = [one.packed(addresses, stream) for one in launches]
            self.calls[(device.index, stream, *addresses)] = packed
            return packed


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
        self.maps = [map_of(one["map"]) for one in plan["args"] if "map" in one]

    def set(self, attribute, value):
        check(driver().cuFuncSetAttribute(self.function, attribute, value), f"preparing {self.name}")

    def packed(self, addresses, stream):
        """What `cuLaunchKernelEx` is called with, and what keeps it in memory."""
        plan, maps = self.plan, iter(self.maps)
        # Each argument on 64 bytes, as tensor maps must be.
        places, size = [], 0
        for one in plan["args"]:
            places.append(size)
            size += MAP if "map" in one else MAP_ALIGNMENT
        memory = (ctypes.c_ubyte * (size + MAP_ALIGNMENT))()
        begin = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        for one, place in zip(plan["args"], places):
            (kind, value), = one.items()
            at = begin + place
            if kind == "buffer" and value is not None:
                ctypes.c_uint64.from_address(at).value = addresses[value]
            elif kind == "long":
                ctypes.c_int64.from_address(at).value = value
            elif kind == "float":
                ctypes.c_float.from_address(at).value = value
            elif kind == "map":
                encode(next(maps), at, addresses[value["buffer"]])
        pointers = (ctypes.c_void_p * max(len(places), 1))(*[begin + place for place in places])
        config = Config((ctypes.c_uint * 3)(*plan["grid"]), (ctypes.c_uint * 3)(*plan["block"]), plan["shared"], stream,
                        ctypes.addressof(self.attributes), self.count)
        kept = (memory, pointers, config, self.attributes)
        return driver().cuLaunchKernelEx, ctypes.addressof(config), self.function, ctypes.addressof(pointers), kept


def map_of(plan):
    """A tensor map as the driver is told of it, but for the address."""
    rank = len(plan["dims"])
    # A rank of one has no strides, and the driver still wants a pointer.
    sizes = [(ctypes.c_uint64 * rank)(*plan[name]) for name in ("dims", "strides")]
    steps = [(ctypes.c_uint32 * rank)(*plan[name]) for name in ("extent", "steps")]
    return plan["element"], rank, [*sizes, *steps], plan["swizzle"]


def encode(known, at, address):
    element, rank, forms, swizzle = known
    result = driver().cuTensorMapEncodeTiled(at, element, rank, address, *forms, 0, swizzle, L2_PROMOTION_128B, 0)
    check(result, "describing a tensor")
