/*---
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
THREADS = { value = 128, choices = [64, 128, 256, 512] }           # threads in a block, where a row needs no more
HELD    = { value = 4,   choices = [1, 2, 3, 4, 5, 6, 7, 8] }      # 16-byte pieces of a row that a thread keeps
[let]
VEC    = "16 / dtype_bytes"
PIECES = "ceil_div(cols, VEC)"
LANES  = "min(1024, PIECES <= 8 * HELD ? 8 : PIECES <= 16 * HELD ? 16 : ceil_div(PIECES, 32 * HELD) * 32)"   # threads that share a row
EXACT  = "min(HELD, max(1, ceil_div(PIECES, LANES)))"                  # pieces that it keeps of this row
ROWS   = "max(1, THREADS / LANES)"                                 # rows of a block
BOUND  = "LANES * ROWS <= 128 ? 128 : LANES * ROWS <= 256 ? 256 : LANES * ROWS <= 512 ? 512 : 1024"
[[variant]]    # few rows: more threads for each
when = "rows <= 256 && cols * dtype_bytes <= 16384"
tune = { HELD = 2 }
[[variant]]    # 384 columns are 16 threads' three pieces each
when = "cols * dtype_bytes <= 1024"
tune = { HELD = 3, THREADS = 256 }
[[variant]]    # long rows: two blocks still fit a multiprocessor, and one reads while the other writes
when = "cols * dtype_bytes > 32768"
tune = { HELD = 8 }
[[launch]]
kernel = "aligned"
when   = "cols % VEC == 0 && PIECES <= HELD * LANES"
grid   = ["ceil_div(rows, ROWS)"]
block  = ["LANES", "ROWS"]
args   = ["x", "weight", "y", "rows", "cols", "eps"]
[[launch]]
kernel = "ragged"
when   = "!(cols % VEC == 0 && PIECES <= HELD * LANES)"
grid   = ["ceil_div(rows, max(1, THREADS / max(32, LANES)))"]
block  = ["max(32, LANES)", "max(1, THREADS / max(32, LANES))"]
args   = ["x", "weight", "y", "rows", "cols", "eps"]
---*/

/* Bound by memory: x is read once, y written once, and the weights stay in the caches. What counts is to have enough bytes on
   their way at any time. So a row is dealt out to just as many threads as keep it in their registers, HELD pieces each; all
   loads, those of the weights too, are under way before the first is used; and blocks are small, 64 registers a thread at most, so
   that some read while others write:

       x: load load load load |                                   of a thread: HELD pieces of 16 bytes
       weights: load ... load |  squares, sum over the row  |  scale, store ... store

   A row of 512 columns or less is shared by 8, 16 or 32 lanes, and a warp has several. */

#include "ws/ampere.cuh"

struct __align__(16) Piece {
    uint32_t word[4];
};

__device__ void unpack(float (&v)[VEC], const Piece &piece) { ws::unpack(v, (const uint4 &)piece); }
__device__ Piece pack(const float (&v)[VEC]) {
    Piece piece;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if WS_F32
        piece.word[i] = __float_as_uint(v[i]);
#else
        piece.word[i] = ws_store(v[2 * i]) | (uint32_t)ws_store(v[2 * i + 1]) << 16;
#endif
    }
    return piece;
}
/* Marked to be evicted last: what is written to y then takes the place of other results, not of rows that are on their way. An H200
   reads and writes 16384 rows of 8192 columns in 124.5 us so, in 128.5 without; where all fits into the L2 cache nothing changes. */
__device__ Piece load_to_stay(const Piece *from) {
    uint64_t policy;
    Piece piece;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(piece.word[0]), "=r"(piece.word[1]), "=r"(piece.word[2]), "=r"(piece.word[3]) : "l"(from), "l"(policy));
    return piece;
}
/* Lets the compiler unpack a piece anew: unpacked from one use to the next, it would take twice the registers. */
__device__ void keep_packed(Piece &p) { asm("" : "+r"(p.word[0]), "+r"(p.word[1]), "+r"(p.word[2]), "+r"(p.word[3])); }

__device__ float sum_of_squares(const Piece &piece) {
    float v[VEC], sum = 0;
    unpack(v, piece);
#pragma unroll
    for (int i = 0; i < VEC; i++) sum = fmaf(v[i], v[i], sum);
    return sum;
}
__device__ Piece scaled(const Piece &piece, const Piece &weight, float scale) {
    float v[VEC], w[VEC];
    unpack(v, piece), unpack(w, weight);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = v[i] * scale * w[i];
    return pack(v);
}

__device__ float sum_over_warp(float value, int lanes) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        if (step < lanes) value += __shfl_xor_sync(0xffffffff, value, step);
    return value;
}
/* The factor of a row whose `lanes` threads have these parts of its sum of squares: the same bits in each of them. */
__device__ float scale_of_row(float sum, int lanes, int64_t cols, float eps) {
    __shared__ float of_warp[32];
    sum = sum_over_warp(sum, lanes);
    if (lanes > 32) {
        const int warps = lanes / 32, lane = threadIdx.x % 32, first = threadIdx.y * warps;
        if (lane == 0) of_warp[first + threadIdx.x / 32] = sum;
        __syncthreads();
        sum = sum_over_warp(lane < warps ? of_warp[first + lane] : 0.0f, 32);
    }
    return 1.0f / sqrtf(sum / (float)cols + eps);
}

extern "C" __global__ void __launch_bounds__(BOUND, 1024 / BOUND)
aligned(const T *x, const T *__restrict__ weight, T *__restrict__ y, int64_t rows, int64_t cols, float eps) {
    ws_next_may_begin(); /* In a pass of a model blocks come before the launch in front has ended. What it wrote is loaded in order: x is not __restrict__. */
    ws_wait_for_previous();
    constexpr bool EARLY = EXACT <= 4; /* of more weights the registers have no room */
    const int lane = threadIdx.x, lanes = blockDim.x, pieces = (int)cols / VEC;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int have = row < rows ? pieces : 0; /* the others still take part in the barrier */
    const Piece *const from = (const Piece *)(x + row * cols), *const weights = (const Piece *)weight;
    Piece *const to = (Piece *)(y + row * cols);

    Piece held[EXACT], by[EXACT];
#pragma unroll
    for (int i = 0; i < EXACT; i++) {
        held[i] = {};
        if (lane + i * lanes < have) held[i] = load_to_stay(from + lane + i * lanes);
    }
#pragma unroll
    for (int i = 0; i < EXACT; i++)
        if (EARLY && lane + i * lanes < have) by[i] = weights[lane + i * lanes];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < EXACT; i++) sum += sum_of_squares(held[i]);
    const float scale = scale_of_row(sum, lanes, cols, eps);
#pragma unroll
    for (int i = 0; i < EXACT; i++) {
        keep_packed(held[i]);
        if (lane + i * lanes >= have) continue;
        if (!EARLY) by[i] = weights[lane + i * lanes];
        to[lane + i * lanes] = scaled(held[i], by[i], scale);
    }
}

/* Rows of any length start at any address: the elements before the first and after the last aligned piece, at most 2 VEC - 2 of
   them, are taken one by one. What is beyond HELD pieces a thread is read twice. */
extern "C" __global__ void __launch_bounds__(1024)
ragged(const T *x, const T *__restrict__ weight, T *__restrict__ y, int64_t rows, int64_t cols, float eps) {
    ws_next_may_begin();
    ws_wait_for_previous();
    const int lane = threadIdx.x, lanes = blockDim.x;
    const int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const bool live = row < rows;
    if (live) x += row * cols, y += row * cols;
    const int misaligned = (int)((size_t)x % 16 / sizeof(T));
    const int64_t before = min((int64_t)(misaligned ? VEC - misaligned : 0), cols);
    const int64_t pieces = live ? (cols - before) / VEC : 0;
    const int singles = live ? (int)(cols - pieces * VEC) : 0;
    const Piece *const from = (const Piece *)(x + before);
    Piece *const to = (Piece *)(y + before);

    constexpr int KEPT = HELD < 4 ? HELD : 4;
    Piece held[KEPT];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        held[i] = {};
        if (lane + i * lanes < pieces) held[i] = from[lane + i * lanes];
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++) sum += sum_of_squares(held[i]);
#pragma unroll 1
    for (int64_t at = lane + KEPT * lanes; at < pieces; at += lanes) sum += sum_of_squares(from[at]);
    for (int i = lane; i < singles; i += lanes) {
        const float v = ws_load(x[i < before ? i : i + pieces * VEC]);
        sum += v * v;
    }
    const float scale = scale_of_row(sum, lanes, cols, eps);
    auto store = [&](int64_t at, const Piece &piece) {
        float v[VEC];
        unpack(v, piece);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = v[i] * scale * ws_load(weight[before + at * VEC + i]);
        to[at] = pack(v);
    };
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        keep_packed(held[i]);
        if (lane + i * lanes < pieces) store(lane + i * lanes, held[i]);
    }
#pragma unroll 1
    for (int64_t at = lane + KEPT * lanes; at < pieces; at += lanes) store(at, from[at]);
    for (int i = lane; i < singles; i += lanes) {
        const int64_t j = i < before ? i : i + pieces * VEC;
        y[j] = ws_store(ws_load(x[j]) * scale * ws_load(weight[j]));
    }
}
