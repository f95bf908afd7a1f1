"""
---
# expect: reject
# why: eps is left out
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["cols"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }                     # of a program that has one long row
TILE  = { value = 2048, choices = [1024, 2048, 4096] }          # elements of the short rows that a program takes together
KEPT  = { value = 16384, choices = [8192, 16384, 32768] }       # columns up to which a row is kept in registers
PART  = { value = 4096, choices = [2048, 4096, 8192] }          # columns at a time of a longer one
[let]
BLOCK = "next_power_of_2(cols)"
ROWS  = "max(1, TILE / BLOCK)"
[[launch]]
kernel = "rmsnorm_kept"
when   = "cols <= KEPT"
grid   = ["ceil_div(rows, ROWS)"]
num_warps = "BLOCK <= 2048 ? 4 : BLOCK > 8192 ? 2 * WARPS : WARPS"
constexprs = { ROWS = "ROWS", BLOCK = "BLOCK" }
args   = ["x", "weight", "y", "rows", "cols", "eps"]
[[launch]]
kernel = "rmsnorm_in_parts"
when   = "cols > KEPT"
grid   = ["rows"]
num_warps = "WARPS"
constexprs = { PART = "PART" }
args   = ["x", "weight", "y", "cols", "eps"]
---
"""

import triton
import triton.language as tl


@triton.jit
def rmsnorm_kept(x, weight, y, rows, cols, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (col < cols)
    value = tl.load(x + row * cols + col, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(weight + col, mask=col < cols, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, 1, keep_dims=True) / cols.to(tl.float32)
    scaled = value * (1.0 / tl.sqrt_rn(mean)) * factor
    tl.store(y + row * cols + col, scaled.to(y.dtype.element_ty), mask=mask)


@triton.jit
def rmsnorm_in_parts(x, weight, y, cols, eps, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * cols
    at = tl.arange(0, PART)
    squares = tl.zeros([PART], tl.float32)
    for start in range(0, cols, PART):
        value = tl.load(x + row + start + at, mask=start + at < cols, other=0.0).to(tl.float32)
        squares += value * value
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / cols.to(tl.float32) + eps)
    for start in range(0, cols, PART):
        mask = start + at < cols
        value = tl.load(x + row + start + at, mask=mask, other=0.0).to(tl.float32)
        factor = tl.load(weight + start + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + row + start + at, (value * scale * factor).to(y.dtype.element_ty), mask=mask)
