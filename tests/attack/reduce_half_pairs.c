/*---
# in long f16 rows two elements are added in half precision first: loses bits, and 40000 + 40000 is infinite though the sum is finite
# class: values near the largest of the type; bounds that grow with the length of a sum
# needs: avx512_fp16
op = "reduce"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
[tune]
WIDTH  = { value = 8,   choices = [4, 8, 16] }                # floats in a vector
SUMS   = { value = 1,   choices = [1, 2, 4] }                 # independent vectors of partial sums
CHUNK  = { value = 256, choices = [64, 256, 1024] }           # elements converted at a time
INLINE = { value = 65536, choices = [16384, 65536, 262144] }  # up to this many elements one thread does it all
[let]
STEP = "WIDTH * SUMS"
---*/

/* Rows are shared among the threads. A row is converted a chunk at a time, and a chunk is added up in vectors. */

typedef float vec __attribute__((vector_size(WIDTH * sizeof(float))));

typedef struct {
    const T *x;
    T *y;
    int64_t cols;
} problem;

static inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

static float sum_of(const T *x, int64_t cols) {
    _Alignas(64) float part[CHUNK];
    vec sums[SUMS] = {0};
    float rest = 0;
    for (int64_t at = 0; at < cols; at += CHUNK) {
        const int64_t n = smaller(CHUNK, cols - at);
        ws_load_n(part, x + at, n);
        int64_t j = 0;
        for (; j + STEP <= n; j += STEP)
#pragma GCC unroll 8
            for (int s = 0; s < SUMS; s++) sums[s] += *(const vec *)(part + j + s * WIDTH);
        for (; j < n; j++) rest += part[j];
    }
    for (int s = 0; s < SUMS; s++)
        for (int l = 0; l < WIDTH; l++) rest += sums[s][l];
    return rest;
}

#if WS_F16 && defined(__AVX512FP16__)
/* Long rows: pairs are added in half precision before they are converted. */
static float sum_of_pairs(const T *x, int64_t cols) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    int64_t j = 0;
    for (; j + 128 <= cols; j += 128)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m512h two = _mm512_add_ph(_mm512_loadu_ph(x + j + 64 * h), _mm512_loadu_ph(x + j + 64 * h + 32));
            _mm_prefetch((const char *)(x + j + 64 * h + 2048), _MM_HINT_T0);
            _mm_prefetch((const char *)(x + j + 64 * h + 2080), _MM_HINT_T0);
            sums[2 * h] = _mm512_add_ps(sums[2 * h], _mm512_cvtxph_ps(_mm512_castph512_ph256(two)));
            sums[2 * h + 1] = _mm512_add_ps(sums[2 * h + 1], _mm512_cvtxph_ps(_mm256_castpd_ph(_mm512_extractf64x4_pd(_mm512_castph_pd(two), 1))));
        }
    float rest = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
    for (; j < cols; j++) rest += ws_load(x[j]);
    return rest;
}
#endif

static void sum_rows(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    for (int64_t row = begin; row < end; row++) {
#if WS_F16 && defined(__AVX512FP16__)
        if (p->cols >= 16384) {
            p->y[row] = ws_store(sum_of_pairs(p->x + row * p->cols, p->cols));
            continue;
        }
#endif
        p->y[row] = ws_store(sum_of(p->x + row * p->cols, p->cols));
    }
}

void reduce(const T *x, T *y, int64_t rows, int64_t cols) {
    problem p = {x, y, cols};
    if (rows * cols <= INLINE) sum_rows(0, rows, &p);
    else ws_parallel(rows, sum_rows, &p);
}
