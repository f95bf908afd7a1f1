#!/usr/bin/env python3
"""Our kernels beside PyTorch's best, measured in one run on one NVIDIA GPU: prints a table in Markdown.

    python3 tests/gpu/table.py                       # the 17 rows of the README
    python3 tests/gpu/table.py --dtype bf16          # the same in bfloat16
    python3 tests/gpu/table.py --rows all            # and products with few rows, SwiGLU, attention and decode of a Llama
    python3 tests/gpu/table.py --languages cuda,triton   # the starters in Triton beside them
    python3 tests/gpu/table.py --starters --languages cuda,triton   # nothing but whether each starter is right in each type, and its time
    python3 tests/gpu/table.py --sweep sweeps.toml   # shapes by which others compare their kernels, with their times where the file has them

Needs torch and triton; WARPSMITH names the binary (target/release/warpsmith). Ours is judged by `warpsmith bench --json`, and timed by the
same clock as PyTorch, because two clocks differ by up to 7 % on one library (launch.py launches it here). PyTorch's is the best of
eager (cuBLAS; attention by each of SDPA's backends), torch.compile and max-autotune, which are compiled in parallel processes and measured one
after the other. All are timed as the judge does: inputs are cold (copies that together are three times the L2 cache, or an L2 that was read
through before), the time is the device's between two events, the median counts. Launches of less than 50 us are recorded, many over different
copies, so that neither starting them nor the events count. `plain` reads and writes as many bytes and does nothing else.
Kernels in Triton are not launched here: their times are the judge's, beside the judge's for CUDA.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

from clock import Clock, Copies, functions_of, plain_us, tensors_of
from shapes import LLAMA, README, sweep_rows

ROOT = pathlib.Path(__file__).resolve().parents[2]


# ---- PyTorch's side, in a process for each few rows

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

def kernel_of(op, language="cuda"):
    if language == "triton":
        return ROOT / f"kernels/triton/{op}.py"
    own = ROOT / f"kernels/cuda/nvidia-h200/{op}.cu"
    return own if own.exists() and not os.environ.get("WARPSMITH_PORTABLE") else ROOT / f"kernels/cuda/{op}.cu"


def ours(rows, log, language="cuda"):
    """Index of a row to (us, roofline's us, cuBLAS's us or None): one bench for each operation and type, all its shapes at once; what the
    judge compares with a library in the same blocks has one of its own."""
    groups, found = {}, {}
    # The judge's cuBLAS is PyTorch's own, where that came as a package.
    packages = [str(path / "nvidia") for path in map(pathlib.Path, sys.path) if (path / "nvidia").is_dir()]
    around = os.environ | ({"WARPSMITH_CUBLAS": packages[0]} if packages and "WARPSMITH_CUBLAS" not in os.environ else {})
    for i, (label, row) in enumerate(rows):
        alone = i if row["op"] in ("matmul", "fused_mlp") and label in dict(README) else None
        groups.setdefault((row["op"], row.get("dtype", "f16"), alone), []).append(i)
    for (op, dtype, _), members in groups.items():
        command = [os.environ.get("WARPSMITH", "target/release/warpsmith"), "bench", str(kernel_of(op, language)), "--backend", "cuda", "--dtype", dtype, "--json"]
        for i in members:
            command += ["--shape", ",".join(f"{name}={value}" for name, value in rows[i][1]["shape"].items())]
        try:
            told = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=240, env=around).stdout
            judged = json.loads(told)
            if judged["verdict"]["status"] != "base":
                print(f"{op} in {language}: {judged['verdict']}", file=sys.stderr)
            shapes = judged["timing"]["shapes"]
            for i in members:
                wanted = rows[i][1]["shape"]
                full = {"trans_b": 0, "H_kv": wanted.get("H")} | wanted  # with what was left to its default
                for shape in shapes:
                    if all(shape["shape"].get(name, value) == value for name, value in full.items()):
                        library = shape["candidate_us"] * judged["vs_user"] if len(members) == 1 and op in ("matmul", "fused_mlp") else None
                        found[i] = (shape["candidate_us"], shape["roofline_us"], library)
        except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            print(f"{op} in {language}: {error!r}", file=sys.stderr)
    return found


def starters(languages, log):
    """Each starter in each type, as `bench` judges it at the operation's own shapes: its status, µs of its primary shape, share of the roofline."""
    print(f"{versions()}\n\n| operation | language | f16 | bf16 | f32 |\n|---|---|---|---|---|")
    wrong = 0
    for op in sorted(path.stem for path in (ROOT / "kernels/triton").glob("*.py")):
        for language in languages:
            cells = []
            for dtype in ("f16", "bf16", "f32"):
                command = [os.environ.get("WARPSMITH", "target/release/warpsmith"), "bench", str(kernel_of(op, language)), "--backend", "cuda",
                           "--dtype", dtype, "--json"]
                try:
                    judged = json.loads(subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=300).stdout)
                    status = judged["verdict"]["status"]
                    timing = judged["timing"] or dict(latency_us=None, roofline_pct=None)
                    cells.append(f"correct, {timing['latency_us']:.1f} µs, {timing['roofline_pct']:.0f} %" if status == "base" else f"**{status}**")
                    if status != "base":
                        print(f"{op} {language} {dtype}: {judged['verdict']}", file=sys.stderr)
                except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
                    cells.append("**no verdict**")
                    print(f"{op} {language} {dtype}: {error!r}", file=sys.stderr)
                wrong += not cells[-1].startswith("correct")
            print(f"| {op} | {language} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{wrong} not correct")
    return 1 if wrong else 0


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
    parser.add_argument("--dtype", choices=["f16", "bf16", "f32"], default="f16", help="type of all rows, f16 without it; a sweep has its own")
    parser.add_argument("--sweep", type=pathlib.Path)
    parser.add_argument("--only", help="rows whose name contains this regular expression")
    parser.add_argument("--compile-seconds", type=float, default=150.0, help="what is not compiled by then is not compared with")
    parser.add_argument("--no-autotune", action="store_true")
    parser.add_argument("--languages", default="cuda", type=lambda text: text.split(","), help="cuda, or cuda,triton")
    parser.add_argument("--starters", action="store_true", help="nothing but whether each starter is right in each type")
    parser.add_argument("--unjudged", action="store_true", help="ours is launched and timed here, but not judged")
    parser.add_argument("--json", type=pathlib.Path, help="where all figures go")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.worker:
        return worker()
    if told.starters:
        return starters(told.languages, open(os.environ.get("TABLE_LOG", "/dev/null"), "a"))
    helion = {}
    if told.sweep:
        swept = list(sweep_rows(told.sweep))
        rows = [(label, row) for label, row, _ in swept]
        helion = {label: us for label, _, us in swept if us}
    else:
        rows = dict({"readme": README, "llama": LLAMA, "all": README + LLAMA}[told.rows])
        rows = [(label, row | {"dtype": told.dtype}) for label, row in rows.items()]
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

    mine = {} if told.unjudged else ours(rows, log)
    with_triton = "triton" in told.languages and not told.unjudged
    triton = ours(rows, log, "triton") if with_triton else {}
    theirs = {}
    for made in filter(None, workers):
        theirs.update({label: answer for (label, _), answer in zip(made.rows, made.measured())})

    print(f"{versions()}\n")
    print("| | ours, µs | PyTorch's best | by | faster | " + ("Helion | faster | " if helion else "") + "plain | of plain | judged, µs | of roofline | cuBLAS, judged |"
          + (" Triton, judged, µs | of roofline | of CUDA's |" if with_triton else ""))
    print("|---|---|---|---|---|---|---|---|---|---|" + ("---|---|" if helion else "") + ("---|---|---|" if with_triton else ""))
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
        theirs_us, theirs_roof, _ = triton.get(i, (None, None, None))
        if with_triton:
            cells += [f"{theirs_us:.1f}" if theirs_us else "?", f"{theirs_roof / theirs_us:.0%}" if theirs_us else "",
                      f"{judged / theirs_us:.2f}" if judged and theirs_us else ""]
        print(f"| {label} | " + " | ".join(cells) + " |")
        rival = min([t for t in (best[1], helion.get(label)) if t], default=None)
        if us and rival:
            gains.setdefault(row["op"], []).append(rival / us)
        figures.append(dict(row=label, **row, judged=judged, roofline=roof, judges_cublas=library, triton=theirs_us, helion=helion.get(label), **answer))
    print()
    for op, found in gains.items():
        ahead = sum(gain >= 1.0 for gain in found)
        print(f"{op}: ahead of the fastest rival on {ahead} of {len(found)}, geometric mean {statistics.geometric_mean(found):.3f}×, least {min(found):.3f}×")
    if told.json:
        told.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    sys.exit(main())
