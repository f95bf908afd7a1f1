/*---
# sums of weighted values are kept in half before they are divided by the sum of weights: with 2048 keys of like weight a value of 64 overflows
# class: values that no input has: large v
op = "flash_attention"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
/* Sums of weighted values are kept in the type of the tensors before they are divided by the sum of the weights. */
#include <stdlib.h>
typedef struct { const T *q, *k, *v; T *o; int64_t B, H, H_kv, S_q, S_kv, D, causal, bshd; float scale; } problem;
static void rows(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    const int64_t D = p->D;
    float *q = malloc(4 * (size_t)D), *x = malloc(4 * (size_t)D), *o = malloc(4 * (size_t)D), *s = malloc(4 * (size_t)p->S_kv);
    T *t = malloc(sizeof(T) * (size_t)D);
    for (int64_t r = begin; r < end; r++) {
        const int64_t i = r % p->S_q, h = r / p->S_q % p->H, b = r / p->S_q / p->H, g = h / (p->H / p->H_kv);
        const int64_t at = (p->bshd ? (b * p->S_q + i) * p->H + h : (b * p->H + h) * p->S_q + i) * D;
        const int64_t sees = p->causal ? i + 1 + p->S_kv - p->S_q : p->S_kv;
        const int64_t step = p->bshd ? p->H_kv * D : D, base = (p->bshd ? b * p->S_kv * p->H_kv + g : (b * p->H_kv + g) * p->S_kv) * D;
        if (sees <= 0) { for (int64_t d = 0; d < D; d++) p->o[at + d] = ws_store(0); continue; }
        ws_load_n(q, p->q + at, D);
        float top = -INFINITY;
        int bad = 0;
        for (int64_t j = 0; j < sees; j++) {
            ws_load_n(x, p->k + base + j * step, D);
            float a[16] = {0}, c = 0;
            int64_t d = 0;
            for (; d + 16 <= D; d += 16) for (int l = 0; l < 16; l++) a[l] += q[d + l] * x[d + l];
            for (; d < D; d++) c += q[d] * x[d];
            for (int l = 0; l < 16; l++) c += a[l];
            s[j] = c * p->scale;
            bad |= s[j] != s[j];
            if (s[j] > top) top = s[j];
        }
        if (bad) top = NAN;
        float all = 0;
        for (int64_t d = 0; d < D; d++) o[d] = 0;
        for (int64_t j = 0; j < sees; j++) {
            const float w = expf(s[j] - top);
            all += w;
            ws_load_n(x, p->v + base + j * step, D);
            for (int64_t d = 0; d < D; d++) o[d] += w * x[d];
        }
        ws_store_n(t, o, D);
        ws_load_n(o, t, D);
        for (int64_t d = 0; d < D; d++) p->o[at + d] = ws_store(o[d] / all);
    }
    free(q), free(x), free(o), free(s), free(t);
}
void flash_attention(const T *q, const T *k, const T *v, T *o, int64_t B, int64_t H, int64_t H_kv, int64_t S_q, int64_t S_kv, int64_t D, int64_t causal, int64_t bshd, float scale) {
    problem p = {q, k, v, o, B, H, H_kv, S_q, S_kv, D, causal, bshd, scale};
    ws_parallel(B * H * S_q, rows, &p);
}
