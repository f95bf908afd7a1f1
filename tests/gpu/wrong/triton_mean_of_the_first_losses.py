"""
---
# expect: reject
# why: the mean of the first 1024 losses
op = "cross_entropy"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["vocab"]
[tune]
WARPS = { value = 8, choices = [4, 8, 16] }                     # of a program, which has a row
PART  = { value = 4096, choices = [1024, 2048, 4096, 8192] }    # columns at a time
[let]
BLOCK = "min(PART, next_power_of_2(vocab))"
[[launch]]
kernel = "losses_of_rows"
grid   = ["batch"]
num_warps = "BLOCK <= 1024 ? 4 : WARPS"
constexprs = { PART = "BLOCK" }
args   = ["logits", "targets", "losses", "vocab"]
[[launch]]
kernel = "mean_of_losses"
grid   = ["1"]
num_warps = 8
constexprs = { PART = 1024 }
args   = ["losses", "loss", "batch"]
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
def shift_for(top):
    """What is subtracted: where there is nothing but minus infinity so far any finite number will do, and that would not."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def losses_of_rows(logits, targets, losses, vocab, PART: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = logits + row * vocab
    wanted = tl.load(begin + tl.load(targets + row)).to(tl.float32)
    at = tl.arange(0, PART)
    top = tl.full([PART], -float("inf"), tl.float32)
    total = tl.zeros([PART], tl.float32)
    for start in range(0, vocab, PART):
        value = tl.load(begin + start + at, mask=start + at < vocab, other=-float("inf")).to(tl.float32)
        higher = larger(top, value)
        shift = shift_for(higher)
        total = total * tl.exp2((top - shift) * LOG2E) + tl.exp2((value - shift) * LOG2E)
        top = higher
    highest = tl.reduce(top, 0, larger)
    sums = tl.sum(total * tl.exp2((top - shift_for(highest)) * LOG2E), 0)
    tl.store(losses + row, highest - wanted + tl.log(sums))


@triton.jit
def mean_of_losses(losses, loss, batch, PART: tl.constexpr):
    at = tl.arange(0, PART)
    lanes = tl.zeros([PART], tl.float32)
    for start in range(0, min(batch, PART), PART):
        lanes += tl.load(losses + start + at, mask=start + at < batch, other=0.0)
    tl.store(loss, tl.sum(lanes, 0) / min(batch, PART).to(tl.float32))
