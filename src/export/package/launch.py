"""Shared objects of kernels for processors: loaded, and called on tensors."""

import ctypes
import hashlib
import os
import threading

import torch

from .plans import HERE, PLANS


class Unusable(Exception):
    """Why a kernel cannot run here."""


def flags():
    """What this machine's processor can do."""
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return set(line.split(":", 1)[1].split())
    return set()


def check_processor():
    missing = sorted(set(PLANS["cpu_flags"]) - flags())
    if missing:
        raise Unusable(f"the kernels were built for {PLANS['device']}, and this processor has no {', '.join(missing[:4])}")


def read(path, digest):
    """A file of the package, where it is what the package says it is."""
    full = os.path.join(HERE, path)
    with open(full, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != digest:
        raise Unusable(f"{path} is not the file that was exported: its digest differs from plans.json")
    return full


_threads = None
_lock = threading.Lock()


def threads():
    """`ws_parallel`, over the threads of PyTorch's own OpenMP where it has one."""
    global _threads
    with _lock:
        if _threads is None:
            path = read(PLANS["threads"]["path"], PLANS["threads"]["sha256"])
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            library.ws_threads.argtypes = [ctypes.c_int, ctypes.c_void_p]
            library.ws_threads.restype = None
            _threads = library
        _threads.ws_threads(torch.get_num_threads(), openmp())
        return _threads


def openmp():
    """Where GOMP_parallel is in this process, if anywhere: torch brings its own under a name of its own."""
    try:
        with open("/proc/self/maps") as file:
            paths = {line.split()[-1] for line in file if "libgomp" in line or "libiomp" in line or "libomp" in line}
    except OSError:
        return None
    for path in sorted(paths):
        try:
            function = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
            return ctypes.cast(function, ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


class Kernel:
    """One kernel: tensors in, tensors out. Nothing is copied."""

    def __init__(self, plan):
        self.plan, self.name = plan, plan["name"]
        self.calls = 0
        kind = lambda one: getattr(torch, one["dtype"])
        self.forms = [(tuple(one["shape"]), tuple(one["stride"]), kind(one)) for one in plan["inputs"]]
        self.made = [(tuple(one["shape"]), tuple(one["stride"]), kind(one)) for one in plan["outputs"]]
        self.scratch = [(one["bytes"], one["zero"]) for one in plan["scratch"]]
        self.single = len(self.made) == 1
        check_processor()
        threads()
        library = ctypes.CDLL(read(plan["image"]["path"], plan["image"]["sha256"]))
        entry = library.ws_entry
        entry.argtypes = [ctypes.c_void_p] * 3
        entry.restype = None
        self.entry, self.library = entry, library
        self.pointers = ctypes.c_void_p * (len(self.forms) + len(self.made) + len(self.scratch))

    def check(self, tensors):
        """Everything that was judged, or an error: never a kernel on what it was not judged for."""
        for at, (one, (shape, stride, dtype)) in enumerate(zip(tensors, self.forms)):
            if one.shape != shape or one.dtype != dtype or one.device.type != "cpu" or one.stride() != stride and not alike(one, stride):
                raise RuntimeError(
                    f"{self.name}: argument {at} is {one.dtype} {tuple(one.shape)} strides {one.stride()} on {one.device}; "
                    f"judged was {dtype} {shape} strides {stride} on cpu"
                )

    def __call__(self, *tensors):
        self.check(tensors)
        outputs = [torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in self.made]
        scratch = [(torch.zeros if zero else torch.empty)(size, dtype=torch.uint8) for size, zero in self.scratch]
        pointers = self.pointers(*[one.data_ptr() for one in (*tensors, *outputs, *scratch)])
        self.entry(pointers, None, None)
        self.calls += 1
        return outputs[0] if self.single else tuple(outputs)


def alike(tensor, stride):
    """Strides that lead to the same places: those of dimensions of one element do not matter."""
    return all(size == 1 or own == judged for size, own, judged in zip(tensor.shape, tensor.stride(), stride))
