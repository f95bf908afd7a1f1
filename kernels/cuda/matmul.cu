/*---
op = "matmul"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
specialize = ["trans_b"]
[tune]
BM      = { value = 128, choices = [64, 128] }    # rows of c in a block's tile
BN      = { value = 256, choices = [128, 256] }   # its columns
K_BYTES = { value = 128, choices = [64, 128] }    # bytes along k of a row of a that one stage holds
WARP_M  = { value = 64,  choices = [32, 64] }     # rows of c in a warp's tile
WARP_N  = { value = 64,  choices = [32, 64] }     # its columns
WARPS_K = { value = 1,   choices = [1] }          # warps that share a tile, each with its part of k
DEPTH   = { value = 4,   choices = [3, 4] }       # stages in flight, if shared memory suffices
GROUP   = { value = 8,   choices = [4, 8, 16] }   # rows of tiles that run together, so that they find b in the L2 cache
[let]
# Products of one a that are computed together: as many matrices b, c and biases, each where it likes. The plan of the operation itself has one.
PARTS       = "1"
# Of a product that is wider than others so many matrices of N columns, side by side: products, and `batch` in all.
SPAN        = "1"
SPAN_1      = "1"
SPAN_2      = "1"
# What becomes of each element of c at last, in a region of a model: 1 gelu, 2 gelu by tanh, 3 silu, 4 relu.
ACT         = "0"
VEC         = "16 / dtype_bytes"
BK          = "K_BYTES / dtype_bytes"
WARPS_MN    = "BM / WARP_M * (BN / WARP_N)"
THREADS     = "WARPS_MN * WARPS_K * 32"
STAGE_BYTES = "(BM + BN) * K_BYTES"
RESULTS     = "WARPS_K * BM * (BN + 8) * 4"
# No tile or slice reaches beyond the matrices, and rows are aligned. Where tiles are small it is asked as the kernel runs:
# one compilation less.
PLAIN       = "BM >= 64 && K % BK == 0 && M % BM == 0 && N % BN == 0"
STAGES      = "max(2, min(DEPTH, SMEM_MAX / STAGE_BYTES))"
[[variant]]    # few rows (decoding): all the time goes into reading b
when = "M <= 16"
tune = { BM = 16, BN = 32, K_BYTES = 512, WARP_M = 16, WARP_N = 32, WARPS_K = 8, DEPTH = 4 }
[[variant]]    # too few large tiles for all multiprocessors
when = "batch * ceil_div(M, 128) * ceil_div(N, 256) * 2 <= SMS"
tune = { BM = 64, BN = 64, K_BYTES = 128, WARP_M = 64, WARP_N = 32, WARPS_K = 2, DEPTH = 4 }
[[variant]]    # registers for f32, or shared memory, do not suffice for the larger tile
when = "dtype_bytes == 4 || SMEM_MAX < 140000"
tune = { BM = 128, BN = 128, K_BYTES = 128, WARP_M = 64, WARP_N = 32, DEPTH = 3 }
[[launch]]
kernel = "matmul"
grid   = ["batch * ceil_div(M, BM) * ceil_div(N, BN)"]
block  = ["THREADS"]
shared = "max(STAGES * STAGE_BYTES, RESULTS)"
args   = ["a", "b", "bias", "c", "batch", "M", "N", "K", "has_bias"]
---*/

/* A block computes a BM x BN tile of c. Slices of a and b, BK terms deep, come through a ring of STAGES stages in shared
   memory by cp.async, so that the next ones travel while one is multiplied. Each warp has a WARP_M x WARP_N part of the
   tile in registers. 16-bit types are multiplied by tensor cores (mma.sync) and added in single precision, f32 by fused
   multiply-adds. */

#include "ws/ampere.cuh"

using namespace ws;

/* What each of PARTS products has for itself comes as so many arguments: all of them, and that of the product which a matrix of N columns belongs to. */
#if PARTS == 1
#define EACH(type, name) type name
#define OF(matrix, name) name
#elif PARTS == 2
#define EACH(type, name) type name, type name##_1
#define OF(matrix, name) (product_of(matrix) == 0 ? name : name##_1)
#else
#define EACH(type, name) type name, type name##_1, type name##_2
#define OF(matrix, name) (product_of(matrix) == 0 ? name : product_of(matrix) == 1 ? name##_1 : name##_2)
#endif
constexpr bool MIXED = SPAN != 1 || SPAN_1 != 1 || SPAN_2 != 1; /* products of several widths */

__device__ int product_of(int64_t matrix) {
    return PARTS == 1 ? 0 : !MIXED ? (int)matrix : (matrix >= SPAN) + (PARTS > 2 && matrix >= SPAN + SPAN_1);
}
/* Its number among the matrices in tensors b and c: one behind the other, or those of a product side by side. */
__device__ int64_t within(int64_t matrix) {
    const int product = product_of(matrix);
    return PARTS == 1 ? matrix : !MIXED ? 0 : matrix - (product == 0 ? 0 : product == 1 ? SPAN : SPAN + SPAN_1);
}
/* Columns that rows of c have, and of b where it is not transposed. */
__device__ int64_t width_of(int64_t matrix, int64_t N) {
    const int product = product_of(matrix);
    return !MIXED ? N : N * (product == 0 ? SPAN : product == 1 ? SPAN_1 : SPAN_2);
}
/* Elements of c before it; of its bias; and matrices of a. */
__device__ int64_t c_before(int64_t matrix, int64_t M, int64_t N) { return within(matrix) * (PARTS > 1 ? N : M * N); }
__device__ int64_t b_before(int64_t matrix, int64_t N, int64_t K) { return within(matrix) * (PARTS > 1 && !WS_TRANS_B ? N : K * N); }
__device__ int64_t bias_before(int64_t matrix, int64_t N) { return PARTS > 1 ? within(matrix) * N : 0; }
__device__ int64_t of_a(int64_t matrix) { return PARTS > 1 ? 0 : matrix; }

__device__ float activated(float v) {
#if ACT == 1
    return 0.5f * v * (1.0f + erff(v * 0.70710678f));
#elif ACT == 2
    return 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
#elif ACT == 3
    return v / (1.0f + expf(-v));
#elif ACT == 4
    return v <= 0.0f ? 0.0f : v; /* NaN stays what it is */
#else
    return v;
#endif
}

constexpr int K_STEP = WS_DTYPE_BYTES == 4 ? 4 : 16; /* terms multiplied in a step */
constexpr int STEPS = BK / WARPS_K / K_STEP;         /* that a warp takes through a stage */
constexpr int SHARES = STEPS - 1;                    /* in which a stage is sent for, one a step */
constexpr int UNROLL = PLAIN && WS_DTYPE_BYTES == 2 ? STEPS : 2; /* more gains only there, and takes long to compile */
static_assert(STEPS % 2 == 0, "the main loop loads one step ahead, in turn into two sets of fragments");

/* A thread's part in the copying of tiles of ROWS x CHUNKS chunks: one column of chunks, every STEP-th row. */
template <int ROWS, int CHUNKS, bool TERMS_ARE_ROWS> struct TileCopy {
    static constexpr int STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread copies one column of chunks");
    const T *from;         /* its first chunk */
    int64_t stride;        /* elements from one row of the matrix to the next */
    int64_t rows, columns; /* that the matrix has from the tile's first row, and from this column of chunks, on */
    int inside;            /* how many rows of the tile, from its first on, are in the matrix, if this column of chunks is */

    __device__ TileCopy(const T *tile, int64_t stride, int64_t rows, int64_t columns)
        : from(tile + threadIdx.x / CHUNKS * stride + threadIdx.x % CHUNKS * VEC), stride(stride), rows(rows),
          columns(columns - threadIdx.x % CHUNKS * VEC),
          inside((this->columns < VEC ? 0 : rows < ROWS ? (int)rows : ROWS) - (int)threadIdx.x / CHUNKS) {}

    /* Whether the terms are all in the matrix, and its rows aligned. */
    __device__ bool is_plain() const {
        return PLAIN || (columns >= VEC && (rows >= ROWS || !TERMS_ARE_ROWS) && stride * sizeof(T) % 16 == 0);
    }
    /* Starts one of SHARES shares of such a tile. Rows and columns of c that do not exist stay as they are in shared memory:
       what they are multiplied to is never stored. */
    __device__ void start(uint4 *tile, int share) const {
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
#pragma unroll
        for (int i = share * STEP; i < ROWS; i += SHARES * STEP)
            if ((PLAIN && ROWS % STEP == 0) || i < inside) {
                /* The same, but the first is cheaper: swizzles repeat every 8 rows. */
                const int at = STEP % 8 == 0 ? place<CHUNKS>(first, chunk) + i * CHUNKS : place<CHUNKS>(first + i, chunk);
                copy_async<16>(tile + at, from + i * stride);
            }
    }
    /* The same of any tile; what is not in the matrix is zero. */
    __device__ void start_any(uint4 *tile, int share) const {
        const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
        const int have = columns >= VEC ? VEC : columns > 0 ? (int)columns : 0;
#pragma unroll 1
        for (int i = share * STEP; first + i < ROWS; i += SHARES * STEP)
            copy_part(tile + place<CHUNKS>(first + i, chunk), from + i * stride, first + i < rows ? have : 0,
                      (int)(stride * sizeof(T) % 16));
    }
    __device__ void stop() { rows = inside = 0; }
    __device__ void move_right(int by) { from += by, columns -= by; }
    __device__ void move_down(int by) { from += by * stride, rows -= by; }
};

/* b as it is stored: rows of BK terms of one column of c, or rows of BN columns for one term. */
constexpr int A_CHUNKS = BK / VEC, B_CHUNKS = WS_TRANS_B ? BK / VEC : BN / VEC;

#if WS_F32

constexpr int TM = WARP_M / 8, TN = WARP_N / 4;

/* A warp's lanes stand 8 x 4 over its tile. Sum i * TN + j of a lane is at this row and column of it. */
__device__ int row_of(int sum) { return sum / TN * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int sum) {
    const int j = sum % TN, lane = threadIdx.x % 4;
    return WS_TRANS_B ? j * 4 + lane : j / 4 * 16 + lane * 4 + j % 4;
}

/* What a lane needs for 4 terms of its sums. */
struct Fragments {
    float a[TM][4], b[TN][4];

    __device__ void load(const uint4 *a_tile, const uint4 *b_tile, int row, int column, int step) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; i++)
            *(uint4 *)a[i] = a_tile[place<A_CHUNKS>(row + i * 8 + lane / 4, step)];
#if WS_TRANS_B
#pragma unroll
        for (int j = 0; j < TN; j++)
            *(uint4 *)b[j] = b_tile[place<B_CHUNKS>(column + j * 4 + lane % 4, step)];
#else
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int j = 0; j < TN; j += 4) {
                const uint4 four = b_tile[place<B_CHUNKS>(step * 4 + k, (column + j * 4) / 4 + lane % 4)];
                b[j][k] = __uint_as_float(four.x), b[j + 1][k] = __uint_as_float(four.y);
                b[j + 2][k] = __uint_as_float(four.z), b[j + 3][k] = __uint_as_float(four.w);
            }
#endif
    }

    __device__ void multiply(float *sums) const {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < TM; i++)
#pragma unroll
                for (int j = 0; j < TN; j++) sums[i * TN + j] = fmaf(a[i][k], b[j][k], sums[i * TN + j]);
    }
};

#else

constexpr int TM = WARP_M / 16, TN = WARP_N / 8;

/* Tensor cores deal the 16 x 8 sums of a product out to the lanes in four: two neighbours, and two neighbours 8 rows below. */
__device__ int row_of(int sum) { return sum / (4 * TN) * 16 + sum % 4 / 2 * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int sum) { return sum / 4 % TN * 8 + threadIdx.x % 4 * 2 + sum % 2; }

/* What a warp needs for 16 terms of its sums. */
struct Fragments {
    uint32_t a[TM][4], b[TN][2];

    __device__ void load(const uint4 *a_tile, const uint4 *b_tile, int row, int column, int step) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; i++)
            load_matrices(a[i], a_tile + place<A_CHUNKS>(row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
#if WS_TRANS_B
            const int n = column + j * 8 + lane / 16 * 8 + lane % 8;
            load_matrices(b[j], b_tile + place<B_CHUNKS>(n, step * 2 + lane / 8 % 2));
#else
            const int k = step * 16 + lane % 16;
            load_matrices_transposed(b[j], b_tile + place<B_CHUNKS>(k, column / 8 + j + lane / 16));
#endif
        }
    }

    __device__ void multiply(float *sums) const {
#pragma unroll
        for (int i = 0; i < TM; i++)
#pragma unroll
            for (int j = 0; j < TN; j++) ws::multiply(sums + (i * TN + j) * 4, a[i], b[j]);
    }
};

#endif

constexpr int SUMS = WARP_M * WARP_N / 32; /* of each lane */

extern "C" __global__ void __launch_bounds__(THREADS)
matmul(const T *__restrict__ a, EACH(const T *__restrict__, b_all), EACH(const T *__restrict__, bias_all), EACH(T *__restrict__, c_all), int64_t batch,
       int64_t M, int64_t N, int64_t K, int64_t has_bias) {
    extern __shared__ uint4 stages[];
    constexpr int STAGE = STAGE_BYTES / 16, B_AT = BM * A_CHUNKS;

    /* Tiles in groups of GROUP rows of them, down the columns of a group. */
    const int64_t tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int64_t matrix = blockIdx.x / (tiles_m * tiles_n), tile = blockIdx.x % (tiles_m * tiles_n);
    const int64_t group = tile / (GROUP * tiles_n) * GROUP, within = tile % (GROUP * tiles_n);
    const int64_t height = min((int64_t)GROUP, tiles_m - group);
    const int64_t i0 = (group + within % height) * BM, j0 = within / height * BN;
    const int64_t wide = width_of(matrix, N); /* elements from one row of c to the next */
    a += (of_a(matrix) * M + i0) * K;
    const T *const b = OF(matrix, b_all) + b_before(matrix, N, K) + (WS_TRANS_B ? j0 * K : j0), *const bias = OF(matrix, bias_all) + bias_before(matrix, N);
    T *const c = OF(matrix, c_all) + c_before(matrix, M, N) + i0 * wide + j0;

    const int warp = threadIdx.x / 32, part = warp / WARPS_MN;
    const int row = warp % WARPS_MN / (BN / WARP_N) * WARP_M, column = warp % (BN / WARP_N) * WARP_N;

    const int slices = (int)((K + BK - 1) / BK);
    TileCopy<BM, A_CHUNKS, false> copy_a(a, K, M - i0, K);
#if WS_TRANS_B
    TileCopy<BN, B_CHUNKS, false> copy_b(b, K, N - j0, K);
#else
    TileCopy<BK, B_CHUNKS, true> copy_b(b, wide, K, N - j0);
#endif
    uint4 *filling = stages, *const ring_end = stages + STAGES * STAGE;
    int to_copy = slices;
    auto start_copy = [&](int share) {
        if (copy_a.is_plain()) copy_a.start(filling, share);
        else copy_a.start_any(filling, share);
        if (copy_b.is_plain()) copy_b.start(filling + B_AT, share);
        else copy_b.start_any(filling + B_AT, share);
    };
    auto next_copy = [&] {
        end_of_copies();
        copy_a.move_right(BK);
        if (WS_TRANS_B) copy_b.move_right(BK);
        else copy_b.move_down(BK);
        filling = filling + STAGE == ring_end ? stages : filling + STAGE;
        if (--to_copy == 0) copy_a.stop(), copy_b.stop();
    };
#pragma unroll 1
    for (int slice = 0; slice < STAGES - 1; slice++) {
        for (int share = 0; share < SHARES; share++)
            if (!PLAIN || slice < slices) start_copy(share);
        next_copy();
    }
    wait_for_copies<STAGES - 2>();
    __syncthreads();

    /* While one step is multiplied, the fragments of the next are loaded (at a slice's last step, those of the next slice),
       and a share of the slice after those in flight is sent for. */
    float sums[SUMS] = {};
    Fragments fragments[2];
    fragments[0].load(stages, stages + B_AT, row, column, part * STEPS);
    const uint4 *reading = stages;
    for (int slice = 0; slice < slices; slice++) {
#pragma unroll UNROLL
        for (int step = 0; step < STEPS; step++) {
            if (step == STEPS - 1) {
                wait_for_copies<STAGES - 2>();
                __syncthreads(); /* the next slice is there for all, and nobody reads this one any more */
                reading = reading + STAGE == ring_end ? stages : reading + STAGE;
            }
            fragments[(step + 1) % 2].load(reading, reading + B_AT, row, column, part * STEPS + (step + 1) % STEPS);
            if (step < SHARES && (!PLAIN || slice + STAGES - 1 < slices)) start_copy(step);
            if (step == SHARES - 1) next_copy();
            fragments[step % 2].multiply(sums);
        }
    }

    /* Through shared memory to c, in whole pieces of its rows; parts of k are added in their order. */
    wait_for_copies<0>();
    __syncthreads();
    constexpr int WIDTH = BN + 8; /* of a row there: 8 words more keep a warp's 8 rows in different banks */
    float *results = (float *)stages;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        results[(part * BM + row + row_of(i)) * WIDTH + column + column_of(i)] = sums[i];
    __syncthreads();
    auto finished = [&](int i, int j) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < WARPS_K; k++) sum += results[(k * BM + i) * WIDTH + j];
        if (has_bias && j < N - j0) sum += ws_load(bias[j0 + j]);
        return ws_store(activated(sum));
    };
    const int rows_here = (int)min((int64_t)BM, M - i0), width = (int)min((int64_t)BN, N - j0);
    if (N % VEC != 0) { /* rows of c begin anywhere: a warp writes a row's neighbouring words at once */
        constexpr int PER = 4 / sizeof(T);
        for (int i = warp; i < rows_here; i += THREADS / 32) {
            T *const to = c + i * wide;
            for (int j = threadIdx.x % 32 * PER - (int)((uintptr_t)to / sizeof(T) % PER); j < width; j += 32 * PER) {
                __align__(4) T out[PER];
#pragma unroll
                for (int e = 0; e < PER; e++)
                    if (j + e >= 0 && j + e < width) out[e] = finished(i, j + e);
                if (j >= 0 && j + PER <= width) *(uint32_t *)(to + j) = *(uint32_t *)out;
                else
#pragma unroll
                    for (int e = 0; e < PER; e++)
                        if (j + e >= 0 && j + e < width) to[j + e] = out[e];
            }
        }
        return;
    }
    for (int piece = threadIdx.x; piece < BM * BN / VEC; piece += THREADS) {
        const int i = piece / (BN / VEC), j = piece % (BN / VEC) * VEC;
        if (i >= rows_here || j >= width) continue;
        __align__(16) T out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; e++) out[e] = finished(i, j + e);
        *(uint4 *)(c + i * wide + j) = *(uint4 *)out;
    }
}
