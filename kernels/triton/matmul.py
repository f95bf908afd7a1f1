"""
---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["N", "K"]
[tune]
BM     = { value = 128, choices = [16, 64, 128, 256] }          # rows of a program's tile
BN     = { value = 256, choices = [32, 64, 128, 256] }          # its columns
BK     = { value = 64,  choices = [16, 32, 64, 128] }           # terms of the sum at a time
WARPS  = { value = 8,   choices = [4, 8] }
STAGES = { value = 3,   choices = [2, 3, 4, 5, 6] }              # slices of the operands on their way
GROUP  = { value = 8,   choices = [4, 8, 16] }                  # rows of tiles that run together, so that they find b in the L2 cache
[let]
# Whether the engine that copies tiles is used: their rows must begin on 16 bytes, and for small ones its descriptions cost more than they save.
TILES  = "CC >= 90 && dtype_bytes == 2 && N % 8 == 0 && K % 8 == 0 && BM * BN >= 32768"
EVEN_M = "M % BM == 0"
EVEN_N = "N % BN == 0"
EVEN_K = "K % BK == 0"
[[variant]]    # few rows (decoding): all the time goes into reading b
when = "M <= 16"
tune = { BM = 16, BN = 32, BK = 128, WARPS = 4, STAGES = 4 }
[[variant]]    # f32 is multiplied by ordinary instructions, in registers
when = "dtype_bytes == 4"
tune = { BM = 64, BN = 64, BK = 16, WARPS = 4, STAGES = 3 }
[[variant]]    # rows that begin anywhere are loaded one element at a time
when = "N % 8 != 0 || K % 8 != 0"
tune = { BM = 64, BN = 64, BK = 32, WARPS = 4, STAGES = 3 }
[[variant]]    # a small tile for each multiprocessor: as much on its way as shared memory holds
when = "batch * ceil_div(M, 64) * ceil_div(N, 64) <= SMS && K % 128 == 0 && SMEM_MAX >= 200000"
tune = { BM = 64, BN = 64, BK = 128, WARPS = 4, STAGES = 6 }
[[variant]]    # too few large tiles for all multiprocessors
when = "batch * ceil_div(M, 128) * ceil_div(N, 256) * 2 <= SMS"
tune = { BM = 64, BN = 64, BK = 64, WARPS = 4, STAGES = 4 }
[[variant]]    # shared memory does not suffice for the larger tile
when = "SMEM_MAX < 200000"
tune = { BM = 128, BN = 128, BK = 32, WARPS = 8, STAGES = 3 }
[[launch]]
kernel = "matmul_by_tiles"
when   = "TILES"
grid   = ["min(SMS, ceil_div(M, BM) * ceil_div(N, BN))", "batch"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", GROUP = "GROUP", TRANS_B = "trans_b", HAS_BIAS = "has_bias" }
args   = ["a", "b", "bias", "c", "M", "N", "K"]
[[launch]]
kernel = "matmul"
when   = "!TILES"
grid   = ["ceil_div(M, BM) * ceil_div(N, BN)", "batch"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", GROUP = "GROUP", TRANS_B = "trans_b", HAS_BIAS = "has_bias", EVEN_M = "EVEN_M", EVEN_N = "EVEN_N", EVEN_K = "EVEN_K" }
args   = ["a", "b", "bias", "c", "M", "N", "K"]
---

A program computes a BM x BN tile; tensor cores multiply 16-bit types, with sums in single precision. f32 is multiplied as IEEE says:
rounded to tf32 it would be refused. Beyond the end of the sum both operands are zero, so that no infinity meets a padding zero.
Where an engine copies tiles (TMA), threads compute no addresses, and a program for each multiprocessor takes tile after tile.
"""

import triton
import triton.language as tl


@triton.jit
def tile_of(number, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Where a tile is: GROUP rows of tiles go along together."""
    down = tl.cdiv(M, BM).to(tl.int32)
    across = tl.cdiv(N, BN).to(tl.int32)
    group = number // (GROUP * across)
    height = min(down - group * GROUP, GROUP)
    inside = number % (GROUP * across)
    return group * GROUP + inside % height, inside // height


@triton.jit
def matmul(
    a, b, bias, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, TRANS_B: tl.constexpr, HAS_BIAS: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):
    down, across = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    matrix = tl.program_id(1).to(tl.int64)
    row = down.to(tl.int64) * BM + tl.arange(0, BM)
    col = across.to(tl.int64) * BN + tl.arange(0, BN)
    # What is computed beyond the edges is some other row or column once more, and is not stored.
    from_row = row if EVEN_M else row % M
    from_col = col if EVEN_N else col % N
    k = tl.arange(0, BK)
    a_at = a + matrix * M * K + from_row[:, None] * K + k[None, :]
    if TRANS_B:
        b_at = b + matrix * N * K + from_col[None, :] * K + k[:, None]
    else:
        b_at = b + matrix * N * K + k[:, None] * N + from_col[None, :]
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(K, BK).to(tl.int32)):
        if EVEN_K:
            left = tl.load(a_at)
            right = tl.load(b_at)
        else:
            rest = K - step * BK
            left = tl.load(a_at, mask=k[None, :] < rest, other=0.0)
            right = tl.load(b_at, mask=k[:, None] < rest, other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
        a_at += BK
        b_at += BK if TRANS_B else BK * N
    if HAS_BIAS:
        total += tl.load(bias + from_col).to(tl.float32)[None, :]
    c_at = c + matrix * M * N + row[:, None] * N + col[None, :]
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(row[:, None] < M) & (col[None, :] < N))


@triton.jit
def matmul_by_tiles(
    a, b, bias, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, TRANS_B: tl.constexpr, HAS_BIAS: tl.constexpr,
):
    matrix = tl.program_id(1).to(tl.int64)
    a_tiles = tl.make_tensor_descriptor(a + matrix * M * K, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    if TRANS_B:
        b_tiles = tl.make_tensor_descriptor(b + matrix * N * K, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    else:
        b_tiles = tl.make_tensor_descriptor(b + matrix * N * K, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c_tiles = tl.make_tensor_descriptor(c + matrix * M * N, shape=[M, N], strides=[N, 1], block_shape=[BM, BN // 2])
    tiles = (tl.cdiv(M, BM) * tl.cdiv(N, BN)).to(tl.int32)
    # `flatten`: one loop over the terms of all tiles, in which the next tile's first slices are on their way while this one is stored.
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        down, across = tile_of(tile, M, N, BM, BN, GROUP)
        total = tl.zeros([BM, BN], tl.float32)
        for step in range(0, tl.cdiv(K, BK).to(tl.int32)):
            left = a_tiles.load([down * BM, step * BK])
            if TRANS_B:
                right = b_tiles.load([across * BN, step * BK]).T
            else:
                right = b_tiles.load([step * BK, across * BN])
            total = tl.dot(left, right, total)
        if HAS_BIAS:
            col = across.to(tl.int64) * BN + tl.arange(0, BN)
            total += tl.load(bias + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
        # Stored in two halves, which take less of the shared memory that slices are in.
        left_half, right_half = total.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
        c_tiles.store([down * BM, across * BN], left_half.to(c.dtype.element_ty))
        c_tiles.store([down * BM, across * BN + BN // 2], right_half.to(c.dtype.element_ty))
