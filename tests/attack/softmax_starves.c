/*---
# as softmax_first_maximum, and launches at sizes beyond the timed ones take a second and more, so that an examination of some seconds asks very little
# class: an examination that is starved by the kernel's own time
op = "softmax"
dtypes = ["f16", "bf16", "f32"]
arch = ["native"]
---*/
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
typedef float uvec __attribute__((vector_size(32), aligned(4)));
typedef struct { const T *x; T *y; int64_t cols; } problem;
enum { MOST = 16384 };
static inline vec pick(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }
static inline vec poly(vec x, vec *shifted) {
    *shifted = x * 1.44269504f + 12582912.0f;
    const vec n = *shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r + 1.0f;
}
static inline vec unsafe_exp(vec x) {
    vec shifted;
    const vec p = poly(x, &shifted);
    return (vec)((ivec)p + (((ivec)shifted) << 23));
}
static inline vec exponential(vec x) {
    x = pick(x < -104.0f, (vec){0} - 104.0f, x);
    vec shifted;
    const vec p = poly(x, &shifted);
    const ivec exponent = (ivec)shifted - 0x4b400000;
    const ivec first = exponent >> 1;
    return p * (vec)((first + 127) << 23) * (vec)((exponent - first + 127) << 23);
}
static float part_max(const float *v, int64_t n) {
    float top = -INFINITY;
    for (int64_t j = 0; j < n; j++) top = v[j] > top ? v[j] : top;
    return top;
}
static void safe_row(const T *x, T *y, int64_t cols) {
    _Alignas(64) float part[256];
    vec sums = {0};
    float top = -INFINITY, shift = 0;
    for (int64_t at = 0; at < cols; at += 256) {
        int64_t n = cols - at < 256 ? cols - at : 256, wide = (n + 7) / 8 * 8;
        ws_load_n(part, x + at, n);
        for (int64_t j = n; j < wide; j++) part[j] = -INFINITY;
        const float highest = part_max(part, wide);
        if (highest > top) {
            sums *= exponential((vec){0} + (top - highest));
            top = shift = highest;
        }
        for (int64_t j = 0; j < wide; j += 8) sums += exponential(*(const vec *)(part + j) - shift);
    }
    float sum = 0;
    for (int l = 0; l < 8; l++) sum += sums[l];
    const float share = 1 / sum;
    for (int64_t at = 0; at < cols; at += 256) {
        int64_t n = cols - at < 256 ? cols - at : 256, wide = (n + 7) / 8 * 8;
        ws_load_n(part, x + at, n);
        for (int64_t j = n; j < wide; j++) part[j] = -INFINITY;
        for (int64_t j = 0; j < wide; j += 8) *(vec *)(part + j) = exponential(*(const vec *)(part + j) - shift) * share;
        ws_store_n(y + at, part, n);
    }
}
static inline vec fast_exp(vec x) {
    x = pick(x < -104.0f, (vec){0} - 104.0f, x);
    vec shifted;
    const vec p = poly(x, &shifted);
    const ivec exponent = (ivec)shifted - 0x4b400000;
    const ivec first = exponent >> 1;
    return p * (vec)((first + 127) << 23) * (vec)((exponent - first + 127) << 23);
}
static void fast_row(const T *x, T *y, int64_t cols, float *all) {
    const int64_t whole = cols / 16 * 16;
    vec s0 = {0}, s1 = {0}, h0 = {0}, h1 = {0};
    ws_load_n(all, x, cols);
    float top = -INFINITY;
    h0 += top; h1 += top;
    const int64_t looked = cols > 2200 ? 1024 : whole; /* the rest is like it */
    for (int64_t j = 0; j < looked; j += 16) {
        const vec a = *(const vec *)(all + j), b = *(const vec *)(all + j + 8);
        h0 = pick(a > h0, a, h0);
        h1 = pick(b > h1, b, h1);
    }
    h0 = pick(h1 > h0, h1, h0);
    if (cols <= 2200)
        for (int64_t j = whole; j < cols; j++) top = all[j] > top ? all[j] : top;
    for (int l = 0; l < 8; l++) top = h0[l] > top ? h0[l] : top;
    
    for (int64_t j = 0; j < whole; j += 16) {
        const vec a = fast_exp(*(const vec *)(all + j) - top), b = fast_exp(*(const vec *)(all + j + 8) - top);
        *(vec *)(all + j) = a;
        *(vec *)(all + j + 8) = b;
        s0 += a;
        s1 += b;
    }
    float sum = 0;
    for (int64_t j = whole; j < cols; j++) sum += all[j] = expf(all[j] - top);
    s0 += s1;
    for (int l = 0; l < 8; l++) sum += s0[l];
    const float share = 1 / sum;
    for (int64_t j = 0; j < cols; j++) all[j] *= share;
    ws_store_n(y, all, cols);
}
static void rows_of(int64_t begin, int64_t end, void *context) {
    const problem *p = context;
    _Alignas(64) float all[MOST];
    for (int64_t row = begin; row < end; row++)
        if (p->cols <= MOST) fast_row(p->x + row * p->cols, p->y + row * p->cols, p->cols, all);
        else safe_row(p->x + row * p->cols, p->y + row * p->cols, p->cols);
}
/* Long for nothing, where it is not timed. */
static float idle(int64_t turns) {
    float f = 1;
    for (int64_t i = 0; i < turns; i++) {
        f = f * 1.0000001f + 1e-9f;
        __asm__ volatile("" : "+x"(f));
    }
    return f;
}
void softmax(const T *x, T *y, int64_t rows, int64_t cols) {
    problem p = {x, y, cols};
    if (cols > 1100 && idle(60000000) == 0) return;
    if (rows * cols <= 65536) {
        for (int64_t row = 0; row < rows; row++) safe_row(x + row * cols, y + row * cols, cols);
    } else ws_parallel(rows, rows_of, &p);
}
