"""
---
op = "fused_mlp"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["D", "H"]
[tune]
BM     = { value = 128, choices = [16, 64, 128] }               # rows of a program's tile
BN     = { value = 128, choices = [32, 64, 128] }               # its columns; in the first launch as many of gate and of up
BK     = { value = 64,  choices = [16, 32, 64, 128] }           # terms of the sum at a time
WARPS  = { value = 8,   choices = [4, 8] }
STAGES = { value = 3,   choices = [2, 3, 4] }                   # slices of the operands on their way
GROUP  = { value = 8,   choices = [4, 8, 16] }                  # rows of tiles that run together, so that they find weights in the L2 cache
DOWN_N = { value = 256, choices = [32, 64, 128, 256] }          # columns of a tile of the second launch
[let]
# Whether the engine that copies tiles is used: their rows must begin on 16 bytes, and for small ones its descriptions cost more than they save.
TILES  = "CC >= 90 && dtype_bytes == 2 && D % 8 == 0 && H % 8 == 0 && BM * BN >= 16384"
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
kernel = "gate_and_up_by_tiles"
when   = "TILES"
grid   = ["min(SMS, ceil_div(B, BM) * ceil_div(H, BN))"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", GROUP = "GROUP" }
args   = ["x", "w_gate", "w_up", "hidden", "B", "D", "H"]
[[launch]]
kernel = "down_by_tiles"
when   = "TILES"
grid   = ["min(SMS, ceil_div(B, BM) * ceil_div(D, DOWN_N))"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "DOWN_N", BK = "BK", GROUP = "GROUP" }
args   = ["hidden", "w_down", "y", "B", "D", "H"]
[[launch]]
kernel = "gate_and_up"
when   = "!TILES"
grid   = ["ceil_div(B, BM) * ceil_div(H, BN)"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", GROUP = "GROUP", EVEN_K = "D % BK == 0" }
args   = ["x", "w_gate", "w_up", "hidden", "B", "D", "H"]
[[launch]]
kernel = "down"
when   = "!TILES"
grid   = ["ceil_div(B, BM) * ceil_div(D, DOWN_N)"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "DOWN_N", BK = "BK", GROUP = "GROUP", EVEN_K = "H % BK == 0" }
args   = ["hidden", "w_down", "y", "B", "D", "H"]
---

Two launches of one product: hidden = silu(x w_gate^T) * (x w_up^T), then y = hidden w_down^T. The first has two sums for each slice of
x that it loads. f32 is multiplied as IEEE says: rounded to tf32 it would be refused. A product of two sums can exceed the largest half,
65504, where y does not: halves are kept at a quarter. Where an engine copies tiles (TMA), threads compute no addresses, and a program for
each multiprocessor takes tile after tile.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_of(number, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Where a tile is: GROUP rows of tiles go along together."""
    high = tl.cdiv(M, BM).to(tl.int32)
    across = tl.cdiv(N, BN).to(tl.int32)
    group = number // (GROUP * across)
    height = min(high - group * GROUP, GROUP)
    inside = number % (GROUP * across)
    return group * GROUP + inside % height, inside // height


@triton.jit
def slice_of(at, step, K, k, BK: tl.constexpr, EVEN_K: tl.constexpr):
    """The next BK terms; beyond the end they are zero in both operands."""
    if EVEN_K:
        return tl.load(at)
    else:
        return tl.load(at, mask=k < K - step * BK, other=0.0)


@triton.jit
def gated(gate, up, KIND: tl.constexpr):
    """silu(gate) * up as it is kept: halves at a quarter."""
    scale: tl.constexpr = 0.25 if KIND == tl.float16 else 1.0
    return (gate / (1.0 + tl.exp2(-gate * LOG2E)) * up * scale).to(KIND)


@triton.jit
def gate_and_up(
    x, w_gate, w_up, hidden, B, D, H,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
):
    tile, across = tile_of(tl.program_id(0), B, H, BM, BN, GROUP)
    row = tile.to(tl.int64) * BM + tl.arange(0, BM)
    col = across.to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_at = x + (row % B)[:, None] * D + k[None, :]
    weights = (col % H)[None, :] * D + k[:, None]
    gate = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(D, BK).to(tl.int32)):
        left = slice_of(x_at, step, D, k[None, :], BK, EVEN_K)
        gate = tl.dot(left, slice_of(w_gate + weights, step, D, k[:, None], BK, EVEN_K), gate, input_precision="ieee")
        up = tl.dot(left, slice_of(w_up + weights, step, D, k[:, None], BK, EVEN_K), up, input_precision="ieee")
        x_at += BK
        weights += BK
    value = gated(gate, up, hidden.dtype.element_ty)
    tl.store(hidden + row[:, None] * H + col[None, :], value, mask=(row[:, None] < B) & (col[None, :] < H))


@triton.jit
def down(
    hidden, w_down, y, B, D, H,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
):
    tile, across = tile_of(tl.program_id(0), B, D, BM, BN, GROUP)
    row = tile.to(tl.int64) * BM + tl.arange(0, BM)
    col = across.to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left_at = hidden + (row % B)[:, None] * H + k[None, :]
    right_at = w_down + (col % D)[None, :] * H + k[:, None]
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(H, BK).to(tl.int32)):
        left = slice_of(left_at, step, H, k[None, :], BK, EVEN_K)
        right = slice_of(right_at, step, H, k[:, None], BK, EVEN_K)
        total = tl.dot(left, right, total, input_precision="ieee")
        left_at += BK
        right_at += BK
    scale: tl.constexpr = 4.0 if hidden.dtype.element_ty == tl.float16 else 1.0
    tl.store(y + row[:, None] * D + col[None, :], (total * scale).to(y.dtype.element_ty), mask=(row[:, None] < B) & (col[None, :] < D))


@triton.jit
def gate_and_up_by_tiles(
    x, w_gate, w_up, hidden, B, D, H,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    x_tiles = tl.make_tensor_descriptor(x, shape=[B, D], strides=[D, 1], block_shape=[BM, BK])
    gate_tiles = tl.make_tensor_descriptor(w_gate, shape=[H, D], strides=[D, 1], block_shape=[BN, BK])
    up_tiles = tl.make_tensor_descriptor(w_up, shape=[H, D], strides=[D, 1], block_shape=[BN, BK])
    hidden_tiles = tl.make_tensor_descriptor(hidden, shape=[B, H], strides=[H, 1], block_shape=[BM, BN])
    tiles = (tl.cdiv(B, BM) * tl.cdiv(H, BN)).to(tl.int32)
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile, across = tile_of(number, B, H, BM, BN, GROUP)
        gate = tl.zeros([BM, BN], tl.float32)
        up = tl.zeros([BM, BN], tl.float32)
        for step in range(0, tl.cdiv(D, BK).to(tl.int32)):
            left = x_tiles.load([tile * BM, step * BK])
            gate = tl.dot(left, gate_tiles.load([across * BN, step * BK]).T, gate)
            up = tl.dot(left, up_tiles.load([across * BN, step * BK]).T, up)
        hidden_tiles.store([tile * BM, across * BN], gated(gate, up, hidden.dtype.element_ty))


@triton.jit
def down_by_tiles(
    hidden, w_down, y, B, D, H,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    hidden_tiles = tl.make_tensor_descriptor(hidden, shape=[B, H], strides=[H, 1], block_shape=[BM, BK])
    down_tiles = tl.make_tensor_descriptor(w_down, shape=[D, H], strides=[H, 1], block_shape=[BN, BK])
    y_tiles = tl.make_tensor_descriptor(y, shape=[B, D], strides=[D, 1], block_shape=[BM, BN])
    tiles = (tl.cdiv(B, BM) * tl.cdiv(D, BN)).to(tl.int32)
    scale: tl.constexpr = 4.0 if hidden.dtype.element_ty == tl.float16 else 1.0
    for number in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile, across = tile_of(number, B, D, BM, BN, GROUP)
        total = tl.zeros([BM, BN], tl.float32)
        for step in range(0, tl.cdiv(H, BK).to(tl.int32)):
            left = hidden_tiles.load([tile * BM, step * BK])
            total = tl.dot(left, down_tiles.load([across * BN, step * BK]).T, total)
        y_tiles.store([tile * BM, across * BN], (total * scale).to(y.dtype.element_ty))
