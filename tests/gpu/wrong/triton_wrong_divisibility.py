"""
---
# expect: reject|crash
# why: it says that rows begin at multiples of 16 elements where they do not
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["cols"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }                     # of a program that keeps a long row, or goes over one
TILE  = { value = 2048, choices = [1024, 2048, 4096] }          # elements of the short rows that a program takes together
KEPT  = { value = 16384, choices = [4096, 8192, 16384, 32768] } # columns up to which a row is kept in registers
PART  = { value = 4096, choices = [2048, 4096, 8192] }          # columns at a time of a longer one
[let]
BLOCK = "next_power_of_2(cols)"
ROWS  = "max(1, TILE / BLOCK)"
[[launch]]
kernel = "softmax_kept"
when   = "cols <= KEPT"
grid   = ["ceil_div(rows, ROWS)"]
num_warps = "BLOCK <= 2048 ? 4 : BLOCK > 8192 ? 2 * WARPS : WARPS"
constexprs = { ROWS = "ROWS", BLOCK = "BLOCK" }
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "softmax_in_parts"
when   = "cols > KEPT"
grid   = ["rows"]
num_warps = "WARPS"
constexprs = { PART = "PART" }
args   = ["x", "y", "cols"]
---
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def larger(a, b):
    """The maximum in which a NaN is not lost."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax_kept(x, y, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (col < cols)
    # Said of the mask as well: of elements that are masked one by one the compiler takes each alone, and what is said of the offset changes nothing.
    at = tl.max_contiguous(tl.multiple_of(row * cols + col, (16, 16)), (1, min(16, BLOCK)))
    value = tl.load(x + at, mask=tl.max_constancy(mask, (1, min(16, BLOCK))), other=-float("inf")).to(tl.float32)
    top = tl.reduce(value, 1, larger, keep_dims=True)
    power = tl.exp2((value - top) * LOG2E)
    share = 1.0 / tl.sum(power, 1, keep_dims=True)
    tl.store(y + row * cols + col, (power * share).to(y.dtype.element_ty), mask=mask)


@triton.jit
def shift_for(top):
    """What is subtracted: where there is nothing but minus infinity so far any finite number will do, and that would not."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def softmax_in_parts(x, y, cols, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, PART)
    top = tl.full([PART], -float("inf"), tl.float32)
    total = tl.zeros([PART], tl.float32)
    for start in range(0, cols, PART):
        value = tl.load(x + row + start + at, mask=start + at < cols, other=-float("inf")).to(tl.float32)
        higher = larger(top, value)
        shift = shift_for(higher)
        total = total * tl.exp2((top - shift) * LOG2E) + tl.exp2((value - shift) * LOG2E)
        top = higher
    shift = shift_for(tl.reduce(top, 0, larger))
    share = 1.0 / tl.sum(total * tl.exp2((top - shift) * LOG2E), 0)
    for start in range(0, cols, PART):
        mask = start + at < cols
        value = tl.load(x + row + start + at, mask=mask, other=-float("inf")).to(tl.float32)
        tl.store(y + row + start + at, (tl.exp2((value - shift) * LOG2E) * share).to(y.dtype.element_ty), mask=mask)
