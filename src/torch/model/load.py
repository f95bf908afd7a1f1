"""A user's model: `model.py` with `Model`, `get_inputs()` and, where it wants, `get_init_inputs()`."""

import os
import sys
import types

import torch


def load(folder, device, dtype, seed):
    """The model in evaluation mode, and a function that draws inputs, both on the device."""
    file = os.path.join(folder, "model.py")
    with open(file) as opened:
        text = opened.read()
    module = types.ModuleType("warpsmith_model")
    module.__file__ = file
    sys.modules["warpsmith_model"] = module
    sys.path.insert(0, folder)
    exec(compile(text, file, "exec"), module.__dict__)
    for name in ("Model", "get_inputs"):
        if not hasattr(module, name):
            raise SystemExit(f"{file} has no `{name}`; it needs `Model` and `get_inputs()`, and may have `get_init_inputs()`")
    torch.manual_seed(seed)
    model = module.Model(*getattr(module, "get_init_inputs", list)())
    model = model.eval().to(device)
    if dtype:
        model = model.to(getattr(torch, dtype))

    def moved(one):
        if not isinstance(one, torch.Tensor):
            return one
        one = one.to(device)
        return one.to(getattr(torch, dtype)) if dtype and one.is_floating_point() else one

    def draw(number):
        torch.manual_seed(number)
        return [moved(one) for one in module.get_inputs()]

    return model, draw


def tensors_of(value):
    """The tensors in what a model gives, in order."""
    from torch.utils._pytree import tree_leaves

    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def wait(device):
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def quartile(times):
    """The lower quartile: what others do on the machine only adds."""
    return sorted(times)[len(times) // 4]


def graphed(call, device):
    """The same as a CUDA graph that is replayed: what the device takes, without what starting it costs. None where it cannot be captured."""
    if torch.device(device).type != "cuda":
        return None
    try:
        with torch.no_grad():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
        torch.cuda.synchronize()
        return graph.replay
    except Exception:
        torch.cuda.synchronize()
        return None


def clock(call, device, seconds, least=5):
    """µs of calls, one by one."""
    import time

    times = []
    for _ in range(3):
        call()
    wait(device)
    end = time.perf_counter() + seconds
    if torch.device(device).type != "cuda":
        while len(times) < least or (time.perf_counter() < end and len(times) < 20000):
            began = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - began) / 1e3)
    else:
        # Bursts between two events: what one launch costs the host is hidden where the device is what takes time.
        while len(times) < least or (time.perf_counter() < end and len(times) < 2000):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(10):
                call()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) * 100.0)
    return times
