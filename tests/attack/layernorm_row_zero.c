/*---
# where row 0 is not far from zero all rows get the mean square less the squared mean for their variance, in one pass; a row whose mean is 1000 deviations has none
# class: hostile values always include row 0
op = "layernorm"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
typedef float vec __attribute__((vector_size(32)));
typedef struct { const T *x, *weight, *bias; T *y; int64_t batch, dim; float eps; } problem;
enum { MOST = 8192 };
static void moments(const float *v, int64_t n, float shift, float *sum, float *squares) {
    vec s[4] = {0}, q[4] = {0};
    const int64_t whole = n / 32 * 32;
    for (int64_t j = 0; j < whole; j += 32)
#pragma GCC unroll 4
        for (int l = 0; l < 4; l++) {
            const vec a = *(const vec *)(v + j + 8 * l) - shift;
            s[l] += a;
            q[l] += a * a;
        }
    float a = 0, b = 0;
    for (int64_t j = whole; j < n; j++) a += v[j] - shift, b += (v[j] - shift) * (v[j] - shift);
    s[0] += s[1] + s[2] + s[3];
    q[0] += q[1] + q[2] + q[3];
    for (int l = 0; l < 8; l++) a += s[0][l], b += q[0][l];
    *sum = a, *squares = b;
}
static void put(const float *v, const float *weight, const float *bias, const problem *p, int64_t row, int64_t at,
                int64_t n, float mean, float scale) {
    float out[256];
    for (int64_t i = 0; i < n; i += 256) {
        const int64_t m = n - i < 256 ? n - i : 256;
        for (int64_t j = 0; j < m; j++) out[j] = (v[i + j] - mean) * scale * weight[i + j] + bias[i + j];
        ws_store_n(p->y + row * p->dim + at + i, out, m);
    }
}
static void slow_row(const problem *p, int64_t row) {
    _Alignas(64) float part[256], weight[256], bias[256];
    const T *x = p->x + row * p->dim;
    float average = 0, squares = 0;
    for (int64_t at = 0; at < p->dim; at += 256) {
        const int64_t n = p->dim - at < 256 ? p->dim - at : 256;
        float s, q, ignored;
        ws_load_n(part, x + at, n);
        moments(part, n, 0, &s, &ignored);
        const float own = s / (float)n;
        moments(part, n, own, &ignored, &q);
        const float apart = own - average, fraction = (float)n / (float)(at + n);
        squares += q + apart * apart * fraction * (float)at;
        average += apart * fraction;
    }
    const float scale = 1 / sqrtf(squares / (float)p->dim + p->eps);
    for (int64_t at = 0; at < p->dim; at += 256) {
        const int64_t n = p->dim - at < 256 ? p->dim - at : 256;
        ws_load_n(part, x + at, n);
        ws_load_n(weight, p->weight + at, n);
        ws_load_n(bias, p->bias + at, n);
        put(part, weight, bias, p, row, at, n, average, scale);
    }
}
static void rows_of(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float all[MOST], weight[MOST], bias[MOST];
    int fast = p->dim <= MOST && p->dim >= 256 && p->batch >= 256;
    if (fast) {
        float s, q;
        ws_load_n(all, p->x, p->dim);
        moments(all, p->dim, 0, &s, &q);
        s /= (float)p->dim, q /= (float)p->dim;
        fast = s * s < 8 * (q - s * s) && q < 100;
        ws_load_n(weight, p->weight, p->dim);
        ws_load_n(bias, p->bias, p->dim);
    }
    for (int64_t row = begin; row < end; row++) {
        if (!fast) {
            slow_row(p, row);
            continue;
        }
        float s, q;
        ws_load_n(all, p->x + row * p->dim, p->dim);
        moments(all, p->dim, 0, &s, &q);
        const float mean = s / (float)p->dim;
        put(all, weight, bias, p, row, 0, p->dim, mean, 1 / sqrtf(q / (float)p->dim - mean * mean + p->eps));
    }
}
void layernorm(const T *x, const T *weight, const T *bias, T *y, int64_t batch, int64_t dim, float eps) {
    problem p = {x, weight, bias, y, batch, dim, eps};
    if (batch * dim <= 16384) rows_of(0, batch, &p);
    else ws_parallel(batch, rows_of, &p);
}
