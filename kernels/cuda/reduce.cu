/*---
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256,  choices = [128, 256, 512] }              # threads in a block
HELD    = { value = 4,    choices = [1, 2, 4, 8] }                 # 16-byte pieces a thread loads before it adds them
LONG    = { value = 4096, choices = [1024, 4096, 16384, 65536] }   # rows of more bytes have a block each, others a warp
[let]
VEC = "16 / dtype_bytes"
[[launch]]
kernel = "reduce"
grid   = ["ceil_div(rows, cols * dtype_bytes > LONG ? 1 : THREADS / 32)"]
block  = ["cols * dtype_bytes > LONG ? THREADS : 32", "cols * dtype_bytes > LONG ? 1 : THREADS / 32"]
args   = ["x", "y", "rows", "cols"]
---*/

/* blockDim.x threads share a row, a warp or the whole block; blockDim.y rows share a block. A thread loads HELD pieces of
   16 bytes at a time. Rows of odd length start at any address, so the elements before the first and after the last
   aligned piece, at most 2 VEC - 2 of them, are taken one by one. */

struct __align__(16) Piece {
    T of[VEC];
};

__device__ float sum_of(const Piece &piece) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += ws_load(piece.of[i]);
    return sum;
}

/* The sum of `value` over the threads of a row. Every thread of the block comes by; the first of each row has the sum. */
__device__ float sum_over_row(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
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
