"""
---
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["cols"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }               # of a row that a program keeps whole
KEPT  = { value = 8192, choices = [2048, 4096, 8192, 16384] }   # columns up to which it does
PART  = { value = 4096, choices = [1024, 2048, 4096, 8192] }    # columns at a time of a longer one
[let]
BLOCK = "next_power_of_2(cols)"
SPLIT = "cols > KEPT"
[[launch]]
kernel = "softmax_kept"
when   = "!SPLIT"
grid   = ["rows"]
num_warps = "BLOCK <= 256 ? 1 : BLOCK <= 1024 ? 2 : BLOCK <= 2048 ? min(4, WARPS) : WARPS"
constexprs = { BLOCK = "BLOCK" }
args   = ["x", "y", "cols"]
[[launch]]
kernel = "softmax_in_parts"
when   = "SPLIT"
grid   = ["rows"]
num_warps = "WARPS"
constexprs = { PART = "PART" }
args   = ["x", "y", "cols"]
---

Bound by memory. A program has a row: where it fits into registers it is read once; of a longer one maximum and sum are found in one go
over parts of it (online softmax: Milakov and Gimelshein 2018), and the second reading comes from the L2 cache where the row fits there.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def larger(a, b):
    """The maximum that a NaN is not lost in."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax_kept(x, y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, BLOCK)
    mask = at < cols
    value = tl.load(x + row + at, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.reduce(value, 0, larger)
    # Where all is minus infinity the row is 0/0, NaN.
    power = tl.exp2((value - top) * LOG2E)
    share = 1.0 / tl.sum(power, 0)
    tl.store(y + row + at, (power * share).to(y.dtype.element_ty), mask=mask)


@triton.jit
def softmax_in_parts(x, y, cols, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, PART)
    top = tl.full([PART], -float("inf"), tl.float32)
    total = tl.zeros([PART], tl.float32)
    for start in range(0, cols, PART):
        value = tl.load(x + row + start + at, mask=start + at < cols, other=-float("inf")).to(tl.float32)
        higher = larger(top, value)
        # Nothing yet: what is subtracted must be finite, else it would be infinity less infinity.
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp2((top - shift) * LOG2E) + tl.exp2((value - shift) * LOG2E)
        top = higher
    highest = tl.reduce(top, 0, larger)
    total = tl.sum(total * tl.exp2((top - tl.where(highest == -float("inf"), 0.0, highest)) * LOG2E), 0)
    share = 1.0 / total
    for start in range(0, cols, PART):
        mask = start + at < cols
        value = tl.load(x + row + start + at, mask=mask, other=-float("inf")).to(tl.float32)
        shift = tl.where(highest == -float("inf"), 0.0, highest)
        tl.store(y + row + start + at, (tl.exp2((value - shift) * LOG2E) * share).to(y.dtype.element_ty), mask=mask)
