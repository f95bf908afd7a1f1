/*---
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256, choices = [128, 256, 512] }           # threads in a block
LANES   = { value = 256, choices = [32, 64, 128, 256, 512] }   # threads that share a row
HELD    = { value = 2,   choices = [1, 2, 4, 8] }              # 16-byte pieces a thread keeps; the rest of a row is read twice
[let]
VEC   = "16 / dtype_bytes"
BLOCK = "max(THREADS, LANES)"
ROWS  = "BLOCK / LANES"
[[variant]]
when = "cols * dtype_bytes <= 2048"
tune = { LANES = 32, HELD = 4 }
[[variant]]
when = "cols * dtype_bytes > 8192"
tune = { LANES = 512, HELD = 4 }
[[launch]]
kernel = "rmsnorm"
grid   = ["ceil_div(rows, ROWS)"]
block  = ["BLOCK"]
args   = ["x", "weight", "y", "rows", "cols", "eps"]
---*/

/* LANES threads share a row: they load it 16 bytes at a time, add up its squares, and scale what they still hold.
   Rows of odd length start at any address, so the elements before the first and after the last aligned piece, at most
   2 VEC - 2 of them, are taken one by one. */

struct __align__(16) Piece {
    T of[VEC];
};

/* The sum of `value` over the threads of a row, the same bits in each of them. */
__device__ float sum_over_row(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    if (LANES == 32) return value;
    __shared__ float of_warp[BLOCK / 32];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    const int first = threadIdx.x / LANES * (LANES / 32);
    float sum = 0;
    for (int warp = 0; warp < LANES / 32; warp++) sum += of_warp[first + warp];
    return sum;
}

__device__ float sum_of_squares(const Piece &piece) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += ws_load(piece.of[i]) * ws_load(piece.of[i]);
    return sum;
}

/* `aligned`: whether the weights can be loaded as the row is, 16 bytes at a time. */
__device__ Piece scaled(const Piece &piece, const T *weight, bool aligned, float scale) {
    Piece by, out;
    if (aligned) by = *(const Piece *)weight;
    else
#pragma unroll
        for (int i = 0; i < VEC; i++) by.of[i] = weight[i];
#pragma unroll
    for (int i = 0; i < VEC; i++) out.of[i] = ws_store(ws_load(piece.of[i]) * scale * ws_load(by.of[i]));
    return out;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rmsnorm(const T *__restrict__ x, const T *__restrict__ weight, T *__restrict__ y, int64_t rows, int64_t cols, float eps) {
    const int lane = threadIdx.x % LANES;
    const int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.x / LANES;
    const bool live = row < rows; /* the others still take part in the barrier */
    if (live) x += row * cols, y += row * cols;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int64_t singles = live ? cols - pieces * VEC : 0;
    const bool aligned = before == 0 && (size_t)weight % 16 == 0;
    const Piece *from = (const Piece *)(x + before);
    Piece *to = (Piece *)(y + before);

    Piece held[HELD];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * LANES < pieces) held[i] = from[lane + i * LANES];
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * LANES < pieces) sum += sum_of_squares(held[i]);
#pragma unroll 1
    for (int64_t at = lane + HELD * LANES; at < pieces; at += LANES) sum += sum_of_squares(from[at]);
#pragma unroll 1
    for (int64_t i = lane; i < singles; i += LANES) {
        const float v = ws_load(x[i < before ? i : i + pieces * VEC]);
        sum += v * v;
    }

    const float scale = 1.0f / sqrtf(sum_over_row(sum) / (float)cols + eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int64_t at = lane + i * LANES;
        if (at < pieces) to[at] = scaled(held[i], weight + before + at * VEC, aligned, scale);
    }
#pragma unroll 1
    for (int64_t at = lane + HELD * LANES; at < pieces; at += LANES)
        to[at] = scaled(from[at], weight + before + at * VEC, aligned, scale);
#pragma unroll 1
    for (int64_t i = lane; i < singles; i += LANES) {
        const int64_t j = i < before ? i : i + pieces * VEC;
        y[j] = ws_store(ws_load(x[j]) * scale * ws_load(weight[j]));
    }
}
