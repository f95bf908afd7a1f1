/*---
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
arch = ["sm_80+"]
domain = "D <= 256"                                    # a row of the output is kept in registers
[tune]
WARPS    = { value = 4,  choices = [2, 4, 8] }         # warps in a block
STRIPS   = { value = 2,  choices = [1, 2] }            # strips of 16 queries that a warp works on
BLOCK_KV = { value = 64, choices = [32, 64, 128] }     # keys in a tile
BLOCKS   = { value = 1,  choices = [1, 2] }            # blocks that registers must suffice for on a multiprocessor
[let]
VEC     = "16 / dtype_bytes"
D_PAD   = "ceil_div(D, 16) * 16"
BLOCK_Q = "WARPS * STRIPS * 16"
STRIDE  = "D_PAD + VEC"                                # from one row to the next in shared memory
SPLITS  = "B * H * ceil_div(S_q, BLOCK_Q) * 2 <= SMS && S_kv >= 512 ? (S_q <= 16 ? 16 : 8) : 1"
# Rows of q, of k and of v may be parts of longer ones, as where one product gives all three. HEADS: heads of the longer row, or 0 where
# there is none; FIRST: the first of them that counts. Such rows lie as with bshd.
Q_HEADS = "0"
Q_FIRST = "0"
K_HEADS = "0"
K_FIRST = "0"
V_HEADS = "0"
V_FIRST = "0"
# q, k and v may lie otherwise than o (bshd): 1 where positions come before heads, 2 where heads do, and 0 where they lie as o. There may be several
# heads of k for one of v, where a model has written each for all queries that share it.
Q_LIES  = "0"
K_LIES  = "0"
V_LIES  = "0"
V_SHARE = "1"
# 2: weights are multiplied in two parts of 16 bits, which is as good as single precision: for a model that has them so. Rounded once they are far
# enough from that to be told.
WEIGHT_PARTS = "1"
# What is added to scores when they are scaled. BIAS = 1: an element of a tensor of the kernel's type, SEEN = 1: a number in its place where a byte is 0,
# HIDDEN: -infinity (0), the lowest of the type (1), or any other. _B, _H, _Q, _K: elements from one sequence, head, query and key to the next.
BIAS   = "0"
BIAS_B = "0"
BIAS_H = "0"
BIAS_Q = "0"
BIAS_K = "1"
SEEN   = "0"
SEEN_B = "0"
SEEN_H = "0"
SEEN_Q = "0"
SEEN_K = "1"
HIDDEN = "0"
BIAS_TENSOR = "0"
SEEN_TENSOR = "0"
[[variant]]    # long rows of f32 where shared memory is short
when = "D > 128 && dtype_bytes == 4 && (S_q <= 16 || SMEM_MAX < 133120)"
tune = { WARPS = 2, STRIPS = 1, BLOCK_KV = 32, BLOCKS = 1 }
[[variant]]    # few queries (decoding): all the time goes into reading keys and values
when = "S_q <= 16"
tune = { WARPS = 2, STRIPS = 1, BLOCK_KV = 64, BLOCKS = 1 }
[[variant]]
when = "D > 128 && dtype_bytes == 4"
tune = { WARPS = 4, STRIPS = 1, BLOCK_KV = 32, BLOCKS = 1 }
[[variant]]
when = "D > 128"
tune = { WARPS = 4, STRIPS = 1, BLOCK_KV = 64, BLOCKS = 1 }
[[variant]]
when = "dtype_bytes == 4"
tune = { WARPS = 4, STRIPS = 2, BLOCK_KV = 32, BLOCKS = 1 }
[[scratch]]    # unfinished sums: for each query and split D columns, the largest score and the sum of weights
name = "partial"
dtype = "f32"
shape = ["SPLITS > 1 ? B * H * S_q : 1", "SPLITS", "D + 2"]
[[launch]]
kernel = "attend"
grid   = ["B * H * ceil_div(S_q, BLOCK_Q) * SPLITS"]
block  = ["WARPS * 32"]
shared = "(BLOCK_Q + 2 * BLOCK_KV) * STRIDE * dtype_bytes"
args   = ["q", "k", "v", "o", "partial", "B", "H", "H_kv", "S_q", "S_kv", "D", "causal", "bshd", "scale", "BIAS_TENSOR", "SEEN_TENSOR"]
[[launch]]
kernel = "merge"
when   = "SPLITS > 1"
grid   = ["ceil_div(B * H * S_q, 4)"]
block  = ["128"]
args   = ["o", "partial", "B", "H", "S_q", "S_kv", "D", "causal", "bshd"]
---*/

/* A block has BLOCK_Q queries of one head and goes over the keys a tile at a time, with a running maximum and sum (online
   softmax: Milakov and Gimelshein 2018; FlashAttention-2: Dao 2023). Tiles of keys and values travel to shared memory by
   cp.async while the other is worked on. A warp has STRIPS strips of 16 queries: scores, weights and output stay in its
   registers. Where there are too few queries to fill the device, SPLITS blocks share the keys and `merge` adds up.

   A lane has 2 * STRIPS rows, row r being query 8 r + lane / 4 of the warp's; the 4 lanes of a quad share a row's columns.
   That is how tensor cores (mma.sync) deal out the products of 16-bit types; f32, multiplied by fused multiply-adds, does
   the same. */

#include "ws/ampere.cuh"

using namespace ws;

#define MINUS_INFINITY __int_as_float(0xff800000)

/* Heads of a row in memory. */
#define WITHIN(longer, own) (longer ? longer : own)
/* Whether positions come before heads. */
#define BSHD(lies) (lies ? lies == 1 : bshd)
/* Values lie as keys do, but for where they begin. */
#define V_AS_K (K_HEADS == V_HEADS && K_LIES == V_LIES && V_SHARE == 1)

/* What is added to the score of a key that is not seen. */
#if HIDDEN == 0
#define WHERE_HIDDEN MINUS_INFINITY
#elif HIDDEN != 1
#define WHERE_HIDDEN ((float)HIDDEN)
#elif WS_F16
#define WHERE_HIDDEN -65504.0f
#else /* what is so low takes every score in, and does not overflow when it is scaled */
#define WHERE_HIDDEN -0x1p100f
#endif
/* Where the element of a query and a key is. */
#define AT(of, b, head, query, key) ((b) * (int64_t)of##_B + (head) * (int64_t)of##_H + (query) * (int64_t)of##_Q + (key) * (int64_t)of##_K)

#if BIAS || SEEN
/* An element of the bias. What masks with the lowest number of a type is as good with one that does not overflow when it is scaled. */
__device__ float bias_of(T stored) {
    const float value = ws_load(stored);
    return value < -0x1p100f && value != MINUS_INFINITY ? -0x1p100f : value;
}
/* What is added to the score of a query and a key. */
__device__ float added_to(int64_t b, int64_t head, int64_t query, int64_t key, const T *bias, const uint8_t *seen) {
    if (SEEN && !seen[AT(SEEN, b, head, query, key)]) return WHERE_HIDDEN;
    return BIAS ? bias_of(bias[AT(BIAS, b, head, query, key)]) : 0.0f;
}
#endif

constexpr int ROWS = 2 * STRIPS, KEYS = BLOCK_KV / 4, COLUMNS = D_PAD / 4; /* of a lane: rows, keys and columns of each */

/* A piece of 16 bytes of which only the first `have` elements exist, or whose address is no multiple of 16; zeros follow. */
__device__ __noinline__ void copy_part(T *to, const T *from, int have) {
    if (have == VEC && (size_t)from % 16 == 0) *(uint4 *)to = *(const uint4 *)from;
    else
        for (int i = 0; i < VEC; i++) to[i] = i < have ? from[i] : T(0);
}

__device__ constexpr int power_of_two_from(int n) { return n <= 1 ? 1 : 2 * power_of_two_from((n + 1) / 2); }

/* Starts the copy of TILE rows, `rows` of them in the tensor and `step` elements apart there; the rest is zero. A thread
   copies one column of pieces. */
template <int TILE> __device__ void copy_rows(T *to, const T *from, int64_t rows, int64_t step, int64_t D) {
    constexpr int ACROSS = power_of_two_from(D_PAD / VEC), ROWS_AT_ONCE = WARPS * 32 / ACROSS;
    static_assert(ROWS_AT_ONCE > 0, "there are too few threads for a row");
    const int column = threadIdx.x % ACROSS * VEC, first = threadIdx.x / ACROSS;
    if (column >= D_PAD) return;
    to += first * STRIDE + column;
    from += first * step + column;
    if (rows >= TILE && D == D_PAD) {
#pragma unroll
        for (int i = 0; i < TILE; i += ROWS_AT_ONCE)
            if (TILE % ROWS_AT_ONCE == 0 || first + i < TILE)
                asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(shared_address(to + i * STRIDE)),
                             "l"(from + i * step));
    } else {
#pragma unroll 1
        for (int i = 0; first + i < TILE; i += ROWS_AT_ONCE)
            copy_part(to + i * STRIDE, from + i * step, first + i < rows ? (int)min((int64_t)VEC, D - column) : 0);
    }
}

#if WS_F32

/* Which key of a tile, or column of a row, is the lane's j-th. */
__device__ int key_of(int j) { return j * 4 + threadIdx.x % 4; }
__device__ int column_of(int j) { return j / 4 * 16 + threadIdx.x % 4 * 4 + j % 4; }

/* scores = queries keys^T; `queries` are the warp's. */
__device__ void multiply_keys(float (&scores)[ROWS][KEYS], const T *queries, const T *keys) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll 2
    for (int d = 0; d < D_PAD; d += 4) {
        float4 q[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) q[r] = *(const float4 *)(queries + (r * 8 + row) * STRIDE + d);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float4 k = *(const float4 *)(keys + key_of(j) * STRIDE + d);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                scores[r][j] = fmaf(q[r].w, k.w, fmaf(q[r].z, k.z, fmaf(q[r].y, k.y, fmaf(q[r].x, k.x, scores[r][j]))));
        }
    }
}

/* output += weights values */
__device__ void multiply_values(float (&output)[ROWS][COLUMNS], const float (&weights)[ROWS][KEYS], const T *values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEYS; j++)
#pragma unroll 1
        for (int owner = 0; owner < 4; owner++) {
            float weight[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) weight[r] = __shfl_sync(0xffffffff, weights[r][j], lane / 4 * 4 + owner);
            const T *value = values + (j * 4 + owner) * STRIDE + lane % 4 * 4;
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) {
                const float4 v = *(const float4 *)(value + c * 4);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    output[r][c] = fmaf(weight[r], v.x, output[r][c]);
                    output[r][c + 1] = fmaf(weight[r], v.y, output[r][c + 1]);
                    output[r][c + 2] = fmaf(weight[r], v.z, output[r][c + 2]);
                    output[r][c + 3] = fmaf(weight[r], v.w, output[r][c + 3]);
                }
            }
        }
}

#else

__device__ int key_of(int j) { return j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2; }
__device__ int column_of(int j) { return key_of(j); }

/* Two rows of two neighbouring sums (16 x 8 over the warp) += a (16 x 16) b (16 x 8). */
__device__ void multiply(float *upper, float *lower, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if WS_F16
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(upper[0]), "+f"(upper[1]), "+f"(lower[0]), "+f"(lower[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* scores = queries keys^T; `queries` are the warp's. */
__device__ void multiply_keys(float (&scores)[ROWS][KEYS], const T *queries, const T *keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll 4 /* of eight steps at D = 128: fewer registers are spilled than with all */
    for (int d = 0; d < D_PAD; d += 16) {
        uint32_t q[STRIPS][4];
#pragma unroll
        for (int s = 0; s < STRIPS; s++) load_matrices(q[s], queries + (s * 16 + lane % 16) * STRIDE + d + lane / 16 * 8);
#pragma unroll
        for (int j = 0; j < KEYS; j += 4) { /* 16 keys of the tile */
            uint32_t k[4];
            load_matrices(k, keys + (j * 4 + lane / 16 * 8 + lane % 8) * STRIDE + d + lane / 8 % 2 * 8);
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                multiply(scores[2 * s] + j, scores[2 * s + 1] + j, q[s], k[0], k[1]);
                multiply(scores[2 * s] + j + 2, scores[2 * s + 1] + j + 2, q[s], k[2], k[3]);
            }
        }
    }
}

/* output += weights values */
__device__ void multiply_values(float (&output)[ROWS][COLUMNS], const float (&weights)[ROWS][KEYS], const T *values) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < KEYS; j += 4) {
        uint32_t p[STRIPS][4], rest[STRIPS][4];
#pragma unroll
        for (int i = 0; i < STRIPS * 4; i++) {
            const float *const two = &weights[i / 4 * 2 + i % 2][j + i % 4 / 2 * 2];
            if (WEIGHT_PARTS == 2) pack_parts(two[0], two[1], p[i / 4][i % 4], rest[i / 4][i % 4]);
            else p[i / 4][i % 4] = pack(two[0], two[1]);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) { /* 16 columns of the row */
            uint32_t v[4];
            load_matrices_transposed(v, values + (j * 4 + lane % 16) * STRIDE + c * 4 + lane / 16 * 8);
#pragma unroll
            for (int s = 0; s < STRIPS; s++) {
                multiply(output[2 * s] + c, output[2 * s + 1] + c, p[s], v[0], v[1]);
                multiply(output[2 * s] + c + 2, output[2 * s + 1] + c + 2, p[s], v[2], v[3]);
                if (WEIGHT_PARTS == 2) {
                    multiply(output[2 * s] + c, output[2 * s + 1] + c, rest[s], v[0], v[1]);
                    multiply(output[2 * s] + c + 2, output[2 * s + 1] + c + 2, rest[s], v[2], v[3]);
                }
            }
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)
attend(const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ o,
       float *__restrict__ partial, int64_t B, int64_t H, int64_t H_kv, int64_t S_q, int64_t S_kv, int64_t D,
       int64_t causal, int64_t bshd, float scale, const T *__restrict__ bias, const uint8_t *__restrict__ seen) {
    extern __shared__ uint4 shared[];
    T *queries = (T *)shared, *keys = queries + BLOCK_Q * STRIDE, *values = keys + BLOCK_KV * STRIDE;

    /* The last queries, which see the most keys where causal, are begun first. */
    const int64_t tiles = (S_q + BLOCK_Q - 1) / BLOCK_Q, jobs = B * H * SPLITS;
    const int64_t tile = tiles - 1 - blockIdx.x / jobs, job = blockIdx.x % jobs;
    const int64_t split = job % SPLITS, head = job / SPLITS % H, b = job / SPLITS / H;
    const int64_t kv_head = head / (H / H_kv), i0 = tile * BLOCK_Q;
    const int64_t q_step = BSHD(Q_LIES) ? WITHIN(Q_HEADS, H) * D : D, o_step = !Q_HEADS && !Q_LIES ? q_step : bshd ? H * D : D;
    const int64_t H_v = H_kv / V_SHARE, v_head = kv_head / V_SHARE;
    const int64_t k_step = BSHD(K_LIES) ? WITHIN(K_HEADS, H_kv) * D : D, v_step = V_AS_K ? k_step : BSHD(V_LIES) ? WITHIN(V_HEADS, H_v) * D : D;
    const int64_t q_at = (BSHD(Q_LIES) ? (b * S_q + i0) * WITHIN(Q_HEADS, H) + Q_FIRST + head : (b * H + head) * S_q + i0) * D;
    const int64_t o_at = !Q_HEADS && !Q_LIES ? q_at : (bshd ? (b * S_q + i0) * H + head : (b * H + head) * S_q + i0) * D;
    const int64_t k_at = (BSHD(K_LIES) ? b * S_kv * WITHIN(K_HEADS, H_kv) + K_FIRST + kv_head : (b * H_kv + kv_head) * S_kv) * D;
    const int64_t v_at = V_AS_K         ? k_at + (V_FIRST - K_FIRST) * D
                         : BSHD(V_LIES) ? (b * S_kv * WITHIN(V_HEADS, H_v) + V_FIRST + v_head) * D
                                        : (b * H_v + v_head) * S_kv * D;
    q += q_at, o += o_at, k += k_at, v += v_at;

    /* Query i0 + i sees `first + i` keys, or all. */
    const int64_t first = causal ? i0 + 1 + S_kv - S_q : S_kv;
    const int64_t visible = causal ? max((int64_t)0, min(S_kv, first + BLOCK_Q - 1)) : S_kv;
    const int64_t share = ((S_kv + BLOCK_KV - 1) / BLOCK_KV + SPLITS - 1) / SPLITS * BLOCK_KV;
    const int64_t begin = split * share, end = min(visible, begin + share);

    copy_rows<BLOCK_Q>(queries, q, S_q - i0, q_step, D);
    if (begin < end) copy_rows<BLOCK_KV>(keys, k + begin * k_step, end - begin, k_step, D);
    end_of_copies();
    if (begin < end) copy_rows<BLOCK_KV>(values, v + begin * v_step, end - begin, v_step, D);
    end_of_copies();

    const int row = threadIdx.x / 32 * STRIPS * 16 + threadIdx.x % 32 / 4; /* of the lane's first query */
    const float log2_scale = BIAS || SEEN ? 1.44269504f : scale * 1.44269504f;
    float output[ROWS][COLUMNS] = {}, top[ROWS], total[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = MINUS_INFINITY;

    for (int64_t j0 = begin; j0 < end; j0 += BLOCK_KV) {
        if (j0 == begin) wait_for_copies<1>();
        else wait_for_copies<0>();
        __syncthreads(); /* these keys are there for all, and nobody reads the last values any more */
        if (j0 > begin) copy_rows<BLOCK_KV>(values, v + j0 * v_step, end - j0, v_step, D);
        end_of_copies();

        float scores[ROWS][KEYS] = {};
        multiply_keys(scores, queries + threadIdx.x / 32 * STRIPS * 16 * STRIDE, keys);
#if BIAS || SEEN
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int j = 0; j < KEYS; j++)
                scores[r][j] = fmaf(scores[r][j], scale, added_to(b, head, min(i0 + row + r * 8, S_q - 1), min(j0 + key_of(j), S_kv - 1), bias, seen));
#endif
        if (j0 + BLOCK_KV > end || j0 + BLOCK_KV > first) { /* not every query sees all of these keys */
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int64_t keys_seen = min(end, causal ? first + row + r * 8 : end) - j0;
                const int sees = (int)max((int64_t)0, min((int64_t)BLOCK_KV, keys_seen));
#pragma unroll
                for (int j = 0; j < KEYS; j++)
                    if (key_of(j) >= sees) scores[r][j] = MINUS_INFINITY;
            }
        }

        wait_for_copies<0>();
        __syncthreads(); /* these values are there for all, and nobody reads these keys any more */
        const int64_t next = j0 + BLOCK_KV;
        if (next < end) copy_rows<BLOCK_KV>(keys, k + next * k_step, end - next, k_step, D);
        end_of_copies();

#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float highest = top[r];
#pragma unroll
            for (int j = 0; j < KEYS; j++) highest = fmaxf(highest, scores[r][j]);
            highest = largest_in_quad(highest);
            /* Where every score so far is -infinity any finite shift will do, and that one would not. */
            const float shift = highest == MINUS_INFINITY ? 0.0f : __fmul_rn(highest, log2_scale);
            /* The product is rounded by itself, as `shift` was: fused with the subtraction it would differ from an unchanged
               shift by its rounding, and every tile would be weighed a little more or less than the one before. */
            const float correction = power_of_two(__fmul_rn(top[r], log2_scale) - shift);
            top[r] = highest;
            float sum = 0;
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                scores[r][j] = power_of_two(fmaf(scores[r][j], log2_scale, -shift));
                sum += scores[r][j];
            }
            total[r] = total[r] * correction + sum;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) output[r][c] *= correction;
        }
        multiply_values(output, scores, values);
    }
    wait_for_copies<0>();
    __syncthreads(); /* where there were no keys at all, the queries may still be on their way to where the output goes */

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t i = row + r * 8;
        const float all = sum_in_quad(total[r]);
        if (i >= S_q - i0) continue;
        if (SPLITS > 1) {
            float *to = partial + (((b * H + head) * S_q + i0 + i) * SPLITS + split) * (D + 2);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                if (column_of(c) < D) to[column_of(c)] = output[r][c];
            to[D] = __fmul_rn(top[r], log2_scale);
            to[D + 1] = all;
            continue;
        }
        /* By way of shared memory, in place of the warp's own queries, so that rows are stored in whole pieces. */
        const float factor = (causal && first + i <= 0) || ((BIAS || SEEN) && all == 0.0f) ? 0.0f : 1.0f / all;
        T *to = queries + i * STRIDE;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) to[column_of(c)] = ws_store(factor == 0.0f ? 0.0f : output[r][c] * factor);
    }
    if (SPLITS > 1) return;
    __syncwarp();
    constexpr int PIECES = D_PAD / VEC;
    const int warp_row = threadIdx.x / 32 * STRIPS * 16;
    for (int piece = threadIdx.x % 32; piece < STRIPS * 16 * PIECES; piece += 32) {
        const int i = warp_row + piece / PIECES, column = piece % PIECES * VEC;
        if (i >= S_q - i0 || column >= D) continue;
        const T *from = queries + i * STRIDE + column;
        T *to = o + i * o_step + column;
        if (D % VEC == 0) *(uint4 *)to = *(const uint4 *)from;
        else
            for (int e = 0; e < VEC && column + e < D; e++) to[e] = from[e];
    }
}

#if SPLITS > 1
/* Adds up the parts of SPLITS blocks: a warp has one query. */
extern "C" __global__ void __launch_bounds__(128)
merge(T *__restrict__ o, const float *__restrict__ partial, int64_t B, int64_t H, int64_t S_q, int64_t S_kv, int64_t D,
      int64_t causal, int64_t bshd) {
    const int64_t query = (int64_t)blockIdx.x * 4 + threadIdx.x / 32;
    if (query >= B * H * S_q) return;
    const int64_t i = query % S_q, head = query / S_q % H, b = query / S_q / H;
    const float *part = partial + query * SPLITS * (D + 2);
    float top = MINUS_INFINITY, total = 0, weights[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; s++) top = fmaxf(top, part[s * (D + 2) + D]);
    if (top == MINUS_INFINITY) top = 0;
#pragma unroll
    for (int s = 0; s < SPLITS; s++) {
        weights[s] = power_of_two(part[s * (D + 2) + D] - top);
        total += weights[s] * part[s * (D + 2) + D + 1];
    }
    const bool sees_nothing = (causal && i + 1 + S_kv - S_q <= 0) || ((BIAS || SEEN) && total == 0.0f);
    o += (bshd ? (b * S_q + i) * H + head : query) * D;
    for (int64_t d = threadIdx.x % 32; d < D; d += 32) {
        float sum = 0;
#pragma unroll
        for (int s = 0; s < SPLITS; s++) sum += weights[s] * part[s * (D + 2) + d];
        o[d] = ws_store(sees_nothing ? 0.0f : sum / total);
    }
}
#endif
