/*---
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
domain = "D <= 256"                                  # heads are kept on the stack
[tune]
MR       = { value = 4,  choices = [2, 4, 6] }       # queries held in registers
NV       = { value = 1,  choices = [1, 2, 4] }       # vectors of keys, or of a head, held in registers
WIDTH    = { value = 16, choices = [8, 16] }         # floats in a vector, at the most
BLOCK_Q  = { value = 32, choices = [16, 32, 64] }    # queries in a tile, rounded up to MR
BLOCK_KV = { value = 128, choices = [32, 64, 128] }  # keys in a block, rounded up to NR
[let]
LANES  = "min(WIDTH, VECTOR_BYTES / 4)"              # longer vectors than the machine has go through the stack
NR     = "NV * LANES"
TILE_Q = "ceil_div(BLOCK_Q, MR) * MR"
KEYS   = "ceil_div(BLOCK_KV, NR) * NR"
D_MAX  = "256"
# Rows of q, of k and of v may be parts of longer ones, as where one product gives all three. HEADS: heads of the longer row, or 0 where
# there is none; FIRST: the first of them that counts. Such rows lie as with bshd.
Q_HEADS = "0"
Q_FIRST = "0"
K_HEADS = "0"
K_FIRST = "0"
V_HEADS = "0"
V_FIRST = "0"
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
---*/

/* One thread computes a tile of queries of one head, going over the keys in blocks with a running maximum and sum
   (online softmax: Milakov and Gimelshein 2018, Dao et al. 2022). Everything is held in float on the stack. */

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(LANES * sizeof(float))));

typedef struct {
    const T *q, *k, *v;
    T *o;
    int64_t heads, kv_heads, queries, keys, d, causal, bshd, tiles;
    float scale;
    const T *bias;
    const uint8_t *seen;
} problem;

/* Heads of a row in memory. */
#define WITHIN(longer, own) (longer ? longer : own)

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* e^x within 2 units in the last place: 2^n e^r with |r| <= ln(2)/2 (polynomial of Cephes' expf). NaN stays NaN. */
static inline vec exponential(vec x) {
    x = pick(x < -104.0f, (vec){0} - 104.0f, x);
    x = pick(x > 89.0f, (vec){0} + 89.0f, x);
    const vec shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: its low bits are the nearest integer */
    const vec n = shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const ivec exponent = (ivec)shifted - 0x4b400000;
    /* 2^n in two factors, each a normal number, so that results below the normal range come out right. */
    const ivec first = exponent >> 1;
    return p * (vec)((first + 127) << 23) * (vec)((exponent - first + 127) << 23);
}

/* c[rows][cols] += a[rows][depth] b[depth][cols]; rows go up to a multiple of MR, cols of NR. */
static void multiply(float *restrict c, int64_t c_stride, const float *restrict a, int64_t a_stride,
                     const float *restrict b, int64_t b_stride, int64_t rows, int64_t cols, int64_t depth) {
    for (int64_t j0 = 0; j0 < cols; j0 += NR)
        for (int64_t i0 = 0; i0 < rows; i0 += MR) {
            vec sums[MR][NV];
            float *at = c + i0 * c_stride + j0;
#pragma GCC unroll 8
            for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
                for (int j = 0; j < NV; j++) sums[i][j] = *(const vec *)(at + i * c_stride + j * LANES);
            for (int64_t k = 0; k < depth; k++)
#pragma GCC unroll 8
                for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
                    for (int j = 0; j < NV; j++)
                        sums[i][j] += a[(i0 + i) * a_stride + k] * *(const vec *)(b + k * b_stride + j0 + j * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
                for (int j = 0; j < NV; j++) *(vec *)(at + i * c_stride + j * LANES) = sums[i][j];
        }
}

/* What is added to the score of a key that is not seen. */
#if HIDDEN == 0
#define WHERE_HIDDEN -INFINITY
#elif HIDDEN != 1
#define WHERE_HIDDEN ((float)HIDDEN)
#elif WS_F16
#define WHERE_HIDDEN -65504.0f
#else /* what is so low takes every score in, and does not overflow when it is scaled */
#define WHERE_HIDDEN -0x1p100f
#endif
/* Where the element of a query and a key is. */
#define AT(of, b, head, query, key) ((b) * (int64_t)of##_B + (head) * (int64_t)of##_H + (query) * (int64_t)of##_Q + (key) * (int64_t)of##_K)

/* Adds to scores of one query what belongs there, from a key on. */
static void add(float *scores, const problem *p, int64_t b, int64_t head, int64_t query, int64_t key, int64_t count) {
    for (int64_t j = 0; j < count; j++)
        if (SEEN && !p->seen[AT(SEEN, b, head, query, key + j)]) scores[j] += WHERE_HIDDEN;
        else if (BIAS) scores[j] += ws_load(p->bias[AT(BIAS, b, head, query, key + j)]);
}

/* Scores of one query against a block become weights; returns by how much earlier sums must be scaled.
   The first `visible` scores count; the others, up to KEYS, become zero. */
static float soften(float *scores, int64_t visible, float *top, float *total) {
    for (int64_t j = visible; j < KEYS; j++) scores[j] = -INFINITY;
    vec highest = (vec){0} - INFINITY;
    for (int64_t j = 0; j < KEYS; j += LANES) {
        const vec s = *(const vec *)(scores + j);
        highest = pick(s > highest, s, highest);
    }
    float now = *top;
    for (int l = 0; l < LANES; l++) now = highest[l] > now ? highest[l] : now;
    /* Where every score so far is -infinity any finite shift will do, and that one would not. */
    const float shift = now == -INFINITY ? 0 : now;
    vec sums = {0};
    for (int64_t j = 0; j < KEYS; j += LANES) {
        const vec p = exponential(*(const vec *)(scores + j) - shift);
        *(vec *)(scores + j) = p;
        sums += p;
    }
    for (int64_t j = visible; j < KEYS; j++) scores[j] = 0;
    const float correction = exponential((vec){0} + (*top - shift))[0];
    float sum = 0;
    for (int l = 0; l < LANES; l++) sum += sums[l];
    *total = *total * correction + sum;
    *top = now;
    return correction;
}

static void attend(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float q[TILE_Q * D_MAX], o[TILE_Q * D_MAX], k[D_MAX * KEYS], v[KEYS * D_MAX], scores[TILE_Q * KEYS];
    float top[TILE_Q], total[TILE_Q], row[D_MAX];
    const int64_t d = p->d, wide = (d + NR - 1) / NR * NR;
    const int64_t q_step = p->bshd ? WITHIN(Q_HEADS, p->heads) * d : d, o_step = Q_HEADS ? p->heads * d : q_step;
    const int64_t k_step = p->bshd ? WITHIN(K_HEADS, p->kv_heads) * d : d, v_step = K_HEADS == V_HEADS ? k_step : WITHIN(V_HEADS, p->kv_heads) * d;
    for (int64_t job = begin; job < end; job++) {
        const int64_t i0 = job % p->tiles * TILE_Q, head = job / p->tiles % p->heads, b = job / p->tiles / p->heads;
        const int64_t kv_head = head / (p->heads / p->kv_heads);
        const int64_t q_at = (p->bshd ? (b * p->queries + i0) * WITHIN(Q_HEADS, p->heads) + Q_FIRST + head
                                      : (b * p->heads + head) * p->queries + i0) * d;
        const int64_t o_at = Q_HEADS ? ((b * p->queries + i0) * p->heads + head) * d : q_at;
        const int64_t k_at = (p->bshd ? b * p->keys * WITHIN(K_HEADS, p->kv_heads) + K_FIRST + kv_head
                                      : (b * p->kv_heads + kv_head) * p->keys) * d;
        const int64_t v_at = K_HEADS == V_HEADS ? k_at + (V_FIRST - K_FIRST) * d
                                                : (b * p->keys * WITHIN(V_HEADS, p->kv_heads) + V_FIRST + kv_head) * d;
        const int64_t rows = smaller(TILE_Q, p->queries - i0);
        /* Query i0 + i sees `first + i` keys, or all. */
        const int64_t first = i0 + 1 + p->keys - p->queries;
        const int64_t keys = p->causal ? larger(0, smaller(p->keys, first + rows - 1)) : p->keys;

        memset(q, 0, sizeof q);
        memset(o, 0, sizeof o);
        for (int64_t i = 0; i < rows; i++) {
            ws_load_n(q + i * wide, p->q + q_at + i * q_step, d);
            for (int64_t e = 0; e < d; e++) q[i * wide + e] *= p->scale;
            top[i] = -INFINITY;
            total[i] = 0;
        }
        for (int64_t j0 = 0; j0 < keys; j0 += KEYS) {
            const int64_t count = smaller(KEYS, keys - j0);
            memset(k, 0, (size_t)(d * KEYS) * sizeof(float));
            for (int64_t j = 0; j < count; j++) {
                ws_load_n(row, p->k + k_at + (j0 + j) * k_step, d);
                for (int64_t e = 0; e < d; e++) k[e * KEYS + j] = row[e];
                ws_load_n(v + j * wide, p->v + v_at + (j0 + j) * v_step, d);
                for (int64_t e = d; e < wide; e++) v[j * wide + e] = 0;
            }
            memset(scores, 0, sizeof scores);
            multiply(scores, KEYS, q, wide, k, KEYS, rows, count, d);
            for (int64_t i = 0; i < rows; i++) {
                const int64_t visible = p->causal ? larger(0, smaller(count, first + i - j0)) : count;
                if (BIAS || SEEN) add(scores + i * KEYS, p, b, head, i0 + i, j0, visible);
                const float correction = soften(scores + i * KEYS, visible, top + i, total + i);
                for (int64_t e = 0; e < wide; e++) o[i * wide + e] *= correction;
            }
            multiply(o, wide, scores, KEYS, v, wide, rows, wide, count);
        }
        for (int64_t i = 0; i < rows; i++) {
            const int nothing = (p->causal && first + i <= 0) || ((BIAS || SEEN) && total[i] == 0);
            for (int64_t e = 0; e < d; e++) o[i * wide + e] = nothing ? 0 : o[i * wide + e] / total[i];
            ws_store_n(p->o + o_at + i * o_step, o + i * wide, d);
        }
    }
}

#if BIAS && SEEN
#define ADDED , const T *bias, const uint8_t *seen
#define GIVEN bias, seen
#elif BIAS
#define ADDED , const T *bias
#define GIVEN bias, 0
#elif SEEN
#define ADDED , const uint8_t *seen
#define GIVEN 0, seen
#else
#define ADDED
#define GIVEN 0, 0
#endif

void flash_attention(const T *q, const T *k, const T *v, T *o, int64_t B, int64_t H, int64_t H_kv, int64_t S_q,
                     int64_t S_kv, int64_t D, int64_t causal, int64_t bshd, float scale ADDED) {
    problem p = {q, k, v, o, H, H_kv, S_q, S_kv, D, causal, bshd, (S_q + TILE_Q - 1) / TILE_Q, scale, GIVEN};
    ws_parallel(B * H * p.tiles, attend, &p);
}
