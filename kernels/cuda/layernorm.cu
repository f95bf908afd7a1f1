/*---
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 256, choices = [64, 128, 256, 512] }   # threads in a block, where a row needs no more
HELD    = { value = 8,   choices = [1, 2, 4, 8, 9] }       # 16-byte pieces a thread keeps; as many threads share a row as it needs
[let]
VEC   = "16 / dtype_bytes"
LANES = "min(1024, ceil_div(dim, 32 * HELD * VEC) * 32)"   # threads of a row, whole warps
KEPT  = "min(HELD, max(1, ceil_div(ceil_div(dim, VEC), LANES)))"   # pieces a thread keeps of this row
ROWS  = "max(1, THREADS / LANES)"                          # rows of a block
# Bytes of weights and biases, at most, that a block copies to shared memory: the more blocks there are, the more their number on a multiprocessor counts.
STAGE = "batch >= 8 * SMS ? 32768 : batch > 2 * SMS ? 40960 : min(98304, SMEM_MAX - 2048)"
[[variant]]    # long rows: up to 512 threads a block, so that two share a multiprocessor, and one reads while the other writes
when = "dim * dtype_bytes > 65536 && dim * dtype_bytes <= 73728"
tune = { HELD = 9 }
[[launch]]    # threads of a block: along x those of a row, whole warps, along y rows
kernel = "layernorm"
block  = ["LANES", "ROWS"]
grid   = ["ceil_div(batch, ROWS)"]
shared = "ceil_div(dim, VEC) * 32 <= STAGE ? ceil_div(dim, VEC) * 32 : 0"
args   = ["x", "weight", "bias", "y", "batch", "dim", "eps"]
---*/

/* The threads of a row load it 16 bytes at a time and keep it (what is beyond 1024 KEPT pieces is read three times): they add
   it up, then the squared deviations from its mean, then scale it. Weights and biases travel to shared memory meanwhile: read
   where they are needed, they would be waited for again and again. Rows of odd length start at any address, so the elements
   before the first and after the last aligned piece, at most 2 VEC - 2 of them, are taken one by one. */

#include "ws/ampere.cuh"

struct __align__(16) Piece {
    T of[VEC];
};

/* Begins to copy weights or biases, by all threads of the block. */
__device__ void stage(T *to, const T *from, int dim) {
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y, whole = dim / VEC * VEC;
#pragma unroll 1
    for (int i = thread * VEC; i < whole; i += threads * VEC)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to + i)), "l"(from + i));
    if (thread < dim - whole) to[whole + thread] = from[whole + thread];
}

__device__ float sum_over_warp(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}

/* The sum of `value` over the threads of a row, the same bits in each of them. `of_warp` has a place for every warp of the
   block, and is used once: a second sum in the same place might be written before the first is read. */
__device__ float sum_over_row(float value, float *of_warp) {
    value = sum_over_warp(value);
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32, first = threadIdx.y * warps;
    if (warps == 1) return value;
    if (lane == 0) of_warp[first + threadIdx.x / 32] = value;
    __syncthreads();
    return sum_over_warp(lane < warps ? of_warp[first + lane] : 0.0f);
}

/* Lets the compiler unpack a piece anew: unpacked from one use to the next, it would take twice the registers. */
__device__ void keep_packed(Piece &piece) {
    uint4 &words = *(uint4 *)&piece;
    asm("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

__device__ void unpack(float (&values)[VEC], const Piece &piece) { ws::unpack(values, (const uint4 &)piece); }

__device__ float sum_of(const Piece &piece) {
    float values[VEC], sum = 0;
    unpack(values, piece);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += values[i];
    return sum;
}

__device__ float squared(float deviation) { return deviation * deviation; }

__device__ float sum_of_squares(const Piece &piece, float mean) {
    float values[VEC], sum = 0;
    unpack(values, piece);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum += squared(values[i] - mean);
    return sum;
}

__device__ T normalised(T v, T weight, T bias, float mean, float scale) {
    return ws_store((ws_load(v) - mean) * scale * ws_load(weight) + ws_load(bias));
}

/* A piece whose weights and biases are loaded as it is, 16 bytes at a time. */
__device__ Piece normalised(const Piece &piece, const Piece &weight, const Piece &bias, float mean, float scale) {
    float values[VEC], weights[VEC], biases[VEC];
    unpack(values, piece), unpack(weights, weight), unpack(biases, bias);
    Piece out;
#pragma unroll
    for (int i = 0; i < VEC; i++) out.of[i] = ws_store((values[i] - mean) * scale * weights[i] + biases[i]);
    return out;
}

/* A piece whose weights and biases may begin anywhere. */
__device__ Piece normalised(const Piece &piece, const T *weight, const T *bias, float mean, float scale) {
    Piece out;
#pragma unroll
    for (int i = 0; i < VEC; i++) out.of[i] = normalised(piece.of[i], weight[i], bias[i], mean, scale);
    return out;
}

/* Loads a piece of x, marked to stay in the L2 cache: on an H200 1024 rows of 36864 take 47.9 us so, and 49.8 without. */
__device__ Piece load_to_stay(const Piece *from) {
    uint64_t policy;
    uint4 words;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(from), "l"(policy));
    return *(const Piece *)&words;
}

extern "C" __global__ void __launch_bounds__(1024)
layernorm(const T *x, const T *__restrict__ weight, const T *__restrict__ bias, T *__restrict__ y,
          int64_t batch, int64_t dim, float eps) {
    ws_next_may_begin(); /* In a pass of a model blocks come before the launch in front has ended. What it wrote is loaded in order: x is not __restrict__. */
    ws_wait_for_previous();
    __shared__ float sums[32], squares[32];
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < batch; /* the others still take part in the barriers */
    if (live) x += row * dim, y += row * dim;

    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), dim);
    const int64_t pieces = live ? (dim - before) / VEC : 0;
    const int singles = live ? (int)(dim - pieces * VEC) : 0;
    const int kept = (int)min(pieces, (int64_t)(KEPT * lanes));
    const bool parameters_aligned = (size_t)weight % 16 == 0 && (size_t)bias % 16 == 0;
    const bool aligned = before == 0 && parameters_aligned;
    const bool staged = parameters_aligned && (dim + VEC - 1) / VEC * 32 <= STAGE; /* the same in the whole block */
    const Piece *from = (const Piece *)(x + before);
    Piece *to = (Piece *)(y + before);

    Piece held[KEPT];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (lane + i * lanes < kept) held[i] = load_to_stay(from + lane + i * lanes);
    if (staged) {
        T *const copies = (T *)shared;
        stage(copies, weight, (int)dim);
        stage(copies + (dim + VEC - 1) / VEC * VEC, bias, (int)dim);
        weight = copies, bias = copies + (dim + VEC - 1) / VEC * VEC;
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (lane + i * lanes < kept) sum += sum_of(held[i]);
#pragma unroll 1
    for (int64_t at = lane + KEPT * lanes; at < pieces; at += lanes) {
        const Piece piece = from[at];
        sum += sum_of(piece);
    }
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes) sum += ws_load(x[i < before ? i : i + pieces * VEC]);
    const float mean = sum_over_row(sum, sums) / (float)dim;

    float deviations = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++)
        if (lane + i * lanes < kept) {
            keep_packed(held[i]);
            deviations += sum_of_squares(held[i], mean);
            keep_packed(held[i]);
        }
#pragma unroll 1
    for (int64_t at = lane + KEPT * lanes; at < pieces; at += lanes) {
        const Piece piece = from[at];
        deviations += sum_of_squares(piece, mean);
    }
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes)
        deviations += squared(ws_load(x[i < before ? i : i + pieces * VEC]) - mean);
    const float scale = 1.0f / sqrtf(sum_over_row(deviations, squares) / (float)dim + eps);

    if (staged) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
    }
    if (aligned)
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            const int at = lane + i * lanes;
            if (at >= kept) continue;
            const Piece weights = ((const Piece *)weight)[at], biases = ((const Piece *)bias)[at];
            to[at] = normalised(held[i], weights, biases, mean, scale);
        }
    /* Rare enough to be read again: what is not kept, and all of a row that is aligned unlike its parameters. */
#pragma unroll 1
    for (int64_t at = aligned ? lane + KEPT * lanes : lane; at < pieces; at += lanes) {
        const int64_t j = before + at * VEC;
        const Piece piece = from[at];
        to[at] = normalised(piece, weight + j, bias + j, mean, scale);
    }
#pragma unroll 1
    for (int i = lane; i < singles; i += lanes) {
        const int64_t j = i < before ? i : i + pieces * VEC;
        y[j] = normalised(x[j], weight[j], bias[j], mean, scale);
    }
}
