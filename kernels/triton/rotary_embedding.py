"""
---
op = "rotary_embedding"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["D"]
[tune]
PAIRS = { value = 1024, choices = [512, 1024, 2048] }           # pairs that a program turns
WARPS = { value = 4, choices = [2, 4, 8] }
[let]
HALF = "next_power_of_2(D / 2)"
ROWS = "max(1, PAIRS / HALF)"
[[launch]]
kernel = "rotate"
grid   = ["ceil_div(B * H * S, ROWS)"]
num_warps = "WARPS"
constexprs = { ROWS = "ROWS", HALF = "HALF", BSHD = "bshd", INTERLEAVED = "interleaved" }
args   = ["x", "cos", "sin", "y", "B", "H", "S", "D"]
---

Bound by memory. A program has some heads at some positions whole; pairs that lie side by side are loaded together and taken apart in
registers.
"""

import triton
import triton.language as tl


@triton.jit
def rotate(
    x, cos, sin, y, B, H, S, D,
    ROWS: tl.constexpr, HALF: tl.constexpr, BSHD: tl.constexpr, INTERLEAVED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    live = row < B * H * S
    if BSHD:
        position = (row // H) % S
    else:
        position = row % S
    pairs = D // 2
    pair = tl.arange(0, HALF)[None, :]
    mask = live & (pair < pairs)
    c = tl.load(cos + position * pairs + pair, mask=mask, other=0.0).to(tl.float32)
    t = tl.load(sin + position * pairs + pair, mask=mask, other=0.0).to(tl.float32)
    if INTERLEAVED:
        at = tl.arange(0, 2 * HALF)[None, :]
        both = tl.load(x + row * D + at, mask=live & (at < D), other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(both, [ROWS, HALF, 2]))
        turned = tl.reshape(tl.join(a * c - b * t, a * t + b * c), [ROWS, 2 * HALF])
        tl.store(y + row * D + at, turned.to(y.dtype.element_ty), mask=live & (at < D))
    else:
        a = tl.load(x + row * D + pair, mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x + row * D + pairs + pair, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + row * D + pair, (a * c - b * t).to(y.dtype.element_ty), mask=mask)
        tl.store(y + row * D + pairs + pair, (a * t + b * c).to(y.dtype.element_ty), mask=mask)
