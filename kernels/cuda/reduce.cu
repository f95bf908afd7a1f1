/*---
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256,  choices = [128, 256, 512] }              # threads in a block
HELD    = { value = 4,    choices = [1, 2, 4, 8] }                 # 16-byte pieces a thread loads before it adds them
LONG    = { value = 4096, choices = [1024, 4096, 16384, 65536] }   # rows of more bytes have a block each, others a warp
# Of the kernel that has whole rows in registers.
LANES   = { value = 256, choices = [64, 128, 256, 512] }           # threads of a block, which share a row
KEPT    = { value = 4,   choices = [1, 2, 4, 8, 16] }              # 16-byte pieces of a row that each of them loads
[let]
VEC    = "16 / dtype_bytes"
PIECES = "ceil_div(cols, VEC)"
WHOLE  = "cols % VEC == 0 && cols * dtype_bytes > LONG && PIECES <= LANES * KEPT && PIECES * 2 > LANES * KEPT && rows >= SMS"
[[launch]]
kernel = "whole"
when   = "WHOLE"
grid   = ["rows"]
block  = ["LANES"]
args   = ["x", "y", "rows", "cols"]
[[launch]]
kernel = "reduce"
when   = "!WHOLE"
grid   = ["ceil_div(rows, cols * dtype_bytes > LONG ? 1 : THREADS / 32)"]
block  = ["cols * dtype_bytes > LONG ? THREADS : 32", "cols * dtype_bytes > LONG ? 1 : THREADS / 32"]
args   = ["x", "y", "rows", "cols"]
---*/

/* Bound by memory, and by what a block does while nothing of it is under way: it begins, finds its row, asks, adds, meets at a barrier.

   `whole` is for rows that LANES threads load at once, KEPT pieces each, without a loop: no counting of what is left, 32 registers instead of 40 and so
   8 blocks a multiprocessor instead of 6, and one barrier, after which the first warp adds up what the warps have. 8192 rows of 8192 columns in 16 bits take
   an H200 33.4 us instead of 33.9. Blocks that stay and draw their rows, and bulk copies into places in shared memory, take 38 to 41.

   `reduce` is for all else: blockDim.x threads share a row, a warp or the whole block; blockDim.y rows share a block. A thread loads HELD pieces
   of 16 bytes at a time. Rows of odd length start at any address, so the elements before the first and after the last aligned
   piece, at most 2 VEC - 2 of them, are taken one by one. */

#include "ws/ampere.cuh"

struct __align__(16) Piece {
    uint32_t word[4];
};

__device__ float sum_of(const Piece &piece) {
    float values[VEC], sum = 0;
    ws::unpack(values, (const uint4 &)piece);
#pragma unroll
    for (int i = 0; i < VEC; i += 2) sum += values[i] + values[i + 1];
    return sum;
}
__device__ float sum_over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

extern "C" __global__ void __launch_bounds__(LANES)
whole(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    constexpr int WARPS = LANES / 32;
    __shared__ float of_warp[WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = (int)cols / VEC;
    const int64_t row = blockIdx.x;
    const Piece *const at = (const Piece *)x + row * pieces + threadIdx.x;
    Piece held[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        held[i] = {};
        if ((int)threadIdx.x + i * LANES < pieces) held[i] = at[i * LANES];
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) sum += sum_of(held[i]);
    sum = sum_over_warp(sum);
    if (lane == 0) of_warp[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = sum_over_warp(lane < WARPS ? of_warp[lane] : 0.0f);
        if (lane == 0) y[row] = ws_store(sum);
    }
}

/* The sum of `value` over the threads of a row. Every thread of the block comes by; the first of each row has the sum. */
__device__ float sum_over_row(float value) {
    value = sum_over_warp(value);
    if (blockDim.y > 1) return value; /* the row is a warp's */
    __shared__ float of_warp[THREADS / 32];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
#pragma unroll 1
    for (int warp = 0; warp < THREADS / 32; warp++) sum += of_warp[warp];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
reduce(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t cols) {
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < rows; /* the others still take part in the barrier */
    if (live) x += row * cols;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int64_t singles = live ? cols - pieces * VEC : 0;
    const Piece *at = (const Piece *)(x + before) + lane;

    float sum = 0;
#pragma unroll 1
    for (int64_t left = pieces - lane; left > 0; left -= HELD * lanes, at += HELD * lanes) {
        const int there = (int)min(left, (int64_t)(HELD * lanes));
        Piece held[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) held[i] = at[i * lanes];
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (i * lanes < there) sum += sum_of(held[i]);
    }
#pragma unroll 1
    for (int64_t i = lane; i < singles; i += lanes) sum += ws_load(x[i < before ? i : i + pieces * VEC]);

    sum = sum_over_row(sum);
    if (live && lane == 0) y[row] = ws_store(sum);
}
