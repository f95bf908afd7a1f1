"""
---
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["dim"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }                     # of a program that has one long row
TILE  = { value = 2048, choices = [1024, 2048, 4096] }          # elements of the short rows that a program takes together
KEPT  = { value = 16384, choices = [8192, 16384, 32768] }       # columns up to which a row is kept in registers
PART  = { value = 4096, choices = [2048, 4096, 8192] }          # columns at a time of a longer one
[let]
BLOCK = "next_power_of_2(dim)"
ROWS  = "max(1, TILE / BLOCK)"
[[launch]]
kernel = "layernorm_kept"
when   = "dim <= KEPT"
grid   = ["ceil_div(batch, ROWS)"]
num_warps = "BLOCK <= 2048 ? 4 : BLOCK > 8192 ? 2 * WARPS : WARPS"
constexprs = { ROWS = "ROWS", BLOCK = "BLOCK" }
args   = ["x", "weight", "bias", "y", "batch", "dim", "eps"]
[[launch]]
kernel = "layernorm_in_parts"
when   = "dim > KEPT"
grid   = ["batch"]
num_warps = "WARPS"
constexprs = { PART = "PART" }
args   = ["x", "weight", "bias", "y", "dim", "eps"]
---

Bound by memory: a row is read once and kept in registers. The variance is that of deviations from the mean, and the mean, rounded as
it is, is corrected by the mean of the deviations first: rows may lie thousands of deviations from zero.
"""

import triton
import triton.language as tl


@triton.jit
def layernorm_kept(x, weight, bias, y, batch, dim, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    col = tl.arange(0, BLOCK)[None, :]
    inside = col < dim
    mask = (row < batch) & inside
    value = tl.load(x + row * dim + col, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(weight + col, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + col, mask=inside, other=0.0).to(tl.float32)
    count = dim.to(tl.float32)
    away = tl.where(inside, value - tl.sum(value, 1, keep_dims=True) / count, 0.0)
    away = tl.where(inside, away - tl.sum(away, 1, keep_dims=True) / count, 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(away * away, 1, keep_dims=True) / count + eps)
    tl.store(y + row * dim + col, (away * scale * factor + offset).to(y.dtype.element_ty), mask=mask)


@triton.jit
def layernorm_in_parts(x, weight, bias, y, dim, eps, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * dim
    at = tl.arange(0, PART)
    count = dim.to(tl.float32)
    sums = tl.zeros([PART], tl.float32)
    for start in range(0, dim, PART):
        sums += tl.load(x + row + start + at, mask=start + at < dim, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / count
    sums = tl.zeros([PART], tl.float32)
    squares = tl.zeros([PART], tl.float32)
    for start in range(0, dim, PART):
        mask = start + at < dim
        value = tl.load(x + row + start + at, mask=mask, other=0.0).to(tl.float32)
        away = tl.where(mask, value - mean, 0.0)
        sums += away
        squares += away * away
    # What the mean is off moves every deviation alike.
    off = tl.sum(sums, 0) / count
    scale = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / count - off * off + eps)
    for start in range(0, dim, PART):
        mask = start + at < dim
        value = tl.load(x + row + start + at, mask=mask, other=0.0).to(tl.float32)
        factor = tl.load(weight + start + at, mask=mask, other=0.0).to(tl.float32)
        offset = tl.load(bias + start + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + row + start + at, (((value - mean) - off) * scale * factor + offset).to(y.dtype.element_ty), mask=mask)
