"""
---
# alone: most of the memory is needed
# expect: reject|crash
# why: an offset kept in 32 bits wraps (a GPU too small for 2^31 elements cannot tell)
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["cols"]
[tune]
WARPS = { value = 4, choices = [4, 8] }                         # of a program
TILE  = { value = 4096, choices = [2048, 4096, 8192] }          # elements that a program has on their way at once
[let]
BLOCK  = "min(TILE, next_power_of_2(cols))"
ROWS   = "max(1, TILE / BLOCK)"
# Few long rows are too few programs: then several share a row, each with its part.
SPLITS = "rows * 2 <= SMS && cols >= 8 * TILE ? min(64, ceil_div(cols, 2 * TILE)) : 1"
LENGTH = "ceil_div(ceil_div(cols, SPLITS), BLOCK) * BLOCK"
[[scratch]]
name = "sums"
dtype = "f32"
shape = ["SPLITS > 1 ? rows : 1", "SPLITS"]
[[launch]]
kernel = "sum_rows"
when   = "SPLITS == 1"
grid   = ["ceil_div(rows, ROWS)"]
num_warps = "WARPS"
constexprs = { ROWS = "ROWS", BLOCK = "BLOCK" }
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "sum_parts"
when   = "SPLITS > 1"
grid   = ["SPLITS", "rows"]
num_warps = "WARPS"
constexprs = { BLOCK = "BLOCK" }
args   = ["x", "sums", "cols", "LENGTH", "SPLITS"]
[[launch]]
kernel = "add_parts"
when   = "SPLITS > 1"
grid   = ["rows"]
num_warps = 1
constexprs = { BLOCK = "next_power_of_2(SPLITS)" }
args   = ["sums", "y", "SPLITS"]
---
"""

import triton
import triton.language as tl


@triton.jit
def sum_rows(x, y, rows, cols, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)[None, :]
    begin = x + (row[:, None].to(tl.int32) * cols.to(tl.int32))
    live = row[:, None] < rows
    lanes = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(0, cols, BLOCK):
        lanes += tl.load(begin + start + at, mask=live & (start + at < cols), other=0.0).to(tl.float32)
    tl.store(y + row, tl.sum(lanes, 1).to(y.dtype.element_ty), mask=row < rows)


@triton.jit
def sum_parts(x, sums, cols, length, splits, BLOCK: tl.constexpr):
    part = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1).to(tl.int64)
    begin = part * length
    end = tl.minimum(begin + length, cols)
    at = tl.arange(0, BLOCK)
    lanes = tl.zeros([BLOCK], tl.float32)
    for start in range(begin, end, BLOCK):
        lanes += tl.load(x + row * cols + start + at, mask=start + at < end, other=0.0).to(tl.float32)
    tl.store(sums + row * splits + part, tl.sum(lanes, 0))


@triton.jit
def add_parts(sums, y, splits, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    part = tl.load(sums + row * splits + at, mask=at < splits, other=0.0)
    tl.store(y + row, tl.sum(part, 0).to(y.dtype.element_ty))
