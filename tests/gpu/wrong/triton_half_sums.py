"""
---
# expect: reject
# why: sums kept in half
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["N", "K"]
[tune]
BM     = { value = 128, choices = [16, 64, 128, 256] }          # rows of a program's tile
BN     = { value = 256, choices = [32, 64, 128, 256] }          # its columns
BK     = { value = 64,  choices = [16, 32, 64, 128] }           # terms of the sum at a time
WARPS  = { value = 8,   choices = [4, 8] }
STAGES = { value = 4,   choices = [2, 3, 4, 5] }                # slices of the operands on their way
GROUP  = { value = 8,   choices = [4, 8, 16] }                  # rows of tiles that run together, so that they find b in the L2 cache
[let]
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
[[variant]]    # too few large tiles for all multiprocessors
when = "batch * ceil_div(M, 128) * ceil_div(N, 256) * 2 <= SMS"
tune = { BM = 64, BN = 64, BK = 64, WARPS = 4, STAGES = 4 }
[[variant]]    # shared memory does not suffice for the larger tile
when = "SMEM_MAX < 200000"
tune = { BM = 128, BN = 128, BK = 32, WARPS = 8, STAGES = 3 }
[[launch]]
kernel = "matmul"
grid   = ["ceil_div(M, BM) * ceil_div(N, BN)", "batch"]
num_warps = "WARPS"
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", GROUP = "GROUP", TRANS_B = "trans_b", HAS_BIAS = "has_bias", EVEN_M = "EVEN_M", EVEN_N = "EVEN_N", EVEN_K = "EVEN_K" }
args   = ["a", "b", "bias", "c", "M", "N", "K"]
---
"""

import triton
import triton.language as tl


@triton.jit
def tile_of(M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Which tile a program has: GROUP rows of tiles go along together."""
    pid = tl.program_id(0)
    down = tl.cdiv(M, BM).to(tl.int32)
    across = tl.cdiv(N, BN).to(tl.int32)
    group = pid // (GROUP * across)
    height = min(down - group * GROUP, GROUP)
    inside = pid % (GROUP * across)
    return group * GROUP + inside % height, inside // height


@triton.jit
def matmul(
    a, b, bias, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, TRANS_B: tl.constexpr, HAS_BIAS: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
):
    down, across = tile_of(M, N, BM, BN, GROUP)
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
    total = tl.zeros([BM, BN], c.dtype.element_ty)
    for step in range(0, tl.cdiv(K, BK).to(tl.int32)):
        if EVEN_K:
            left = tl.load(a_at)
            right = tl.load(b_at)
        else:
            rest = K - step * BK
            left = tl.load(a_at, mask=k[None, :] < rest, other=0.0)
            right = tl.load(b_at, mask=k[:, None] < rest, other=0.0)
        total += tl.dot(left, right, input_precision="ieee").to(c.dtype.element_ty)
        a_at += BK
        b_at += BK if TRANS_B else BK * N
    if HAS_BIAS:
        total += tl.load(bias + from_col).to(tl.float32)[None, :]
    c_at = c + matrix * M * N + row[:, None] * N + col[None, :]
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(row[:, None] < M) & (col[None, :] < N))
