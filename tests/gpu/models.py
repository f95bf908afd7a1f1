#!/usr/bin/env python3
"""Profiles of PyTorch models beside plain timings of the same pass, on a machine with a GPU: how much of it has a name, what can be a target,
and whether the figures agree. Prints a line for each model, then what is no target, and notes.

    tests/gpu/models.py                              GPT-2, BERT, Llama-160M, the network of convolutions, Llama-7B (decode, 2048 tokens)
    tests/gpu/models.py gpt2 llama-7b:decode         some

Run from the repository's root, after `cargo build --release`; WARPSMITH names another binary, WARPSMITH_PYTHON the Python with PyTorch that
it takes, SECONDS_EACH (200) what a profile may take; with KERNELS=1 the kernels that a plain pass runs longest are listed. Exit code: 0 all
were profiled, 1 one was not, 2 nothing could be done.
"""

import json
import os
import subprocess
import sys

MODELS = ["gpt2", "bert", "llama-160m", "vision", "llama-7b:decode", "llama-7b"]
# What has no 16-bit type here.
WIDE = ("vision",)


def share(us, whole):
    return f"{100 * us / whole:5.1f} %"


def told(name, profile, plain):
    """A model's line, and those below it."""
    it = profile["captured"]
    compiled_us, graph_us = it["compiled_us"], it.get("graph_us")
    whole = min(graph_us or compiled_us, compiled_us)
    parts = [one for one in it["regions"] if one["kind"] != "joined"]
    known = graph_us and it.get("busy_us") and all(one["us"] is None or one.get("busy_us") is not None for one in parts)
    between = max(0.0, graph_us - it["busy_us"]) if known else 0.0
    us = lambda one: one["calls"] * ((one["busy_us"] if known else one["us"]) or 0.0)
    all_us = sum(map(us, parts))
    targets = sum(us(one) for one in parts if not one["why_not"])
    kernels = sum((one.get("kernels") or 0) * one["calls"] for one in parts)
    yield (
        f"{name:18} {whole / 1e3:8.3f} {plain:>24}  parts {share(all_us, whole)}, between {share(between, whole)}, left {share(whole - all_us - between, whole)}; "
        f"targets {share(targets, max(all_us, 1e-9))} of the parts; {kernels:.0f} kernels in the parts, {it.get('kernels') or 0:.0f} in the pass"
    )
    for one in sorted(parts, key=us, reverse=True):
        if one["why_not"] and us(one) > 0.004 * whole:
            yield f"    not a target, {share(us(one), whole)}: {one['name']} x{one['calls']}: {one['why_not']}"
    yield from (f"    note: {note}" for note in it["notes"])


def plain(folder, function, dtype):
    """ms of the compiled pass as a CUDA graph, by events around one replay, and around ten in a row."""
    import importlib

    import torch

    sys.path.insert(0, folder)
    module = importlib.import_module("model")
    torch.manual_seed(0)
    with torch.device("cuda"):
        if function:
            model, inputs = getattr(module, function)()
            inputs = inputs() if callable(inputs) else inputs
        else:
            model, inputs = module.Model(*getattr(module, "get_init_inputs", list)()), module.get_inputs()
    dtype = getattr(torch, dtype)
    model = model.eval().cuda().to(dtype)
    inputs = [one.cuda().to(dtype) if one.is_floating_point() else one.cuda() for one in inputs]
    compiled = torch.compile(model, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            compiled(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            compiled(*inputs)

    def timed(count):
        times = []
        for _ in range(50):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            for _ in range(count):
                graph.replay()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last) / count)
        return sorted(times)[len(times) // 4]

    timed(10)
    print(f"{timed(1):.3f} {timed(10):.3f}")
    if os.environ.get("KERNELS"):
        print(*kernels_of(graph), sep="\n")


def kernels_of(graph):
    """The kernels of a replay that run longest together: how often, µs of one, name."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as trace

    with trace(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    ran = {}
    for one in found.events():
        if one.device_type == torch.autograd.DeviceType.CUDA:
            ran.setdefault(one.name, []).append(one.device_time)
    for name, times in sorted(ran.items(), key=lambda one: -sum(one[1]))[:12]:
        yield f"    {len(times):4} x {sum(times) / len(times):8.2f} {name[:110]}"


def main():
    warpsmith = os.environ.get("WARPSMITH", "target/release/warpsmith")
    python = os.environ.get("WARPSMITH_PYTHON", sys.executable)
    limit = float(os.environ.get("SECONDS_EACH", "200"))
    if not os.path.exists(warpsmith):
        print(f"{warpsmith} is not there: cargo build --release, or name another with WARPSMITH", file=sys.stderr)
        return 2
    print(f"{'model':18} {'pass, ms':>8} {'one replay, ten in a row':>24}")
    code = 0
    for name in sys.argv[1:] or MODELS:
        model, _, function = name.partition(":")
        folder, dtype = f"models/torch/{model}", "float32" if model in WIDE else "bfloat16"
        asked = [warpsmith, "profile", "--backend", "cuda", folder, "--json", *([] if model in WIDE else ["--dtype", "bf16"])]
        asked += ["--load", f"model:{function}"] if function else []
        try:
            ran = subprocess.run(asked, capture_output=True, text=True, timeout=limit, env=os.environ | {"WARPSMITH_PYTHON": python})
            timed = subprocess.run([python, __file__, "--plain", folder, function, dtype], capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            print(f"{name:18} no answer within {error.timeout:.0f} s", flush=True)
            code = 1
            continue
        if ran.returncode:
            print(f"{name:18} exit {ran.returncode}: {ran.stderr.strip()[-300:]}", flush=True)
            code = 1
            continue
        alone, *kernels = timed.stdout.splitlines() if timed.returncode == 0 else ["could not be timed"]
        print(*told(name, json.loads(ran.stdout), alone), *kernels, sep="\n", flush=True)
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plain"]:
        plain(*sys.argv[2:5])
    else:
        sys.exit(main())
