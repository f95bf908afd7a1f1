/*---
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256,  choices = [128, 256, 512] }              # threads in a block
HELD    = { value = 4,    choices = [1, 2, 4, 8] }                 # 16-byte pieces a thread loads before it adds them
LONG    = { value = 4096, choices = [1024, 4096, 16384, 65536] }   # rows of more bytes have a block each, others a warp
# Of the kernel whose blocks stay.
LANES   = { value = 256, choices = [64, 128, 256, 512] }           # threads of a block, which share each of its rows
KEPT    = { value = 4,   choices = [2, 4, 8, 16] }                 # 16-byte pieces of a row that each of them loads
BLOCKS  = { value = 6,   choices = [2, 4, 6, 8, 12, 16] }          # of a multiprocessor
STAY    = { value = 2,   choices = [1, 2] }                        # 1: rows are dealt out beforehand; 2: blocks draw rows
[let]
VEC     = "16 / dtype_bytes"
PIECES  = "ceil_div(cols, VEC)"
STAYING = "cols % VEC == 0 && cols * dtype_bytes > LONG && PIECES <= LANES * KEPT && PIECES * 2 > LANES * KEPT && rows >= SMS * BLOCKS * 2"
[[scratch]]    # rows that have been drawn, blocks that have ended
name  = "drawn"
dtype = "i64"
shape = ["2"]
init  = "zero_kept"
[[launch]]
kernel = "staying"
when   = "STAYING"
grid   = ["SMS * BLOCKS"]
block  = ["LANES"]
args   = ["x", "y", "drawn", "rows", "cols"]
[[launch]]
kernel = "reduce"
when   = "!STAYING"
grid   = ["ceil_div(rows, cols * dtype_bytes > LONG ? 1 : THREADS / 32)"]
block  = ["cols * dtype_bytes > LONG ? THREADS : 32", "cols * dtype_bytes > LONG ? 1 : THREADS / 32"]
args   = ["x", "y", "rows", "cols"]
---*/

/* Bound by memory, and by what a block does while nothing of it is under way: it begins, finds its row, asks, adds, meets at a barrier.

   `staying` is for rows that LANES threads load at once, KEPT pieces each. Blocks stay, and ask for their next row as soon as they have added up
   what they have, before they meet:

       thread:  | row 7 comes ........ | add | ask for row 1063 | barrier | warp 0 adds what warps have | row 1063 comes ...

   so that between two rows nothing is under way for 100 cycles instead of 1500. Which row comes after the next one is drawn from a counter a
   row ahead: multiprocessors are not served equally, as some share their way to memory with more others.

   `reduce` is for all else: blockDim.x threads share a row, a warp or the whole block; blockDim.y rows share a block. A thread loads HELD pieces
   of 16 bytes at a time. Rows of odd length start at any address, so the elements before the first and after the last aligned
   piece, at most 2 VEC - 2 of them, are taken one by one. */

struct __align__(16) Piece {
    uint32_t word[4];
};

__device__ float sum_of(const Piece &piece) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
#if WS_F32
        sum += __uint_as_float(piece.word[i]);
#else
        sum += ws_load((T)piece.word[i]) + ws_load((T)(piece.word[i] >> 16));
#endif
    return sum;
}
__device__ float sum_over_warp(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

extern "C" __global__ void __launch_bounds__(LANES, BLOCKS)
staying(const T *__restrict__ x, T *__restrict__ y, int64_t *drawn, int64_t rows, int64_t cols) {
    constexpr int WARPS = LANES / 32;
    __shared__ float of_warp[2][WARPS];
    __shared__ int64_t of_block[2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = (int)cols / VEC;
    Piece held[KEPT];
    auto ask = [&](int64_t row) {
        const Piece *const at = (const Piece *)x + row * pieces + threadIdx.x;
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            held[i] = {};
            if (row < rows && (int)threadIdx.x + i * LANES < pieces) held[i] = at[i * LANES];
        }
    };
    int64_t row = blockIdx.x, next = row + gridDim.x;
    ask(row);
    for (int turn = 0; row < rows; turn ^= 1) {
        int64_t after = next + gridDim.x;
        if (STAY == 2 && threadIdx.x == 0) {
            __threadfence(); /* costs nothing here, where the row is waited for */
            after = 2 * (int64_t)gridDim.x + (int64_t)atomicAdd((unsigned long long *)drawn, 1ull);
        }
        float sum = 0;
#pragma unroll
        for (int i = 0; i < KEPT; i++) sum += sum_of(held[i]);
        ask(next);
        sum = sum_over_warp(sum);
        if (lane == 0) of_warp[turn][warp] = sum;
        if (threadIdx.x == 0) of_block[turn] = after;
        __syncthreads();
        if (warp == 0) {
            sum = sum_over_warp(lane < WARPS ? of_warp[turn][lane] : 0.0f);
            if (lane == 0) y[row] = ws_store(sum);
        }
        row = next, next = of_block[turn];
    }
#if STAY == 2
    if (threadIdx.x == 0) { /* this block draws no more; the last one leaves the counters as they were */
        __threadfence();
        if (atomicAdd((unsigned long long *)drawn + 1, 1ull) == gridDim.x - 1) drawn[0] = drawn[1] = 0;
    }
#endif
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
