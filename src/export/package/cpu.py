"""Shared objects of kernels for processors: loaded, and called on addresses."""

import ctypes
import os
import threading

import torch

from .plans import PLANS, Unusable, read


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


_threads, _count = None, 0
_lock = threading.Lock()


def prepare():
    """`ws_parallel`, over the threads of PyTorch's own OpenMP where it has one."""
    global _threads, _count
    with _lock:
        if _threads is None:
            path = read(PLANS["threads"])
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            library.ws_threads.argtypes = [ctypes.c_int, ctypes.c_void_p]
            library.ws_threads.restype = None
            _threads = library
        _count = torch.get_num_threads()
        _threads.ws_threads(_count, openmp())
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


def empty(shape, stride, dtype, device):
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


class Code:
    """What runs of one kernel."""

    alignment = 64

    def __init__(self, plan, count):
        check_processor()
        prepare()
        self.library = ctypes.CDLL(read(plan["image"]))
        self.entry = self.library.ws_entry
        self.entry.argtypes = [ctypes.c_void_p] * 3
        self.entry.restype = None
        self.addresses = ctypes.c_void_p * count

    def why_not(self, device, unjudged=False):
        return None

    def notice(self, device):
        return None

    def stream(self, device):
        """There are none."""
        return 0

    def is_capturing(self):
        return False

    def lasting(self, device, stream, size, kept, capturing):
        """None: several threads may call at a time, and memory costs next to nothing."""
        return None

    def run(self, device, stream, addresses, zeroed, look, tensors):
        if look:
            look(tensors)
        if torch.get_num_threads() != _count:
            # As in a forked loader of data, where those of before are gone.
            prepare()
        for address, size in zeroed:
            ctypes.memset(address, 0, size)
        self.entry(self.addresses(*addresses), None, None)
