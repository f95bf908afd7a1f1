"""
---
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["vocab"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }                     # of a program, which has a row
DEEP  = { value = 4, choices = [1, 2, 4, 8] }                   # pieces of 16 bytes that a thread has on their way
PART  = { value = 4096, choices = [1024, 4096, 8192] }          # losses at a time, of the mean
[let]
VEC   = "16 / dtype_bytes"
LANES = "min(32 * WARPS, max(32, next_power_of_2(vocab / VEC)))"
[[launch]]
kernel = "losses_of_rows"
grid   = ["batch"]
num_warps = "LANES / 32"
constexprs = { LANES = "LANES", VEC = "VEC", DEEP = "DEEP" }
args   = ["logits", "targets", "losses", "vocab"]
[[launch]]
kernel = "mean_of_losses"
grid   = ["1"]
num_warps = 8
constexprs = { PART = "min(PART, next_power_of_2(batch))" }
args   = ["losses", "loss", "batch"]
---

Bound by memory: maximum and sum of exponentials are found in one go over a row (online softmax: Milakov and Gimelshein 2018), by each lane for
itself. A lane takes several pieces before its maximum moves: a new maximum costs one more exponential, and exponentials are what is short.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def larger(a, b):
    """The maximum in which a NaN is not lost."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def shift_for(top):
    """What is subtracted: where there is nothing but minus infinity so far any finite number will do, and that would not."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def powers(value, shift):
    return tl.exp2((value.to(tl.float32) - shift) * LOG2E)


@triton.jit
def losses_of_rows(logits, targets, losses, vocab, LANES: tl.constexpr, VEC: tl.constexpr, DEEP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = row * vocab
    wanted = tl.load(logits + begin + tl.load(targets + row)).to(tl.float32)
    # Pieces of 16 bytes begin where memory has them, wherever the row does; single elements are left before and after them.
    first = tl.cdiv(begin, VEC) * VEC
    last = (begin + vocab) // VEC * VEC
    pieces = tl.maximum(last - first, 0) // VEC
    before = tl.minimum(first - begin, vocab)
    around = tl.arange(0, 2 * VEC)
    single_at = tl.where(around < before, begin, last - before) + around
    single = tl.load(logits + single_at, mask=around < vocab - pieces * VEC, other=-float("inf")).to(tl.float32)
    lane = tl.arange(0, LANES)
    place = lane[:, None] * VEC + tl.arange(0, VEC)[None, :]
    top = tl.full([LANES], -float("inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, pieces, DEEP * LANES):
        parts = ()
        for i in tl.static_range(DEEP):
            at = start + i * LANES
            parts = parts + (tl.load(logits + first + at * VEC + place, mask=(at + lane < pieces)[:, None], other=-float("inf")),)
        higher = top
        for i in tl.static_range(DEEP):
            higher = larger(higher, tl.reduce(parts[i].to(tl.float32), 1, larger))
        shift = shift_for(higher)
        total *= powers(top, shift)
        for i in tl.static_range(DEEP):
            total += tl.sum(powers(parts[i], shift[:, None]), 1)
        top = higher
    highest = larger(tl.reduce(top, 0, larger), tl.reduce(single, 0, larger))
    shift = shift_for(highest)
    sums = tl.sum(total * powers(top, shift), 0) + tl.sum(powers(single, shift), 0)
    tl.store(losses + row, highest - wanted + tl.log(sums))


@triton.jit
def mean_of_losses(losses, loss, batch, PART: tl.constexpr):
    at = tl.arange(0, PART)
    lanes = tl.zeros([PART], tl.float32)
    for start in range(0, batch, PART):
        lanes += tl.load(losses + start + at, mask=start + at < batch, other=0.0)
    tl.store(loss, tl.sum(lanes, 0) / batch.to(tl.float32))
