"""
---
# expect: reject
# why: f32 operands rounded to tf32, as Triton does where nobody says otherwise
# dtype: f32
op = "fused_mlp"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["D", "H"]
[tune]
BM     = { value = 128, choices = [16, 64, 128] }               # rows of a program's tile
BN     = { value = 128, choices = [32, 64, 128] }               # its columns; in the first launch as many of gate and of up
BK     = { value = 64,  choices = [16, 32, 64, 128] }           # terms of the sum at a time
WARPS  = { value = 8,   choices = [4, 8] }
STAGES = { value = 4,   choices = [2, 3, 4] }                   # slices of the operands on their way
GROUP  = { value = 8,   choices = [4, 8, 16] }                  # rows of tiles that run together, so that they find weights in the L2 cache
DOWN_N = { value = 256, choices = [32, 64, 128, 256] }          # columns of a tile of the second launch
[[variant]]    # few rows (decoding): all the time goes into reading weights
when = "B <= 16"
tune = { BM = 16, BN = 32, BK = 128, WARPS = 4, STAGES = 3, DOWN_N = 32 }
[[variant]]    # f32 is multiplied by ordinary instructions, in registers
when = "dtype_bytes == 4"
tune = { BM = 64, BN = 32, BK = 16, WARPS = 4, STAGES = 3, DOWN_N = 64 }
[[variant]]    # too few large tiles for all multiprocessors
when = "ceil_div(B, 128) * ceil_div(min(D, 2 * H), 256) * 2 <= SMS"
tune = { BM = 64, BN = 32, BK = 64, WARPS = 4, STAGES = 4, DOWN_N = 64 }
[[variant]]    # shared memory does not suffice for the larger tile
when = "SMEM_MAX < 200000"
tune = { BM = 128, BN = 64, BK = 32, WARPS = 8, STAGES = 3, DOWN_N = 128 }
[[scratch]]
name = "hidden"
dtype = "T"
shape = ["B", "H"]
[[launch]]
kernel = "gate_and_up"
grid   = ["ceil_div(B, BM) * ceil_div(H, BN)"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", GROUP = "GROUP", EVEN_K = "D % BK == 0" }
args   = ["x", "w_gate", "w_up", "hidden", "B", "D", "H"]
[[launch]]
kernel = "down"
grid   = ["ceil_div(B, BM) * ceil_div(D, DOWN_N)"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "DOWN_N", BK = "BK", GROUP = "GROUP", EVEN_K = "H % BK == 0" }
args   = ["hidden", "w_down", "y", "B", "D", "H"]
---
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Which tile a program has: GROUP rows of tiles go along together."""
    pid = tl.program_id(0)
    high = tl.cdiv(M, BM).to(tl.int32)
    across = tl.cdiv(N, BN).to(tl.int32)
    group = pid // (GROUP * across)
    height = min(high - group * GROUP, GROUP)
    inside = pid % (GROUP * across)
    return group * GROUP + inside % height, inside // height


@triton.jit
def slice_of(at, step, K, k, BK: tl.constexpr, EVEN_K: tl.constexpr):
    """The next BK terms; beyond the end they are zero in both operands."""
    if EVEN_K:
        return tl.load(at)
    else:
        return tl.load(at, mask=k < K - step * BK, other=0.0)


@triton.jit
def gate_and_up(
    x, w_gate, w_up, hidden, B, D, H,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
):
    tile, across = tile_of(B, H, BM, BN, GROUP)
    row = tile.to(tl.int64) * BM + tl.arange(0, BM)
    col = across.to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_at = x + (row % B)[:, None] * D + k[None, :]
    weights = (col % H)[None, :] * D + k[:, None]
    gate = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(D, BK).to(tl.int32)):
        left = slice_of(x_at, step, D, k[None, :], BK, EVEN_K)
        gate = tl.dot(left, slice_of(w_gate + weights, step, D, k[:, None], BK, EVEN_K), gate)
        up = tl.dot(left, slice_of(w_up + weights, step, D, k[:, None], BK, EVEN_K), up)
        x_at += BK
        weights += BK
    scale: tl.constexpr = 0.25 if hidden.dtype.element_ty == tl.float16 else 1.0
    value = gate / (1.0 + tl.exp2(-gate * LOG2E)) * up * scale
    tl.store(hidden + row[:, None] * H + col[None, :], value.to(hidden.dtype.element_ty), mask=(row[:, None] < B) & (col[None, :] < H))


@triton.jit
def down(
    hidden, w_down, y, B, D, H,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
):
    tile, across = tile_of(B, D, BM, BN, GROUP)
    row = tile.to(tl.int64) * BM + tl.arange(0, BM)
    col = across.to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left_at = hidden + (row % B)[:, None] * H + k[None, :]
    right_at = w_down + (col % D)[None, :] * H + k[:, None]
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(H, BK).to(tl.int32)):
        left = slice_of(left_at, step, H, k[None, :], BK, EVEN_K)
        right = slice_of(right_at, step, H, k[:, None], BK, EVEN_K)
        total = tl.dot(left, right, total)
        left_at += BK
        right_at += BK
    scale: tl.constexpr = 4.0 if hidden.dtype.element_ty == tl.float16 else 1.0
    tl.store(y + row[:, None] * D + col[None, :], (total * scale).to(y.dtype.element_ty), mask=(row[:, None] < B) & (col[None, :] < D))
