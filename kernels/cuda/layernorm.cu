/*---
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256, choices = [64, 128, 256, 512] }   # threads in a block, where a row needs no more
HELD    = { value = 8,   choices = [1, 2, 4, 8] }          # 16-byte pieces a thread keeps; as many threads share a row as it needs
[let]
VEC = "16 / dtype_bytes"
[[launch]]    # threads of a block: along x those of a row, whole warps, along y rows
kernel = "layernorm"
block  = ["min(1024, ceil_div(dim, 32 * HELD * VEC) * 32)", "max(1, THREADS / min(1024, ceil_div(dim, 32 * HELD * VEC) * 32))"]
grid   = ["ceil_div(batch, max(1, THREADS / min(1024, ceil_div(dim, 32 * HELD * VEC) * 32)))"]
args   = ["x", "weight", "bias", "y", "batch", "dim", "eps"]
---*/

/* The threads of a row load it 16 bytes at a time and keep it (what is beyond 1024 HELD pieces is read three times): they add
   it up, then the squared deviations from its mean, then scale it. Rows of odd length start at any address, so the elements
   before the first and after the last aligned piece, at most 2 VEC - 2 of them, are taken one by one. */

struct __align__(16) Piece {
    T of[VEC];
};

/* The sum of `value` over the threads of a row, the same bits in each of them. `of_warp` has a place for every warp of the
   block, and is used once: a second sum in the same place might be written before the first is read. */
__device__ float sum_over_row(float value, float *of_warp) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    const int warps = blockDim.x / 32;
    if (warps == 1) return value;
    const int first = threadIdx.y * warps;
    if (threadIdx.x % 32 == 0) of_warp[first + threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < warps; warp++) sum += of_warp[first + warp];
    return sum;
}

__device__ float sum_of(const Piece &piece) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += ws_load(piece.of[i]);
    return sum;
}

__device__ float squared(float deviation) { return deviation * deviation; }

__device__ float sum_of_squares(const Piece &piece, float mean) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += squared(ws_load(piece.of[i]) - mean);
    return sum;
}

/* VEC weights or biases; `aligned` where they can be loaded as the row is, 16 bytes at a time. */
__device__ Piece parameters(const T *from, bool aligned) {
    if (aligned) return *(const Piece *)from;
    Piece piece;
#pragma unroll
    for (int i = 0; i < VEC; i++) piece.of[i] = from[i];
    return piece;
}

__device__ Piece normalised(const Piece &piece, const Piece &weight, const Piece &bias, float mean, float scale) {
    Piece out;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        out.of[i] = ws_store((ws_load(piece.of[i]) - mean) * scale * ws_load(weight.of[i]) + ws_load(bias.of[i]));
    return out;
}

extern "C" __global__ void __launch_bounds__(1024)
layernorm(const T *__restrict__ x, const T *__restrict__ weight, const T *__restrict__ bias, T *__restrict__ y,
          int64_t batch, int64_t dim, float eps) {
    __shared__ float sums[32], squares[32];
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < batch; /* the others still take part in the barriers */
    if (live) x += row * dim, y += row * dim;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), dim);
    const int64_t pieces = live ? (dim - before) / VEC : 0;
    const int singles = live ? (int)(dim - pieces * VEC) : 0;
    const int kept = (int)min(pieces, (int64_t)(HELD * lanes));
    const bool aligned = before == 0 && (size_t)weight % 16 == 0 && (size_t)bias % 16 == 0;
    const Piece *from = (const Piece *)(x + before);
    Piece *to = (Piece *)(y + before);

    Piece held[HELD];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) held[i] = from[lane + i * lanes];
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) sum += sum_of(held[i]);
#pragma unroll 1
    for (int64_t at = lane + HELD * lanes; at < pieces; at += lanes) sum += sum_of(from[at]);
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes) sum += ws_load(x[i < before ? i : i + pieces * VEC]);
    const float mean = sum_over_row(sum, sums) / (float)dim;

    float deviations = 0;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (lane + i * lanes < kept) deviations += sum_of_squares(held[i], mean);
#pragma unroll 1
    for (int64_t at = lane + HELD * lanes; at < pieces; at += lanes) deviations += sum_of_squares(from[at], mean);
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes)
        deviations += squared(ws_load(x[i < before ? i : i + pieces * VEC]) - mean);
    const float scale = 1.0f / sqrtf(sum_over_row(deviations, squares) / (float)dim + eps);

    const T *weights = weight + before, *biases = bias + before;
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const int at = lane + i * lanes;
        if (at < kept)
            to[at] = normalised(held[i], parameters(weights + at * VEC, aligned), parameters(biases + at * VEC, aligned), mean, scale);
    }
#pragma unroll 1
    for (int64_t at = lane + HELD * lanes; at < pieces; at += lanes)
        to[at] = normalised(from[at], parameters(weights + at * VEC, aligned), parameters(biases + at * VEC, aligned), mean, scale);
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes) {
        const int64_t j = i < before ? i : i + pieces * VEC;
        y[j] = ws_store((ws_load(x[j]) - mean) * scale * ws_load(weight[j]) + ws_load(bias[j]));
    }
}
