"""
---
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["cols"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }                     # of a program that keeps a long row
TILE  = { value = 2048, choices = [1024, 2048, 4096] }          # elements of the short rows that a program takes together
KEPT  = { value = 16384, choices = [4096, 8192, 16384, 32768] } # columns up to which a row is kept in registers
WIDE  = { value = 32, choices = [16, 32] }                      # warps of a program that has a longer row
HELD  = { value = 7, choices = [4, 6, 7, 8] }                   # pieces of 16 bytes that a thread of it keeps
[let]
BLOCK = "next_power_of_2(cols)"
ROWS  = "max(1, TILE / BLOCK)"
VEC   = "16 / dtype_bytes"
[[launch]]
kernel = "softmax_kept"
when   = "cols <= KEPT"
grid   = ["ceil_div(rows, ROWS)"]
num_warps = "BLOCK <= 2048 ? 4 : BLOCK > 8192 ? 2 * WARPS : WARPS"
constexprs = { ROWS = "ROWS", BLOCK = "BLOCK" }
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "softmax_in_pieces"
when   = "cols > KEPT"
grid   = ["rows"]
num_warps = "WIDE"
constexprs = { LANES = "WIDE * 32", VEC = "VEC", HELD = "min(HELD, ceil_div(cols, WIDE * 32 * VEC))" }
args   = ["x", "y", "cols"]
---

Bound by memory. Where a row fits into registers it is read once, and short rows are taken together, so that a program has enough bytes
on their way. Of a longer one maximum and sum are found in one go (online softmax: Milakov and Gimelshein 2018); what registers hold of it is read
once, and the rest comes from the L2 cache when it is read again.
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
    value = tl.load(x + row * cols + col, mask=mask, other=-float("inf")).to(tl.float32)
    # Where all of a row is minus infinity it is 0/0, NaN.
    top = tl.reduce(value, 1, larger, keep_dims=True)
    power = tl.exp2((value - top) * LOG2E)
    share = 1.0 / tl.sum(power, 1, keep_dims=True)
    tl.store(y + row * cols + col, (power * share).to(y.dtype.element_ty), mask=mask)


@triton.jit
def shift_for(top):
    """What is subtracted: where there is nothing but minus infinity so far any finite number will do, and that would not."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def packed(value):
    """The same as if it were new: halves that the compiler knows to be needed again it keeps widened, in twice the registers."""
    if value.dtype.primitive_bitwidth == 16:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=value.dtype, is_pure=False, pack=2)
    else:
        return value


@triton.jit
def powers(value, shift):
    return tl.exp2((value.to(tl.float32) - shift) * LOG2E)


@triton.jit
def softmax_in_pieces(x, y, cols, LANES: tl.constexpr, VEC: tl.constexpr, HELD: tl.constexpr):
    # Pieces of 16 bytes begin where memory has them, wherever the row does; single elements are left before and after them.
    begin = tl.program_id(0).to(tl.int64) * cols
    first = tl.cdiv(begin, VEC) * VEC
    last = (begin + cols) // VEC * VEC
    pieces = (last - first) // VEC
    around = tl.arange(0, 2 * VEC)
    single_at = tl.where(around < first - begin, begin, last - (first - begin)) + around
    is_single = around < cols - (last - first)
    single = tl.load(x + single_at, mask=is_single, other=-float("inf")).to(tl.float32)
    lane = tl.arange(0, LANES)
    place = lane[:, None] * VEC + tl.arange(0, VEC)[None, :]
    held = ()
    for i in tl.static_range(HELD):
        there = (i * LANES + lane < pieces)[:, None]
        held = held + (packed(tl.load(x + first + i * LANES * VEC + place, mask=there, other=-float("inf"))),)
    # Each lane has a maximum of its own, and a sum relative to it.
    top = tl.full([LANES], -float("inf"), tl.float32)
    for i in tl.static_range(HELD):
        top = larger(top, tl.reduce(held[i].to(tl.float32), 1, larger))
    total = tl.zeros([LANES], tl.float32)
    kept = ()
    for i in tl.static_range(HELD):
        kept = kept + (packed(held[i]),)
        total += tl.sum(powers(kept[i], shift_for(top)[:, None]), 1)
    for start in range(HELD * LANES, pieces, LANES):
        value = tl.load(x + first + start * VEC + place, mask=(start + lane < pieces)[:, None], other=-float("inf"))
        higher = larger(top, tl.reduce(value.to(tl.float32), 1, larger))
        total = total * powers(top, shift_for(higher)) + tl.sum(powers(value, shift_for(higher)[:, None]), 1)
        top = higher
    # Where all of a row is minus infinity it is 0/0, NaN.
    shift = shift_for(larger(tl.reduce(top, 0, larger), tl.reduce(single, 0, larger)))
    share = 1.0 / (tl.sum(total * powers(top, shift), 0) + tl.sum(powers(single, shift), 0))
    tl.store(y + single_at, (powers(single, shift) * share).to(y.dtype.element_ty), mask=is_single)
    for i in tl.static_range(HELD):
        value = powers(packed(kept[i]), shift) * share
        tl.store(y + first + i * LANES * VEC + place, value.to(y.dtype.element_ty), mask=(i * LANES + lane < pieces)[:, None])
    for start in range(HELD * LANES, pieces, LANES):
        there = (start + lane < pieces)[:, None]
        value = powers(tl.load(x + first + start * VEC + place, mask=there, other=-float("inf")), shift) * share
        tl.store(y + first + start * VEC + place, value.to(y.dtype.element_ty), mask=there)
