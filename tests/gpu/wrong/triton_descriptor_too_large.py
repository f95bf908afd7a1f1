"""
---
# expect: reject|crash
# why: its descriptor of the result is as large as all tiles together, so that rows beyond the last are stored
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
divisible = ["N", "K"]
[tune]
BM = { value = 64, choices = [64, 128] }
BN = { value = 64, choices = [64, 128] }
STAGES = { value = 3, choices = [2, 3, 4] }
[let]
BK = "dtype_bytes == 4 ? 16 : 64"
# A row begins on 16 bytes, which is what the copy engine asks for.
ON_16 = "K * dtype_bytes % 16 == 0 && N * dtype_bytes % 16 == 0"
[[launch]]
kernel = "by_descriptors"
when = "ON_16"
grid = ["ceil_div(M, BM) * ceil_div(N, BN)", "batch"]
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", TRANS_B = "trans_b", HAS_BIAS = "has_bias" }
args = ["a", "b", "bias", "c", "M", "N", "K"]
[[launch]]
kernel = "by_pointers"
when = "!ON_16"
grid = ["ceil_div(M, BM) * ceil_div(N, BN)", "batch"]
num_stages = "STAGES"
constexprs = { BM = "BM", BN = "BN", BK = "BK", TRANS_B = "trans_b", HAS_BIAS = "has_bias" }
args = ["a", "b", "bias", "c", "M", "N", "K"]
---
"""

import triton
import triton.language as tl


@triton.jit
def by_descriptors(
    a, b, bias, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANS_B: tl.constexpr, HAS_BIAS: tl.constexpr,
):
    across = tl.cdiv(N, BN).to(tl.int32)
    row = tl.program_id(0) // across * BM
    col = tl.program_id(0) % across * BN
    matrix = tl.program_id(1).to(tl.int64)
    a_tiles = tl.make_tensor_descriptor(a + matrix * M * K, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    if TRANS_B:
        b_tiles = tl.make_tensor_descriptor(b + matrix * N * K, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    else:
        b_tiles = tl.make_tensor_descriptor(b + matrix * N * K, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c_tiles = tl.make_tensor_descriptor(c + matrix * M * N, shape=[tl.cdiv(M, BM) * BM, N], strides=[N, 1], block_shape=[BM, BN])
    total = tl.zeros([BM, BN], tl.float32)
    for step in range(0, tl.cdiv(K, BK).to(tl.int32)):
        left = a_tiles.load([row, step * BK])
        if TRANS_B:
            right = b_tiles.load([col, step * BK]).T
        else:
            right = b_tiles.load([step * BK, col])
        total = tl.dot(left, right, total, input_precision="ieee")
    if HAS_BIAS:
        at = col.to(tl.int64) + tl.arange(0, BN)
        total += tl.load(bias + at, mask=at < N, other=0.0).to(tl.float32)[None, :]
    c_tiles.store([row, col], total.to(c.dtype.element_ty))


@triton.jit
def by_pointers(
    a, b, bias, c, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TRANS_B: tl.constexpr, HAS_BIAS: tl.constexpr,
):
    across = tl.cdiv(N, BN).to(tl.int32)
    row = (tl.program_id(0) // across).to(tl.int64) * BM + tl.arange(0, BM)[:, None]
    col = (tl.program_id(0) % across).to(tl.int64) * BN + tl.arange(0, BN)
    matrix = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BK)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        inside = start + k
        left = tl.load(a + matrix * M * K + row * K + inside[None, :], mask=(row < M) & (inside[None, :] < K), other=0.0)
        across_b = col[None, :] * K + inside[:, None] if TRANS_B else inside[:, None] * N + col[None, :]
        right = tl.load(b + matrix * N * K + across_b, mask=(col[None, :] < N) & (inside[:, None] < K), other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    tl.store(c + matrix * M * N + row * N + col[None, :], total.to(c.dtype.element_ty), mask=(row < M) & (col[None, :] < N))
