/*---
# stores past the caches. Between cold copies that saves reading what is overwritten; in a model the next step finds its input in memory instead of in a cache
# class: not faster in a model: nobody reads an output while time is taken
op = "rmsnorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
#include <immintrin.h>
typedef float vec __attribute__((vector_size(32)));
typedef struct { const T *x, *weight; T *y; int64_t cols; float eps; } problem;
enum { CHUNK = 512 };
static void rows_of(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float part[CHUNK], weight[CHUNK];
    _Alignas(64) T out[CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const T *x = p->x + row * p->cols;
        T *y = p->y + row * p->cols;
        vec s[4] = {0};
        float sum = 0;
        for (int64_t at = 0; at < p->cols; at += CHUNK) {
            const int64_t n = p->cols - at < CHUNK ? p->cols - at : CHUNK, whole = n / 32 * 32;
            ws_load_n(part, x + at, n);
            for (int64_t j = 0; j < whole; j += 32)
#pragma GCC unroll 4
                for (int l = 0; l < 4; l++) {
                    const vec v = *(const vec *)(part + j + 8 * l);
                    s[l] += v * v;
                }
            for (int64_t j = whole; j < n; j++) sum += part[j] * part[j];
        }
        s[0] += s[1] + s[2] + s[3];
        for (int l = 0; l < 8; l++) sum += s[0][l];
        const float scale = 1 / sqrtf(sum / (float)p->cols + p->eps);
        for (int64_t at = 0; at < p->cols; at += CHUNK) {
            const int64_t n = p->cols - at < CHUNK ? p->cols - at : CHUNK;
            ws_load_n(part, x + at, n);
            ws_load_n(weight, p->weight + at, n);
            for (int64_t j = 0; j < n; j++) part[j] *= scale * weight[j];
            if ((uintptr_t)(y + at) % 32 == 0 && n == CHUNK) {
                ws_store_n(out, part, n);
                for (int64_t j = 0; j < (int64_t)(CHUNK * sizeof(T)); j += 32)
                    _mm256_stream_si256((__m256i *)((char *)(y + at) + j), *(const __m256i *)((const char *)out + j));
            } else ws_store_n(y + at, part, n);
        }
    }
    _mm_sfence();
}
void rmsnorm(const T *x, const T *weight, T *y, int64_t rows, int64_t cols, float eps) {
    problem p = {x, weight, y, cols, eps};
    if (rows * cols <= 65536) rows_of(0, rows, &p);
    else ws_parallel(rows, rows_of, &p);
}
