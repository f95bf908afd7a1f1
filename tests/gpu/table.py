#!/usr/bin/env python3
"""Our kernels beside PyTorch's best, measured in one run on one NVIDIA GPU: prints a table in Markdown.

    python3 tests/gpu/table.py                       # the 17 rows of the README
    python3 tests/gpu/table.py --rows all            # and products with few rows, SwiGLU, attention and decode of a Llama
    python3 tests/gpu/table.py --sweep sweeps.toml   # shapes by which others compare their kernels, with their times where the file has them

Needs torch and triton; WARPSMITH names the binary (target/release/warpsmith). Ours is judged by `warpsmith bench --json`, and timed by the
same clock as PyTorch, because two clocks differ by up to 7 % on one library (launch.py launches it here). PyTorch's is the best of
eager (cuBLAS; attention by each of SDPA's backends), torch.compile and max-autotune, which are compiled in parallel processes and measured one
after the other. All are timed as the judge does: inputs are cold (copies that together are three times the L2 cache, or an L2 that was read
through before), the time is the device's between two events, the median counts. Launches of less than 50 us are recorded, many over different
copies, so that neither starting them nor the events count. `plain` reads and writes as many bytes and does nothing else.
"""

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALONE_US = 50.0  # from here on a launch is timed by itself
REPEATS = 36
SPREAD = 6 << 30  # bytes over which copies are spread


# ---- what is measured

def attention(b, h, s_q, s_kv, d, causal=0, h_kv=None):
    shape = dict(B=b, H=h, S_q=s_q, S_kv=s_kv, D=d, causal=causal)
    return dict(op="flash_attention", shape=shape | ({"H_kv": h_kv} if h_kv else {}))


def product(m, n, k, trans_b=0):
    return dict(op="matmul", shape=dict(M=m, N=n, K=k) | ({"trans_b": 1} if trans_b else {}))


def rows_of(op, first, second, dtype="f16"):
    names = dict(layernorm=("batch", "dim"), cross_entropy=("batch", "vocab")).get(op, ("rows", "cols"))
    return dict(op=op, shape=dict(zip(names, (first, second))), dtype=dtype)


def swiglu(b, d, h):
    return dict(op="fused_mlp", shape=dict(B=b, D=d, H=h))


def rotary(b, h, s, d, dtype="f16"):
    return dict(op="rotary_embedding", shape=dict(B=b, H=h, S=s, D=d), dtype=dtype)


README = [
    ("softmax 4096²", rows_of("softmax", 4096, 4096)), ("softmax 8192²", rows_of("softmax", 8192, 8192)),
    ("softmax 4096×50257", rows_of("softmax", 4096, 50257)), ("cross entropy 4096×32000", rows_of("cross_entropy", 4096, 32000)),
    ("layernorm 4096×2048", rows_of("layernorm", 4096, 2048)), ("layernorm 8192×4096", rows_of("layernorm", 8192, 4096)),
    ("rmsnorm 4096²", rows_of("rmsnorm", 4096, 4096)), ("rmsnorm 16384×8192", rows_of("rmsnorm", 16384, 8192)),
    ("rotary 2,32,1024,128", rotary(2, 32, 1024, 128)), ("reduce 8192²", rows_of("reduce", 8192, 8192)),
    ("matmul 2048³", product(2048, 2048, 2048)), ("matmul 4096³", product(4096, 4096, 4096)),
    ("matmul 4096·11008·4096", product(4096, 11008, 4096)), ("linear 128·4096·4096", product(128, 4096, 4096, 1)),
    ("attention causal 2,32,1024,64", attention(2, 32, 1024, 1024, 64, 1)),
    ("attention causal 1,32,2048,128", attention(1, 32, 2048, 2048, 128, 1)), ("SwiGLU 2048,2048,5504", swiglu(2048, 2048, 5504)),
]
LLAMA = [("matmul 8192·1024·1024", product(8192, 1024, 1024))] + [
    (f"linear {m}·{n}·{k}", product(m, n, k, 1)) for n, k in ((4096, 4096), (11008, 4096), (4096, 11008), (32000, 4096))
    for m in (1, 16, 64, 128)] + [
    ("SwiGLU 1,4096,11008", swiglu(1, 4096, 11008)), ("SwiGLU 128,4096,11008", swiglu(128, 4096, 11008)),
    ("SwiGLU 2048,4096,11008", swiglu(2048, 4096, 11008)),
    ("attention causal 1,32,128,128", attention(1, 32, 128, 128, 128, 1)), ("attention causal 1,32,4096,128", attention(1, 32, 4096, 4096, 128, 1)),
    ("attention 2,32,1024,128", attention(2, 32, 1024, 1024, 128)),
    ("attention causal 2,32/8,1024,128", attention(2, 32, 1024, 1024, 128, 1, 8)),
] + [(f"decode {b},{h},{s} keys,128", attention(b, 32, 1, s, 128, 0, 8 if h == "32/8" else None))
     for s in (2048, 8192) for b in (1, 16) for h in ("32", "32/8")]


def sweep_rows(path):
    """(label, row, Helion's us) for the shapes of which the file gives times, and all of rotary."""
    for op, entry in tomllib.loads(path.read_text()).items():
        dtype = entry["dtype"]
        if op == "rotary_embedding":
            for part in entry["shapes"].split(";"):
                hidden, tokens = part.split(" x ")
                for s in tokens.split():
                    for h in (32, 8):
                        yield f"rotary {h} heads, hidden {hidden.strip()}, {s} tokens", rotary(1, h, int(s), int(hidden) // 32, dtype), None
            continue
        for part in entry["h200_us"].split(";"):
            shape, _, helion = part.split()
            first, second = map(int, shape.split("x"))
            yield f"{op} {first}×{second}", rows_of(op, first, second, dtype), float(helion)


# ---- PyTorch's side, in a process for each few rows

def tensors_of(row, torch):
    """Inputs of one copy, drawn; and the bytes that are read and written at the least."""
    s, dtype = row["shape"], dict(f16=torch.float16, bf16=torch.bfloat16, f32=torch.float32)[row.get("dtype", "f16")]
    def draw(*size, scale=1.0):
        return torch.randn(*size, device="cuda", dtype=dtype).mul_(scale)
    op, size = row["op"], dtype.itemsize
    if op == "matmul":
        b = (s["N"], s["K"]) if s.get("trans_b") else (s["K"], s["N"])
        return [draw(s["M"], s["K"]), draw(*b, scale=s["K"] ** -0.5)], (s["M"] * s["K"] + s["N"] * s["K"]) * size, s["M"] * s["N"] * size
    if op == "fused_mlp":
        b, d, h = s["B"], s["D"], s["H"]
        return [draw(b, d), draw(h, d, scale=d ** -0.5), draw(h, d, scale=d ** -0.5), draw(d, h, scale=h ** -0.5)], (b * d + 3 * d * h) * size, b * d * size
    if op == "flash_attention":
        q, kv = (s["B"], s["H"], s["S_q"], s["D"]), (s["B"], s.get("H_kv", s["H"]), s["S_kv"], s["D"])
        return [draw(*q), draw(*kv), draw(*kv)], (math.prod(q) + 2 * math.prod(kv)) * size, math.prod(q) * size
    if op == "rotary_embedding":
        x, table = (s["B"], s["H"], s["S"], s["D"]), (s["S"], s["D"] // 2)
        return [draw(*x), draw(*table), draw(*table)], (math.prod(x) + 2 * math.prod(table)) * size, math.prod(x) * size
    first, second = s.values()
    n = first * second
    x = draw(first, second, scale=1.5)
    if op == "cross_entropy":
        return [x, torch.randint(second, (first,), device="cuda")], n * size, 4 * first
    if op == "reduce":
        return [x], n * size, first * size
    weights = {"softmax": 0, "rmsnorm": 1, "layernorm": 2}[op]
    return [x] + [draw(second) for _ in range(weights)], (n + weights * second) * size, n * size


def functions_of(row, torch):
    """Eager ways to compute it, by name; the first is what is compiled."""
    F, s, op = torch.nn.functional, row["shape"], row["op"]
    if op == "matmul":
        return {"eager": (lambda a, b: F.linear(a, b)) if s.get("trans_b") else (lambda a, b: a @ b)}
    if op == "fused_mlp":
        return {"eager": lambda x, gate, up, down: F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)}
    if op == "flash_attention":
        from torch.nn.attention import SDPBackend, sdpa_kernel
        grouped = s.get("H_kv", s["H"]) != s["H"]
        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=bool(s["causal"]), enable_gqa=grouped)
        ways = {"eager": attend}
        for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
            def by(q, k, v, backend=getattr(SDPBackend, name)):
                with sdpa_kernel(backend):
                    return attend(q, k, v)
            ways[name.split("_")[0].lower()] = by
        return ways
    if op == "rotary_embedding":
        def rotate(x, cos, sin):
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
        return {"eager": rotate}
    if op == "cross_entropy":
        return {"eager": lambda x, t: F.cross_entropy(x, t)}
    if op == "reduce":
        return {"eager": lambda x: x.sum(-1)}
    return {"eager": {"softmax": lambda x: F.softmax(x, -1),
                      "rmsnorm": lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-5),
                      "layernorm": lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, 1e-5)}[op]}


class Copies:
    """Inputs of one row, as many copies as are asked for; each is drawn once, whatever is timed with it."""

    def __init__(self, draw):
        self.draw, self.made = draw, []

    def __getitem__(self, which):
        while len(self.made) < which.stop:
            self.made.append(self.draw())
        return self.made[which]


class Clock:
    """Times a function over copies of its inputs as the judge times kernels."""

    def __init__(self, torch):
        self.torch = torch
        self.l2 = torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.ones(2 * self.l2 // 4, device="cuda")

    def record(self, f, copies):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            kept = [f(*copy) for copy in copies]  # kept, so that each has an output of its own
        return graph, kept

    def median(self, graphs, launches, read_through):
        torch, times = self.torch, []
        for i in range(REPEATS + 3):
            if read_through:
                self.flush.sum()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(), graphs[i % len(graphs)][0].replay(), end.record()
            end.synchronize()
            if i >= 3:
                times.append(begin.elapsed_time(end) * 1000 / launches)
        return statistics.median(times)

    def time(self, f, copies, bytes_moved):
        """us of a launch."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                f(*copies[:1][0])
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        alone = self.median([self.record(f, copies[:1])], 1, True)
        single = alone >= ALONE_US + 6.0  # events and the start of a graph take some us
        count = 1 if single else min(200, max(2, math.ceil(3 * self.l2 / bytes_moved), math.ceil(400 / max(alone - 4.0, 2.0))))
        # Like the judge's, copies lie over gigabytes, so that translations of addresses are cold too.
        turns = max(1, min(12, SPREAD // (count * bytes_moved)))
        graphs = [self.record(f, copies[turn * count:(turn + 1) * count]) for turn in range(turns)]
        return self.median(graphs, count, single)


def plain_kernel():
    import triton
    import triton.language as tl

    @triton.jit
    def move(source, target, writes, BLOCK: tl.constexpr):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(source + at)
        if tl.program_id(0) < writes:
            tl.store(target + at, value)
        else:  # never true, but the compiler cannot know
            tl.store(target + at, value, mask=value == 0x7FEDCBA9)

    return move


def plain_us(clock, torch, read, written):
    """us of a kernel that reads and writes as many bytes, the better of two block sizes."""
    move, best = plain_kernel(), math.inf
    for block, warps in ((4096, 8), (2048, 4)):
        blocks = max(1, -(-read // (block * 4)))
        writes = min(blocks, -(-written // (block * 4)))
        draw = lambda: [torch.zeros(blocks * block, dtype=torch.int32, device="cuda"), torch.empty(blocks * block, dtype=torch.int32, device="cuda")]
        f = lambda source, target: move[(blocks,)](source, target, writes, BLOCK=block, num_warps=warps)
        best = min(best, clock.time(f, Copies(draw), read + written))
    return best


def one_by_one():
    """Inductor's own timing in one process at a time, or parallel compilation would spoil what it chooses."""
    import fcntl
    try:
        from torch._inductor.runtime.benchmarking import benchmarker
    except ImportError:
        return
    kind, lock = type(benchmarker), open("/tmp/warpsmith-table.lock", "w")
    for name in ("benchmark_gpu",):
        inner = getattr(kind, name, None)
        if inner is None:
            continue
        def outer(self, *args, inner=inner, **named):
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return inner(self, *args, **named)
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
        setattr(kind, name, outer)


def ours_here(row, eager, inputs, torch):
    """Our kernel as a function of the same inputs, or None where it cannot be launched here or gives something else."""
    import launch
    try:
        kernel = launch.Kernel(ROOT, str(kernel_of(row["op"]).relative_to(ROOT)), row["shape"], row.get("dtype", "f16"))
        with torch.no_grad():
            got, wanted = kernel(*inputs)[-1].double().flatten(), eager(*inputs).double().flatten()
        error = float((got - wanted).norm() / wanted.norm())
        if not error < 0.02:
            raise RuntimeError(f"it differs from PyTorch by {error:.1e} of the rms")
        return kernel
    except Exception as error:
        print(f"{row}: ours: {str(error)[:300]}", file=sys.stderr)
        return None


def worker():
    """Reads a question, compiles, says so, waits for its turn, measures."""
    question = json.loads(sys.stdin.readline())
    import torch
    one_by_one()
    torch._dynamo.config.recompile_limit = 64
    torch.manual_seed(1)
    prepared = []
    for row in question["rows"]:
        ways = functions_of(row, torch)
        inputs, _, _ = tensors_of(row, torch)
        first = next(iter(ways.values()))
        for mode in question["modes"]:
            try:
                torch._dynamo.reset()
                compiled = torch.compile(first, dynamic=False, **({} if mode == "compile" else {"mode": "max-autotune-no-cudagraphs"}))
                compiled(*inputs)
                torch.cuda.synchronize()
                ways[mode] = compiled
            except Exception as error:
                print(f"{row}: {mode}: {str(error)[:200]}", file=sys.stderr)
        prepared.append((row, ways, ours_here(row, first, inputs, torch)))
        del inputs
    torch.cuda.empty_cache()
    print("ready", flush=True)
    sys.stdin.readline()
    clock, found = Clock(torch), []
    for row, ways, own in prepared:
        _, read, written = tensors_of(row, torch)
        copies, times = Copies(lambda: tensors_of(row, torch)[0]), {}
        for name, f in ways.items():
            try:
                with torch.no_grad():
                    times[name] = clock.time(f, copies, read + written)
            except Exception as error:
                print(f"{row}: {name}: {str(error)[:200]}", file=sys.stderr)
        mine = None
        if own:
            with torch.no_grad():
                mine = clock.time(own, copies, read + written)
        del copies
        torch.cuda.empty_cache()
        found.append(dict(times=times, mine=mine, plain=plain_us(clock, torch, read, written), bytes=read + written))
        torch.cuda.empty_cache()
    print(json.dumps(found), flush=True)


class Worker:
    def __init__(self, rows, modes, log):
        self.rows = rows
        self.process = subprocess.Popen([sys.executable, __file__, "--worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                        env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"})
        self.process.stdin.write(json.dumps(dict(rows=[row for _, row in rows], modes=modes)) + "\n")
        self.process.stdin.flush()

    def is_ready(self, until):
        import select
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
        return bool(ready) and self.process.stdout.readline().strip() == "ready"

    def measured(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        try:
            answer, _ = self.process.communicate(timeout=120)
            return json.loads(answer.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError):
            self.process.kill()
            return [dict(times={}, mine=None, plain=None, bytes=0) for _ in self.rows]


# ---- ours

def kernel_of(op):
    own = ROOT / f"kernels/cuda/nvidia-h200/{op}.cu"
    return own if own.exists() and not os.environ.get("WARPSMITH_PORTABLE") else ROOT / f"kernels/cuda/{op}.cu"


def ours(rows, log):
    """Index of a row to (us, roofline's us, cuBLAS's us or None): one bench for each operation and type, all its shapes at once; what the
    judge compares with a library in the same blocks has one of its own."""
    groups, found = {}, {}
    # The judge's cuBLAS is PyTorch's own, where that came as a package.
    packages = [str(path / "nvidia") for path in map(pathlib.Path, sys.path) if (path / "nvidia").is_dir()]
    around = os.environ | ({"WARPSMITH_CUBLAS": packages[0]} if packages and "WARPSMITH_CUBLAS" not in os.environ else {})
    for i, (label, row) in enumerate(rows):
        alone = i if row["op"] in ("matmul", "fused_mlp") and (label, row) in README else None
        groups.setdefault((row["op"], row.get("dtype", "f16"), alone), []).append(i)
    for (op, dtype, _), members in groups.items():
        command = [os.environ.get("WARPSMITH", "target/release/warpsmith"), "bench", str(kernel_of(op)), "--backend", "cuda", "--dtype", dtype, "--json"]
        for i in members:
            command += ["--shape", ",".join(f"{name}={value}" for name, value in rows[i][1]["shape"].items())]
        try:
            told = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=240, env=around).stdout
            judged = json.loads(told)
            if judged["verdict"]["status"] != "base":
                print(f"{op}: {judged['verdict']}", file=sys.stderr)
            shapes = judged["timing"]["shapes"]
            for i in members:
                wanted = rows[i][1]["shape"]
                full = {"trans_b": 0, "H_kv": wanted.get("H")} | wanted  # with what was left to its default
                for shape in shapes:
                    if all(shape["shape"].get(name, value) == value for name, value in full.items()):
                        library = shape["candidate_us"] * judged["vs_user"] if len(members) == 1 and op in ("matmul", "fused_mlp") else None
                        found[i] = (shape["candidate_us"], shape["roofline_us"], library)
        except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            print(f"{op}: {error!r}", file=sys.stderr)
    return found


def versions():
    script = ("import torch, triton; p = torch.cuda.get_device_properties(0); print(f'{p.name}, torch {torch.__version__}, CUDA {torch.version.cuda}, '"
              "f'cuDNN {torch.backends.cudnn.version()}, Triton {triton.__version__}')")
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip()
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    cublas = subprocess.run([sys.executable, "-c", "import importlib.metadata as m; print(m.version('nvidia-cublas'))"], capture_output=True, text=True).stdout.strip()
    return f"{told}, cuBLAS {cublas}, driver {driver}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", choices=["readme", "llama", "all"], default="readme")
    parser.add_argument("--sweep", type=pathlib.Path)
    parser.add_argument("--only", help="rows whose name contains this regular expression")
    parser.add_argument("--compile-seconds", type=float, default=150.0, help="what is not compiled by then is not compared with")
    parser.add_argument("--no-autotune", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, help="where all figures go")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.worker:
        return worker()
    helion = {}
    if told.sweep:
        swept = list(sweep_rows(told.sweep))
        rows = [(label, row) for label, row, _ in swept]
        helion = {label: us for label, _, us in swept if us}
    else:
        rows = {"readme": README, "llama": LLAMA, "all": README + LLAMA}[told.rows]
    if told.only:
        rows = [row for row in rows if re.search(told.only, row[0])]
    compiled = {label for label, _ in README}
    log = open(os.environ.get("TABLE_LOG", "/dev/null"), "a")

    # Compilation first and in parallel, while nothing is measured; what is only run eagerly shares a process.
    if told.sweep:
        groups = [(rows[i::12], ["compile"]) for i in range(min(12, len(rows)))]
    else:
        groups = [([row], ["compile"] if told.no_autotune else ["compile", "autotune"]) for row in rows if row[0] in compiled]
        eager = [row for row in rows if row[0] not in compiled]
        groups += [(eager, [])] if eager else []
    until = time.monotonic() + told.compile_seconds
    workers = [Worker(members, modes, log) for members, modes in groups]
    late = []
    for i, made in enumerate(workers):
        if not made.is_ready(until):
            made.process.kill()
            late.append(groups[i][0])
            workers[i] = None
    print(f"compiled; {sum(map(len, late))} rows not in time", file=sys.stderr)
    if late:  # at least eagerly, then
        again = Worker([row for members in late for row in members], [], log)
        workers.append(again if again.is_ready(time.monotonic() + 60) else None)

    mine = ours(rows, log)
    theirs = {}
    for made in filter(None, workers):
        theirs.update({label: answer for (label, _), answer in zip(made.rows, made.measured())})

    print(f"{versions()}\n")
    print("| | ours, µs | PyTorch's best | by | faster | " + ("Helion | faster | " if helion else "") + "plain | of plain | judged, µs | of roofline | cuBLAS, judged |")
    print("|---|---|---|---|---|---|---|---|---|---|" + ("---|---|" if helion else ""))
    gains, figures = {}, []
    for i, (label, row) in enumerate(rows):
        judged, roof, library = mine.get(i, (None, None, None))
        answer = theirs.get(label, dict(times={}, plain=None, mine=None))
        us = answer["mine"] or judged
        best = min(answer["times"].items(), key=lambda way: way[1], default=(None, None))
        cells = [f"{us:.1f}" if us else "?", f"{best[1]:.1f}" if best[1] else "?", best[0] or "", f"{best[1] / us:.2f}×" if us and best[1] else ""]
        if helion:
            other = helion.get(label)
            cells += [f"{other:.1f}" if other else "", f"{other / us:.2f}×" if other and us else ""]
        cells += [f"{answer['plain']:.1f}" if answer["plain"] else "", f"{answer['plain'] / us:.2f}" if answer["plain"] and us else "",
                  f"{judged:.1f}" if judged else "", f"{roof / judged:.0%}" if judged else "", f"{library:.1f}" if library else ""]
        print(f"| {label} | " + " | ".join(cells) + " |")
        rival = min([t for t in (best[1], helion.get(label)) if t], default=None)
        if us and rival:
            gains.setdefault(row["op"], []).append(rival / us)
        figures.append(dict(row=label, **row, judged=judged, roofline=roof, judges_cublas=library, helion=helion.get(label), **answer))
    print()
    for op, found in gains.items():
        ahead = sum(gain >= 1.0 for gain in found)
        print(f"{op}: ahead of the fastest rival on {ahead} of {len(found)}, geometric mean {statistics.geometric_mean(found):.3f}×, least {min(found):.3f}×")
    if told.json:
        told.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    sys.exit(main())
