#!/usr/bin/env python3
"""Times kernel files and settings of their tunables at one shape, to choose what is worth handing in: nothing here is judged.

    python3 tests/gpu/rank.py kernels/cuda/nvidia-h200/matmul.cu --shape M=128,N=4096,K=4096,trans_b=1 --set RING=4 --set RING=6,DEEP=2
    python3 tests/gpu/rank.py a.cu b.cu --shape rows=8192,cols=8192 --dtype bf16

Every file is timed as it is and with each --set; one process, one set of inputs, the clock of clock.py, in two rounds of which the better counts.
What differs from PyTorch by more than 2 % of the rms, or does not compile, is said so.
"""

import argparse
import pathlib
import re
import sys

import launch
from clock import Clock, Copies, functions_of, tensors_of
from table import ROOT


def with_values(text, settings):
    for name, value in settings.items():
        text, found = re.subn(rf"^({name} *= {{ value = )\d+", rf"\g<1>{value}", text, flags=re.M)
        if found != 1:
            raise ValueError(f"{found} tunables {name}")
    return text


def pairs(text):
    return {name: int(value) for name, value in (part.split("=") for part in text.split(",") if part)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--shape", type=pairs, required=True)
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16", "f32"])
    parser.add_argument("--set", type=pairs, action="append", default=[], help="NAME=VALUE,... (may be repeated)")
    told = parser.parse_args()
    import torch
    torch.set_grad_enabled(False)
    clock, found, copies, eager_us = Clock(torch), [], None, None
    for file in told.files:
        for settings in [{}, *told.set]:
            label = f"{file} {','.join(f'{name}={value}' for name, value in settings.items())}"
            try:
                text = with_values(file.read_text(), settings)
                kernel = launch.Kernel(ROOT, text[text.index("/*---"):], told.shape, told.dtype)
                row = dict(op=kernel.plan.front["op"], shape=told.shape | {"causal": told.shape.get("causal", 0)}, dtype=told.dtype)
                if row["op"] != "flash_attention":
                    row["shape"] = told.shape
                if copies is None:
                    _, read, written = tensors_of(row, torch)
                    copies = Copies(lambda: tensors_of(row, torch)[0])
                    eager = next(iter(functions_of(row, torch).values()))
                    eager_us = clock.time(eager, copies, read + written)
                got, wanted = kernel(*copies[:1][0])[-1].double().flatten(), eager(*copies[:1][0]).double().flatten()
                error = float((got - wanted).norm() / wanted.norm())
                found.append([clock.time(kernel, copies, read + written), label, "" if error < 0.02 else f"WRONG: {error:.1e}", kernel])
            except Exception as error:
                print(f"{label}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
    for entry in found:
        entry[0] = min(entry[0], clock.time(entry[3], copies, read + written))
    if eager_us:
        print(f"{eager_us:9.2f} us  PyTorch, eager")
    for us, label, wrong, _ in sorted(found, key=lambda entry: entry[0]):
        print(f"{us:9.2f} us  {label}  {wrong}")


if __name__ == "__main__":
    sys.exit(main())
