/*---
op = "fused_mlp"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
[tune]
BM      = { value = 128, choices = [64, 128] }    # rows of a product in a block's tile
BN      = { value = 256, choices = [128, 256] }   # its columns; in the first launch half of them gate, half up
K_BYTES = { value = 128, choices = [64, 128] }    # bytes along the sum of a row that one stage holds
WARP_M  = { value = 64,  choices = [32, 64] }     # rows in a warp's tile
WARP_N  = { value = 64,  choices = [32, 64] }     # its columns
WARPS_K = { value = 1,   choices = [1] }          # warps that share a tile, each with its part of the sum
DEPTH   = { value = 4,   choices = [3, 4] }       # stages in flight, if shared memory suffices
GROUP   = { value = 8,   choices = [4, 8, 16] }   # rows of tiles that run together, so that they find weights in the L2 cache
[let]
VEC         = "16 / dtype_bytes"
BK          = "K_BYTES / dtype_bytes"
WARPS_MN    = "BM / WARP_M * (BN / WARP_N)"
THREADS     = "WARPS_MN * WARPS_K * 32"
STAGE_BYTES = "(BM + BN) * K_BYTES"
RESULTS     = "WARPS_K * BM * (BN + 8) * 4"
# No tile or slice reaches beyond the matrices, and rows are aligned. Where tiles are small it is asked as the kernel runs:
# one compilation less.
PLAIN       = "BM >= 64 && D % BK == 0 && H % BK == 0 && B % BM == 0 && D % BN == 0 && H % (BN / 2) == 0"
STAGES      = "max(2, min(DEPTH, SMEM_MAX / STAGE_BYTES))"
[[variant]]    # few rows (decoding): all the time goes into reading weights
when = "B <= 16"
tune = { BM = 16, BN = 16, K_BYTES = 256, WARP_M = 16, WARP_N = 16, WARPS_K = 4, DEPTH = 4 }
[[variant]]    # too few large tiles for all multiprocessors
when = "ceil_div(B, 128) * ceil_div(min(D, 2 * H), 256) * 2 <= SMS"
tune = { BM = 64, BN = 64, K_BYTES = 128, WARP_M = 32, WARP_N = 32, WARPS_K = 1, DEPTH = 4 }
[[variant]]    # registers for f32, or shared memory, do not suffice for the larger tile
when = "dtype_bytes == 4 || SMEM_MAX < 140000"
tune = { BM = 128, BN = 128, K_BYTES = 128, WARP_M = 64, WARP_N = 32, DEPTH = 3 }
[[scratch]]
name = "hidden"
dtype = "T"
shape = ["B", "H"]
[[launch]]
kernel = "gate_and_up"
grid   = ["ceil_div(B, BM) * ceil_div(H, BN / 2)"]
block  = ["THREADS"]
shared = "max(STAGES * STAGE_BYTES, RESULTS)"
args   = ["x", "w_gate", "w_up", "hidden", "B", "D", "H"]
[[launch]]
kernel = "down"
grid   = ["ceil_div(B, BM) * ceil_div(D, BN)"]
block  = ["THREADS"]
shared = "max(STAGES * STAGE_BYTES, RESULTS)"
args   = ["hidden", "w_down", "y", "B", "D", "H"]
---*/

/* Two launches of one product: hidden = silu(x w_gate^T) * (x w_up^T), then y = hidden w_down^T.
   A block computes a BM x BN tile. Slices of the operands, BK terms deep, come through a ring of STAGES stages in shared
   memory by cp.async, so that the next ones travel while one is multiplied. Each warp has a WARP_M x WARP_N part of the
   tile in registers. 16-bit types are multiplied by tensor cores (mma.sync) and added in single precision, f32 by fused
   multiply-adds. A tile of the first launch has BN / 2 columns of gate and the same BN / 2 of up side by side. */

#include "ws/ampere.cuh"

using namespace ws;

constexpr int K_STEP = WS_DTYPE_BYTES == 4 ? 4 : 16; /* terms multiplied in a step */
constexpr int STEPS = BK / WARPS_K / K_STEP;         /* that a warp takes through a stage */
constexpr int SHARES = STEPS - 1;                    /* in which a stage is sent for, one a step */
constexpr int UNROLL = PLAIN && WS_DTYPE_BYTES == 2 ? STEPS : 2; /* more gains only there, and takes long to compile */
static_assert(STEPS % 2 == 0, "the main loop loads one step ahead, in turn into two sets of fragments");

constexpr int CHUNKS = BK / VEC; /* of 16 bytes, in a row of a tile */

/* A thread's part in the copying of tiles of ROWS rows: one column of chunks, every STEP-th row. */
template <int ROWS> struct TileCopy {
    static constexpr int STEP = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0, "a thread copies one column of chunks");
    const T *from;         /* its first chunk */
    int64_t stride;        /* elements from one row of the matrix to the next */
    int64_t rows, columns; /* that the matrix has from the tile's first row, and from this column of chunks, on */
    int inside;            /* how many rows of the tile, from its first on, are in the matrix */

    __device__ TileCopy(const T *tile, int64_t stride, int64_t rows, int64_t columns)
        : from(tile + threadIdx.x / CHUNKS * stride + threadIdx.x % CHUNKS * VEC), stride(stride), rows(rows),
          columns(columns - threadIdx.x % CHUNKS * VEC), inside((rows < ROWS ? (int)rows : ROWS) - (int)threadIdx.x / CHUNKS) {}

    /* Whether the terms are all in the matrix, and its rows aligned. */
    __device__ bool is_plain() const { return PLAIN || (columns >= VEC && stride * sizeof(T) % 16 == 0); }
    /* Starts one of SHARES shares of such a tile. Rows that do not exist stay as they are in shared memory: what they are
       multiplied to is never stored. */
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
    __device__ void next() { from += BK, columns -= BK; }
};

#if WS_F32

constexpr int TM = WARP_M / 8, TN = WARP_N / 4;

/* A warp's lanes stand 8 x 4 over its tile. Sum i * TN + j of a lane is at this row and column of it. */
__device__ int row_of(int sum) { return sum / TN * 8 + threadIdx.x % 32 / 4; }
__device__ int column_of(int sum) {
    return sum % TN * 4 + threadIdx.x % 4;
}

/* What a lane needs for 4 terms of its sums. */
struct Fragments {
    float a[TM][4], b[TN][4];

    __device__ void load(const uint4 *a_tile, const uint4 *b_tile, int row, int column, int step) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; i++)
            *(uint4 *)a[i] = a_tile[place<CHUNKS>(row + i * 8 + lane / 4, step)];
#pragma unroll
        for (int j = 0; j < TN; j++)
            *(uint4 *)b[j] = b_tile[place<CHUNKS>(column + j * 4 + lane % 4, step)];
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
            load_matrices(a[i], a_tile + place<CHUNKS>(row + i * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            const int n = column + j * 8 + lane / 16 * 8 + lane % 8;
            load_matrices(b[j], b_tile + place<CHUNKS>(n, step * 2 + lane / 8 % 2));
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

/* Adds up a tile's products and leaves them in shared memory, a sum of WARPS_K parts: part k of (i, j) is at
   [(k * BM + i) * WIDTH + j]. `a` points at the first row, `b` at the first row of the tile's columns; rows are `terms`
   long. With GATED, the second half of the columns is taken from `b2`. */
constexpr int WIDTH = BN + 8; /* 8 words more keep a warp's 8 rows in different banks */

template <bool GATED>
__device__ float *multiply_tile(const T *a, int64_t rows, const T *b, const T *b2, int64_t columns, int64_t terms) {
    extern __shared__ uint4 stages[];
    constexpr int STAGE = STAGE_BYTES / 16, B_AT = BM * CHUNKS;
    const int warp = threadIdx.x / 32, part = warp / WARPS_MN;
    const int row = warp % WARPS_MN / (BN / WARP_N) * WARP_M, column = warp % (BN / WARP_N) * WARP_N;

    const int slices = (int)((terms + BK - 1) / BK);
    TileCopy<BM> copy_a(a, terms, rows, terms);
    TileCopy<GATED ? BN / 2 : BN> copy_b(b, terms, columns, terms), copy_b2(b2, terms, columns, terms);
    uint4 *filling = stages, *const ring_end = stages + STAGES * STAGE;
    int to_copy = slices;
    auto start_copy = [&](int share) {
        if (copy_a.is_plain()) copy_a.start(filling, share);
        else copy_a.start_any(filling, share);
        if (copy_b.is_plain()) {
            copy_b.start(filling + B_AT, share);
            if (GATED) copy_b2.start(filling + B_AT + BN / 2 * CHUNKS, share);
        } else {
            copy_b.start_any(filling + B_AT, share);
            if (GATED) copy_b2.start_any(filling + B_AT + BN / 2 * CHUNKS, share);
        }
    };
    auto next_copy = [&] {
        end_of_copies();
        copy_a.next(), copy_b.next(), copy_b2.next();
        filling = filling + STAGE == ring_end ? stages : filling + STAGE;
        if (--to_copy == 0) copy_a.stop(), copy_b.stop(), copy_b2.stop();
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

    wait_for_copies<0>();
    __syncthreads();
    float *results = (float *)stages;
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        results[(part * BM + row + row_of(i)) * WIDTH + column + column_of(i)] = sums[i];
    __syncthreads();
    return results;
}

__device__ float total(const float *result) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < WARPS_K; k++) sum += result[k * BM * WIDTH];
    return sum;
}

/* Stores the first `have` of VEC elements, all at once where rows of `c` are aligned. */
__device__ void store_piece(T *c, const T *piece, int64_t have, bool aligned) {
    if (aligned) *(uint4 *)c = *(const uint4 *)piece;
    else
#pragma unroll
        for (int e = 0; e < VEC; e++)
            if (e < have) c[e] = piece[e];
}

/* Which tile this block computes: in groups of GROUP rows of tiles, down the columns of a group. */
__device__ void choose_tile(int64_t tiles_m, int64_t tiles_n, int64_t &i, int64_t &j) {
    const int64_t group = blockIdx.x / (GROUP * tiles_n) * GROUP, within = blockIdx.x % (GROUP * tiles_n);
    const int64_t height = min((int64_t)GROUP, tiles_m - group);
    i = group + within % height;
    j = within / height;
}

/* A product of two sums can exceed the largest half, 65504, where y does not: halves are kept at a quarter. */
#if WS_F16
constexpr float SCALE = 0.25f;
#else
constexpr float SCALE = 1.0f;
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
gate_and_up(const T *__restrict__ x, const T *__restrict__ w_gate, const T *__restrict__ w_up, T *__restrict__ hidden,
            int64_t B, int64_t D, int64_t H) {
    constexpr int COLUMNS = BN / 2;
    int64_t i0, j0;
    choose_tile((B + BM - 1) / BM, (H + COLUMNS - 1) / COLUMNS, i0, j0);
    i0 *= BM, j0 *= COLUMNS;
    const float *results = multiply_tile<true>(x + i0 * D, B - i0, w_gate + j0 * D, w_up + j0 * D, H - j0, D);
    for (int piece = threadIdx.x; piece < BM * COLUMNS / VEC; piece += THREADS) {
        const int i = piece / (COLUMNS / VEC), j = piece % (COLUMNS / VEC) * VEC;
        if (i >= B - i0 || j >= H - j0) continue;
        __align__(16) T out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; e++) {
            const float gate = total(results + i * WIDTH + j + e), up = total(results + i * WIDTH + COLUMNS + j + e);
            out[e] = ws_store(gate / (1.0f + expf(-gate)) * up * SCALE);
        }
        store_piece(hidden + (i0 + i) * H + j0 + j, out, H - j0 - j, H % VEC == 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
down(const T *__restrict__ hidden, const T *__restrict__ w_down, T *__restrict__ y, int64_t B, int64_t D, int64_t H) {
    int64_t i0, j0;
    choose_tile((B + BM - 1) / BM, (D + BN - 1) / BN, i0, j0);
    i0 *= BM, j0 *= BN;
    const float *results = multiply_tile<false>(hidden + i0 * H, B - i0, w_down + j0 * H, nullptr, D - j0, H);
    for (int piece = threadIdx.x; piece < BM * BN / VEC; piece += THREADS) {
        const int i = piece / (BN / VEC), j = piece % (BN / VEC) * VEC;
        if (i >= B - i0 || j >= D - j0) continue;
        __align__(16) T out[VEC];
#pragma unroll
        for (int e = 0; e < VEC; e++) out[e] = ws_store(total(results + i * WIDTH + j + e) / SCALE);
        store_piece(y + (i0 + i) * D + j0 + j, out, D - j0 - j, D % VEC == 0);
    }
}
